#include "policies/eviction/s3fifo.hpp"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::TestTier;
using Order = std::vector<std::uint32_t>;

TestTier tier_of(std::uint32_t entries) {
  TestTier tier("s3fifo");
  for (std::uint32_t entry = 0; entry < entries; ++entry) {
    tier.insert(EntryId{entry});
  }
  return tier;
}

TEST(S3FifoEviction, OneUseIsNotEnoughForTheMainQueue) {
  // Uses of 0 to 3: one, two, none, none. 1 goes on to the main queue.
  TestTier tier = tier_of(4);
  tier.hit(EntryId{0});
  tier.hit(EntryId{1});
  tier.hit(EntryId{1});
  EXPECT_EQ(tier.evict_all(), (Order{0, 2, 3, 1}));
}

TEST(S3FifoEviction, AnEntryThatReturnsSoonEntersTheMainQueue) {
  TestTier tier = tier_of(4);
  ASSERT_EQ(tier.evict(), EntryId{0});
  tier.insert(EntryId{0});
  tier.insert(EntryId{4});
  EXPECT_EQ(tier.evict_all(), (Order{1, 2, 3, 4, 0}));
}

TEST(S3FifoEviction, RemembersAsManyBytesAsTheMainQueueMayHave) {
  // 180 of the 200 kB held are remembered: one entry. With 2 gone, 1 is forgotten.
  TestTier tier = tier_of(2);
  ASSERT_EQ(tier.evict(), EntryId{0});
  tier.insert(EntryId{2});
  ASSERT_EQ(tier.evict(), EntryId{1});
  tier.insert(EntryId{0});  // a stranger again
  tier.insert(EntryId{3});
  EXPECT_EQ(tier.evict_all(), (Order{2, 0, 3}));
}

TEST(S3FifoEviction, TheMainQueueReinsertsUsedEntries) {
  TestTier tier = tier_of(3);
  for (const std::uint32_t entry : {0U, 0U, 1U, 1U}) {
    tier.hit(EntryId{entry});
  }
  ASSERT_EQ(tier.evict(), EntryId{2});  // 0 and 1 are in the main queue now, with no uses there
  tier.hit(EntryId{0});
  EXPECT_EQ(tier.evict_all(), (Order{1, 0}));
}

TEST(S3FifoEviction, TakesFromTheMainQueueWhileTheSmallOneIsShort) {
  // 0 to 9 are in the main queue, 50 kB are in the small one: under a tenth of 1,050 kB.
  TestTier tier = tier_of(10);
  for (std::uint32_t entry = 0; entry < 10; ++entry) {
    tier.hit(EntryId{entry});
    tier.hit(EntryId{entry});
  }
  ASSERT_TRUE(tier.select());
  tier.insert(EntryId{10});
  tier.resize(EntryId{10}, Tokens(50));
  EXPECT_EQ(tier.evict(), EntryId{0});
  tier.resize(EntryId{10}, Tokens(200));
  EXPECT_EQ(tier.evict(), EntryId{10});
}

TEST(S3FifoEviction, AnEntryKeepsItsPlaceOverItsTurn) {
  TestTier tier = tier_of(2);
  tier.take_turn(EntryId{0});
  EXPECT_EQ(tier.evict_all(), (Order{0, 1}));
}

}  // namespace
}  // namespace kvtier
