#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/policy/policy.hpp"
#include "sim/policy/routing.hpp"

namespace kvtier {

/// llm-d's scorers: each gives an instance a score from 0 to 1.

/// By waiting requests, between the fewest and the most of the candidates.
[[nodiscard]] double llm_d_queue_score(std::int64_t waiting, std::int64_t fewest,
                                       std::int64_t most);
/// By blocks of the GPU memory in use.
[[nodiscard]] double llm_d_kv_score(const InstanceLoad& load);
/// By the share of the prompt's blocks that match, and by `length_weight` the squared share of
/// `length_scale` that they are long.
[[nodiscard]] double llm_d_prefix_score(double matched, std::int64_t blocks, Tokens block_tokens,
                                        double length_weight, double length_scale);
/// 0.5 without waiting requests, down to 0 with `threshold` of them.
[[nodiscard]] double llm_d_load_score(std::int64_t waiting, double threshold);
/// For a request that nothing is cached of: by how long ago an instance was last sent such a one.
/// `used` has those that were, the longest ago first. In the order of the candidates.
[[nodiscard]] std::vector<double> llm_d_cold_scores(std::span<const InstanceId> candidates,
                                                    std::span<const InstanceId> used);

[[nodiscard]] PolicyKind<RoutingPolicy> llm_d_routing();

}  // namespace kvtier
