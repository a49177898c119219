#pragma once

#include "sim/serving/simulate.hpp"

namespace kvtier {

/// How far an untimed replay's hit rates are from what is possible on the same accesses:
///
///     {"policy", "name", "is_optimum", "hit_rate", "share_reached",
///      "upper_bound": {"hit_rate", "share_reached"}}
///
/// "hit_rate" is of the replay again, with the registry's oracle (Belady) in every tier and no
/// admission policy. No policy finds more turns where "is_optimum" is true: in one tier without a
/// time to live or a free buffer, with entries of one size, if every turn counts (no warm-up) and
/// none is lost by truncation. "name" then is "Belady", and "Belady, greedy" elsewhere: a policy
/// may find more.
///
/// A system of blocks has the bound of bound_of_blocks.
///
/// "upper_bound" holds for every policy that the replay can run, in all tiers together: also for
/// one that holds a part of an entry, and for one that the replay does not have. It is the oracle's
/// count of turns where that is the optimum, and most_value() elsewhere and of tokens.
[[nodiscard]] Json bound_of(const RunConfig& config, const Json& result,
                            const PolicyRegistry& registry, const RunOptions& options);

/// The same of a timed run's config, which is replayed untimed twice: with its own policies, whose
/// hit rates are "untimed_hit_rate", and with the oracle. null where there is no such replay: with
/// paging, shared prompts, several instances or no tier.
[[nodiscard]] Json untimed_bound(const RunConfig& config, const PolicyRegistry& registry,
                                 const RunOptions& options);

}  // namespace kvtier
