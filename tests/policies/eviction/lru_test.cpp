#include "policies/eviction/lru.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::TestTier;
using Order = std::vector<std::uint32_t>;

TestTier tier_of(std::uint32_t entries) {
  TestTier tier("lru");
  for (std::uint32_t entry = 0; entry < entries; ++entry) {
    tier.insert(EntryId{entry});
  }
  return tier;
}

TEST(LruEviction, EvictsLeastRecentlyUsedFirst) {
  // Inserted 0 1 2 3; hits on 0 and 2 leave the order 1 3 0 2.
  TestTier tier = tier_of(4);
  tier.hit(EntryId{0});
  tier.hit(EntryId{2});
  EXPECT_EQ(tier.evict_all(), (Order{1, 3, 0, 2}));
}

TEST(LruEviction, TheTailOfASplitEntryLeavesJustBeforeItsHead) {
  TrialTier tier(lru_eviction());
  tier.insert(EntryId{0});
  tier.insert(EntryId{1});
  tier.insert(EntryId{2});
  tier.split(EntryId{1}, EntryId{3}, Tokens(40));
  EXPECT_EQ(tier.evict_all(), (std::vector<std::uint32_t>{0, 3, 1, 2}));
}

TEST(LruEviction, AnInsertionIsAUse) {
  TestTier tier = tier_of(3);
  tier.remove(EntryId{0});
  tier.insert(EntryId{0});
  EXPECT_EQ(tier.evict_all(), (Order{1, 2, 0}));
}

TEST(LruEviction, TheTurnThatEndedFirstLeavesFirst) {
  TestTier tier = tier_of(3);
  tier.begin_turn(EntryId{0});
  tier.begin_turn(EntryId{1});
  tier.end_turn(EntryId{1}, Tokens(100));
  tier.end_turn(EntryId{0}, Tokens(100));
  EXPECT_EQ(tier.evict_all(), (Order{2, 1, 0}));
}

TEST(LruEviction, AHitMovesAnEntryToTheEndOnceHoweverOften) {
  TestTier tier = tier_of(3);
  tier.hit(EntryId{0});
  tier.hit(EntryId{0});
  tier.hit(EntryId{0});
  EXPECT_EQ(tier.evict_all(), (Order{1, 2, 0}));
}

TEST(LruEviction, SkipsEntriesThatMoveWhichKeepTheirPlace) {
  TestTier tier = tier_of(4);
  tier.begin_move(EntryId{0});
  tier.begin_move(EntryId{1});
  EXPECT_EQ(tier.evict(), EntryId{2});
  tier.end_move(EntryId{1});
  EXPECT_EQ(tier.evict_all(), (Order{1, 3}));
  tier.end_move(EntryId{0});
  EXPECT_EQ(tier.evict_all(), Order{0});
}

TEST(LruEviction, AHitOnAnEntryThatMovesCounts) {
  TestTier tier = tier_of(3);
  tier.begin_move(EntryId{0});
  tier.hit(EntryId{0});
  tier.end_move(EntryId{0});
  EXPECT_EQ(tier.evict_all(), (Order{1, 2, 0}));
}

TEST(LruEviction, AResizeIsNoUse) {
  TestTier tier = tier_of(2);
  tier.resize(EntryId{0}, Tokens(5'000));
  EXPECT_EQ(tier.evict_all(), (Order{0, 1}));
}

TEST(LruEviction, DoesNotLookAtTheQueueOrTheDemand) {
  TestTier tier = tier_of(4);
  EXPECT_FALSE(tier.sees_queue());
  EXPECT_EQ(tier.evict(Demand::prefetch, QueuePosition{9}), EntryId{0});
  EXPECT_EQ(tier.evict(Demand::demotion, QueuePosition{9}), EntryId{1});
  EXPECT_EQ(tier.evict(Demand::background), EntryId{2});
  EXPECT_EQ(tier.evict(Demand::save), EntryId{3});
}

TEST(LruEviction, AlwaysTakesTheOfferedEntriesOfTheEarliestLastUses) {
  test::expect_sets_by_scans(
      test::eviction_kind("lru"), 3,
      [](const EntryView& a, const EntryView& b) { return a.last_used < b.last_used; });
}

}  // namespace
}  // namespace kvtier
