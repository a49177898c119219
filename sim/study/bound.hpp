#pragma once

#include "sim/engine/simulate.hpp"

namespace kvtier {

/// How far an untimed replay's hit rates are from those of the offline optimum on the same
/// accesses: the replay again, with the registry's oracle in every tier and no admission policy,
/// as {"policy", "hit_rate", "share_reached"}. A true bound for one tier with entries of one size;
/// a greedy one otherwise.
[[nodiscard]] Json bound_of(const RunConfig& config, const Json& result,
                            const PolicyRegistry& registry, const RunOptions& options);

/// The same of a timed run's config, which is replayed untimed twice: with its own policies, whose
/// hit rates are "untimed_hit_rate", and with the oracle. null where there is no such replay: with
/// paging, shared prompts, several replicas or no tier.
[[nodiscard]] Json untimed_bound(const RunConfig& config, const PolicyRegistry& registry,
                                 const RunOptions& options);

}  // namespace kvtier
