#pragma once

#include "sim/policy/policy.hpp"
#include "sim/policy/routing.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<RoutingPolicy> vllm_prefix_aware_routing();

}  // namespace kvtier
