#include "policies/eviction/gdsf.hpp"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::TestTier;
using Order = std::vector<std::uint32_t>;

// Computing n tokens takes n x n ns, and they take n kB: n x 10^-12 s for each byte.

constexpr EntryId kA{0};
constexpr EntryId kB{1};
constexpr EntryId kC{2};

TEST(GdsfEviction, WeighsUsesAgainstCostForEachByte) {
  // A 1 x 100, B 1 x 300; with three more uses A 4 x 100.
  TestTier tier("gdsf");
  tier.insert(kA, Tokens(100));
  tier.insert(kB, Tokens(300));
  EXPECT_EQ(tier.select()->entry, kA);
  for (int i = 0; i < 3; ++i) {
    tier.hit(kA);
  }
  EXPECT_EQ(tier.select()->entry, kB);
}

TEST(GdsfEviction, AMissMayCostTheSameForAnySize) {
  // 1 / 100 kB and 1 / 300 kB.
  TestTier tier("gdsf", {{"recompute", 0}});
  tier.insert(kA, Tokens(100));
  tier.insert(kB, Tokens(300));
  EXPECT_EQ(tier.evict_all(), (Order{1, 0}));
}

TEST(GdsfEviction, TheWorthOfAVictimIsTheBaseOfLaterUses) {
  // A 3 x 100 = 300 and B 250: B leaves. C is worth 250 + 100 = 350, more than A.
  TestTier tier("gdsf");
  tier.insert(kA, Tokens(100));
  tier.insert(kB, Tokens(250));
  tier.hit(kA);
  tier.hit(kA);
  ASSERT_EQ(tier.evict(), kB);
  tier.insert(kC, Tokens(100));
  EXPECT_EQ(tier.evict_all(), (Order{0, 2}));
}

TEST(GdsfEviction, CountsUsesAcrossTurns) {
  // A 3 x 100, B 1 x 250; without its turns A would be worth 100.
  TestTier tier("gdsf");
  tier.insert(kA, Tokens(100));
  tier.insert(kB, Tokens(250));
  tier.take_turn(kA);
  tier.take_turn(kA);
  EXPECT_EQ(tier.evict_all(), (Order{1, 0}));
}

TEST(GdsfEviction, APartDeepInAContextCostsMore) {
  // Split after 100 of 300 tokens: the head costs 100^2 ns or 100 per kB, the tail 300^2 - 100^2 ns
  // or 400 per kB. B costs 200 per kB.
  TestTier tier("gdsf");
  tier.insert(kA, Tokens(300));
  tier.insert(kB, Tokens(200));
  tier.split(kA, kC, Tokens(100));
  EXPECT_EQ(tier.evict_all(), (Order{0, 1, 2}));
}

TEST(GdsfEviction, GrowthChangesTheWorth) {
  TestTier tier("gdsf");
  tier.insert(kA, Tokens(100));
  tier.insert(kB, Tokens(300));
  tier.resize(kA, Tokens(400));
  EXPECT_EQ(tier.evict_all(), (Order{1, 0}));
}

}  // namespace
}  // namespace kvtier
