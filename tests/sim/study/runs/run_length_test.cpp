#include "sim/study/runs/run_length.hpp"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"
#include "sim/replay/untimed.hpp"
#include "sim/study/runs/compare.hpp"
#include "sim/study/runs/find_capacity.hpp"
#include "sim/study/runs/summary.hpp"
#include "tests/sim/study/support.hpp"
#include "traces/trace_format.hpp"

namespace kvtier::test {
namespace {

/// A planner's config, which no seed or length should make say something else.
std::vector<std::string> planner(std::int64_t sessions, const std::string& rate = "0.245/s") {
  return {"/system=recompute", "/workload/warmup_turns=0", "/workload/measure=auto",
          "/workload/arrival_rate=" + rate, "/workload/sessions=" + std::to_string(sessions)};
}

ResolvedConfig config_of(const std::vector<std::string>& settings) {
  return resolve_config(request("examples/planner-70.json", settings), presets(),
                        builtin_policies());
}

Json run(const std::vector<std::string>& settings) {
  return simulate(config_of(settings).config, builtin_policies());
}

CapacitySearch search(const ResolvedConfig& config) {
  return find_capacity(config, parse_slo("ttft_seconds.p90<=1"), {.tolerance = 0.05},
                       builtin_policies(), {}, {});
}

std::string refusal(const ResolvedConfig& config) {
  try {
    (void)search(config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// 200 sessions at 2 a second all arrive in 100 s, and the server is empty before and after.
TEST(RunLength, ABurstOfSessionsIsTooShortToTell) {
  const Json result = run(planner(200, "2/s"));
  EXPECT_EQ(result["load"]["verdict"], "run too short to tell");
  EXPECT_EQ(result["load"]["measured"]["stationary"], false);
  EXPECT_EQ(result["load"]["requests_per_second"]["agree"], false);
  EXPECT_GT(number_at(result, "/load/requests_per_second/nominal"), 10);
  EXPECT_LT(number_at(result, "/load/requests_per_second/measured"), 3);
  ASSERT_TRUE(too_short(result));
  EXPECT_NE(describe_run_length(result).find("/workload/sessions \"auto\""), std::string::npos);
}

TEST(RunLength, TheStationaryStateHasTheNominalRate) {
  const Json result = run(planner(10000));
  EXPECT_EQ(result["load"]["verdict"], "load is within capacity");
  EXPECT_EQ(result["load"]["measured"]["stationary"], true);
  EXPECT_EQ(result["load"]["requests_per_second"]["agree"], true);
  EXPECT_FALSE(too_short(result)) << *too_short(result);
  EXPECT_EQ(describe_run_length(result), "");
  const double last_arrival = number_at(result, "/workload/last_arrival_seconds");
  EXPECT_GT(number_at(result, "/load/measured/from_seconds"), 1000);
  EXPECT_NEAR(number_at(result, "/load/measured/to_seconds"), last_arrival, 10);
}

TEST(RunLength, EdgesThatCountShowInTheRate) {
  std::vector<std::string> settings = planner(1000);
  settings.emplace_back("/workload/measure=all");
  const Json result = run(settings);
  EXPECT_FALSE(result["load"]["measured"].contains("stationary"));
  EXPECT_EQ(result["load"]["requests_per_second"]["agree"], false);
  ASSERT_TRUE(too_short(result));
  EXPECT_NE(too_short(result)->find("nominal rate"), std::string::npos);
}

TEST(RunLength, TurnsThatAreAllDueAtOnceHaveNoRate) {
  const TempDir folder;
  std::string log = "arrival,input_tokens,output_tokens\n";
  for (int i = 0; i < 300; ++i) {
    log += "0,500,50\n";
  }
  const Json result =
      run({"/system=recompute", "/workload/generator=none",
           "/workload/trace=" + folder.write("log.csv", log).string(), "/workload/sessions=all",
           "/workload/arrivals=trace", "/workload/arrival_rate=none", "/workload/measure=all"});
  EXPECT_TRUE(result["load"]["requests_per_second"]["nominal"].is_null());
  EXPECT_EQ(too_short(result), "the workload has no rate: all of its turns are due at one time");
}

TEST(RunLength, TheVerdictSaysThatAStationaryPartIsTooShort) {
  const Json result = run(planner(1500));
  EXPECT_EQ(result["load"]["measured"]["stationary"], true);
  EXPECT_EQ(result["load"]["verdict"], "run too short to tell");
  EXPECT_NE(too_short(result)->find("expected 10 times as long"), std::string::npos);
}

// A rate in the SLO is missed by a run that is too short, too.
TEST(RunLength, ASearchForALowestRateRefusesShortRuns) {
  EXPECT_THROW((void)find_capacity(config_of(planner(120)), parse_slo("requests_per_second>=1"), {},
                                   builtin_policies(), {}, {}),
               ConfigError);
}

TEST(RunLength, TiersThatStillFillAreNamed) {
  const auto filling = [](const std::string& capacity) {
    std::vector<std::string> settings = planner(5000, "0.2/s");
    settings.emplace_back("/system=attentionstore_lru");
    settings.emplace_back("/hardware/ssd/capacity=" + capacity);
    return run(settings)["metrics"]["tiers"]["ssd"]["filling"];
  };
  EXPECT_EQ(filling("100TiB"), true);
  EXPECT_EQ(filling("1TiB"), false);
}

TEST(RunLength, WantedSessionsAreEnough) {
  const std::int64_t wanted = sessions_wanted(run(planner(500)));
  EXPECT_GT(wanted, 1000);
  EXPECT_FALSE(too_short(run(planner(wanted))));
}

TEST(RunLength, CapacityFromShortAndLongRunsAgreesOrIsRefused) {
  const std::string why = refusal(config_of(planner(500)));
  EXPECT_NE(why.find("/workload: a run of 500 sessions is too short to tell whether"),
            std::string::npos)
      << why;
  EXPECT_NE(why.find("expected /workload/sessions \"auto\", or about "), std::string::npos) << why;
  EXPECT_NE(refusal(config_of(planner(2000))), "");
  const CapacitySearch shorter = search(config_of(planner(9000)));
  const CapacitySearch longer = search(config_of(planner(27000)));
  EXPECT_NEAR(
      shorter.trials[shorter.capacity.value()].rate / longer.trials[longer.capacity.value()].rate,
      1, 0.15);
}

// ---- Runs that grow ----

ResolvedConfig growing(const std::string& rate, double precision = 0.1) {
  std::vector<std::string> settings = planner(1, rate);
  settings.emplace_back("/workload/sessions=auto");
  settings.emplace_back("/workload/precision=" + std::to_string(precision));
  return config_of(settings);
}

TEST(GrowingRun, HasThePrecisionAndSaysHowManySessionsItTook) {
  ResolvedConfig config = growing("0.15/s");
  const Json result = simulate_to_precision(config.config, builtin_policies());
  EXPECT_EQ(result["load"]["precision"]["stopped_because"], "the precision is reached");
  EXPECT_LE(number_at(result, "/load/precision/reached"), 0.1);
  EXPECT_FALSE(too_short(result));
  EXPECT_EQ(result["config"]["workload"]["sessions"], *config.config.workload.sessions);
  Json plain = simulate(config.config, builtin_policies());
  plain["load"]["precision"] = result["load"]["precision"];
  EXPECT_EQ(plain.dump(), result.dump());
}

TEST(GrowingRun, GrowsWithThePrecision) {
  ResolvedConfig coarse = growing("0.05/s", 0.3);
  ResolvedConfig fine = growing("0.05/s", 0.02);
  (void)simulate_to_precision(coarse.config, builtin_policies());
  (void)simulate_to_precision(fine.config, builtin_policies());
  EXPECT_LT(*coarse.config.workload.sessions, *fine.config.workload.sessions);
}

TEST(GrowingRun, EndsIfTheLoadExceedsCapacity) {
  ResolvedConfig config = growing("1/s");
  const Json result = simulate_to_precision(config.config, builtin_policies());
  EXPECT_EQ(result["load"]["precision"]["stopped_because"], "the load exceeds capacity");
}

TEST(GrowingRun, ObserversSeeOneRun) {
  ResolvedConfig config = growing("0.15/s");
  RequestList requests;
  RunOptions options;
  options.observer = &requests;
  const Json result = simulate_to_precision(config.config, builtin_policies(), options);
  EXPECT_EQ(static_cast<std::int64_t>(requests.records.size()), result["workload"]["turns"]);
}

TEST(GrowingRun, NeedsAClock) {
  try {
    (void)simulate_untimed(growing("0.15/s").config, builtin_policies());
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("/workload/sessions: expected a number"),
              std::string::npos)
        << error.what();
  }
}

TEST(GrowingRun, ComparedSystemsHaveTheSameSessions) {
  ConfigRequest all = request(
      "examples/planner-70.json",
      {"/workload/sessions=auto", "/workload/warmup_turns=0", "/workload/arrival_rate=0.15/s"});
  const Comparison comparison = compare_systems(all, {"recompute", "attentionstore"}, 1, false,
                                                presets(), builtin_policies(), {}, {});
  EXPECT_EQ(comparison.columns[0].results[0]["workload"]["sessions"],
            comparison.columns[1].results[0]["workload"]["sessions"]);
}

// ---- Overload ----

TEST(Overload, MarksItsColumnsAndNamesTheHighestStableRate) {
  const ConfigRequest overloaded =
      request("examples/planner-70.json", {"/workload/arrival_rate=1/s", "/workload/sessions=6000",
                                           "/workload/warmup_turns=0", "/workload/measure=auto"});
  const Comparison comparison =
      compare_systems(overloaded, {"recompute"}, 1, false, presets(), builtin_policies(), {}, {});
  const Json& load = comparison.columns[0].results[0]["load"];
  EXPECT_EQ(load["verdict"], "load exceeds capacity");
  EXPECT_EQ(load["highest_stable_rate"]["varied"], "/workload/arrival_rate");
  const double rate = load["highest_stable_rate"]["rate"];
  const std::string table = to_table(comparison);
  EXPECT_NE(table.find(" recompute *\n"), std::string::npos) << table;
  EXPECT_NE(table.find("every number of this column depends on the length of the run"),
            std::string::npos);
  EXPECT_NE(table.find("Highest stable rate: recompute " + describe_rate("", rate)),
            std::string::npos)
      << table;
  // The rate is stable, and 10 % more are not.
  EXPECT_EQ(run(planner(20000, std::to_string(rate) + "/s"))["load"]["verdict"],
            "load is within capacity");
  EXPECT_EQ(run(planner(20000, std::to_string(1.1 * rate) + "/s"))["load"]["verdict"],
            "load exceeds capacity");
}

TEST(Overload, TheSearchBeginsNearTheRateThatWasServed) {
  ResolvedConfig config = config_of(planner(1000, "30/s"));
  WorkloadConfig& workload = config.config.workload;
  workload.sessions = SessionCount();
  workload.sessions.automatic = true;
  workload.precision = 1;
  const auto search = [&](double served) {
    return find_capacity(config, {},
                         {.replications = 1,
                          .tolerance = 0.05,
                          .step = 1.5,
                          .starts_overloaded = true,
                          .served = served},
                         builtin_policies(), {}, {});
  };
  const auto rate_of = [](const CapacitySearch& found) {
    return found.trials.at(found.capacity.value()).rate;
  };
  // The last trial is the overloaded rate, which is known and not run.
  const auto highest_run = [](const CapacitySearch& found) {
    return found.trials.at(found.trials.size() - 2).rate;
  };
  const CapacitySearch all = search(1);
  const double rate = rate_of(all);
  const CapacitySearch near = search(rate / 30);
  EXPECT_EQ(rate_of(near), rate);
  EXPECT_GT(highest_run(all), 10);
  EXPECT_LE(highest_run(near), 4 * rate);
  // A short run may serve less than a long one would.
  EXPECT_EQ(rate_of(search(rate / 30 / 20)), rate);
}

// 1,000 sessions are too few to show a rate near the highest one.
TEST(Overload, TheHighestStableRateDoesNotDependOnTheNumberOfSessions) {
  const auto rate_of = [](std::int64_t sessions) {
    const ResolvedConfig config = config_of(planner(sessions, "1/s"));
    const std::optional<StableRate> stable = highest_stable_rate(config, builtin_policies(), {});
    return stable ? stable->rate : 0;
  };
  const double rate = rate_of(1000);
  EXPECT_GT(rate, 0.3);
  EXPECT_EQ(rate_of(9000), rate);
}

// One request runs at a time. One comes every 10 s for 10,000 s, and 3,000 come at 3,000 s. More
// than 50 wait until all but 50 of those have been served, beside the others: a part of the time
// that (3,000 - 50) service times take of what the others leave.
TEST(Overload, ForAPartOfTheTimeIsAVerdictOfItsOwn) {
  const TempDir folder;
  std::string log = "arrival,input_tokens,output_tokens\n";
  const auto add = [&](int seconds, int requests) {
    for (int i = 0; i < requests; ++i) {
      log += std::to_string(seconds) + ",500,50\n";
    }
  };
  for (int i = 0; i < 1000; ++i) {
    add(10 * i, i == 300 ? 3001 : 1);
  }
  const ResolvedConfig config = config_of(
      {"/system=recompute", "/serving/slots=1", "/workload/generator=none",
       "/workload/trace=" + folder.write("log.csv", log).string(), "/workload/sessions=all",
       "/workload/arrivals=trace", "/workload/arrival_rate=none", "/workload/warmup_turns=0",
       "/workload/measure=all", "/serving/long_turn=clamp"});
  const Json result = simulate(config.config, builtin_policies());
  const double service = number_at(result, "/metrics/ttft_seconds_without_queueing/mean") +
                         49 * number_at(result, "/metrics/tpot_seconds/mean");
  const double share = 2950 * service / (1 - service / 10) / 9990;
  EXPECT_GT(share, 0.1);
  EXPECT_LT(share, 0.5);
  EXPECT_NEAR(number_at(result, "/load/overloaded_fraction"), share, 0.01);
  EXPECT_EQ(result["load"]["verdict"], "load exceeds capacity part of the time");
  const std::string cell = fmt::format("load exceeds capacity {:.0f} % of the time",
                                       100 * number_at(result, "/load/overloaded_fraction"));
  EXPECT_EQ(describe_verdict(result), cell);
  EXPECT_NE(to_table(Comparison{{{"recompute", {result}}}}).find(cell), std::string::npos);
  // With an SLO that it meets the rate is found, and as a stable one it is not.
  EXPECT_FALSE(exceeds_capacity(result));
  EXPECT_TRUE(ever_exceeds_capacity(result));
}

// ---- Traces ----

TEST(RunLength, TheCapacityOfATraceIsASpeedUp) {
  const TempDir folder;
  std::string log = "arrival,input_tokens,output_tokens\n";
  for (int i = 0; i < 3000; ++i) {
    log += std::to_string(10 * i) + ",500,50\n";
  }
  const ResolvedConfig config = config_of(
      {"/system=recompute", "/serving/slots=1", "/workload/generator=none",
       "/workload/trace=" + folder.write("log.csv", log).string(), "/workload/sessions=all",
       "/workload/arrivals=trace", "/workload/arrival_rate=none", "/workload/warmup_turns=0",
       "/workload/measure=all", "/serving/long_turn=clamp"});
  const Json quiet = simulate(config.config, builtin_policies());
  EXPECT_NEAR(number_at(quiet, "/load/requests_per_second/nominal"), 0.1, 0.001);
  const double service = number_at(quiet, "/metrics/ttft_seconds/mean") +
                         49 * number_at(quiet, "/metrics/tpot_seconds/mean");
  // Requests come evenly: none waits until they come faster than one a service time.
  const CapacitySearch found = find_capacity(config, parse_slo("queueing_seconds.p90<=0.01"), {},
                                             builtin_policies(), {}, {});
  const CapacityTrial& trial = found.trials[found.capacity.value()];
  EXPECT_NEAR(trial.rate * service / 10, 1, 0.02);
  EXPECT_NEAR(trial.requests_per_second, 0.1 * trial.rate, 0.002 * trial.rate);
  EXPECT_EQ(to_json(found)["varied"], "/workload/speed_up");
  EXPECT_NE(to_table(found).find("speed-up of the trace"), std::string::npos);
}

}  // namespace
}  // namespace kvtier::test
