#include "policies/eviction/scheduler_aware.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::entries_of;
using test::RandomDriver;
using test::set_by_scans;
using test::TestTier;
using Order = std::vector<std::uint32_t>;

TestTier tier_of(std::uint32_t entries, const PolicyParameters& parameters = {}) {
  TestTier tier("scheduler_aware", parameters);
  for (std::uint32_t entry = 0; entry < entries; ++entry) {
    tier.insert(EntryId{entry});
  }
  return tier;
}

TEST(SchedulerAwareEviction, EvictsIdleEntriesFirstAndTheLeastRecentlyUsedOfThem) {
  // Requests for 0 and 3 wait; of the idle 1 2 4 the hit on 1 makes it the last.
  TestTier tier = tier_of(5);
  tier.change_queue(EntryId{0}, QueuePosition{1});
  tier.change_queue(EntryId{3}, QueuePosition{0});
  tier.hit(EntryId{1});
  EXPECT_EQ(tier.evict_all(), (Order{2, 4, 1, 0, 3}));
}

TEST(SchedulerAwareEviction, ThenEvictsTheLastInTheQueueFirst) {
  TestTier tier = tier_of(4);
  tier.change_queue(EntryId{0}, QueuePosition{12});
  tier.change_queue(EntryId{1}, QueuePosition{10});
  tier.change_queue(EntryId{2}, QueuePosition{13});
  tier.change_queue(EntryId{3}, QueuePosition{11});
  EXPECT_EQ(tier.evict_all(), (Order{2, 0, 3, 1}));
}

TEST(SchedulerAwareEviction, HitsDoNotChangeTheOrderOfWaitingEntries) {
  TestTier tier = tier_of(3);
  for (std::uint32_t entry = 0; entry < 3; ++entry) {
    tier.change_queue(EntryId{entry}, QueuePosition{entry});
  }
  tier.hit(EntryId{2});
  EXPECT_EQ(tier.evict_all(), (Order{2, 1, 0}));
}

TEST(SchedulerAwareEviction, AnEntryMayComeWithItsPlaceInTheQueue) {
  TestTier tier("scheduler_aware");
  tier.insert(EntryId{0}, 0, QueuePosition{5});
  tier.insert(EntryId{1}, 0, QueuePosition{6});
  tier.insert(EntryId{2}, 0);
  tier.check();
  EXPECT_EQ(tier.evict_all(), (Order{2, 1, 0}));
}

TEST(SchedulerAwareEviction, AnEntryWhoseRequestLeftTheQueueIsTheMostRecentlyUsedIdleOne) {
  TestTier tier = tier_of(3);
  tier.change_queue(EntryId{0}, QueuePosition{0});
  tier.change_queue(EntryId{0}, kNotQueued);
  EXPECT_EQ(tier.evict_all(), (Order{1, 2, 0}));
}

TEST(SchedulerAwareEviction, ARequestMayChangeItsPlace) {
  TestTier tier = tier_of(2);
  tier.change_queue(EntryId{0}, QueuePosition{0});
  tier.change_queue(EntryId{1}, QueuePosition{1});
  tier.change_queue(EntryId{0}, QueuePosition{2});
  tier.check();
  EXPECT_EQ(tier.evict_all(), (Order{0, 1}));
}

TEST(SchedulerAwareEviction, APrefetchNeverDisplacesAnEntryThatRunsBefore) {
  TestTier tier = tier_of(2);
  tier.change_queue(EntryId{0}, QueuePosition{3});
  tier.change_queue(EntryId{1}, QueuePosition{5});
  // The newcomer at 6 runs after both; the one at 4 runs before entry 1; then only entry 0 is left.
  EXPECT_EQ(tier.evict(Demand::prefetch, QueuePosition{6}), kNoEntry);
  EXPECT_EQ(tier.evict(Demand::prefetch, QueuePosition{4}), EntryId{1});
  EXPECT_EQ(tier.evict(Demand::prefetch, QueuePosition{4}), kNoEntry);
  EXPECT_EQ(tier.evict(Demand::prefetch, QueuePosition{2}), EntryId{0});
}

TEST(SchedulerAwareEviction, ADemotionNeverDisplacesAnEntryThatRunsBefore) {
  TestTier tier = tier_of(2);
  tier.change_queue(EntryId{0}, QueuePosition{3});
  tier.change_queue(EntryId{1}, QueuePosition{5});
  EXPECT_EQ(tier.evict(Demand::demotion, QueuePosition{6}), kNoEntry);
  EXPECT_EQ(tier.evict(Demand::demotion, QueuePosition{4}), EntryId{1});
  // A demoted entry without a request is worth less than any that waits.
  EXPECT_EQ(tier.evict(Demand::demotion, kNotQueued), kNoEntry);
}

TEST(SchedulerAwareEviction, ANewcomerWithoutARequestStillDisplacesAnIdleEntry) {
  TestTier tier = tier_of(2);
  tier.change_queue(EntryId{0}, QueuePosition{3});
  EXPECT_EQ(tier.evict(Demand::demotion, kNotQueued), EntryId{1});
  EXPECT_EQ(tier.evict(Demand::demotion, kNotQueued), kNoEntry);
}

TEST(SchedulerAwareEviction, ASaveAndTheFreeBufferAlwaysGetAVictim) {
  TestTier tier = tier_of(2);
  tier.change_queue(EntryId{0}, QueuePosition{3});
  tier.change_queue(EntryId{1}, QueuePosition{5});
  EXPECT_EQ(tier.evict(Demand::save), EntryId{1});
  EXPECT_EQ(tier.evict(Demand::background), EntryId{0});
}

TEST(SchedulerAwareEviction, EntriesThatMoveAreSkippedAndKeepTheirPlaceInEitherGroup) {
  TestTier tier = tier_of(4);
  tier.change_queue(EntryId{2}, QueuePosition{0});
  tier.change_queue(EntryId{3}, QueuePosition{1});
  tier.begin_move(EntryId{0});
  tier.begin_move(EntryId{3});
  tier.check();
  EXPECT_EQ(tier.evict(), EntryId{1});
  EXPECT_EQ(tier.select()->entry, EntryId{2});
  tier.end_move(EntryId{3});
  EXPECT_EQ(tier.select()->entry, EntryId{3});
  tier.end_move(EntryId{0});
  EXPECT_EQ(tier.evict_all(), (Order{0, 3, 2}));
}

TEST(SchedulerAwareEviction, QueueChangesOfEntriesThatMoveCount) {
  TestTier tier = tier_of(3);
  tier.begin_move(EntryId{0});
  tier.change_queue(EntryId{0}, QueuePosition{4});
  tier.begin_move(EntryId{1});
  tier.change_queue(EntryId{1}, QueuePosition{5});
  tier.change_queue(EntryId{1}, kNotQueued);
  tier.check();
  tier.end_move(EntryId{0});
  tier.end_move(EntryId{1});
  tier.check();
  // Idle: 2, then 1, whose request has left the queue.
  EXPECT_EQ(tier.evict_all(), (Order{2, 1, 0}));
}

TEST(SchedulerAwareEviction, RequestsBeyondTheWindowLeaveInLruOrderBeforeThoseInside) {
  // Window 2 from position 10: requests for 0 (at 10) and 3 (at 11) are seen. 1 (at 12), 2 (idle)
  // and 4 (at 13) are not told apart: least recently used first, and the hit on 1 makes it the
  // last. Then the window from its tail: 3, 0.
  TestTier tier = tier_of(5, {{"window", 2}});
  tier.set_queue_first(QueuePosition{10});
  tier.change_queue(EntryId{0}, QueuePosition{10});
  tier.change_queue(EntryId{3}, QueuePosition{11});
  tier.change_queue(EntryId{1}, QueuePosition{12});
  tier.change_queue(EntryId{4}, QueuePosition{13});
  tier.hit(EntryId{1});
  tier.check();
  EXPECT_EQ(tier.evict_all(), (Order{2, 4, 1, 3, 0}));
}

TEST(SchedulerAwareEviction, TheWindowMovesWithTheHeadOfTheQueue) {
  TestTier tier = tier_of(3, {{"window", 1}});
  tier.set_queue_first(QueuePosition{0});
  for (std::uint32_t entry = 0; entry < 3; ++entry) {
    tier.change_queue(EntryId{entry}, QueuePosition{entry});
  }
  // Seen: 0. The others leave in LRU order: 1 would be next.
  EXPECT_EQ(tier.select()->entry, EntryId{1});
  // 0 is admitted and idle; now 1 is seen, 2 is not, and 2 was used before 0 left the queue.
  tier.change_queue(EntryId{0}, kNotQueued);
  tier.set_queue_first(QueuePosition{1});
  EXPECT_EQ(tier.select()->entry, EntryId{2});
  tier.check();
  EXPECT_EQ(tier.evict_all(), (Order{2, 0, 1}));
}

TEST(SchedulerAwareEviction, RequestsBeyondTheWindowDoNotProtectFromNewcomers) {
  TestTier tier = tier_of(1, {{"window", 2}});
  tier.set_queue_first(QueuePosition{0});
  tier.change_queue(EntryId{0}, QueuePosition{5});
  EXPECT_EQ(tier.evict(Demand::demotion, kNotQueued), EntryId{0});
}

/// Two tiers with different policies must give the same victims for the same operations.
void expect_equal_to_lru(const PolicyParameters& parameters, bool with_queue) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    TestTier lru("lru");
    TestTier scheduler_aware("scheduler_aware", parameters);
    RandomDriver driver(seed, with_queue);
    int victims = 0;
    for (int step = 0; step < 10'000; ++step) {
      driver.step({&lru, &scheduler_aware}, [&](const auto&, const auto& answers) {
        ASSERT_EQ(entries_of(answers[0]), entries_of(answers[1])) << "step " << step;
        victims += static_cast<int>(answers[0].size());
      });
      if (testing::Test::HasFatalFailure()) {
        return;
      }
    }
    EXPECT_GT(victims, 200);
  }
}

TEST(SchedulerAwareEviction, AWindowOfZeroIsLruWhateverTheQueueDoes) {
  expect_equal_to_lru({{"window", 0}}, true);
}

TEST(SchedulerAwareEviction, AnEmptyQueueMakesItLru) {
  expect_equal_to_lru({}, false);
  expect_equal_to_lru({{"window", 3}}, false);
}

TEST(SchedulerAwareEviction, AWindowLongerThanTheQueueSeesAll) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    TestTier all("scheduler_aware");
    TestTier window("scheduler_aware", {{"window", 1e12}});
    RandomDriver driver(seed, true);
    for (int step = 0; step < 10'000 && !HasFailure(); ++step) {
      driver.step({&all, &window}, [&](const auto&, const auto& answers) {
        ASSERT_EQ(answers[0].empty(), answers[1].empty()) << "step " << step;
        const auto waiting = [&](const std::vector<Victim>& victims) {
          std::vector<EntryId> entries = entries_of(victims);
          std::erase_if(entries, [&](EntryId entry) {
            return all.residents().at(entry).view.queue_position == kNotQueued;
          });
          return entries;
        };
        ASSERT_EQ(waiting(answers[0]), waiting(answers[1])) << "step " << step;
      });
    }
  }
}

/// The rule as scans over all entries.
class Oracle {
 public:
  explicit Oracle(std::optional<std::uint64_t> window) : window_(window) {}

  std::vector<EntryId> choose(const TestTier& tier, const RandomDriver::Selection& selection) {
    see(tier, selection.queue_first);
    return set_by_scans(tier, selection.wanted, [&](const std::set<EntryId>& taken) {
      return next(tier, selection, taken).value_or(kNoEntry);
    });
  }

  /// Compares the tier with what was known of it before the latest operation.
  void follow(const TestTier& tier) {
    ++now_;
    std::erase_if(known_, [&](const auto& item) { return !tier.holds(item.first); });
    for (const auto& [entry, resident] : tier.residents()) {
      const EntryView& view = resident.view;
      const auto found = known_.find(entry);
      if (found == known_.end()) {
        known_[entry] = {view.queue_position, view.last_used, now_, sees_all(view.queue_position)};
        continue;
      }
      Known& known = found->second;
      if (view.last_used != known.last_used) {
        known.last_used = view.last_used;
        known.idle_since = known.seen ? known.idle_since : now_;
      }
      if (view.queue_position != known.position) {
        known.idle_since = known.seen ? now_ : known.idle_since;
        known.position = view.queue_position;
        known.seen = sees_all(view.queue_position);
      }
    }
  }

 private:
  struct Known {
    QueuePosition position;
    SimTime last_used;
    std::int64_t idle_since = 0;
    bool seen = false;
  };

  [[nodiscard]] std::optional<EntryId> next(const TestTier& tier,
                                            const RandomDriver::Selection& selection,
                                            const std::set<EntryId>& taken) const {
    std::optional<EntryId> idle;
    std::optional<EntryId> last;
    for (const auto& [entry, resident] : tier.residents()) {
      if (!resident.offered() || taken.contains(entry)) {
        continue;
      }
      const Known& known = known_.at(entry);
      if (!known.seen) {
        idle = !idle || known.idle_since < known_.at(*idle).idle_since ? entry : idle;
      } else {
        last = !last || known.position > known_.at(*last).position ? entry : last;
      }
    }
    if (idle || !last) {
      return idle;
    }
    const bool newcomer =
        selection.demand == Demand::prefetch || selection.demand == Demand::demotion;
    return newcomer && selection.incoming > known_.at(*last).position ? std::nullopt : last;
  }

  [[nodiscard]] bool sees_all(QueuePosition position) const {
    return !window_ && position != kNotQueued;
  }
  void see(const TestTier& tier, QueuePosition first) {
    for (const auto& [entry, resident] : tier.residents()) {
      Known& known = known_.at(entry);
      known.seen = known.seen || (window_ && known.position != kNotQueued &&
                                  known.position.value - first.value < *window_);
    }
  }

  std::optional<std::uint64_t> window_;
  std::map<EntryId, Known> known_;
  std::int64_t now_ = 0;
};

void expect_equal_to_oracle(const PolicyParameters& parameters,
                            std::optional<std::uint64_t> window) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    TestTier tier("scheduler_aware", parameters);
    Oracle oracle(window);
    RandomDriver driver(seed, true);
    int from_queue = 0;
    for (int step = 0; step < 10'000; ++step) {
      driver.step({&tier}, [&](const RandomDriver::Selection& selection, const auto& answers) {
        const std::vector<EntryId> expected = oracle.choose(tier, selection);
        ASSERT_EQ(entries_of(answers.front()), expected) << "step " << step;
        for (const EntryId entry : expected) {
          from_queue += tier.residents().at(entry).view.queue_position != kNotQueued ? 1 : 0;
        }
      });
      if (testing::Test::HasFatalFailure()) {
        return;
      }
      oracle.follow(tier);
    }
    EXPECT_GT(from_queue, 20);
  }
}

TEST(SchedulerAwareEviction, AgreesWithScansOverAllEntries) { expect_equal_to_oracle({}, {}); }

TEST(SchedulerAwareEviction, AgreesWithScansOverAllEntriesInsideAWindow) {
  expect_equal_to_oracle({{"window", 1}}, 1);
  expect_equal_to_oracle({{"window", 6}}, 6);
}

}  // namespace
}  // namespace kvtier
