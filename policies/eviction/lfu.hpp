#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<EvictionPolicy> lfu_eviction();

}  // namespace kvtier
