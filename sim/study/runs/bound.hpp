#pragma once

#include "sim/serving/simulate.hpp"

namespace kvtier {

/// Compares an untimed replay's hit rates with those that are possible on the same accesses:
///
///     {"policy", "name", "is_optimum", "hit_rate", "share_reached",
///      "upper_bound": {"hit_rate", "share_reached"}}
///
/// "hit_rate" is that of another replay, with the registry's oracle (Belady) in every tier and no
/// admission policy. If "is_optimum" is true, no policy finds more turns, and "name" is "Belady".
/// That is so without tiers, and in one tier without a time to live or a free buffer, with entries
/// of one size, if every turn counts (no warm-up) and none is lost by truncation. Otherwise a
/// policy may find more, and "name" is "Belady, greedy".
///
/// "upper_bound" holds for every policy, in all tiers together. For turns it is the oracle's count
/// if that is the optimum. Otherwise, and for tokens, it is most_value().
///
/// A system of blocks has the bound of bound_of_blocks. Throws ConfigError for a system that shares
/// prompts.
[[nodiscard]] Json bound_of(const RunConfig& config, const Json& result,
                            const PolicyRegistry& registry, const RunOptions& options);

/// The bound of a timed run's config, which is replayed untimed with its own policies and with the
/// oracle. "untimed_hit_rate" has the hit rates of its own policies. null for configs without such
/// a replay: with shared prompts, several instances or no tier.
[[nodiscard]] Json untimed_bound(const RunConfig& config, const PolicyRegistry& registry,
                                 const RunOptions& options);

}  // namespace kvtier
