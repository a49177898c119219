#include "traces/timestamp.hpp"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "traces/trace_source.hpp"

namespace kvtier {
namespace {

TEST(Timestamp, ReadsSeconds) {
  const std::vector<std::pair<std::string, std::int64_t>> cases{
      {"0", 0},
      {"12", 12000000000},
      {"12.5", 12500000000},
      {"0.000000001", 1},
      // Digits beyond nanoseconds round.
      {"0.0000000014", 1},
      {"0.0000000015", 2},
      {"0.9999999996", 1000000000},
      {"1700158546.6805900", 1700158546680590000}};
  for (const auto& [text, ns] : cases) {
    const auto time = parse_timestamp(text);
    ASSERT_TRUE(time.has_value()) << text;
    EXPECT_EQ(time->ns, ns) << text;
    EXPECT_EQ(time->form, TimestampForm::seconds) << text;
  }
}

TEST(Timestamp, ReadsIso8601) {
  // 2023-11-16 is day 19,677 of the epoch: 53 years of 365 days, 13 leap days (1972 to 2020) and
  // 319 days of 2023 are 19,345 + 13 + 319. 18:15:46 is 65,746 s, 19,677 x 86,400 + 65,746 =
  // 1,700,158,546.
  constexpr std::int64_t kSecond = 1700158546LL * 1000000000;
  const std::vector<std::pair<std::string, std::int64_t>> cases{
      {"1970-01-01T00:00:00", 0},
      {"1970-03-01 00:00:00", std::int64_t{59} * 86400 * 1000000000},
      {"2023-11-16 18:15:46", kSecond},
      {"2023-11-16T18:15:46Z", kSecond},
      {"2023-11-16 18:15:46.6805900", kSecond + 680590000},
      {"2023-11-16 18:15:46.680590+00:00", kSecond + 680590000},
      {"2023-11-16 20:15:46+02:00", kSecond},
      {"2023-11-16T12:45:46-0530", kSecond},
      {"2023-11-16T19:15:46+01", kSecond}};
  for (const auto& [text, ns] : cases) {
    const auto time = parse_timestamp(text);
    ASSERT_TRUE(time.has_value()) << text;
    EXPECT_EQ(time->ns, ns) << text;
    EXPECT_EQ(time->form, TimestampForm::calendar) << text;
  }
}

TEST(Timestamp, RefusesWhatIsNoTime) {
  for (const char* text : {"",
                           "-1",
                           "-0.5",
                           "+1",
                           "1e3",
                           "1.",
                           ".5",
                           "1,5",
                           " 1",
                           "1 ",
                           "nan",
                           "today",
                           "99999999999999999999",
                           "4611686019",
                           "2023-11-16",
                           "2023-11-16 18:15",
                           "2023-02-29 00:00:00",
                           "2023-13-01 00:00:00",
                           "2023-00-01 00:00:00",
                           "2023-01-01 24:00:00",
                           "2023-01-01 00:60:00",
                           "2023-01-01 00:00:60",
                           "2023-01-01 00:00:00.",
                           "2023-01-01 00:00:00 UTC",
                           "2023-01-01 00:00:00+2",
                           "2023-01-01 00:00:00+24:00",
                           "2023-1-1 00:00:00",
                           "1969-12-31 23:59:59",
                           "2200-01-01 00:00:00"}) {
    EXPECT_FALSE(parse_timestamp(text).has_value()) << text;
  }
}

TEST(Timestamp, ReadsUpToTheLatestTimeOfATrace) {
  // kTraceTimeNsMax is 4,611,686,018.4 s; whole seconds before it are read.
  EXPECT_EQ(parse_timestamp("4611686017.5").value().ns, 4611686017500000000);
  EXPECT_LE(parse_timestamp("4611686017.5").value().ns, kTraceTimeNsMax);
}

TEST(DecimalTime, IsExactInItsUnit) {
  EXPECT_EQ(parse_decimal_ns("12", 0), 12'000'000'000);
  EXPECT_EQ(parse_decimal_ns("0.1234567894", 0), 123'456'789);
  EXPECT_EQ(parse_decimal_ns("0.1234567895", 0), 123'456'790);
  EXPECT_EQ(parse_decimal_ns("0.12345678949", 0), 123'456'789);
  EXPECT_EQ(parse_decimal_ns("1751234567.123456789", 0), 1'751'234'567'123'456'789);
  EXPECT_EQ(parse_decimal_ns("1751234567123.456789", 3), 1'751'234'567'123'456'789);
  EXPECT_EQ(parse_decimal_ns("1751234567123456789", 9), 1'751'234'567'123'456'789);
  EXPECT_EQ(parse_decimal_ns("7.5", 9), 8);
  EXPECT_EQ(parse_decimal_ns("5.", 3), 5'000'000);
  EXPECT_EQ(parse_decimal_ns("1.5e3", 3), 1'500'000'000);
}

TEST(DecimalTime, IsWithinTheClock) {
  EXPECT_EQ(parse_decimal_ns("4611686018427387903", 9), kTraceTimeNsMax);
  EXPECT_EQ(parse_decimal_ns("4611686018.427387903", 0), kTraceTimeNsMax);
  for (const char* text : {"4611686018.427387904", "99999999999999999999", "1e10", "-1", "", "x",
                           "1x", "1.2.3", "nan", "inf"}) {
    EXPECT_EQ(parse_decimal_ns(text, 0), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace kvtier
