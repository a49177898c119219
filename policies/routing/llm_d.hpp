#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/policy/policy.hpp"
#include "sim/policy/routing.hpp"

namespace kvtier {

/// llm-d's scorers: each gives an instance a score from 0 to 1.

/// Score by waiting requests: 1 for the fewest among the candidates, 0 for the most.
[[nodiscard]] double llm_d_queue_score(std::int64_t waiting, std::int64_t fewest,
                                       std::int64_t most);
/// Score by free blocks of GPU memory.
[[nodiscard]] double llm_d_kv_score(const InstanceLoad& load);
/// Score by the share of the prompt's blocks that match, mixed with the squared share of
/// `length_scale` that the match covers; `length_weight` is the share of the latter.
[[nodiscard]] double llm_d_prefix_score(double matched, std::int64_t blocks, Tokens block_tokens,
                                        double length_weight, double length_scale);
/// Score by waiting requests: 0.5 without any, 0 with `threshold` of them.
[[nodiscard]] double llm_d_load_score(std::int64_t waiting, double threshold);
/// Scores for a cold request, which no instance has cached, in the order of the candidates. The
/// longer ago an instance was sent a cold request, the higher. `used` has these instances, the
/// least recent first.
[[nodiscard]] std::vector<double> llm_d_cold_scores(std::span<const InstanceId> candidates,
                                                    std::span<const InstanceId> used);

[[nodiscard]] PolicyKind<RoutingPolicy> llm_d_routing();

}  // namespace kvtier
