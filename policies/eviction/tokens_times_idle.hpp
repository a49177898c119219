#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<EvictionPolicy> tokens_times_idle_eviction();

}  // namespace kvtier
