#pragma once

#include <string>

#include "sim/policy/policy.hpp"

namespace kvtier {

/// The same policies, with every exception and every wrong choice turned into a ConfigError that
/// names `origin`, the policy and the call. Policies of libraries are input, and may have bugs.
[[nodiscard]] PolicyRegistry guarded(PolicyRegistry policies, const std::string& origin);

}  // namespace kvtier
