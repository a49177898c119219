#include "sim/core/units.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

using namespace literals;  // NOLINT: the literals are under test

template <class A, class B>
concept Addable = requires(A a, B b) {
  a + b;
};
template <class A, class B>
concept Subtractable = requires(A a, B b) {
  a - b;
};
template <class A, class B>
concept Comparable = requires(A a, B b) {
  a < b;
};
template <class A, class B>
concept Multipliable = requires(A a, B b) {
  a* b;
};
template <class From, class To>
concept ImplicitlyConvertible = std::is_convertible_v<From, To>;

static_assert(Addable<Bytes, Bytes>);
static_assert(!Addable<Bytes, Tokens>);
static_assert(!Addable<Bytes, std::int64_t>);
static_assert(!Addable<Bytes, BytesPerSecond>);
static_assert(!Addable<BytesPerSecond, FlopsPerSecond>);
static_assert(!Subtractable<Tokens, Bytes>);
static_assert(!Comparable<Bytes, Tokens>);
static_assert(!Comparable<Bytes, std::int64_t>);
static_assert(!Multipliable<Bytes, Bytes>);
static_assert(Addable<SimTime, SimDuration>);
static_assert(!Addable<SimTime, SimTime>);
static_assert(!Comparable<SimTime, SimDuration>);
static_assert(!ImplicitlyConvertible<std::int64_t, Bytes>);
static_assert(!ImplicitlyConvertible<Bytes, std::int64_t>);
static_assert(!ImplicitlyConvertible<double, BytesPerSecond>);
static_assert(!ImplicitlyConvertible<SimDuration, SimTime>);

TEST(Units, CountsAddSubtractAndScale) {
  EXPECT_EQ(Bytes(5) + Bytes(7), Bytes(12));
  EXPECT_EQ(Bytes(5) - Bytes(7), Bytes(-2));
  EXPECT_EQ(-Bytes(5), Bytes(-5));
  EXPECT_EQ(Bytes(5) * 3, Bytes(15));
  EXPECT_EQ(3 * Bytes(5), Bytes(15));
  EXPECT_EQ(Bytes(17) / 5, Bytes(3));
  Tokens tokens(10);
  tokens += Tokens(4);
  tokens -= Tokens(1);
  EXPECT_EQ(tokens, 13_tokens);
}

TEST(Units, RatioOfTwoCountsIsAPlainNumber) {
  // 128 GiB hold 128 * 1024 / 3 = 43690 whole entries of 3 MiB.
  static_assert(std::is_same_v<decltype(128_GiB / 3_MiB), std::int64_t>);
  EXPECT_EQ(128_GiB / 3_MiB, 43690);
}

TEST(Units, RealAmountsAddSubtractAndScale) {
  EXPECT_DOUBLE_EQ((BytesPerSecond(26e9) + BytesPerSecond(4e9)).value, 30e9);
  EXPECT_DOUBLE_EQ((BytesPerSecond(26e9) - BytesPerSecond(6e9)).value, 20e9);
  EXPECT_DOUBLE_EQ((BytesPerSecond(26e9) * 0.5).value, 13e9);
  EXPECT_DOUBLE_EQ((0.5 * BytesPerSecond(26e9)).value, 13e9);
  EXPECT_DOUBLE_EQ((BytesPerSecond(26e9) / 2.0).value, 13e9);
  EXPECT_DOUBLE_EQ(BytesPerSecond(26e9) / BytesPerSecond(13e9), 2.0);
  EXPECT_LT(BytesPerSecond(1), BytesPerSecond(2));
}

TEST(Units, LiteralsAreBinaryForBytesAndDecimalForTime) {
  EXPECT_EQ(7_B, Bytes(7));
  EXPECT_EQ(1_KiB, Bytes(1024));
  EXPECT_EQ(1_MiB, Bytes(1048576));
  EXPECT_EQ(1_GiB, Bytes(1073741824));
  EXPECT_EQ(1_TiB, Bytes(1099511627776));
  EXPECT_EQ(1_us, 1000_ns);
  EXPECT_EQ(1_ms, 1000_us);
  EXPECT_EQ(1_s, 1000_ms);
}

TEST(Units, DurationsAddSubtractAndScale) {
  SimDuration duration = 1_s - 250_ms;
  EXPECT_EQ(duration, 750_ms);
  duration += 50_ms;
  duration -= 300_ms;
  EXPECT_EQ(duration, 500_ms);
  EXPECT_EQ(duration * 3, 1500_ms);
  EXPECT_EQ(3 * duration, 1500_ms);
  EXPECT_EQ(duration / 4, 125_ms);
  EXPECT_DOUBLE_EQ((1500_ms).seconds(), 1.5);
}

TEST(Units, DifferenceOfTwoTimesIsADuration) {
  const SimTime start(1'000);
  const SimTime end = start + 500_ns;
  static_assert(std::is_same_v<decltype(end - start), SimDuration>);
  EXPECT_EQ(end - start, 500_ns);
  EXPECT_EQ(end - 500_ns, start);
  EXPECT_LT(start, end);
  EXPECT_LT(end, kNever);
  EXPECT_DOUBLE_EQ(SimTime(2'500'000'000).seconds(), 2.5);
}

TEST(Units, DurationFromSecondsRoundsUpToAWholeNanosecond) {
  EXPECT_EQ(duration_from_seconds(0), 0_ns);
  EXPECT_EQ(duration_from_seconds(0.25), 250_ms);
  EXPECT_EQ(duration_from_seconds(1), 1_s);
  // 1.1 ns and 0.001 ns: any begun nanosecond counts.
  EXPECT_EQ(duration_from_seconds(1.1e-9), 2_ns);
  EXPECT_EQ(duration_from_seconds(1e-12), 1_ns);
  EXPECT_EQ(duration_from_seconds(std::numeric_limits<double>::denorm_min()), 1_ns);
}

TEST(Units, DurationFromSecondsIsNeverShorterThanAsked) {
  for (double seconds = 1e-10; seconds < 1e6; seconds *= 1.37) {
    const SimDuration duration = duration_from_seconds(seconds);
    EXPECT_GE(static_cast<double>(duration.ns), seconds * 1e9) << seconds;
    EXPECT_LT(static_cast<double>(duration.ns), seconds * 1e9 + 1) << seconds;
  }
}

TEST(Units, DurationFromSecondsRefusesInvalidSeconds) {
  EXPECT_THROW(static_cast<void>(duration_from_seconds(-1)), InvariantError);
  EXPECT_THROW(static_cast<void>(duration_from_seconds(std::nan(""))), InvariantError);
  EXPECT_THROW(static_cast<void>(duration_from_seconds(std::numeric_limits<double>::infinity())),
               InvariantError);
}

// 2^63 - 1 = 9.22e18 ns are 292 years; 1e10 s are 1e19 ns.
TEST(Units, TimesBeyond64BitsAreRefusedAndNeverWrap) {
  const SimDuration most(INT64_MAX - 1);
  EXPECT_EQ(most + 1_ns, SimDuration(INT64_MAX));
  EXPECT_EQ(SimDuration(INT64_MAX / 2) * 2, most);
  EXPECT_THROW(static_cast<void>(duration_from_seconds(1e10)), ConfigError);
  EXPECT_THROW(static_cast<void>(transfer_duration(1_TiB, BytesPerSecond(10))), ConfigError);
  EXPECT_THROW(static_cast<void>(most + 2_ns), ConfigError);
  EXPECT_THROW(static_cast<void>(most * 2), ConfigError);
  EXPECT_THROW(static_cast<void>(2 * most), ConfigError);
  EXPECT_THROW(static_cast<void>(SimTime(INT64_MAX - 1) + 2_ns), ConfigError);
  SimDuration sum = most;
  EXPECT_THROW(sum += 2_ns, ConfigError);
}

TEST(Units, TransferDurationIsBytesOverRateRoundedUp) {
  // 26e9 B at 26 GB/s take 1 s; one byte takes 1/26 ns, rounded up to 1 ns.
  EXPECT_EQ(transfer_duration(Bytes(26'000'000'000), BytesPerSecond(26e9)), 1_s);
  EXPECT_EQ(transfer_duration(Bytes(1), BytesPerSecond(26e9)), 1_ns);
  EXPECT_EQ(transfer_duration(Bytes(0), BytesPerSecond(26e9)), 0_ns);
  // 10 B at 3 B/s take 3.333... s.
  EXPECT_EQ(transfer_duration(Bytes(10), BytesPerSecond(3)), 3'333'333'334_ns);
}

TEST(Units, TransferDurationNeedsAPositiveRate) {
  EXPECT_THROW(static_cast<void>(transfer_duration(1_B, BytesPerSecond(0))), InvariantError);
  EXPECT_THROW(static_cast<void>(transfer_duration(1_B, BytesPerSecond(-1))), InvariantError);
  EXPECT_THROW(static_cast<void>(transfer_duration(-(1_B), BytesPerSecond(1))), InvariantError);
}

}  // namespace
}  // namespace kvtier
