#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<OrderPolicy> fcfs_order();

}  // namespace kvtier
