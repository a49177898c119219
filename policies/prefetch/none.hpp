#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<PrefetchPolicy> no_prefetch();

}  // namespace kvtier
