#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<PrefetchPolicy> deadline_prefetch();

}  // namespace kvtier
