#pragma once

#include <vector>

#include "sim/serving/simulate.hpp"

namespace kvtier {

struct MissRatioOptions {
  /// Share of the sessions that is looked at (SHARDS: Waldspurger, Park, Garthwaite and Ahmad,
  /// FAST 2015), chosen by a hash of their numbers.
  double sampling_rate = 1;
  /// Capacities of the curve; empty: four for each doubling, as far as the curve falls.
  std::vector<Bytes> capacities;
};

/// Miss ratios of one LRU tier at all capacities, in one pass over the accesses of an untimed
/// replay: `kvtier.miss_ratio_curve/1`. Of the system only what an entry takes is used (the fastest
/// tier's block_size, compression, positions). The same as replays with that tier alone if no
/// history is cut and no entry is larger than the tier; an entry that is pushes others out here,
/// and in a replay it does not. Throws ConfigError.
[[nodiscard]] Json miss_ratio_curve(const RunConfig& config, const PolicyRegistry& registry,
                                    const MissRatioOptions& curve, const RunOptions& options = {});

}  // namespace kvtier
