/// `kvtier calibrate` without a device: profiles from tables, their errors and their explanation.

#include <regex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "hw/profile/profile.hpp"
#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;

class CalibrateProfiles : public ProgramTest {
 protected:
  void import() const {
    const Outcome outcome =
        kvtier({"calibrate", "--from-table", (configs() / "examples/kernel_times.csv").string(),
                "--model", "llama2-7b", "--out", "p.json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    EXPECT_NE(outcome.out.find("held out"), std::string::npos) << outcome.out;
  }
};

TEST_F(CalibrateProfiles, MakesAProfileOfATable) {
  import();
  const nlohmann::json profile = read_json("p.json");
  EXPECT_EQ(profile["format"], "kvtier.profile/3");
  EXPECT_EQ(profile["device"]["name"], "A100-80G SXM");
  EXPECT_NE(profile["provenance"]["command"].get<std::string>().find("--model llama2-7b"),
            std::string::npos);
  const std::string date = profile["provenance"]["date"].get<std::string>();
  EXPECT_TRUE(std::regex_match(date, std::regex(R"(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ)"))) << date;
  EXPECT_EQ(files(), std::vector<std::string>{"p.json"});
}

TEST_F(CalibrateProfiles, NamesMissingOptionsForATable) {
  const std::string table = (configs() / "examples/kernel_times.csv").string();
  expect_bad_input({"calibrate", "--from-table", table, "--out", "p.json"},
                   {"--from-table: needs --model, whose shapes were timed"});
  expect_bad_input(
      {"calibrate", "--from-table", table, "--model", "llama2-7b", "--out", "p.json", "--columns",
       "standart"},
      {"--columns: expected one of standard, aiconfigurator_allreduce, "
       "aiconfigurator_allreduce_fused, aiconfigurator_computescale, "
       "aiconfigurator_context_attention, aiconfigurator_context_attention_common, "
       "aiconfigurator_context_attention_full, aiconfigurator_context_mla, "
       "aiconfigurator_dsa_context_module_common, "
       "aiconfigurator_dsa_generation_module_common, aiconfigurator_gdn, aiconfigurator_gemm, "
       "aiconfigurator_gemm_block, aiconfigurator_gemm_common, aiconfigurator_gemm_plain, "
       "aiconfigurator_generation_attention, aiconfigurator_generation_attention_common, "
       "aiconfigurator_generation_attention_full, aiconfigurator_generation_mla, "
       "aiconfigurator_mla_context_module, aiconfigurator_mla_context_module_block, "
       "aiconfigurator_mla_context_module_common, aiconfigurator_mla_generation_module, "
       "aiconfigurator_mla_generation_module_block, "
       "aiconfigurator_mla_generation_module_common, aiconfigurator_moe, "
       "aiconfigurator_moe_common, aiconfigurator_moe_mxfp8, aiconfigurator_nccl, "
       "aiconfigurator_scale_matrix, llmservingsim_attention, llmservingsim_dense, "
       "llmservingsim_moe, llmservingsim_per_sequence, vidur_attention, "
       "vidur_attention_medians, vidur_linear, vidur_linear_medians, or the "
       "path of a file, got \"standart\" (did you mean \"standard\"?)"});
  expect_bad_input({"calibrate", "--from-table", table, "--columns", "standard", "--columns",
                    "standard", "--model", "llama2-7b", "--out", "p.json"},
                   {"--columns: expected one for all tables or one for each, got 2 for 1"});
  expect_bad_input(
      {"calibrate", "--from-table", "none.csv", "--model", "llama2-7b", "--out", "p.json"},
      {"none.csv: no such file"});
  expect_bad_input(
      {"calibrate", "--from-table", table, "--model", "lama2-7b", "--out", "p.json"},
      {"--model: expected one of deepseek-v3, falcon-40b, gemma-3-27b, glm-5, gpt-oss-120b, "
       "gpt-oss-20b, gpt3-13b, gpt3-6.7b, kimi-k2, kvtier-small, kvtier-tiny, llama-3.1-405b, "
       "llama-3.1-70b, llama-3.1-8b, llama-65b, llama2-13b, llama2-70b, llama2-7b, llama3-8b, "
       "minimax-m2, mistral-7b, mixtral-8x7b, opt-13b, opt-30b, opt-6.7b, qwen3-235b-a22b, "
       "qwen3-30b-a3b, qwen3-32b, qwen3-8b, qwen3.5-397b-a17b, or the path of a file, got "
       "\"lama2-7b\" (did you mean "
       "\"llama2-7b\"?)"});
  EXPECT_TRUE(files().empty());
}

TEST_F(CalibrateProfiles, PrintsTheErrorsOfAProfile) {
  import();
  const Outcome outcome = kvtier({"calibrate", "--check", "p.json", "--no-measure"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("held out     gemm"), std::string::npos) << outcome.out;
}

TEST_F(CalibrateProfiles, ExitsWithOneOutOfBand) {
  import();
  nlohmann::json profile = read_json("p.json");
  for (const nlohmann::json& table : profile["tables"]) {
    if (table["operation"] == "prefill_attention") {
      // A batch of one request that takes ten times as long as that request alone.
      nlohmann::json ragged = table;
      const nlohmann::json at = table["cells"][5]["at"];
      const double seconds = 10 * table["cells"][5]["median_seconds"].get<double>();
      ragged["operation"] = "ragged_attention";
      ragged["axes"] = {"case"};
      ragged["left_out"] = nlohmann::json::array();
      ragged["cells"] = {{{"at", {0}},
                          {"p25_seconds", seconds},
                          {"median_seconds", seconds},
                          {"p75_seconds", seconds},
                          {"n", 1},
                          {"parts", nlohmann::json::array({at})}}};
      profile["tables"].push_back(ragged);
      break;
    }
  }
  write("p.json", profile.dump());
  const Outcome outcome = kvtier({"calibrate", "--check", "p.json", "--no-measure"});
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_NE(outcome.out.find("OUT"), std::string::npos) << outcome.out;
}

TEST_F(CalibrateProfiles, ExplainsAProfile) {
  import();
  const Outcome outcome = kvtier({"calibrate", "--explain", "p.json", "--model", "llama2-7b",
                                  "--hardware", "a100-80g", "--history", "1024", "--prompt", "64"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("a history of 1024 and a prompt of 64 tokens"), std::string::npos);
  // All memories of the server that the GPUs load from.
  write("cxl.json", R"({"preset": "a100-80g", "cxl": {"capacity": "256GiB", "price": "0$/h/GiB",
      "bandwidth": {"read": "64GB/s", "write": "64GB/s", "both": "64GB/s"}}})");
  const Outcome large = kvtier(
      {"calibrate", "--explain", "p.json", "--model", "llama2-7b", "--hardware", "cxl.json"});
  EXPECT_EQ(large.code, 0) << large.err;
  for (const char* source : {"dram (26 GB/s)", "ssd (5 GB/s)", "cxl (64 GB/s)"}) {
    EXPECT_NE(large.out.find(source), std::string::npos) << source << " in\n" << large.out;
  }
  // Its times are those of another GPU.
  const Outcome other = kvtier(
      {"calibrate", "--explain", "p.json", "--model", "llama2-7b", "--hardware", "a100-40g"});
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("/hardware/profile: expected a profile of the described GPU"),
            std::string::npos)
      << other.err;
}

TEST_F(CalibrateProfiles, NamesTheReasonIfAProfileCannotBeExplained) {
  import();
  expect_bad_input({"calibrate", "--explain", "p.json"}, {"--explain: needs --model"});
  const Outcome other = kvtier(
      {"calibrate", "--explain", "p.json", "--model", "llama2-13b", "--hardware", "a100-80g"});
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("has no gemm of 15360 x 5120 in 2 B (qkv)"), std::string::npos)
      << other.err;
  // A profile from a table has no links.
  const Outcome alone = kvtier({"calibrate", "--explain", "p.json", "--model", "llama2-7b"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_NE(alone.err.find("/hardware/links/pcie/to_device: missing key"), std::string::npos)
      << alone.err;
}

TEST_F(CalibrateProfiles, PrintsTheSparsityOfScoresAsAConfigTakesIt) {
  const Outcome outcome =
      kvtier({"calibrate", "--sparsity", "--model", "kvtier-tiny", "--tokens", "200"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("layer   3: "), std::string::npos) << outcome.out;
  const std::size_t list = outcome.out.find('[');
  ASSERT_NE(list, std::string::npos) << outcome.out;
  const auto sparsity = nlohmann::json::parse(outcome.out.substr(list));
  ASSERT_EQ(sparsity.size(), 4U);
  for (const nlohmann::json& share : sparsity) {
    EXPECT_GT(share.get<double>(), 0);
    EXPECT_LT(share.get<double>(), 1);
  }
  expect_bad_input({"calibrate", "--sparsity", "--model", "kvtier-tiny", "--tokens", "1025"},
                   {"--tokens: 1025 tokens do not fit in the context window of kvtier-tiny, 1024"});
}

TEST_F(CalibrateProfiles, ConvertsProfilesOfEarlierFormats) {
  import();
  std::string text = read("p.json");
  const std::string today = "kvtier.profile/3";
  text.replace(text.find(today), today.size(), "kvtier.profile/2");
  write("old.json", text);
  expect_bad_input({"calibrate", "--check", "old.json", "--no-measure"},
                   {"old.json: /format: expected \"kvtier.profile/3\", got \"kvtier.profile/2\": "
                    "convert it with kvtier calibrate --convert old.json --out NEW"});
  expect_bad_input({"calibrate", "--convert", "old.json"}, {"--convert: needs --out"});
  const Outcome outcome = kvtier({"calibrate", "--convert", "old.json", "--out", "new.json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "new.json: kvtier.profile/3\n");
  EXPECT_EQ(read("new.json"), read("p.json"));
  expect_bad_input({"calibrate", "--convert", "p.json", "--out", "again.json"},
                   {"p.json: /format: expected one of kvtier.profile/1, kvtier.profile/2, got "
                    "\"kvtier.profile/3\""});
}

TEST_F(CalibrateProfiles, RefusesFilesThatAreNoProfiles) {
  expect_bad_input({"calibrate", "--check", "none.json", "--no-measure"},
                   {"/hardware/profile: no such file: none.json"});
  write("old.json", R"({"format": "kvtier.profile/0"})");
  expect_bad_input({"calibrate", "--check", "old.json", "--no-measure"},
                   {"old.json: /format: expected \"kvtier.profile/3\", got \"kvtier.profile/0\": "
                    "measure again, or use the release that wrote it"});
  import();
  std::string text = read("p.json");
  const std::string key = "\"median_seconds\":";
  text.insert(text.find(key) + key.size(), "-");
  write("negative.json", text);
  const Outcome negative = kvtier({"calibrate", "--check", "negative.json", "--no-measure"});
  EXPECT_EQ(negative.code, 2);
  EXPECT_NE(negative.err.find("/tables/0/cells/0/median_seconds: expected a number > 0, got -"),
            std::string::npos)
      << negative.err;
}

TEST_F(CalibrateProfiles, AreMeasuredAgainOnlyOnTheirOwnDevice) {
  import();
  const Profile profile = read_profile(path("p.json"));
  const Outcome outcome =
      kvtier({"calibrate", "--check", "p.json", "--model", "kvtier-small", "--cells", "1"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("--check: the profile was measured with device " +
                             profile.device.name + ", here is "),
            std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("--check: the profile was measured with model " +
                             profile.provenance.model + ", here is kvtier-small"),
            std::string::npos)
      << outcome.err;
  expect_bad_input({"calibrate", "--check", "none.json"},
                   {"/hardware/profile: no such file: none.json"});
}

}  // namespace
}  // namespace kvtier::test
