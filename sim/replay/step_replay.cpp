#include "sim/replay/step_replay.hpp"

#include "sim/replay/step_backend.hpp"

namespace kvtier {

StepReplay replay_steps(const RunConfig& config, SessionSource& source,
                        const PolicyRegistry& registry, const RunOptions& options) {
  StepBackend backend;
  Instance instance({.config = &config,
                     .registry = &registry,
                     .backend = &backend,
                     .sessions = &source,
                     .observer = options.observer,
                     .plain_store = options.stepping == DecodeStepping::per_iteration,
                     .progress = options.progress});
  instance.run();
  const Batcher& batcher = instance.batcher();
  StepReplay replay{.preemptions = batcher.preemptions(), .tiers = {}};
  if (batcher.block_hits() != nullptr) {
    replay.hits = *batcher.block_hits();
  }
  for (std::size_t i = 0; i < batcher.tier_count(); ++i) {
    replay.tiers.push_back(batcher.counters(i));
  }
  return replay;
}

}  // namespace kvtier
