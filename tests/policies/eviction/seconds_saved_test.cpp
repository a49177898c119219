#include "policies/eviction/seconds_saved.hpp"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::TestTier;
using Order = std::vector<std::uint32_t>;

// Computing n tokens takes n x n ns and loading them 100 x n ns, and they take n kB: beyond 100
// tokens a hit saves (n - 100) x 10^-12 s for each byte.

constexpr EntryId kA{0};
constexpr EntryId kB{1};
constexpr EntryId kC{2};

TEST(SecondsSavedEviction, EvictsTheLeastSecondsSavedForEachByteAtAnyNumberOfUses) {
  // A 100, B 300.
  TestTier tier("seconds_saved");
  tier.insert(kB, Tokens(400));
  tier.insert(kA, Tokens(200));
  for (int i = 0; i < 5; ++i) {
    tier.hit(kA);
  }
  EXPECT_EQ(tier.evict_all(), (Order{0, 1}));
}

TEST(SecondsSavedEviction, AgesUnusedEntries) {
  // A 100 leaves. B has 300 from before; C is worth 100 + 250 = 350.
  TestTier tier("seconds_saved");
  tier.insert(kA, Tokens(200));
  tier.insert(kB, Tokens(400));
  ASSERT_EQ(tier.evict(), kA);
  tier.insert(kC, Tokens(350));
  EXPECT_EQ(tier.select()->entry, kB);
  tier.hit(kB);  // 100 + 300 = 400
  EXPECT_EQ(tier.evict_all(), (Order{2, 1}));
}

TEST(SecondsSavedEviction, AnEntryThatTakesAsLongToLoadIsWorthAlmostNothing) {
  // A nanosecond each, for 50 kB and for 100 kB.
  TestTier tier("seconds_saved");
  tier.insert(kA, Tokens(50));
  tier.insert(kB, Tokens(100));
  tier.insert(kC, Tokens(101));
  EXPECT_EQ(tier.evict_all(), (Order{1, 0, 2}));
}

TEST(SecondsSavedEviction, APartDeepInAContextSavesMore) {
  // Split after 200 of 300 tokens: a hit of the head saves 200^2 - 100 x 200 ns or 100 per kB, of
  // the tail 300^2 - 200^2 - 100 x 100 ns or 400 per kB. B saves 150 per kB.
  TestTier tier("seconds_saved");
  tier.insert(kA, Tokens(300));
  tier.insert(kB, Tokens(250));
  tier.split(kA, kC, Tokens(200));
  EXPECT_EQ(tier.evict_all(), (Order{0, 1, 2}));
}

TEST(SecondsSavedEviction, GrowthChangesTheWorth) {
  TestTier tier("seconds_saved");
  tier.insert(kA, Tokens(200));
  tier.insert(kB, Tokens(400));
  tier.resize(kA, Tokens(500));
  EXPECT_EQ(tier.evict_all(), (Order{1, 0}));
}

}  // namespace
}  // namespace kvtier
