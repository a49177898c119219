#include "sim/serving/batch_means.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <optional>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"

namespace kvtier::test {
namespace {

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
  [[nodiscard]] std::optional<double> half_width() const {
    return batches.half_width(&RunningTotals::queueing_ns, &RunningTotals::turns);
  }
  [[nodiscard]] bool covers(double mean) const {
    return std::abs(totals.queueing_ns / totals.turns - mean) <= half_width().value();
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

/// Shares of streams whose interval covers the mean, and whose interval of a quantile covers that.
struct Shares {
  double covered = 0;
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
    shares.quantile_covered +=
        stream.quantile_covers(quantile.q, quantile.truth) ? 1.0 / kStreams : 0;
  }
  return shares;
}

// Waits of 512 turns in 32 batches of 16 follow the first cosine, so the sums of batches are 16
// cos(pi (i + 1/2) / 32). Their first coefficient is 16 x 32 / 2 = 256, and the others are 0: the
// variance of the sum of all is 2 x 256^2 / 5, its root 161.91. Over 512 turns, times 2.5706
// (Student's t, 5 degrees of freedom), 0.8129.
TEST(BatchMeans, TakeTheirVarianceFromTheSlowestCosines) {
  const Stream stream(
      512, [turn = 0]() mutable { return std::cos(std::numbers::pi * (turn++ / 16 + 0.5) / 32); });
  EXPECT_EQ(stream.batches.batches(), 32);
  EXPECT_EQ(stream.batches.turns_per_batch(), 16);
  EXPECT_NEAR(stream.half_width().value(), 0.8129, 0.0001);
}

// Half of the needed tokens are found, 100 or 300: the ratio is the same in all batches.
TEST(BatchMeans, UseBothSumsOfARatio) {
  BatchMeans batches;
  RunningTotals totals;
  for (int i = 0; i < 1024; ++i) {
    const double needed = i % 1000 < 500 ? 100 : 300;
    totals.turns += 1;
    totals.history_tokens += needed;
    totals.reused_tokens += needed / 2;
    if (batches.ends_batch()) {
      batches.add(totals);
    }
  }
  EXPECT_EQ(batches.half_width(&RunningTotals::reused_tokens, &RunningTotals::history_tokens), 0);
  EXPECT_GT(batches.half_width(&RunningTotals::reused_tokens, &RunningTotals::turns), 1);
}

TEST(BatchMeans, AreMissingWithLessThan512TurnsOrNothingNeeded) {
  const auto of = [](int turns) { return Stream(turns, [] { return 3.0; }); };
  EXPECT_FALSE(of(511).half_width());
  const Stream enough = of(512);
  EXPECT_EQ(enough.half_width(), 0);
  EXPECT_FALSE(
      enough.batches.half_width(&RunningTotals::reused_tokens, &RunningTotals::history_tokens));
}

// Batches double when there would be 64: 63 turns are 63 batches, 64 are 32 of 2, and 1,000,000 are
// batches of 2^14 = 16,384 (2^13 would be 122), 61 of them.
TEST(BatchMeans, AreFewHoweverLongTheRun) {
  const auto of = [](int turns) { return Stream(turns, [] { return 1.0; }).batches; };
  EXPECT_EQ(of(63).batches(), 63);
  EXPECT_EQ(of(63).turns_per_batch(), 1);
  EXPECT_EQ(of(64).batches(), 32);
  EXPECT_EQ(of(64).turns_per_batch(), 2);
  EXPECT_EQ(of(1000000).batches(), 61);
  EXPECT_EQ(of(1000000).turns_per_batch(), 16384);
}

// All turns of the first half of a run wait longer than those of the second half. The share up to
// the median is 0 in the first half and 1 in the second one, so it is hardly known.
TEST(BatchMeans, UseTheShareOfTurnsUpToAQuantile) {
  const Stream drift(1024, [turn = 0]() mutable { return turn++ < 512 ? 2.0 : 1.0; });
  const auto wide = drift.batches.quantile_interval(drift.ttft, 0.5).value();
  EXPECT_EQ(wide.low, drift.ttft.quantile(0));
  EXPECT_EQ(wide.high, drift.ttft.quantile(1));
  const Stream even(1024, [turn = 0]() mutable { return turn++ % 2 == 0 ? 2.0 : 1.0; });
  const auto narrow = even.batches.quantile_interval(even.ttft, 0.4).value();
  EXPECT_EQ(narrow.low, narrow.high);
}

// 79.9 of 799 turns are beyond the quantile of 0.9, and 80.1 of 801.
TEST(BatchMeans, HaveQuantilesWith80TurnsBeyondThem) {
  const auto interval = [](int turns, double q) {
    RandomStream random(1, "stream");
    const Stream stream(turns, [&] { return random.normal(); });
    return stream.batches.quantile_interval(stream.ttft, q);
  };
  EXPECT_FALSE(interval(799, 0.9));
  EXPECT_TRUE(interval(801, 0.9));
  EXPECT_FALSE(interval(799, 0.1));
  EXPECT_FALSE(interval(511, 0.5));
}

// A thousand streams of coverage 0.95 cover within 3 standard errors, 0.02, of it. A normal
// variable's quantile of 0.9 is 1.2816.
TEST(BatchMeans, CoverTheMeanOfIndependentWaits) {
  const Shares found = shares(autoregression, 0.0, 2000, 0, {0.9, 1.2816});
  EXPECT_NEAR(found.covered, 0.95, 0.02);
  EXPECT_NEAR(found.quantile_covered, 0.95, 0.025);
}

// The correlation of neighbours is 0.9.
TEST(BatchMeans, CoverTheMeanOfCorrelatedWaits) {
  const Shares found = shares(autoregression, 0.9, 8191, 0);
  EXPECT_NEAR(found.covered, 0.95, 0.02);
  EXPECT_NEAR(found.quantile_covered, 0.95, 0.025);
}

// At load 0.5 waits are correlated over some dozens of turns, and skewed. One is above w with
// probability 0.5 exp(-w / 2): its quantile of 0.9 is 2 ln 5.
TEST(BatchMeans, CoverTheMeanWaitOfASingleServer) {
  const Shares found = shares(single_server, 0.5, 16000, 1, {0.9, 2 * std::log(5)});
  EXPECT_NEAR(found.covered, 0.95, 0.025);
  EXPECT_NEAR(found.quantile_covered, 0.95, 0.03);
}

// The correlation falls by a factor of e over 500 turns, a twentieth of the run, as that of turns
// does over the lifetime of a session. A batch has 256 turns.
TEST(BatchMeans, CoverTheMeanOfTurnsThatCorrelateOverMoreThanABatch) {
  const Shares found = shares(autoregression, std::exp(-1.0 / 500), 10000, 0);
  EXPECT_GT(found.covered, 0.915);
  EXPECT_LT(found.covered, 0.97);
}

}  // namespace
}  // namespace kvtier::test
