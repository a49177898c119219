/// Experiments against arithmetic done by hand: each expected time is derived in a comment from the
/// datasheet values in configs/hardware and the shapes in configs/models, not by the timing model.

#include "sim/study/papers/experiments.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

const PolicyRegistry& registry() {
  static const PolicyRegistry policies = builtin_policies();
  return policies;
}

Json result_of(const std::string& name, const RunConfig& config, const Json& parameters,
               const RunOptions& run = {}) {
  Problems problems;
  const Experiment* experiment = find_experiment(name);
  EXPECT_NE(experiment, nullptr) << name;
  const Experiment::Function function = experiment->prepare(parameters, config, "", problems);
  problems.throw_if_any();
  return function(config, {&registry(), run});
}

TEST(Experiments, AreListedInTheOrderOfTheirNames) {
  for (std::size_t i = 1; i < experiments().size(); ++i) {
    EXPECT_LT(std::string(experiments()[i - 1].name), experiments()[i].name);
  }
  EXPECT_EQ(find_experiment("nothing"), nullptr);
}

std::vector<std::string> problems_of(const std::string& name, const Json& parameters) {
  // A context window of 4,096 tokens.
  const RunConfig config = resolved("papers/attentionstore/llama2-13b.json");
  Problems problems;
  (void)find_experiment(name)->prepare(parameters, config, "/p", problems);
  return problems.lines();
}

TEST(Experiments, TakeRequestsThatFitIntoTheContextWindow) {
  const auto long_by = [](const char* name, const Json& parameters) {
    const std::vector<std::string> lines = problems_of(name, parameters);
    return lines.size() == 1 &&
           lines[0].starts_with("/p: a request of 4097tokens does not fit into the context window");
  };
  EXPECT_EQ(problems_of("kv_fill_times", {{"prompt", "4096tokens"}}), std::vector<std::string>{});
  EXPECT_TRUE(long_by("kv_fill_times", {{"prompt", "4097tokens"}}));
  const auto phases = [](const char* response) {
    return Json{{"prompt", "1000tokens"}, {"past", "3000tokens"}, {"response", response}};
  };
  EXPECT_EQ(problems_of("phase_times", phases("96tokens")), std::vector<std::string>{});
  EXPECT_TRUE(long_by("phase_times", phases("97tokens")));
  EXPECT_TRUE(long_by("batch_prefill", {{"history", "4000tokens"}, {"added", "97tokens"}}));
  EXPECT_TRUE(long_by("batch_save", {{"prompt", "4000tokens"}, {"iterations", 97}}));
}

TEST(Experiments, BoundTheirSizes) {
  const auto bounded = [](const char* name, const char* key, const Json& parameters) {
    const std::vector<std::string> lines = problems_of(name, parameters);
    return lines.size() == 1 && lines[0].starts_with(std::string("/p/") + key + ": expected");
  };
  const char* huge = "1000000000000000tokens";
  EXPECT_TRUE(bounded("kv_fill_times", "prompt", {{"prompt", huge}}));
  EXPECT_TRUE(bounded("phase_times", "past", {{"prompt", "1tokens"}, {"past", huge}}));
  EXPECT_TRUE(bounded("phase_times", "response", {{"prompt", "1tokens"}, {"response", huge}}));
  EXPECT_TRUE(bounded("batch_prefill", "history", {{"history", huge}, {"added", "1tokens"}}));
  EXPECT_TRUE(
      bounded("batch_save", "iterations", {{"prompt", "1tokens"}, {"iterations", 10000001}}));
  EXPECT_TRUE(bounded("storage_per_session", "ratios/0", {{"ttl", "1h"}, {"ratios", {1e300}}}));
}

// LLaMA-65B on 4 A100, all by hand. A layer has 4 x 8,192^2 + 3 x 8,192 x 22,016 = 809,500,672
// parameters. 2,048 tokens:
//   matrices      2 x 809,500,672 x 2,048 FLOP at 0.68 x 4 x 312 TFLOP/s         3.907092 ms
//   attention     2,048 x 2,049 / 2 pairs x 4 x 8,192 FLOP                       0.081016 ms
//   all-reduces   2 x (2 x 3/4 x 2,048 x 8,192 x 2 B at 240 GB/s + 6 x 2.8 us)   0.453030 ms
//   80 layers of 4.441138 ms, a head of 32,000 x 8,192 x 2 B read at 6.9326 TB/s (0.076 ms), 4 ms
// The paper measured 360 ms. The KV is 2,048 tokens x 2,621,440 B. Beside it HBM of 4 x 80 GiB
// holds the weights, 2 B x (80 x 809,500,672 + 2 x 32,000 x 8,192) = 130,568,683,520 B.
TEST(KvFillTimes, AreMemoryOverRate) {
  const RunConfig config = resolved("papers/attentionstore/llama-65b.json");
  const Json json = result_of("kv_fill_times", config, {{"prompt", "2048tokens"}});
  EXPECT_NEAR(number_at(json, "/prefill_seconds"), 0.3593667, 1e-6);
  EXPECT_NEAR(number_at(json, "/kv_bytes_per_second"), 14.93936e9, 1e5);
  EXPECT_EQ(number_at(json, "/hbm_left_bytes"), 213'028'700'160);
  EXPECT_NEAR(number_at(json, "/hbm_fill_seconds"), 14.25956, 1e-4);
  EXPECT_NEAR(number_at(json, "/dram_fill_seconds"), 9.19979, 1e-4);
}

// Llama-2-13B on 2 A100, all by hand. A layer has 4 x 5,120^2 + 3 x 5,120 x 13,824 = 317,194,240
// parameters. Two prompts of 100 tokens:
//   matrices      2 x 317,194,240 x 200 FLOP at 0.54 x 2 x 312 TFLOP/s           376.53 us
//   attention     2 x 200 tokens x 20,480 B at 0.85 x 2 x 2,039 GB/s               2.36 us
//   all-reduces   2 x (200 x 5,120 x 2 B at 240 GB/s + 2 x 2.8 us)                28.27 us
//   40 layers of 407.16 us, a head of 32,000 x 5,120 x 2 B read at 3.4663 TB/s (94.53 us), 4 ms
// An iteration of decode reads a layer's weights in 183.016 us and takes 11.371 us for all-reduces
// of 2 tokens; the KV of 202 tokens takes 202 x 20,480 B / 3.4663 TB/s = 1.193 us.
// Time is affine in the context: the mean of 3 iterations is the middle one, after 101 tokens each.
TEST(PhaseTimes, AddUpByHand) {
  const RunConfig config = resolved("papers/attentionstore/llama2-13b.json");
  const Json json = result_of("phase_times", config,
                              {{"batch", 2}, {"prompt", "100tokens"}, {"response", "3tokens"}});
  EXPECT_NEAR(number_at(json, "/prefill_seconds"), 0.0203812, 1e-7);
  EXPECT_NEAR(number_at(json, "/decode_seconds_per_iteration"), 0.0119177, 1e-7);
  EXPECT_NEAR(number_at(json, "/decode_seconds"), 3 * 0.0119177, 3e-7);
}

// Two sessions: 10 + 20, then 30 tokens; and 10 + 40, then 10. The second turns repeat 30 of 60 and
// 50 of 60 tokens, 80 of 120; all turns 80 of 140.
TEST(RepeatedPrompts, AreSharesOfThePromptsByTurn) {
  const TempDir dir;
  dir.write("table.csv",
            "conv,turn,user_tokens,assistant_tokens\n"
            "a,0,10,20\na,1,30,5\nb,0,10,40\nb,1,10,5\n");
  const RunConfig config =
      resolved("papers/attentionstore/llama2-13b.json",
               {"/workload/generator=none", "/workload/trace=table.csv", "/workload/sessions=all"});
  RunOptions run;
  run.base_dir = dir.path("");
  const Json json = result_of("repeated_prompts", config, Json::object(), run);
  EXPECT_EQ(number_at(json, "/turn/1/share"), 0);
  EXPECT_DOUBLE_EQ(number_at(json, "/turn/2/share"), 80.0 / 120);
  EXPECT_EQ(number_at(json, "/turn/2/sessions"), 2);
  EXPECT_DOUBLE_EQ(number_at(json, "/share"), 80.0 / 140);
  EXPECT_DOUBLE_EQ(number_at(json, "/largest_share"), 80.0 / 120);
}

// Sessions of one turn, one every second: an hour has 3,600, each with a window of 3.125 GiB.
TEST(StoragePerSession, CountsDistinctSessionsAndSizesTheStorage) {
  const std::vector<std::string> settings{"/workload/sessions=11000",
                                          "/workload/warmup_turns=100",
                                          "/workload/arrival_rate=1/s",
                                          "/workload/sharegpt/single_turn_fraction=1",
                                          "/workload/sharegpt/user_tokens_median=10",
                                          "/workload/sharegpt/assistant_tokens_median=10"};
  const RunConfig config = resolved("papers/attentionstore/llama2-13b.json", settings);
  const Json json = result_of("storage_per_session", config,
                              {{"ttl", "1h"}, {"ratios", Json::array({0.1, 0.5})}});
  const double sessions = number_at(json, "/distinct_sessions");
  EXPECT_NEAR(sessions, 3600, 150);
  EXPECT_DOUBLE_EQ(number_at(json, "/bytes_for_all"), sessions * 3.125 * (1LL << 30));
  EXPECT_NEAR(number_at(json, "/ratio/0.5/storage_bytes"), 0.5 * number_at(json, "/bytes_for_all"),
              1);
  EXPECT_EQ(number_at(json, "/ratio/0.1/metrics/hit_rate/all_turns/total"), 0);
}

// A window is 3.125 GiB; a hundredth of one for each session is less than that, and SSD is one
// window.
TEST(StoragePerSession, ReportsTheCapacitiesThatItSimulates) {
  const std::vector<std::string> settings{
      "/workload/sessions=300",         "/workload/warmup_turns=10",
      "/hardware/dram/capacity=128GiB", "/system/tiers/hbm/capacity=10GiB",
      "/system/tiers/hbm/eviction=lru", "/workload/sharegpt/single_turn_fraction=1"};
  const auto storage = [&](std::vector<std::string> more) {
    more.insert(more.begin(), settings.begin(), settings.end());
    const RunConfig config = resolved("papers/attentionstore/llama2-13b.json", more);
    return number_at(result_of("storage_per_session", config,
                               {{"ttl", "1min"}, {"ratios", Json::array({0.01})}}),
                     "/ratio/0.01/storage_bytes") /
           (1LL << 30);
  };
  EXPECT_DOUBLE_EQ(storage({}), 10 + 128 + 3.125);
  EXPECT_DOUBLE_EQ(storage({"/system/tiers/ssd=none"}), 10 + 128);
}

// Users think for ten minutes on average: one in ten is back within a minute, 1 - exp(-60 / 600).
// GPU memory alone could hold most sessions.
TEST(StoragePerSession, LimitsTheTimeToLiveInEveryTier) {
  const RunConfig config =
      resolved("papers/attentionstore/llama2-13b.json",
               {"/workload/sessions=300", "/workload/warmup_turns=0",
                "/workload/arrival_rate=0.01/s", "/workload/think_time/mean=600s",
                "/system/tiers/hbm/capacity=100GiB", "/system/tiers/hbm/eviction=lru"});
  const auto hit_rate = [&](const char* ttl) {
    const Json json =
        result_of("storage_per_session", config, {{"ttl", ttl}, {"ratios", Json::array({1.0})}});
    return number_at(json, "/ratio/1/metrics/hit_rate/all_turns/total");
  };
  EXPECT_LT(hit_rate("1min"), 0.15);
  EXPECT_GT(hit_rate("5h"), 0.5);
}

TEST(StoragePerSession, FindsMoreWithMoreStorage) {
  const RunConfig config = resolved("papers/attentionstore/llama2-13b.json",
                                    {"/workload/sessions=1500", "/workload/warmup_turns=500"});
  const Json json = result_of("storage_per_session", config,
                              {{"ttl", "10min"}, {"ratios", Json::array({0.3, 1.0})}});
  EXPECT_GT(number_at(json, "/ratio/1/metrics/hit_rate/all_turns/total"),
            number_at(json, "/ratio/0.3/metrics/hit_rate/all_turns/total"));
}

// ---- Reuse or recompute ----

RunConfig car(const std::string& model, const std::vector<std::string>& more = {}) {
  std::vector<std::string> settings{"/model=" + model};
  settings.insert(settings.end(), more.begin(), more.end());
  return resolved("papers/car/one-gpu.json", settings);
}

TEST(ReuseOrRecompute, LoadsAtTheBandwidthOfTheMediumThatHoldsTheKv) {
  const auto reload = [](const char* from) {
    return result_of("reuse_or_recompute", car("llama2-7b"),
                     {{"history", "2000tokens"}, {"from", from}});
  };
  // 2,000 tokens x 2 x 32 layers x 32 heads x 128 x 2 B = 1,048,576,000 B; 64, 26 and 5 GB/s.
  EXPECT_EQ(reload("cxl")["loaded_bytes"], 1'048'576'000);
  const double compute = reload("cxl")["reload"]["ttft_seconds"].get<double>() - 1.048576 / 64;
  EXPECT_NEAR(reload("dram")["reload"]["ttft_seconds"], compute + 1.048576 / 26, 1e-7);
  EXPECT_NEAR(reload("ssd")["reload"]["ttft_seconds"], compute + 1.048576 / 5, 1e-7);
  // The rest is the prefill of one token after 2,000. It is bound by memory at 0.85 x 1,555 GB/s:
  // 32 layers of 2 x (4 x 4,096^2 + 3 x 4,096 x 11,008) B of weights (306.223 us) and 2,002 tokens
  // x 16,384 B of KV (24.816 us), a head of 2 x 32,000 x 4,096 B (198.331 us), and 4 ms.
  EXPECT_NEAR(compute, 0.01479159, 1e-7);
  // From the SSD it is slower than computing again, and other programs of the host slow only DRAM.
  EXPECT_GT(reload("ssd")["reload"]["ttft_seconds"], reload("ssd")["recompute"]["ttft_seconds"]);
  const RunConfig busy = car("llama2-7b", {"/hardware/dram/host_load=194.8GB/s"});
  EXPECT_NEAR(result_of("reuse_or_recompute", busy,
                        {{"history", "2000tokens"}, {"from", "dram"}})["reload"]["ttft_seconds"],
              compute + 1.048576 / 10, 1e-7);
  EXPECT_EQ(result_of("reuse_or_recompute", busy, {{"history", "2000tokens"}, {"from", "cxl"}}),
            reload("cxl"));
}

TEST(ReuseOrRecompute, AddsTheSameDecodeToEachWay) {
  const Json json = result_of(
      "reuse_or_recompute", car("llama2-7b"),
      {{"history", "1000tokens"}, {"added", "10tokens"}, {"response", "3tokens"}, {"from", "cxl"}});
  // The first token comes from the prefill; two iterations read the KV of 1,011 and 1,012 tokens.
  // Each reads the weights of 32 layers (306.223 us) and of the head (198.331 us), and takes 4 ms;
  // a token of KV is 524,288 B at 1,321.75 GB/s, 0.39666 us.
  const double decode = 2 * (32 * 306.2231e-6 + 198.3310e-6 + 4e-3) + 2023 * 0.396662e-6;
  for (const char* way : {"recompute", "reload", "overlapped"}) {
    EXPECT_NEAR(json[way]["ttet_seconds"].get<double>() - json[way]["ttft_seconds"].get<double>(),
                decode, 1e-7);
  }
  EXPECT_LT(json["overlapped"]["ttft_seconds"], json["reload"]["ttft_seconds"]);
}

TEST(ReuseOrRecompute, NeedsAMediumThatIsInstalled) {
  // The server of AttentionStore has no CXL memory.
  EXPECT_EQ(problems_of("reuse_or_recompute", {{"history", "100tokens"}, {"from", "cxl"}}),
            std::vector<std::string>{"/p/from: /hardware/cxl is \"none\""});
  EXPECT_EQ(problems_of("reuse_or_recompute", {{"history", "100tokens"}, {"from", "disk"}}),
            std::vector<std::string>{"/p/from: expected one of dram, cxl, ssd, got \"disk\""});
}

TEST(ReuseOrRecompute, LowersTheTimeToTheFirstTokenInEveryLongContext) {
  for (const char* model : {"opt-6.7b", "opt-13b", "llama2-7b", "llama2-13b"}) {
    for (const char* history : {"1000tokens", "2000tokens"}) {
      const Json json =
          result_of("reuse_or_recompute", car(model), {{"history", history}, {"from", "cxl"}});
      EXPECT_LT(json["reload"]["ttft_seconds"].get<double>(),
                0.4 * json["recompute"]["ttft_seconds"].get<double>())
          << model << " " << history;
    }
  }
}

TEST(HbmRequests, GiveTheCapacityExampleOfCar) {
  // OPT-30B on 4 x A100-40G: 171,798,691,840 B less 2 B x (48 x 7,168 x (4 x 7,168 + 2 x 28,672) +
  // 50,272 x 7,168) = 59,910,717,440 B of weights; 2,048 tokens x 2 x 48 layers x 7,168 x 2 B =
  // 2,818,572,288 B a request: 39.7 requests. The paper says 56 GB, 2.6 GB and 40 requests.
  const Json json =
      result_of("hbm_requests", car("opt-30b", {"/hardware/gpus=4"}), {{"request", "2048tokens"}});
  EXPECT_EQ(json["weight_bytes"], 59'910'717'440);
  EXPECT_EQ(json["request_bytes"], 2'818'572'288);
  EXPECT_EQ(json["requests"], 39);
}

// The ends of the curve are two runs of the engine; the rate between them is arithmetic.
TEST(LatencyOverLoad, IsReadBetweenTwoRatesOnAStraightLineOverTheLogarithm) {
  const RunConfig config = resolved("papers/pensieve/gpt3-13b.json",
                                    {"/workload/sessions=60", "/workload/warmup_turns=0"});
  const auto p90 = [&](double rate) {
    RunConfig loaded = config;
    loaded.workload.request_rate = PerSecond(rate);
    return number_at(simulate(loaded, registry()),
                     "/metrics/normalized_latency_seconds_per_token/p90");
  };
  const double low = p90(1);
  const double high = p90(40);
  ASSERT_LT(low * 1.1, high);
  // The geometric mean of two latencies lies half way between their rates.
  const auto middle = static_cast<std::int64_t>(std::sqrt(low * high) * 1e9);
  const std::string bound = std::to_string(middle) + "ns";
  const Json json = result_of("latency_over_load", config,
                              {{"request_rates", {"40/s", "1/s"}}, {"latencies", {bound, "1ns"}}});
  EXPECT_EQ(json["rate"]["1"]["p90_seconds_per_token"], low);
  EXPECT_EQ(json["rate"]["40"]["p90_seconds_per_token"], high);
  ASSERT_EQ(json["rate_at"].size(), 2U);
  EXPECT_NEAR(json["rate_at"].begin()->get<double>(), 20.5, 1e-4);
  EXPECT_TRUE(json["rate_at"]["1e-09"].is_null()) << "every latency is above it";
  // A curve of one point goes on until it has passed the bound.
  const Json beyond =
      result_of("latency_over_load", config, {{"request_rates", {"8/s"}}, {"latencies", {bound}}});
  EXPECT_GT(beyond["rate"].size(), 1U);
  EXPECT_FALSE(beyond["rate_at"].begin()->is_null());
}

TEST(LatencyOverLoad, NeedsARate) {
  EXPECT_EQ(problems_of("latency_over_load", {{"request_rates", Json::array()}}),
            std::vector<std::string>{"/p/request_rates: expected one rate at least, got []"});
  EXPECT_EQ(problems_of("latency_over_load", {{"latencies", {"1ms"}}}).size(), 1U);
}

TEST(LatencyOverLoad, EndsIfNoRateReachesABound) {
  const RunConfig config = resolved("papers/pensieve/gpt3-13b.json",
                                    {"/workload/sessions=10", "/workload/warmup_turns=0"});
  // No load makes a token of so few requests take an hour.
  const Json json =
      result_of("latency_over_load", config, {{"request_rates", {"8/s"}}, {"latencies", {"1h"}}});
  EXPECT_EQ(json["rate"].size(), 1U + 12);
  EXPECT_TRUE(json["rate_at"]["3600"].is_null());
}

}  // namespace
}  // namespace kvtier::test
