/// `kvtier sweep`: exit codes, outputs, messages, and the state after a kill.

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Names = std::vector<std::string>;

const Names kResultFiles{"results.csv", "results.jsonl", "sweep.json"};

class SweepCommand : public ProgramTest {
 protected:
  SweepCommand() {
    write_run();
    write_sweep({{"name", "slots"}, {"key", "/serving/slots"}, {"values", {8, 24}}});
  }

  void write_sweep(const json& axis, const json& more = json::object()) const {
    json sweep{
        {"config", "run.json"},
        {"axes", json::array({axis})},
        {"columns",
         json::array({{{"name", "turns"}, {"value", "/metrics/turns"}, {"unit", "count"}}})}};
    sweep.update(more);
    write("s.json", sweep.dump());
  }
  [[nodiscard]] static Names arguments(const Names& more = {}) {
    Names all{"sweep", "s.json", "--out", "out"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  [[nodiscard]] Names files_of(const std::string& folder) const {
    Names names;
    for (const auto& file : fs::directory_iterator(path(folder))) {
      names.push_back(file.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  /// Lines of the runs that a sweep has ended so far.
  [[nodiscard]] std::ptrdiff_t ended(const std::string& folder) const {
    if (!fs::exists(path(folder + "/results.jsonl.partial"))) {
      return 0;
    }
    const std::string lines = read(folder + "/results.jsonl.partial");
    return std::count(lines.begin(), lines.end(), '\n');
  }
};

TEST_F(SweepCommand, PrintsARowForEachPoint) {
  const Outcome outcome = kvtier(arguments({"--jobs", "1"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const json first =
      json::parse(read("out/results.jsonl").substr(0, read("out/results.jsonl").find('\n')));
  const std::string turns = std::to_string(first["metrics"]["turns"].get<int>());
  EXPECT_EQ(outcome.out, "s: 2 points, one seed\n\nslots  turns\n       count\n8        " + turns +
                             "  [1]\n24       " + turns +
                             "  [1]\n\n[1] run too short for its load: more sessions are needed, "
                             "or \"auto\"\n");
  EXPECT_EQ(outcome.err.find("2 runs in "), 0U) << outcome.err;
  EXPECT_EQ(files_of("out"), kResultFiles);
}

TEST_F(SweepCommand, ChecksExpectationsOfItsPoints) {
  write("expect.json", R"({"/8/metrics/turns": {"min": 1}, "/24/axes/slots": "24"})");
  const Outcome holds = kvtier(arguments({"--expect", "expect.json"}));
  EXPECT_EQ(holds.code, 0) << holds.err;
  write("expect.json", R"({"/24/axes/slots": "8"})");
  const Outcome fails = kvtier(arguments({"--resume", "--expect", "expect.json"}));
  EXPECT_EQ(fails.code, 1);
  EXPECT_NE(fails.err.find("expect.json: /24/axes/slots: expected \"8\", got \"24\""),
            std::string::npos)
      << fails.err;
  EXPECT_EQ(kvtier(arguments({"--resume", "--expect", "expect.json", "--update-expect"})).code, 0);
  EXPECT_EQ(read_json("expect.json")["/24/axes/slots"], "24");
  write("expect.json", R"({"/12/metrics/turns": 1})");
  EXPECT_EQ(kvtier(arguments({"--resume", "--expect", "expect.json"})).code, 2);
  EXPECT_EQ(files_of("out"), kResultFiles);
}

TEST_F(SweepCommand, GivesTheSameBytesWithOneJobAndTwo) {
  ASSERT_EQ(kvtier(arguments({"--jobs", "1"})).code, 0);
  ASSERT_EQ(kvtier({"sweep", "s.json", "--out", "two", "--jobs", "2"}).code, 0);
  for (const std::string& name : kResultFiles) {
    EXPECT_EQ(read("out/" + name), read("two/" + name)) << name;
  }
}

TEST_F(SweepCommand, RunsAShard) {
  const Outcome outcome = kvtier(arguments({"--shard", "2/2"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("s: 2 points, shard 2/2 with 1, one seed\n"), 0U) << outcome.out;
  EXPECT_EQ(json::parse(read("out/results.jsonl"))["point"], 1);
}

TEST_F(SweepCommand, NeedsAFolder) {
  const Outcome outcome = kvtier({"sweep", "s.json"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err, "kvtier: --out is required\nkvtier: see kvtier sweep --help\n");
}

TEST_F(SweepCommand, RefusesAShardThatDoesNotExist) {
  for (const char* shard : {"0/2", "3/2", "1", "1/", "/2", "1/2/3", "a/b", "1 /2", "-1/2"}) {
    expect_bad_input(
        arguments({"--shard", shard}),
        {std::string("--shard: expected K/N with 1 <= K <= N, such as 1/4, got \"") + shard + "\"",
         "see kvtier sweep --help"});
  }
  expect_bad_input(
      arguments({"--jobs", "0"}),
      {"--jobs: expected a whole number >= 1 and <= 4096, got \"0\"", "see kvtier sweep --help"});
  EXPECT_EQ(files(), (Names{"run.json", "s.json"}));
}

TEST_F(SweepCommand, ABadFileMakesNoFolder) {
  write_sweep({{"name", "slots"}, {"key", "/serving/slots"}, {"values", {8, 0}}});
  expect_bad_input(arguments(),
                   {"s.json: /axes/0/values/1: /serving/slots: expected a whole number "
                    ">= 1 and <= 4096, got 0"});
  expect_bad_input({"sweep", "nowhere.json", "--out", "out"}, {"nowhere.json: no such file"});
  EXPECT_EQ(files(), (Names{"run.json", "s.json"}));
}

TEST_F(SweepCommand, RefusesResultsUnlessItResumes) {
  ASSERT_EQ(kvtier(arguments()).code, 0);
  const std::string before = read("out/results.jsonl");
  expect_bad_input(arguments(),
                   {"--out: out has results of a sweep (sweep.json); --resume completes them"});
  const Outcome again = kvtier(arguments({"--resume"}));
  EXPECT_EQ(again.code, 0);
  EXPECT_EQ(again.err.find("0 runs in "), 0U) << again.err;
  EXPECT_EQ(read("out/results.jsonl"), before);
  std::string damaged = before;
  damaged[damaged.find("\"metrics\"") + 20] ^= 1;
  write("out/results.jsonl", damaged);
  const Outcome mended = kvtier(arguments({"--resume"}));
  EXPECT_EQ(mended.code, 0);
  EXPECT_EQ(mended.err.find("kvtier: out/results.jsonl: no whole line of a run: 1; their runs are "
                            "made again\n1 runs in "),
            0U)
      << mended.err;
  EXPECT_EQ(read("out/results.jsonl"), before);
  write_sweep({{"name", "slots"}, {"key", "/serving/slots"}, {"values", {8, 23}}});
  expect_bad_input(arguments({"--resume"}),
                   {"--out: out has another sweep; not the same: axes, resolved configs (or their "
                    "traces)"});
}

TEST_F(SweepCommand, EndsWithOneIfARunFailsOnItsInput) {
  write_sweep({{"name", "w"}, {"key", "/workload/warmup_turns"}, {"values", {100000, 20}}});
  const Outcome outcome = kvtier(arguments());
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("kvtier: 1 of 2 runs failed (input)\n"), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.out.find("\n\n[1] failed: "), std::string::npos) << outcome.out;
  EXPECT_EQ(files_of("out"), kResultFiles);
}

TEST_F(SweepCommand, EndsWithThreeIfAFileFailsInARun) {
  if (!fs::exists("/proc/self/mem")) {
    GTEST_SKIP() << "there is no file that opens and cannot be read";
  }
  // Reading begins at address 0, which is never mapped.
  write_sweep({{"name", "workload"},
               {"key", "/workload"},
               {"values",
                {{{"trace", "/proc/self/mem"}, {"arrival_rate", "1/s"}},
                 {{"generator", "sharegpt"}, {"sessions", 4}, {"arrival_rate", "1/s"}}}}});
  const Outcome outcome = kvtier(arguments());
  EXPECT_EQ(outcome.code, 3) << outcome.out;
  EXPECT_NE(outcome.err.find("kvtier: 1 of 2 runs failed (device)\n"), std::string::npos)
      << outcome.err;
}

TEST_F(SweepCommand, NamesAColumnThatNoRunCanHaveBeforeTheFirstRun) {
  write_sweep(
      {{"name", "slots"}, {"key", "/serving/slots"}, {"values", {8}}},
      {{"columns", json::array({{{"name", "t"}, {"value", "/metrics/turn"}, {"unit", "count"}}})}});
  expect_bad_input(arguments(),
                   {"s.json: /columns/0/value: no result of this sweep has a number at "
                    "/metrics/turn (did you mean \"/metrics/turns\"?)"});
  EXPECT_EQ(files(), (Names{"run.json", "s.json"}));
}

// Confidence intervals depend on the length of a run.
TEST_F(SweepCommand, NamesAColumnThatNoResultHas) {
  write_sweep(
      {{"name", "slots"}, {"key", "/serving/slots"}, {"values", {8}}},
      {{"columns",
        json::array({{{"name", "t"}, {"value", "/metrics/confidence/x"}, {"unit", "count"}}})}});
  const Outcome outcome = kvtier(arguments());
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("kvtier: s.json: /columns/0/value: no result has a number at "
                             "/metrics/confidence/x; with the column corrected, --resume shows the "
                             "results again\n"),
            std::string::npos)
      << outcome.err;
  write_sweep({{"name", "slots"}, {"key", "/serving/slots"}, {"values", {8}}});
  EXPECT_EQ(kvtier(arguments({"--resume"})).code, 0);
}

TEST_F(SweepCommand, FailsIfItCannotWrite) {
  const Outcome outcome = kvtier({"sweep", "s.json", "--out", "run.json/out"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.err, "kvtier: run.json/out: cannot make the folder: Not a directory\n");
  EXPECT_EQ(outcome.out, "");
}

TEST_F(SweepCommand, FailsOnAFullDisk) {
  // Inherited by the program: its files end after 2 KiB, less than a line.
  constexpr rlim_t kRoom = 2048;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit{kRoom, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Outcome outcome = kvtier(arguments());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.err, "kvtier: out/results.jsonl.partial: cannot write: File too large\n");
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(kvtier(arguments({"--resume"})).code, 0);
  EXPECT_EQ(files_of("out"), kResultFiles);
}

/// Sweeps that are interrupted.
class LongSweep : public SweepCommand {
 protected:
  /// Two dozen runs of so many sessions.
  void write_two_dozen(std::int64_t sessions) const {
    write_run({{"/workload/sessions", sessions}, {"/workload/arrival_rate", "0.2/s"}});
    write_sweep({{"name", "slots"}, {"key", "/serving/slots"}, {"values", {8, 12, 16, 20, 24, 28}}},
                {{"replications", 4}});
  }

  /// Starts the sweep and ends it by a signal once it has `more` runs; false if it came to its end.
  [[nodiscard]] bool end_after(std::ptrdiff_t more, int signal_number, Outcome& outcome) const {
    const std::ptrdiff_t before = ended("out");
    Started program = start(arguments({"--jobs", "2", "--resume"}));
    if (program.runs_until([&] { return ended("out") >= before + more; })) {
      program.signal(signal_number);
    }
    outcome = program.outcome();
    return outcome.code != 0 && fs::exists(path("out/results.jsonl.partial"));
  }
};

TEST_F(LongSweep, ResumesToTheSameBytesHoweverOftenItIsKilled) {
  // Longer runs, for machines too busy to interrupt short ones.
  constexpr std::int64_t kShort = 3000;
  constexpr std::int64_t kLong = 200000;
  constexpr int kKills = 3;
  int kills = 0;
  Outcome outcome;
  for (std::int64_t sessions = kShort; kills < kKills && sessions < kLong; sessions *= 2) {
    fs::remove_all(path("out"));
    write_two_dozen(sessions);
    kills = 0;
    while (kills < kKills && end_after(3, SIGKILL, outcome)) {
      EXPECT_EQ(outcome.code, -SIGKILL);
      EXPECT_EQ(outcome.out, "");
      ++kills;
    }
  }
  ASSERT_EQ(kills, kKills);
  ASSERT_EQ(kvtier({"sweep", "s.json", "--out", "whole", "--jobs", "2"}).code, 0);
  const std::ptrdiff_t kept = ended("out");
  EXPECT_GE(kept, 3 * kKills);
  const Outcome last = kvtier(arguments({"--resume", "--jobs", "2"}));
  EXPECT_EQ(last.code, 0) << last.err;
  // Only the runs in flight at the kill are run again.
  EXPECT_EQ(last.err.find(std::to_string(24 - kept) + " runs in "), 0U) << last.err;
  EXPECT_EQ(files_of("out"), kResultFiles);
  for (const std::string& name : kResultFiles) {
    EXPECT_EQ(read("out/" + name), read("whole/" + name)) << name;
  }
}

TEST_F(LongSweep, KeepsTheRunsThatEndedWhenInterrupted) {
  // Two runs, then others of hours.
  write_sweep({{"name", "sessions"},
               {"key", "/workload/sessions"},
               {"values", {40, 41, 100000000, 100000001}}});
  Outcome outcome;
  ASSERT_TRUE(end_after(2, SIGINT, outcome));
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(
      outcome.err,
      "kvtier: interrupted; the runs that ended are in out, and --resume goes on from there\n");
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(files_of("out"), (Names{"results.jsonl.partial", "sweep.json"}));
  EXPECT_GE(ended("out"), 2);
}

}  // namespace
}  // namespace kvtier::test
