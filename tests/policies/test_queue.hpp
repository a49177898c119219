#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "policies/registry.hpp"
#include "sim/core/assert.hpp"
#include "sim/policy/policy.hpp"

/// A waiting queue that can be set at will and counts how often it is looked at.
namespace kvtier::test {

class TestQueue final : public QueueView {
 public:
  explicit TestQueue(std::uint64_t first = 0) { first_ = end_ = QueuePosition{first}; }

  /// A request joins; kNoEntry for one without a stored entry.
  QueuePosition push(EntryId entry) {
    waiting_[end_.value] = entry;
    return QueuePosition{end_.value++};
  }
  /// A request leaves, out of turn perhaps.
  void leave(QueuePosition position) {
    waiting_.erase(position.value);
    first_ = waiting_.empty() ? end_ : QueuePosition{waiting_.begin()->first};
  }

  [[nodiscard]] EntryId entry_at(QueuePosition position) const override {
    KVTIER_ASSERT(position >= first_ && position < end_,
                  "a policy looks at positions of the queue alone");
    ++looks_;
    const auto found = waiting_.find(position.value);
    return found == waiting_.end() ? kNoEntry : found->second;
  }
  [[nodiscard]] bool waiting_at(QueuePosition position) const override {
    return waiting_.contains(position.value);
  }
  [[nodiscard]] Placement placement_at(QueuePosition position) const override {
    const auto found = placements.find(entry_at(position));
    return found == placements.end() ? Placement::none : found->second;
  }
  [[nodiscard]] QueuePosition window_end() const override { return window.value_or(end_); }

  /// Of entries; others have no stored KV.
  std::map<EntryId, Placement> placements;
  std::optional<QueuePosition> window;

  [[nodiscard]] std::int64_t looks() const { return looks_; }

 private:
  std::map<std::uint64_t, EntryId> waiting_;
  mutable std::int64_t looks_ = 0;
};

/// A prefetch policy with what it needs around it.
class TestPrefetch {
 public:
  explicit TestPrefetch(const std::string& policy, const PolicyParameters& parameters = {}) {
    const PolicyRegistry registry = builtin_policies();
    policy_ = find_policy(registry.prefetch, policy)->make(parameters);
  }

  /// Entries that lie in a slower tier alone.
  std::set<EntryId> slow;
  Bytes memory{1'000'000};
  Bytes mean_entry{1};
  SimTime now;
  const RunningView* running = nullptr;
  std::map<EntryId, SimDuration> durations;

  void demote(EntryId entry, QueuePosition position) {
    slow.insert(entry);
    policy_->on_demoted(entry, position);
  }
  [[nodiscard]] std::optional<Fetch> ask(const QueueView& queue) {
    const std::function<bool(EntryId)> needs_fetch = [this](EntryId entry) {
      return slow.contains(entry);
    };
    const std::function<SimDuration(EntryId)> fetch_duration = [this](EntryId entry) {
      return durations.at(entry);
    };
    return policy_->next_fetch({.now = now,
                                .queue = &queue,
                                .running = running,
                                .memory = memory,
                                .mean_entry = mean_entry,
                                .needs_fetch = &needs_fetch,
                                .fetch_duration = &fetch_duration});
  }
  [[nodiscard]] EntryId next(const QueueView& queue) {
    const std::optional<Fetch> fetch = ask(queue);
    return fetch ? fetch->entry : kNoEntry;
  }
  /// What is fetched next, which then lies in memory.
  EntryId fetch(const QueueView& queue) {
    const EntryId entry = next(queue);
    slow.erase(entry);
    return entry;
  }

 private:
  std::unique_ptr<PrefetchPolicy> policy_;
};

}  // namespace kvtier::test
