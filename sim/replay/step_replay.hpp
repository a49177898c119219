#pragma once

#include "sim/serving/instance.hpp"
#include "sim/serving/simulate.hpp"

namespace kvtier {

/// Runs a system of blocks in steps without a clock. The scheduler composes iterations as in a
/// timed run, each iteration takes one step, and transfers that start with a step complete before
/// it ends. Requests arrive at the times of `source`, in units of StepBackend. The observer's
/// on_request gets the hits of each request. Returns hits, preemptions and the counters of
/// the tiers. Throws ConfigError.
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
