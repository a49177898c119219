#include "sim/study/config/guarded_policies.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "sim/core/errors.hpp"
#include "sim/policy/routing.hpp"

namespace kvtier {
namespace {

/// Calls one policy.
template <class Interface>
class Guard {
 public:
  Guard(std::string label, std::unique_ptr<Interface> policy)
      : label_(std::move(label)), policy_(std::move(policy)) {
    if (policy_ == nullptr) {
      fail("make", "expected a policy, got null");
    }
  }

  /// Calls `with(policy)`. `name` is the called function.
  template <class F>
  auto operator()(const char* name, const F& with) const {
    try {
      return with(*policy_);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      fail(name, error.what());
    } catch (...) {
      fail(name, "an exception of an unknown type");
    }
  }
  void expect(bool holds, const char* name, const char* what) const {
    if (!holds) [[unlikely]] {
      fail(name, what);
    }
  }

 private:
  [[noreturn]] void fail(const char* name, const char* what) const {
    throw ConfigError(fmt::format("{}: {}: {}", label_, name, what));
  }

  std::string label_;
  std::unique_ptr<Interface> policy_;
};

class GuardedEviction final : public EvictionPolicy {
 public:
  explicit GuardedEviction(Guard<EvictionPolicy> guard) : guard_(std::move(guard)) {}

  void on_start(const TierFacts& facts) override {
    guard_("on_start", [&](auto& policy) { policy.on_start(facts); });
  }
  void on_insert(const EntryView& entry, SimTime now) override {
    guard_("on_insert", [&](auto& policy) { policy.on_insert(entry, now); });
  }
  void on_hit(EntryId entry, SimTime now) override {
    guard_("on_hit", [&](auto& policy) { policy.on_hit(entry, now); });
  }
  void on_release(const EntryView& entry, SimTime now) override {
    guard_("on_release", [&](auto& policy) { policy.on_release(entry, now); });
  }
  void on_resize(const EntryView& entry, SimTime now) override {
    guard_("on_resize", [&](auto& policy) { policy.on_resize(entry, now); });
  }
  void on_split(const EntryView& head, const EntryView& tail, SimTime now) override {
    guard_("on_split", [&](auto& policy) { policy.on_split(head, tail, now); });
  }
  void on_remove(EntryId entry, SimTime now) override {
    guard_("on_remove", [&](auto& policy) { policy.on_remove(entry, now); });
  }
  void on_queue_change(EntryId entry, const QueueChange& change) override {
    guard_("on_queue_change", [&](auto& policy) { policy.on_queue_change(entry, change); });
  }
  void on_next_use(EntryId entry, SimTime at) override {
    guard_("on_next_use", [&](auto& policy) { policy.on_next_use(entry, at); });
  }
  /// The tier throws in `choose` for a victim that it did not offer.
  void choose(const RoomRequest& request, Victims& victims) override {
    guard_("choose", [&](auto& policy) { policy.choose(request, victims); });
  }
  void check_invariants(const TierView& tier) const override {
    guard_("check_invariants", [&](auto& policy) { policy.check_invariants(tier); });
  }

 private:
  Guard<EvictionPolicy> guard_;
};

class GuardedAdmission final : public AdmissionPolicy {
 public:
  explicit GuardedAdmission(Guard<AdmissionPolicy> guard) : guard_(std::move(guard)) {}

  void on_use(EntryKey entry) override {
    guard_("on_use", [&](auto& policy) { policy.on_use(entry); });
  }
  [[nodiscard]] bool admits(EntryKey entry) const override {
    return guard_("admits", [&](auto& policy) { return policy.admits(entry); });
  }
  [[nodiscard]] bool replaces(EntryKey newcomer, EntryKey victim) const override {
    return guard_("replaces", [&](auto& policy) { return policy.replaces(newcomer, victim); });
  }

 private:
  Guard<AdmissionPolicy> guard_;
};

class GuardedPrefetch final : public PrefetchPolicy {
 public:
  explicit GuardedPrefetch(Guard<PrefetchPolicy> guard) : guard_(std::move(guard)) {}

  void on_demoted(EntryId entry, QueuePosition position) override {
    guard_("on_demoted", [&](auto& policy) { policy.on_demoted(entry, position); });
  }
  [[nodiscard]] std::optional<Fetch> next_fetch(const PrefetchContext& context) override {
    constexpr const char* kCall = "next_fetch";
    bool needed = true;
    const std::optional<Fetch> fetch = guard_(kCall, [&](auto& policy) {
      const std::optional<Fetch> answer = policy.next_fetch(context);
      needed = !answer || (*context.needs_fetch)(answer->entry);
      return answer;
    });
    guard_.expect(needed, kCall, "expected an entry that needs a fetch");
    return fetch;
  }

 private:
  Guard<PrefetchPolicy> guard_;
};

class GuardedOrder final : public OrderPolicy {
 public:
  explicit GuardedOrder(Guard<OrderPolicy> guard) : guard_(std::move(guard)) {}

  void begin_batch(const QueueView& queue) override {
    guard_("begin_batch", [&](auto& policy) { policy.begin_batch(queue); });
  }
  [[nodiscard]] QueuePosition next(const QueueView& queue) override {
    constexpr const char* kCall = "next";
    const QueuePosition next = guard_(kCall, [&](auto& policy) { return policy.next(queue); });
    guard_.expect(next >= queue.first() && next < queue.end() && queue.waiting_at(next), kCall,
                  "expected a position at which a request waits");
    return next;
  }
  [[nodiscard]] QueuePosition window_end(const QueueView& queue) const override {
    constexpr const char* kCall = "window_end";
    const QueuePosition end = guard_(kCall, [&](auto& policy) { return policy.window_end(queue); });
    guard_.expect(end >= queue.first() && end <= queue.end(), kCall,
                  "expected a position of the queue, or its end");
    return end;
  }
  [[nodiscard]] bool preempts_by_priority() const override {
    return guard_("preempts_by_priority",
                  [&](auto& policy) { return policy.preempts_by_priority(); });
  }

 private:
  Guard<OrderPolicy> guard_;
};

class GuardedRouting final : public RoutingPolicy {
 public:
  explicit GuardedRouting(Guard<RoutingPolicy> guard) : guard_(std::move(guard)) {}

  [[nodiscard]] RoutingNeeds needs() const override {
    return guard_("needs", [&](auto& policy) { return policy.needs(); });
  }
  void on_start(const RoutingFacts& facts) override {
    guard_("on_start", [&](auto& policy) { policy.on_start(facts); });
  }
  void on_joined(InstanceId instance, SimTime now) override {
    guard_("on_joined", [&](auto& policy) { policy.on_joined(instance, now); });
  }
  void on_lost(InstanceId instance, SimTime now) override {
    guard_("on_lost", [&](auto& policy) { policy.on_lost(instance, now); });
  }
  void on_load(InstanceId instance, const InstanceLoad& load, SimTime now) override {
    guard_("on_load", [&](auto& policy) { policy.on_load(instance, load, now); });
  }
  [[nodiscard]] InstanceId choose(const RoutedRequest& request, const RoutingView& view) override {
    constexpr const char* kCall = "choose";
    const InstanceId chosen =
        guard_(kCall, [&](auto& policy) { return policy.choose(request, view); });
    guard_.expect(std::ranges::find(view.candidates, chosen) != view.candidates.end(), kCall,
                  "expected one of the candidates");
    return chosen;
  }
  void on_dispatched(const RoutedRequest& request, InstanceId instance, SimTime now) override {
    guard_("on_dispatched", [&](auto& policy) { policy.on_dispatched(request, instance, now); });
  }
  void on_first_token(std::uint64_t request, InstanceId instance, SimTime now) override {
    guard_("on_first_token", [&](auto& policy) { policy.on_first_token(request, instance, now); });
  }
  void on_finished(std::uint64_t request, InstanceId instance, SimTime now) override {
    guard_("on_finished", [&](auto& policy) { policy.on_finished(request, instance, now); });
  }
  void on_blocks_stored(InstanceId instance, BlockMedium medium, std::span<const BlockHash> blocks,
                        SimTime now) override {
    guard_("on_blocks_stored",
           [&](auto& policy) { policy.on_blocks_stored(instance, medium, blocks, now); });
  }
  void on_blocks_removed(InstanceId instance, BlockMedium medium, std::span<const BlockHash> blocks,
                         SimTime now) override {
    guard_("on_blocks_removed",
           [&](auto& policy) { policy.on_blocks_removed(instance, medium, blocks, now); });
  }
  void check_invariants(std::int64_t requests_in_flight) const override {
    guard_("check_invariants", [&](auto& policy) { policy.check_invariants(requests_in_flight); });
  }

 private:
  Guard<RoutingPolicy> guard_;
};

template <class Guarded, class Interface>
void guard(std::vector<PolicyKind<Interface>>& kinds, const char* what, const std::string& origin) {
  for (PolicyKind<Interface>& kind : kinds) {
    const std::string label = fmt::format("{}: {} policy \"{}\"", origin, what, kind.name);
    kind.make = [label, make = std::move(kind.make)](
                    const PolicyParameters& parameters) -> std::unique_ptr<Interface> {
      std::unique_ptr<Interface> policy;
      try {
        policy = make(parameters);
      } catch (const std::bad_alloc&) {
        throw;
      } catch (const std::exception& error) {
        throw ConfigError(fmt::format("{}: make: {}", label, error.what()));
      } catch (...) {
        throw ConfigError(label + ": make: an exception of an unknown type");
      }
      return std::make_unique<Guarded>(Guard<Interface>(label, std::move(policy)));
    };
  }
}

}  // namespace

PolicyRegistry guarded(PolicyRegistry policies, const std::string& origin) {
  guard<GuardedEviction>(policies.eviction, "eviction", origin);
  guard<GuardedAdmission>(policies.admission, "admission", origin);
  guard<GuardedPrefetch>(policies.prefetch, "prefetch", origin);
  guard<GuardedOrder>(policies.order, "order", origin);
  guard<GuardedRouting>(policies.routing, "routing", origin);
  return policies;
}

}  // namespace kvtier
