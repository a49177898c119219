#pragma once

#include "sim/serving/simulate.hpp"

namespace kvtier {

/// The untimed replay of a system of blocks: each turn is looked up, computed and released before
/// the next (see /serving/hold_requests). The result is `kvtier.untimed/1`. Blocks are
/// those of the fastest tier. With
/// DecodeStepping::per_iteration, a plain store with one object per block replaces extents; the
/// results are the same bytes. Throws ConfigError, also if a turn alone does not fit.
[[nodiscard]] Json replay_blocks(const RunConfig& config, SessionSource& source,
                                 const PolicyRegistry& registry, const RunOptions& options);

/// An upper bound of the hits of all tiers of the system together, for any eviction policy and any
/// edges, compared with the `result` of its replay:
///
///     {"name": "Belady", "hit_blocks", "hit_rate": {"blocks"}, "share_reached": {"blocks"}}
[[nodiscard]] Json bound_of_blocks(const RunConfig& config, SessionSource& source,
                                   const Json& result);

}  // namespace kvtier
