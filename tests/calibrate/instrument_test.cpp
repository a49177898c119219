#include "calibrate/instrument.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "hw/device/cpu_device.hpp"

namespace kvtier::calibrate {
namespace {

/// Time passes only while samples are taken.
struct FakeClock final : Clock {
  [[nodiscard]] std::int64_t now_ns() override { return ns; }
  std::int64_t ns = 0;
};

/// Rejects the samples whose numbers it is given, counting from the end of the warm-up.
struct FakeMonitor final : DisturbanceMonitor {
  void begin() override { ++sample; }
  [[nodiscard]] bool disturbed() override { return all || rejected.contains(sample); }
  std::set<int> rejected;
  bool all = false;
  int sample = 0;
};

class MeasureTest : public testing::Test {
 protected:
  /// A sample that takes the next of `seconds`, over and over.
  Sample cycle(std::vector<double> seconds) {
    return [this, seconds = std::move(seconds)] {
      const double value = seconds[static_cast<std::size_t>(calls_++) % seconds.size()];
      clock_.ns += static_cast<std::int64_t>(value * 1e9);
      return value;
    };
  }
  Measured run(const Sample& sample, double limit = 0) {
    return measure(rules_, limit, sample, clock_, monitor_, [this] { ++checks_; });
  }

  StopRules rules_{.warm_up = 2,
                   .samples_min = 5,
                   .samples_max = 100,
                   .relative_error = 0.01,
                   .budget_seconds = 10,
                   .patience = 3};
  FakeClock clock_;
  FakeMonitor monitor_;
  int calls_ = 0;
  int checks_ = 0;
};

// Equal samples have no error: the minimum of 5, after 2 that do not count.
TEST_F(MeasureTest, StopsAtTheMinimumWhenSamplesAgree) {
  const Measured m = run(cycle({0.1}));
  EXPECT_EQ(calls_, 7);
  EXPECT_EQ(checks_, 7);
  EXPECT_EQ(m.n, 5);
  EXPECT_TRUE(m.converged);
  EXPECT_DOUBLE_EQ(m.median_seconds, 0.1);
  EXPECT_DOUBLE_EQ(m.p25_seconds, 0.1);
  EXPECT_DOUBLE_EQ(m.p75_seconds, 0.1);
}

// Two samples of 1 s and 3 s, two of 2 s and 4 s: together 1, 2, 3, 4, whose quartiles
// are 1.75, 2.5 and 3.25.
TEST_F(MeasureTest, PoolsTheSamplesOfSeveralVisits) {
  rules_ = {.warm_up = 0, .samples_min = 2, .samples_max = 2, .budget_seconds = 100};
  monitor_.rejected = {3};
  const Measured first = run(cycle({1, 3}));
  const Measured second = run(cycle({4, 2, 9}));
  const Measured both = pool(first, second);
  EXPECT_EQ(both.n, 4);
  EXPECT_EQ(both.disturbed, 1);
  EXPECT_DOUBLE_EQ(both.p25_seconds, 1.75);
  EXPECT_DOUBLE_EQ(both.median_seconds, 2.5);
  EXPECT_DOUBLE_EQ(both.p75_seconds, 3.25);
  EXPECT_EQ(pool(Measured{}, second).n, 2);
}

// Four visits share the samples and the time; an error of 1 % of all is 2 % of each, and one run
// may still take as long as before.
TEST(VisitRules, ShareTheCostOfACell) {
  const StopRules each = visit_rules({.warm_up = 2,
                                      .samples_min = 5,
                                      .samples_max = 100,
                                      .relative_error = 0.01,
                                      .budget_seconds = 1,
                                      .patience = 3},
                                     4);
  EXPECT_EQ(each.warm_up, 2);
  EXPECT_EQ(each.samples_min, 2);
  EXPECT_EQ(each.samples_max, 25);
  EXPECT_DOUBLE_EQ(each.relative_error, 0.02);
  EXPECT_DOUBLE_EQ(each.budget_seconds, 0.25);
  EXPECT_DOUBLE_EQ(each.patience * each.budget_seconds, 3);
}

// Samples 0.9, 1.0, 1.1, ... in turn: the quartiles of 3 k samples are 0.9 and 1.1 or nearer, so
// 0.929 x 0.2 / sqrt(n) <= 0.05 x 1.0 first holds at n = 14 (0.0497; 13: 0.0515), if both quartiles
// are at the ends. After two of warm-up the samples start with 1.1: of 14, five are 1.1, five 0.9,
// four 1.0; sorted place 0.25 x 13 = 3.25 is 0.9, place 9.75 is 1.1 between places 9 and 10 (1.1).
TEST_F(MeasureTest, StopsWhenTheErrorOfTheMedianIsSmall) {
  rules_.relative_error = 0.05;
  rules_.budget_seconds = 1000;
  const Measured m = run(cycle({0.9, 1.0, 1.1}));
  EXPECT_EQ(m.n, 14);
  EXPECT_TRUE(m.converged);
  EXPECT_DOUBLE_EQ(m.median_seconds, 1.0);
}

// 1 s each, 10 s of budget: 2 of warm-up, then samples start at 2 s, ..., 9 s: 8 of them.
TEST_F(MeasureTest, StopsWhenTheTimeIsUp) {
  rules_.samples_min = 50;
  const Measured m = run(cycle({1.0}));
  EXPECT_EQ(m.n, 8);
  EXPECT_FALSE(m.converged);
}

TEST_F(MeasureTest, StopsAtTheMostSamples) {
  rules_.samples_max = 20;
  const Measured m = run(cycle({0.01, 0.02, 0.03}));
  EXPECT_EQ(m.n, 20);
  EXPECT_FALSE(m.converged);
}

// The first run takes 31 s where a cell may take 10, three times over.
TEST_F(MeasureTest, GivesUpACellThatIsFarTooLarge) {
  try {
    (void)run(cycle({31}));
    FAIL();
  } catch (const OverBudget& error) {
    EXPECT_STREQ(error.what(), "one run takes 31.0 s, a cell may take 10 s");
  }
  EXPECT_EQ(calls_, 1);
}

// 12 s: beyond the budget but not three times; the warm-up ends and one sample is taken.
TEST_F(MeasureTest, TakesOneSampleOfACellThatIsALittleTooLarge) {
  const Measured m = run(cycle({12}));
  EXPECT_EQ(calls_, 2);
  EXPECT_EQ(m.n, 1);
  EXPECT_DOUBLE_EQ(m.median_seconds, 12);
}

// The second and third of the samples 1, 2, ... are disturbed and as long as possible.
TEST_F(MeasureTest, RejectsAndCountsDisturbedSamples) {
  rules_.budget_seconds = 100;
  monitor_.rejected = {2, 3};
  const Measured m = run(cycle({0.1, 0.1, 0.1, 5.0, 5.0, 0.1, 0.1, 0.1, 0.1}));
  EXPECT_EQ(m.n, 5);
  EXPECT_EQ(m.disturbed, 2);
  EXPECT_DOUBLE_EQ(m.p75_seconds, 0.1);
}

// Every sample is disturbed: 1 s each, after 2 s of warm-up, until 3 x 10 s have passed.
TEST_F(MeasureTest, HasNoResultIfEverySampleIsDisturbed) {
  monitor_.all = true;
  const Measured m = run(cycle({1.0}));
  EXPECT_EQ(m.n, 0);
  EXPECT_EQ(m.disturbed, 28);
  EXPECT_FALSE(m.converged);
}

TEST_F(MeasureTest, RejectsSamplesBelowTheLimit) {
  const Measured m = run(cycle({0.1, 0.1, 0.1, 0.001, 0.0}), 0.05);
  EXPECT_EQ(m.n, 5);
  EXPECT_EQ(m.impossible, 4);
  EXPECT_EQ(m.disturbed, 0);
  EXPECT_DOUBLE_EQ(m.p25_seconds, 0.1);
}

TEST_F(MeasureTest, EndsIfTheCheckThrows) {
  EXPECT_THROW((void)measure(rules_, 0, cycle({0.1}), clock_, monitor_,
                             [this] {
                               if (calls_ == 3) {
                                 throw std::runtime_error("stop");
                               }
                             }),
               std::runtime_error);
  EXPECT_EQ(calls_, 3);
}

TEST(SchedulerMonitor, CountsWaitingOnlyBeyondTheTimeOfAWakeUp) {
  EXPECT_FALSE(is_disturbed({.elapsed = 1e-5, .others = {.waited = 9e-5}}));
  EXPECT_TRUE(is_disturbed({.elapsed = 1e-5, .others = {.waited = 2e-4}}));
  EXPECT_FALSE(is_disturbed({.elapsed = 0.1, .host = {.waited = 0.01}}));
  EXPECT_TRUE(is_disturbed({.elapsed = 0.1, .host = {.waited = 0.011}}));
  EXPECT_TRUE(is_disturbed({.elapsed = 0.05, .stolen = 0.01}));
  EXPECT_FALSE(is_disturbed({.elapsed = 0.2, .stolen = 0.01}));
}

// On one processor a stream's thread waits until all of its work is queued, and the host until the
// work is done.
TEST(SchedulerMonitor, DistinguishesWaitingForEachOtherFromOtherWaiting) {
  SchedulerMonitor::Seen seen{.elapsed = 5e-3,
                              .host = {.ran = 1e-3, .waited = 4e-3},
                              .others = {.ran = 4e-3, .waited = 1e-3}};
  EXPECT_FALSE(is_disturbed(seen));
  seen.others.waited = 2e-3;
  EXPECT_TRUE(is_disturbed(seen));
  seen.others.waited = 1e-3;
  seen.host.waited = 5e-3;
  EXPECT_TRUE(is_disturbed(seen));
}

// More threads than processors: some have to wait.
TEST(SchedulerMonitor, DetectsThreadsThatWaitForAProcessor) {
  if (!std::filesystem::exists("/proc/self/schedstat")) {
    GTEST_SKIP() << "this kernel has no schedstat";
  }
  constexpr auto kSpin = std::chrono::milliseconds(200);
  SchedulerMonitor monitor;
  monitor.begin();
  std::vector<std::thread> threads;
  std::atomic<bool> read = false;
  for (unsigned i = 0; i < 3 * std::thread::hardware_concurrency(); ++i) {
    threads.emplace_back([&read, kSpin] {
      const auto end = std::chrono::steady_clock::now() + kSpin;
      while (std::chrono::steady_clock::now() < end || !read) {
      }
    });
  }
  std::this_thread::sleep_for(kSpin);
  const bool disturbed = monitor.disturbed();
  read = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_TRUE(disturbed);
}

// A loop that lasts 2 ms by another clock than the instrument's. Other load can only lengthen a
// sample, so the shortest of many gives the instrument's overhead.
TEST(Instrument, MeasuresABusyLoopOfKnownLength) {
  constexpr double kTruth = 2e-3;
  const auto device = make_cpu_device(1);
  const auto stream = device->make_stream();
  const auto begin = device->make_event();
  const auto end = device->make_event();
  NoMonitor monitor;
  constexpr double kAdded = 1.03;
  constexpr int kMostRounds = 30;
  double shortest = 2 * kTruth;
  for (int round = 0; round < kMostRounds && shortest >= kTruth * kAdded; ++round) {
    const Measured m = measure(
        {.samples_min = 9, .budget_seconds = 2}, kTruth,
        [&] {
          device->record(*begin, *stream);
          device->busy(kTruth, *stream);
          device->record(*end, *stream);
          end->synchronize();
          return device->seconds_between(*begin, *end);
        },
        steady_clock(), monitor, [] {});
    EXPECT_EQ(m.impossible, 0);
    shortest = std::min(shortest, m.sorted_seconds.front());
  }
  EXPECT_GE(shortest, kTruth);
  EXPECT_LT(shortest, kTruth * kAdded);
}

}  // namespace
}  // namespace kvtier::calibrate
