#pragma once

#include "sim/serving/simulate.hpp"

namespace kvtier {

/// The untimed replay of a system of blocks: turns come one after the other, each is looked up,
/// computed and released before the next. Result as `kvtier.untimed/1`, where hits are counted in
/// tokens, in blocks of the fastest tier and in turns that find anything. With
/// DecodeStepping::per_iteration, a plain store of one object per block takes the place of extents:
/// the same bytes, slowly. Throws ConfigError, also for a turn that has no room by itself.
[[nodiscard]] Json replay_blocks(const RunConfig& config, SessionSource& source,
                                 const PolicyRegistry& registry, const RunOptions& options);

/// The most blocks that a policy could find in all tiers of the system together, of any order of
/// eviction and any edges, beside the `result` of its replay:
///
///     {"name": "Belady", "hit_blocks", "hit_rate": {"blocks"}, "share_reached": {"blocks"}}
[[nodiscard]] Json bound_of_blocks(const RunConfig& config, SessionSource& source,
                                   const Json& result);

}  // namespace kvtier
