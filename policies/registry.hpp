#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

/// Every policy of this program, by kind; the order is the order of lists.
[[nodiscard]] PolicyRegistry builtin_policies();

}  // namespace kvtier
