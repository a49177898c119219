#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<EvictionPolicy> mru_eviction();

}  // namespace kvtier
