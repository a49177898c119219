#pragma once

#include "sim/policy/policy.hpp"
#include "sim/policy/routing.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<RoutingPolicy> sglang_cache_aware_routing();

}  // namespace kvtier
