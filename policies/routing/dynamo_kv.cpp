// Dynamo's KV router: cost of an instance = blocks to prefill (with this request, cached blocks
// credited) + blocks in use while it decodes. It chooses the lowest cost, ties at random. With a
// temperature, it draws an instance by the softmax of the negative costs, scaled by their range.
// The router counts loads itself. A prompt's uncached tokens at dispatch count as prefill until its
// first token. Its blocks count until it ends, once if requests share them. Cached blocks are known
// by events, or predicted from the prompts sent in the last 120 s. Decode instances are chosen by
// load, unless `decode_overlap_credit` credits their cached blocks. NVIDIA Dynamo, lib/kv-router,
// August 2026. O(b + n) per request of b blocks among n instances, beside the block indexes.
#include "policies/routing/dynamo_kv.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "policies/routing/exact_index.hpp"
#include "sim/policy/cheapest_instances.hpp"
#include "sim/policy/parameters.hpp"
#include "sim/policy/sent_blocks.hpp"
#include "sim/policy/sent_requests.hpp"

namespace kvtier {

double dynamo_cost(const DynamoWeights& weights, RoutingPhase phase, double request_blocks,
                   const DynamoCandidate& candidate) {
  double credit_of_device = weights.overlap_score_credit;
  if (phase != RoutingPhase::decode && weights.overlap_score_credit_decay > 0 &&
      request_blocks > 0) {
    const double excess = candidate.active_prefill - candidate.active_prefill_min;
    credit_of_device /= 1 + weights.overlap_score_credit_decay * excess / request_blocks;
  }
  const double credit = credit_of_device * static_cast<double>(candidate.device) +
                        weights.host_cache_hit_weight * static_cast<double>(candidate.host) +
                        weights.disk_cache_hit_weight * static_cast<double>(candidate.disk) +
                        weights.shared_cache_multiplier * static_cast<double>(candidate.shared);
  const double of_requests =
      weights.active_request_weight * static_cast<double>(candidate.requests);
  if (phase == RoutingPhase::decode) {
    const bool counts = weights.overlap_score_credit > 0;
    return std::max(0.0, candidate.decode - (counts ? credit : 0)) + of_requests;
  }
  const double prefill = std::max(0.0, candidate.active_prefill + request_blocks - credit);
  return weights.prefill_load_scale * prefill + candidate.decode + of_requests;
}

namespace {

constexpr double kDynamoTtlSeconds = 120;

struct DynamoSettings {
  DynamoWeights weights;
  double decode_overlap_credit = 0;
  double temperature = 0;
  bool kv_events = true;
  SimDuration ttl;
};

/// The router's record of a request in flight.
struct DynamoRequest {
  std::vector<BlockHash> blocks;
  /// Tokens that still count as prefill load.
  double prefill_tokens = 0;
};

class DynamoKvRouting final : public RoutingPolicy {
 public:
  explicit DynamoKvRouting(const DynamoSettings& settings) : settings_(settings) {}

  [[nodiscard]] RoutingNeeds needs() const override {
    return {.blocks = true,
            .block_events = settings_.kv_events,
            .instances_max = BlockIndex::kInstancesMax};
  }
  void on_start(const RoutingFacts& facts) override {
    facts_ = facts;
    if (facts.phase == RoutingPhase::decode) {
      settings_.weights.overlap_score_credit = settings_.decode_overlap_credit;
    }
    const auto instances = static_cast<std::size_t>(facts.instances);
    sent_.emplace(facts.instances);
    requests_.emplace(facts.instances);
    prefill_tokens_.assign(instances, 0);
    active_blocks_.assign(instances, 0);
    candidates_.resize(instances);
  }
  void on_lost(InstanceId instance, SimTime) override {
    looked_up_.reset();
    stored_.lose(instance);
    sent_->lose(instance);
  }
  void on_blocks_stored(InstanceId instance, BlockMedium medium, std::span<const BlockHash> blocks,
                        SimTime) override {
    looked_up_.reset();
    stored_.store(instance, medium, blocks);
  }
  void on_blocks_removed(InstanceId instance, BlockMedium medium, std::span<const BlockHash> blocks,
                         SimTime) override {
    looked_up_.reset();
    stored_.remove(instance, medium, blocks);
  }

  InstanceId choose(const RoutedRequest& request, const RoutingView& view) override {
    look_up(request, view.now);
    looked_up_ = request.id;
    const double block_tokens = static_cast<double>(facts_.block_tokens.value);
    const double request_blocks = static_cast<double>(request.prompt.value) / block_tokens;
    double least_prefill = std::numeric_limits<double>::infinity();
    for (const InstanceId instance : view.candidates) {
      least_prefill = std::min(least_prefill, prefill_tokens_[instance.value]);
    }
    const auto cost_of = [&](InstanceId instance) {
      DynamoCandidate& candidate = candidates_[instance.value];
      candidate.active_prefill = prefill_tokens_[instance.value] / block_tokens;
      candidate.active_prefill_min = least_prefill / block_tokens;
      candidate.requests = requests_->count(instance);
      return dynamo_cost(settings_.weights, facts_.phase, request_blocks, candidate);
    };
    return settings_.temperature == 0 ? cheapest(view, cost_of) : drawn(view, cost_of);
  }

  void on_dispatched(const RoutedRequest& request, InstanceId instance, SimTime now) override {
    // The look-up of `choose` is valid if nothing has changed since.
    if (looked_up_ != request.id) {
      look_up(request, now);
    }
    looked_up_.reset();
    const DynamoCandidate& candidate = candidates_[instance.value];
    const DynamoWeights& weights = settings_.weights;
    const double cached = static_cast<double>(candidate.device) +
                          weights.host_cache_hit_weight * static_cast<double>(candidate.host) +
                          weights.disk_cache_hit_weight * static_cast<double>(candidate.disk);
    DynamoRequest sent{.blocks = {request.blocks.begin(), request.blocks.end()}};
    if (facts_.phase != RoutingPhase::decode) {
      sent.prefill_tokens =
          std::max(0.0, static_cast<double>(request.prompt.value) -
                            cached * static_cast<double>(facts_.block_tokens.value));
      prefill_tokens_[instance.value] += sent.prefill_tokens;
    }
    for (const BlockHash block : sent.blocks) {
      BlockIndex::Holder& holder = active_.add(block, instance);
      active_blocks_[instance.value] += holder.tag == 0 ? 1 : 0;
      ++holder.tag;
    }
    if (!settings_.kv_events) {
      for (const BlockHash block : sent.blocks) {
        sent_->touch(instance, block, now);
      }
    }
    requests_->add(request.id, instance, std::move(sent));
  }
  void on_first_token(std::uint64_t request, InstanceId instance, SimTime) override {
    end_prefill(requests_->at(request), instance);
  }
  void on_finished(std::uint64_t request, InstanceId instance, SimTime) override {
    DynamoRequest sent = requests_->remove(request, instance);
    end_prefill(sent, instance);
    for (const BlockHash block : sent.blocks) {
      BlockIndex::Holder* const holder = active_.find(block, instance);
      if (--holder->tag == 0) {
        active_.erase(block, instance);
        --active_blocks_[instance.value];
      }
    }
    if (requests_->count(instance) == 0) {
      prefill_tokens_[instance.value] = 0;  // drops the rounding error
    }
  }
  void check_invariants(std::int64_t requests_in_flight) const override {
    requests_->check(requests_in_flight);
    std::int64_t active = 0;
    for (const std::int64_t blocks : active_blocks_) {
      active += blocks;
    }
    KVTIER_ASSERT(active == static_cast<std::int64_t>(active_.pairs()),
                  "the active blocks are those of the requests in flight");
    KVTIER_ASSERT(requests_in_flight > 0 || active == 0, "no block is active without a request");
  }

 private:
  /// State of a walk: the current medium, and the blocks found in each.
  struct Tiers {
    int medium = 0;
    std::int64_t blocks[kBlockMedia] = {};
  };

  /// Blocks of the request that each instance holds, and blocks that it would have in use.
  void look_up(const RoutedRequest& request, SimTime now) {
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      candidates_[i] = {};
      candidates_[i].decode =
          static_cast<double>(active_blocks_[i]) + static_cast<double>(request.blocks.size());
    }
    active_.match(request.blocks, [&](InstanceId instance, std::int64_t blocks) {
      candidates_[instance.value].decode -= static_cast<double>(blocks);
    });
    if (!settings_.kv_events) {
      sent_->expire(now - settings_.ttl);
      sent_->index().match(request.blocks, [&](InstanceId instance, std::int64_t blocks) {
        candidates_[instance.value].device = blocks;
      });
      return;
    }
    std::int64_t shared = 0;
    stored_.index().walk<Tiers>(
        request.blocks,
        [](Tiers& tiers, const BlockIndex::Holder* holder) {
          const MediaMask media = holder != nullptr ? holder->media : MediaMask{0};
          // Each medium continues after the blocks of the faster one.
          while (tiers.medium < kBlockMedia && (media & (1U << tiers.medium)) == 0) {
            ++tiers.medium;
          }
          if (tiers.medium == kBlockMedia) {
            return false;
          }
          ++tiers.blocks[tiers.medium];
          return true;
        },
        [&](InstanceId instance, const Tiers& tiers) {
          if (!instance.valid()) {
            shared = tiers.blocks[0] + tiers.blocks[1] + tiers.blocks[2];
            return;
          }
          DynamoCandidate& candidate = candidates_[instance.value];
          candidate.device = tiers.blocks[0];
          candidate.host = tiers.blocks[1];
          candidate.disk = tiers.blocks[2];
        });
    for (DynamoCandidate& candidate : candidates_) {
      candidate.shared = std::max<std::int64_t>(0, shared - candidate.device);
    }
  }

  /// Draws an instance by the softmax of the negative costs.
  template <class CostOf>
  [[nodiscard]] InstanceId drawn(const RoutingView& view, const CostOf& cost_of) {
    weights_.clear();
    double least = std::numeric_limits<double>::infinity();
    double most = -least;
    for (const InstanceId instance : view.candidates) {
      weights_.push_back(cost_of(instance));
      least = std::min(least, weights_.back());
      most = std::max(most, weights_.back());
    }
    double sum = 0;
    for (double& weight : weights_) {
      weight = most == least
                   ? 1
                   : std::exp(-(weight - least) / ((most - least) * settings_.temperature));
      sum += weight;
    }
    double left = view.random->uniform() * sum;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      left -= weights_[i];
      if (left <= 0) {
        return view.candidates[i];
      }
    }
    return view.candidates.back();
  }

  void end_prefill(DynamoRequest& request, InstanceId instance) {
    prefill_tokens_[instance.value] -= std::exchange(request.prefill_tokens, 0.0);
  }

  DynamoSettings settings_;
  RoutingFacts facts_;
  /// Blocks that instances hold, according to events or to dispatches.
  StoredBlocks stored_;
  std::optional<SentBlocks> sent_;
  /// Blocks of the requests in flight; a tag counts the requests that use the block.
  BlockIndex active_;
  std::optional<SentRequests<DynamoRequest>> requests_;
  std::vector<double> prefill_tokens_;
  std::vector<std::int64_t> active_blocks_;
  std::vector<DynamoCandidate> candidates_;
  /// The request for which candidates_ is valid, until a change.
  std::optional<std::uint64_t> looked_up_;
  std::vector<double> weights_;
};

}  // namespace

PolicyKind<RoutingPolicy> dynamo_kv_routing() {
  const DynamoWeights usual;
  const auto weight = [](const char* name, const char* documentation, double default_value) {
    return PolicyParameter{.name = name,
                           .documentation = documentation,
                           .unit = "blocks per block",
                           .minimum = 0,
                           .maximum = 1e6,
                           .default_value = default_value};
  };
  std::vector<PolicyParameter> parameters{
      weight("overlap_score_credit", "credit for a cached block on the GPU",
             usual.overlap_score_credit),
      weight("prefill_load_scale", "cost of a block to prefill", usual.prefill_load_scale),
      weight("host_cache_hit_weight", "credit for a cached block in host memory",
             usual.host_cache_hit_weight),
      weight("disk_cache_hit_weight", "credit for a cached block on disk",
             usual.disk_cache_hit_weight),
      weight("shared_cache_multiplier", "credit for a block of the shared pool beyond the GPU's",
             usual.shared_cache_multiplier),
      weight("decode_overlap_credit", "overlap_score_credit of instances that only decode", 0)};
  parameters.push_back({.name = "overlap_score_credit_decay",
                        .documentation = "decay of the GPU's credit with the excess prefill load",
                        .unit = "of the credit",
                        .minimum = 0,
                        .maximum = 1e6,
                        .default_value = usual.overlap_score_credit_decay});
  parameters.push_back({.name = "active_request_weight",
                        .documentation = "cost of a request in flight",
                        .unit = "blocks",
                        .minimum = 0,
                        .maximum = 1e6,
                        .default_value = usual.active_request_weight});
  parameters.push_back({.name = "temperature",
                        .documentation = "temperature of the softmax of costs; 0: the lowest cost",
                        .unit = "of the range of costs",
                        .minimum = 0,
                        .maximum = 1e6,
                        .default_value = 0});
  parameters.push_back({.name = "kv_events",
                        .documentation = "1: blocks are known by events; 0: predicted",
                        .unit = "switch",
                        .minimum = 0,
                        .maximum = 1,
                        .default_value = 1});
  parameters.push_back({.name = "ttl",
                        .documentation = "time for which a sent block is believed cached",
                        .unit = "seconds",
                        .minimum = 0,
                        .maximum = 1e9,
                        .default_value = kDynamoTtlSeconds});
  return {.name = "dynamo_kv",
          .summary = "the fewest blocks to prefill and to decode, cached ones credited",
          .source = "NVIDIA Dynamo, lib/kv-router, August 2026",
          .knowledge = Knowledge::online,
          .parameters = std::move(parameters),
          .make = [usual](const PolicyParameters& given) -> std::unique_ptr<RoutingPolicy> {
            DynamoSettings settings;
            DynamoWeights& weights = settings.weights;
            weights.overlap_score_credit =
                parameter_or(given, "overlap_score_credit", usual.overlap_score_credit);
            weights.overlap_score_credit_decay =
                parameter_or(given, "overlap_score_credit_decay", usual.overlap_score_credit_decay);
            weights.prefill_load_scale =
                parameter_or(given, "prefill_load_scale", usual.prefill_load_scale);
            weights.host_cache_hit_weight =
                parameter_or(given, "host_cache_hit_weight", usual.host_cache_hit_weight);
            weights.disk_cache_hit_weight =
                parameter_or(given, "disk_cache_hit_weight", usual.disk_cache_hit_weight);
            weights.shared_cache_multiplier =
                parameter_or(given, "shared_cache_multiplier", usual.shared_cache_multiplier);
            weights.active_request_weight =
                parameter_or(given, "active_request_weight", usual.active_request_weight);
            settings.decode_overlap_credit = parameter_or(given, "decode_overlap_credit", 0);
            settings.temperature = parameter_or(given, "temperature", 0);
            settings.kv_events = parameter_or(given, "kv_events", 1) >= 0.5;
            settings.ttl = SimDuration(
                static_cast<std::int64_t>(parameter_or(given, "ttl", kDynamoTtlSeconds) * 1e9));
            return std::make_unique<DynamoKvRouting>(settings);
          }};
}

}  // namespace kvtier
