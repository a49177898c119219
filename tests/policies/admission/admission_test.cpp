#include <cstdint>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "policies/registry.hpp"

namespace kvtier {
namespace {

std::unique_ptr<AdmissionPolicy> make_admission(const std::string& name,
                                                const PolicyParameters& parameters = {}) {
  return known_policy(builtin_policies().admission, name).make(parameters);
}

constexpr EntryKey kA{1};
constexpr EntryKey kB{2};
constexpr EntryKey kC{3};

TEST(AlwaysAdmission, RefusesNothing) {
  const auto policy = make_admission("always");
  EXPECT_TRUE(policy->admits(kA));
  EXPECT_TRUE(policy->replaces(kA, kB));
}

TEST(SecondHitAdmission, AdmitsFromTheSecondUseOn) {
  const auto policy = make_admission("second_hit");
  EXPECT_FALSE(policy->admits(kA));
  policy->on_use(kA);
  EXPECT_FALSE(policy->admits(kA));
  policy->on_use(kA);
  EXPECT_TRUE(policy->admits(kA));
  EXPECT_FALSE(policy->admits(kB));
  EXPECT_TRUE(policy->replaces(kA, kB));
}

TEST(SecondHitAdmission, ForgetsEntriesUsedLongAgo) {
  // Two are remembered of each kind: A is pushed out by B and C before its second use.
  const auto policy = make_admission("second_hit", {{"remembered", 2}});
  for (const EntryKey key : {kA, kB, kC, kA}) {
    policy->on_use(key);
  }
  EXPECT_FALSE(policy->admits(kA));
  policy->on_use(kA);
  EXPECT_TRUE(policy->admits(kA));
}

TEST(SecondHitAdmission, RemembersEntriesThatAreUsedRepeatedly) {
  const auto policy = make_admission("second_hit", {{"remembered", 2}});
  for (std::uint64_t other = 10; other < 100; ++other) {
    policy->on_use(kA);
    policy->on_use(EntryKey{other});
    policy->on_use(EntryKey{other});
  }
  EXPECT_TRUE(policy->admits(kA));
}

TEST(FrequencySketchAdmission, LetsAnEntryUsedMoreOftenReplaceTheVictim) {
  const auto policy = make_admission("frequency_sketch");
  EXPECT_TRUE(policy->admits(kA));
  policy->on_use(kA);
  EXPECT_TRUE(policy->replaces(kA, kB));
  policy->on_use(kB);
  EXPECT_FALSE(policy->replaces(kA, kB));
  EXPECT_FALSE(policy->replaces(kB, kA));
  policy->on_use(kA);
  EXPECT_TRUE(policy->replaces(kA, kB));
}

TEST(FrequencySketchAdmission, CountsToFifteen) {
  const auto policy = make_admission("frequency_sketch");
  for (int i = 0; i < 15; ++i) {
    policy->on_use(kA);
    policy->on_use(kB);
  }
  policy->on_use(kB);
  EXPECT_FALSE(policy->replaces(kB, kA));
}

TEST(FrequencySketchAdmission, HalvesItsCountsWithTime) {
  // 1,024 counters: after 10,240 uses, of which A has two and B one, A has one and B none. With one
  // more use B has one too.
  const auto policy = make_admission("frequency_sketch", {{"counters", 1'000}});
  policy->on_use(kA);
  policy->on_use(kA);
  policy->on_use(kB);
  for (int i = 0; i < 10'240 - 3; ++i) {
    policy->on_use(kC);
  }
  EXPECT_TRUE(policy->replaces(kA, kB));
  policy->on_use(kB);
  EXPECT_FALSE(policy->replaces(kA, kB));
}

TEST(FrequencySketchAdmission, OneCounterIsSharedByAll) {
  const auto policy = make_admission("frequency_sketch", {{"counters", 1}});
  policy->on_use(kA);
  EXPECT_FALSE(policy->replaces(kA, kB));
}

}  // namespace
}  // namespace kvtier
