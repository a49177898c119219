#pragma once

#include "sim/engine/backend.hpp"
#include "sim/engine/config.hpp"
#include "sim/policy/policy.hpp"

namespace kvtier {

/// What the policy of the tier in `medium` may ask; computing is timed only if it does. Lives as
/// long as `config`.
[[nodiscard]] TierFacts tier_facts(const RunConfig& config, Medium medium);

}  // namespace kvtier
