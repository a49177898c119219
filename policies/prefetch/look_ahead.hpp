#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<PrefetchPolicy> look_ahead_prefetch();

}  // namespace kvtier
