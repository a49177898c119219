#pragma once

#include <string>
#include <vector>

#include <pybind11/pybind11.h>

#include "sim/policy/policy.hpp"

namespace kvtier::python {

/// The policies of the program, of `plugins` (paths of libraries), and eviction and routing
/// policies written in Python: `declared` is a list of kvtier.declared.Declaration. Throws
/// ConfigError.
[[nodiscard]] PolicyRegistry make_registry(const std::vector<std::string>& plugins,
                                           const pybind11::list& declared);

/// Views of policies written in Python.
void bind_views(pybind11::module_& module);

}  // namespace kvtier::python
