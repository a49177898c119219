#pragma once

#include <string>

#include "sim/policy/policy.hpp"

namespace kvtier {

/// All keys of a run's config ("run") or of one preset ("model", "hardware", "system") as Markdown
/// tables: what is accepted, the default, the meaning; and the parameters of the policies. Made
/// from the same descriptions as the reader. Throws ConfigError for another name.
[[nodiscard]] std::string config_reference(const std::string& which,
                                           const PolicyRegistry& registry);

}  // namespace kvtier
