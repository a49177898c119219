#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<EvictionPolicy> seconds_saved_eviction();

}  // namespace kvtier
