/// Every message for bad input: exit code 2, the exact text, nothing on standard output.

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;

const std::string kSystems =
    "attentionstore, attentionstore_fifo, attentionstore_lru, car, dynamo_kvbm, flexkv, hbm_dram, "
    "hbm_only, mooncake_store, overflow, pensieve, pensieve_gpu, recompute, sglang, "
    "sglang_hicache, tensorrt_llm, tensorrt_llm_2025, vllm, vllm_0_2, vllm_2025, vllm_cpu_offload, "
    "vllm_lmcache, vllm_no_cache, vllm_tiering";

class BadConfig : public ProgramTest {};

/// Values are read recursively, and the stack is finite.
TEST_F(BadConfig, RefusesJsonWithTooManyLevelsInEveryFile) {
  constexpr std::size_t kLevels = 80'000;
  const std::string deep = std::string(kLevels, '[') + std::string(kLevels, ']');
  const std::string problem = ": expected at most 200 levels of nested objects and lists";
  write("deep.json", deep);
  write("deep.jsonl", "{\"point\": " + deep + "}\n");
  write("profile.json", R"({"format": "kvtier.profile/3", "x": )" + deep + "}");
  write_run();
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"simulate", "deep.json"},
                                             {"simulate", "run.json", "--expect", "deep.json"},
                                             {"sweep", "deep.json", "--out", "out"},
                                             {"plan", "deep.json"},
                                             {"report", "deep.json", "--out", "page.html"}}) {
    expect_bad_input(arguments, {"deep.json" + problem});
  }
  expect_bad_input({"report", "deep.jsonl", "--out", "page.html"}, {"deep.jsonl" + problem});
  const std::string shorter = std::string(kLevels / 2, '[') + std::string(kLevels / 2, ']');
  expect_bad_input({"simulate", "run.json", "--set", "/workload=" + shorter},
                   {"--set /workload" + problem});
  std::string pointer;
  for (std::size_t i = 0; i < kLevels / 2; ++i) {
    pointer += "/a";
  }
  expect_bad_input({"simulate", "run.json", "--set", pointer + "=1"},
                   {"--set: expected a JSON pointer of at most 100 keys, got 40000"});
  write("sessions.jsonl", "{\"format\": " + deep + "}\n");
  write_run({{"/workload", {{"trace", "sessions.jsonl"}, {"arrival_rate", "1/s"}}}});
  const Outcome outcome = kvtier({"simulate", "run.json"});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
}

TEST_F(BadConfig, RefusesATraceInPlaceOfAConfig) {
  write("log.jsonl", "{}\n{}\n");
  expect_bad_input({"simulate", "log.jsonl"},
                   {"log.jsonl: expected a config; a trace is named by the config's "
                    "/workload/trace"});
}

TEST_F(BadConfig, SuggestsTheKeyThatWasMeant) {
  write_run({{"/hardware/dram/capcity", "64GiB"}});
  expect_bad_input({"simulate", "run.json"},
                   {"run.json: /hardware/dram/capcity: unknown key (did you mean \"capacity\"?)"});
}

TEST_F(BadConfig, NamesAnUnknownKeyThatResemblesNone) {
  write_run({{"/workload/colour", "blue"}});
  expect_bad_input({"simulate", "run.json"}, {"run.json: /workload/colour: unknown key"});
}

TEST_F(BadConfig, RefusesAWrongUnit) {
  write_run({{"/hardware/dram/capacity", "128 foo"}});
  expect_bad_input({"simulate", "run.json"},
                   {"run.json: /hardware/dram/capacity: expected a size > 0 such as \"128GiB\", "
                    "got \"128 foo\""});
}

TEST_F(BadConfig, RefusesAUnitOfAnotherQuantity) {
  write_run({{"/workload/arrival_rate", "1s"}});
  expect_bad_input(
      {"simulate", "run.json"},
      {"run.json: /workload/arrival_rate: expected a rate > 0 such as \"1/s\", got \"1s\""});
}

TEST_F(BadConfig, RefusesANumberWithoutItsUnit) {
  write_run({{"/hardware/dram/capacity", 128}});
  expect_bad_input(
      {"simulate", "run.json"},
      {"run.json: /hardware/dram/capacity: expected a size > 0 such as \"128GiB\", got 128"});
}

TEST_F(BadConfig, RefusesANegativeCapacity) {
  write_run({{"/hardware/ssd/capacity", "-1TiB"}});
  expect_bad_input(
      {"simulate", "run.json"},
      {"run.json: /hardware/ssd/capacity: expected a size > 0 such as \"128GiB\", got \"-1TiB\""});
}

TEST_F(BadConfig, RefusesACapacityOfZero) {
  write_run({{"/hardware/dram/capacity", "0GiB"}});
  expect_bad_input(
      {"simulate", "run.json"},
      {"run.json: /hardware/dram/capacity: expected a size > 0 such as \"128GiB\", got \"0GiB\""});
}

TEST_F(BadConfig, RefusesAFractionWhereAWholeNumberBelongs) {
  write_run({{"/serving/slots", 3.7}});
  expect_bad_input({"simulate", "run.json"},
                   {"run.json: /serving/slots: expected a whole number >= 1 and <= 4096, got 3.7"});
}

// 13.0 billion parameters of 2 bytes are 24.2 GiB; two GPUs of 8 GiB hold 16.
TEST_F(BadConfig, RefusesAModelThatDoesNotFitInTheHbm) {
  write_run({{"/hardware/hbm/capacity", "8GiB"}});
  expect_bad_input({"simulate", "run.json"},
                   {"run.json: /hardware/hbm/capacity: model llama2-13b needs 24.2GiB for its "
                    "weights and more for KV, but 2 x 8.0GiB of HBM hold 16.0GiB"});
}

// KV of one window: 4,096 tokens x 819,200 B = 3.125 GiB. Two GPUs of 16 GiB hold 32; the weights
// take 24.2, the write buffer 4, the read buffer 38 layers of 40, 2.97.
TEST_F(BadConfig, RefusesHbmThatHoldsTheWeightsButNotOneContextWindow) {
  write_run({{"/hardware/hbm/capacity", "16GiB"}});
  expect_bad_input({"simulate", "run.json"},
                   {"run.json: /hardware/hbm/capacity: the weights and the read and write buffers "
                    "leave 0.79GiB for KV, but one context window of llama2-13b takes 3.12GiB"});
}

TEST_F(BadConfig, CutsAHugeValueOrKey) {
  const std::string huge(10'000'000, 'x');
  const std::string shown = "\"" + huge.substr(0, 60) + "...\"";
  write_run({{"/workload/generator", huge}});
  EXPECT_LT(kvtier({"simulate", "run.json"}).err.size(), 1000U);
  write_run({{"/model", huge}});
  const Outcome model = kvtier({"simulate", "run.json"});
  EXPECT_EQ(model.code, 2);
  EXPECT_NE(model.err.find(" or the path of a file, got " + shown + "\n"), std::string::npos);
  EXPECT_LT(model.err.size(), 8000U);
  write_run({{"/system", {{"preset", "attentionstore"}, {"order", huge}}}});
  const Outcome policy = kvtier({"simulate", "run.json"});
  EXPECT_EQ(policy.code, 2);
  EXPECT_NE(policy.err.find("got " + shown + "\n"), std::string::npos) << policy.err.substr(0, 999);
  write_run({{"/" + huge, 1}});
  expect_bad_input({"simulate", "run.json"},
                   {"run.json: /" + huge.substr(0, 511) + "...: unknown key"});
}

// A file that cannot be looked up is not a missing one: a cycle of links has no errno of a missing
// file, and no permission of root reads it.
TEST_F(BadConfig, TellsAPresetThatCannotBeLookedUpFromAnUnknownOne) {
  fs::create_directory(path("configs"));
  for (const auto& entry : fs::directory_iterator(configs())) {
    const fs::path copy = path("configs") / entry.path().filename();
    if (entry.path().filename() == "hardware") {
      fs::copy(entry.path(), copy);
    } else {
      fs::create_symlink(entry.path(), copy);
    }
  }
  fs::remove(path("configs/hardware/a100-80g.json"));
  fs::create_symlink("a100-80g.json", path("configs/hardware/a100-80g.json"));
  fs::create_symlink("mine.json", path("mine.json"));
  write_run();
  const auto expect_failure = [&](const std::vector<std::string>& arguments,
                                  const std::string& file) {
    const Outcome outcome = kvtier(arguments);
    EXPECT_EQ(outcome.code, 3) << outcome.err;
    EXPECT_EQ(outcome.err,
              "kvtier: " + file + ": cannot open: Too many levels of symbolic links\n");
    EXPECT_EQ(outcome.out, "");
  };
  const std::string preset = "configs/hardware/a100-80g.json";
  expect_failure({"simulate", "run.json", "--config-dir", "configs"}, preset);
  expect_failure({"simulate", "run.json", "--set", "/model=./mine.json"}, "./mine.json");
  expect_failure({"simulate", "run.json", "--set", "/hardware/profile=./mine.json"}, "./mine.json");
  expect_failure(
      {"calibrate", "--from-table", "t.csv", "--columns", "mine.json", "--out", "p.json"},
      "mine.json");
  // In a plan it would make the other hardware the cheapest.
  write("plan.json", R"({"config": "run.json", "slo": ["ttft_seconds.mean<=1000"],
      "axes": [{"name": "GPU", "key": "/hardware/preset", "values": ["a100-80g", "h100-80g"]}]})");
  expect_failure({"plan", "plan.json", "--config-dir", "configs"}, preset);
  expect_failure({"simulate", "run.json", "--config-dir", "mine.json"}, "mine.json/models");
}

TEST_F(BadConfig, SuggestsThePresetThatWasMeant) {
  write_run({{"/system", "attentionstor"}});
  expect_bad_input({"simulate", "run.json"},
                   {"run.json: /system: expected one of " + kSystems +
                    ", or the path of a file, got \"attentionstor\" (did you mean "
                    "\"attentionstore\"?)"});
}

TEST_F(BadConfig, RefusesAPeakThatNoGpuHas) {
  write_run({{"/hardware/gpu/peak", "1979PFLOP/s"}});
  expect_bad_input({"simulate", "run.json"},
                   {"run.json: /hardware/gpu/peak: expected a compute rate >= 100MFLOP/s and <= "
                    "200PFLOP/s such as \"312TFLOP/s\", got \"1979PFLOP/s\""});
}

TEST_F(BadConfig, RefusesGpusWithALinkEachAndNoBandwidthOfHostMemory) {
  write_run({{"/hardware/links/pcie/of", "gpu"}});
  expect_bad_input({"simulate", "run.json"},
                   {(configs() / "hardware/a100-80g.json").string() +
                    ": /hardware/dram/bandwidth: 2 GPUs with a link to the host each need "
                    "the bandwidth of the host's memory, which they share, such as \"400GB/s\"; "
                    "or set /hardware/links/pcie/of to \"server\" if its rates are those of all "
                    "GPUs together"});
}

TEST_F(BadConfig, EndsARunBeyondTheRangeOfTheClock) {
  // Within every bound, and a millionth of what the A100 does.
  write_run({{"/hardware/gpu/peak", "100MFLOP/s"}, {"/hardware/efficiency/compute", 0.001}});
  expect_bad_input({"simulate", "run.json"},
                   {"/hardware: a decode iteration takes more than a day: the rates of /hardware "
                    "are too low for the model"});
}

TEST_F(BadConfig, SuggestsTheHardwareThatWasMeant) {
  write_run({{"/hardware", "a100-80gb"}});
  expect_bad_input(
      {"simulate", "run.json"},
      {"run.json: /hardware: expected one of a100-40g, a100-80g, a100-80g-8x, b200-8x, b300-8x, "
       "gb200-nvl4, gb200-nvl72, gb200-nvl72-tray, gb300-nvl72-tray, h100-80g, h100-8x, h20-8x, "
       "h200, h200-8x, h800-8x, l40s, l40s-8x, mi300x-8x, mi325x-8x, mi355x-8x, rtx4090-8x, "
       "rtxpro6000-8x, or the path of a file, got "
       "\"a100-80gb\" (did you mean \"a100-80g\"?)"});
}

TEST_F(BadConfig, SuggestsThePolicyThatWasMeant) {
  write_run();
  expect_bad_input({"simulate", "run.json", "--set", "/system/tiers/dram/eviction=lruu"},
                   {"--set: /system/tiers/dram/eviction: expected one of fifo, lru, "
                    "scheduler_aware, tokens_times_idle, window_score, lfu, mru, slru, arc, "
                    "s3fifo, sieve, gdsf, "
                    "seconds_saved, session_fifo, belady, got \"lruu\" (did you mean \"lru\"?)"});
}

TEST_F(BadConfig, NamesTheSuccessorOfAKeyThatIsGone) {
  const std::string gone =
      "/replicas: this key is gone: write \"cluster\": {\"instances\": N}, whose router is "
      "/cluster/router";
  write_run({{"/replicas", {{"count", 4}}}});
  expect_bad_input({"simulate", "run.json"}, {"run.json: " + gone});
  write_run();
  expect_bad_input({"simulate", "run.json", "--set", "/replicas/count=4"}, {"--set: " + gone});
}

TEST_F(BadConfig, RefusesToReplayInstancesThatKeepSessions) {
  write_run({{"/cluster", {{"instances", 4}}}});
  expect_bad_input({"simulate", "run.json", "--untimed"},
                   {"/cluster/instances: expected 1, an untimed replay of sessions is of one "
                    "instance, got 4"});
}

TEST_F(BadConfig, NamesEveryProblemOfACluster) {
  write_run({{"/cluster", {{"instances", 2}, {"router", "rondom"}}}});
  expect_bad_input({"simulate", "run.json", "--set", "/system=recompute"},
                   {"run.json: /cluster/router: expected one of random, round_robin, session, "
                    "least_requests, least_tokens, power_of_two, longest_prefix, prefix_load, "
                    "dynamo_kv, llm_d, sglang_cache_aware, vllm_kvaware, vllm_prefix_aware, got "
                    "\"rondom\" (did you mean \"random\"?)"});
  const nlohmann::json lost = {{{"instance", 2}, {"at", "10s"}, {"back", "5s"}},
                               {{"instance", 0}, {"at", "1s"}},
                               {{"instance", 0}, {"at", "2s"}}};
  write_run({{"/cluster", {{"instances", 2}, {"lost", lost}}}});
  expect_bad_input(
      {"simulate", "run.json", "--set", "/system=recompute"},
      {"run.json: /cluster/lost/0/instance: expected less than the 2 instances, got 2",
       "run.json: /cluster/lost/0/back: expected a time after 10s, got 5s",
       "run.json: /cluster/lost/2: instance 0 is lost already at that time (/cluster/lost/1)"});
  write_run({{"/cluster", {{"instances", 2}, {"lost", {{{"instance", 0}, {"at", "-1s"}}}}}}});
  expect_bad_input({"simulate", "run.json", "--set", "/system=recompute"},
                   {"run.json: /cluster/lost/0/at: expected a duration >= 0 such as \"360ms\", got "
                    "\"-1s\""});
  const nlohmann::json apart = {{"prefill", 2}};
  write_run({{"/cluster", {{"instances", 2}, {"disaggregation", apart}}}});
  expect_bad_input({"simulate", "run.json", "--set", "/system=vllm"},
                   {"run.json: /cluster/disaggregation/prefill: expected fewer than the 2 "
                    "instances, the others decode, got 2",
                    "run.json: /cluster/network: expected a network, over which the KV of prompts "
                    "goes, got \"none\""});
  write_run({{"/cluster", {{"instances", 2}, {"router", "dynamo_kv"}}}});
  expect_bad_input({"simulate", "run.json", "--set", "/system=vllm_lmcache"},
                   {"run.json: /cluster/router: router dynamo_kv is told which blocks instances "
                    "store: expected tiers with one block_size, got hbm 16tokens, dram 256tokens, "
                    "ssd 256tokens"});
  write_run({{"/cluster", {{"instances", 2}, {"event_delay", "1s"}}}});
  expect_bad_input({"simulate", "run.json", "--set", "/system=recompute"},
                   {"run.json: /cluster/event_delay: expected 0s: router session is not told which "
                    "blocks instances store"});
  write_run(
      {{"/cluster",
        {{"instances", 2}, {"network", {{"rate", "25GB/s"}}}, {"shared", {{"tier", "dram"}}}}}});
  expect_bad_input({"simulate", "run.json", "--set", "/system=vllm_lmcache", "--set",
                    "/system/tiers/ssd=none", "--set", "/system/load/wait=request", "--set",
                    "/system/tiers/dram/eviction=scheduler_aware"},
                   {"--set: /system/tiers/dram/eviction: expected a policy that does not look "
                    "ahead: each instance has a queue of its own"});
  write_run({{"/cluster", {{"instances", 2}, {"network", {{"rate", "25GB/s"}}}}}});
  expect_bad_input({"simulate", "run.json", "--set", "/system=vllm"},
                   {"run.json: /cluster/network: expected \"none\": nothing crosses it without "
                    "/cluster/shared or /cluster/disaggregation"});
  const nlohmann::json slow = {{{"instance", 3}, {"factor", 2}, {"from", "2s"}, {"until", "1s"}}};
  write_run({{"/cluster", {{"instances", 2}, {"slow", slow}}}});
  expect_bad_input({"simulate", "run.json", "--set", "/system=recompute"},
                   {"run.json: /cluster/slow/0/instance: expected less than the 2 instances, got 3",
                    "run.json: /cluster/slow/0/until: expected a time after 2s, got 1s"});
}

TEST_F(BadConfig, RefusesAParameterThatThePolicyDoesNotHave) {
  write_run(
      {{"/system",
        {{"preset", "attentionstore"}, {"prefetch", {{"policy", "look_ahead"}, {"windw", 4}}}}}});
  expect_bad_input(
      {"simulate", "run.json"},
      {"run.json: /system/prefetch/windw: policy look_ahead has no such parameter (did "
       "you mean \"window\"?)"});
}

TEST_F(BadConfig, RefusesPoliciesThatNeedMoreThanIsOffered) {
  write_run();
  const std::string preset = (configs() / "systems" / "attentionstore.json").string();
  const std::string tail = " needs look_ahead knowledge, but /serving/knowledge offers online";
  expect_bad_input({"simulate", "run.json", "--set", "/serving/knowledge=online"},
                   {preset + ": /system/prefetch: policy look_ahead" + tail,
                    preset + ": /system/tiers/dram/eviction: policy scheduler_aware" + tail,
                    preset + ": /system/tiers/ssd/eviction: policy scheduler_aware" + tail});
}

TEST_F(BadConfig, RefusesATierThatIsNotInstalled) {
  write_run({{"/hardware/ssd", "none"}});
  const std::string preset = (configs() / "systems" / "attentionstore.json").string();
  expect_bad_input({"simulate", "run.json"},
                   {preset + ": /system/tiers/ssd: the system uses a tier that is not installed "
                             "(/hardware/ssd is \"none\")"});
}

TEST_F(BadConfig, ReportsAllProblemsAtOnce) {
  write("run.json", R"({
    "model": "llama2-13b",
    "hardware": {"preset": "a100-80g", "gpuss": 3},
    "system": "attentionstor",
    "workload": {"genrator": "sharegpt", "arrival_rate": "1"},
    "sed": 3
  })");
  expect_bad_input(
      {"simulate", "run.json"},
      {"run.json: /system: expected one of " + kSystems +
           ", or the path of a file, got \"attentionstor\" (did you mean \"attentionstore\"?)",
       "run.json: /hardware/gpuss: unknown key (did you mean \"gpus\"?)",
       "run.json: /workload/arrival_rate: expected a rate > 0 such as \"1/s\", got \"1\"",
       "run.json: /workload/genrator: unknown key (did you mean \"generator\"?)",
       "run.json: /sed: unknown key (did you mean \"seed\"?)"});
}

TEST_F(BadConfig, NamesEverySectionThatIsMissing) {
  write("run.json", "{}");
  expect_bad_input({"simulate", "run.json"},
                   {"run.json: /model: missing key", "run.json: /hardware: missing key",
                    "run.json: /system: missing key", "run.json: /workload: missing key"});
}

TEST_F(BadConfig, RefusesADuplicateKey) {
  write("run.json", R"({"seed": 1, "workload": {"sessions": 3, "sessions": 4}})");
  expect_bad_input({"simulate", "run.json"}, {"run.json: /workload/sessions: duplicate key"});
}

TEST_F(BadConfig, PointsAtASyntaxError) {
  write("run.json", "{\"seed\": 1,\n \"model\": \"llama2-13b\",}");
  expect_bad_input({"simulate", "run.json"},
                   {"run.json:2:24: not valid JSON: expected a value, a key or a separator here"});
}

TEST_F(BadConfig, RefusesAnEmptyFile) {
  write("run.json", "");
  expect_bad_input({"simulate", "run.json"}, {"run.json:1:1: not valid JSON: the file is empty"});
}

TEST_F(BadConfig, RefusesAMissingFile) {
  expect_bad_input({"simulate", "nowhere.json"}, {"nowhere.json: no such file"});
}

TEST_F(BadConfig, RefusesAFolder) {
  expect_bad_input({"simulate", "."}, {".: expected a file, got a folder"});
}

TEST_F(BadConfig, RefusesAWarmUpThatIsNotShorterThanTheWorkload) {
  write_run({{"/workload/warmup_turns", 100000}});
  const Outcome outcome = kvtier({"simulate", "run.json", "--json", "out.json"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err.find("kvtier: /workload/warmup_turns: expected less than the workload's "),
            0U)
      << outcome.err;
  EXPECT_NE(outcome.err.find(" turns, got 100000\n"), std::string::npos) << outcome.err;
  EXPECT_EQ(files(), std::vector<std::string>{"run.json"});
}

TEST_F(BadConfig, RefusesAFolderWithoutPresets) {
  write_run();
  expect_bad_input({"--config-dir", "nowhere", "simulate", "run.json"},
                   {"--config-dir: expected a folder with models/ and systems/, got \"nowhere\""});
  expect_bad_input({"simulate", "run.json", "--config-dir", "nowhere"},
                   {"--config-dir: expected a folder with models/ and systems/, got \"nowhere\""});
}

class BadTrace : public ProgramTest {};

const std::string kHeader = "conv,turn,user_tokens,assistant_tokens\n";

TEST_F(BadTrace, RefusesATurnLongerThanTheContextWindow) {
  write_table_run("turns.csv", kHeader + "a,0,10,20\na,1,8000,4\n");
  expect_bad_input(
      {"simulate", "run.json", "--set", "/workload/input_tokens=new"},
      {"/workload: session 0 turn 1: expected at most 4096 tokens (the context window), got 8004",
       "/serving/long_turn: \"clamp\" would shorten such turns to the context window"});
}

TEST_F(BadTrace, MayBeToldToClampLongTurns) {
  write_table_run("turns.csv", kHeader + "a,0,10,20\na,1,8000,4\n");
  EXPECT_EQ(kvtier({"simulate", "run.json", "--set", "/serving/long_turn=clamp", "--set",
                    "/workload/input_tokens=new"})
                .code,
            0);
}

TEST_F(BadTrace, RefusesWholePromptsWhoseMeaningIsNotGiven) {
  write_table_run("turns.csv", kHeader + "a,0,10,20\na,1,35,4\na,2,50,4\n");
  expect_bad_input(
      {"simulate", "run.json"},
      {"turns.csv: the input tokens look like whole prompts: 2 of 2 later turns have more of them "
       "than the turn before and its response together; expected the meaning at "
       "/workload/input_tokens: \"total\" (whole prompts) or \"new\" (new tokens of the turn)"});
  for (const char* meaning : {"total", "new"}) {
    EXPECT_EQ(
        kvtier({"simulate", "run.json", "--set", fmt::format("/workload/input_tokens={}", meaning)})
            .code,
        0);
  }
}

TEST_F(BadTrace, RefusesAnEmptyFile) {
  write_table_run("turns.csv", "");
  expect_bad_input({"simulate", "run.json"}, {"turns.csv: the file is empty"});
}

TEST_F(BadTrace, RefusesATableWithoutRows) {
  write_table_run("turns.csv", kHeader);
  expect_bad_input({"simulate", "run.json"}, {"turns.csv: no rows after the header"});
}

TEST_F(BadTrace, RefusesATraceWithoutSessions) {
  write(
      "t.jsonl",
      "{\"format\":\"kvtier.trace/1\",\"arrivals\":false,\"think_times\":false,\"source\":\"\"}\n");
  expect_bad_input({"trace", "stats", "t.jsonl"}, {"t.jsonl: the trace has no sessions"});
}

TEST_F(BadTrace, RefusesAConfigInItsPlace) {
  write("run.json", "{\n  \"model\": \"llama2-13b\"\n}\n");
  expect_bad_input({"trace", "stats", "run.json"},
                   {"run.json: expected a trace, got one JSON object over several lines; kvtier "
                    "trace generate CONFIG --out TRACE writes the sessions of a config"});
}

TEST_F(BadTrace, RefusesTruncatedGzip) {
  write_run();
  ASSERT_EQ(kvtier({"trace", "generate", "run.json", "--out", "t.jsonl.gz"}).code, 0);
  const std::string whole = read("t.jsonl.gz");
  write("t.jsonl.gz", whole.substr(0, whole.size() / 2));
  const Outcome outcome = kvtier({"trace", "stats", "t.jsonl.gz"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err.find("kvtier: t.jsonl.gz:"), 0U) << outcome.err;
  EXPECT_NE(outcome.err.find(": the gzip data are truncated\n"), std::string::npos) << outcome.err;
}

TEST_F(BadTrace, RefusesATableWithoutAColumn) {
  write_table_run("turns.csv", "conv,turn,user_tokens\na,0,10\n");
  expect_bad_input(
      {"simulate", "run.json"},
      {"turns.csv:1: missing column assistant_tokens (found conv, turn, user_tokens)"});
}

TEST_F(BadTrace, RefusesANegativeCount) {
  write_table_run("turns.csv", kHeader + "a,0,-10,20\n");
  expect_bad_input(
      {"simulate", "run.json"},
      {"turns.csv:2: user_tokens: expected a whole number in 0 .. 2147483647, got \"-10\""});
}

TEST_F(BadTrace, RefusesToEndBeforeTheSessionsAskedFor) {
  write_table_run("turns.csv", kHeader + "a,0,10,20\n");
  expect_bad_input(
      {"simulate", "run.json", "--set", "/workload/sessions=2"},
      {"turns.csv: the trace ends after 1 sessions, 2 were asked for (\"sessions\": \"all\" takes "
       "all of them, \"replay\": \"bootstrap\" draws any number)"});
}

TEST_F(BadTrace, RefusesAMissingFile) {
  write_run({{"/workload", {{"trace", "nowhere.csv"}, {"arrival_rate", "1/s"}}}});
  expect_bad_input({"simulate", "run.json"}, {"nowhere.csv: no such file"});
}

TEST_F(BadTrace, RefusesAGeneratorBesideIt) {
  write_run({{"/workload/trace", "turns.csv"}});
  expect_bad_input({"simulate", "run.json"},
                   {"run.json: /workload/trace: a workload has a generator or a trace, not both"});
}

TEST_F(BadTrace, TextsNeedATokenizer) {
  write("texts.json", R"([{"id":"a","conversations":[{"from":"human","value":"x"}]}])");
  expect_bad_input(
      {"trace", "stats", "texts.json"},
      {"texts.json: a trace of texts needs a tokenizer (\"chars:4\" or a SentencePiece "
       "model)"});
}

TEST_F(BadTrace, RefusesATokenizerThatIsNoFile) {
  write("texts.json", R"([{"id":"a","conversations":[{"from":"human","value":"x"}]}])");
  expect_bad_input({"trace", "stats", "texts.json", "--tokenizer", "char:4"},
                   {"--tokenizer: expected chars:N or the path of a SentencePiece model, got "
                    "\"char:4\", which is no file"});
}

TEST_F(BadTrace, RefusesATokenizerForATraceWithoutTexts) {
  write("turns.csv", kHeader + "a,0,10,20\n");
  expect_bad_input({"trace", "import", "turns.csv", "--tokenizer", "chars:4", "--out", "t.jsonl"},
                   {"--tokenizer: turns.csv has no texts to tokenize"});
  EXPECT_EQ(files(), std::vector<std::string>{"turns.csv"});
}

TEST_F(BadTrace, RefusesAnUnknownFormat) {
  write("turns.csv", kHeader + "a,0,10,20\n");
  expect_bad_input({"trace", "stats", "turns.csv", "--format", "turns_tabel"},
                   {"--format: expected one of auto, kvtier, turns_table, sharegpt_json, "
                    "request_log, azure_llm, mooncake, qwen_bailian, agent_sessions, kv_events, "
                    "columns, got \"turns_tabel\" (did you mean \"turns_table\"?)"});
}

class BadCommandLine : public ProgramTest {};

TEST_F(BadCommandLine, SuggestsTheCommandThatWasMeant) {
  expect_bad_input(
      {"simulat", "run.json"},
      {"unknown command \"simulat\" (did you mean \"simulate\"?)", "see kvtier --help"});
}

TEST_F(BadCommandLine, ListsTheCommandsIfThereIsNone) {
  expect_bad_input(
      {}, {"expected a command: simulate, compare, sweep, plan, breakeven, reproduce, list, "
           "trace, schema, calibrate, validate, new, check, report",
           "see kvtier --help"});
  expect_bad_input({"trace"},
                   {"expected a command: generate, import, stats, mrc", "see kvtier trace --help"});
  expect_bad_input({"new"}, {"expected a command: policy", "see kvtier new --help"});
  expect_bad_input({"check"}, {"expected a command: policy", "see kvtier check --help"});
}

TEST_F(BadCommandLine, SuggestsTheOptionThatWasMeant) {
  expect_bad_input({"simulate", "run.json", "--print-confg"},
                   {"unknown option --print-confg (did you mean \"--print-config\"?)",
                    "see kvtier simulate --help"});
}

TEST_F(BadCommandLine, RefusesASecondConfig) {
  expect_bad_input({"simulate", "run.json", "other.json"},
                   {"unexpected argument \"other.json\"", "see kvtier simulate --help"});
}

TEST_F(BadCommandLine, AsksForTheConfig) {
  expect_bad_input({"simulate"}, {"CONFIG is required", "see kvtier simulate --help"});
}

TEST_F(BadCommandLine, RefusesANegativeSeed) {
  expect_bad_input({"simulate", "run.json", "--seed=-1"},
                   {"--seed: expected a whole number >= 0 and <= 9223372036854775807, got \"-1\"",
                    "see kvtier simulate --help"});
}

TEST_F(BadCommandLine, RefusesASeedThatDoesNotFit) {
  expect_bad_input({"simulate", "run.json", "--seed", "9223372036854775808"},
                   {"--seed: expected a whole number >= 0 and <= 9223372036854775807, got "
                    "\"9223372036854775808\"",
                    "see kvtier simulate --help"});
}

TEST_F(BadCommandLine, RefusesMalformedOverridesAllAtOnce) {
  write_run();
  expect_bad_input({"simulate", "run.json", "--set", "serving/slots=3", "--set", "/serving/slots",
                    "--set", "=3"},
                   {"--set: expected /json/pointer=VALUE, got \"serving/slots=3\"",
                    "--set: expected /json/pointer=VALUE, got \"/serving/slots\"",
                    "--set: expected /json/pointer=VALUE, got \"=3\""});
}

TEST_F(BadCommandLine, RefusesAnOverrideBelowANumber) {
  write_run();
  expect_bad_input({"simulate", "run.json", "--set", "/model/layers/0=3"},
                   {"--set: /model/layers/0: /model/layers holds 40, which has no keys"});
}

TEST_F(BadCommandLine, BlamesTheOverrideForAKeyThatItMade) {
  write_run();
  expect_bad_input({"simulate", "run.json", "--set", "/system/dram/eviction=lru"},
                   {"--set: /system/dram: unknown key"});
}

TEST_F(BadCommandLine, SuggestsWhatCanBeListed) {
  expect_bad_input(
      {"list", "system"},
      {"WHAT: expected one of systems, policies, models, hardware, prices, got \"system\" (did "
       "you mean \"systems\"?)",
       "see kvtier list --help"});
}

TEST_F(BadCommandLine, SuggestsTheSchemaThatWasMeant) {
  expect_bad_input({"schema", "modle"}, {"WHICH: expected one of run, model, hardware, system, "
                                         "profile, sweep, plan, got \"modle\" (did you "
                                         "mean \"model\"?)",
                                         "see kvtier schema --help"});
}

TEST_F(BadCommandLine, HasNoReferenceOfAProfilesKeys) {
  expect_bad_input({"schema", "profile", "--markdown"},
                   {"schema: expected one of run, model, hardware, system, got \"profile\""});
}

TEST_F(BadCommandLine, RefusesUnknownSystemsInAComparison) {
  write_run();
  expect_bad_input({"compare", "run.json", "--systems", "recompute,attentionstor,nothing"},
                   {"--systems: /system: expected one of " + kSystems +
                        ", or the path of a file, got \"attentionstor\" (did you mean "
                        "\"attentionstore\"?)",
                    "--systems: /system: expected one of " + kSystems +
                        ", or the path of a file, got \"nothing\""});
}

TEST_F(BadCommandLine, RefusesASystemTwiceOrWithoutName) {
  write_run();
  expect_bad_input({"compare", "run.json", "--systems", "recompute,overflow,recompute"},
                   {"--systems: recompute is given twice"});
}

TEST_F(BadCommandLine, RefusesAnOverrideOfTheComparedSystem) {
  write_run();
  expect_bad_input({"compare", "run.json", "--systems", "recompute", "--set", "/system=overflow"},
                   {"--set: /system: --systems says which systems are compared"});
}

TEST_F(BadCommandLine, ReportsAProblemOfAllComparedSystemsOnce) {
  write_run({{"/hardware/gpuss", 3}, {"/serving/slot", 3}});
  expect_bad_input({"compare", "run.json", "--systems", "recompute,overflow"},
                   {"run.json: /hardware/gpuss: unknown key (did you mean \"gpus\"?)",
                    "run.json: /serving/slot: unknown key (did you mean \"slots\"?)"});
}

TEST_F(BadCommandLine, RefusesNoReplications) {
  write_run();
  expect_bad_input({"compare", "run.json", "--systems", "recompute", "--replications", "0"},
                   {"--replications: expected a whole number >= 1 and <= 100000, got \"0\"",
                    "see kvtier compare --help"});
}

TEST_F(BadCommandLine, RefusesATimelineOfARunWithoutAClock) {
  write_run();
  expect_bad_input({"simulate", "run.json", "--untimed", "--timeline", "t.json"},
                   {"--timeline: an untimed replay has no clock"});
}

TEST_F(BadCommandLine, RefusesTheBoundOfARunWithAClock) {
  write_run();
  expect_bad_input({"simulate", "run.json", "--bound"},
                   {"--bound requires --untimed", "see kvtier simulate --help"});
}

TEST_F(BadCommandLine, RefusesCapacitiesThatAreNotSizes) {
  write_run();
  expect_bad_input({"trace", "mrc", "run.json", "--capacities", "16GiB,huge,0GiB"},
                   {"--capacities: expected a size such as \"128GiB\", got \"huge\"",
                    "--capacities: expected a size such as \"128GiB\", got \"0GiB\""});
}

TEST_F(BadCommandLine, RefusesMeaninglessCurvesOfBlocks) {
  write_run();
  expect_bad_input({"trace", "mrc", "run.json", "--policy", "fifo", "--bound", "--sampling-rate",
                    "0.5", "--capacities", "5Mitokens"},
                   {"--capacities: expected a size such as \"128GiB\", got \"5Mitokens\"",
                    "--policy: expected lru without --block: other policies are of blocks",
                    "--bound: expected --block beside it: the bound is of blocks",
                    "--sampling-rate: expected 1 with --policy fifo",
                    "--sampling-rate: expected 1 with --bound"});
  expect_bad_input({"trace", "mrc", "run.json", "--block", "16", "--policy", "lfu"},
                   {"--policy: lfu needs --capacities: only LRU has all of them in one pass"});
  expect_bad_input(
      {"trace", "mrc", "run.json", "--block", "16", "--policy", "belady", "--capacities",
       "1blocks"},
      {"--policy: expected an eviction policy that does not know the future (kvtier list "
       "policies), got \"belady\""});
}

TEST_F(BadTrace, BlocksNeedASystemOfBlocks) {
  write("log.jsonl",
        R"({"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]})"
        "\n");
  expect_bad_input({"trace", "mrc", "log.jsonl", "--capacities", "64GiB", "--seed", "1"},
                   {"--set and --seed need a config, and log.jsonl is a trace"});
  expect_bad_input(
      {"trace", "mrc", "log.jsonl", "--capacities", "64GiB"},
      {"--capacities: expected tokens or blocks (\"5Mitokens\", \"1000blocks\"), since a trace "
       "alone does not say how many bytes a token has, got \"64GiB\""});
  write_run({{"/workload", {{"trace", "log.jsonl"}, {"arrivals", "trace"}}}});
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{}, std::vector<std::string>{"--untimed"}}) {
    std::vector<std::string> command{"simulate", "run.json"};
    command.insert(command.end(), options.begin(), options.end());
    expect_bad_input(command, {"/workload/trace: its requests share blocks, which only a system of "
                               "blocks (/system/blocks) finds"});
  }
}

TEST_F(BadCommandLine, RefusesASamplingRateOfNothing) {
  write_run();
  expect_bad_input({"trace", "mrc", "run.json", "--sampling-rate", "0"},
                   {"--sampling-rate: expected a number >= 1e-06 and <= 1, got \"0\"",
                    "see kvtier trace mrc --help"});
}

TEST_F(BadConfig, RefusesAnOracleInARunWithAClock) {
  write_run();
  expect_bad_input({"simulate", "run.json", "--set", "/system/tiers/dram/eviction=belady"},
                   {"/system/tiers/dram/eviction: policy belady needs to know the future, which a "
                    "timed run does not: only an untimed replay has it"});
}

TEST_F(BadConfig, RefusesAnUnknownAdmissionPolicy) {
  write_run();
  expect_bad_input({"simulate", "run.json", "--set", "/system/tiers/dram/admission=second_hits"},
                   {"--set: /system/tiers/dram/admission: expected one of always, second_hit, "
                    "frequency_sketch, got \"second_hits\" (did you mean \"second_hit\"?)"});
}

class BadCapacity : public ProgramTest {};

TEST_F(BadCapacity, SuggestsTheMetricThatWasMeant) {
  write_run();
  expect_bad_input(
      {"simulate", "run.json", "--find-capacity",
       "ttft_second.p90<=2,/load/gpu_buzy_fraction<=1,tpot_seconds<=1,colour>=1", "--json",
       "out.json"},
      {"--find-capacity: the result has no number \"ttft_second.p90\" (did you mean "
       "\"ttft_seconds.p90\"?)",
       "--find-capacity: the result has no number \"/load/gpu_buzy_fraction\" (did you mean "
       "\"/load/gpu_busy_fraction\"?)",
       "--find-capacity: \"tpot_seconds\" is several numbers: expected one of tpot_seconds.mean, "
       "tpot_seconds.p50, tpot_seconds.p90, tpot_seconds.p95, tpot_seconds.p99",
       "--find-capacity: the result has no number \"colour\""});
  EXPECT_EQ(files(), std::vector<std::string>{"run.json"});
}

TEST_F(BadCapacity, RefusesAMalformedCondition) {
  write_run();
  expect_bad_input({"simulate", "run.json", "--find-capacity", "ttft_seconds.p90<2"},
                   {"--find-capacity: expected METRIC<=NUMBER or METRIC>=NUMBER, such as "
                    "ttft_seconds.p90<=2, got \"ttft_seconds.p90<2\""});
}

TEST_F(BadCapacity, RefusesOptionsOfASingleRun) {
  write_run();
  expect_bad_input({"simulate", "run.json", "--find-capacity", "turns>=1", "--untimed",
                    "--print-config", "--requests", "a.csv", "--timeline", "b.json", "--decisions",
                    "c.jsonl", "--iterations", "d.jsonl"},
                   {"--untimed: a replay without a clock has no arrival rate",
                    "--print-config: runs nothing, --find-capacity searches",
                    "--requests: shows one run, --find-capacity makes many",
                    "--iterations: shows one run, --find-capacity makes many",
                    "--timeline: shows one run, --find-capacity makes many",
                    "--decisions: shows one run, --find-capacity makes many"});
}

TEST_F(BadCapacity, NeedsRunsThatAreLongEnough) {
  write_run({{"/workload/sessions", 300}});
  const Outcome outcome = kvtier(
      {"simulate", "run.json", "--find-capacity", "ttft_seconds.p90<=2", "--json", "out.json"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(
      outcome.err.find("kvtier: /workload: a run of 300 sessions is too short to tell whether 1 "
                       "sessions/s meets the SLO: no stationary state is found"),
      std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("expected /workload/sessions \"auto\", or about "), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path("out.json")));
}

TEST_F(BadCapacity, RefusesItsOptionsWithoutIt) {
  write_run();
  for (const char* option : {"--replications", "--tolerance"}) {
    expect_bad_input(
        {"simulate", "run.json", option, "1"},
        {std::string(option) + " requires --find-capacity", "see kvtier simulate --help"});
  }
}

TEST_F(BadCapacity, RefusesAnInvalidTolerance) {
  write_run();
  for (const char* value : {"0", "1.5", "1%", "nan"}) {
    expect_bad_input(
        {"simulate", "run.json", "--find-capacity", "turns>=1", "--tolerance", value},
        {std::string("--tolerance: expected a number >= 0.0001 and <= 1, got \"") + value + "\"",
         "see kvtier simulate --help"});
  }
}

class BadExpectations : public ProgramTest {};

TEST_F(BadExpectations, AreFoundBeforeTheRun) {
  write_run({{"/workload/warmup_turns", 1000000}});  // too many, which only the run detects
  write("expect.json", R"({"metrics/turns": {"min": 1}, "/a~2": {"min": 1},
                           "/metrics/turns": {"least": 1}})");
  expect_bad_input(
      {"simulate", "run.json", "--expect", "expect.json", "--json", "out.json"},
      {"expect.json: /metrics~1turns: expected a JSON pointer, which starts with /",
       "expect.json: /~1a~02: expected a JSON pointer, in which ~ is written ~0 and / in a key ~1",
       "expect.json: /~1metrics~1turns/least: expected a value, {\"min\": .., \"max\": ..} or "
       "{\"value\": "
       ".., \"tolerance\": .., \"relative\": ..}, got {\"least\":1}"});
  EXPECT_EQ(files(), (std::vector<std::string>{"expect.json", "run.json"}));
}

TEST_F(BadExpectations, UnknownValuesAreFoundBeforeAnythingIsWritten) {
  write_run();
  write("expect.json", R"({"/metrics/trns": {"min": 1}, "/metrics/turns": {"min": 1e9}})");
  expect_bad_input({"simulate", "run.json", "--expect", "expect.json", "--json", "out.json"},
                   {"expect.json: /metrics/trns: the result has no such value"});
  EXPECT_EQ(files(), (std::vector<std::string>{"expect.json", "run.json"}));
}

TEST_F(BadExpectations, RefuseAMissingFile) {
  write_run();
  expect_bad_input({"simulate", "run.json", "--expect", "nowhere.json", "--json", "out.json"},
                   {"nowhere.json: no such file"});
  EXPECT_EQ(files(), std::vector<std::string>{"run.json"});
}

}  // namespace
}  // namespace kvtier::test
