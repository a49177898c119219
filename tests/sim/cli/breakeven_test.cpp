/// `kvtier breakeven`: its table, its JSON and its messages.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

using nlohmann::json;

class BreakEvenCommand : public ProgramTest {
 protected:
  BreakEvenCommand() { write_run(); }

  json found(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "breakeven");
    arguments.insert(arguments.end(), {"--json", "-"});
    const Outcome outcome = kvtier(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out);
  }
};

TEST_F(BreakEvenCommand, PrintsATableOfLengthsAndTiers) {
  const Outcome outcome = kvtier({"breakeven", "run.json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  // 819,200 B a token: 512 are 400 MiB, which take 16.13 ms at 26 GB/s and 83.89 ms at 5 GB/s.
  for (const char* part :
       {"llama2-13b on 2 x A100-80G SXM, system attentionstore, 819200 bytes", "prefills: roofline",
        "     512       400.0", "16.13", "83.89", "    4096        3200",
        "from dram: always (26 GB/s, limited by the link "
        "pcie)",
        "from ssd:  never (5 GB/s, limited by the link ssd)"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in\n" << outcome.out;
  }
}

TEST_F(BreakEvenCommand, WritesJson) {
  ASSERT_EQ(kvtier({"breakeven", "run.json", "--json", "found.json"}).code, 0);
  const json result = read_json("found.json");
  EXPECT_EQ(result["format"], "kvtier.breakeven/1");
  EXPECT_EQ(result["kv_bytes_per_token"], 819200);
  ASSERT_EQ(result["lengths"].size(), 4U);
  const json& first = result["lengths"][0];
  EXPECT_EQ(first["tokens"], 512);
  EXPECT_EQ(first["kv_bytes"], 512 * 819200);
  const double load = first["load"]["ssd"]["seconds"].get<double>();
  EXPECT_NEAR(load, 512 * 819200 / 5e9, 1e-8);
  EXPECT_DOUBLE_EQ(first["load"]["ssd"]["recompute_over_load"].get<double>(),
                   first["recompute_seconds"].get<double>() / load);
  EXPECT_EQ(result["tiers"]["dram"]["slowest_link"], "pcie");
  EXPECT_EQ(result, found({"run.json"}));
}

TEST_F(BreakEvenCommand, TakesOverrides) {
  const json faster = found({"run.json", "--set", "/hardware/ssd/bandwidth/read=20GB/s", "--set",
                             "/hardware/ssd/bandwidth/both=20GB/s"});
  EXPECT_EQ(faster["tiers"]["ssd"]["loading_wins"], "always");
  const std::vector<std::string> sets{"run.json", "--set", "/model=llama2-7b", "--set",
                                      "/hardware=h100-8x"};
  const json other = found({"run.json", "--model", "llama2-7b", "--hardware", "h100-8x"});
  EXPECT_EQ(other, found(sets));
  EXPECT_EQ(other["model"], "llama2-7b");
  EXPECT_EQ(other["hardware"], "8 x H100-80G SXM");
}

TEST_F(BreakEvenCommand, TakesTheProfileAndTheEngineOfTheSystem) {
  const json engine = found(
      {"run.json", "--model", "llama-3.1-70b", "--hardware", "h100-8x", "--set", "/system=sglang"});
  EXPECT_EQ(engine["times"], "profile h100-vllm, engine SGLang 0.5.9");
  EXPECT_TRUE(engine["lengths"].back()["extrapolated"].get<bool>());
}

TEST_F(BreakEvenCommand, RunsOnAMachineWithoutAGpu) {
  const json result = found({(configs() / "validation/cpu.json").string()});
  EXPECT_EQ(result["times"], "profile xeon-2core-tiny");
  EXPECT_EQ(result["lengths"].back()["tokens"], 1024);
  EXPECT_EQ(result["tiers"]["dram"]["loading_wins"], "always");
}

TEST_F(BreakEvenCommand, RefusesBadInputWithAllProblems) {
  expect_bad_input({"breakeven", "run.json", "--set", "/hardware/dram/capcity=1GiB", "--set",
                    "/serving/slots=0"},
                   {"--set: /hardware/dram/capcity: unknown key (did you mean \"capacity\"?)",
                    "--set: /serving/slots: expected a whole number >= 1 and <= 4096, got 0"});
  expect_bad_input({"breakeven", "run.json", "--set", "/system=recompute", "--set",
                    "/hardware/dram=none", "--set", "/hardware/ssd=none"},
                   {"/hardware: expected dram, cxl or ssd to load KV from, got none of them"});
  expect_bad_input({"breakeven", "none.json"}, {"none.json: no such file"});
  const Outcome outcome = kvtier({"breakeven", "run.json", "--model", "llama2-13"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err.find("kvtier: --model: /model: expected one of "), 0U) << outcome.err;
}

}  // namespace
}  // namespace kvtier::test
