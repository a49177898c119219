#pragma once

#include "sim/policy/policy.hpp"
#include "sim/policy/routing.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<RoutingPolicy> least_tokens_routing();

}  // namespace kvtier
