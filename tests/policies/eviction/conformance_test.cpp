/// What every eviction policy owes the tier, run over all that are registered, each with its
/// default parameters and with each parameter set to small values.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "sim/core/assert.hpp"
#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::FalseView;
using test::RandomDriver;
using test::TestTier;

struct Case {
  std::string label;
  std::string policy;
  PolicyParameters parameters;

  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.label; }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto& kind : builtin_policies().eviction) {
    cases.push_back({kind.name, kind.name, {}});
    for (const PolicyParameter& parameter : kind.parameters) {
      for (const double above : {0.0, 5.0}) {
        const double value = std::min(parameter.minimum + above, parameter.maximum);
        cases.push_back(
            {kind.name + "_" + parameter.name + (above == 0 ? "_minimum" : "_minimum_plus_5"),
             kind.name,
             {{parameter.name, value}}});
      }
    }
  }
  return cases;
}

class EvictionConformance : public testing::TestWithParam<Case> {
 protected:
  [[nodiscard]] static TestTier make_tier() {
    return TestTier(GetParam().policy, GetParam().parameters);
  }
  static constexpr int kSteps = 6'000;
};

INSTANTIATE_TEST_SUITE_P(Registered, EvictionConformance, testing::ValuesIn(all_cases()),
                         [](const auto& instance) { return instance.param.label; });

/// Six entries: 0 and 3 are pinned; requests for 1, 3 and 4 wait.
void fill(TestTier& tier) {
  for (std::uint32_t entry = 0; entry < 6; ++entry) {
    tier.insert(EntryId{entry});
  }
  tier.change_queue(EntryId{1}, QueuePosition{7});
  tier.change_queue(EntryId{3}, QueuePosition{8});
  tier.change_queue(EntryId{4}, QueuePosition{9});
  tier.set_queue_first(QueuePosition{7});
  tier.pin(EntryId{0});
  tier.pin(EntryId{3});
  // A selection may move what the policy keeps of the queue's head.
  static_cast<void>(tier.select());
}

TEST_P(EvictionConformance, VictimsAreResidentAndUnpinnedUntilNoneIsLeft) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    TestTier tier = make_tier();
    RandomDriver driver(seed, tier.sees_queue());
    int victims = 0;
    int refusals = 0;
    for (int step = 0; step < kSteps; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", step " + std::to_string(step));
      driver.step({&tier}, [&](const RandomDriver::Selection& selection, const auto& answers) {
        const std::optional<Victim>& victim = answers.front();
        if (victim) {
          ++victims;
          ASSERT_TRUE(tier.holds(victim->entry));
          ASSERT_FALSE(tier.pinned(victim->entry));
          ASSERT_GE(victim->keep, Tokens(0));
          ASSERT_LT(victim->keep, tier.residents().at(victim->entry).view.tokens);
          return;
        }
        ++refusals;
        // Nothing leaves for a newcomer that runs after everything that could leave; without
        // knowledge of the queue, or for a save, that is no reason.
        const bool may_refuse = tier.sees_queue() && (selection.demand == Demand::prefetch ||
                                                      selection.demand == Demand::demotion);
        for (const auto& [entry, resident] : tier.residents()) {
          const bool runs_before = may_refuse && resident.view.queue_position < selection.incoming;
          ASSERT_TRUE(resident.pinned || runs_before)
              << "entry " << entry.value << " could have left";
        }
      });
      ASSERT_NO_THROW(tier.check());
      if (HasFatalFailure()) {
        return;
      }
    }
    EXPECT_GT(victims, 100);
    EXPECT_GT(refusals, 0);
  }
}

TEST_P(EvictionConformance, EveryEntryLeavesExactlyOnce) {
  TestTier tier = make_tier();
  fill(tier);
  tier.unpin(EntryId{0});
  tier.unpin(EntryId{3});
  std::vector<std::uint32_t> order = tier.evict_all();
  EXPECT_EQ(order.size(), 6U);
  EXPECT_TRUE(tier.residents().empty());
  std::ranges::sort(order);
  EXPECT_EQ(order, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_NO_THROW(tier.check());
}

TEST_P(EvictionConformance, AnEmptyTierHasNoVictim) {
  TestTier tier = make_tier();
  for (const Demand demand :
       {Demand::save, Demand::prefetch, Demand::demotion, Demand::background}) {
    EXPECT_FALSE(tier.select(demand));
    EXPECT_FALSE(tier.select(demand, QueuePosition{3}));
  }
  EXPECT_NO_THROW(tier.check());
}

TEST_P(EvictionConformance, PinnedEntriesNeverLeave) {
  TestTier tier = make_tier();
  fill(tier);
  std::vector<std::uint32_t> order = tier.evict_all();
  std::ranges::sort(order);
  EXPECT_EQ(order, (std::vector<std::uint32_t>{1, 2, 4, 5}));
  EXPECT_TRUE(tier.all_pinned());
  EXPECT_FALSE(tier.select());
  tier.unpin(EntryId{3});
  EXPECT_EQ(tier.evict(), EntryId{3});
  EXPECT_NO_THROW(tier.check());
}

TEST_P(EvictionConformance, ARemovedEntryIsNotSelectedAndCanComeBack) {
  TestTier tier = make_tier();
  fill(tier);
  tier.remove(EntryId{2});
  EXPECT_NO_THROW(tier.check());
  tier.insert(EntryId{2});
  tier.remove(EntryId{5});
  std::vector<std::uint32_t> order = tier.evict_all();
  std::ranges::sort(order);
  EXPECT_EQ(order, (std::vector<std::uint32_t>{1, 2, 4}));
}

TEST_P(EvictionConformance, EntryNumbersMayBeSparse) {
  TestTier tier = make_tier();
  tier.insert(EntryId{100'000});
  tier.insert(EntryId{3});
  EXPECT_NO_THROW(tier.check());
  EXPECT_EQ(tier.evict_all().size(), 2U);
}

TEST_P(EvictionConformance, SelectingAgainWithoutRemovingGivesAVictimStill) {
  TestTier tier = make_tier();
  fill(tier);
  for (int i = 0; i < 20; ++i) {
    const std::optional<Victim> victim = tier.select();
    ASSERT_TRUE(victim);
    ASSERT_TRUE(tier.holds(victim->entry));
    ASSERT_FALSE(tier.pinned(victim->entry));
    ASSERT_NO_THROW(tier.check());
  }
}

TEST_P(EvictionConformance, TheSameCallsGiveTheSameAnswers) {
  using Answer = std::tuple<std::uint32_t, std::int64_t>;
  const auto answers_of = [](std::uint64_t seed) {
    TestTier tier = make_tier();
    RandomDriver driver(seed, tier.sees_queue());
    std::vector<Answer> all;
    for (int step = 0; step < kSteps; ++step) {
      driver.step({&tier}, [&](const auto&, const auto& answers) {
        const std::optional<Victim>& victim = answers.front();
        all.emplace_back(victim ? victim->entry.value : UINT32_MAX,
                         victim ? victim->keep.value : 0);
      });
    }
    return all;
  };
  const std::vector<Answer> first = answers_of(11);
  EXPECT_GT(first.size(), 100U);
  EXPECT_NE(answers_of(12), first);
  EXPECT_EQ(answers_of(11), first);
}

TEST_P(EvictionConformance, InvariantsHoldOnlyIfNoEntryIsMissing) {
  TestTier tier = make_tier();
  fill(tier);
  ASSERT_NO_THROW(tier.check());
  for (const auto& [entry, resident] : tier.residents()) {
    if (!resident.pinned) {
      FalseView lost(tier);
      lost.residents.erase(entry);
      EXPECT_THROW(tier.check_against(lost), InvariantError) << "without entry " << entry.value;
    }
  }
  FalseView nothing(tier);
  nothing.residents.clear();
  EXPECT_THROW(tier.check_against(nothing), InvariantError);
}

TEST_P(EvictionConformance, InvariantsHoldOnlyIfNoEntryIsTooMuch) {
  TestTier tier = make_tier();
  fill(tier);
  tier.remove(EntryId{5});
  // An entry that was there, the next new one, and one far beyond.
  for (const std::uint32_t entry : {5U, 6U, 1'000'000U}) {
    FalseView more(tier);
    more.residents[EntryId{entry}].view.id = EntryId{entry};
    EXPECT_THROW(tier.check_against(more), InvariantError) << "with entry " << entry;
  }
}

TEST_P(EvictionConformance, InvariantsHoldOnlyIfPinsAgree) {
  TestTier tier = make_tier();
  fill(tier);
  for (const auto& [entry, resident] : tier.residents()) {
    FalseView other(tier);
    other.residents[entry].pinned = !resident.pinned;
    EXPECT_THROW(tier.check_against(other), InvariantError) << "pin of entry " << entry.value;
  }
}

TEST_P(EvictionConformance, InvariantsHoldOnlyIfQueuePositionsAgree) {
  TestTier tier = make_tier();
  if (!tier.sees_queue()) {
    GTEST_SKIP() << GetParam().policy << " does not see the queue";
  }
  fill(tier);
  for (const auto& [entry, resident] : tier.residents()) {
    FalseView other(tier);
    QueuePosition& position = other.residents[entry].view.queue_position;
    position = position == kNotQueued ? QueuePosition{20} : kNotQueued;
    EXPECT_THROW(tier.check_against(other), InvariantError) << "place of entry " << entry.value;
  }
}

}  // namespace
}  // namespace kvtier
