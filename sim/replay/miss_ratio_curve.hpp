#pragma once

#include <vector>

#include "sim/serving/simulate.hpp"

namespace kvtier {

struct MissRatioOptions {
  /// Share of the sessions that is sampled, by a hash of their numbers (SHARDS: Waldspurger, Park,
  /// Garthwaite and Ahmad, FAST 2015).
  double sampling_rate = 1;
  /// Capacities of the curve; empty: four for each doubling, as far as the curve falls.
  std::vector<Bytes> capacities;
};

/// Miss ratios of one LRU tier at all capacities, in one pass over the accesses of an untimed
/// replay: `kvtier.miss_ratio_curve/1`. Of the system, only the size of an entry counts (the
/// fastest tier's block_size, compression, positions). The curve equals replays with that tier
/// alone if no history is cut and no entry is larger than the tier. A larger entry evicts others
/// here, but not in a replay. Throws ConfigError.
[[nodiscard]] Json miss_ratio_curve(const RunConfig& config, const PolicyRegistry& registry,
                                    const MissRatioOptions& curve, const RunOptions& options = {});

}  // namespace kvtier
