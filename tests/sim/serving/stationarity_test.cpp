#include "sim/serving/stationarity.hpp"

#include <cmath>
#include <cstdint>
#include <queue>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

// Statistic of MSER without the first d of 8: sum of squares around the mean / (8 - d)^2.
// d = 0: 7 x 10^2 - 70^2 / 8 = 87.5, over 64: 1.37. d = 1: 0. Ties go to the smaller d.
TEST(Stationarity, DropsTheBatchesBeforeTheLevel) {
  EXPECT_EQ(Stationarity::dropped_batches({0, 10, 10, 10, 10, 10, 10, 10}), 1U);
  EXPECT_EQ(Stationarity::dropped_batches({0, 0, 0, 10, 10, 10, 10, 10}), 3U);
  EXPECT_EQ(Stationarity::dropped_batches({10, 10, 10, 10, 10, 10, 10, 10}), 0U);
}

// A rest of m steps of a ramp has a sum of squares of about m^3 / 12, and a statistic of m / 12.
TEST(Stationarity, DropsAsMuchOfARampAsItMay) {
  EXPECT_EQ(Stationarity::dropped_batches({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}), 9U);
}

TEST(Stationarity, JudgesALevelAtTheFirstJudgement) {
  Stationarity test;
  for (int i = 1; i < 100; ++i) {
    EXPECT_FALSE(test.add(7)) << i;
  }
  EXPECT_TRUE(test.add(7));
  EXPECT_FALSE(test.add(7)) << "true at most once";
}

TEST(Stationarity, NeverAcceptsARamp) {
  Stationarity test;
  for (int i = 0; i < 100000; ++i) {
    ASSERT_FALSE(test.add(i)) << i;
  }
}

/// The arrival at which a system of ever more servers, empty at first, is found stationary:
/// arrivals are Poisson, 1 a second, and a session lasts exponentially long.
std::int64_t found_after(double mean_duration, std::uint64_t seed) {
  RandomStream random(seed, "stationarity");
  Stationarity test;
  std::priority_queue<double, std::vector<double>, std::greater<>> ends;
  double now = 0;
  for (std::int64_t arrivals = 1; arrivals < 1000000; ++arrivals) {
    now -= std::log(1 - random.uniform());
    while (!ends.empty() && ends.top() <= now) {
      ends.pop();
    }
    if (test.add(static_cast<std::int64_t>(ends.size()))) {
      return arrivals;
    }
    ends.push(now - mean_duration * std::log(1 - random.uniform()));
  }
  return -1;
}

// After n arrivals the mean is 1 - exp(-n / duration) of its level: 70 % after 1.2 times the
// duration.
TEST(Stationarity, IsFoundWhenTheSystemIsNearlyFull) {
  for (const double duration : {1.0, 100.0, 1000.0}) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      const auto found = static_cast<double>(found_after(duration, seed));
      EXPECT_GE(found, std::max(100.0, 1.2 * duration)) << duration << " seed " << seed;
      EXPECT_LE(found, std::max(400.0, 12 * duration)) << duration << " seed " << seed;
    }
  }
}

// ---- The measured part of a run ----

/// Sessions of one turn, 100 ms apart, each of which ends before the next one arrives.
ScriptedRun lonely_sessions(std::int64_t count, Measure measure, std::int64_t warmup = 0) {
  RunConfig config = tiny_config();
  config.workload.measure = measure;
  config.workload.warmup_turns = warmup;
  std::vector<SessionSpec> sessions;
  for (std::int64_t i = 0; i < count; ++i) {
    sessions.push_back(session(100 * i, {turn(10, 5)}));
  }
  return {std::move(config), kMillisecond, kMillisecond, std::move(sessions)};
}

// No session lives when another one arrives, so that the 100th arrival, at 9.9 s, is in the
// stationary state. The last of 200 sessions arrives at 19.9 s.
TEST(MeasuredPart, GoesFromTheStationaryStateToTheLastArrival) {
  ScriptedRun run = lonely_sessions(200, Measure::automatic);
  run.run();
  const MeasuredPart& measured = run.instance.measured();
  EXPECT_TRUE(measured.stationary);
  EXPECT_EQ(measured.from, at_ms(9900));
  EXPECT_EQ(measured.to, at_ms(19900));
  EXPECT_EQ(measured.sessions_before, 100);
  EXPECT_EQ(run.instance.turns().turns, 100);
  // 10 tokens of prefill and 4 iterations for each turn.
  EXPECT_EQ(run.instance.measured_gpu_time().busy(), for_ms(100 * 14));
}

TEST(MeasuredPart, IsTheWholeRunIfTheConfigSaysSo) {
  ScriptedRun run = lonely_sessions(200, Measure::all, 3);
  run.run();
  const MeasuredPart& measured = run.instance.measured();
  EXPECT_FALSE(measured.stationary);
  EXPECT_EQ(measured.from, at_ms(300));
  EXPECT_EQ(measured.to, at_ms(19914));
  EXPECT_EQ(run.instance.turns().turns, 197);
}

TEST(MeasuredPart, IsTheWholeRunIfNoStationaryStateIsFound) {
  ScriptedRun run = lonely_sessions(99, Measure::automatic);
  run.run();
  EXPECT_FALSE(run.instance.measured().stationary);
  EXPECT_EQ(run.instance.measured().from, at_ms(0));
  EXPECT_EQ(run.instance.turns().turns, 99);
}

TEST(MeasuredPart, BeginsAfterTheWarmUp) {
  ScriptedRun run = lonely_sessions(200, Measure::automatic, 150);
  run.run();
  EXPECT_TRUE(run.instance.measured().stationary);
  EXPECT_EQ(run.instance.measured().from, at_ms(15000));
  EXPECT_EQ(run.instance.turns().turns, 49);
}

// The 100th arrival is the last one: there is no stationary part to measure.
TEST(MeasuredPart, IsTheWholeRunIfTheStationaryStateIsFoundAtTheLastArrival) {
  ScriptedRun run = lonely_sessions(100, Measure::automatic);
  run.run();
  EXPECT_FALSE(run.instance.measured().stationary);
  EXPECT_EQ(run.instance.turns().turns, 100);
}

// A prefill is running when the stationary state is found: its turn was admitted before.
TEST(MeasuredPart, LeavesOutATurnThatRunsWhenItBegins) {
  RunConfig config = tiny_config();
  config.serving.slots = 2;
  std::vector<SessionSpec> sessions;
  for (std::int64_t i = 0; i < 150; ++i) {
    sessions.push_back(session(100 * i, {turn(10, 150)}));
  }
  ScriptedRun run(config, kMillisecond, kMillisecond, std::move(sessions));
  run.run();
  const MeasuredPart& measured = run.instance.measured();
  ASSERT_TRUE(measured.stationary);
  std::int64_t in_part = 0;
  for (std::int64_t i = 0; i < 150; ++i) {
    const SimTime admitted = run.request(i, 0).admitted;
    in_part += admitted >= measured.from && admitted < measured.to ? 1 : 0;
  }
  EXPECT_EQ(run.instance.turns().turns, in_part);
  EXPECT_LT(in_part, 150);
  EXPECT_LE(run.instance.measured_gpu_time().busy(), measured.span());
}

}  // namespace
}  // namespace kvtier::test
