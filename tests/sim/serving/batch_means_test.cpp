#include "sim/serving/batch_means.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"

namespace kvtier::test {
namespace {

using Interval = BatchMeans::Interval;

/// Whole numbers in the order of waits, whose buckets are fine wherever these lie.
std::int64_t in_histogram(double wait) {
  constexpr double kScale = 1e6;
  constexpr double kMost = 25;
  return std::llround(kScale * std::exp(std::min(wait, kMost)));
}

/// The batches of `turns` waits, which `wait` gives in their order, and their mean.
struct Stream {
  BatchMeans batches;
  RunningTotals totals;
  Histogram ttft;

  Stream(int turns, const std::function<double()>& wait) {
    for (int i = 0; i < turns; ++i) {
      totals.turns += 1;
      const double waited = wait();
      totals.queueing_ns += waited;
      ttft.add(in_histogram(waited));
      if (batches.ends_batch()) {
        totals.ttft = HistogramCounts(ttft);
        batches.add(totals);
      }
    }
  }
  [[nodiscard]] Interval interval() const {
    return *batches.interval(&RunningTotals::queueing_ns, &RunningTotals::turns);
  }
  [[nodiscard]] bool covers(double mean) const {
    return std::abs(totals.queueing_ns / totals.turns - mean) <= interval().half_width;
  }
  [[nodiscard]] bool quantile_covers(double q, double truth) const {
    const auto interval = *batches.quantile_interval(ttft, q);
    const std::int64_t value = in_histogram(truth);
    return interval.low <= value && value <= interval.high;
  }
};

/// X' = phi X + noise of variance 1: mean 0.
std::function<double()> autoregression(RandomStream& random, double phi) {
  return [&random, phi, x = random.normal() / std::sqrt(1 - phi * phi)]() mutable {
    x = phi * x + random.normal();
    return x;
  };
}

/// Waits of M/M/1 with service time 1 and load `rho` from an empty queue: Lindley's recursion.
/// Their mean is rho / (1 - rho).
std::function<double()> single_server(RandomStream& random, double rho) {
  return [&random, rho, wait = 0.0]() mutable {
    const double now = wait;
    wait = std::max(0.0, wait + random.exponential(1) - random.exponential(1 / rho));
    return now;
  };
}

/// Shares of streams whose interval covers the mean, whose interval is doubted, and whose interval
/// of a quantile covers that.
struct Shares {
  double covered = 0;
  double doubted = 0;
  double quantile_covered = 0;
};
struct Quantile {
  double q = 0.5;
  double truth = 0;
};
template <class Process>
Shares shares(const Process& process, double parameter, int turns, double mean,
              Quantile quantile = {}) {
  constexpr int kStreams = 1000;
  Shares shares;
  for (int i = 0; i < kStreams; ++i) {
    RandomStream random(static_cast<std::uint64_t>(i), "stream");
    const Stream stream(turns, process(random, parameter));
    shares.covered += stream.covers(mean) ? 1.0 / kStreams : 0;
    shares.doubted += stream.interval().trust.doubt != nullptr ? 1.0 / kStreams : 0;
    shares.quantile_covered +=
        stream.quantile_covers(quantile.q, quantile.truth) ? 1.0 / kStreams : 0;
  }
  return shares;
}

// 1, 3, 2, 6, 4, 8 are batches of 4, 8 and 12, mean 8: squares 16 + 0 + 16 = 32, over 2 x 3 and the
// two turns of a batch: 2.309 / 2 = 1.155, times 4.303 (2 degrees) 4.968. The halves' deviations
// from 4 are -3, -1, -2, 2, 0, 4: lag 1 (3 + 2 - 4 + 0 + 0) / (9 + 1 + 4 + 4 + 0 + 16) = 1 / 34.
TEST(BatchMeans, AreThoseOfPairsInAShortRun) {
  const double waits[] = {1, 3, 2, 6, 4, 8};
  const Stream stream(6, [&waits, i = 0]() mutable { return waits[i++]; });
  EXPECT_EQ(stream.batches.batches(), 3);
  EXPECT_EQ(stream.batches.turns_per_batch(), 2);
  EXPECT_NEAR(stream.interval().half_width, 4.968, 0.001);
  EXPECT_NEAR(stream.interval().trust.lag_1, 1.0 / 34, 1e-12);
  EXPECT_STREQ(stream.interval().trust.doubt, "too few turns");
}

// Turns whose correlation falls by a factor of e over 200 turns: halves of batches of 100 turns
// correlate, and those of a run as long as is asked for do not.
TEST(BatchMeans, NameARunThatIsLongEnough) {
  const double phi = std::exp(-1.0 / 200);
  int doubted = 0;
  constexpr int kStreams = 40;
  for (int i = 0; i < kStreams; ++i) {
    RandomStream random(static_cast<std::uint64_t>(i), "length");
    const Stream shorter(6300, autoregression(random, phi));
    const BatchMeans::Trust trust = shorter.interval().trust;
    ASSERT_STREQ(trust.doubt, "batches correlate") << i;
    EXPECT_GT(trust.turns_needed, 2 * 6300);
    EXPECT_LT(trust.turns_needed, 40 * 6300);
    const Stream longer(static_cast<int>(trust.turns_needed), autoregression(random, phi));
    doubted += longer.interval().trust.doubt != nullptr ? 1 : 0;
  }
  EXPECT_LE(doubted, kStreams / 2);
}

// Found and needed tokens of two batches of two turns: 30 of 40, then 30 of 80; 60 of 120 is one
// half. Beyond that half are 10 and -10: 200 / (1 x 2) is 100, its root 10 over the 60 that a batch
// needs 1/6, times 12.706 (1 degree) 2.118.
TEST(BatchMeans, UseBothSumsOfARatio) {
  BatchMeans batches;
  const double found[] = {10, 30, 40, 60};
  const double needed[] = {20, 40, 80, 120};
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(batches.ends_batch());
    batches.add({.turns = i + 1.0, .reused_tokens = found[i], .history_tokens = needed[i]});
  }
  const auto interval =
      batches.interval(&RunningTotals::reused_tokens, &RunningTotals::history_tokens);
  ASSERT_TRUE(interval);
  EXPECT_NEAR(interval->half_width, 2.118, 0.001);
}

TEST(BatchMeans, AreMissingWithoutTwoBatchesOrAnythingNeeded) {
  BatchMeans batches;
  const auto tokens = [&] {
    return batches.interval(&RunningTotals::reused_tokens, &RunningTotals::history_tokens);
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(batches.interval(&RunningTotals::turns, &RunningTotals::turns));
    batches.add({.turns = i + 1.0});
  }
  batches.add({.turns = 4});
  EXPECT_TRUE(batches.interval(&RunningTotals::turns, &RunningTotals::turns));
  EXPECT_FALSE(tokens());
}

// Halves of batches double when there would be 64: 63 turns are 31 batches of 2, 64 are 16 of 4,
// and 1,000,000 are halves of 2^14 = 16,384 (2^13 would be 122), 61 of them.
TEST(BatchMeans, AreFewHoweverLongTheRun) {
  const auto of = [](int turns) { return Stream(turns, [] { return 1.0; }).batches; };
  EXPECT_EQ(of(63).batches(), 31);
  EXPECT_EQ(of(63).turns_per_batch(), 2);
  EXPECT_EQ(of(64).batches(), 16);
  EXPECT_EQ(of(64).turns_per_batch(), 4);
  EXPECT_EQ(of(1000000).batches(), 30);
  EXPECT_EQ(of(1000000).turns_per_batch(), 32768);
}

// Two batches of two turns, 1 and 2, then 1 and 4: up to the median, 1, is half of each, so that
// its interval has no width. Up to 2 are 2 and 1 of 3: 0.5 and -0.5 beyond 0.75 of two turns, whose
// standard error 0.5 over 2 is 0.25, times 12.706 3.2: from the least to the largest.
TEST(BatchMeans, UseTheShareOfTurnsUpToAQuantile) {
  BatchMeans batches;
  RunningTotals totals;
  Histogram ttfts;
  for (const std::int64_t ttft : {1, 2, 1, 4}) {
    ttfts.add(ttft);
    totals.ttft = HistogramCounts(ttfts);
    totals.turns += 1;
    ASSERT_TRUE(batches.ends_batch());
    batches.add(totals);
  }
  const auto median = *batches.quantile_interval(ttfts, 0.5);
  EXPECT_EQ(median.low, 1);
  EXPECT_EQ(median.high, 1);
  const auto three_quarters = *batches.quantile_interval(ttfts, 0.75);
  EXPECT_EQ(three_quarters.low, 1);
  EXPECT_EQ(three_quarters.high, 4);
  EXPECT_STREQ(median.trust.doubt, "too few turns");
  EXPECT_FALSE(BatchMeans().quantile_interval(ttfts, 0.5));
}

// 3.2 turns of a batch of 32 are beyond the quantile of 0.9 (512 independent turns), and 6.4 of a
// batch of 64 (1,024 turns).
TEST(BatchMeans, TrustQuantilesWithEnoughTurnsBeyondThem) {
  const auto doubt = [](int turns) {
    RandomStream random(1, "stream");
    const Stream stream(turns, [&] { return random.normal(); });
    return stream.batches.quantile_interval(stream.ttft, 0.9)->trust.doubt;
  };
  EXPECT_STREQ(doubt(512), "too few turns");
  EXPECT_EQ(doubt(1024), nullptr);
}

TEST(BatchMeans, HaveNoWidthForAConstant) {
  const Stream stream(5000, [] { return 3.0; });
  EXPECT_EQ(stream.interval().half_width, 0);
  EXPECT_EQ(stream.interval().trust.doubt, nullptr);
}

// 512 turns are 16 batches of 32, the least that is trusted; 511 are 31 of 16.
TEST(BatchMeans, AreTrustedFrom512TurnsOn) {
  RandomStream random(1, "stream");
  const auto draw = [&] { return random.normal(); };
  EXPECT_STREQ(Stream(511, draw).interval().trust.doubt, "too few turns");
  EXPECT_EQ(Stream(512, draw).interval().trust.doubt, nullptr);
}

// A thousand streams of coverage 0.95 cover within 3 standard errors, 0.02, of it, and one in 20 is
// doubted without need. A normal variable's quantile of 0.9 is 1.2816.
TEST(BatchMeans, CoverTheMeanOfIndependentWaits) {
  const Shares found = shares(autoregression, 0.0, 2000, 0, {0.9, 1.2816});
  EXPECT_NEAR(found.covered, 0.95, 0.02);
  EXPECT_NEAR(found.doubted, 0.05, 0.02);
  EXPECT_NEAR(found.quantile_covered, 0.95, 0.025);
}

// The correlation of neighbours is 0.9, that of halves of 128 turns about 0.04.
TEST(BatchMeans, CoverTheMeanOfCorrelatedWaits) {
  const Shares found = shares(autoregression, 0.9, 8191, 0);
  EXPECT_NEAR(found.covered, 0.95, 0.02);
  EXPECT_NEAR(found.quantile_covered, 0.95, 0.025);
  EXPECT_LT(found.doubted, 0.15);
}

// At load 0.5 waits are correlated over some dozens of turns, and skewed. One is above w with
// probability 0.5 exp(-w / 2): its quantile of 0.9 is 2 ln 5.
TEST(BatchMeans, CoverTheMeanWaitOfASingleServer) {
  const Shares found = shares(single_server, 0.5, 16000, 1, {0.9, 2 * std::log(5)});
  EXPECT_NEAR(found.covered, 0.95, 0.025);
  EXPECT_NEAR(found.quantile_covered, 0.95, 0.03);
}

// Correlated over a thousand turns, which is more than a batch of 8,000 turns has: intervals are
// too narrow, and are doubted.
TEST(BatchMeans, DoubtTurnsThatCorrelateOverABatch) {
  const Shares found = shares(autoregression, 0.999, 8000, 0);
  EXPECT_LT(found.covered, 0.8);
  EXPECT_GT(found.doubted, 0.95);
}

}  // namespace
}  // namespace kvtier::test
