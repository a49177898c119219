#pragma once

#include "sim/serving/simulate.hpp"

namespace kvtier {

/// Replays a fixed order of accesses through the tiers, without a clock. Turns come at the
/// session's arrival plus think times, moves take no time, and no request waits. The result is
/// `kvtier.untimed/1`; for a system of blocks see replay_blocks.
[[nodiscard]] Json simulate_untimed(const RunConfig& config, const PolicyRegistry& registry,
                                    const RunOptions& options = {});

}  // namespace kvtier
