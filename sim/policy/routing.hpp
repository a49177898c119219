#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <span>

#include "sim/core/units.hpp"

/// The interface of routing policies. A router stands in front of a group of instances and chooses
/// one for each request. Like the router of a real cluster, it sees the request, the reports of the
/// instances, its own dispatches, and events about blocks.
namespace kvtier {

/// Number of an instance within its group, from 0. A lost instance keeps its number.
struct InstanceId {
  std::uint32_t value = UINT32_MAX;

  friend constexpr auto operator<=>(InstanceId, InstanceId) = default;
  [[nodiscard]] constexpr bool valid() const { return value != UINT32_MAX; }
};
inline constexpr InstanceId kNoInstance{};

/// Identity of a block of tokens and of all tokens before it: equal hashes mean equal prefixes.
struct BlockHash {
  std::uint64_t value = 0;

  friend constexpr auto operator<=>(BlockHash, BlockHash) = default;
};

/// The part of a request's work that the group does.
enum class RoutingPhase : std::uint8_t { both, prefill, decode };

/// The tiers of a block, the fastest first.
enum class BlockMedium : std::uint8_t { gpu, host, disk };
inline constexpr int kBlockMedia = 3;

/// Facts of the group that do not change during a run.
struct RoutingFacts {
  /// Instances of the group, lost ones included.
  std::int64_t instances = 0;
  Tokens block_tokens{16};
  RoutingPhase phase = RoutingPhase::both;
};

inline constexpr std::uint64_t kNoSession = std::numeric_limits<std::uint64_t>::max();

/// A request as it reaches the router.
struct RoutedRequest {
  /// Distinct among the requests of a run.
  std::uint64_t id = 0;
  /// kNoSession for a request without a session.
  std::uint64_t session = kNoSession;
  /// The class of traffic, and the priority: the smaller, the more urgent.
  std::int32_t request_class = 0;
  std::int64_t priority = 0;
  Tokens prompt;
  /// The full blocks of the prompt, in order, for a policy that needs them. Valid during the call
  /// alone.
  std::span<const BlockHash> blocks;
};

/// An instance as its last report shows it.
struct InstanceLoad {
  /// Requests in flight on the instance, and those of them that are not in a batch yet.
  std::int64_t requests = 0;
  std::int64_t waiting = 0;
  /// Prompt tokens of all requests without a first token, and those that the instance's caches do
  /// not hold.
  Tokens prefill_tokens;
  Tokens uncached_prefill_tokens;
  /// Blocks of requests without a first token, and blocks of requests that decode.
  std::int64_t prefill_blocks = 0;
  std::int64_t decode_blocks = 0;
  /// Blocks of GPU memory that running requests use, and the capacity in blocks.
  std::int64_t kv_blocks = 0;
  std::int64_t kv_blocks_capacity = 0;
  /// False once the router knows that the instance is lost.
  bool alive = true;
};

/// Random numbers of the router alone, the same for the same seed.
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  /// Uniform in [0, 1).
  [[nodiscard]] virtual double uniform() = 0;
  /// Uniform over 0 .. bound-1; `bound` > 0.
  [[nodiscard]] virtual std::int64_t index(std::int64_t bound) = 0;
};

/// The view of a policy when it chooses. Valid during the call alone.
struct RoutingView {
  SimTime now;
  /// The instances that may be chosen, by number; at least one.
  std::span<const InstanceId> candidates;
  /// Loads of all instances of the group, by number.
  std::span<const InstanceLoad> loads;
  RandomSource* random = nullptr;

  [[nodiscard]] const InstanceLoad& load(InstanceId instance) const {
    return loads[instance.value];
  }
};

struct RoutingNeeds {
  /// RoutedRequest::blocks is filled if either flag is set. on_blocks_stored and on_blocks_removed
  /// are called only if `block_events` is set.
  bool blocks = false;
  bool block_events = false;
  /// A group with more instances is an error of its config.
  std::int64_t instances_max = std::numeric_limits<std::int64_t>::max();
};

/// Chooses an instance for each request of one group. Decisions depend on these calls, the
/// constructor and the view's random numbers alone.
class RoutingPolicy {
 public:
  virtual ~RoutingPolicy() = default;
  /// Depends on the parameters alone.
  [[nodiscard]] virtual RoutingNeeds needs() const { return {}; }
  /// Called once, before all calls but needs().
  virtual void on_start(const RoutingFacts&) {}
  /// The router knows that the instance serves requests; its blocks are empty. Called for each
  /// instance at the start, and when a lost one comes back.
  virtual void on_joined(InstanceId, SimTime) {}
  /// The router knows that the instance is lost, and its blocks with it. on_finished follows for
  /// each of its requests, but no on_blocks_removed.
  virtual void on_lost(InstanceId, SimTime) {}
  /// The instance reports its load, which the view has from now on. Not called if loads are always
  /// current.
  virtual void on_load(InstanceId, const InstanceLoad&, SimTime) {}
  /// One of the view's candidates.
  [[nodiscard]] virtual InstanceId choose(const RoutedRequest& request,
                                          const RoutingView& view) = 0;
  /// The request goes to the instance, mostly the one that was just chosen.
  virtual void on_dispatched(const RoutedRequest&, InstanceId, SimTime) {}
  /// The request's first token is out. In a prefill group, on_finished follows. In a decode group,
  /// this is called when the instance has the request's KV.
  virtual void on_first_token(std::uint64_t /*request*/, InstanceId, SimTime) {}
  /// Called once for each dispatched request, also if it is lost with its instance. A lost request
  /// may have had no first token.
  virtual void on_finished(std::uint64_t /*request*/, InstanceId, SimTime) {}
  /// The medium of the instance stores or removes these blocks. A block may be in several media.
  /// kNoInstance is a pool that all instances share. Storing a stored block and removing an absent
  /// one change nothing.
  virtual void on_blocks_stored(InstanceId, BlockMedium, std::span<const BlockHash>, SimTime) {}
  virtual void on_blocks_removed(InstanceId, BlockMedium, std::span<const BlockHash>, SimTime) {}
  /// Throws InvariantError if the policy's count of requests in flight differs; called at the end
  /// of every run.
  virtual void check_invariants(std::int64_t /*requests_in_flight*/) const {}
};

}  // namespace kvtier
