#include "sim/study/runs/find_capacity.hpp"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/errors.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

/// One slot, no cache, sessions of one turn that all have the same lengths: a queue with Poisson
/// arrivals, one server and a constant service time (M/D/1).
std::vector<std::string> constant_service(std::int64_t sessions) {
  return {"/system=recompute",
          "/serving/slots=1",
          "/workload/sessions=" + std::to_string(sessions),
          "/workload/warmup_turns=1000",
          "/workload/sharegpt/single_turn_fraction=1",
          "/workload/sharegpt/session_scale_sigma=0",
          "/workload/sharegpt/user_tokens_median=512",
          "/workload/sharegpt/user_tokens_sigma=0",
          "/workload/sharegpt/assistant_tokens_median=64",
          "/workload/sharegpt/assistant_tokens_sigma=0"};
}

ResolvedConfig server(const std::vector<std::string>& settings) {
  return resolve_config(request("examples/planner-70.json", settings), presets(),
                        builtin_policies());
}

CapacitySearch search(const ResolvedConfig& config, const std::string& slo,
                      const CapacityOptions& options = {}) {
  return find_capacity(config, parse_slo(slo), options, builtin_policies(), {}, {});
}

/// Seconds from admission to the last token, from the means of a run without waiting.
double service_seconds(const ResolvedConfig& config) {
  RunConfig quiet = config.config;
  quiet.workload.arrival_rate = PerSecond(0.001);
  const Json result = simulate(quiet, builtin_policies());
  constexpr double kOutput = 64;
  return number_at(result, "/metrics/ttft_seconds_without_queueing/mean") +
         (kOutput - 1) * number_at(result, "/metrics/tpot_seconds/mean");
}

double found(const CapacitySearch& capacity) {
  return capacity.trials[capacity.capacity.value()].rate;
}

// Mean wait of M/D/1 (Pollaczek-Khinchine): rho D / (2 (1 - rho)). It is D at rho = 2/3. The wait's
// logarithm has the slope 1 / (1 - rho) = 3 in that of the rate, so that 3 % of noise in the wait
// are 1 % in the rate.
TEST(FindCapacity, FindsTheRateAtWhichTheMeanWaitIsTheServiceTime) {
  const ResolvedConfig config = server(constant_service(40000));
  const double service = service_seconds(config);
  const CapacitySearch capacity =
      search(config, "queueing_seconds.mean<=" + std::to_string(service), {.replications = 3});
  EXPECT_NEAR(found(capacity) * service, 2.0 / 3, 0.015);
  const CapacityTrial& trial = capacity.trials[*capacity.capacity];
  EXPECT_NEAR(trial.slots_in_use, 2.0 / 3, 0.015);
  EXPECT_NEAR(trial.requests_per_second, found(capacity), 0.01 * found(capacity));
}

// A condition that always holds leaves the verdict to bound the rate: the queue of one server grows
// throughout once sessions come faster than one a service time.
TEST(FindCapacity, WithoutAnotherBoundIsTheServiceRate) {
  const ResolvedConfig config = server(constant_service(20000));
  const CapacitySearch capacity = search(config, "preemptions<=0");
  EXPECT_NEAR(found(capacity) * service_seconds(config), 1, 0.03);
  ASSERT_TRUE(capacity.above);
  EXPECT_GT(capacity.trials[*capacity.above].overloaded, 0);
  EXPECT_NE(to_table(capacity).find("load exceeds capacity"), std::string::npos);
}

TEST(FindCapacity, DoesNotDependOnWhereItBegins) {
  std::vector<std::string> settings = constant_service(5000);
  std::vector<double> rates;
  for (const char* rate : {"0.01/s", "0.3/s", "40/s"}) {
    settings.push_back(std::string("/workload/arrival_rate=") + rate);
    rates.push_back(found(search(server(settings), "ttft_seconds.p90<=5")));
  }
  EXPECT_NEAR(rates[1] / rates[0], 1, 0.011);
  EXPECT_NEAR(rates[2] / rates[0], 1, 0.011);
}

TEST(FindCapacity, BracketsToTheToleranceAndKeepsItsWord) {
  const ResolvedConfig config = server(constant_service(2000));
  std::size_t coarse = 0;
  for (const double tolerance : {0.2, 0.01, 0.001}) {
    const CapacitySearch capacity = search(config, "ttft_seconds.p90<=5,tpot_seconds.mean<=1",
                                           {.replications = 2, .tolerance = tolerance});
    const CapacityTrial& at = capacity.trials[capacity.capacity.value()];
    const CapacityTrial& above = capacity.trials[capacity.above.value()];
    EXPECT_TRUE(at.meets);
    EXPECT_LE(at.values[0].value(), 5);
    EXPECT_FALSE(above.meets);
    EXPECT_GT(above.rate, at.rate);
    EXPECT_LE(above.rate, at.rate * (1 + tolerance));
    EXPECT_GT(capacity.trials.size(), coarse);
    coarse = capacity.trials.size();
    for (std::size_t i = 1; i < capacity.trials.size(); ++i) {
      EXPECT_LT(capacity.trials[i - 1].rate, capacity.trials[i].rate);
    }
  }
}

// Sessions of one turn: requests and sessions are the same, and so is their rate.
TEST(FindCapacity, VariesTheRequestRateIfTheConfigHasOne) {
  std::vector<std::string> settings = constant_service(2000);
  const double sessions = found(search(server(settings), "ttft_seconds.p90<=5"));
  settings.emplace_back("/workload/arrival_rate=none");
  settings.emplace_back("/workload/request_rate=0.245/s");
  const CapacitySearch capacity = search(server(settings), "ttft_seconds.p90<=5");
  EXPECT_EQ(found(capacity), sessions);
  EXPECT_EQ(to_json(capacity)["varied"], "/workload/request_rate");
  EXPECT_NE(to_table(capacity).find("request rate, requests/s"), std::string::npos);
}

TEST(FindCapacity, IsTheMeanOfTheReplications) {
  const ResolvedConfig config = server(constant_service(2000));
  const CapacitySearch capacity = search(config, "ttft_seconds.p90<=5", {.replications = 2});
  RunConfig run = config.config;
  run.workload.arrival_rate = PerSecond(found(capacity));
  double sum = 0;
  for (int replication = 0; replication < 2; ++replication) {
    sum += number_at(simulate(run, builtin_policies()), "/metrics/ttft_seconds/p90");
    ++run.seed;
  }
  EXPECT_DOUBLE_EQ(capacity.trials[*capacity.capacity].values[0].value(), sum / 2);
}

TEST(FindCapacity, TakesTheStricterOfTwoConditions) {
  const ResolvedConfig config = server(constant_service(5000));
  const double strict = found(search(config, "ttft_seconds.p90<=3"));
  const double loose = found(search(config, "ttft_seconds.p90<=9"));
  EXPECT_LT(strict * 1.05, loose);
  EXPECT_EQ(found(search(config, "ttft_seconds.p90<=9,ttft_seconds.p90<=3")), strict);
}

TEST(FindCapacity, SaysWhenALowerRateMissesTheSlo) {
  std::vector<std::string> settings = constant_service(2000);
  // The server is busy for more than 60 % of the time where the search begins, and for less at half
  // of its result.
  settings.emplace_back("/workload/arrival_rate=1/s");
  const ResolvedConfig config = server(settings);
  const CapacitySearch capacity =
      search(config, "ttft_seconds.p90<=5,/load/slots_in_use_fraction>=0.6");
  const Json json = to_json(capacity);
  ASSERT_TRUE(capacity.capacity);
  ASSERT_FALSE(json["missed_below_per_second"].empty());
  EXPECT_LT(json["missed_below_per_second"][0].get<double>(), found(capacity));
  EXPECT_NE(to_table(capacity).find("Not every lower rate meets the SLO"), std::string::npos);

  const CapacitySearch monotonic = search(config, "ttft_seconds.p90<=5");
  EXPECT_TRUE(to_json(monotonic)["missed_below_per_second"].empty());
  EXPECT_EQ(to_table(monotonic).find("lower rate"), std::string::npos);
}

TEST(FindCapacity, SaysWhenNoRateMeetsTheSlo) {
  const CapacitySearch capacity =
      search(server(constant_service(2000)), "ttft_seconds_without_queueing.mean<=0.001");
  EXPECT_FALSE(capacity.capacity);
  EXPECT_TRUE(to_json(capacity)["capacity_per_second"].is_null());
  EXPECT_EQ(capacity.trials.size(), 1U + 10U);
  EXPECT_NE(to_table(capacity).find("No rate that was tried meets the SLO, down to 0.000239"),
            std::string::npos)
      << to_table(capacity);
}

// A request of two tokens takes a few milliseconds: ten of them a second are no load.
TEST(FindCapacity, SaysWhenThereIsNoBound) {
  std::vector<std::string> settings = constant_service(2000);
  settings.emplace_back("/workload/sharegpt/user_tokens_median=1");
  settings.emplace_back("/workload/sharegpt/assistant_tokens_median=1");
  settings.emplace_back("/workload/arrival_rate=0.01/s");
  const CapacitySearch capacity = search(server(settings), "preemptions<=0");
  ASSERT_TRUE(capacity.capacity);
  EXPECT_FALSE(capacity.above);
  EXPECT_NEAR(found(capacity), 0.01 * 1024, 1e-9);
  EXPECT_NE(to_table(capacity).find("no bound was found"), std::string::npos);
}

// Nothing of recompute is ever fetched: a distribution without values violates nothing.
TEST(FindCapacity, TakesAnEmptyDistributionForMet) {
  const std::vector<std::string> settings = constant_service(2000);
  const CapacitySearch capacity = search(server(settings), "late_fetch_wait_seconds.p90<=1");
  ASSERT_TRUE(capacity.capacity);
  EXPECT_FALSE(capacity.trials.front().values[0]);
}

TEST(FindCapacity, GivesTheSameBytesTwice) {
  const ResolvedConfig config = server({"/system=recompute", "/workload/sessions=9000"});
  const CapacityOptions options{.replications = 2};
  const std::string once = to_json(search(config, "ttft_seconds.p90<=2", options)).dump();
  EXPECT_EQ(to_json(search(config, "ttft_seconds.p90<=2", options)).dump(), once);
}

TEST(Slo, ReadsBothFormsAndBothRelations) {
  const auto slo = parse_slo(" ttft_seconds.p90 <= 2 ,/load/slots_in_use_fraction>=.5,turns<=1e3");
  ASSERT_EQ(slo.size(), 3U);
  EXPECT_EQ(slo[0].pointer, "/metrics/ttft_seconds/p90");
  EXPECT_TRUE(slo[0].at_most);
  EXPECT_EQ(slo[0].bound, 2);
  EXPECT_EQ(slo[1].pointer, "/load/slots_in_use_fraction");
  EXPECT_FALSE(slo[1].at_most);
  EXPECT_EQ(slo[1].bound, 0.5);
  EXPECT_EQ(slo[2].pointer, "/metrics/turns");
  EXPECT_EQ(slo[2].bound, 1000);
}

TEST(Slo, ReportsEveryMalformedCondition) {
  const std::vector<std::string> bad{
      "",     "ttft_seconds.p90", "<=2",    "a<=",    "a<=2s",  "a<2",
      "a==2", "a<=1<=2",          "a b<=2", "a~2<=1", "a<=inf", "a<=nan"};
  std::string text;
  for (const std::string& one : bad) {
    text += (text.empty() && &one == &bad.front() ? "" : ",") + one;
  }
  try {
    (void)parse_slo(text);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    ASSERT_EQ(error.problems().size(), bad.size());
    for (std::size_t i = 0; i < bad.size(); ++i) {
      EXPECT_EQ(error.problems()[i],
                "--find-capacity: expected METRIC<=NUMBER or METRIC>=NUMBER, such as "
                "ttft_seconds.p90<=2, got \"" +
                    bad[i] + "\"");
    }
  }
}

}  // namespace
}  // namespace kvtier::test
