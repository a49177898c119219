#pragma once

#include <string>

#include "sim/core/config.hpp"

namespace kvtier {

/// The table of an untimed replay (kvtier.untimed/1): hit rates by kind and tier, the result's
/// bounds (bound.hpp), and lost hits by cause.
[[nodiscard]] std::string untimed_table(const Json& result);

}  // namespace kvtier
