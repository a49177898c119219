#pragma once

#include <string>
#include <vector>

#include "sim/policy/policy.hpp"

namespace kvtier {

/// The program's policies and those of shared libraries (sim/policy/plugin.hpp). The libraries stay
/// loaded until the program ends. Throws ConfigError with the problems of all libraries: one that
/// cannot be loaded, has no policies, has another interface version or compiler, or has policies
/// with an incomplete declaration or a used name. With `name_errors`, errors of their policies in a
/// run are ConfigErrors that name the policy; the checks of policies see the errors as thrown.
[[nodiscard]] PolicyRegistry load_policies(const std::vector<std::string>& libraries,
                                           bool name_errors = true);

/// Adds the policies of `added` to `registry` if none has an incomplete declaration or a used name.
/// Otherwise changes nothing and returns a line for each problem, which begins with `origin`.
[[nodiscard]] std::vector<std::string> add_policies(PolicyRegistry& registry, PolicyRegistry added,
                                                    const std::string& origin);

}  // namespace kvtier
