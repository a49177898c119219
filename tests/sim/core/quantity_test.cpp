#include "sim/core/quantity.hpp"

#include <cstdint>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"
#include "sim/core/units.hpp"

namespace kvtier {
namespace {

using namespace literals;  // NOLINT: the literals are the plain way to write what is expected

template <class Q>
void expect_round_trip(Q quantity) {
  const std::string text = format_quantity(quantity);
  static const std::regex pattern(quantity_format<Q>().pattern);
  const std::optional<Q> parsed = parse_quantity<Q>(text);
  ASSERT_TRUE(parsed) << text;
  EXPECT_TRUE(*parsed == quantity) << text << " became " << format_quantity(*parsed);
  EXPECT_TRUE(std::regex_match(text, pattern)) << text;
}

template <class Q>
void expect_refused(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    EXPECT_FALSE(parse_quantity<Q>(text)) << text;
  }
}

TEST(ParseQuantity, KnowsEveryUnitOfBytes) {
  EXPECT_EQ(parse_quantity<Bytes>("7B"), 7_B);
  EXPECT_EQ(parse_quantity<Bytes>("2kB"), Bytes(2'000));
  EXPECT_EQ(parse_quantity<Bytes>("2KiB"), 2_KiB);
  EXPECT_EQ(parse_quantity<Bytes>("2MB"), Bytes(2'000'000));
  EXPECT_EQ(parse_quantity<Bytes>("2MiB"), 2_MiB);
  EXPECT_EQ(parse_quantity<Bytes>("2GB"), Bytes(2'000'000'000));
  EXPECT_EQ(parse_quantity<Bytes>("128GiB"), 128_GiB);
  EXPECT_EQ(parse_quantity<Bytes>("2TB"), Bytes(2'000'000'000'000));
  EXPECT_EQ(parse_quantity<Bytes>("10TiB"), 10_TiB);
  EXPECT_EQ(parse_quantity<Bytes>("2PB"), Bytes(2'000'000'000'000'000));
  EXPECT_EQ(parse_quantity<Bytes>("1PiB"), 1024_TiB);
}

TEST(ParseQuantity, KnowsEveryUnitOfDurations) {
  EXPECT_EQ(parse_quantity<SimDuration>("5ns"), 5_ns);
  EXPECT_EQ(parse_quantity<SimDuration>("5us"), 5_us);
  EXPECT_EQ(parse_quantity<SimDuration>("360ms"), 360_ms);
  EXPECT_EQ(parse_quantity<SimDuration>("5s"), 5_s);
  EXPECT_EQ(parse_quantity<SimDuration>("2min"), 120_s);
  EXPECT_EQ(parse_quantity<SimDuration>("1h"), 3600_s);
  EXPECT_EQ(parse_quantity<SimDuration>("1d"), 86400_s);
}

TEST(ParseQuantity, KnowsEveryUnitOfRealQuantities) {
  EXPECT_EQ(parse_quantity<BytesPerSecond>("3B/s")->value, 3);
  EXPECT_EQ(parse_quantity<BytesPerSecond>("3kB/s")->value, 3e3);
  EXPECT_EQ(parse_quantity<BytesPerSecond>("3KiB/s")->value, 3 * 1024.0);
  EXPECT_EQ(parse_quantity<BytesPerSecond>("3MB/s")->value, 3e6);
  EXPECT_EQ(parse_quantity<BytesPerSecond>("3MiB/s")->value, 3 * 1048576.0);
  EXPECT_EQ(parse_quantity<BytesPerSecond>("26GB/s")->value, 26e9);
  EXPECT_EQ(parse_quantity<BytesPerSecond>("3GiB/s")->value, 3 * 1073741824.0);
  EXPECT_EQ(parse_quantity<BytesPerSecond>("3TB/s")->value, 3e12);
  EXPECT_EQ(parse_quantity<BytesPerSecond>("3TiB/s")->value, 3 * 1099511627776.0);
  EXPECT_EQ(parse_quantity<FlopsPerSecond>("1FLOP/s")->value, 1);
  EXPECT_EQ(parse_quantity<FlopsPerSecond>("1MFLOP/s")->value, 1e6);
  EXPECT_EQ(parse_quantity<FlopsPerSecond>("1GFLOP/s")->value, 1e9);
  EXPECT_EQ(parse_quantity<FlopsPerSecond>("312TFLOP/s")->value, 312e12);
  EXPECT_EQ(parse_quantity<FlopsPerSecond>("1PFLOP/s")->value, 1e15);
  EXPECT_DOUBLE_EQ(parse_quantity<PerSecond>("1/s")->value, 1);
  EXPECT_DOUBLE_EQ(parse_quantity<PerSecond>("30/min")->value, 0.5);
  EXPECT_DOUBLE_EQ(parse_quantity<PerSecond>("900/h")->value, 0.25);
  EXPECT_DOUBLE_EQ(parse_quantity<PerSecond>("86400/d")->value, 1);
  EXPECT_DOUBLE_EQ(parse_quantity<DollarsPerHour>("5$/h")->value, 5);
  EXPECT_DOUBLE_EQ(parse_quantity<DollarsPerGibHour>("0.0088$/h/GiB")->value, 0.0088);
  EXPECT_EQ(parse_quantity<Tokens>("1token"), 1_tokens);
  EXPECT_EQ(parse_quantity<Tokens>("4096tokens"), 4096_tokens);
}

TEST(ParseQuantity, AllowsOneSpaceFractionsAndExponents) {
  EXPECT_EQ(parse_quantity<Bytes>("128 GiB"), 128_GiB);
  EXPECT_EQ(parse_quantity<Bytes>("1.5KiB"), Bytes(1536));
  EXPECT_EQ(parse_quantity<Bytes>("1e3B"), Bytes(1000));
  EXPECT_EQ(parse_quantity<Bytes>("1.0e3 kB"), Bytes(1'000'000));
  EXPECT_EQ(parse_quantity<SimDuration>("0.1s"), 100_ms);
  EXPECT_EQ(parse_quantity<SimDuration>("0.3us"), 300_ns);
  expect_refused<Bytes>({"128  GiB", " 128GiB", "128GiB ", "128\tGiB"});
}

TEST(ParseQuantity, KeepsZeroAndNegativeNumbers) {
  // Whether they make sense is up to the limits of the config key.
  EXPECT_EQ(parse_quantity<Bytes>("0B"), Bytes(0));
  EXPECT_EQ(parse_quantity<Bytes>("-5GiB"), -(5_GiB));
  EXPECT_EQ(parse_quantity<SimDuration>("-1ms"), SimDuration(-1'000'000));
  EXPECT_EQ(parse_quantity<BytesPerSecond>("-1GB/s")->value, -1e9);
}

// 4 years of 8,766 hours: 10 $ / 35,064 h, and 35,064 $ are 1 $/h.
TEST(ParseQuantity, SpreadsPurchasePricesOverTheYears) {
  const auto memory = parse_quantity<DollarsPerGibHour>("10$/GiB over 4y");
  ASSERT_TRUE(memory);
  EXPECT_DOUBLE_EQ(memory->value, 10.0 / 35064);
  EXPECT_EQ(format_quantity(*memory), "10$/GiB over 4y");
  const auto gpu = parse_quantity<DollarsPerHour>("35064$ over 4 y");
  ASSERT_TRUE(gpu);
  EXPECT_DOUBLE_EQ(gpu->value, 1);
  EXPECT_EQ(format_quantity(*gpu), "35064$ over 4y");
  EXPECT_DOUBLE_EQ(parse_quantity<DollarsPerHour>("8766$ over 2.5y")->value, 0.4);
  EXPECT_EQ(parse_quantity<DollarsPerGibHour>(format_quantity(*memory)), memory);
}

TEST(ParseQuantity, RefusesPurchasesWithoutYearsOrWithTooFewOrTooMany) {
  expect_refused<DollarsPerHour>({"30000$", "30000$ over", "30000$ over 4", "30000$ over 4h",
                                  "30000$over 4y", "30000 over 4y", "30000$ over 0y",
                                  "30000$ over 0.9y", "30000$ over 21y", "30000$ over -4y",
                                  "30000$/h over 4y", "30000$/GiB over 4y", "over 4y"});
  expect_refused<DollarsPerGibHour>(
      {"10$/h/GiB over 4y", "10$ over 4y", "10$/GiB over 4y over 4y"});
}

TEST(ParseQuantity, RefusesAMissingUnit) {
  expect_refused<Bytes>({"128", "0", "128 ", ""});
  expect_refused<Tokens>({"4096"});
  expect_refused<SimDuration>({"360", "0"});
  expect_refused<BytesPerSecond>({"26e9"});
  expect_refused<PerSecond>({"1"});
  expect_refused<DollarsPerHour>({"5"});
}

TEST(ParseQuantity, RefusesAMissingNumber) {
  expect_refused<Bytes>({"GiB", "-GiB", ".GiB", "foo", "$"});
  expect_refused<PerSecond>({"/s"});
}

TEST(ParseQuantity, RefusesAnUnknownUnit) {
  expect_refused<Bytes>({"128 foo", "128gib", "128Gib", "128GiBs", "128G", "128KB", "128EiB"});
  expect_refused<SimDuration>({"1sec", "1S", "1m", "1days", "1µs"});
  expect_refused<BytesPerSecond>({"26Gb/s", "26GBps", "26GB/ s"});
  expect_refused<FlopsPerSecond>({"312TFLOPS", "312kFLOP/s"});
  expect_refused<DollarsPerHour>({"$5/h", "5USD/h"});
}

TEST(ParseQuantity, RefusesAUnitOfAnotherDimension) {
  expect_refused<Bytes>({"128s", "128GB/s", "128tokens", "1$/h"});
  expect_refused<Tokens>({"4096B", "4096s"});
  expect_refused<SimDuration>({"1GiB", "1/s", "1$/h"});
  expect_refused<BytesPerSecond>({"26GB", "26/s", "26FLOP/s"});
  expect_refused<FlopsPerSecond>({"312TB/s", "1/s"});
  expect_refused<PerSecond>({"1s", "1B/s", "1$/h"});
  expect_refused<DollarsPerHour>({"1/h", "1$/h/GiB"});
  expect_refused<DollarsPerGibHour>({"1$/h", "1$/GiB", "1$ over 4y"});
}

TEST(ParseQuantity, RefusesNumbersThatAreNotDecimal) {
  expect_refused<Bytes>({"0x10B", "+5B", "1,000B", "1_000B", "1.2.3B", "--5B", "5e B", "1'000B"});
}

TEST(ParseQuantity, RefusesInfinityAndNotANumber) {
  expect_refused<Bytes>({"infB", "nanB", "-infB", "infinityB", "1e999B"});
  expect_refused<SimDuration>({"infs", "nans", "nan s"});
  expect_refused<BytesPerSecond>({"infB/s", "nanB/s", "nan(1)B/s", "1e999B/s"});
  expect_refused<PerSecond>({"inf/s", "nan/s"});
}

TEST(ParseQuantity, RefusesANumberThatItsUnitMakesInfinite) {
  // 1e300 is a double; 1e300 * 1e12 is not.
  EXPECT_TRUE(parse_quantity<BytesPerSecond>("1e300B/s"));
  expect_refused<BytesPerSecond>({"1e300TB/s", "-1e300TB/s"});
}

TEST(ParseQuantity, RefusesFractionsOfTheSmallestUnit) {
  expect_refused<Bytes>({"0.5B", "1.0001kB", "0.3GiB", "1e-1B"});
  expect_refused<Tokens>({"1.5tokens"});
  expect_refused<SimDuration>({"0.5ns", "1.0001us", "1e-10s"});
}

TEST(ParseQuantity, RefusesQuantitiesBeyond64Bits) {
  // 2^63 = 9.22e18 bytes = 8192 PiB.
  expect_refused<Bytes>({"8192PiB", "1e19B", "9223372036854775808B", "1e300PiB"});
  expect_refused<SimDuration>({"200000d"});  // 200,000 * 86,400 s = 1.7e19 ns
  EXPECT_EQ(parse_quantity<Bytes>("7000PiB"), 1024_TiB * 7000);
}

TEST(ParseQuantity, KeepsEveryDigitOfALargeWholeNumber) {
  // 2^53 + 1 is the first whole number that no double holds.
  EXPECT_EQ(parse_quantity<Bytes>("9007199254740993B"), Bytes(9'007'199'254'740'993));
  EXPECT_EQ(parse_quantity<Bytes>("-9007199254740993B"), Bytes(-9'007'199'254'740'993));
  EXPECT_EQ(parse_quantity<SimDuration>("9007199254740993ns"), SimDuration(9'007'199'254'740'993));
  EXPECT_EQ(parse_quantity<SimDuration>("9007199254740993 ns"), SimDuration(9'007'199'254'740'993));
}

TEST(FormatQuantity, WritesWholeNumbersInTheLargestUnitThatDividesThem) {
  EXPECT_EQ(format_quantity(128_GiB), "128GiB");
  EXPECT_EQ(format_quantity(10_TiB), "10TiB");
  EXPECT_EQ(format_quantity(1536_B), "1536B");  // 1.5 KiB, but no whole kB or KiB
  EXPECT_EQ(format_quantity(Bytes(1'000)), "1kB");
  EXPECT_EQ(format_quantity(Bytes(1'001)), "1001B");
  EXPECT_EQ(format_quantity(Bytes(0)), "0B");
  EXPECT_EQ(format_quantity(-(2_GiB)), "-2GiB");
  EXPECT_EQ(format_quantity(360_ms), "360ms");
  EXPECT_EQ(format_quantity(90_s), "90s");
  EXPECT_EQ(format_quantity(120_s), "2min");
  EXPECT_EQ(format_quantity(7200_s), "2h");
  EXPECT_EQ(format_quantity(86400_s), "1d");
  EXPECT_EQ(format_quantity(SimDuration(0)), "0ns");
  EXPECT_EQ(format_quantity(1_tokens), "1tokens");
  EXPECT_EQ(format_quantity(4096_tokens), "4096tokens");
}

TEST(FormatQuantity, WritesRealNumbersInTheUnitThatMakesTheTextShortest) {
  EXPECT_EQ(format_quantity(BytesPerSecond(25e9)), "25GB/s");
  EXPECT_EQ(format_quantity(BytesPerSecond(26e9)), "26GB/s");
  EXPECT_EQ(format_quantity(BytesPerSecond(64.0 * 1073741824)), "64GiB/s");
  EXPECT_EQ(format_quantity(BytesPerSecond(4.8e12)), "4.8TB/s");
  EXPECT_EQ(format_quantity(BytesPerSecond(0)), "0B/s");
  EXPECT_EQ(format_quantity(BytesPerSecond(0.5)), "0.5B/s");
  EXPECT_EQ(format_quantity(FlopsPerSecond(312e12)), "312TFLOP/s");
  EXPECT_EQ(format_quantity(FlopsPerSecond(2e15)), "2PFLOP/s");
  EXPECT_EQ(format_quantity(PerSecond(1)), "1/s");
  EXPECT_EQ(format_quantity(PerSecond(0)), "0/s");
  EXPECT_EQ(format_quantity(DollarsPerHour(5)), "5$/h");
  EXPECT_EQ(format_quantity(DollarsPerGibHour(0.0088)), "0.0088$/h/GiB");
}

TEST(FormatQuantity, IsTurnedBackIntoExactlyTheSameWholeQuantity) {
  RandomStream stream(1, "quantity");
  for (int i = 0; i < 20'000; ++i) {
    // 0 .. 61 bits: all magnitudes up to 2.3e18.
    const std::int64_t bound = std::int64_t{1} << stream.index(62);
    const std::int64_t sign = stream.index(2) == 0 ? 1 : -1;
    const std::int64_t value = sign * stream.index(bound);
    expect_round_trip(Bytes(value));
    expect_round_trip(SimDuration(value));
    expect_round_trip(Tokens(value));
    if (HasFatalFailure() || HasNonfatalFailure()) {
      return;
    }
    expect_round_trip(Bytes((value >> 20) << 20));
    expect_round_trip(SimDuration(value / 1'000'000 * 1'000'000));
  }
}

TEST(FormatQuantity, IsTurnedBackIntoExactlyTheSameRealQuantity) {
  RandomStream stream(2, "quantity");
  for (int i = 0; i < 20'000; ++i) {
    // Medians around 1e9, 4 standard deviations reach e^40 either way; every third one is round.
    double value = stream.lognormal(20, 10);
    if (i % 3 == 0) {
      value = static_cast<double>(stream.index(10'000)) * 1e8;
    }
    expect_round_trip(BytesPerSecond(value));
    expect_round_trip(FlopsPerSecond(value));
    expect_round_trip(PerSecond(value));
    expect_round_trip(DollarsPerHour(value));
    expect_round_trip(DollarsPerGibHour(value));
    if (HasFatalFailure() || HasNonfatalFailure()) {
      return;
    }
  }
}

template <class Q>
class QuantityFormats : public testing::Test {};
using AllQuantities = testing::Types<Bytes, Tokens, SimDuration, BytesPerSecond, FlopsPerSecond,
                                     PerSecond, DollarsPerHour, DollarsPerGibHour>;
TYPED_TEST_SUITE(QuantityFormats, AllQuantities);

TYPED_TEST(QuantityFormats, ExampleParsesMatchesThePatternAndIsItsOwnText) {
  const QuantityFormat& format = quantity_format<TypeParam>();
  const std::optional<TypeParam> parsed = parse_quantity<TypeParam>(format.example);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(format_quantity(*parsed), format.example);
  EXPECT_TRUE(std::regex_match(format.example, std::regex(format.pattern)));
}

TYPED_TEST(QuantityFormats, PatternRefusesMissingAndForeignUnits) {
  const std::regex pattern(quantity_format<TypeParam>().pattern);
  for (const char* text : {"128", "128 foo", "", "foo", "infB", "1 2B", "128  GiB"}) {
    EXPECT_FALSE(std::regex_match(text, pattern)) << text;
  }
}

}  // namespace
}  // namespace kvtier
