#include "sim/core/histogram.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"
#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

TEST(Histogram, IsExactForSmallValues) {
  Histogram histogram;
  for (const std::int64_t value : {5, 1, 255, 0, 9}) {
    histogram.add(value);
  }
  EXPECT_EQ(histogram.count(), 5);
  EXPECT_EQ(static_cast<std::int64_t>(histogram.sum()), 270);
  EXPECT_DOUBLE_EQ(histogram.mean(), 54.0);
  EXPECT_EQ(histogram.minimum(), 0);
  EXPECT_EQ(histogram.maximum(), 255);
  // Nearest rank among 0 1 5 9 255: ceil(0.4 * 5) = 2nd, ceil(0.41 * 5) = 3rd, ceil(0.8 * 5) = 4th.
  EXPECT_EQ(histogram.quantile(0.4), 1);
  EXPECT_EQ(histogram.quantile(0.41), 5);
  EXPECT_EQ(histogram.quantile(0.8), 9);
}

TEST(Histogram, KeepsTheCountsOfOneMoment) {
  Histogram histogram;
  EXPECT_EQ(HistogramCounts(histogram).count_up_to(1000), 0);
  for (const std::int64_t value : {700, 300, 90'000}) {
    histogram.add(value);
  }
  const HistogramCounts counts(histogram);
  histogram.add(500);
  EXPECT_EQ(counts.count(), 3);
  for (const std::int64_t value : {-1, 0, 299, 300, 500, 701, 89'000, 90'000, 1'000'000}) {
    const std::int64_t later = value >= 500 ? 1 : 0;
    EXPECT_EQ(counts.count_up_to(value), histogram.count_up_to(value) - later) << value;
  }
}

TEST(Histogram, TakesTheRankThatADecimalShareMeans) {
  // 0.07 * 100 is 7.000000000000001 in binary; the 7th of 1 .. 100 is meant.
  Histogram histogram;
  for (std::int64_t value = 1; value <= 100; ++value) {
    histogram.add(value);
  }
  EXPECT_EQ(histogram.quantile(0.07), 7);
  EXPECT_EQ(histogram.quantile(0.5), 50);
  EXPECT_EQ(histogram.quantile(0.99), 99);
}

TEST(Histogram, QuantilesOfOneValueAreWithinItsStatedErrorAtEveryMagnitude) {
  for (int bit = 0; bit < 63; ++bit) {
    const std::int64_t power = std::int64_t{1} << bit;
    for (const std::int64_t value : {power - 1, power, power + power / 3, power + (power - 1)}) {
      Histogram histogram;
      histogram.add(0);
      for (int i = 0; i < 3; ++i) {
        histogram.add(value);
      }
      histogram.add(INT64_MAX);
      const auto estimate = static_cast<double>(histogram.quantile(0.5));
      EXPECT_LE(std::abs(estimate - static_cast<double>(value)), static_cast<double>(value) / 256)
          << value;
    }
  }
}

TEST(Histogram, AgreesWithSortedValuesWithinFourInAThousand) {
  RandomStream stream(7, "histogram");
  std::vector<std::int64_t> values;
  Histogram histogram;
  for (int i = 0; i < 20000; ++i) {
    values.push_back(std::llround(stream.lognormal(std::log(3e7), 2.0)));
    histogram.add(values.back());
  }
  std::sort(values.begin(), values.end());
  for (const double q : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999}) {
    const std::int64_t exact = values[static_cast<std::size_t>(std::ceil(q * 20000)) - 1];
    EXPECT_NEAR(static_cast<double>(histogram.quantile(q)), static_cast<double>(exact),
                0.004 * static_cast<double>(exact))
        << q;
  }
  EXPECT_EQ(histogram.quantile(0), values.front());
  EXPECT_EQ(histogram.quantile(1), values.back());
}

TEST(Histogram, SumDoesNotOverflow64Bits) {
  Histogram histogram;
  for (int i = 0; i < 4; ++i) {
    histogram.add(INT64_MAX);
  }
  EXPECT_TRUE(histogram.sum() == static_cast<Int128>(INT64_MAX) * 4);
  EXPECT_DOUBLE_EQ(histogram.mean(), static_cast<double>(INT64_MAX));
  EXPECT_EQ(histogram.quantile(0.5), INT64_MAX);
}

TEST(Histogram, MergeEqualsAddingAllValues) {
  Histogram low;
  Histogram high;
  Histogram all;
  for (std::int64_t value = 0; value < 1000; ++value) {
    (value < 500 ? low : high).add(value * value);
    all.add(value * value);
  }
  low.merge(high);
  low.merge(Histogram());
  EXPECT_EQ(low.count(), all.count());
  EXPECT_TRUE(low.sum() == all.sum());
  EXPECT_EQ(low.minimum(), all.minimum());
  EXPECT_EQ(low.maximum(), all.maximum());
  for (const double q : {0.1, 0.5, 0.9}) {
    EXPECT_EQ(low.quantile(q), all.quantile(q));
  }
}

TEST(Histogram, CountsUpToABucket) {
  Histogram histogram;
  EXPECT_EQ(histogram.count_up_to(7), 0);
  for (const std::int64_t value : {3, 5, 5, 1000, 1001}) {
    histogram.add(value);
  }
  EXPECT_EQ(histogram.count_up_to(-1), 0);
  EXPECT_EQ(histogram.count_up_to(4), 1);
  EXPECT_EQ(histogram.count_up_to(5), 3);
  EXPECT_EQ(histogram.count_up_to(1000), 5);  // 1,000 to 1,003 are one bucket
  EXPECT_EQ(histogram.count_up_to(INT64_MAX), 5);
}

TEST(Histogram, RefusesInvalidArguments) {
  Histogram histogram;
  EXPECT_THROW(histogram.add(-1), InvariantError);
  EXPECT_THROW(static_cast<void>(histogram.mean()), InvariantError);
  EXPECT_THROW(static_cast<void>(histogram.minimum()), InvariantError);
  EXPECT_THROW(static_cast<void>(histogram.maximum()), InvariantError);
  EXPECT_THROW(static_cast<void>(histogram.quantile(0.5)), InvariantError);
  histogram.add(1);
  EXPECT_THROW(histogram.add(-1), InvariantError);
  EXPECT_THROW(static_cast<void>(histogram.quantile(1.5)), InvariantError);
  EXPECT_THROW(static_cast<void>(histogram.quantile(std::nan(""))), InvariantError);
}

}  // namespace
}  // namespace kvtier
