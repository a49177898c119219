#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::TestTier;
using Order = std::vector<std::uint32_t>;

constexpr EntryId kA{0};
constexpr EntryId kB{1};
constexpr EntryId kC{2};
constexpr EntryId kD{3};

TestTier four() {
  TestTier tier("window_score");
  for (const EntryId entry : {kA, kB, kC, kD}) {
    tier.insert(entry);
  }
  return tier;
}

TEST(WindowScore, WithoutAWindowLeastRecentlyUsedFirst) {
  TestTier tier = four();
  tier.hit(kA);
  tier.change_queue(kB, QueuePosition{0});  // waits, and the window has not reached it
  EXPECT_EQ(tier.evict_all(), (Order{1, 2, 3, 0}));
}

TEST(WindowScore, EntriesOfTheWindowLeaveLastAndFromItsTail) {
  TestTier tier = four();
  tier.change_queue(kA, QueuePosition{0});
  tier.change_queue(kB, QueuePosition{1});
  tier.change_queue(kC, QueuePosition{2});
  tier.set_window_end(QueuePosition{2});
  // C waits beyond the window and is as good as D, which was used last.
  EXPECT_EQ(tier.evict_all(), (Order{2, 3, 1, 0}));
}

TEST(WindowScore, TheWindowMovesOn) {
  TestTier tier = four();
  tier.change_queue(kA, QueuePosition{0});
  tier.change_queue(kB, QueuePosition{1});
  tier.set_window_end(QueuePosition{1});
  EXPECT_EQ(tier.select()->entry, kB);
  tier.set_window_end(QueuePosition{2});
  EXPECT_EQ(tier.select()->entry, kC);
}

TEST(WindowScore, AFinishedRequestTakesItsScoreWithIt) {
  TestTier tier = four();
  tier.set_window_end(QueuePosition{4});
  tier.change_queue(kA, QueuePosition{0});
  tier.change_queue(kB, QueuePosition{1});
  static_cast<void>(tier.select());
  tier.begin_move(kA);  // sent to the GPUs
  tier.change_queue(kA, kNotQueued);
  tier.end_move(kA);  // and done
  // A is the most recently listed of those without a request in the window.
  EXPECT_EQ(tier.evict_all(), (Order{2, 3, 0, 1}));
  EXPECT_NO_THROW(tier.check());
}

TEST(WindowScore, AnEntryThatComesIntoTheTierBringsItsScore) {
  TestTier tier = four();
  tier.set_window_end(QueuePosition{4});
  static_cast<void>(tier.select());
  tier.insert(EntryId{4}, 100, QueuePosition{2});  // inside
  tier.insert(EntryId{5}, 100, QueuePosition{9});  // beyond
  EXPECT_EQ(tier.evict_all(), (Order{0, 1, 2, 3, 5, 4}));
}

TEST(WindowScore, NewcomersDoNotEvictEntriesThatRunBeforeThem) {
  TestTier tier("window_score");
  tier.set_window_end(QueuePosition{8});
  tier.insert(kA, 0, QueuePosition{3});
  tier.insert(kB, 0, QueuePosition{5});
  for (const Demand demand : {Demand::prefetch, Demand::demotion}) {
    EXPECT_FALSE(tier.select(demand, QueuePosition{6}));
    EXPECT_EQ(tier.select(demand, QueuePosition{4})->entry, kB);
  }
  EXPECT_EQ(tier.select(Demand::save)->entry, kB);
  EXPECT_EQ(tier.select(Demand::background)->entry, kB);
}

/// An entry that several requests wait for scores for each of those in the window.
TEST(WindowScore, CountsEveryRequestOfASharedEntry) {
  const auto policy = test::make_eviction("window_score");
  const auto insert = [&](EntryId entry, QueuePosition first) {
    policy->on_insert({.id = entry,
                       .key = EntryKey{entry.value},
                       .tokens = Tokens(1),
                       .bytes = Bytes(1),
                       .first_inserted = SimTime(0),
                       .last_used = SimTime(0),
                       .queue_position = first},
                      SimTime(0));
  };
  const auto victim = [&](std::uint64_t window_end) {
    VictimSet offers;
    for (const EntryId entry : {kA, kB, kC}) {
      offers.offer(entry, Bytes(1));
    }
    const RoomRequest request{.now = SimTime(0),
                              .queue_first = QueuePosition{0},
                              .window_end = QueuePosition{window_end}};
    return offers.choose(*policy, request, Bytes(1)) ? offers.victims().front().entry : kNoEntry;
  };
  insert(kA, QueuePosition{1});  // shared: requests at 1, 2 and 7
  for (const std::uint64_t position : {2U, 7U}) {
    policy->on_queue_change(
        kA, {.position = QueuePosition{position}, .waits = true, .first = QueuePosition{1}});
  }
  insert(kB, QueuePosition{0});
  insert(kC, QueuePosition{3});
  // Window 0 .. 3: A has 2 requests there, B and C one each, C's is later.
  EXPECT_EQ(victim(4), kC);
  policy->on_remove(kC, SimTime(0));
  EXPECT_EQ(victim(4), kB);
  // The request at 1 leaves for the GPUs; then A and B have one each, and A's is later.
  policy->on_queue_change(
      kA, {.position = QueuePosition{1}, .waits = false, .first = QueuePosition{2}});
  EXPECT_EQ(victim(4), kA);
  // The one at 7 comes into the window.
  EXPECT_EQ(victim(8), kB);
  // A is removed with requests waiting and leaves no state, because its number is used again.
  policy->on_queue_change(kA,
                          {.position = QueuePosition{9}, .waits = true, .first = QueuePosition{2}});
  policy->on_remove(kA, SimTime(0));
  insert(kA, kNotQueued);
  EXPECT_EQ(victim(20), kA);
}

/// A request waits for its session's entry and for its prompt's, at one position.
TEST(WindowScore, OneRequestMayWaitForTwoEntries) {
  TestTier tier = four();
  for (const EntryId entry : {kA, kB}) {
    tier.change_queue(entry, QueuePosition{7});
  }
  tier.change_queue(kC, QueuePosition{8});
  EXPECT_NO_THROW(tier.check());
  tier.set_window_end(QueuePosition{8});
  EXPECT_EQ(tier.select()->entry, kC) << "beyond the window";
  EXPECT_NO_THROW(tier.check());
  for (const EntryId entry : {kA, kB}) {
    tier.change_queue(entry, kNotQueued);
  }
  EXPECT_NO_THROW(tier.check());
  // And once more, leaving before the window comes.
  for (const EntryId entry : {kA, kB}) {
    tier.change_queue(entry, QueuePosition{9});
    tier.change_queue(entry, kNotQueued);
  }
  EXPECT_NO_THROW(tier.check());
  tier.set_window_end(QueuePosition{10});
  EXPECT_EQ(tier.evict_all(), (Order{3, 0, 1, 2}));
}

}  // namespace
}  // namespace kvtier
