#include "policies/eviction/lfu.hpp"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::TestTier;
using Order = std::vector<std::uint32_t>;

TestTier tier_of(std::uint32_t entries) {
  TestTier tier("lfu");
  for (std::uint32_t entry = 0; entry < entries; ++entry) {
    tier.insert(EntryId{entry});
  }
  return tier;
}

TEST(LfuEviction, EvictsTheFewestUsesFirst) {
  // Uses of 0, 1, 2: two, one, none.
  TestTier tier = tier_of(3);
  tier.hit(EntryId{0});
  tier.hit(EntryId{0});
  tier.hit(EntryId{1});
  EXPECT_EQ(tier.evict_all(), (Order{2, 1, 0}));
}

TEST(LfuEviction, EvictsTheLeastRecentlyUsedAmongEqualUses) {
  TestTier tier = tier_of(3);
  tier.hit(EntryId{1});
  tier.hit(EntryId{0});
  EXPECT_EQ(tier.evict_all(), (Order{2, 1, 0}));
}

TEST(LfuEviction, CountsUsesAcrossTurns) {
  // 0 has two uses and 1 has one, later.
  TestTier tier = tier_of(2);
  tier.take_turn(EntryId{0});
  tier.take_turn(EntryId{0});
  tier.take_turn(EntryId{1});
  EXPECT_EQ(tier.evict_all(), (Order{1, 0}));
}

TEST(LfuEviction, EvictsTheTurnThatEndedFirstAmongEqualUses) {
  TestTier tier = tier_of(2);
  tier.begin_turn(EntryId{0});
  tier.begin_turn(EntryId{1});
  tier.end_turn(EntryId{1}, Tokens(100));
  tier.end_turn(EntryId{0}, Tokens(100));
  EXPECT_EQ(tier.evict_all(), (Order{1, 0}));
}

TEST(LfuEviction, ForgetsTheUsesOfEntriesThatDoNotReturnFromTheirTurn) {
  TestTier tier = tier_of(2);
  tier.take_turn(EntryId{0});
  tier.take_turn(EntryId{1});
  tier.take_turn(EntryId{1});
  tier.begin_turn(EntryId{1});
  tier.lose(EntryId{1});
  tier.insert(EntryId{1});
  EXPECT_EQ(tier.evict_all(), (Order{1, 0}));
}

TEST(LfuEviction, ForgetsTheUsesOfAVictim) {
  TestTier tier = tier_of(1);
  tier.hit(EntryId{0});
  tier.hit(EntryId{0});
  ASSERT_EQ(tier.evict(), EntryId{0});
  tier.insert(EntryId{0});
  tier.insert(EntryId{1});
  tier.hit(EntryId{1});
  EXPECT_EQ(tier.evict_all(), (Order{0, 1}));
}

TEST(LfuEviction, AResizeIsNoUse) {
  TestTier tier = tier_of(2);
  tier.resize(EntryId{0}, Tokens(5'000));
  EXPECT_EQ(tier.evict_all(), (Order{0, 1}));
}

}  // namespace
}  // namespace kvtier
