#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

/// All policies of this program, by kind, in the order of `kvtier list`.
[[nodiscard]] PolicyRegistry builtin_policies();

}  // namespace kvtier
