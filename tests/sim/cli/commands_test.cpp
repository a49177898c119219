/// The commands with valid input.

#include <algorithm>
#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Names = std::vector<std::string>;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Simulate : public ProgramTest {
 protected:
  Simulate() { write_run(); }

  [[nodiscard]] json result_of(Names more) const {
    more.insert(more.begin(), {"simulate", "run.json", "--json", "-"});
    const Outcome outcome = kvtier(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out);
  }
  [[nodiscard]] json config_of(Names more) const {
    more.insert(more.begin(), {"simulate", "run.json", "--print-config"});
    const Outcome outcome = kvtier(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out);
  }
};

TEST_F(Simulate, GivesTheSameBytesForTheSameSeed) {
  ASSERT_EQ(kvtier({"simulate", "run.json", "--json", "a.json", "--seed", "7"}).code, 0);
  ASSERT_EQ(kvtier({"simulate", "run.json", "--json", "b.json", "--seed", "7"}).code, 0);
  ASSERT_EQ(kvtier({"simulate", "run.json", "--json", "c.json", "--seed", "8"}).code, 0);
  EXPECT_EQ(read("a.json"), read("b.json"));
  EXPECT_NE(read("a.json"), read("c.json"));
}

TEST_F(Simulate, GivesTheSameBytesWhenItStepsEveryIteration) {
  const Names outputs{"--json", "--requests", "--iterations", "--timeline", "--decisions"};
  Names fast{"simulate", "run.json"};
  Names slow{"simulate", "run.json", "--reference"};
  for (const std::string& option : outputs) {
    fast.insert(fast.end(), {option, "fast" + option});
    slow.insert(slow.end(), {option, "slow" + option});
  }
  ASSERT_EQ(kvtier(fast).code, 0);
  ASSERT_EQ(kvtier(slow).code, 0);
  EXPECT_EQ(read("fast--json"), read("slow--json"));
  EXPECT_EQ(read("fast--requests"), read("slow--requests"));
  EXPECT_EQ(read("fast--iterations"), read("slow--iterations"));
  EXPECT_EQ(read("fast--decisions"), read("slow--decisions"));
}

TEST_F(Simulate, WritesTheSameDecisionsOfBlocksForTheSameSeed) {
  for (const std::string timing : {"--set=/seed=3", "--untimed"}) {
    for (const std::string file : {"a.jsonl", "b.jsonl"}) {
      ASSERT_EQ(kvtier({"simulate", "run.json", "--set", "/system=vllm_tiering", timing,
                        "--decisions", file})
                    .code,
                0);
    }
    EXPECT_EQ(read("a.jsonl"), read("b.jsonl"));
    const std::string first = read("a.jsonl").substr(0, read("a.jsonl").find('\n'));
    EXPECT_TRUE(contains(first, R"("number":0,)")) << first;
    EXPECT_TRUE(contains(first, R"("decision":"insert","tier":"hbm","stream":)")) << first;
  }
}

TEST_F(Simulate, RefusesDecisionsOfBlocksOfTheReference) {
  const Outcome outcome = kvtier({"simulate", "run.json", "--set", "/system=vllm", "--reference",
                                  "--decisions", "decisions.jsonl"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("/system/blocks: --decisions has no decisions of the blocks of"),
            std::string::npos)
      << outcome.err;
  EXPECT_EQ(files(), Names{"run.json"});
}

TEST_F(Simulate, ResultDoesNotDependOnOtherOutputs) {
  ASSERT_EQ(kvtier({"simulate", "run.json", "--json", "a.json"}).code, 0);
  ASSERT_EQ(kvtier({"simulate", "run.json", "--json", "b.json", "--requests", "r.csv",
                    "--decisions", "d.jsonl", "--timeline", "t.json"})
                .code,
            0);
  EXPECT_EQ(read("a.json"), read("b.json"));
}

TEST_F(Simulate, PrintsAConfigThatGivesTheSameResult) {
  write("printed.json", kvtier({"simulate", "run.json", "--print-config"}).out);
  ASSERT_EQ(kvtier({"simulate", "run.json", "--json", "a.json"}).code, 0);
  ASSERT_EQ(kvtier({"simulate", "printed.json", "--json", "b.json"}).code, 0);
  EXPECT_EQ(read("a.json"), read("b.json"));
  EXPECT_EQ(kvtier({"simulate", "printed.json", "--print-config"}).out, read("printed.json"));
}

TEST_F(Simulate, TakesTheCommandLineOverTheFileOverThePresetOverTheDefault) {
  const json plain = config_of({});
  EXPECT_EQ(plain["serving"]["slots"], 256);                   // default
  EXPECT_EQ(plain["hardware"]["dram"]["capacity"], "128GiB");  // preset
  EXPECT_EQ(plain["hardware"]["gpus"], 2);                     // file, over the preset's 4
  EXPECT_EQ(plain["seed"], 1);
  const json set = config_of({"--set", "/hardware/gpus=5", "--set", "/hardware/dram/capacity=1TiB",
                              "--set", "/serving/slots=5", "--seed", "9"});
  EXPECT_EQ(set["serving"]["slots"], 5);
  EXPECT_EQ(set["hardware"]["dram"]["capacity"], "1TiB");
  EXPECT_EQ(set["hardware"]["gpus"], 5);
  EXPECT_EQ(set["seed"], 9);
}

TEST_F(Simulate, TakesTheLastOfSeveralOverridesOfAKey) {
  EXPECT_EQ(
      config_of({"--set", "/serving/slots=5", "--set", "/serving/slots=6"})["serving"]["slots"], 6);
}

TEST_F(Simulate, ReplacesTheWholeSystemWhenItIsSet) {
  write_run({{"/system", {{"preset", "attentionstore"}, {"load", {{"buffers", 3}}}}}});
  const json config = config_of({"--set", "/system=recompute"});
  EXPECT_EQ(config["system"]["name"], "recompute");
  EXPECT_EQ(config["system"]["tiers"]["dram"], "none");
  EXPECT_EQ(config["system"]["load"]["buffers"], 0);
  EXPECT_EQ(result_of({"--set", "/system=recompute"})["metrics"]["hit_rate"]["all_turns"]["total"],
            0);
}

TEST_F(Simulate, SetsKeysOfASystemThatIsReplaced) {
  const json config =
      config_of({"--set", "/system/load/buffers=2", "--set", "/system=attentionstore_lru"});
  EXPECT_EQ(config["system"]["name"], "attentionstore_lru");
  EXPECT_EQ(config["system"]["load"]["buffers"], 2);
  EXPECT_EQ(config_of({"--set", "/system=attentionstore_lru"})["system"]["load"]["buffers"],
            "auto");
  EXPECT_EQ(config_of({"--set", "/system/load/buffers=auto"})["system"]["load"]["buffers"], "auto");
}

TEST_F(Simulate, SetsAParameterOfAPolicy) {
  const json config = config_of({"--set", "/system/prefetch/window=4"});
  EXPECT_EQ(config["system"]["prefetch"], json({{"policy", "look_ahead"}, {"window", 4.0}}));
}

TEST_F(Simulate, TakesAHuggingFaceConfigAsTheModel) {
  write("config.json", R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 5120,
    "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40,
    "num_key_value_heads": 40, "vocab_size": 32000, "max_position_embeddings": 4096,
    "tie_word_embeddings": false, "torch_dtype": "float16"
  })");
  const json preset = result_of({});
  const json published = result_of({"--set", "/model=./config.json"});
  EXPECT_EQ(published["config"]["model"]["layers"], 40);
  EXPECT_EQ(published["metrics"], preset["metrics"]);
}

TEST_F(Simulate, NamesAMissingModelFile) {
  expect_bad_input({"simulate", "run.json", "--set", "/model=./nowhere.json"},
                   {"--set: /model: no such file: ./nowhere.json"});
}

TEST_F(Simulate, PassesExpectationsThatHold) {
  const json result = result_of({});
  const json turns = result["metrics"]["turns"];
  write("expect.json", json({{"/metrics/turns", {{"value", turns}}},
                             {"/metrics/hit_rate/all_turns/total", {{"min", 0}, {"max", 1}}},
                             {"/load/verdict", {{"value", "run too short to tell"}}}})
                           .dump());
  const Outcome outcome = kvtier({"simulate", "run.json", "--expect", "expect.json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(Simulate, FailsExpectationsThatDoNotHold) {
  const json result = result_of({});
  const auto turns = result["metrics"]["turns"].get<int>();
  write("expect.json", json({{"/metrics/turns", {{"value", turns + 5}, {"tolerance", 4}}},
                             {"/metrics/hit_rate/all_turns/total", {{"min", 2}}}})
                           .dump());
  const Outcome outcome =
      kvtier({"simulate", "run.json", "--expect", "expect.json", "--json", "out.json"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "kvtier: expect.json: /metrics/turns: expected " +
                                        std::to_string(turns + 5) + " +- 4, got " +
                                        std::to_string(turns) + "\n"))
      << outcome.err;
  EXPECT_TRUE(
      contains(outcome.err,
               "kvtier: expect.json: /metrics/hit_rate/all_turns/total: expected at least 2, got "))
      << outcome.err;
  EXPECT_EQ(read_json("out.json"), result);  // a failed check is a result, too
}

TEST_F(Simulate, UpdatesExpectationsToItsResults) {
  write("expect.json", R"({"/metrics/turns": 1, "/config/seed": {"value": 5, "tolerance": 1}})");
  EXPECT_EQ(kvtier({"simulate", "run.json", "--expect", "expect.json"}).code, 1);
  EXPECT_EQ(read_json("expect.json")["/metrics/turns"], 1);
  const Outcome outcome =
      kvtier({"simulate", "run.json", "--expect", "expect.json", "--update-expect"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const json result = result_of({});
  EXPECT_EQ(read_json("expect.json"),
            json({{"/metrics/turns", result["metrics"]["turns"]},
                  {"/config/seed", {{"value", result["config"]["seed"]}, {"tolerance", 1}}}}));
  EXPECT_EQ(kvtier({"simulate", "run.json", "--expect", "expect.json"}).code, 0);
  // Limits are not moved.
  write("expect.json", R"({"/metrics/turns": {"max": 1}})");
  EXPECT_EQ(kvtier({"simulate", "run.json", "--expect", "expect.json", "--update-expect"}).code, 1);
  EXPECT_EQ(read_json("expect.json"), json({{"/metrics/turns", {{"max", 1}}}}));
}

TEST_F(Simulate, UpdatesNoExpectationOfAMissingValue) {
  const std::string text = R"({"/metrics/turns": 1, "/metrics/nothing": 1})";
  write("expect.json", text);
  expect_bad_input({"simulate", "run.json", "--expect", "expect.json", "--update-expect"},
                   {"expect.json: /metrics/nothing: the result has no such value"});
  EXPECT_EQ(read("expect.json"), text);
}

TEST_F(Simulate, ComparesSystemsWithExpectations) {
  const Names compare{"compare",        "run.json", "--systems", "recompute,attentionstore_lru",
                      "--replications", "2",        "--expect",  "expect.json"};
  write("expect.json", R"({"/recompute/metrics/hit_rate/all_turns/total": 0,
                           "/attentionstore_lru/metrics/hit_rate/all_turns/total": {"min": 0.01},
                           "/attentionstore_lru/config/system/name": "attentionstore_lru"})");
  const Outcome holds = kvtier(compare);
  EXPECT_EQ(holds.code, 0) << holds.err;
  write("expect.json", R"({"/recompute/metrics/hit_rate/all_turns/total": {"min": 0.5}})");
  const Outcome fails = kvtier(compare);
  EXPECT_EQ(fails.code, 1);
  EXPECT_TRUE(contains(fails.err,
                       "expect.json: /recompute/metrics/hit_rate/all_turns/total: expected at "
                       "least 0.5, got 0"))
      << fails.err;
  EXPECT_EQ(fails.out, holds.out);
  write("expect.json", R"({"/lru/metrics/turns": 1})");
  expect_bad_input(compare, {"expect.json: /lru/metrics/turns: the result has no such value"});
}

TEST_F(Simulate, ShowsIntervalsOfALongRun) {
  write_run({{"/workload/sessions", 3000},
             {"/workload/sharegpt/single_turn_fraction", 1},
             {"/workload/measure", "auto"}});
  const std::string table = kvtier({"simulate", "run.json"}).out;
  ASSERT_TRUE(contains(table, "95 % intervals of the steady state\n")) << table;
  for (const char* label :
       {"hit rate, all turns %", "TTFT mean s", "TTFT p90 s", "queueing mean s"}) {
    EXPECT_TRUE(contains(table.substr(table.find("95 % intervals")), label)) << table;
  }
}

// About 150 turns are too few.
TEST_F(Simulate, SaysWhyAShortRunHasNoIntervals) {
  const std::string table = kvtier({"simulate", "run.json"}).out;
  EXPECT_TRUE(contains(table, "\nno intervals: the ")) << table;
  EXPECT_FALSE(contains(table, "95 % intervals")) << table;
  const json confidence = result_of({})["metrics"]["confidence"];
  EXPECT_FALSE(confidence.contains("ttft_seconds"));
  EXPECT_TRUE(contains(table, confidence["missing_because"])) << confidence;
}

TEST_F(Simulate, FindsTheCapacity) {
  write_run({{"/workload/sessions", 3000}, {"/workload/sharegpt/single_turn_fraction", 1}});
  const Names search{"simulate",       "run.json", "--find-capacity", "ttft_seconds.p90<=2",
                     "--replications", "2"};
  const Outcome table = kvtier(search);
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_TRUE(contains(table.out, "ttft_seconds.p90 <= 2")) << table.out;
  EXPECT_TRUE(contains(table.out, "mean of 2 seeds")) << table.out;
  Names as_json = search;
  as_json.insert(as_json.end(), {"--json", "-"});
  const Outcome once = kvtier(as_json);
  EXPECT_EQ(kvtier(as_json).out, once.out);
  const json capacity = json::parse(once.out);
  EXPECT_EQ(capacity["format"], "kvtier.capacity/1");
  EXPECT_GT(capacity["capacity_per_second"].get<double>(), 0);
  // --reference changes no byte, a coarser tolerance does.
  Names stepped = as_json;
  stepped.emplace_back("--reference");
  EXPECT_EQ(kvtier(stepped).out, once.out);
  Names coarse = as_json;
  coarse.insert(coarse.end(), {"--tolerance", "0.5"});
  EXPECT_LT(json::parse(kvtier(coarse).out)["trials"].size(), capacity["trials"].size());
}

// Two instances carry twice the load of one: requests are alike, and nothing is stored.
TEST_F(Simulate, FindsTheCapacityOfACluster) {
  write_run({{"/system", "recompute"},
             {"/workload/sessions", 12000},
             {"/workload/sharegpt/single_turn_fraction", 1}});
  const auto capacity = [&](const char* cluster) {
    const Outcome outcome =
        kvtier({"simulate", "run.json", "--set", std::string("/cluster=") + cluster,
                "--find-capacity", "ttft_seconds.p90<=2", "--tolerance", "0.05", "--json", "-"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out)["capacity_per_second"].get<double>();
  };
  const double one = capacity(R"({"instances": 1})");
  EXPECT_NEAR(capacity(R"({"instances": 2, "router": "least_requests"})") / one, 2, 0.2);
}

TEST_F(Simulate, ChecksTheCapacityThatItFinds) {
  write_run({{"/workload/sessions", 3000}, {"/workload/sharegpt/single_turn_fraction", 1}});
  write("expect.json", R"({"/capacity_per_second": {"min": 1000}})");
  const Outcome outcome = kvtier({"simulate", "run.json", "--find-capacity", "ttft_seconds.p90<=2",
                                  "--expect", "expect.json"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "/capacity_per_second: expected at least 1000")) << outcome.err;
}

TEST_F(Simulate, ReplaysWithoutAClock) {
  const json result = result_of({"--untimed"});
  EXPECT_TRUE(result["metrics"].contains("hit_rate"));
  EXPECT_FALSE(result["metrics"].contains("ttft_seconds"));
}

TEST_F(Simulate, ShowsAnUntimedReplayBesideItsBoundsAsATable) {
  const Names replay{"simulate",
                     "run.json",
                     "--untimed",
                     "--set",
                     "/system=attentionstore_lru",
                     "--set",
                     "/hardware/dram/capacity=4GiB",
                     "--set",
                     "/hardware/ssd/capacity=4GiB"};
  const std::string table = kvtier(replay).out;
  EXPECT_TRUE(table.starts_with("hits, % ")) << table;
  for (const char* text : {"in DRAM", "all turns", "resumed turns", "tokens", "lost hits: "}) {
    EXPECT_TRUE(contains(table, text)) << text << "\n" << table;
  }
  EXPECT_FALSE(contains(table, "Belady")) << table;
  Names bounded = replay;
  bounded.emplace_back("--bound");
  EXPECT_TRUE(contains(kvtier(bounded).out, "Belady")) << kvtier(bounded).out;
}

TEST_F(Simulate, GivesTheShareOfTheBoundThatAnUntimedReplayReaches) {
  const json result =
      result_of({"--untimed", "--bound", "--set", "/hardware/dram/capacity=16GiB", "--set",
                 "/system/tiers/ssd=none", "--set", "/system/prefetch=none"});
  EXPECT_EQ(result["bound"]["policy"], "belady");
  EXPECT_GT(result["bound"]["share_reached"]["all_turns"].get<double>(), 0.1);
  EXPECT_LT(result["bound"]["share_reached"]["all_turns"].get<double>(), 1);
  EXPECT_FALSE(result_of({"--untimed"}).contains("bound"));
}

TEST_F(Simulate, WritesARowForEachTurn) {
  ASSERT_EQ(kvtier({"simulate", "run.json", "--requests", "r.csv", "--json", "out.json"}).code, 0);
  const std::string rows = read("r.csv");
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n') - 1,
            read_json("out.json")["workload"]["turns"].get<int>());
}

TEST_F(Simulate, WritesDecisionsAsJsonLines) {
  // 16 GiB of DRAM hold a handful of sessions, so entries have to leave.
  ASSERT_EQ(kvtier({"simulate", "run.json", "--decisions", "d.jsonl", "--set",
                    "/hardware/dram/capacity=16GiB"})
                .code,
            0);
  std::istringstream lines(read("d.jsonl"));
  std::string line;
  int demotions = 0;
  while (std::getline(lines, line)) {
    const json decision = json::parse(line);
    EXPECT_TRUE(decision.contains("next_use_seconds")) << line;
    demotions += decision["decision"] == "demote" ? 1 : 0;
  }
  EXPECT_GT(demotions, 0);
}

class Compare : public ProgramTest {
 protected:
  Compare() { write_run(); }
};

TEST_F(Compare, ShowsBeladyAndTheUpperBound) {
  const Outcome outcome =
      kvtier({"compare", "run.json", "--systems", "recompute,attentionstore_fifo", "--bound",
              "--set", "/hardware/dram/capacity=16GiB", "--set", "/hardware/ssd/capacity=20GiB",
              "--json", "c.json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* row :
       {"  Belady, greedy %", "  upper bound of all policies %", "  share of it reached %"}) {
    EXPECT_NE(outcome.out.find(row), std::string::npos) << outcome.out;
  }
  const json systems = read_json("c.json")["systems"];
  EXPECT_EQ(systems["recompute"]["results"][0]["bound"]["hit_blocks"], 0);
  const json bound = systems["attentionstore_fifo"]["results"][0]["bound"];
  const auto total = [&](const char* of) { return bound[of]["all_turns"]["total"].get<double>(); };
  EXPECT_GT(total("untimed_hit_rate"), 0);
  EXPECT_LT(total("untimed_hit_rate"), total("hit_rate"));
  EXPECT_DOUBLE_EQ(bound["share_reached"]["all_turns"],
                   total("untimed_hit_rate") / total("hit_rate"));
  EXPECT_EQ(bound["name"], "Belady, greedy");
  const double most = bound["upper_bound"]["hit_rate"]["all_turns"];
  EXPECT_GE(most, total("hit_rate"));
  EXPECT_DOUBLE_EQ(bound["upper_bound"]["share_reached"]["all_turns"],
                   total("untimed_hit_rate") / most);
}

TEST_F(Compare, PrintsAColumnForEachSystem) {
  const Outcome outcome = kvtier({"compare", "run.json", "--systems", "recompute,attentionstore"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out.find("llama2-13b on 2 x A100-80G SXM, 128GiB DRAM, 10TiB SSD\n"), 0U);
  EXPECT_TRUE(contains(outcome.out, "recompute"));
  EXPECT_TRUE(contains(outcome.out, "attentionstore"));
  for (const char* row :
       {"hit rate, all turns %", "hit rate, resumed turns %", "hit rate, history tokens %",
        "of which in DRAM %", "TTFT mean s", "TTFT without queueing, mean ms",
        "prompt tokens served/s", "  of which computed/s", "GPU seconds per request",
        "$ per million output tokens", "slots in use %", "HBM for KV in use %", "GPUs busy %",
        "bottleneck", "verdict"}) {
    EXPECT_TRUE(contains(outcome.out, row)) << row;
  }
}

TEST_F(Compare, WritesTheResultsThatSimulateGives) {
  ASSERT_EQ(kvtier({"compare", "run.json", "--systems", "recompute,attentionstore",
                    "--replications", "2", "--json", "c.json"})
                .code,
            0);
  ASSERT_EQ(kvtier({"simulate", "run.json", "--set", "/system=recompute", "--seed", "2", "--json",
                    "s.json"})
                .code,
            0);
  const json comparison = read_json("c.json");
  EXPECT_EQ(comparison["format"], "kvtier.compare/1");
  EXPECT_EQ(comparison["systems"].size(), 2U);
  EXPECT_EQ(comparison["systems"]["recompute"]["results"][1], read_json("s.json"));
}

TEST_F(Compare, SummarizesSeedsByMeanAndSpread) {
  ASSERT_EQ(kvtier({"compare", "run.json", "--systems", "attentionstore", "--replications", "3",
                    "--json", "c.json"})
                .code,
            0);
  const json column = read_json("c.json")["systems"]["attentionstore"];
  const json::json_pointer at("/metrics/gpu_seconds_per_request/total");
  double sum = 0;
  double least = 1e300;
  double most = 0;
  for (const json& result : column["results"]) {
    const auto value = result[at].get<double>();
    sum += value;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  const json summary = column["summary"]["/metrics/gpu_seconds_per_request/total"];
  EXPECT_NEAR(summary["mean"].get<double>(), sum / 3, 1e-9 * sum);
  EXPECT_NEAR(summary["spread"].get<double>(), most - least, 1e-9 * sum);
}

TEST_F(Compare, PrintsOnlyJsonWhenItGoesToStandardOutput) {
  const Outcome outcome = kvtier({"compare", "run.json", "--systems", "recompute", "--json", "-"});
  EXPECT_EQ(json::parse(outcome.out)["format"], "kvtier.compare/1");
}

TEST_F(Compare, SaysWhenTheLoadExceedsCapacity) {
  const Outcome outcome =
      kvtier({"compare", "run.json", "--systems", "recompute", "--set", "/workload/sessions=1000",
              "--set", "/workload/arrival_rate=5/s"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(contains(outcome.out, "load exceeds capacity")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "recompute *\n")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "Highest stable rate: recompute ")) << outcome.out;
}

class List : public ProgramTest {};

TEST_F(List, ShowsEveryPreset) {
  for (const char* kind : {"systems", "models", "hardware"}) {
    const Outcome outcome = kvtier({"list", kind});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::size_t count = 0;
    for (const auto& file : fs::directory_iterator(configs() / kind)) {
      if (file.path().extension() == ".json") {
        ++count;
        EXPECT_TRUE(contains("\n" + outcome.out, "\n" + file.path().stem().string() + " "))
            << file.path();
      }
    }
    EXPECT_GT(count, 0U);
    EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'),
              static_cast<std::ptrdiff_t>(count));
  }
}

class Presets : public ProgramTest {};

TEST_F(Presets, ForVllmRunInTime) {
  for (const char* system :
       {"vllm_0_2", "vllm_no_cache", "vllm", "vllm_cpu_offload", "vllm_tiering", "vllm_lmcache",
        "sglang", "sglang_hicache", "tensorrt_llm", "dynamo_kvbm", "flexkv", "mooncake_store"}) {
    write_run(
        {{"/system", system}, {"/serving/token_budget", "8192tokens"}, {"/serving/slots", 1024}});
    const Outcome outcome = kvtier({"simulate", "run.json", "--json", "out.json"});
    ASSERT_EQ(outcome.code, 0) << system << ": " << outcome.err;
    const nlohmann::json metrics = read_json("out.json")["metrics"];
    EXPECT_GT(metrics["ttft_seconds"]["mean"], 0) << system;
    if (std::string(system) == "vllm_no_cache") {
      EXPECT_EQ(metrics["hit_rate"]["prompt_tokens"]["total"], 0);
      EXPECT_EQ(metrics["tiers"]["hbm"]["insertions"], 0);
    } else if (std::string(system) != "vllm_0_2") {
      EXPECT_GT(metrics["hit_rate"]["prompt_tokens"]["total"], 0.3) << system << metrics;
    }
  }
}

TEST_F(List, ShowsPoliciesWithTheirKnowledgeAndParameters) {
  const Outcome outcome = kvtier({"list", "policies"});
  EXPECT_EQ(outcome.code, 0);
  for (const char* part : {"eviction (/system/tiers/TIER/eviction)", "  lru ", "  fifo ",
                           "  scheduler_aware ", "prefetch (/system/prefetch)", "  look_ahead ",
                           "order (/system/order)", "  fcfs ", "knowledge look_ahead", "window",
                           "routing (/cluster/router)", "  dynamo_kv ", "overlap_score_credit"}) {
    EXPECT_TRUE(contains(outcome.out, part)) << part;
  }
}

class Trace : public ProgramTest {
 protected:
  Trace() { write_run(); }
};

TEST_F(Trace, GeneratedReplaysToTheSameMetrics) {
  ASSERT_EQ(kvtier({"trace", "generate", "run.json", "--out", "t.jsonl.zst"}).code, 0);
  const Outcome stats = kvtier({"trace", "stats", "t.jsonl.zst", "--json", "stats.json"});
  EXPECT_EQ(stats.code, 0) << stats.err;
  EXPECT_EQ(stats.out.find("sessions 40, turns "), 0U) << stats.out;
  ASSERT_EQ(kvtier({"simulate", "run.json", "--json", "generated.json"}).code, 0);
  write_run({{"/workload",
              {{"trace", "t.jsonl.zst"},
               {"arrivals", "trace"},
               {"think_time", {{"model", "trace"}}},
               {"warmup_turns", 20}}},
             {"/serving", {{"long_turn", "clamp"}}}});
  ASSERT_EQ(kvtier({"simulate", "run.json", "--json", "replayed.json"}).code, 0);
  const json generated = read_json("generated.json");
  const json replayed = read_json("replayed.json");
  EXPECT_EQ(replayed["metrics"], generated["metrics"]);
  EXPECT_EQ(replayed["workload"], generated["workload"]);
  EXPECT_EQ(read_json("stats.json")["turns"], generated["workload"]["turns"]);
}

TEST_F(Trace, SharedPromptsAreCountedAndReplayToTheSameMetrics) {
  write_run({{"/workload/generator", "shared_prompts"}, {"/workload/shared_prompts/prompts", 1}});
  const Outcome generated = kvtier({"trace", "generate", "run.json", "--out", "t.jsonl"});
  ASSERT_EQ(generated.code, 0) << generated.err;
  EXPECT_EQ(generated.out.find("synthetic workload\nsessions 40, turns "), 0U) << generated.out;
  EXPECT_NE(read("t.jsonl").find("\"source\":\"synthetic generator\""), std::string::npos);
  const Outcome stats = kvtier({"trace", "stats", "t.jsonl", "--json", "stats.json"});
  EXPECT_NE(stats.out.find("shared prompts                 1, of 40 sessions\n"), std::string::npos)
      << stats.out;
  EXPECT_NE(stats.out.find("\nshared prompt tokens "), std::string::npos) << stats.out;
  EXPECT_EQ(read_json("stats.json")["shared_prompts"]["distinct"], 1);

  const Outcome table = kvtier({"simulate", "run.json", "--json", "generated.json"});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("\ngenerator shared_prompts (synthetic): 40 sessions, "),
            std::string::npos)
      << table.out;
  write_run({{"/workload",
              {{"trace", "t.jsonl"},
               {"arrivals", "trace"},
               {"think_time", {{"model", "trace"}}},
               {"warmup_turns", 20}}},
             {"/serving", {{"long_turn", "clamp"}}}});
  ASSERT_EQ(kvtier({"simulate", "run.json", "--json", "replayed.json"}).code, 0);
  EXPECT_EQ(read_json("replayed.json")["metrics"], read_json("generated.json")["metrics"]);
}

TEST_F(Trace, CountsBlocksOfAConfigOrOnlyOfATrace) {
  const Outcome outcome = kvtier({"trace", "mrc", "run.json", "--block", "16", "--capacities",
                                  "64GiB,1Mitokens,100blocks", "--bound", "--json", "curve.json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("one tier of blocks of 16 tokens, lru, "), 0U) << outcome.out;
  const json curve = read_json("curve.json");
  EXPECT_EQ(curve["format"], "kvtier.block_curve/1");
  ASSERT_EQ(curve["rows"].size(), 3U);
  EXPECT_EQ(curve["rows"][0]["capacity_blocks"], 100);
  for (const json& row : curve["rows"]) {
    EXPECT_EQ(row["capacity_tokens"], 16 * row["capacity_blocks"].get<std::int64_t>());
    EXPECT_GT(row["capacity_bytes"], 0);
    EXPECT_LE(row["hit_blocks"], row["belady"]["hit_blocks"]);
    EXPECT_LE(row["belady"]["hit_blocks"], curve["ideal"]["hit_blocks"]);
  }

  write("log.jsonl",
        R"({"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]})"
        "\n"
        R"({"timestamp": 5, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]})"
        "\n");
  const auto hits = [&](const std::vector<std::string>& options) {
    std::vector<std::string> command{"trace", "mrc", "log.jsonl", "--json", "-"};
    command.insert(command.end(), options.begin(), options.end());
    const Outcome of_trace = kvtier(command);
    EXPECT_EQ(of_trace.code, 0) << of_trace.err;
    return json::parse(of_trace.out)["rows"].back()["hit_tokens"].get<int>();
  };
  EXPECT_EQ(hits({}), 600);  // the partial block has a name, too
  EXPECT_EQ(hits({"--whole-blocks"}), 512);
  EXPECT_EQ(hits({"--block", "16"}), 592);
  EXPECT_EQ(hits({"--policy", "fifo", "--capacities", "1blocks"}), 512);  // the tail left
  const Outcome stats = kvtier({"trace", "stats", "log.jsonl"});
  ASSERT_EQ(stats.code, 0) << stats.err;
  EXPECT_NE(stats.out.find("4, 2 distinct, 100.0 % of them in several requests"), std::string::npos)
      << stats.out;
}

TEST_F(Trace, GivesTheMissRatiosOfLruAtAllCapacities) {
  const Outcome outcome = kvtier({"trace", "mrc", "run.json", "--json", "curve.json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("one LRU tier, 40 of 40 sessions\n"), 0U) << outcome.out;
  EXPECT_NE(outcome.out.find("\n without limit "), std::string::npos) << outcome.out;
  const json curve = read_json("curve.json");
  EXPECT_EQ(curve["format"], "kvtier.miss_ratio_curve/1");
  EXPECT_GT(curve["points"].size(), 3U);

  const Outcome some = kvtier({"trace", "mrc", "run.json", "--capacities", "16GiB,8GiB",
                               "--sampling-rate", "0.5", "--json", "-"});
  ASSERT_EQ(some.code, 0) << some.err;
  const json sampled = json::parse(some.out);
  ASSERT_EQ(sampled["points"].size(), 2U);
  EXPECT_EQ(sampled["points"][0]["capacity_bytes"], std::int64_t{8} << 30);
  EXPECT_LT(sampled["sampling"]["sessions"].get<int>(), 40);
}

TEST_F(Trace, ImportsShareGptTexts) {
  // chars:4 counts ceil(11 / 4) = 3, ceil(7 / 4) = 2, ceil(4 / 4) = 1 and ceil(5 / 4) = 2.
  write("texts.json", R"([
    {"id": "a", "conversations": [
      {"from": "human", "value": "hello there"}, {"from": "gpt", "value": "General"},
      {"from": "human", "value": "more"}, {"from": "gpt", "value": "never"}]},
    {"id": "empty", "conversations": []}
  ])");
  const Outcome outcome = kvtier({"trace", "import", "texts.json", "--tokenizer", "chars:4",
                                  "--out", "t.jsonl", "--json", "stats.json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(read("t.jsonl"),
            "{\"format\":\"kvtier.trace/1\",\"arrivals\":false,\"think_times\":false,"
            "\"source\":\"texts.json\"}\n"
            "{\"id\":0,\"turns\":[[3,2],[1,2]]}\n");
  const json stats = read_json("stats.json");
  EXPECT_EQ(stats["import"]["sessions_without_turns"], 1);
  EXPECT_EQ(stats["user_tokens_total"], 4);
}

TEST_F(Trace, ImportsATableOfTurns) {
  write("turns.csv", "conv,turn,user_tokens,assistant_tokens\nx,0,11,21\nx,1,12,22\ny,0,13,23\n");
  ASSERT_EQ(kvtier({"trace", "import", "turns.csv", "--tokens-per-message-overhead", "1", "--out",
                    "t.jsonl.gz"})
                .code,
            0);
  const Outcome stats = kvtier({"trace", "stats", "t.jsonl.gz", "--json", "-"});
  const json statistics = json::parse(stats.out);
  EXPECT_EQ(statistics["sessions"], 2);
  EXPECT_EQ(statistics["turns"], 3);
  EXPECT_EQ(statistics["user_tokens_total"], 11 + 12 + 13 - 3);
  EXPECT_EQ(statistics["assistant_tokens_total"], 21 + 22 + 23 - 3);
}

TEST_F(Trace, ImportsALogOfRequests) {
  write("log.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:50.5000000,11,21\n"
        "2023-11-16 18:15:46.5000000,12,22\n");
  const Outcome outcome =
      kvtier({"trace", "import", "log.csv", "--out", "t.jsonl", "--json", "stats.json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(read("t.jsonl"),
            "{\"format\":\"kvtier.trace/1\",\"arrivals\":true,\"think_times\":false,"
            "\"turn_arrivals\":true,\"source\":\"log.csv\"}\n"
            "{\"id\":0,\"arrival_ns\":0,\"turns\":[[12,22,0]]}\n"
            "{\"id\":1,\"arrival_ns\":4000000000,\"turns\":[[11,21,0]]}\n");
  EXPECT_EQ(read_json("stats.json")["import"]["reordered_rows"], 1);
  expect_bad_input({"trace", "import", "log.csv", "--format", "request_log", "--out", "u.jsonl"},
                   {"log.csv:1: missing columns arrival, input_tokens, output_tokens (found "
                    "TIMESTAMP, ContextTokens, GeneratedTokens)"});
}

// The trace of a logged workload replays it: generated again, it is the same file.
TEST_F(Trace, ReplaysALog) {
  write("log.csv",
        "arrival,session,input_tokens,output_tokens\n0,a,100,20\n3,b,50,30\n5,a,40,10\n");
  write_run(
      {{"/workload",
        {{"trace", "log.csv"}, {"arrivals", "trace"}, {"think_time", {{"model", "logged"}}}}}});
  ASSERT_EQ(kvtier({"trace", "import", "log.csv", "--out", "a.jsonl"}).code, 0);
  const Outcome again = kvtier({"trace", "generate", "run.json", "--out", "b.jsonl"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(read("a.jsonl"), read("b.jsonl"));
  const Outcome outcome = kvtier({"simulate", "run.json", "--requests", "requests.csv"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(Trace, NeedsNoMachineToGenerate) {
  write("workload.json",
        R"({"workload": {"generator": "sharegpt", "sessions": 3, "arrival_rate": "1/s"}})");
  EXPECT_EQ(kvtier({"trace", "generate", "workload.json", "--out", "t.jsonl"}).code, 0);
  EXPECT_EQ(files(), (Names{"run.json", "t.jsonl", "workload.json"}));
}

class Help : public ProgramTest {};

TEST_F(Help, ShowsTheVersion) {
  const Outcome outcome = kvtier({"--version"});
  EXPECT_EQ(outcome.code, 0);
  // Any commit: a build may have made the program anew, and not this test.
  EXPECT_TRUE(std::regex_match(
      outcome.out, std::regex(R"(\d+\.\d+\.\d+ \(commit ([0-9a-f]{40}(-dirty)?|unknown)\)\n)")))
      << outcome.out;
}

TEST_F(Help, DescribesEveryCommandAndOption) {
  const std::vector<std::pair<Names, Names>> commands{
      {{},
       {"simulate", "compare", "sweep", "plan", "breakeven", "reproduce", "list", "trace", "schema",
        "calibrate", "--config-dir", "--version"}},
      {{"simulate"},
       {"CONFIG", "--set", "--seed", "--json", "--requests", "--iterations", "--timeline",
        "--decisions", "--expect", "--update-expect", "--find-capacity", "--replications",
        "--tolerance", "--untimed", "--bound", "--print-config", "--reference"}},
      {{"compare"},
       {"CONFIG", "--systems", "--replications", "--bound", "--set", "--seed", "--json", "--expect",
        "--update-expect"}},
      {{"breakeven"}, {"CONFIG", "--set", "--model", "--hardware", "--json"}},
      {{"plan"}, {"PLAN", "--json", "--jobs", "--out", "--resume", "--expect", "--update-expect"}},
      {{"sweep"},
       {"SWEEP", "--out", "--jobs", "--shard", "--resume", "--expect", "--update-expect"}},
      {{"reproduce"},
       {"PAPER", "--figure", "--replications", "--sensitivity", "--json", "engines-cache"}},
      {{"reproduce", "engines-cache"}, {"--trace", "--oracles", "--jobs", "--json"}},
      {{"report"}, {"RESULT", "--out"}},
      {{"list"}, {"systems", "policies", "models", "hardware"}},
      {{"schema"},
       {"run", "model", "hardware", "system", "profile", "sweep", "plan", "--markdown"}},
      {{"calibrate"}, {"--from-table", "--columns", "--check",   "--no-measure", "--explain",
                       "--history",    "--prompt",  "--gpus",    "--roofline",   "--model",
                       "--hardware",   "--out",     "--compute", "--memory",     "--seed",
                       "--compact",    "--name",    "--engine",  "--note",       "--against"}},
      {{"trace"}, {"generate", "import", "stats", "mrc"}},
      {{"trace", "generate"}, {"CONFIG", "--out"}},
      {{"trace", "import"}, {"INPUT", "--out", "--format", "--tokenizer"}},
      {{"trace", "stats"}, {"INPUT", "--json"}},
      {{"trace", "mrc"}, {"CONFIG", "--sampling-rate", "--capacities", "--json"}},
      {{}, {"--config-dir", "--plugin"}},
      {{"new", "policy"}, {"NAME", "--kind", "--out", "--library"}},
      {{"check", "policy"}, {"NAME"}}};
  for (const auto& [command, parts] : commands) {
    Names arguments = command;
    arguments.emplace_back("--help");
    const Outcome outcome = kvtier(arguments);
    EXPECT_EQ(outcome.code, 0);
    EXPECT_EQ(outcome.err, "");
    for (const std::string& part : parts) {
      EXPECT_TRUE(contains(outcome.out, part)) << part << " in\n" << outcome.out;
    }
  }
}

}  // namespace
}  // namespace kvtier::test
