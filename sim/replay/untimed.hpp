#pragma once

#include "sim/serving/simulate.hpp"

namespace kvtier {

/// Replays one fixed order of accesses through the tiers, without a clock: sessions take their
/// turns at arrival plus think times, every move is instantaneous, and no request ever waits. For
/// miss-ratio curves and comparison with cache simulators. Result as `kvtier.untimed/1`; of a
/// system of blocks as replay_blocks says.
[[nodiscard]] Json simulate_untimed(const RunConfig& config, const PolicyRegistry& registry,
                                    const RunOptions& options = {});

}  // namespace kvtier
