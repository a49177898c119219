#include "policies/eviction/fifo.hpp"

#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::TestTier;
using Order = std::vector<std::uint32_t>;

TEST(FifoEviction, EvictsTheFirstInsertedFirst) {
  TestTier tier("fifo");
  tier.insert(EntryId{0}, 30);
  tier.insert(EntryId{1}, 10);
  tier.insert(EntryId{2}, 20);
  EXPECT_EQ(tier.evict_all(), (Order{1, 2, 0}));
}

TEST(FifoEviction, HitsDoNotMatter) {
  TestTier tier("fifo");
  tier.insert(EntryId{0}, 10);
  tier.insert(EntryId{1}, 20);
  tier.hit(EntryId{0});
  tier.hit(EntryId{0});
  EXPECT_EQ(tier.evict_all(), (Order{0, 1}));
}

TEST(FifoEviction, AnEntryKeepsItsTimeOverItsTurnAndInOtherTiers) {
  for (const char* policy : {"fifo", "session_fifo"}) {
    TestTier tier(policy);
    tier.insert(EntryId{0}, 10);
    tier.insert(EntryId{1}, 20);
    tier.insert(EntryId{2}, 30);
    tier.take_turn(EntryId{0});
    tier.remove(EntryId{1});  // to another tier and back
    tier.insert(EntryId{1}, 20);
    EXPECT_EQ(tier.evict_all(), (Order{0, 1, 2})) << policy;
  }
}

TEST(FifoEviction, ALostEntryStartsAnew) {
  TestTier tier("fifo");
  tier.insert(EntryId{0}, 10);
  tier.insert(EntryId{1}, 20);
  EXPECT_EQ(tier.evict(), EntryId{0});
  tier.insert(EntryId{0}, 30);
  EXPECT_EQ(tier.evict_all(), (Order{1, 0}));
}

TEST(SessionFifoEviction, ALostSessionKeepsItsTime) {
  TestTier tier("session_fifo");
  tier.insert(EntryId{0}, 10);
  tier.insert(EntryId{1}, 20);
  EXPECT_EQ(tier.evict(), EntryId{0});
  tier.insert(EntryId{0}, 30);
  EXPECT_EQ(tier.evict_all(), (Order{0, 1}));
}

TEST(FifoEviction, EvictsTheFirstToEnterTheTierAmongEqualTimes) {
  TestTier tier("fifo");
  for (const std::uint32_t entry : {2U, 0U, 1U}) {
    tier.insert(EntryId{entry}, 10);
  }
  EXPECT_EQ(tier.evict_all(), (Order{2, 0, 1}));
}

TEST(SessionFifoEviction, EqualTimesLeaveInTheOrderOfEntryNumbers) {
  TestTier tier("session_fifo");
  for (const std::uint32_t entry : {2U, 0U, 1U}) {
    tier.insert(EntryId{entry}, 10);
  }
  EXPECT_EQ(tier.evict_all(), (Order{0, 1, 2}));
}

TEST(FifoEviction, SkipsEntriesThatMoveWhichKeepTheirPlace) {
  TestTier tier("fifo");
  for (std::uint32_t entry = 0; entry < 3; ++entry) {
    tier.insert(EntryId{entry}, entry);
  }
  tier.begin_move(EntryId{0});
  EXPECT_EQ(tier.evict(), EntryId{1});
  tier.end_move(EntryId{0});
  EXPECT_EQ(tier.evict_all(), (Order{0, 2}));
}

TEST(FifoEviction, AlwaysTakesTheOfferedEntriesOfTheEarliestInsertions) {
  test::expect_sets_by_scans(
      test::eviction_kind("fifo"), 4,
      [](const EntryView& a, const EntryView& b) { return a.first_inserted < b.first_inserted; });
}

TEST(SessionFifoEviction, AlwaysTakesTheOfferedEntriesOfTheEarliestSessions) {
  test::expect_sets_by_scans(
      test::eviction_kind("session_fifo"), 4,
      [](const EntryView& a, const EntryView& b) { return a.session_began < b.session_began; });
}

}  // namespace
}  // namespace kvtier
