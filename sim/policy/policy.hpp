#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/victims.hpp"
#include "sim/policy/views.hpp"

/// The interfaces that policies implement. Policies decide; the tier owns capacity, transfers,
/// offers and all counts. Decisions depend on these calls and the constructor alone.
namespace kvtier {

/// The knowledge that a policy needs. The engine shows no more than this.
enum class Knowledge {
  online,      // the past
  look_ahead,  // the past and the waiting queue
  oracle,      // also the future, for upper bounds
};
[[nodiscard]] const char* to_string(Knowledge knowledge);

/// Times that a tier's policy may ask for. A replay without one throws ConfigError when asked.
struct TierFacts {
  /// Time to compute the first tokens of a context if nothing else runs.
  std::function<SimDuration(Tokens)> recompute;
  /// Time to load the tokens into HBM without other transfers; zero for a tier in HBM.
  std::function<SimDuration(Tokens)> load;
};

/// Chooses the entries that leave one tier.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  /// Called once, before anything else.
  virtual void on_start(const TierFacts&) {}
  /// The entry enters the tier.
  virtual void on_insert(const EntryView& entry, SimTime now) = 0;
  /// A turn finds the entry and uses it until on_release. Count uses here. If the tier gives the
  /// entry's room to the turn, the entry is not offered until then.
  virtual void on_hit(EntryId entry, SimTime now) = 0;
  /// The use is over, and the entry may have grown. Take recency here. In a tier that keeps its
  /// copy while the turn runs, this follows on_hit at once.
  virtual void on_release(const EntryView& entry, SimTime now) { on_resize(entry, now); }
  virtual void on_resize(const EntryView&, SimTime) {}
  /// The entry is split: it is now `head`, and the new entry `tail` continues it. Both keep the
  /// entry's state. By default, the head is resized and the tail is inserted. With look-ahead
  /// knowledge, the tail's view has the first request that waits for it, as that of on_insert.
  virtual void on_split(const EntryView& head, const EntryView& tail, SimTime now) {
    on_resize(head, now);
    on_insert(tail, now);
  }
  /// The entry leaves for good: it is evicted, dropped, moved to another tier, or does not come
  /// back from its turn.
  virtual void on_remove(EntryId entry, SimTime now) = 0;
  /// Only called for policies with look-ahead knowledge. The view of on_insert has the first
  /// request that waits for the entry; calls for its other requests follow.
  virtual void on_queue_change(EntryId, const QueueChange&) {}
  /// Only called for policies with oracle knowledge, after on_insert and whenever the next use
  /// changes. The entry is used next at this time; kNever if it is not used again.
  virtual void on_next_use(EntryId, SimTime) {}
  /// Adds offered entries to the set until it is complete, or stops if nothing should leave for
  /// this request. A complete set leaves at once: on_remove (or on_resize) follows for each victim,
  /// in order. Otherwise nothing leaves.
  virtual void choose(const RoomRequest& request, Victims& victims) = 0;
  /// Throws InvariantError if the bookkeeping does not match `tier`; called at the end of every
  /// run.
  virtual void check_invariants(const TierView& tier) const = 0;
};

/// Chooses the entries that may enter one tier. It is not asked about entries that grow, nor about
/// fetches for a waiting request.
class AdmissionPolicy {
 public:
  virtual ~AdmissionPolicy() = default;
  /// A turn has used or made this entry, wherever it is.
  virtual void on_use(EntryKey entry) = 0;
  /// Whether the entry may enter the tier.
  [[nodiscard]] virtual bool admits(EntryKey entry) const = 0;
  /// Whether the newcomer may replace this victim.
  [[nodiscard]] virtual bool replaces(EntryKey newcomer, EntryKey victim) const = 0;
};

/// The state that a prefetch policy sees.
struct PrefetchContext {
  SimTime now;
  const QueueView* queue = nullptr;
  const RunningView* running = nullptr;
  /// Memory available for prefetching (C_mem) and mean reserved size of an entry (S_kv);
  /// AttentionStore 3.3.
  Bytes memory;
  Bytes mean_entry;
  /// Whether the entry is only in a slower tier, and no transfer to a faster tier is in flight.
  const std::function<bool(EntryId)>* needs_fetch = nullptr;
  /// Time to fetch the entry without other transfers.
  const std::function<SimDuration(EntryId)>* fetch_duration = nullptr;
};

/// An entry to fetch.
struct Fetch {
  EntryId entry;
  /// Earliest start. If nothing changes before, the policy is asked again at this time.
  SimTime at{0};
};

/// Chooses the entries to fetch before their requests are admitted.
class PrefetchPolicy {
 public:
  virtual ~PrefetchPolicy() = default;
  /// The entry of a waiting request was moved to a slower tier.
  virtual void on_demoted(EntryId, QueuePosition) {}
  /// The next fetch, or nullopt. Called again after every change, so an answer may be repeated
  /// until the fetch has started.
  [[nodiscard]] virtual std::optional<Fetch> next_fetch(const PrefetchContext& context) = 0;
};

/// Chooses which waiting request is admitted next.
class OrderPolicy {
 public:
  virtual ~OrderPolicy() = default;
  /// Only called in systems of blocks, before requests are chosen for a batch one by one.
  virtual void begin_batch(const QueueView&) {}
  /// A position at which a request waits; only called when the queue is not empty.
  [[nodiscard]] virtual QueuePosition next(const QueueView& queue) = 0;
  /// End of the window at the queue's head from which `next` chooses; the queue's end if the policy
  /// has no window.
  [[nodiscard]] virtual QueuePosition window_end(const QueueView& queue) const {
    return queue.end();
  }
  /// Whether requests are preempted by priority: first the request with the largest number, and of
  /// equal ones the last to arrive. Preempted requests wait again by their priority.
  [[nodiscard]] virtual bool preempts_by_priority() const { return false; }
};

/// Chooses the instance of a cluster that serves a request (sim/policy/routing.hpp).
class RoutingPolicy;

/// A parameter's declaration. Config checks, `kvtier list policies` and the reference read it.
struct PolicyParameter {
  std::string name;
  std::string documentation;
  /// Unit of the number ("requests", "tokens"); for messages and documentation.
  std::string unit;
  double minimum = 0;
  double maximum = 0;
  /// Not set if the policy finds the value itself ("auto" in configs).
  std::optional<double> default_value;
};

/// Values of the declared parameters; absent means the default.
using PolicyParameters = std::map<std::string, double>;

template <class Interface>
struct PolicyKind {
  std::string name;
  std::string summary;
  std::string source;
  Knowledge knowledge = Knowledge::online;
  /// Set by an eviction policy whose victims may keep some of their tokens; not every tier can do
  /// that.
  bool parts_of_entries = false;
  std::vector<PolicyParameter> parameters;
  std::function<std::unique_ptr<Interface>(const PolicyParameters&)> make;
};

/// All policies a program offers; filled by an explicit table (policies/registry.cpp), never by
/// static initialisers.
struct PolicyRegistry {
  std::vector<PolicyKind<EvictionPolicy>> eviction;
  std::vector<PolicyKind<AdmissionPolicy>> admission;
  std::vector<PolicyKind<PrefetchPolicy>> prefetch;
  std::vector<PolicyKind<OrderPolicy>> order;
  std::vector<PolicyKind<RoutingPolicy>> routing;
};

template <class Interface>
[[nodiscard]] const PolicyKind<Interface>* find_policy(
    const std::vector<PolicyKind<Interface>>& kinds, const std::string& name) {
  for (const auto& kind : kinds) {
    if (kind.name == name) {
      return &kind;
    }
  }
  return nullptr;
}

/// The policy of that name, which a config's checks have found in the registry.
template <class Interface>
[[nodiscard]] const PolicyKind<Interface>& known_policy(
    const std::vector<PolicyKind<Interface>>& kinds, const std::string& name) {
  const PolicyKind<Interface>* kind = find_policy(kinds, name);
  KVTIER_ASSERT(kind != nullptr, "the config was checked");
  return *kind;
}

}  // namespace kvtier
