#pragma once

#include "sim/engine/simulate.hpp"

namespace kvtier {

/// How far an untimed replay's hit rates are from those of the offline optimum on the same
/// accesses: the replay again, with the registry's oracle in every tier and no admission policy,
/// as {"policy", "hit_rate", "share_reached"}. A true bound for one tier with entries of one size;
/// a greedy one otherwise.
[[nodiscard]] Json bound_of(const RunConfig& config, const Json& result,
                            const PolicyRegistry& registry, const RunOptions& options);

}  // namespace kvtier
