#pragma once

#include "sim/policy/policy.hpp"
#include "sim/policy/routing.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<RoutingPolicy> power_of_two_routing();

}  // namespace kvtier
