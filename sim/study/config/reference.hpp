#pragma once

#include <string>

#include "sim/policy/policy.hpp"

namespace kvtier {

/// Markdown tables of all keys of a run's config ("run") or of a preset ("model", "hardware",
/// "system"): accepted values, default, meaning. "run" and "system" include the policies and their
/// parameters. Throws ConfigError for another name.
[[nodiscard]] std::string config_reference(const std::string& which,
                                           const PolicyRegistry& registry);

}  // namespace kvtier
