/// `kvtier reproduce`: exit codes, outputs, messages.

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

/// A folder like `configs` with one paper, "tiny".
class Reproduce : public ProgramTest {
 protected:
  Reproduce() {
    fs::create_directories(path("cfg/papers/tiny/figures"));
    for (const char* kind : {"models", "hardware", "systems"}) {
      fs::create_directory_symlink(configs() / kind, path("cfg") / kind);
    }
    write_paper_run(40);
    write("cfg/papers/tiny/reproduction.json", R"({"title": "Tiny", "source": "here",
      "runs": {"AS": {"config": "run.json"}},
      "sensitivity": {"figures": ["1"], "variations": [
        {"name": "no prefetch", "set": {"/system/prefetch": "none"}}]}})");
    write_figure(1000);
  }

  void write_paper_run(std::int64_t sessions) const {
    write_run({{"/workload/sessions", sessions}, {"/workload/arrival_rate", "0.2/s"}});
    fs::rename(path("run.json"), path("cfg/papers/tiny/run.json"));
  }
  /// A figure whose value, a share in percent, is in its band if that is wide enough.
  void write_figure(double band) const {
    write("cfg/papers/tiny/figures/1.json",
          R"({"title": "hit rate", "source": "Fig. 1", "values": [
            {"name": "AS", "value": "AS /metrics/hit_rate/all_turns/total", "unit": "%",
             "paper": 200, "band": {"absolute": )" +
              std::to_string(band) + "}}]}");
  }
  [[nodiscard]] static Names arguments(const Names& more = {}) {
    Names all{"reproduce", "tiny", "--config-dir", "cfg", "--replications", "2"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(Reproduce, EndsWithZeroWhenEveryValueIsInItsBand) {
  const Outcome outcome = kvtier(arguments());
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out.find("Tiny (here), mean of 2 seeds (largest - smallest)\n"), 0U)
      << outcome.out;
  EXPECT_NE(outcome.out.find("\n1 in their band, 0 out, 0 explained, 0 that the paper gives no "
                             "number for\n"),
            std::string::npos)
      << outcome.out;
}

TEST_F(Reproduce, EndsWithOneWhenAValueIsOut) {
  write_figure(1);
  const Outcome outcome = kvtier(arguments({"--json", "out.json"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("+-1  OUT\n"), std::string::npos) << outcome.out;
  EXPECT_EQ(read_json("out.json")["values_out_of_band"], 1);
}

TEST_F(Reproduce, WritesTheSameBytesTwice) {
  ASSERT_EQ(kvtier(arguments({"--json", "a.json"})).code, 0);
  ASSERT_EQ(kvtier(arguments({"--json", "b.json"})).code, 0);
  EXPECT_EQ(read("a.json"), read("b.json"));
  EXPECT_EQ(read_json("a.json")["format"], "kvtier.reproduce/1");
  EXPECT_EQ(kvtier(arguments({"--json", "-"})).out, read("a.json"));
  ASSERT_EQ(kvtier(arguments({"--sensitivity", "--json", "c.json"})).code, 0);
  EXPECT_EQ(read_json("c.json")["format"], "kvtier.sensitivity/1");
  EXPECT_EQ(kvtier(arguments({"--sensitivity", "--json", "-"})).out, read("c.json"));
}

TEST_F(Reproduce, SuggestsThePaperAndTheFigure) {
  expect_bad_input(
      {"reproduce", "attentionstor"},
      {"PAPER: expected one of attentionstore, car, pensieve, got \"attentionstor\" (did you mean "
       "\"attentionstore\"?)"});
  expect_bad_input(arguments({"--figure", "11", "--figure", "one"}),
                   {"--figure: expected one of 1, got \"11\" (did you mean \"1\"?)",
                    "--figure: expected one of 1, got \"one\""});
}

TEST_F(Reproduce, NamesEveryProblemOfAFile) {
  write("cfg/papers/tiny/figures/1.json",
        R"({"title": "t", "source": "s", "values": [{"name": "v", "unit": "%", "vale": 1}]})");
  expect_bad_input(arguments(),
                   {"cfg/papers/tiny/figures/1.json: /values/0/value: missing key",
                    "cfg/papers/tiny/figures/1.json: /values/0/vale: unknown key (did you mean "
                    "\"value\"?)"});
}

TEST_F(Reproduce, RefusesAnExperimentOfAnySize) {
  write("cfg/papers/tiny/figures/1.json", R"({"title": "t", "source": "s", "runs": {"batch": {
      "config": "run.json", "experiment": "batch_prefill",
      "parameters": {"history": "1000000000000000tokens", "added": "1tokens"}}},
    "values": [{"name": "v", "unit": "ms", "value": "batch /blocking_seconds"}]})");
  const Outcome outcome = kvtier(arguments());
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("/runs/batch/parameters/history: expected"), std::string::npos)
      << outcome.err;
}

TEST_F(Reproduce, SaysThatAPaperHasNoVariations) {
  write("cfg/papers/tiny/reproduction.json",
        R"({"title": "Tiny", "source": "here", "runs": {"AS": {"config": "run.json"}}})");
  expect_bad_input(arguments({"--sensitivity"}),
                   {"--sensitivity: cfg/papers/tiny/reproduction.json names no variations"});
}

TEST_F(Reproduce, LeavesNothingWhenInterrupted) {
  write_paper_run(100000000);
  Started program = start(arguments({"--json", "out.json"}));
  // Its output is opened before the work.
  ASSERT_TRUE(program.runs_until([&] { return files().size() >= 2; }));
  program.signal(SIGINT);
  const Outcome outcome = program.outcome();
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(outcome.err, "kvtier: interrupted; nothing was written\n");
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(files(), Names{"cfg"});
}

}  // namespace
}  // namespace kvtier::test
