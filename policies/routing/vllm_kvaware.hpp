#pragma once

#include "sim/policy/policy.hpp"
#include "sim/policy/routing.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<RoutingPolicy> vllm_kvaware_routing();

}  // namespace kvtier
