#pragma once

#include "sim/core/config.hpp"
#include "sim/policy/policy.hpp"
#include "sim/store/rules.hpp"

namespace kvtier {

/// Adds what is wrong with rules that need others, at the keys of a config that set them: those of
/// pool p and of the edge to it are in /system/tiers/NAME, with its PoolRules::name. Configs
/// are refused with these problems, and stores take only rules without any. Capacities do not
/// count. Policies that the registry does not have are not a problem here.
void check_rules(const StoreRules& rules, const PolicyRegistry& registry, Problems& problems);

}  // namespace kvtier
