#include "traces/hash_names.hpp"

#include <cstdint>
#include <string>

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(HashNames, AreNumberedAsTheyAreMet) {
  HashNames names;
  EXPECT_EQ(names.number_of("7", false), 0);
  EXPECT_EQ(names.number_of("7", true), 1);    // a string
  EXPECT_EQ(names.number_of("07", false), 2);  // no number as it is usually written
  EXPECT_EQ(names.number_of("-0", false), 3);
  EXPECT_EQ(names.number_of("18446744073709551616", false), 4);  // longer than 64 bits
  EXPECT_EQ(names.number_of("18446744073709551615", false), 5);
  EXPECT_EQ(names.number_of("7", false), 0);
  EXPECT_EQ(names.number_of("07", true), 2);
  EXPECT_EQ(names.text_of(5), "18446744073709551615");
  EXPECT_EQ(names.number_of("-1", false), 5);  // of the same 64 bits
  EXPECT_EQ(names.text_of(5), "-1");
  EXPECT_EQ(names.text_of(4), "18446744073709551616");
  EXPECT_EQ(names.text_of(0), "7");
}

TEST(HashNames, KeepTheirNumbersAsTheTableGrows) {
  HashNames names;
  constexpr std::int64_t kHashes = 20'000;
  const auto text = [](std::int64_t i) {
    // Small ones in a row, and some that differ in their upper bits alone.
    return std::to_string(i % 2 == 0 ? i : i << 44);
  };
  for (std::int64_t i = 0; i < kHashes; ++i) {
    ASSERT_EQ(names.number_of(text(i), false), i);
  }
  for (std::int64_t i = 0; i < kHashes; ++i) {
    ASSERT_EQ(names.number_of(text(i), false), i);
  }
  EXPECT_EQ(names.text_of(12'344), "12344");
}

}  // namespace
}  // namespace kvtier
