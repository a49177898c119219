/// Experiments against arithmetic done by hand.

#include "sim/study/experiments.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "hw/roofline.hpp"
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

// LLaMA-65B: 2,048 tokens x 2,621,440 B = 5.37 GB of KV in the time of one prefill. Four GPUs have
// 4 x 80 GiB = 343.6 GB; the weights are 65.3e9 x 2 B.
TEST(KvFillTimes, AreMemoryOverRate) {
  const RunConfig config = resolved("papers/attentionstore/llama-65b.json");
  const Json json = result_of("kv_fill_times", config, {{"prompt", "2048tokens"}});
  const RooflineTiming timing(config.model, config.hardware, 1);
  const PrefillPart part{.added = Tokens(2048), .past = Tokens(0)};
  const double prefill = timing.prefill({&part, 1}).total.seconds();
  const double rate = 2048.0 * 2621440 / prefill;
  EXPECT_DOUBLE_EQ(number_at(json, "/prefill_seconds"), prefill);
  EXPECT_DOUBLE_EQ(number_at(json, "/kv_bytes_per_second"), rate);
  const double left =
      4.0 * 80 * (1LL << 30) - static_cast<double>(weight_bytes(config.model).value);
  EXPECT_DOUBLE_EQ(number_at(json, "/hbm_left_bytes"), left);
  EXPECT_DOUBLE_EQ(number_at(json, "/hbm_fill_seconds"), left / rate);
  EXPECT_DOUBLE_EQ(number_at(json, "/dram_fill_seconds"), 128.0 * (1LL << 30) / rate);
}

// Time is affine in the context: the mean iteration of 3 is the middle one, after 101 tokens each.
TEST(PhaseTimes, AreThoseOfTheTimingModel) {
  const RunConfig config = resolved("papers/attentionstore/llama2-13b.json");
  const Json json = result_of("phase_times", config,
                              {{"batch", 2}, {"prompt", "100tokens"}, {"response", "3tokens"}});
  const RooflineTiming timing(config.model, config.hardware, 2);
  const std::vector<PrefillPart> parts(2, {.added = Tokens(100), .past = Tokens(0)});
  EXPECT_DOUBLE_EQ(number_at(json, "/prefill_seconds"), timing.prefill(parts).total.seconds());
  const double middle =
      static_cast<double>(timing.decode(2).front().at(Tokens(202))) / kTicksPerNs * 1e-9;
  EXPECT_NEAR(number_at(json, "/decode_seconds_per_iteration"), middle, 1e-9);
  EXPECT_NEAR(number_at(json, "/decode_seconds"), 3 * middle, 3e-9);
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
  EXPECT_THROW(result_of("latency_over_load", config, {{"request_rates", Json::array()}}),
               ConfigError);
}

}  // namespace
}  // namespace kvtier::test
