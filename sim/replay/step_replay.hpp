#pragma once

#include "sim/serving/instance.hpp"
#include "sim/serving/simulate.hpp"

namespace kvtier {

/// Runs a system of blocks in steps without a clock: the scheduler puts iterations together as in a
/// timed run, each takes one step, and transfers that begin with a step have ended when it has. All
/// requests that `source` has arrive at its times, in units of StepBackend. The observer's
/// on_block_request says what each request found. Returns the requests' hits, preemptions and what
/// the tiers took and lost. Throws ConfigError.
struct StepReplay {
  BlockHits hits;
  std::int64_t preemptions = 0;
  /// By tier, the fastest first.
  std::vector<TierCounters> tiers;
};
[[nodiscard]] StepReplay replay_steps(const RunConfig& config, SessionSource& source,
                                      const PolicyRegistry& registry,
                                      const RunOptions& options = {});

}  // namespace kvtier
