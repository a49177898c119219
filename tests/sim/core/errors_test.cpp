#include "sim/core/errors.hpp"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

const std::vector<std::string> kKeys{"capacity", "bandwidth", "latency", "ttl"};

TEST(ClosestMatch, FindsAWordWithALetterMissingAddedOrChanged) {
  EXPECT_EQ(closest_match("capcity", kKeys), "capacity");
  EXPECT_EQ(closest_match("capaccity", kKeys), "capacity");
  EXPECT_EQ(closest_match("capasity", kKeys), "capacity");
  EXPECT_EQ(closest_match("capacity", kKeys), "capacity");
}

TEST(ClosestMatch, CountsTwoSwappedLettersAsOneMistake) {
  // "tlt" may be one edit away (3 / 3 = 1): substituting both letters would be two.
  EXPECT_EQ(closest_match("tlt", kKeys), "ttl");
  EXPECT_EQ(closest_match("acpacity", kKeys), "capacity");
}

TEST(ClosestMatch, AllowsOneMistakeInThreeLetters) {
  // "bandwidth" has 9 letters: three wrong ones are near, four are not.
  EXPECT_EQ(closest_match("bxndxidxh", kKeys), "bandwidth");
  EXPECT_EQ(closest_match("bxnxxidxh", kKeys), "");
  // Short words may be off by one letter.
  EXPECT_EQ(closest_match("tl", kKeys), "ttl");
  EXPECT_EQ(closest_match("tx", kKeys), "");
}

TEST(ClosestMatch, PrefersTheNearestAndThenTheFirst) {
  EXPECT_EQ(closest_match("latencies", {"latency_ms", "latencie"}), "latencie");
  EXPECT_EQ(closest_match("ab", {"ac", "ad"}), "ac");
}

TEST(ClosestMatch, FindsTheNameThatWasShortened) {
  EXPECT_EQ(closest_match("hicache", {"vllm", "sglang_hicache"}), "sglang_hicache");
  EXPECT_EQ(closest_match("ttft.p90", {"ttft_seconds.p50", "ttft_seconds.p90"}),
            "ttft_seconds.p90");
  EXPECT_EQ(closest_match("abcd", {"a1b1c1d1", "ab_c_d", "a_b_c_d"}), "ab_c_d");
  // A name that is more than twice as long may mean anything.
  EXPECT_EQ(closest_match("abcd", {"a__b__c_d"}), "");
  EXPECT_EQ(closest_match("abc", {"a_b_c_"}), "");
}

TEST(ClosestMatch, FindsNothingAmongNothing) {
  EXPECT_EQ(closest_match("capacity", {}), "");
  EXPECT_EQ(closest_match("", kKeys), "");
}

TEST(Suggestion, AsksWhetherTheNearestWordWasMeant) {
  EXPECT_EQ(suggestion("capcity", kKeys), " (did you mean \"capacity\"?)");
}

TEST(Suggestion, IsEmptyIfNothingIsNear) {
  EXPECT_EQ(suggestion("eviction", kKeys), "");
  EXPECT_EQ(suggestion("eviction", {}), "");
}

TEST(ConfigErrors, HoldEveryProblemOneLineEach) {
  const ConfigError error(std::vector<std::string>{"first", "second"});
  EXPECT_EQ(error.problems(), (std::vector<std::string>{"first", "second"}));
  EXPECT_STREQ(error.what(), "first\nsecond");
  EXPECT_STREQ(ConfigError("alone").what(), "alone");
}

TEST(ConfigErrors, ShortenALineThatNamesAHugePath) {
  const ConfigError error(std::string(10'000'000, 'x'));
  EXPECT_EQ(error.problems(), std::vector{std::string(8192, 'x') + "..."});
  EXPECT_EQ(error.what(), error.problems().front());
}

TEST(ClosestMatch, SkipsAWordOfAnotherLength) {
  // Comparing all of it would take minutes.
  EXPECT_EQ(closest_match(std::string(100'000'000, 'x'), {"capacity", "bandwidth"}), "");
}

TEST(Assertions, ThrowTheMessageTheConditionAndThePlace) {
  const int used = 5;
  try {
    KVTIER_ASSERT(used <= 4, "a tier holds no more than its capacity");
    FAIL() << "nothing was thrown";
  } catch (const InvariantError& error) {
    const std::string text = error.what();
    EXPECT_TRUE(
        text.ends_with(": broken invariant: a tier holds no more than its capacity (used <= 4)"))
        << text;
    EXPECT_NE(text.find("errors_test.cpp:"), std::string::npos) << text;
  }
}

TEST(Assertions, EvaluateTheConditionOnceInEveryBuildType) {
  int evaluations = 0;
  KVTIER_ASSERT(++evaluations > 0, "a condition that holds");
  EXPECT_EQ(evaluations, 1);
}

}  // namespace
}  // namespace kvtier
