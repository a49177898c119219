#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "policies/registry.hpp"
#include "sim/policy/trial_queue.hpp"

namespace kvtier::test {

using TestQueue = TrialQueue;

/// A prefetch policy and its environment.
class TestPrefetch {
 public:
  explicit TestPrefetch(const std::string& policy, const PolicyParameters& parameters = {})
      : policy_(known_policy(builtin_policies().prefetch, policy).make(parameters)) {}

  /// Entries that are only in a slower tier.
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
  /// Fetches the policy's next entry into memory and returns it.
  EntryId fetch(const QueueView& queue) {
    const EntryId entry = next(queue);
    slow.erase(entry);
    return entry;
  }

 private:
  std::unique_ptr<PrefetchPolicy> policy_;
};

}  // namespace kvtier::test
