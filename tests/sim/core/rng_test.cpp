#include "sim/core/rng.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

TEST(StreamSeed, IsFnv1aOfTheNameMixedWithSplitMix64) {
  // Computed apart from this program: mix(mix(master) xor fnv1a(name)), mix being SplitMix64 from
  // its argument, fnv1a the 64-bit hash.
  EXPECT_EQ(stream_seed(0, ""), 0x5b21f68ffa77f14cULL);
  EXPECT_EQ(stream_seed(0, "arrivals"), 0x3a2abb1cf7b217ccULL);
  EXPECT_EQ(stream_seed(42, "arrivals"), 0x837269277334a26cULL);
  EXPECT_EQ(stream_seed(42, "lengths"), 0xeed394cb623f5f08ULL);
  EXPECT_EQ(stream_seed(43, "arrivals"), 0x862fcf89781af703ULL);
}

TEST(RandomStream, GivesTheSameValuesOnEveryPlatform) {
  // MT19937-64 from stream_seed(42, "arrivals"), each output divided by 2^64; computed apart from
  // this program.
  RandomStream stream(42, "arrivals");
  EXPECT_EQ(stream.uniform(), 0.31104307522034846);
  EXPECT_EQ(stream.uniform(), 0.8306100525445993);
  EXPECT_EQ(stream.uniform(), 0.9334569085180114);
  EXPECT_EQ(stream.uniform(), 0.06534775294291055);
}

TEST(RandomStream, IsTheStandardMersenneTwister) {
  RandomStream stream(7, "twister");
  std::mt19937_64 engine(stream_seed(7, "twister"));
  for (int i = 0; i < 1'000; ++i) {
    ASSERT_EQ(stream.uniform(), static_cast<double>(engine()) / 18446744073709551616.0);
  }
}

TEST(RandomStream, DistributionsKeepTheirPinnedValues) {
  // Taken from this program: a change of these values changes every result.
  RandomStream stream(42, "pinned");
  EXPECT_EQ(stream.index(1'000'000), 52110);
  EXPECT_EQ(stream.index(1'000'000), 311467);
  EXPECT_DOUBLE_EQ(stream.normal(), -0.25317174612238197);
  EXPECT_DOUBLE_EQ(stream.normal(), 2.0482828623063369);
  EXPECT_DOUBLE_EQ(stream.exponential(2.0), 0.24257005671453763);
  EXPECT_DOUBLE_EQ(stream.lognormal(std::log(4.6), 1.0), 46.637181235272308);
}

TEST(RandomStream, SameSeedAndNameGiveTheSameValues) {
  RandomStream first(5, "sessions");
  RandomStream second(5, "sessions");
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(first.uniform(), second.uniform());
    EXPECT_EQ(first.normal(), second.normal());
    EXPECT_EQ(first.index(1'000), second.index(1'000));
  }
}

TEST(RandomStream, AnotherSeedOrNameGivesOtherValues) {
  RandomStream stream(5, "sessions");
  RandomStream other_seed(6, "sessions");
  RandomStream other_name(5, "session");
  int equal = 0;
  for (int i = 0; i < 100; ++i) {
    const double value = stream.uniform();
    equal += value == other_seed.uniform() ? 1 : 0;
    equal += value == other_name.uniform() ? 1 : 0;
  }
  EXPECT_EQ(equal, 0);
}

TEST(RandomStream, DrawingMoreFromOneStreamDoesNotShiftAnother) {
  std::vector<double> alone;
  RandomStream lengths(9, "lengths");
  for (int i = 0; i < 100; ++i) {
    alone.push_back(lengths.uniform());
  }
  RandomStream arrivals(9, "arrivals");
  RandomStream again(9, "lengths");
  for (int i = 0; i < 100; ++i) {
    for (int extra = 0; extra < i; ++extra) {
      static_cast<void>(arrivals.normal());
    }
    EXPECT_EQ(again.uniform(), alone[static_cast<std::size_t>(i)]);
  }
}

TEST(RandomStream, NamedStreamsAreNotCorrelated) {
  // The correlation of n independent pairs has a standard deviation of 1 / sqrt(n) = 0.01.
  constexpr int kDraws = 10'000;
  RandomStream first(1, "a");
  RandomStream second(1, "b");
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    sum += (first.uniform() - 0.5) * (second.uniform() - 0.5) * 12;
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.04);
}

TEST(RandomStream, UniformLiesInTheUnitIntervalWithMeanOneHalf) {
  constexpr int kDraws = 100'000;
  RandomStream stream(1, "uniform");
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double value = stream.uniform();
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    sum += value;
  }
  // Standard deviation of the mean: 0.289 / sqrt(1e5) = 0.0009.
  EXPECT_NEAR(sum / kDraws, 0.5, 0.004);
}

TEST(RandomStream, NormalHasMeanZeroAndVarianceOne) {
  constexpr int kDraws = 100'000;
  RandomStream stream(1, "normal");
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double value = stream.normal();
    sum += value;
    squares += value * value;
  }
  // Standard deviations: mean 1 / sqrt(1e5) = 0.0032, variance sqrt(2 / 1e5) = 0.0045.
  EXPECT_NEAR(sum / kDraws, 0, 0.013);
  EXPECT_NEAR(squares / kDraws, 1, 0.018);
}

TEST(RandomStream, ExponentialHasItsMeanAndTail) {
  constexpr int kDraws = 100'000;
  RandomStream stream(1, "exponential");
  double sum = 0;
  int beyond_mean = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double value = stream.exponential(30.0);
    ASSERT_GE(value, 0);
    sum += value;
    beyond_mean += value > 30.0 ? 1 : 0;
  }
  // Standard deviation of the mean: 30 / sqrt(1e5) = 0.095; P(X > mean) = 1/e = 0.3679 +- 0.0015.
  EXPECT_NEAR(sum / kDraws, 30.0, 0.4);
  EXPECT_NEAR(static_cast<double>(beyond_mean) / kDraws, std::exp(-1.0), 0.006);
}

TEST(RandomStream, LognormalHasItsMedianAndMean) {
  constexpr int kDraws = 100'000;
  RandomStream stream(1, "lognormal");
  const double mu = std::log(4.6);
  double sum = 0;
  int below_median = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double value = stream.lognormal(mu, 0.5);
    sum += value;
    below_median += value < 4.6 ? 1 : 0;
  }
  // Mean exp(mu + sigma^2 / 2) = 4.6 * exp(0.125) = 5.2125; its standard deviation is
  // 5.2125 * sqrt(exp(0.25) - 1) / sqrt(1e5) = 0.0088. Share below the median: 0.5 +- 0.0016.
  EXPECT_NEAR(sum / kDraws, 5.2125, 0.036);
  EXPECT_NEAR(static_cast<double>(below_median) / kDraws, 0.5, 0.007);
}

TEST(RandomStream, LognormalWithoutSpreadIsItsMedian) {
  RandomStream stream(1, "constant");
  EXPECT_DOUBLE_EQ(stream.lognormal(std::log(250.0), 0), 250.0);
}

TEST(RandomStream, IndexTakesEveryValueBelowItsBoundAboutEquallyOften) {
  constexpr int kDraws = 60'000;
  RandomStream stream(1, "index");
  std::array<int, 6> counts{};
  for (int i = 0; i < kDraws; ++i) {
    const std::int64_t value = stream.index(6);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 6);
    ++counts[static_cast<std::size_t>(value)];
  }
  // Expected 10,000 each, standard deviation sqrt(60000 * 1/6 * 5/6) = 91.
  for (const int count : counts) {
    EXPECT_NEAR(count, 10'000, 400);
  }
  EXPECT_EQ(stream.index(1), 0);
}

TEST(RandomStream, IndexNeedsSomethingToChooseFrom) {
  RandomStream stream(1, "index");
  EXPECT_THROW(static_cast<void>(stream.index(0)), InvariantError);
  EXPECT_THROW(static_cast<void>(stream.index(-1)), InvariantError);
}

}  // namespace
}  // namespace kvtier
