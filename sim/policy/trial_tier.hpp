#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/policy.hpp"

namespace kvtier {

/// Computing n tokens takes n x n ns, loading them 100 x n ns.
[[nodiscard]] inline TierFacts trial_facts() {
  return {.recompute = [](Tokens tokens) { return SimDuration(tokens.value * tokens.value); },
          .load = [](Tokens tokens) { return SimDuration(100 * tokens.value); }};
}

/// A tier for tests of a policy: it tells the policy what the tier manager would tell it, and can
/// be examined and falsified.
class TrialTier : public TierView {
 public:
  struct Resident {
    EntryView view;
    bool pinned = false;
    /// A turn has it; pinned, too.
    bool in_use = false;
  };

  explicit TrialTier(const PolicyKind<EvictionPolicy>& kind,
                     const PolicyParameters& parameters = {})
      : policy_(kind.make(parameters)), sees_queue_(kind.knowledge == Knowledge::look_ahead) {
    policy_->on_start(trial_facts());
  }

  [[nodiscard]] bool sees_queue() const { return sees_queue_; }
  [[nodiscard]] const std::map<EntryId, Resident>& residents() const { return residents_; }
  [[nodiscard]] bool holds(EntryId entry) const { return residents_.contains(entry); }
  [[nodiscard]] bool pinned(EntryId entry) const { return residents_.at(entry).pinned; }
  [[nodiscard]] bool in_use(EntryId entry) const { return residents_.at(entry).in_use; }
  [[nodiscard]] bool all_pinned() const {
    return std::ranges::all_of(residents_, [](const auto& item) { return item.second.pinned; });
  }

  /// `first_inserted` counts from 0; every other time is the number of calls so far. A session
  /// began when its entry was inserted here for the first time.
  void insert(EntryId entry, std::int64_t first_inserted, QueuePosition position = kNotQueued) {
    KVTIER_ASSERT(!holds(entry), "an entry is inserted once");
    const SimTime now = tick();
    const SimTime began = began_.try_emplace(entry, SimTime(first_inserted)).first->second;
    Resident& resident = residents_[entry];
    resident.view = {.id = entry,
                     .key = EntryKey{entry.value + std::uint64_t{1'000}},
                     .place = entry.value,
                     .tokens = Tokens(100),
                     .bytes = Bytes(100'000),
                     .first_inserted = SimTime(first_inserted),
                     .session_began = began,
                     .last_used = now,
                     .queue_position = sees_queue_ ? position : kNotQueued};
    policy_->on_insert(resident.view, now);
  }
  /// Inserted for the first time now.
  void insert(EntryId entry) { insert(entry, now_); }
  /// So many tokens, of a kB each.
  void insert(EntryId entry, Tokens tokens) {
    insert(entry);
    resize(entry, tokens);
  }

  /// A turn finds it in a tier that keeps its copy, or finds what another turn has in use.
  void hit(EntryId entry) {
    Resident& resident = residents_.at(entry);
    const SimTime now = tick();
    policy_->on_hit(entry, now);
    if (!resident.in_use) {
      resident.view.last_used = now;
      policy_->on_release(resident.view, now);
    }
  }
  /// A turn finds it and takes its room.
  void begin_turn(EntryId entry) {
    KVTIER_ASSERT(!pinned(entry), "a turn takes what does not move");
    policy_->on_hit(entry, tick());
    pin(entry);
    residents_.at(entry).in_use = true;
  }
  /// It comes back.
  void end_turn(EntryId entry, Tokens tokens) {
    Resident& resident = residents_.at(entry);
    KVTIER_ASSERT(resident.in_use, "only a turn that has begun ends");
    resident.in_use = false;
    resident.view.last_used = tick();
    set_tokens(resident.view, tokens);
    policy_->on_release(resident.view, resident.view.last_used);
    unpin(entry);
  }
  void take_turn(EntryId entry) {
    begin_turn(entry);
    end_turn(entry, residents_.at(entry).view.tokens);
  }
  /// It does not come back from its turn.
  void lose(EntryId entry) {
    residents_.at(entry).in_use = false;
    unpin(entry);
    remove(entry);
  }
  void resize(EntryId entry, Tokens tokens) {
    EntryView& view = residents_.at(entry).view;
    set_tokens(view, tokens);
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
      KVTIER_ASSERT(holds(victim->entry), "a victim is resident");
      KVTIER_ASSERT(victim->keep < residents_.at(victim->entry).view.tokens,
                    "a victim keeps less than it has");
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
  static void set_tokens(EntryView& view, Tokens tokens) {
    view.tokens = tokens;
    view.bytes = Bytes(tokens.value * 1'000);
  }

  std::unique_ptr<EvictionPolicy> policy_;
  bool sees_queue_;
  std::map<EntryId, Resident> residents_;
  std::map<EntryId, SimTime> began_;
  QueuePosition queue_first_{0};
  QueuePosition window_end_{0};
  std::int64_t now_ = 0;
};

/// What a tier claims to hold, changed at will.
class FalseView final : public TierView {
 public:
  explicit FalseView(const TrialTier& tier) : residents(tier.residents()) {}

  void for_each_resident(
      const std::function<void(const EntryView&, bool pinned)>& visit) const override {
    for (const auto& [entry, resident] : residents) {
      visit(resident.view, resident.pinned);
    }
  }

  std::map<EntryId, TrialTier::Resident> residents;
};

}  // namespace kvtier
