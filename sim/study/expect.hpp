#pragma once

#include <string>
#include <vector>

#include "sim/core/config.hpp"

namespace kvtier {

/// Checks a result against expectations: `{"/metrics/hit_rate/all_turns/total": {"min": 0.8, "max":
/// 0.9}}`, or
/// `{"value": 0.86, "tolerance": 0.06}` (tolerance 0 if left out; any JSON value without one must
/// be equal). Returns a line for each that does not hold. Throws ConfigError for malformed
/// expectations, naming `origin`.
[[nodiscard]] std::vector<std::string> failed_expectations(const Json& result,
                                                           const Json& expectations,
                                                           const std::string& origin);

}  // namespace kvtier
