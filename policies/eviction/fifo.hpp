#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<EvictionPolicy> fifo_eviction();
[[nodiscard]] PolicyKind<EvictionPolicy> session_fifo_eviction();

}  // namespace kvtier
