/// What results say about the errors of their times.

#include "sim/study/runs/model_error.hpp"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/study/plan/plan.hpp"
#include "sim/study/runs/compare.hpp"
#include "sim/study/runs/find_capacity.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

/// Sessions that hardly overlap.
Json sessions_of(int rounds, const char* user_tokens, const char* response_tokens) {
  return {
      {"generator", "multi_turn"},
      {"sessions", 20},
      {"arrival_rate", "0.02/s"},
      {"measure", "all"},
      {"multi_turn",
       {{"rounds", rounds}, {"user_tokens", user_tokens}, {"response_tokens", response_tokens}}}};
}

/// One user at a time.
std::vector<std::string> one_user(const std::string& hardware,
                                  const std::string& model = "gpt-oss-120b") {
  return {"/model=" + model,
          "/hardware=" + hardware,
          "/hardware/gpus=1",
          "/system=vllm",
          "/serving=" + Json{{"slots", 1}}.dump(),
          "/workload=" + sessions_of(1, "1024tokens", "512tokens").dump()};
}

Json result_of(std::vector<std::string> settings, const std::vector<std::string>& more = {}) {
  settings.insert(settings.end(), more.begin(), more.end());
  return simulate(resolved("examples/engines.json", settings), builtin_policies());
}

std::string classes_of(const Json& result) { return describe_classes(*model_error_of(result)); }

TEST(ModelErrors, NameTheSourceOfTimes) {
  EXPECT_EQ(classes_of(result_of(one_user("h100-8x"))), "measured");
  EXPECT_EQ(classes_of(result_of(one_user("mi300x-8x"))), "sibling");
  EXPECT_EQ(classes_of(result_of(one_user("h100-8x"), {"/hardware/profile=none"})), "roofline");
}

TEST(ModelErrors, RangesAreFactorsOnEachStatistic) {
  const Json result = result_of(one_user("h100-8x"));
  for (const char* metric : {"ttft", "tpot"}) {
    const std::string name = std::string(metric) + "_seconds";
    for (const char* statistic : {"mean", "p50", "p90", "p95", "p99"}) {
      const double value = result["metrics"][name][statistic].get<double>();
      const Json& range = result["model_error"][name][statistic];
      const Json& factor = result["model_error"]["factors"][metric];
      for (const char* end : {"low", "high"}) {
        EXPECT_NEAR(range[end].get<double>(), value * factor[end].get<double>(), 1e-12);
      }
      EXPECT_LT(range["low"], value);
      EXPECT_GT(range["high"], value);
    }
  }
}

/// The law of attention over cached tokens is too slow on some GPUs.
TEST(ModelErrors, OfCachedPrefixesReachToShorterTimes) {
  std::vector<std::string> settings = one_user("h100-8x", "llama-3.1-8b");
  settings.back() = "/workload=" + sessions_of(3, "16000tokens", "16tokens").dump();
  const auto cached = model_error_of(result_of(settings));
  const auto computed = model_error_of(result_of(one_user("h100-8x", "llama-3.1-8b")));
  EXPECT_GT(cached->prefill.shares[TimeSource::cached_law], 0.1);
  EXPECT_EQ(computed->prefill.shares[TimeSource::cached_law], 0);
  EXPECT_LT(cached->ttft.low, computed->ttft.low);
  EXPECT_GT(computed->prefill.shares[TimeSource::measured], 0.99);
}

TEST(ModelErrors, AreTheSameWhateverTheStepping) {
  const RunConfig config = resolved("examples/engines.json", one_user("h100-8x"));
  RunOptions options;
  options.stepping = DecodeStepping::per_iteration;
  EXPECT_EQ(simulate(config, builtin_policies()).at("model_error"),
            simulate(config, builtin_policies(), options).at("model_error"));
}

TEST(ModelErrors, SurviveJson) {
  const Json result = result_of(one_user("mi300x-8x"));
  const auto error = model_error_of(result);
  const Json copy{{"config", result["config"]}, {"model_error", to_json(*error)}};
  EXPECT_EQ(to_json(*error), to_json(*model_error_of(copy)));
  EXPECT_EQ(error->prefill.gpu, "Instinct MI300X");
  EXPECT_EQ(error->prefill.relative, "h100-vllm");
  EXPECT_FALSE(model_error_of(Json::object()));
  EXPECT_FALSE(model_error_of(Json{{"model_error", {{"gpu", 1}}}}));
}

TEST(Orders, AreUncertainBetweenGpusWithOtherSources) {
  const auto times = [](const char* gpu) {
    return *compared_times(gpu, {result_of(one_user(gpu))});
  };
  const ComparedTimes h100 = times("h100-8x");
  const ComparedTimes h200 = times("h200-8x");
  const ComparedTimes amd = times("mi300x-8x");
  EXPECT_EQ(describe_uncertain_order(h100, h200), "");
  EXPECT_FALSE(have_own_errors(h100.error, h200.error));
  EXPECT_TRUE(have_own_errors(h100.error, amd.error));
  EXPECT_EQ(uncertain_orders(h100, amd), uncertain_orders(amd, h100));
  EXPECT_NE(describe_uncertain_order(h100, amd).find("TPOT is not certain"), std::string::npos);
  EXPECT_EQ(uncertain_orders(h100, h100), std::vector<std::string>());
}

std::string plan_of(const std::vector<std::string>& gpus) {
  const TempDir folder;
  RunConfig config = resolved("examples/engines.json", one_user(gpus.front()));
  config.workload.sessions = SessionCount(1000);
  config.workload.measure = Measure::automatic;
  Json values = Json::array();
  for (const std::string& gpu : gpus) {
    values.push_back({{"label", gpu}, {"set", {{"/hardware", {{"preset", gpu}, {"gpus", 1}}}}}});
  }
  folder.write("run.json", json_text(write_value(config)));
  const Json plan{{"config", "run.json"},
                  {"axes", {{{"name", "GPU"}, {"values", values}}}},
                  {"slo", {"tpot_seconds.mean<=0.05"}},
                  {"replications", 2}};
  const Plan read = load_plan(folder.write("plan.json", json_text(plan)));
  return to_table(read, make_plan(read, presets(), builtin_policies()));
}

TEST(Orders, OfGpusInAPlan) {
  const std::string amd = plan_of({"h100-8x", "mi300x-8x"});
  EXPECT_NE(amd.find("is not certain"), std::string::npos) << amd;
  const std::string nvidia = plan_of({"h100-8x", "h200-8x"});
  EXPECT_EQ(nvidia.find("certain"), std::string::npos) << nvidia;
  EXPECT_EQ(nvidia.find("do not share"), std::string::npos) << nvidia;
  EXPECT_NE(nvidia.find("times: measured; 80 % range of the mean TTFT: "), std::string::npos);
}

TEST(ModelErrors, AreInTheTable) {
  const std::string text = to_table(Comparison{{{"vllm", {result_of(one_user("mi300x-8x"))}}}});
  EXPECT_NE(text.find("times from"), std::string::npos) << text;
  EXPECT_NE(text.find("  80 % range of TPOT mean ms"), std::string::npos) << text;
}

/// A search whose TTFT is 1 s at 1/s and 2 s at 2/s, with times off by a factor.
CapacitySearch search_of(double low, double high) {
  const auto trial = [&](double rate, double ttft, bool meets) {
    CapacityTrial one;
    one.rate = rate;
    one.values = {ttft};
    one.meets = meets;
    one.model_error = ModelError{};
    one.model_error->gpu_time = {.low = low, .high = high};
    return one;
  };
  CapacitySearch search;
  search.slo = parse_slo("ttft_seconds.p90<=1.5");
  search.key = "/workload/arrival_rate";
  search.trials = {trial(0.5, 0.5, true), trial(1, 1, true), trial(1.5, 1.5, true),
                   trial(2, 2, false), trial(4, 4, false)};
  search.capacity = 2;
  search.above = 3;
  return search;
}

/// TTFT(rate) = rate. With durations f times as long TTFT(rate) = f x TTFT(f rate), which is 1.5 s
/// at a rate of 1.5 / f^2.
TEST(CapacityRanges, FollowFromTriedRates) {
  const CapacityRange range = capacity_range(search_of(0.8, 1.25));
  EXPECT_NEAR(*range.low, 1.5 / (1.25 * 1.25), 1e-12);
  EXPECT_NEAR(*range.high, 1.5 / (0.8 * 0.8), 1e-12);
  const CapacityRange exact = capacity_range(search_of(1, 1));
  EXPECT_EQ(exact.low, exact.high);
  EXPECT_NEAR(*exact.low, 1.5, 1e-12);
}

TEST(CapacityRanges, EndWhereNothingWasTried) {
  const CapacityRange range = capacity_range(search_of(0.1, 10));
  EXPECT_FALSE(range.low);
  EXPECT_FALSE(range.high);
  CapacitySearch none = search_of(0.8, 1.25);
  none.capacity.reset();
  EXPECT_FALSE(capacity_range(none).low);
}

TEST(CapacityRanges, StopBelowAnOverloadedRate) {
  CapacitySearch search = search_of(0.5, 1);
  search.trials[3].overloaded = 1;
  EXPECT_NEAR(*capacity_range(search).high, 1.5 / 0.5, 1e-12);
}

TEST(CapacityRanges, AreInTheTableAndTheJson) {
  CapacitySearch search = search_of(0.8, 1.25);
  search.trials[2].dollars_per_million_output_tokens = 3;
  EXPECT_NE(to_table(search).find("0.96 sessions/s to 2.344 sessions/s, 1.92 to 4.69 dollars"),
            std::string::npos)
      << to_table(search);
  const Json json = to_json(search);
  EXPECT_NEAR(json["model_error"]["capacity_per_second"]["low"].get<double>(), 0.96, 1e-12);
  EXPECT_NEAR(json["model_error"]["dollars_per_million_output_tokens"]["high"].get<double>(),
              3 * 1.5 / 0.96, 1e-12);
}

}  // namespace
}  // namespace kvtier::test
