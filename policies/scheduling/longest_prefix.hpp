#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<OrderPolicy> longest_prefix_order();

}  // namespace kvtier
