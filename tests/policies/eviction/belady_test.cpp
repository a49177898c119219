#include "policies/eviction/belady.hpp"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::TestTier;
using Order = std::vector<std::uint32_t>;

constexpr Bytes kSize(100'000);

/// Entries of one size, used next at these times.
TestTier tier_of(const std::vector<SimTime>& next_uses) {
  TestTier tier("belady");
  for (std::uint32_t entry = 0; entry < next_uses.size(); ++entry) {
    tier.insert(EntryId{entry});
    tier.set_next_use(EntryId{entry}, next_uses[entry]);
  }
  return tier;
}

TEST(BeladyEviction, EvictsTheLatestNextUseFirst) {
  TestTier tier = tier_of({SimTime(50), SimTime(90), SimTime(70), kNever});
  EXPECT_NO_THROW(tier.check());
  EXPECT_EQ(tier.evict_all(), (Order{3, 1, 2, 0}));
}

TEST(BeladyEviction, FollowsAChangedNextUse) {
  TestTier tier = tier_of({SimTime(50), SimTime(90)});
  tier.set_next_use(EntryId{0}, SimTime(100));
  EXPECT_EQ(tier.evict_all(), (Order{0, 1}));
}

TEST(BeladyEviction, ANewcomerThatIsUsedLaterStaysOut) {
  TestTier tier = tier_of({SimTime(50), SimTime(90)});
  EXPECT_TRUE(tier.choose_for(kSize, SimTime(90)).empty());
  EXPECT_TRUE(tier.choose_for(kSize, kNever).empty());
  // Without a newcomer room is made all the same.
  EXPECT_EQ(tier.select()->entry, EntryId{1});
  EXPECT_EQ(test::entries_of(tier.choose_for(kSize, SimTime(89))), std::vector{EntryId{1}});
}

TEST(BeladyEviction, NothingLeavesIfOneOfTheSetIsUsedBeforeTheNewcomer) {
  TestTier tier = tier_of({SimTime(50), SimTime(90)});
  EXPECT_TRUE(tier.choose_for(kSize * 2, SimTime(89)).empty());
  EXPECT_EQ(tier.evict_all(), (Order{1, 0}));
}

TEST(BeladyEviction, WeighsBytesAgainstTime) {
  // At 6: 100 x 84 = 8,400, 300 x 44 = 13,200 and 150 x 54 = 8,100 kB ns.
  TestTier tier = tier_of({SimTime(90), SimTime(50), SimTime(60)});
  tier.resize(EntryId{1}, Tokens(300));
  tier.resize(EntryId{2}, Tokens(150));
  tier.wait(1);
  ASSERT_EQ(tier.now(), SimTime(6));
  EXPECT_EQ(tier.evict(), EntryId{1});
  EXPECT_NO_THROW(tier.check());
  EXPECT_EQ(tier.evict(), EntryId{0});
  ASSERT_EQ(tier.now(), SimTime(8));
  // At 8 the last one has 150 x 52 = 7,800, a newcomer 50 x 164 = 8,200, or 50 x 92 = 4,600.
  EXPECT_TRUE(tier.choose_for(Bytes(50'000), SimTime(172)).empty());
  EXPECT_FALSE(tier.choose_for(Bytes(50'000), SimTime(100)).empty());
}

TEST(BeladyEviction, InvariantsHoldOnlyIfTheFutureAgrees) {
  TestTier tier = tier_of({SimTime(50), SimTime(90)});
  test::FalseView other(tier);
  other.residents.at(EntryId{0}).view.next_use = SimTime(51);
  EXPECT_THROW(tier.check_against(other), InvariantError);
}

}  // namespace
}  // namespace kvtier
