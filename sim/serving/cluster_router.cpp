#include "sim/serving/cluster_router.hpp"

#include <algorithm>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

/// Tokens of the blocks that a router sees: those of the fastest tier.
Tokens routed_block(const RunConfig& config) {
  Tokens block{0};
  if (config.system.blocks) {
    for_each_tier(config.system.tiers, [&](const char*, const TierConfig& tier) {
      block = block.value == 0 ? tier.block_size : block;
    });
  }
  return block.value == 0 ? Tokens(16) : block;
}

const PolicyChoice& choice_of(const ClusterRouter::Setup& setup) {
  return setup.choice != nullptr ? *setup.choice : setup.config->cluster.router;
}

/// Each group of instances has random numbers of its own.
const char* random_numbers_of(RoutingPhase phase) {
  return phase == RoutingPhase::decode ? "cluster/decode_router" : "cluster/router";
}

}  // namespace

ClusterRouter::ClusterRouter(const Setup& setup)
    : streams_(*setup.streams),
      policy_(known_policy(setup.registry->routing, choice_of(setup).name)
                  .make(choice_of(setup).parameters)),
      needs_(policy_->needs()),
      random_(RandomStream(static_cast<std::uint64_t>(setup.config->seed),
                           random_numbers_of(setup.phase))),
      block_(routed_block(*setup.config).value),
      delay_(setup.config->cluster.event_delay),
      sees_at_once_(setup.config->cluster.report_interval.ns == 0),
      loads_(static_cast<std::size_t>(setup.choice != nullptr ? setup.instances
                                                              : setup.config->cluster.instances)),
      reported_(loads_.size()),
      listeners_(loads_.size()) {
  for (std::size_t i = 0; i < loads_.size(); ++i) {
    listeners_[i].router = this;
    listeners_[i].instance = InstanceId{static_cast<std::uint32_t>(i)};
  }
  policy_->on_start(
      {.instances = instances(), .block_tokens = Tokens(block_), .phase = setup.phase});
  for (const Listener& listener : listeners_) {
    policy_->on_joined(listener.instance, now_);
  }
  set_candidates();
}

void ClusterRouter::set_candidates() {
  candidates_.clear();
  for (const Listener& listener : listeners_) {
    if (loads_[listener.instance.value].alive) {
      candidates_.push_back(listener.instance);
    }
  }
}

RoutedRequest ClusterRouter::describe(const Request& request) {
  blocks_.clear();
  if (wants_blocks() && request.context.stream.valid()) {
    streams_.path(request.context.stream, request.context.tokens.value / block_, block_, path_);
    for (const Stretch& stretch : path_) {
      for (std::int64_t block = stretch.begin; block < stretch.end; ++block) {
        blocks_.push_back(hash(stretch.stream, block));
      }
    }
  }
  return {.id = next_id_++,
          .session = request.session,
          .request_class = 0,
          .priority = request.priority,
          .prompt = request.prompt,
          .blocks = blocks_};
}

InstanceId ClusterRouter::route(const Request& request, std::uint64_t& id) {
  if (candidates_.empty()) {
    return kNoInstance;
  }
  deliver();
  const RoutedRequest routed = describe(request);
  id = routed.id;
  const InstanceId chosen = policy_->choose(routed, {.now = now_,
                                                     .candidates = candidates_,
                                                     .loads = sees_at_once_ ? loads_ : reported_,
                                                     .random = &random_});
  KVTIER_ASSERT(chosen.value < loads_.size() && loads_[chosen.value].alive,
                "a router chooses one of its candidates");
  policy_->on_dispatched(routed, chosen, now_);
  return chosen;
}

void ClusterRouter::send(const Request& request, InstanceId instance, std::uint64_t& id) {
  deliver();
  const RoutedRequest routed = describe(request);
  id = routed.id;
  policy_->on_dispatched(routed, instance, now_);
}

void ClusterRouter::first_token(std::uint64_t id, InstanceId instance) {
  policy_->on_first_token(id, instance, now_);
}

void ClusterRouter::finished(std::uint64_t id, InstanceId instance) {
  policy_->on_finished(id, instance, now_);
}

void ClusterRouter::report() {
  for (const Listener& listener : listeners_) {
    const std::size_t i = listener.instance.value;
    reported_[i] = loads_[i];
    if (loads_[i].alive) {
      policy_->on_load(listener.instance, reported_[i], now_);
    }
  }
}

void ClusterRouter::lost(InstanceId instance) {
  loads_[instance.value].alive = reported_[instance.value].alive = false;
  deliver();
  set_candidates();
  // Events of its blocks that are still under way are void.
  std::deque<Event> events;
  std::deque<BlockHash> hashes;
  for (const Event& event : events_) {
    for (std::size_t i = 0; i < event.count; ++i) {
      if (event.instance != instance) {
        hashes.push_back(hashes_.front());
      }
      hashes_.pop_front();
    }
    if (event.instance != instance) {
      events.push_back(event);
    }
  }
  events_.swap(events);
  hashes_.swap(hashes);
  policy_->on_lost(instance, now_);
}

void ClusterRouter::joined(InstanceId instance) {
  loads_[instance.value].alive = true;
  reported_[instance.value] = loads_[instance.value];
  set_candidates();
  policy_->on_joined(instance, now_);
}

void ClusterRouter::note(InstanceId instance, std::size_t pool, const Stretch& blocks,
                         bool stored) {
  if (media_.size() <= pool) {
    return;
  }
  for (std::int64_t block = blocks.begin; block < blocks.end; ++block) {
    hashes_.push_back(hash(blocks.stream, block));
  }
  events_.push_back({.at = now_ + delay_,
                     .instance = instance,
                     .medium = media_[pool],
                     .stored = stored,
                     .count = static_cast<std::size_t>(blocks.end - blocks.begin)});
}

void ClusterRouter::deliver() {
  while (!events_.empty() && events_.front().at <= now_) {
    const Event event = events_.front();
    events_.pop_front();
    const auto end = hashes_.begin() + static_cast<std::ptrdiff_t>(event.count);
    const std::vector<BlockHash> hashes(hashes_.begin(), end);
    hashes_.erase(hashes_.begin(), end);
    if (event.stored) {
      policy_->on_blocks_stored(event.instance, event.medium, hashes, event.at);
    } else {
      policy_->on_blocks_removed(event.instance, event.medium, hashes, event.at);
    }
  }
}

void ClusterRouter::check_invariants(std::int64_t requests_in_flight) const {
  policy_->check_invariants(requests_in_flight);
}

}  // namespace kvtier
