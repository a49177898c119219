/// Sweeps: the rules of their files, their points, and folders of results after any history of
/// runs.

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "sim/study/runs/run_folder.hpp"
#include "sim/study/sweep/sweep_run.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

std::string content(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

Lines lines_of(const std::string& text) {
  std::istringstream stream(text);
  Lines lines;
  std::string line;
  while (std::getline(stream, line)) {
    lines.push_back(line);
  }
  return lines;
}

/// Ends a sweep from its progress.
struct Enough {};

/// Sweeps over runs of a few milliseconds.
class Sweeping : public testing::Test {
 protected:
  Sweeping() {
    dir_.write("run.json", R"({
      "model": "llama2-13b", "hardware": {"preset": "a100-80g", "gpus": 2},
      "system": "attentionstore",
      "workload": {"generator": "sharegpt", "sessions": 40, "arrival_rate": "1/s",
                   "warmup_turns": 20}
    })");
    sweep(kSlots + ", " + kSystems);
  }

  /// A sweep with these axes and further keys.
  void sweep(const std::string& axes, const std::string& more = "") const {
    dir_.write("s.json", R"({"config": "run.json", "axes": [)" + axes + R"(], "columns": [
      {"name": "hits", "value": "/metrics/hit_rate/all_turns/total", "unit": "%"},
      {"name": "turns", "value": "/metrics/turns", "unit": "count"}])" +
                             more + "}");
  }
  [[nodiscard]] Sweep load() const { return load_sweep(dir_.path("s.json")); }
  [[nodiscard]] std::vector<SweepPoint> points() const {
    return resolve_points(load(), presets(), builtin_policies());
  }
  SweepResult run(const std::string& out, SweepOptions options = {}) const {
    options.out = dir_.path(out);
    const Sweep sweep = load();
    const SweepPoints points(sweep, presets(), registry_);
    return run_sweep(sweep, points, registry_, options);
  }
  [[nodiscard]] std::string file(const std::string& name) const { return content(dir_.path(name)); }
  /// Names in a folder.
  [[nodiscard]] std::set<std::string> files(const std::string& folder) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_.path(folder))) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }
  /// Stops after so many runs.
  [[nodiscard]] static SweepOptions stop_after(std::int64_t runs, bool resume = false) {
    SweepOptions options;
    options.resume = resume;
    options.progress = [runs](std::int64_t done, std::int64_t) {
      if (done >= runs) {
        throw Enough{};
      }
    };
    return options;
  }
  [[nodiscard]] static SweepOptions resuming() {
    SweepOptions options;
    options.resume = true;
    return options;
  }
  /// The problems that `action` throws, without the folder's path.
  template <class Action>
  [[nodiscard]] Lines problems(const Action& action) const {
    Lines lines;
    try {
      action();
    } catch (const ConfigError& error) {
      lines = error.problems();
    }
    const std::string folder = dir_.path("").string();
    for (std::string& line : lines) {
      for (std::size_t at = 0; (at = line.find(folder)) != std::string::npos;) {
        line.erase(at, folder.size());
      }
    }
    return lines;
  }
  void expect_same_results(const std::string& a, const std::string& b) const {
    const std::set<std::string> all{"results.csv", "results.jsonl", "sweep.json"};
    EXPECT_EQ(files(a), all);
    EXPECT_EQ(files(b), all);
    for (const std::string& name : all) {
      EXPECT_EQ(file(a + "/" + name), file(b + "/" + name)) << name;
    }
  }

  const std::string kSlots = R"({"name": "slots", "key": "/serving/slots", "values": [4, 24]})";
  const std::string kSystems =
      R"({"name": "system", "key": "/system", "values": ["recompute", "attentionstore"]})";
  TempDir dir_;
  const PolicyRegistry registry_ = builtin_policies();
};

// ---- Points ----

// Axes slots {4, 24} and system {recompute, attentionstore}, the last one fastest.
TEST_F(Sweeping, IsTheGridOfItsAxesTheLastTurningFastest) {
  const std::vector<SweepPoint> all = points();
  ASSERT_EQ(all.size(), 4U);
  const std::vector<Lines> labels{
      {"4", "recompute"}, {"4", "attentionstore"}, {"24", "recompute"}, {"24", "attentionstore"}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].labels, labels[i]) << i;
    ASSERT_TRUE(all[i].resolved);
    EXPECT_EQ(all[i].resolved->config.serving.slots, i < 2 ? 4 : 24) << i;
    EXPECT_EQ(all[i].resolved->config.system.name, labels[i][1]) << i;
  }
}

TEST_F(Sweeping, LabelsValuesThatAreNoTextByTheirJson) {
  sweep(R"({"name": "p", "key": "/system/prefetch",
            "values": ["none", {"policy": "look_ahead", "window": 4}]},
           {"name": "cut", "values": [{"label": "half", "set": {"/serving/truncation_ratio": 0.5}},
                                      {"label": "more", "set": {"/serving/truncation_ratio": 0.7,
                                                                "/serving/slots": 3}}]})");
  const std::vector<SweepPoint> all = points();
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].labels, (Lines{"none", "half"}));
  EXPECT_EQ(all[3].labels, (Lines{R"({"policy":"look_ahead","window":4})", "more"}));
  EXPECT_EQ(all[2].resolved->config.serving.slots, 256);
  EXPECT_EQ(all[3].resolved->config.serving.slots, 3);
  EXPECT_EQ(all[3].resolved->config.system.prefetch.parameters.at("window"), 4);
}

TEST_F(Sweeping, SetsKeysInTheOrderOfTheAxes) {
  sweep(R"({"name": "eviction", "values": [{"label": "fifo", "set": {
             "/system/tiers/dram/eviction": "fifo", "/system/tiers/ssd/eviction": "fifo"}}]},
           {"name": "tiers", "values": [{"label": "both", "set": {}},
                                        {"label": "one", "set": {"/system/tiers/ssd": "none"}}]})",
        R"(, "set": {"/system": "attentionstore_lru", "/system/prefetch": "none"})");
  const std::vector<SweepPoint> all = points();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].resolved->config.system.tiers.ssd->eviction.name, "fifo");
  EXPECT_EQ(all[1].resolved->config.system.tiers.dram->eviction.name, "fifo");
  EXPECT_FALSE(all[1].resolved->config.system.tiers.ssd);
}

TEST_F(Sweeping, HoldsItsConfigItself) {
  dir_.write("s.json", R"({"config": )" + file("run.json") + R"(, "axes": [)" + kSlots +
                           R"(], "columns": [{"name": "t", "value": "/metrics/turns",
                                              "unit": "count"}]})");
  EXPECT_EQ(points().size(), 2U);
}

// ---- Results ----

TEST_F(Sweeping, WritesALineForEachPointAndReplication) {
  sweep(kSystems, R"(, "replications": 2)");
  const std::vector<SweepPoint> all = points();
  EXPECT_EQ(run("out").runs, 4);
  const Lines lines = lines_of(file("out/results.jsonl"));
  ASSERT_EQ(lines.size(), 4U);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Json line = Json::parse(lines[i]);
    EXPECT_EQ(line["point"], i / 2);
    EXPECT_EQ(line["replication"], i % 2);
    EXPECT_EQ(line["seed"], 1 + i % 2);
    EXPECT_EQ(line["axes"], Json({{"system", i < 2 ? "recompute" : "attentionstore"}}));
    // The result of `simulate` for the same config and seed.
    RunConfig config = all[i / 2].resolved->config;
    config.seed += static_cast<std::int64_t>(i % 2);
    const Json alone = simulate(config, builtin_policies());
    EXPECT_EQ(line["metrics"], alone["metrics"]);
    EXPECT_EQ(line["workload"], alone["workload"]);
    EXPECT_EQ(line["load"], alone["load"]);
  }
  // Points of one replication share their draws.
  EXPECT_EQ(Json::parse(lines[0])["workload"]["turns"], Json::parse(lines[2])["workload"]["turns"]);
}

TEST_F(Sweeping, WritesATableOfTheColumnsWithTheirUnits) {
  sweep(R"({"name": "a, b", "values": [{"label": "say \"4\"", "set": {"/serving/slots": 4}}]})");
  const SweepResult result = run("out");
  const Lines lines = lines_of(file("out/results.csv"));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0], R"(point,replication,seed,"a, b",hits [%],turns [count],error)");
  const Json metrics = Json::parse(result.rows[0].line)["metrics"];
  const double hits = metrics["hit_rate"]["all_turns"]["total"].get<double>() * 100;
  EXPECT_GT(hits, 0);
  const std::string begin = R"(0,0,1,"say ""4""",)";
  ASSERT_EQ(lines[1].find(begin), 0U) << lines[1];
  EXPECT_DOUBLE_EQ(std::stod(lines[1].substr(begin.size())), hits);
  const std::string end = "," + std::to_string(metrics["turns"].get<int>()) + ",";
  EXPECT_TRUE(lines[1].ends_with(end)) << lines[1];
}

TEST_F(Sweeping, WritesNoLabelThatASpreadsheetEvaluates) {
  sweep(R"({"name": "@sum", "values": [{"label": "=1+1", "set": {"/serving/slots": 4}},
                                       {"label": "-5", "set": {"/serving/slots": 5}}]})");
  static_cast<void>(run("out"));
  const Lines lines = lines_of(file("out/results.csv"));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], "point,replication,seed,'@sum,hits [%],turns [count],error");
  EXPECT_EQ(lines[1].find("0,0,1,'=1+1,"), 0U) << lines[1];
  EXPECT_EQ(lines[2].find("1,0,1,-5,"), 0U) << lines[2];
}

TEST_F(Sweeping, GivesTheSameBytesWithAnyNumberOfThreads) {
  sweep(kSlots + ", " + kSystems, R"(, "replications": 3)");
  (void)run("one");
  SweepOptions two;
  two.jobs = 2;
  (void)run("two", two);
  SweepOptions many;
  many.jobs = 64;
  (void)run("many", many);
  expect_same_results("one", "two");
  expect_same_results("one", "many");
}

TEST_F(Sweeping, ShowsHowFarTheOptimumIs) {
  const auto write = [&](const std::string& more) {
    dir_.write("s.json", R"({"config": "run.json", "axes": [{"name": "system", "key": "/system",
      "values": ["recompute", "attentionstore_lru"]}], "columns": [{"name": "reached",
      "value": "/bound/share_reached/all_turns", "unit": "%"}])" +
                             more + "}");
  };
  write(R"(, "bound": true)");
  const SweepResult result = run("out");
  ASSERT_EQ(result.rows.size(), 2U);
  EXPECT_FALSE(result.rows[0].values[0].has_value());  // without a tier there is nothing to bound
  // All sessions of the small run fit, so that LRU is as good as the optimum.
  EXPECT_DOUBLE_EQ(result.rows[1].values[0].value(), 100);
  write("");
  EXPECT_EQ(problems([&] { (void)load(); }),
            (Lines{"s.json: /columns/0/value: expected a JSON pointer below /metrics, /load, "
                   "/workload, /timing or, with \"bound\": true, /bound, got "
                   "\"/bound/share_reached/all_turns\""}));
}

TEST_F(Sweeping, InShardsHasTheSameLines) {
  sweep(kSlots + ", " + kSystems, R"(, "replications": 2)");
  (void)run("whole");
  const Lines whole = lines_of(file("whole/results.jsonl"));
  Lines together(whole.size());
  std::size_t lines = 0;
  for (std::int64_t k = 1; k <= 3; ++k) {
    SweepOptions options;
    options.shard = {k, 3};
    const std::string out = "shard" + std::to_string(k);
    (void)run(out, options);
    for (const std::string& line : lines_of(file(out + "/results.jsonl"))) {
      const Json json = Json::parse(line);
      EXPECT_EQ(json["point"].get<std::int64_t>() % 3, k - 1);
      together.at(json["point"].get<std::size_t>() * 2 + json["replication"].get<std::size_t>()) =
          line;
      ++lines;
    }
  }
  EXPECT_EQ(lines, whole.size());
  EXPECT_EQ(together, whole);
}

TEST_F(Sweeping, TakesLinesOfShardsThatWereDoneElsewhere) {
  // The second of three points fails; its line is taken too, and nothing runs.
  sweep(R"({"name": "warmup", "key": "/workload/warmup_turns", "values": [20, 100000, 30]})",
        R"(, "replications": 2)");
  (void)run("whole");
  SweepOptions joining;
  for (std::int64_t k = 2; k >= 1; --k) {
    SweepOptions options;
    options.shard = {k, 2};
    for (const SweepRow& row : run("shard" + std::to_string(k), options).rows) {
      joining.done.push_back(row.line);
    }
  }
  EXPECT_EQ(run("joined", joining).runs, 0);
  for (const char* name : {"sweep.json", "results.jsonl", "results.csv"}) {
    EXPECT_EQ(file(std::string("joined/") + name), file(std::string("whole/") + name)) << name;
  }
  // Missing points are run. Lines of no point are not taken.
  joining.done.erase(joining.done.begin(), joining.done.begin() + 2);
  joining.done.push_back(R"({"point": 7, "replication": 0, "metrics": {}})");
  EXPECT_EQ(run("completed", joining).runs, 2);
  EXPECT_EQ(file("completed/results.jsonl"), file("whole/results.jsonl"));
}

TEST_F(Sweeping, IsEmptyForAShardWithoutPoints) {
  SweepOptions options;
  options.shard = {9, 9};
  EXPECT_EQ(run("out", options).rows.size(), 0U);
  EXPECT_EQ(file("out/results.jsonl"), "");
}

TEST_F(Sweeping, ReportsACompleteFolder) {
  (void)run("out");
  EXPECT_EQ(files("out"), (std::set<std::string>{"results.csv", "results.jsonl", "sweep.json"}));
  const Json identity = Json::parse(file("out/sweep.json"));
  EXPECT_EQ(identity["format"], "kvtier.sweep/1");
  EXPECT_EQ(identity["shard"], "1/1");
  EXPECT_EQ(identity["axes"][0]["values"][1]["set"], Json({{"/serving/slots", 24}}));
}

// ---- Failures and refusals ----

TEST_F(Sweeping, GoesOnAfterARunThatFails) {
  // More turns of warm-up than there are: only the run itself can tell.
  sweep(R"({"name": "warmup", "key": "/workload/warmup_turns", "values": [20, 100000, 30]})");
  const SweepResult result = run("out");
  ASSERT_EQ(result.rows.size(), 3U);
  EXPECT_EQ(result.rows[0].state, RunState::ok);
  EXPECT_EQ(result.rows[1].state, RunState::input_failed);
  EXPECT_EQ(result.rows[2].state, RunState::ok);
  const Json line = Json::parse(lines_of(file("out/results.jsonl"))[1]);
  EXPECT_EQ(line["seed"], 1);
  EXPECT_EQ(line["error"]["kind"], "input");
  ASSERT_EQ(line["error"]["problems"].size(), 1U);
  const std::string why = line["error"]["problems"][0];
  EXPECT_NE(why.find("warmup_turns"), std::string::npos) << why;
  const std::string row = lines_of(file("out/results.csv"))[2];
  EXPECT_EQ(row.find("1,0,1,100000,,,"), 0U) << row;
  EXPECT_NE(row.find("failed: "), std::string::npos) << row;
  const std::string table = to_table(load(), result);
  EXPECT_NE(table.find("\n100000     -      -  [2]\n"), std::string::npos) << table;
  EXPECT_NE(table.find("\n[2] failed: " + why + "\n"), std::string::npos) << table;
}

TEST_F(Sweeping, RepeatsFailedRunsWhenItResumes) {
  sweep(R"({"name": "warmup", "key": "/workload/warmup_turns", "values": [20, 100000]})");
  (void)run("out");
  (void)run("again");
  const SweepResult result = run("out", resuming());
  EXPECT_EQ(result.runs, 1);
  expect_same_results("out", "again");
}

const char* const kKnowledge =
    R"({"name": "eviction", "key": "/system/tiers/dram/eviction",
        "values": ["lru", "scheduler_aware"]},
       {"name": "knowledge", "key": "/serving/knowledge", "values": ["look_ahead", "online"]})";
const char* const kOnline = R"(, "set": {"/system": "attentionstore_lru"})";

TEST_F(Sweeping, RunsNothingIfAConfigIsRefused) {
  sweep(kKnowledge, kOnline);
  EXPECT_EQ(problems([&] { (void)points(); }),
            (Lines{"s.json: /axes/0/values/1: /system/tiers/dram/eviction: policy scheduler_aware "
                   "needs look_ahead knowledge, but /serving/knowledge offers online"}));
}

TEST_F(Sweeping, SkipsRefusedPointsAndSaysWhy) {
  sweep(kKnowledge, std::string(kOnline) + R"(, "refused": "skip", "replications": 2)");
  const SweepResult result = run("out");
  EXPECT_EQ(result.runs, 6);
  EXPECT_EQ(result.count(RunState::refused), 2);
  const std::string why =
      "/system/tiers/dram/eviction: policy scheduler_aware needs look_ahead knowledge, but "
      "/serving/knowledge offers online";
  const Lines lines = lines_of(file("out/results.jsonl"));
  ASSERT_EQ(lines.size(), 8U);
  EXPECT_EQ(*unsealed_line(lines[7]),
            Json::parse(R"({"point":3,"replication":1,"axes":{"eviction":"scheduler_aware",)"
                        R"("knowledge":"online"},"refused":[")" +
                        why + "\"]}"));
  EXPECT_EQ(lines_of(file("out/results.csv"))[8],
            "3,1,,scheduler_aware,online,,,\"refused: " + why + "\"");
  const std::string table = to_table(load(), result);
  EXPECT_TRUE(table.ends_with("\n[2] refused: " + why + "\n")) << table;
}

TEST_F(Sweeping, FailsIfAllPointsAreRefused) {
  sweep(R"({"name": "slots", "key": "/serving/slotss", "values": [1, 2]})",
        R"(, "refused": "skip")");
  EXPECT_EQ(problems([&] { (void)points(); }),
            (Lines{"s.json: every point is refused: /serving/slotss: unknown key (did you mean "
                   "\"slots\"?)"}));
}

TEST_F(Sweeping, NamesTheAxisAndTheFileOfEachProblemOnce) {
  sweep(R"({"name": "slots", "key": "/serving/slots", "values": [0, 2]},
           {"name": "system", "values": [{"label": "a", "set": {"/system/load/buffers": -1}}]})",
        R"(, "set": {"/hardware/gpuss": 1})");
  EXPECT_EQ(
      problems([&] { (void)points(); }),
      (Lines{"s.json: /set: /hardware/gpuss: unknown key (did you mean \"gpus\"?)",
             "s.json: /axes/1/values/0/set: /system/load/buffers: expected a whole number >= 0 and "
             "<= 1000, got -1",
             "s.json: /axes/0/values/0: /serving/slots: expected a whole number >= 1 and <= 4096, "
             "got 0"}));
}

TEST_F(Sweeping, NamesAMissingConfig) {
  dir_.write("s.json", R"({"config": "nowhere.json", "axes": [)" + kSlots + R"(], "columns": [
    {"name": "t", "value": "/metrics/turns", "unit": "count"}]})");
  EXPECT_EQ(problems([&] { (void)points(); }),
            (Lines{"s.json: /config: no such file: nowhere.json"}));
  dir_.write("s.json", R"({"config": {"model": "llama2-13b"}, "axes": [)" + kSlots +
                           R"(], "columns": [{"name": "t", "value": "/metrics/turns",
                                              "unit": "count"}]})");
  EXPECT_EQ(problems([&] { (void)points(); }), (Lines{"s.json: /config: /hardware: missing key",
                                                      "s.json: /config: /system: missing key",
                                                      "s.json: /config: /workload: missing key"}));
}

// ---- Going on ----

TEST_F(Sweeping, ResumesToTheSameBytesFromAnyPoint) {
  sweep(kSlots + ", " + kSystems, R"(, "replications": 3)");
  (void)run("whole");
  for (const std::int64_t runs : {1, 5, 11}) {
    const std::string out = "after" + std::to_string(runs);
    EXPECT_THROW((void)run(out, stop_after(runs)), Enough);
    EXPECT_EQ(files(out), (std::set<std::string>{"results.jsonl.partial", "sweep.json"}));
    const std::size_t kept = lines_of(file(out + "/results.jsonl.partial")).size();
    EXPECT_GE(kept, static_cast<std::size_t>(runs));
    const SweepResult result = run(out, resuming());
    EXPECT_EQ(result.runs, static_cast<std::int64_t>(12 - kept));
    expect_same_results(out, "whole");
  }
}

TEST_F(Sweeping, RunsPartlyWrittenPointsAgain) {
  (void)run("whole");
  const std::string lines = file("whole/results.jsonl");
  // Cut inside of the second line, and with a third that is none.
  const std::size_t second = lines.find('\n') + 1;
  for (const std::string& rest : {lines.substr(second, 40), std::string("{\"point\":\n{}\n")}) {
    fs::remove_all(dir_.path("out"));
    fs::create_directory(dir_.path("out"));
    dir_.write("out/sweep.json", file("whole/sweep.json"));
    dir_.write("out/results.jsonl.partial", lines.substr(0, second) + rest);
    dir_.write("out/results.csv.kvtier-tmp-killed", "half");
    EXPECT_EQ(run("out", resuming()).runs, 3);
    expect_same_results("out", "whole");
  }
}

/// Lines with a valid checksum that no run wrote. kvtier writes no such lines, but users may.
TEST_F(Sweeping, RunsPointsWithForgedLinesAgain) {
  (void)run("whole");
  const Lines whole = lines_of(file("whole/results.jsonl"));
  const Json second = *unsealed_line(whole[1]);
  const auto with = [&](const char* key, Json value) {
    Json line = second;
    line[key] = std::move(value);
    return sealed_line(line);
  };
  const auto without = [&](const char* key) {
    Json line = second;
    line.erase(key);
    return sealed_line(line);
  };
  const std::string ignored = "out: 1 lines are of no run of this sweep and are not used";
  const std::string damaged =
      "out/results.jsonl: no whole line of a run: 2; their runs are made again";
  const std::vector<std::pair<std::string, std::string>> lines{
      {with("point", INT64_MAX), ignored},
      {with("point", UINT64_MAX), ignored},
      {with("point", 4), ignored},
      {with("point", -1), ignored},
      {with("point", "1"), ignored},
      {with("point", 1.0), ignored},
      {with("point", 2), ignored},
      {with("replication", 1), ignored},
      {with("replication", INT64_MAX), ignored},
      {with("seed", "1"), ignored},
      {with("seed", 2), ignored},
      {with("axes", unsealed_line(whole[2])->at("axes")), ignored},
      {with("axes", nullptr), ignored},
      {with("metrics", nullptr), ignored},
      {with("metrics", 3), ignored},
      {with("load", Json::array()), ignored},
      {without("point"), ignored},
      {without("seed"), ignored},
      {without("metrics"), ignored},
      {without("load"), ignored},
      {second.dump(), damaged},
      {R"({"point":9223372036854775807,"replication":0,"metrics":{}})", damaged},
      {"{}", damaged},
      {"", damaged},
      {std::string(80'000, '['), damaged}};
  fs::create_directory(dir_.path("out"));
  for (const auto& [line, message] : lines) {
    dir_.write("out/sweep.json", file("whole/sweep.json"));
    dir_.write("out/results.jsonl",
               whole[0] + "\n" + line + "\n" + whole[2] + "\n" + whole[3] + "\n");
    SweepOptions options = resuming();
    Lines told;
    options.tell = [&](const std::string& text) {
      told.push_back(text.substr(dir_.path("").string().size()));
    };
    EXPECT_EQ(run("out", options).runs, 1) << line.substr(0, 100);
    EXPECT_EQ(told, Lines{message}) << line.substr(0, 100);
    expect_same_results("out", "whole");
  }
}

TEST_F(Sweeping, ResumesToTheSameBytesAfterDamageAnywhere) {
  (void)run("whole");
  const std::string whole = file("whole/results.jsonl");
  constexpr std::size_t kStep = 331;
  fs::create_directory(dir_.path("out"));
  for (std::size_t at = 0; at < whole.size(); at += kStep) {
    std::string text = whole;
    text[at] = static_cast<char>(text[at] ^ 1);
    dir_.write("out/sweep.json", file("whole/sweep.json"));
    dir_.write("out/results.jsonl", text);
    const std::int64_t runs = run("out", resuming()).runs;
    EXPECT_TRUE(runs == 1 || runs == 2) << at;  // two where the end of a line is lost
    expect_same_results("out", "whole");
  }
}

TEST_F(Sweeping, ResumesAFolderThatHasNothing) {
  (void)run("out", resuming());
  (void)run("plain");
  expect_same_results("out", "plain");
}

TEST_F(Sweeping, ShowsOtherColumnsOfCompleteResultsWithoutRuns) {
  (void)run("out");
  const std::string before = file("out/results.jsonl");
  dir_.write("s.json", R"({"config": "run.json", "axes": [)" + kSlots + ", " + kSystems +
                           R"(], "columns": [{"name": "GPU", "value": "/metrics/gpu_seconds/total",
                                    "unit": "GPU hours"}]})");
  EXPECT_EQ(run("out", resuming()).runs, 0);
  EXPECT_EQ(file("out/results.jsonl"), before);
  EXPECT_EQ(lines_of(file("out/results.csv"))[0],
            "point,replication,seed,slots,system,GPU [GPU hours],error");
}

TEST_F(Sweeping, RefusesAFolderThatHasResults) {
  (void)run("out");
  EXPECT_EQ(problems([&] { (void)run("out"); }),
            (Lines{"--out: out has results of a sweep (sweep.json); --resume completes them"}));
  EXPECT_THROW((void)run("half", stop_after(1)), Enough);
  EXPECT_EQ(problems([&] { (void)run("half"); }),
            (Lines{"--out: half has results of a sweep (sweep.json); --resume completes them"}));
}

TEST_F(Sweeping, RefusesAFolderOfAnotherSweep) {
  EXPECT_THROW((void)run("out", stop_after(1)), Enough);
  const std::string before = file("out/results.jsonl.partial");
  const auto refused = [&](const SweepOptions& options) {
    return problems([&] { (void)run("out", options); });
  };
  SweepOptions shard = resuming();
  shard.shard = {2, 2};
  EXPECT_EQ(refused(shard), (Lines{"--out: out has another sweep; not the same: shard"}));
  sweep(kSlots + ", " + kSystems, R"(, "set": {"/hardware/gpus": 4})");
  EXPECT_EQ(refused(resuming()),
            (Lines{"--out: out has another sweep; not the same: setting, resolved "
                   "configs (or their traces)"}));
  sweep(kSlots, R"(, "replications": 2)");
  EXPECT_EQ(refused(resuming()), (Lines{"--out: out has another sweep; not the same: axes, "
                                        "replications, resolved configs (or their traces)"}));
  EXPECT_EQ(file("out/results.jsonl.partial"), before);
  Json identity = Json::parse(file("out/sweep.json"));
  identity["commit"] = "cafe";
  dir_.write("out/sweep.json", identity.dump());
  sweep(kSlots + ", " + kSystems);
  EXPECT_EQ(refused(resuming()), (Lines{"--out: out has another sweep; not the same: commit"}));
  fs::remove(dir_.path("out/sweep.json"));
  EXPECT_EQ(refused(resuming()),
            (Lines{"--out: out has results, but no sweep.json that says of what"}));
}

TEST_F(Sweeping, RefusesAFolderOfAnotherTrace) {
  const std::string table = "conv,turn,user_tokens,assistant_tokens\nx,0,11,21\nx,1,12,22\n";
  dir_.write("turns.csv", table);
  dir_.write("run.json", R"({
    "model": "llama2-13b", "hardware": {"preset": "a100-80g", "gpus": 2},
    "system": "attentionstore", "workload": {"trace": "turns.csv", "arrival_rate": "1/s"}})");
  (void)run("out");
  EXPECT_EQ(run("out", resuming()).runs, 0);
  dir_.write("turns.csv", table + "y,0,1,2\n");
  EXPECT_EQ(problems([&] { (void)run("out", resuming()); }),
            (Lines{"--out: out has another sweep; not the same: resolved configs (or their "
                   "traces)"}));
}

TEST_F(Sweeping, LetsOneProcessWrite) {
  Lines second;
  SweepOptions options;
  options.progress = [&](std::int64_t, std::int64_t) {
    if (second.empty()) {
      second = problems([&] { (void)run("out", resuming()); });
    }
  };
  (void)run("out", options);
  EXPECT_EQ(second, (Lines{"--out: another process writes to out at this moment"}));
}

// ---- Places that cannot be written ----

TEST_F(Sweeping, RefusesAFile) {
  EXPECT_EQ(problems([&] { (void)run("run.json"); }),
            (Lines{"--out: expected a folder, got the file run.json"}));
}

TEST_F(Sweeping, FailsIfItCannotMakeAFolder) {
  try {
    (void)run("run.json/out");
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_EQ(std::string(error.what()),
              dir_.path("run.json/out").string() + ": cannot make the folder: Not a directory");
  }
}

/// While it lives, files of this process end after so many bytes, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : old_signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_limit_);
    const rlimit limit{bytes, old_limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &old_limit_);
    std::signal(SIGXFSZ, old_signal_);
  }

 private:
  rlimit old_limit_{};
  void (*old_signal_)(int);
};

TEST_F(Sweeping, FailsOnAFullDiskAndResumes) {
  (void)run("whole");
  // Room for sweep.json and two lines of about 4 KiB: each line is longer than the half of it.
  const auto room = static_cast<rlim_t>(file("whole/results.jsonl").size() / 2);
  ASSERT_GT(room, file("whole/sweep.json").size());
  try {
    const FullDisk full(room);
    (void)run("out");
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_EQ(std::string(error.what()),
              dir_.path("out/results.jsonl.partial").string() + ": cannot write: File too large");
  }
  const SweepResult result = run("out", resuming());
  EXPECT_GT(result.runs, 0);
  EXPECT_LT(result.runs, 4);
  expect_same_results("out", "whole");
}

TEST_F(Sweeping, KeepsItsLinesWhenTheFinalFilesDoNotFit) {
  (void)run("whole");
  EXPECT_THROW((void)run("out", stop_after(4)), Enough);
  // The last line could still be written, results.csv cannot take its place.
  fs::create_directories(dir_.path("out/results.csv/x"));
  EXPECT_THROW((void)run("out", resuming()), DeviceError);
  EXPECT_TRUE(files("out").contains("results.jsonl.partial"));
  fs::remove_all(dir_.path("out/results.csv"));
  EXPECT_EQ(run("out", resuming()).runs, 0);
  expect_same_results("out", "whole");
}

// ---- Tables ----

// Rows made by hand: percent are shares times 100; 10 and 20 make a mean of 15 and a spread of 10.
TEST_F(Sweeping, ShowsMeanAndSpreadOfEachPoint) {
  sweep(kSystems, R"(, "replications": 2)");
  SweepResult result;
  const auto row = [&](std::size_t point, double hits, std::optional<double> turns) {
    SweepRow made;
    made.point = point;
    made.values = {hits, turns};
    result.rows.push_back(made);
  };
  row(0, 10, 7);
  row(0, 20, 7);
  row(1, 50, 8);
  row(1, 50, std::nullopt);
  EXPECT_EQ(to_table(load(), result),
            "s: 2 points, mean of 2 seeds (largest - smallest)\n"
            "\n"
            "system                 hits  turns\n"
            "                          %  count\n"
            "recompute       15.0 (10.0)  7 (0)\n"
            "attentionstore   50.0 (0.0)      -\n");
}

TEST_F(Sweeping, MarksPointsWhoseLoadExceedsCapacity) {
  // Five sessions a second are more than two GPUs serve without stored KV; four in all are not.
  sweep(R"({"name": "sessions", "key": "/workload/sessions", "values": [1000, 4]})",
        R"(, "set": {"/system": "recompute", "/workload/arrival_rate": "5/s",
                     "/workload/warmup_turns": 0})");
  const SweepResult result = run("out");
  EXPECT_TRUE(result.rows[0].exceeds_capacity);
  EXPECT_FALSE(result.rows[1].exceeds_capacity);
  const std::string table = to_table(load(), result);
  EXPECT_NE(table.find("  [1]\n4 "), std::string::npos) << table;
  EXPECT_TRUE(table.ends_with(
      "  [2]\n\n[1] load exceeds capacity: every number depends on the length of the run\n"
      "[2] run too short for its load: more sessions are needed, or \"auto\"\n"))
      << table;
}

TEST_F(Sweeping, SaysWhichShardATableIs) {
  SweepOptions options;
  options.shard = {1, 2};
  const SweepResult result = run("out", options);
  const std::string table = to_table(load(), result);
  EXPECT_EQ(table.find("s: 4 points, shard 1/2 with 2, one seed\n"), 0U) << table;
}

TEST_F(Sweeping, NamesColumnsThatNoRunCanHaveBeforeTheFirstRun) {
  dir_.write("s.json", R"({"config": "run.json", "axes": [)" + kSystems + R"(], "columns": [
    {"name": "a", "value": "/metrics/turns", "unit": "count"},
    {"name": "b", "value": "/metrics/turn", "unit": "count"},
    {"name": "c", "value": "/metrics/tiers/dram/evictions", "unit": "count"},
    {"name": "d", "value": "/metrics/tiers", "unit": "count"},
    {"name": "e", "value": "/metrics/late_fetch_wait_seconds/mean", "unit": "s"}]})");
  // c is there for one of the systems; e is of nothing, as no fetch was late.
  EXPECT_EQ(problems([&] { (void)run("out"); }),
            (Lines{"s.json: /columns/1/value: no result of this sweep has a number at "
                   "/metrics/turn (did you mean \"/metrics/turns\"?)",
                   "s.json: /columns/3/value: no result of this sweep has a number at "
                   "/metrics/tiers (did you mean "
                   "\"/metrics/tiers/hbm/occupancy_bytes/mean\"?)"}));
  EXPECT_FALSE(fs::exists(dir_.path("out")));
}

// Blocks have a bound of their own.
TEST_F(Sweeping, NamesTheBoundsThatASystemOfBlocksHas) {
  const auto with = [&](const std::string& pointer) {
    dir_.write("s.json", R"({"config": "run.json", "axes": [{"name": "system", "key": "/system",
      "values": ["recompute", "vllm"]}], "bound": true, "columns": [{"name": "reached",
      "value": ")" + pointer +
                             R"(", "unit": "%"}]})");
  };
  with("/bound/upper_bound/share_reached/all_turns");
  const Lines lines = problems([&] { (void)run("out"); });
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].find("s.json: /columns/0/value: no result of this sweep has a number at "
                          "/bound/upper_bound/share_reached/all_turns; numbers in /bound are "
                          "/bound/hit_blocks, /bound/hit_rate/blocks, "
                          "/bound/share_reached/blocks, "),
            0U)
      << lines[0];
  EXPECT_FALSE(fs::exists(dir_.path("out")));
  with("/bound/share_reached/blocks");
  EXPECT_TRUE(run("out").rows[1].values[0].has_value());
}

// A long run may have other intervals than the short runs that look for columns.
TEST_F(Sweeping, NamesColumnsThatNoResultHas) {
  dir_.write("s.json", R"({"config": "run.json", "axes": [)" + kSystems + R"(], "columns": [
    {"name": "a", "value": "/metrics/confidence/latency/low", "unit": "s"}]})");
  const SweepResult result = run("out");
  EXPECT_EQ(problems([&] { check_result(load(), result); }),
            (Lines{"s.json: /columns/0/value: no result has a number at "
                   "/metrics/confidence/latency/low; with the column corrected, --resume shows the "
                   "results again"}));
}

TEST_F(Sweeping, AdvisesALongerTraceForATraceInOrder) {
  dir_.write("turns.csv",
             "conv,turn,user_tokens,assistant_tokens\nx,0,11,21\nx,1,12,22\ny,0,9,8\n");
  dir_.write("run.json", R"({
    "model": "llama2-13b", "hardware": {"preset": "a100-80g", "gpus": 2},
    "system": "attentionstore", "workload": {"trace": "turns.csv", "arrival_rate": "1/s"}})");
  sweep(kSlots);
  const std::string table = to_table(load(), run("out"));
  EXPECT_TRUE(
      table.ends_with("\n[1] run too short for its load: expected a longer trace, or "
                      "/workload/replay \"bootstrap\" with /workload/sessions \"auto\"\n"))
      << table;
  sweep(kSlots, R"(, "set": {"/workload/sessions": 1})");
  const std::string cut = to_table(load(), run("cut"));
  EXPECT_NE(cut.find("expected more /workload/sessions, a longer trace, or "), std::string::npos)
      << cut;
}

// ---- Many points ----

/// A number of a file in /proc/self, after the text `name`.
std::int64_t of_process(const char* file, const std::string& name) {
  const std::string text = content(fs::path("/proc/self") / file);
  return std::stoll(text.substr(text.find(name) + name.size()));
}
std::int64_t bytes_read() { return of_process("io", "rchar:"); }
std::int64_t resident_bytes() { return of_process("status", "VmRSS:") * 1024; }

const char* const kTenThousandPoints =
    R"({"name": "server", "sample": "latin_hypercube", "points": 5000, "keys": [
          {"key": "/hardware/dram/capacity", "from": "64GiB", "to": "2048GiB"}]},
       {"name": "slots", "key": "/serving/slots", "values": [4, 24]})";

TEST_F(Sweeping, ReadsFilesOnceAndKeepsFewPoints) {
  dir_.write("run.json", R"({
    "model": "llama2-13b", "hardware": {"preset": "h100-8x", "profile": "h100-vllm"},
    "system": "attentionstore",
    "workload": {"generator": "sharegpt", "sessions": 4, "arrival_rate": "1/s"}})");
  sweep(kTenThousandPoints);
  const auto profile =
      static_cast<std::int64_t>(fs::file_size(presets().file("profiles", "h100-vllm")));
  const Sweep sweep = load();
  const std::int64_t read_before = bytes_read();
  const std::int64_t resident_before = resident_bytes();
  const SweepPoints points(sweep, presets(), registry_);
  EXPECT_EQ(points.size(), 10000U);
  EXPECT_LE(points.checked().size(), kCheckedPoints);
  EXPECT_EQ(points.checked().front().index, 0U);
  EXPECT_EQ(points.checked().back().index, 9998U);
  for (std::size_t i = 1; i < points.size(); i += 50) {
    const SweepPoint point = points[i];
    ASSERT_TRUE(point.resolved);
    EXPECT_EQ(point.resolved->config.serving.slots, 24);
    EXPECT_EQ(point.labels, labels_of(sweep, i));
    EXPECT_EQ(point.resolved->config.hardware.profile->loaded,
              points.checked()[0].resolved->config.hardware.profile->loaded);
  }
  EXPECT_LT(bytes_read() - read_before, 3 * profile);
  EXPECT_LT(resident_bytes() - resident_before, 100 << 20);
}

TEST_F(Sweeping, RunsBeforeItResolvesAllPoints) {
  sweep(kTenThousandPoints);
  const std::int64_t resident_before = resident_bytes();
  EXPECT_THROW((void)run("out", stop_after(1)), Enough);
  EXPECT_LT(resident_bytes() - resident_before, 100 << 20);
  EXPECT_GE(lines_of(file("out/results.jsonl.partial")).size(), 1U);
  const Json identity = Json::parse(file("out/sweep.json"));
  EXPECT_EQ(identity["axes"][0]["values"].size(), 5000U);
}

// Six points, of which all but (scheduler_aware, online) are checked or resolve.
TEST_F(Sweeping, FinishesOtherPointsIfALaterOneIsRefused) {
  const std::string axes =
      R"({"name": "eviction", "key": "/system/tiers/dram/eviction",
          "values": ["lru", "fifo", "scheduler_aware"]},
         {"name": "knowledge", "key": "/serving/knowledge", "values": ["look_ahead", "online"]})";
  const auto run_some = [&](const std::string& out, bool resume) {
    const Sweep sweep = load();
    const SweepPoints points(sweep, presets(), registry_, 5);
    EXPECT_EQ(points.checked().size(), 4U);
    SweepOptions options;
    options.out = dir_.path(out);
    options.resume = resume;
    return run_sweep(sweep, points, registry_, options);
  };
  const std::string why =
      "/system/tiers/dram/eviction: policy scheduler_aware needs look_ahead knowledge, but "
      "/serving/knowledge offers online";
  sweep(axes, kOnline);
  const SweepResult result = run_some("out", false);
  EXPECT_EQ(result.runs, 5);
  EXPECT_EQ(result.rows[5].state, RunState::refused);
  EXPECT_EQ(problems([&] { check_result(load(), result); }),
            (Lines{"s.json: /axes/0/values/2: " + why}));
  EXPECT_EQ(lines_of(file("out/results.jsonl")).size(), 6U);
  EXPECT_EQ(run_some("out", true).runs, 0);
  // The same files as if all points are checked first, but for the hash of the inputs.
  sweep(axes, std::string(kOnline) + R"(, "refused": "skip")");
  EXPECT_EQ(problems([&] { check_result(load(), run_some("some", false)); }), Lines{});
  (void)run("all");
  EXPECT_EQ(file("some/results.jsonl"), file("all/results.jsonl"));
  EXPECT_EQ(file("some/results.csv"), file("all/results.csv"));
}

TEST_F(Sweeping, IsAnotherSweepIfAFileOfAnUncheckedPointChanges) {
  const std::string table = "conv,turn,user_tokens,assistant_tokens\nx,0,11,21\nx,1,12,22\n";
  for (const char* name : {"a.csv", "b.csv", "c.csv", "d.csv"}) {
    dir_.write(name, table);
  }
  dir_.write("run.json", R"({
    "model": "llama2-13b", "hardware": {"preset": "a100-80g", "gpus": 2},
    "system": "attentionstore", "workload": {"trace": "a.csv", "arrival_rate": "1/s"}})");
  sweep(R"({"name": "trace", "key": "/workload/trace",
            "values": ["a.csv", "b.csv", "c.csv", "d.csv"]})");
  const Sweep sweep = load();
  const auto identity = [&] {
    const SweepPoints points(sweep, presets(), registry_, 2);
    EXPECT_EQ(points.checked().size(), 2U);  // a.csv and d.csv
    return sweep_identity(sweep, points, Shard{});
  };
  const Json before = identity();
  EXPECT_EQ(identity(), before);
  dir_.write("c.csv", table + "y,0,1,2\n");
  EXPECT_NE(identity(), before);
}

// ---- Sampled axes ----

/// The value that axis `axis` of a sweep sets for key number `key`, for each point.
std::vector<Json> drawn(const Sweep& sweep, std::size_t key, std::size_t axis = 0) {
  std::vector<Json> values;
  for (const AxisValue& value : sweep.axes.at(axis).values) {
    values.push_back(value.set.list.at(key).value);
  }
  return values;
}

// Ten parts of 1 to 10 are the ten numbers; ten parts of two values are five of each.
TEST_F(Sweeping, DrawsOneOfEachPartForALatinHypercube) {
  sweep(R"({"name": "p", "sample": "latin_hypercube", "points": 10, "keys": [
    {"key": "/serving/slots", "from": 1, "to": 10},
    {"key": "/system", "values": ["recompute", "attentionstore"]}]})");
  std::vector<Json> slots = drawn(load(), 0);
  EXPECT_FALSE(std::is_sorted(slots.begin(), slots.end()));
  std::sort(slots.begin(), slots.end());
  EXPECT_EQ(Json(slots), Json({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  const std::vector<Json> systems = drawn(load(), 1);
  EXPECT_EQ(std::count(systems.begin(), systems.end(), "recompute"), 5);
  const std::vector<SweepPoint> all = points();
  ASSERT_EQ(all.size(), 10U);
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(all[i].resolved->config.serving.slots, drawn(load(), 0)[i]);
    EXPECT_EQ(all[i].labels[0], std::to_string(i) + ": " + drawn(load(), 0)[i].dump() + ", " +
                                    systems[i].get<std::string>());
  }
}

// Half of 1,000 parts of a log scale from 1 to 100 are below 10; of a linear one 9/99.
TEST_F(Sweeping, SpreadsLogarithmsOnALogScale) {
  sweep(R"({"name": "p", "sample": "latin_hypercube", "points": 1000, "keys": [
    {"key": "/a", "from": 1.0, "to": 100.0, "scale": "log"},
    {"key": "/b", "from": 1.0, "to": 100.0}]})");
  const auto below_10 = [&](std::size_t key) {
    const std::vector<Json> values = drawn(load(), key);
    return std::count_if(values.begin(), values.end(), [](const Json& v) { return v < 10.0; });
  };
  EXPECT_NEAR(static_cast<double>(below_10(0)), 500, 1);
  EXPECT_NEAR(static_cast<double>(below_10(1)), 91, 1);
}

TEST_F(Sweeping, DrawsDenormalNumbers) {
  sweep(R"({"name": "p", "sample": "random", "points": 20, "keys": [
    {"key": "/a", "from": 1e-320, "to": 2e-310}]})");
  for (const Json& value : drawn(load(), 0)) {
    EXPECT_GE(value.get<double>(), 1e-320);
    EXPECT_LE(value.get<double>(), 2e-310);
  }
}

TEST_F(Sweeping, DrawsQuantitiesInTheUnitOfTheirEnds) {
  sweep(R"({"name": "p", "sample": "random", "points": 300, "keys": [
    {"key": "/hardware/dram/capacity", "from": "64GiB", "to": "67GiB"},
    {"key": "/workload/arrival_rate", "from": "0.1/s", "to": "0.2/s"}]})");
  std::set<std::string> sizes;
  for (const Json& value : drawn(load(), 0)) {
    sizes.insert(value.get<std::string>());
  }
  EXPECT_EQ(sizes, (std::set<std::string>{"64GiB", "65GiB", "66GiB", "67GiB"}));
  std::set<std::string> rates;
  for (const Json& value : drawn(load(), 1)) {
    const auto text = value.get<std::string>();
    EXPECT_TRUE(text.ends_with("/s")) << text;
    EXPECT_GE(std::stod(text), 0.1);
    EXPECT_LE(std::stod(text), 0.2);
    EXPECT_LE(text.size(), std::string("0.1234/s").size());
    rates.insert(text);
  }
  EXPECT_GT(rates.size(), 200U);
}

TEST_F(Sweeping, DrawsAnAxisByItsSeedIndependentlyOfOthers) {
  const std::string slots = R"({"key": "/serving/slots", "from": 1, "to": 1000000})";
  const auto axis = [](const std::string& name, const std::string& keys) {
    return R"({"name": ")" + name + R"(", "sample": "random", "points": 5, "keys": [)" + keys +
           "]}";
  };
  sweep(axis("p", slots));
  const std::vector<Json> first = drawn(load(), 0);
  EXPECT_EQ(drawn(load(), 0), first);
  sweep(axis("q", R"({"key": "/x", "from": 1, "to": 9})") + "," +
        axis("p", R"({"key": "/y", "from": 1, "to": 9}, )" + slots));
  EXPECT_EQ(drawn(load(), 1, 1), first);
  sweep(axis("p", slots), R"(, "seed": 2)");
  EXPECT_NE(drawn(load(), 0), first);
}

TEST_F(Sweeping, IsAnotherSweepWithAnotherSeed) {
  const std::string axis = R"({"name": "p", "sample": "random", "points": 3, "keys": [
    {"key": "/serving/slots", "from": 8, "to": 64}]})";
  sweep(axis);
  (void)run("out");
  EXPECT_EQ(run("out", resuming()).runs, 0);
  sweep(axis, R"(, "seed": 2)");
  EXPECT_EQ(problems([&] { (void)run("out", resuming()); }).size(), 1U);
}

TEST_F(Sweeping, NamesAxesThatCannotBeDrawn) {
  sweep(R"({"name": "p", "sample": "random", "points": 3, "keys": []},
    {"name": "q", "sample": "random", "points": 3, "keys": [
      {"key": "slots", "from": 1, "to": 2}, {"key": "/a"}, {"key": "/a", "from": 1, "values": [2]},
      {"key": "/b", "from": "x", "to": true}, {"key": "/c", "from": "1GiB", "to": "2MiB"},
      {"key": "/d", "from": 2, "to": 2}, {"key": "/e", "from": 0, "to": 2, "scale": "log"},
      {"key": "/f", "from": "12", "to": 13}]},
    {"name": "r", "sample": "sobol", "points": 0, "keys": [{"from": 1}]})");
  EXPECT_EQ(problems([&] { (void)load(); }),
            (Lines{"s.json: /axes/0/keys: expected one key at least, got []",
                   "s.json: /axes/1/keys/0/key: expected a JSON pointer, which starts with /",
                   "s.json: /axes/1/keys/1: expected from and to, or values",
                   "s.json: /axes/1/keys/2/key: the axis draws /a already",
                   "s.json: /axes/1/keys/2: expected from and to, or values",
                   "s.json: /axes/1/keys/3/from: expected a number or a quantity, got \"x\"",
                   "s.json: /axes/1/keys/3/to: expected a number or a quantity, got true",
                   "s.json: /axes/1/keys/4/to: expected the unit of from, \"GiB\", got \"2MiB\"",
                   "s.json: /axes/1/keys/5/to: expected more than from, 2, got 2",
                   "s.json: /axes/1/keys/6/from: expected more than 0 on a log scale, got 0",
                   "s.json: /axes/1/keys/7/from: expected a number or a quantity, got \"12\"",
                   "s.json: /axes/2/sample: expected one of random, latin_hypercube, got \"sobol\"",
                   "s.json: /axes/2/points: expected a whole number >= 1 and <= 100000, got 0",
                   "s.json: /axes/2/keys/0/key: missing key"}));
}

// ---- Files that are wrong ----

TEST_F(Sweeping, NamesEveryProblemOfAFile) {
  dir_.write("s.json", R"({"config": 3, "axs": [], "replications": 0, "refused": "no", "axes": [
    {"name": "a", "key": "serving", "values": [1]}, {"name": "b", "values": [{"label": 1}]},
    {"name": "c", "key": "/x", "valeus": []}, {"name": "d", "values": ["lru"]}],
    "set": {"slots": 1}, "columns": [{"name": "x", "value": 1, "unit": "yards"}]})");
  EXPECT_EQ(
      problems([&] { (void)load(); }),
      (Lines{"s.json: /config: expected a config's path, or a config, got 3",
             "s.json: /set/slots: expected a JSON pointer, which starts with /",
             "s.json: /axes/0/key: expected a JSON pointer, which starts with /",
             "s.json: /axes/1/values/0/label: expected a string, got 1",
             "s.json: /axes/1/values/0/set: missing key", "s.json: /axes/2/values: missing key",
             "s.json: /axes/2/valeus: unknown key (did you mean \"values\"?)",
             "s.json: /axes/3/values/0: expected an object, got \"lru\"",
             "s.json: /replications: expected a whole number >= 1 and <= 100000, got 0",
             "s.json: /columns/0/value: expected a string, got 1",
             "s.json: /columns/0/unit: expected one of %, points, x, s, ms, tokens/s, GPU "
             "hours, GB/s, GB, TiB, $, count, got \"yards\"",
             "s.json: /refused: expected one of error, skip, got \"no\"",
             "s.json: /axs: unknown key (did you mean \"axes\"?)"}));
}

TEST_F(Sweeping, NamesColumnsThatMakeNoTable) {
  dir_.write("s.json", R"({"config": "run.json", "axes": [
    {"name": "seed", "key": "/seed", "values": []},
    {"name": "", "key": "/serving/slots", "values": [1, 1]},
    {"name": "b", "values": [{"label": "x", "set": {"/serving/slots": 1}}]}], "columns": [
    {"name": "x", "value": "/metrics/turns", "unit": "count"},
    {"name": "x", "value": "/config/seed", "unit": "count"},
    {"name": "x", "value": "/metrics/~2", "unit": "%"}]})");
  const std::string where =
      "expected a JSON pointer below /metrics, /load, /workload, /timing or, with \"bound\": true, "
      "/bound, ";
  EXPECT_EQ(problems([&] { (void)load(); }),
            (Lines{"s.json: /axes/0/name: the table has a column \"seed\" already",
                   "s.json: /axes/0/values: expected one value at least, got []",
                   "s.json: /axes/1/name: expected a name, got \"\"",
                   "s.json: /axes/1/values/1: the axis has a value \"1\" already",
                   "s.json: /axes/2: axis \"\" sets /serving/slots, too",
                   "s.json: /columns/1/name: the table has a column \"x [count]\" already",
                   "s.json: /columns/1/value: " + where + "got \"/config/seed\"",
                   "s.json: /columns/2/value: " + where + "got \"/metrics/~2\""}));
  dir_.write("s.json", R"({"config": "run.json", "axes": [], "columns": []})");
  EXPECT_EQ(problems([&] { (void)load(); }),
            (Lines{"s.json: /axes: expected one axis at least, got []",
                   "s.json: /columns: expected one column at least, got []"}));
}

TEST_F(Sweeping, HasABound) {
  sweep(kSystems, R"(, "replications": 50000)");
  EXPECT_EQ(problems([&] { (void)load(); }), Lines{});
  sweep(kSystems, R"(, "replications": 50001)");
  EXPECT_EQ(problems([&] { (void)load(); }),
            (Lines{"s.json: /axes: expected at most 100000 runs, all points and replications"}));
}

}  // namespace
}  // namespace kvtier::test
