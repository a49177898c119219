#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<OrderPolicy> priority_order();

}  // namespace kvtier
