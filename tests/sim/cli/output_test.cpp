/// Outputs of the program appear whole or not at all.

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

class Outputs : public ProgramTest {
 protected:
  Outputs() { write_run(); }

  const Names all_outputs_{"--json",       "out.json",        "--requests",  "requests.csv",
                           "--timeline",   "timeline.json",   "--decisions", "decisions.jsonl",
                           "--iterations", "iterations.jsonl"};

  [[nodiscard]] Names simulate(Names more) const {
    Names arguments{"simulate", "run.json"};
    arguments.insert(arguments.end(), all_outputs_.begin(), all_outputs_.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

TEST_F(Outputs, AreAllThereAfterARun) {
  ASSERT_EQ(kvtier(simulate({})).code, 0);
  EXPECT_EQ(files(), (Names{"decisions.jsonl", "iterations.jsonl", "out.json", "requests.csv",
                            "run.json", "timeline.json"}));
  EXPECT_EQ(read_json("out.json")["format"], "kvtier.result/1");
  EXPECT_TRUE(read_json("timeline.json")["traceEvents"].is_array());
  EXPECT_EQ(read("requests.csv").find("session,turn,measured,"), 0U);
}

TEST_F(Outputs, ABadConfigBeginsNoOutput) {
  EXPECT_EQ(kvtier(simulate({"--set", "/hardware/gpuss=3"})).code, 2);
  EXPECT_EQ(files(), Names{"run.json"});
}

TEST_F(Outputs, AWorkloadThatFailsHalfWayLeavesNoOutput) {
  std::string table = "conv,turn,user_tokens,assistant_tokens\n";
  for (int session = 0; session < 200; ++session) {
    table += std::to_string(session) + ",0,10,20\n";
  }
  write_table_run("turns.csv", table + "bad,0,10\n");
  EXPECT_EQ(kvtier(simulate({})).code, 2);
  EXPECT_EQ(files(), (Names{"run.json", "turns.csv"}));
}

TEST_F(Outputs, KeepAnOldFileIfTheRunFails) {
  write("out.json", "old");
  EXPECT_EQ(kvtier(simulate({"--set", "/workload/warmup_turns=100000"})).code, 2);
  EXPECT_EQ(files(), (Names{"out.json", "run.json"}));
  EXPECT_EQ(read("out.json"), "old");
}

TEST_F(Outputs, AFailedImportLeavesNoOutput) {
  write("turns.csv", "conv,turn,user_tokens,assistant_tokens\na,0,10,20\na,2,10,20\n");
  EXPECT_EQ(
      kvtier({"trace", "import", "turns.csv", "--out", "t.jsonl.zst", "--json", "s.json"}).code, 2);
  EXPECT_EQ(files(), (Names{"run.json", "turns.csv"}));
}

TEST_F(Outputs, AMissingFolderIsADeviceFailure) {
  const Outcome outcome =
      kvtier({"simulate", "run.json", "--json", "nowhere/out.json", "--requests", "requests.csv"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.err, "kvtier: nowhere/out.json: cannot write: No such file or directory\n");
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(files(), Names{"run.json"});
}

TEST_F(Outputs, AMissingFolderOfATraceIsADeviceFailure) {
  const Outcome outcome = kvtier({"trace", "generate", "run.json", "--out", "nowhere/t.jsonl"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.err, "kvtier: nowhere/t.jsonl: cannot write: No such file or directory\n");
  EXPECT_EQ(files(), Names{"run.json"});
}

TEST_F(Outputs, FoldersAreRefused) {
  fs::create_directory(path("folder"));
  expect_bad_input({"simulate", "run.json", "--json", "folder"},
                   {"--json: expected a file, got the folder folder"});
  expect_bad_input({"trace", "generate", "run.json", "--out", "folder"},
                   {"--out: expected a file, got the folder folder"});
}

TEST_F(Outputs, MayNotShareAFile) {
  expect_bad_input({"simulate", "run.json", "--json", "same", "--requests", "same"},
                   {"--requests: --json already goes to same"});
}

TEST_F(Outputs, DoNotReplaceAnInput) {
  const auto refuse = [&](Names arguments, const std::string& option, const std::string& input) {
    const std::string before = read(input);
    fs::remove(path("link.json"));
    fs::create_hard_link(path(input), path("link.json"));  // by device and inode, not by name
    arguments.insert(arguments.end(), {option, "link.json"});
    expect_bad_input(arguments, {option + ": link.json is also an input"});
    EXPECT_EQ(read(input), before);
  };
  const fs::path models = configs() / "models";
  fs::copy_file(models / "llama2-13b.json", path("model.json"));
  write("turns.csv", "conv,turn,user_tokens,assistant_tokens\na,0,10,20\n");
  write("expect.json", R"({"/metrics/turns": {"min": 0}})");
  write("replay.json", R"({"model": "./model.json", "hardware": {"preset": "a100-80g", "gpus": 2},
      "system": "attentionstore", "workload": {"trace": "turns.csv", "arrival_rate": "1/s"}})");
  for (const char* option : {"--json", "--requests", "--timeline", "--decisions"}) {
    refuse({"simulate", "replay.json"}, option, "replay.json");
    refuse({"simulate", "replay.json"}, option, "model.json");
    refuse({"simulate", "replay.json"}, option, "turns.csv");
    refuse({"simulate", "replay.json", "--expect", "expect.json"}, option, "expect.json");
  }
  refuse({"simulate", "run.json", "--find-capacity", "ttft_seconds.p90<=2"}, "--json", "run.json");
  refuse({"compare", "run.json", "--systems", "recompute"}, "--json", "run.json");
  refuse({"breakeven", "replay.json"}, "--json", "model.json");
  refuse({"trace", "mrc", "replay.json"}, "--json", "model.json");
  write("plan.json", R"({"config": "run.json", "slo": ["ttft_seconds.mean<=9"],
      "axes": [{"name": "GPUs", "key": "/hardware/gpus", "values": [1, 2]}]})");
  refuse({"plan", "plan.json"}, "--json", "run.json");
  refuse({"plan", "plan.json", "--expect", "expect.json"}, "--json", "expect.json");
  refuse({"validate", "run.json"}, "--json", "run.json");
  write("sweep.json", R"({"config": "run.json", "axes": [
      {"name": "GPUs", "key": "/hardware/gpus", "values": [1]}], "columns": [
      {"name": "turns", "value": "/metrics/turns", "unit": "count"}], "refused": "skip"})");
  refuse({"validate", "sweep.json"}, "--json", "run.json");
  write("times.csv", "x\n");
  refuse({"calibrate", "--from-table", "times.csv", "--model", "llama2-13b"}, "--out", "times.csv");
  refuse({"calibrate", "--convert", "run.json"}, "--out", "run.json");
  refuse({"calibrate", "--model", "./model.json"}, "--out", "model.json");
}

TEST_F(Outputs, OtherThanJsonDoNotGoToStandardOutput) {
  expect_bad_input({"simulate", "run.json", "--requests", "-"},
                   {"--requests: expected a file, got standard output (-)"});
}

TEST_F(Outputs, DoNotReplaceADevice) {
  expect_bad_input({"simulate", "run.json", "--decisions", "/dev/null"},
                   {"--decisions: expected a file, got /dev/null"});
  EXPECT_EQ(kvtier({"simulate", "run.json", "--json", "/dev/null"}).code, 0);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

// A link to the device: should it be replaced by mistake, only the link is lost.
TEST_F(Outputs, OnAFullDiskAreADeviceFailure) {
  if (!fs::is_character_file("/dev/full")) {
    GTEST_SKIP() << "there is no /dev/full";
  }
  fs::create_symlink("/dev/full", path("full.json"));
  const Outcome outcome = kvtier({"simulate", "run.json", "--json", "full.json", "--requests",
                                  "requests.csv", "--decisions", "decisions.jsonl"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.err, "kvtier: full.json: cannot write: No space left on device\n");
  EXPECT_TRUE(fs::is_symlink(path("full.json")));
  EXPECT_EQ(files(), (Names{"full.json", "run.json"}));
}

class Interrupts : public ProgramTest {
 protected:
  /// Starts a command that would run for hours, interrupts it once it has written to a temporary
  /// file, and expects it to clean up.
  void expect_cleans_up(const Names& arguments, int signal_number) {
    write_run({{"/workload/sessions", 100000000}, {"/workload/arrival_rate", "0.2/s"}});
    Started program = start(arguments);
    ASSERT_TRUE(program.runs_until([&] { return has_begun_to_write(); }));
    program.signal(signal_number);
    const Outcome outcome = program.outcome();
    EXPECT_EQ(outcome.code, 130);
    EXPECT_EQ(outcome.err, "kvtier: interrupted; nothing was written\n");
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(files(), Names{"run.json"});
  }

 private:
  [[nodiscard]] bool has_begun_to_write() const {
    for (const auto& file : fs::directory_iterator(path("."))) {
      std::error_code ignored;
      if (file.path().filename().string().find(".kvtier-tmp-") != std::string::npos &&
          fs::file_size(file.path(), ignored) > 0) {
        return true;
      }
    }
    return false;
  }
};

TEST_F(Interrupts, LeaveNothingOfASimulation) {
  expect_cleans_up({"simulate", "run.json", "--json", "out.json", "--requests", "requests.csv"},
                   SIGINT);
}

TEST_F(Interrupts, LeaveNothingOfASimulationThatIsTerminated) {
  expect_cleans_up({"simulate", "run.json", "--json", "out.json", "--decisions", "d.jsonl"},
                   SIGTERM);
}

TEST_F(Interrupts, LeaveNothingOfATrace) {
  expect_cleans_up({"trace", "generate", "run.json", "--out", "t.jsonl"}, SIGINT);
}

}  // namespace
}  // namespace kvtier::test
