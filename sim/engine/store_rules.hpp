#pragma once

#include <string>

#include "sim/engine/backend.hpp"
#include "sim/engine/config.hpp"
#include "sim/store/rules.hpp"

namespace kvtier {

/// The rules of a system of blocks (SystemConfig::blocks). Throws ConfigError for a tier without
/// room for a block.
[[nodiscard]] StoreRules store_rules(const RunConfig& config);

/// The medium of a tier with this name.
[[nodiscard]] Medium medium_of(const std::string& name);

}  // namespace kvtier
