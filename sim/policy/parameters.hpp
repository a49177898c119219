#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

/// The config's value of a policy's parameter, or the default.
[[nodiscard]] inline double parameter_or(const PolicyParameters& parameters, const char* name,
                                         double otherwise) {
  const auto given = parameters.find(name);
  return given == parameters.end() ? otherwise : given->second;
}

}  // namespace kvtier
