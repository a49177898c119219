#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/rng.hpp"
#include "sim/policy/policy.hpp"

/// A tier that tells its policy what the tier manager would tell it, and can be examined and
/// falsified.
namespace kvtier::test {

/// Computing n tokens takes n x n ns, loading them 100 x n ns.
inline std::unique_ptr<EvictionPolicy> make_eviction(const std::string& name,
                                                     const PolicyParameters& parameters = {}) {
  const PolicyRegistry registry = builtin_policies();
  const auto* kind = find_policy(registry.eviction, name);
  KVTIER_ASSERT(kind != nullptr, "the policy is registered");
  auto policy = kind->make(parameters);
  policy->on_start(
      {.recompute = [](Tokens tokens) { return SimDuration(tokens.value * tokens.value); },
       .load = [](Tokens tokens) { return SimDuration(100 * tokens.value); }});
  return policy;
}

inline Knowledge knowledge_of(const std::string& name) {
  const PolicyRegistry registry = builtin_policies();
  return find_policy(registry.eviction, name)->knowledge;
}

class TestTier final : public TierView {
 public:
  struct Resident {
    EntryView view;
    bool pinned = false;
  };

  explicit TestTier(const std::string& policy, const PolicyParameters& parameters = {})
      : policy_(make_eviction(policy, parameters)),
        sees_queue_(knowledge_of(policy) == Knowledge::look_ahead) {}

  [[nodiscard]] bool sees_queue() const { return sees_queue_; }
  [[nodiscard]] const std::map<EntryId, Resident>& residents() const { return residents_; }
  [[nodiscard]] bool holds(EntryId entry) const { return residents_.contains(entry); }
  [[nodiscard]] bool pinned(EntryId entry) const { return residents_.at(entry).pinned; }
  [[nodiscard]] bool all_pinned() const {
    return std::ranges::all_of(residents_, [](const auto& item) { return item.second.pinned; });
  }

  /// `first_inserted` counts from 0; every other time is the number of calls so far.
  void insert(EntryId entry, std::int64_t first_inserted, QueuePosition position = kNotQueued) {
    KVTIER_ASSERT(!holds(entry), "an entry is inserted once");
    const SimTime now = tick();
    Resident& resident = residents_[entry];
    resident.view = {.id = entry,
                     .key = EntryKey{entry.value + std::uint64_t{1'000}},
                     .tokens = Tokens(100),
                     .bytes = Bytes(100'000),
                     .first_inserted = SimTime(first_inserted),
                     .last_used = now,
                     .queue_position = sees_queue_ ? position : kNotQueued};
    policy_->on_insert(resident.view, now);
  }
  /// Inserted for the first time now.
  void insert(EntryId entry) { insert(entry, now_); }

  void hit(EntryId entry) {
    EntryView& view = residents_.at(entry).view;
    view.last_used = tick();
    policy_->on_hit(view.id, view.last_used);
  }
  void resize(EntryId entry, Tokens tokens) {
    EntryView& view = residents_.at(entry).view;
    view.tokens = tokens;
    view.bytes = Bytes(tokens.value * 1'000);
    policy_->on_resize(view, tick());
  }
  void set_next_use(EntryId entry, SimTime next_use) {
    residents_.at(entry).view.next_use = next_use;
    policy_->on_next_use(entry, next_use);
  }
  void pin(EntryId entry) {
    Resident& resident = residents_.at(entry);
    KVTIER_ASSERT(!resident.pinned, "a policy hears of the first pin alone");
    resident.pinned = true;
    policy_->on_pin(entry);
  }
  void unpin(EntryId entry) {
    Resident& resident = residents_.at(entry);
    KVTIER_ASSERT(resident.pinned, "a policy hears of the last unpin alone");
    resident.pinned = false;
    policy_->on_unpin(entry);
  }
  void remove(EntryId entry) {
    KVTIER_ASSERT(holds(entry) && !pinned(entry), "only an unpinned resident can be removed");
    residents_.erase(entry);
    policy_->on_remove(entry, tick());
  }
  /// It is found by its turn, which takes it out of the tier and puts it back when it ends.
  void take_turn(EntryId entry) {
    hit(entry);
    remove(entry);
    insert(entry);
  }
  /// Also called for entries that are not here: the policy does not hear of those.
  void change_queue(EntryId entry, QueuePosition position) {
    if (sees_queue_ && holds(entry)) {
      QueuePosition& waits_at = residents_.at(entry).view.queue_position;
      const bool waits = position != kNotQueued;
      const QueueChange change{
          .position = waits ? position : waits_at, .waits = waits, .first = position};
      waits_at = position;
      policy_->on_queue_change(entry, change);
    }
  }
  void set_queue_first(QueuePosition first) { queue_first_ = first; }
  void set_window_end(QueuePosition end) { window_end_ = end; }
  [[nodiscard]] SimTime now() const { return SimTime(now_); }
  void wait(std::int64_t calls) { now_ += calls; }

  [[nodiscard]] std::optional<Victim> select(Demand demand = Demand::save,
                                             QueuePosition incoming = kNotQueued) {
    return policy_->select_victim({.now = SimTime(now_),
                                   .demand = demand,
                                   .incoming = sees_queue_ ? incoming : kNotQueued,
                                   .queue_first = sees_queue_ ? queue_first_ : kNotQueued,
                                   .window_end = sees_queue_ ? window_end_ : kNotQueued});
  }
  /// For a policy with oracle knowledge.
  [[nodiscard]] std::optional<Victim> select_for(Bytes bytes, SimTime next_use) {
    const EntryView newcomer{.bytes = bytes, .next_use = next_use};
    return policy_->select_victim({.now = SimTime(now_), .newcomer = &newcomer});
  }
  /// Shrinks victims until one leaves; kNoEntry if there is none.
  EntryId evict(Demand demand = Demand::save, QueuePosition incoming = kNotQueued) {
    while (const std::optional<Victim> victim = select(demand, incoming)) {
      if (victim->keep.value == 0) {
        remove(victim->entry);
        return victim->entry;
      }
      resize(victim->entry, victim->keep);
    }
    return kNoEntry;
  }
  /// The numbers of the entries in the order in which they leave, until none is given any more.
  std::vector<std::uint32_t> evict_all(Demand demand = Demand::save,
                                       QueuePosition incoming = kNotQueued) {
    std::vector<std::uint32_t> order;
    for (EntryId entry = evict(demand, incoming); entry.valid(); entry = evict(demand, incoming)) {
      order.push_back(entry.value);
    }
    return order;
  }

  void check() const { policy_->check_invariants(*this); }
  void check_against(const TierView& other) const { policy_->check_invariants(other); }

  void for_each_resident(
      const std::function<void(const EntryView&, bool pinned)>& visit) const override {
    for (const auto& [entry, resident] : residents_) {
      visit(resident.view, resident.pinned);
    }
  }

 private:
  SimTime tick() { return SimTime(++now_); }

  std::unique_ptr<EvictionPolicy> policy_;
  bool sees_queue_;
  std::map<EntryId, Resident> residents_;
  QueuePosition queue_first_{0};
  QueuePosition window_end_{0};
  std::int64_t now_ = 0;
};

/// What a tier claims to hold, changed at will.
class FalseView final : public TierView {
 public:
  explicit FalseView(const TestTier& tier) : residents(tier.residents()) {}

  void for_each_resident(
      const std::function<void(const EntryView&, bool pinned)>& visit) const override {
    for (const auto& [entry, resident] : residents) {
      visit(resident.view, resident.pinned);
    }
  }

  std::map<EntryId, TestTier::Resident> residents;
};

/// Drives one tier, or several alike, through a random but reproducible sequence of everything that
/// can happen.
class RandomDriver {
 public:
  struct Selection {
    Demand demand = Demand::save;
    QueuePosition incoming = kNotQueued;
    QueuePosition queue_first = kNotQueued;
  };

  RandomDriver(std::uint64_t seed, bool with_queue)
      : stream_(seed, "random driver"), with_queue_(with_queue), first_inserted_(kEntries) {}

  /// One operation on every tier. For a selection `on_selection` is given what each tier answered,
  /// before the victim of the first is removed from all.
  template <class F>
  void step(const std::vector<TestTier*>& tiers, F on_selection) {
    TestTier& model = *tiers.front();
    const EntryId entry{static_cast<std::uint32_t>(stream_.index(kEntries))};
    const bool here = model.holds(entry);
    const bool pinned = here && model.pinned(entry);
    // The tier fills up and is drained in turn, so that it also runs out of victims.
    ++steps_;
    const bool draining = is_draining();
    switch (stream_.index(with_queue_ ? 10 : 7)) {
      case 0:
      case 1:
        if (!here && (!draining || stream_.index(8) == 0)) {
          // Half of the entries come back from another tier and keep their first time.
          if (!first_inserted_[entry.value] || stream_.index(2) == 0) {
            first_inserted_[entry.value] = ++inserted_;
          }
          each(tiers, [&](TestTier& tier) {
            tier.insert(entry, *first_inserted_[entry.value], position_of(entry));
          });
        }
        break;
      case 2:
        if (here) {
          each(tiers, [&](TestTier& tier) { tier.hit(entry); });
        }
        break;
      case 3:
        if (here) {
          each(tiers, [&](TestTier& tier) { pinned ? tier.unpin(entry) : tier.pin(entry); });
        }
        break;
      case 4:
        if (here && !pinned && stream_.index(4) == 0) {
          each(tiers, [&](TestTier& tier) { tier.remove(entry); });
        }
        break;
      case 5:
        if (here) {
          const Tokens tokens(1 + stream_.index(4'096));
          each(tiers, [&](TestTier& tier) { tier.resize(entry, tokens); });
        }
        break;
      case 6:
        if (draining || stream_.index(2) == 0) {
          select(tiers, on_selection);
        }
        break;
      case 7:
      case 8:
        if (position_of(entry) == kNotQueued) {
          waiting_[QueuePosition{next_position_}] = entry;
          move(tiers, entry, QueuePosition{next_position_++});
        }
        break;
      default:
        // Mostly the first leaves, now and then one out of turn.
        if (!waiting_.empty()) {
          auto leaving = waiting_.begin();
          if (stream_.index(5) == 0) {
            std::advance(leaving, stream_.index(static_cast<std::int64_t>(waiting_.size())));
          }
          const EntryId left = leaving->second;
          waiting_.erase(leaving);
          move(tiers, left, kNotQueued);
        }
        break;
    }
  }

 private:
  static constexpr std::int64_t kEntries = 40;

  [[nodiscard]] bool is_draining() const { return steps_ / 300 % 2 == 1; }

  template <class F>
  void each(const std::vector<TestTier*>& tiers, F act) {
    for (TestTier* tier : tiers) {
      act(*tier);
    }
  }

  [[nodiscard]] QueuePosition position_of(EntryId entry) const {
    for (const auto& [position, other] : waiting_) {
      if (other == entry) {
        return position;
      }
    }
    return kNotQueued;
  }

  [[nodiscard]] QueuePosition queue_first() const {
    return waiting_.empty() ? QueuePosition{next_position_} : waiting_.begin()->first;
  }

  void move(const std::vector<TestTier*>& tiers, EntryId entry, QueuePosition position) {
    each(tiers, [&](TestTier& tier) {
      tier.change_queue(entry, position);
      tier.set_queue_first(queue_first());
      tier.set_window_end(QueuePosition{queue_first().value + 8});
    });
  }

  template <class F>
  void select(const std::vector<TestTier*>& tiers, F on_selection) {
    Selection selection{.queue_first = queue_first()};
    selection.demand = std::vector{Demand::save, Demand::prefetch, Demand::demotion,
                                   Demand::background}[static_cast<std::size_t>(stream_.index(4))];
    // A prefetch is for a request that waits, a demotion for any entry.
    if (selection.demand == Demand::prefetch || selection.demand == Demand::demotion) {
      const EntryId newcomer{static_cast<std::uint32_t>(stream_.index(kEntries))};
      selection.incoming = position_of(newcomer);
    }
    std::vector<std::optional<Victim>> answers;
    each(tiers, [&](TestTier& tier) {
      answers.push_back(tier.select(selection.demand, selection.incoming));
    });
    on_selection(selection, answers);
    const std::optional<Victim>& victim = answers.front();
    if (victim && tiers.front()->holds(victim->entry) && !tiers.front()->pinned(victim->entry)) {
      each(tiers, [&](TestTier& tier) {
        victim->keep.value > 0 && !is_draining() ? tier.resize(victim->entry, victim->keep)
                                                 : tier.remove(victim->entry);
      });
    }
  }

  RandomStream stream_;
  bool with_queue_;
  std::vector<std::optional<std::int64_t>> first_inserted_;
  std::int64_t inserted_ = 0;
  std::int64_t steps_ = 0;
  std::uint64_t next_position_ = 0;
  std::map<QueuePosition, EntryId> waiting_;
};

}  // namespace kvtier::test
