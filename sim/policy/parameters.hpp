#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

/// What a config gives for a policy's parameter, or else this.
[[nodiscard]] inline double parameter_or(const PolicyParameters& parameters, const char* name,
                                         double otherwise) {
  const auto given = parameters.find(name);
  return given == parameters.end() ? otherwise : given->second;
}

}  // namespace kvtier
