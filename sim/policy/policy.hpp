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

/// The interfaces policies implement. Policies decide; the tier owns capacity, transfers, what may
/// leave, and all counting. Decisions depend on these calls and the constructor alone.
namespace kvtier {

/// The knowledge that a policy needs. The engine shows no more than this.
enum class Knowledge {
  online,      // the past
  look_ahead,  // and the waiting queue
  oracle,      // and the future: a bound, never a rival
};
[[nodiscard]] const char* to_string(Knowledge knowledge);

/// Functions that a tier's policy may call, for an entry that holds a sequence's first tokens.
struct TierFacts {
  /// How long computing them would take if nothing else ran.
  std::function<SimDuration(Tokens)> recompute;
  /// How long loading them into HBM takes when nothing else moves; zero in HBM.
  std::function<SimDuration(Tokens)> load;
};

/// Chooses what leaves one tier.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  /// Called once, before anything else.
  virtual void on_start(const TierFacts&) {}
  /// The entry comes into the tier.
  virtual void on_insert(const EntryView& entry, SimTime now) = 0;
  /// A turn finds the entry and uses it from here on. Uses are counted here. If the tier gives the
  /// entry's room to the turn, the entry is not offered until the turn ends and it comes back.
  virtual void on_hit(EntryId entry, SimTime now) = 0;
  /// The use is over, and the entry may have grown. Recency is taken here. In a tier that keeps its
  /// copy while the turn runs, this follows on_hit at once.
  virtual void on_release(const EntryView& entry, SimTime now) { on_resize(entry, now); }
  virtual void on_resize(const EntryView&, SimTime) {}
  /// The entry is two from here on, both in the state that it was in: it is now `head`, and `tail`,
  /// which continues it, is new. By default the tail is told as one that came in.
  virtual void on_split(const EntryView& head, const EntryView& tail, SimTime now) {
    on_resize(head, now);
    on_insert(tail, now);
  }
  /// The entry leaves for good: it is evicted, dropped, moved to another tier, or does not come
  /// back from its turn.
  virtual void on_remove(EntryId entry, SimTime now) = 0;
  /// Only called for policies with look-ahead knowledge. on_insert tells of the first request that
  /// waits for the entry; those of the others follow it here.
  virtual void on_queue_change(EntryId, const QueueChange&) {}
  /// Only called for policies with oracle knowledge, after each on_insert and when it is known
  /// anew: the entry is used next at this time, kNever if it is not.
  virtual void on_next_use(EntryId, SimTime) {}
  /// Adds offered entries to the set until it is complete, or stops if nothing should leave for
  /// this request. What is in a complete set leaves at once: on_remove (or on_resize) follows for
  /// each victim, in order. Otherwise nothing leaves.
  virtual void choose(const RoomRequest& request, Victims& victims) = 0;
  /// Throws InvariantError if the bookkeeping does not match `tier`; called at the end of every
  /// run.
  virtual void check_invariants(const TierView& tier) const = 0;
};

/// Chooses what comes into one tier at all. It is not asked of what grows there, nor of what is
/// fetched for a request that waits.
class AdmissionPolicy {
 public:
  virtual ~AdmissionPolicy() = default;
  /// A turn has used or made this entry, wherever it is.
  virtual void on_use(EntryKey entry) = 0;
  /// Whether the entry may come in.
  [[nodiscard]] virtual bool admits(EntryKey entry) const = 0;
  /// Whether it may cost this victim its place.
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
  /// Whether the entry lies only in a slower tier and no transfer brings it nearer yet.
  const std::function<bool(EntryId)>* needs_fetch = nullptr;
  /// How long fetching the entry takes when nothing else moves.
  const std::function<SimDuration(EntryId)>* fetch_duration = nullptr;
};

/// An entry to fetch.
struct Fetch {
  EntryId entry;
  /// Not before this time: the policy is asked again then, if nothing has changed before.
  SimTime at{0};
};

/// Chooses what is brought nearer before it is asked for.
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
  /// In a system of blocks: requests are about to be chosen for a batch, one by one.
  virtual void begin_batch(const QueueView&) {}
  /// A position at which a request waits; only called when the queue is not empty.
  [[nodiscard]] virtual QueuePosition next(const QueueView& queue) = 0;
  /// The end of the window at the queue's head from which `next` chooses; all of the queue if the
  /// policy knows no window.
  [[nodiscard]] virtual QueuePosition window_end(const QueueView& queue) const {
    return queue.end();
  }
  /// Whether running requests give way by priority: the one with the largest number, and of equal
  /// ones the last that arrived. They wait again where that puts them.
  [[nodiscard]] virtual bool preempts_by_priority() const { return false; }
};

/// Chooses the instance of a cluster that serves a request (sim/policy/routing.hpp).
class RoutingPolicy;

/// A parameter as the policy declares it; config checks, `kvtier list policies` and the reference
/// read it here.
struct PolicyParameter {
  std::string name;
  std::string documentation;
  /// Unit of the number ("jobs", "tokens"); for messages and documentation.
  std::string unit;
  double minimum = 0;
  double maximum = 0;
  /// Not set: the policy works the value out itself, written "auto" in configs.
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
  /// An eviction policy whose victims keep some of their tokens, which not every tier can do.
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
