#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<OrderPolicy> shuffled_window_order();

}  // namespace kvtier
