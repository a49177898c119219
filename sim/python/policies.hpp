#pragma once

#include <string>
#include <vector>

#include <pybind11/pybind11.h>

#include "sim/policy/policy.hpp"

namespace kvtier::python {

/// The policies of kvtier, of the libraries `plugins`, and of Python. `declared` is a list of
/// kvtier.declared.Declaration. Throws ConfigError.
[[nodiscard]] PolicyRegistry make_registry(const std::vector<std::string>& plugins,
                                           const pybind11::list& declared);

/// Adds the views that Python policies get to the module.
void bind_views(pybind11::module_& module);

}  // namespace kvtier::python
