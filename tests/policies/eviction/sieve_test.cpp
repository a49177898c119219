#include "policies/eviction/sieve.hpp"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::TestTier;
using Order = std::vector<std::uint32_t>;

TestTier tier_of(std::uint32_t entries) {
  TestTier tier("sieve");
  for (std::uint32_t entry = 0; entry < entries; ++entry) {
    tier.insert(EntryId{entry});
  }
  return tier;
}

TEST(SieveEviction, TheTailOfASplitEntryHasItsMarkAndPlace) {
  TrialTier tier(sieve_eviction());
  tier.insert(EntryId{0});
  tier.insert(EntryId{1});
  tier.hit(EntryId{0});
  tier.split(EntryId{0}, EntryId{2}, Tokens(40));
  EXPECT_EQ(tier.evict(), EntryId{1});
  EXPECT_EQ(tier.evict_all(), (std::vector<std::uint32_t>{2, 0}));
}

TEST(SieveEviction, TheHandSparesUsedEntriesOnce) {
  // The hand passes 0 and takes 1, passes 2, takes 3 and 4, begins again and takes 0 and 2.
  TestTier tier = tier_of(5);
  tier.hit(EntryId{0});
  tier.hit(EntryId{2});
  EXPECT_EQ(tier.evict_all(), (Order{1, 3, 4, 0, 2}));
}

TEST(SieveEviction, TheHandStaysWhereItIs) {
  // After 1 left, the hand is past 0; what comes is ahead of it.
  TestTier tier = tier_of(3);
  tier.hit(EntryId{0});
  ASSERT_EQ(tier.evict(), EntryId{1});
  tier.insert(EntryId{3});
  EXPECT_EQ(tier.evict_all(), (Order{2, 3, 0}));
}

TEST(SieveEviction, AnEntryKeepsItsPlaceOverItsTurn) {
  // The hand passes 0 and takes 1; 0 comes back to its place behind the hand, used again, and is
  // spared when the hand comes round.
  TestTier tier = tier_of(3);
  tier.take_turn(EntryId{0});
  ASSERT_EQ(tier.evict(), EntryId{1});
  tier.take_turn(EntryId{0});
  ASSERT_EQ(tier.evict(), EntryId{2});
  tier.insert(EntryId{3});
  ASSERT_EQ(tier.evict(), EntryId{3});  // the hand began again and spared 0
  EXPECT_EQ(tier.evict(), EntryId{0});
}

TEST(SieveEviction, TheHandBeginsAgainWhenTheNewestIsTheVictim) {
  // The hand spares 0 and takes 1, the newest. What comes then is behind 0, which is not used any
  // more.
  TestTier tier = tier_of(2);
  tier.hit(EntryId{0});
  ASSERT_EQ(tier.evict(), EntryId{1});
  tier.insert(EntryId{2});
  EXPECT_EQ(tier.evict_all(), (Order{0, 2}));
}

TEST(SieveEviction, AnEntryThatIsPassedInItsTurnIsSparedAfterwards) {
  // The hand passes 0, whose turn runs, and takes 1 and 2, then begins again and spares 0 once.
  TestTier tier = tier_of(3);
  tier.begin_turn(EntryId{0});
  ASSERT_EQ(tier.evict(), EntryId{1});
  ASSERT_EQ(tier.evict(), EntryId{2});
  tier.end_turn(EntryId{0}, Tokens(100));
  tier.insert(EntryId{3});
  EXPECT_EQ(tier.evict_all(), (Order{3, 0}));
}

TEST(SieveEviction, AnEntryThatMovesIsPassedAndIsInItsPlaceAfterwards) {
  // 0 moves while the hand goes past it to 2 (used) and takes 1 and 3, then begins again.
  TestTier tier = tier_of(4);
  tier.hit(EntryId{2});
  tier.begin_move(EntryId{0});
  ASSERT_EQ(tier.evict(), EntryId{1});
  ASSERT_EQ(tier.evict(), EntryId{3});
  tier.end_move(EntryId{0});
  EXPECT_EQ(tier.evict_all(), (Order{0, 2}));
}

TEST(SieveEviction, AVictimComesBackAsTheNewest) {
  TestTier tier = tier_of(2);
  ASSERT_EQ(tier.evict(), EntryId{0});
  tier.insert(EntryId{0});
  EXPECT_EQ(tier.evict_all(), (Order{1, 0}));
}

}  // namespace
}  // namespace kvtier
