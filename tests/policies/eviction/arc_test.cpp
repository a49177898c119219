#include "policies/eviction/arc.hpp"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::TestTier;
using Order = std::vector<std::uint32_t>;

/// Three entries fit. T1 holds 3, T2 holds 0 and then 1, which had left T1 and came back.
TestTier after_a_ghost_came_back() {
  TestTier tier("arc");
  for (std::uint32_t entry = 0; entry < 3; ++entry) {
    tier.insert(EntryId{entry});
  }
  tier.hit(EntryId{0});                 // T1: 1 2, T2: 0
  EXPECT_EQ(tier.evict(), EntryId{1});  // B1: 1
  tier.insert(EntryId{3});              // T1: 2 3
  EXPECT_EQ(tier.evict(), EntryId{2});  // B1: 1 2
  tier.insert(EntryId{1});              // T1: 3, T2: 0 1, B1: 2, and the target is one entry
  return tier;
}

TEST(ArcEviction, EvictsEntriesUsedOnceFirstWithoutHistory) {
  TestTier tier("arc");
  tier.insert(EntryId{0});
  tier.hit(EntryId{0});
  tier.insert(EntryId{1});
  tier.insert(EntryId{2});
  EXPECT_EQ(tier.evict_all(), (Order{1, 2, 0}));
}

TEST(ArcEviction, AKeyThatLeftTheFirstListEnlargesIt) {
  // T1 has its target size, 100 kB, so the least recently used entry of T2 leaves: 0, and after a
  // hit on 0, 1. LRU would evict 3, and so would a target of zero.
  TestTier tier = after_a_ghost_came_back();
  EXPECT_EQ(tier.select()->entry, EntryId{0});
  tier.hit(EntryId{0});
  EXPECT_EQ(tier.select()->entry, EntryId{1});
}

TEST(ArcEviction, AKeyThatLeftTheSecondListShrinksTheFirst) {
  // 1 leaves T2 and comes back: B1 and B2 have an entry each, the target falls by one entry to
  // nothing, and T1 is too large.
  TestTier tier = after_a_ghost_came_back();
  tier.hit(EntryId{0});
  ASSERT_EQ(tier.evict(), EntryId{1});
  tier.insert(EntryId{1});
  EXPECT_EQ(tier.evict_all(), (Order{3, 0, 1}));
}

TEST(ArcEviction, ForgetsKeysUsedOnceIfTheyFillTheCache) {
  // T1 and B1 together are no larger than the cache: 0 comes back as a stranger.
  TestTier tier("arc");
  tier.insert(EntryId{0});
  tier.insert(EntryId{1});
  ASSERT_EQ(tier.evict(), EntryId{0});
  tier.insert(EntryId{2});
  ASSERT_EQ(tier.evict(), EntryId{1});
  tier.insert(EntryId{0});
  tier.insert(EntryId{3});
  EXPECT_EQ(tier.evict_all(), (Order{2, 0, 3}));
}

TEST(ArcEviction, AnEntryThatComesBackFromItsTurnWasUsedTwice) {
  TestTier tier("arc");
  tier.insert(EntryId{0});
  tier.insert(EntryId{1});
  tier.take_turn(EntryId{0});
  tier.insert(EntryId{2});
  EXPECT_EQ(tier.evict_all(), (Order{1, 2, 0}));
}

}  // namespace
}  // namespace kvtier
