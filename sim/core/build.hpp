#pragma once

#include "sim/core/config.hpp"

namespace kvtier {

/// The version of the program, and the commit that it was built from: "unknown" without git, with
/// "-dirty" if the sources differed from it.
[[nodiscard]] const char* build_version();
[[nodiscard]] const char* build_commit();

/// The beginning of every result: its format, and the build that made it.
[[nodiscard]] Json new_result(const char* format);

}  // namespace kvtier
