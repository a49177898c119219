#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<EvictionPolicy> sieve_eviction();

}  // namespace kvtier
