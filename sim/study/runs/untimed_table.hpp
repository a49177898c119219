#pragma once

#include <string>

#include "sim/core/config.hpp"

namespace kvtier {

/// The table that users see of an untimed replay (kvtier.untimed/1): hit rates by what they count
/// and by tier, beside the bounds that the result has (bound.hpp), and lost hits by cause.
[[nodiscard]] std::string untimed_table(const Json& result);

}  // namespace kvtier
