#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "sim/core/streams.hpp"
#include "sim/policy/routing.hpp"
#include "sim/policy/routing_random.hpp"
#include "sim/serving/config.hpp"
#include "sim/store/block_listener.hpp"
#include "sim/store/store.hpp"

namespace kvtier {

/// The router of a cluster: a routing policy, what it sees of the instances, and what it is told.
/// Loads are those of the last report, and events about blocks come late by
/// /cluster/event_delay.
class ClusterRouter {
 public:
  struct Setup {
    const RunConfig* config = nullptr;
    const PolicyRegistry* registry = nullptr;
    /// Those of the contexts of requests. They outlive the router.
    const Streams* streams = nullptr;
    /// The policy, and how many instances it routes to; null: those of /cluster.
    const PolicyChoice* choice = nullptr;
    std::int64_t instances = 0;
    RoutingPhase phase = RoutingPhase::both;
  };
  explicit ClusterRouter(const Setup& setup);

  /// Kept up to date by the instance itself; its address stays.
  [[nodiscard]] InstanceLoad& load(InstanceId instance) { return loads_[instance.value]; }
  /// The load as the router knows it.
  [[nodiscard]] const InstanceLoad& known_load(InstanceId instance) const {
    return (sees_at_once_ ? loads_ : reported_)[instance.value];
  }
  [[nodiscard]] std::int64_t instances() const { return std::ssize(loads_); }
  [[nodiscard]] bool wants_block_events() const { return needs_.block_events; }
  /// It looks at the blocks of prompts.
  [[nodiscard]] bool wants_blocks() const { return needs_.blocks || needs_.block_events; }
  /// It ranks instances by blocks of prompts that it sent them.
  [[nodiscard]] bool knows_sent_blocks_only() const {
    return needs_.blocks && !needs_.block_events;
  }
  /// The listener to which an instance's store tells of blocks at the times of `set_now`.
  [[nodiscard]] BlockListener& listener(InstanceId instance) { return listeners_[instance.value]; }
  /// The tiers of the instances, the fastest first.
  void set_media(std::vector<BlockMedium> media) { media_ = std::move(media); }
  void set_now(SimTime now) { now_ = now; }

  struct Request {
    std::uint64_t session = kNoSession;
    std::int64_t priority = 0;
    Tokens prompt;
    /// No stream: its blocks are not known.
    Context context;
  };
  /// The instance that the policy chooses for a request, which is dispatched to it; `id` is its
  /// number from here on. No instance: none is alive.
  [[nodiscard]] InstanceId route(const Request& request, std::uint64_t& id);
  /// The same for a request that has to go to this instance.
  void send(const Request& request, InstanceId instance, std::uint64_t& id);
  void first_token(std::uint64_t id, InstanceId instance);
  void finished(std::uint64_t id, InstanceId instance);

  /// The instances report their loads.
  void report();
  /// The router knows that the instance is lost, or that it is there again. Its load is that of an
  /// instance without requests.
  void lost(InstanceId instance);
  void joined(InstanceId instance);
  void check_invariants(std::int64_t requests_in_flight) const;

 private:
  struct Listener final : BlockListener {
    ClusterRouter* router = nullptr;
    InstanceId instance;
    void on_stored(std::size_t pool, const Stretch& blocks) override {
      router->note(instance, pool, blocks, true);
    }
    void on_removed(std::size_t pool, const Stretch& blocks) override {
      router->note(instance, pool, blocks, false);
    }
  };
  /// Blocks [first, first + count) of hashes_ that were stored or removed.
  struct Event {
    SimTime at;
    InstanceId instance;
    BlockMedium medium;
    bool stored;
    std::size_t count;
  };

  void note(InstanceId instance, std::size_t pool, const Stretch& blocks, bool stored);
  /// Tells of all events that the router knows by now.
  void deliver();
  void set_candidates();
  RoutedRequest describe(const Request& request);
  [[nodiscard]] BlockHash hash(StreamId stream, std::int64_t block) const {
    return {random_bits_at(std::uint64_t{streams_.birth(stream)} << 32U,
                           static_cast<std::uint64_t>(block))};
  }

  const Streams& streams_;
  std::unique_ptr<RoutingPolicy> policy_;
  RoutingNeeds needs_;
  StreamSource random_;
  std::int64_t block_;
  SimDuration delay_;
  /// The policy sees loads_ themselves.
  bool sees_at_once_;
  SimTime now_;
  std::vector<InstanceLoad> loads_;
  std::vector<InstanceLoad> reported_;
  std::vector<InstanceId> candidates_;
  std::vector<Listener> listeners_;
  std::vector<BlockMedium> media_;
  std::deque<Event> events_;
  /// The blocks of events_, in order.
  std::deque<BlockHash> hashes_;
  std::vector<BlockHash> blocks_;
  std::vector<Stretch> path_;
  std::uint64_t next_id_ = 0;
};

}  // namespace kvtier
