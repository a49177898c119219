#pragma once

#include <cstdint>

#include "sim/policy/policy.hpp"
#include "sim/policy/routing.hpp"

namespace kvtier {

/// Weights of Dynamo's cost, under Dynamo's names.
struct DynamoWeights {
  double overlap_score_credit = 1;
  double overlap_score_credit_decay = 0;
  double prefill_load_scale = 1;
  double host_cache_hit_weight = 0.75;
  double disk_cache_hit_weight = 0.25;
  double shared_cache_multiplier = 0;
  double active_request_weight = 0;
};

/// An instance's inputs to Dynamo's cost of one request, in blocks.
struct DynamoCandidate {
  /// The request's blocks on the GPU from the start on, the following blocks in host memory, and
  /// the following blocks on disk. `shared`: blocks in the shared pool beyond the GPU's.
  std::int64_t device = 0;
  std::int64_t host = 0;
  std::int64_t disk = 0;
  std::int64_t shared = 0;
  /// Prefill load of requests without a first token, and the least such load of all candidates.
  double active_prefill = 0;
  double active_prefill_min = 0;
  /// Blocks of all its requests with this one, each counted once.
  double decode = 0;
  std::int64_t requests = 0;
};

/// The cost of a candidate for a request of `request_blocks` blocks. A decode instance does no
/// prefill; a credit for its cached blocks reduces its decode load.
[[nodiscard]] double dynamo_cost(const DynamoWeights& weights, RoutingPhase phase,
                                 double request_blocks, const DynamoCandidate& candidate);

[[nodiscard]] PolicyKind<RoutingPolicy> dynamo_kv_routing();

}  // namespace kvtier
