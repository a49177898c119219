#include "policies/eviction/fifo.hpp"

#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::RandomDriver;
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

TEST(FifoEviction, AnEntryThatComesBackKeepsItsFirstTime) {
  // Entry 0 leaves the tier for its turn and is saved again after 1 came: it is still the oldest.
  TestTier tier("fifo");
  tier.insert(EntryId{0}, 10);
  tier.insert(EntryId{1}, 20);
  tier.remove(EntryId{0});
  tier.insert(EntryId{0}, 10);
  EXPECT_EQ(tier.evict_all(), (Order{0, 1}));
}

TEST(FifoEviction, AnEntryThatWasLostStartsAnew) {
  TestTier tier("fifo");
  tier.insert(EntryId{0}, 10);
  tier.insert(EntryId{1}, 20);
  EXPECT_EQ(tier.evict(), EntryId{0});
  tier.insert(EntryId{0}, 30);
  EXPECT_EQ(tier.evict_all(), (Order{1, 0}));
}

TEST(FifoEviction, EqualTimesLeaveInTheOrderOfEntryNumbers) {
  TestTier tier("fifo");
  for (const std::uint32_t entry : {2U, 0U, 1U}) {
    tier.insert(EntryId{entry}, 10);
  }
  EXPECT_EQ(tier.evict_all(), (Order{0, 1, 2}));
}

TEST(FifoEviction, SkipsPinnedEntriesWhichKeepTheirPlace) {
  TestTier tier("fifo");
  for (std::uint32_t entry = 0; entry < 3; ++entry) {
    tier.insert(EntryId{entry}, entry);
  }
  tier.pin(EntryId{0});
  EXPECT_EQ(tier.evict(), EntryId{1});
  tier.unpin(EntryId{0});
  EXPECT_EQ(tier.evict_all(), (Order{0, 2}));
}

TEST(FifoEviction, AlwaysTakesTheUnpinnedEntryOfTheEarliestFirstInsertion) {
  TestTier tier("fifo");
  RandomDriver driver(4, false);
  int selections = 0;
  for (int step = 0; step < 20'000 && !HasFailure(); ++step) {
    driver.step({&tier}, [&](const auto&, const auto& answers) {
      // The map runs by entry number, so the first of equal times is kept.
      EntryId oldest = kNoEntry;
      for (const auto& [entry, resident] : tier.residents()) {
        const bool older = !oldest.valid() || resident.view.first_inserted <
                                                  tier.residents().at(oldest).view.first_inserted;
        oldest = !resident.pinned && older ? entry : oldest;
      }
      const std::optional<Victim>& victim = answers.front();
      EXPECT_EQ(victim ? victim->entry : kNoEntry, oldest) << "step " << step;
      ++selections;
    });
  }
  EXPECT_GT(selections, 1'000);
}

}  // namespace
}  // namespace kvtier
