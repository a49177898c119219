#pragma once

#include "sim/study/sweep/sweep.hpp"

namespace kvtier {

/// Throws ConfigError with every column that no run of the sweep can have, and names columns that
/// runs have. It does short runs of the checked points, one for each structure of a config, until
/// one has all columns. A column that only longer runs may have is not refused.
void check_columns(const Sweep& sweep, const SweepPoints& points, const PolicyRegistry& registry);

}  // namespace kvtier
