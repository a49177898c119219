#include "policies/eviction/mru.hpp"

#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::TestTier;
using Order = std::vector<std::uint32_t>;

TestTier tier_of(std::uint32_t entries) {
  TestTier tier("mru");
  for (std::uint32_t entry = 0; entry < entries; ++entry) {
    tier.insert(EntryId{entry});
  }
  return tier;
}

TEST(MruEviction, EvictsTheMostRecentlyUsedFirst) {
  // Uses in the order 0 1 2 3, then 1, and 2 in a turn.
  TestTier tier = tier_of(4);
  tier.hit(EntryId{1});
  tier.take_turn(EntryId{2});
  EXPECT_EQ(tier.evict_all(), (Order{2, 1, 3, 0}));
}

TEST(MruEviction, AResizeIsNoUse) {
  TestTier tier = tier_of(2);
  tier.resize(EntryId{0}, Tokens(5'000));
  EXPECT_EQ(tier.evict_all(), (Order{1, 0}));
}

TEST(MruEviction, AlwaysTakesTheOfferedEntriesOfTheLatestUses) {
  test::expect_sets_by_scans(
      test::eviction_kind("mru"), 3,
      [](const EntryView& a, const EntryView& b) { return a.last_used > b.last_used; });
}

}  // namespace
}  // namespace kvtier
