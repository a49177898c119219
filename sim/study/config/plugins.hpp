#pragma once

#include <string>
#include <vector>

#include "sim/policy/policy.hpp"

namespace kvtier {

/// The program's policies and those of shared libraries (sim/policy/plugin.hpp), which stay loaded
/// until the program ends. Throws ConfigError with the problems of every library: one that cannot
/// be loaded, is none of policies or of another interface, or whose policies are not declared in
/// full or are there already.
[[nodiscard]] PolicyRegistry load_policies(const std::vector<std::string>& libraries);

/// A line for each policy of `added` that `registry` has already or that is not declared in full;
/// without one, adds them all. Lines begin with `origin`.
[[nodiscard]] std::vector<std::string> add_policies(PolicyRegistry& registry, PolicyRegistry added,
                                                    const std::string& origin);

}  // namespace kvtier
