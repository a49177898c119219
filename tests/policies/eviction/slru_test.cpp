#include "policies/eviction/slru.hpp"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::TestTier;
using Order = std::vector<std::uint32_t>;

TestTier tier_of(double protected_share) {
  return TestTier("slru", {{"protected_share", protected_share}});
}

TEST(SlruEviction, ProtectsUsedEntries) {
  // 0 is protected: 100 kB of 400. LRU would take it second.
  TestTier tier = tier_of(0.5);
  tier.insert(EntryId{0});
  tier.insert(EntryId{1});
  tier.hit(EntryId{0});
  tier.insert(EntryId{2});
  tier.insert(EntryId{3});
  EXPECT_EQ(tier.evict_all(), (Order{1, 2, 3, 0}));
}

TEST(SlruEviction, AnEntryThatComesBackFromItsTurnIsProtected) {
  TestTier tier = tier_of(0.5);
  tier.insert(EntryId{0});
  tier.insert(EntryId{1});
  tier.take_turn(EntryId{0});
  tier.insert(EntryId{2});
  EXPECT_EQ(tier.evict_all(), (Order{1, 2, 0}));
}

TEST(SlruEviction, AVictimThatComesBackIsNot) {
  TestTier tier = tier_of(0.5);
  tier.insert(EntryId{0});
  tier.hit(EntryId{0});
  ASSERT_EQ(tier.evict(), EntryId{0});
  tier.insert(EntryId{0});
  tier.insert(EntryId{1});
  EXPECT_EQ(tier.evict_all(), (Order{0, 1}));
}

TEST(SlruEviction, ProtectsNoMoreThanItsShareOfTheBytes) {
  // 0 has grown: 400 kB of 500 are protected, of which 250 may be. It goes on probation behind 1,
  // before 2 is inserted.
  TestTier tier = tier_of(0.5);
  tier.insert(EntryId{0});
  tier.insert(EntryId{1});
  tier.hit(EntryId{0});
  tier.resize(EntryId{0}, Tokens(400));
  EXPECT_EQ(tier.select()->entry, EntryId{1});
  tier.insert(EntryId{2});
  EXPECT_EQ(tier.evict_all(), (Order{1, 0, 2}));
}

TEST(SlruEviction, SparesTheProtectedSegmentBelowItsShare) {
  // The same without growth: 100 kB of 200 may be protected.
  TestTier tier = tier_of(0.5);
  tier.insert(EntryId{0});
  tier.insert(EntryId{1});
  tier.hit(EntryId{0});
  EXPECT_EQ(tier.select()->entry, EntryId{1});
  tier.insert(EntryId{2});
  EXPECT_EQ(tier.evict_all(), (Order{1, 2, 0}));
}

}  // namespace
}  // namespace kvtier
