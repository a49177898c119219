#pragma once

#include "sim/core/config.hpp"

namespace kvtier {

/// The version of the program, and the commit of its sources: "unknown" without git, with "-dirty"
/// if a tracked file differed.
[[nodiscard]] const char* build_version();
[[nodiscard]] const char* build_commit();

/// The beginning of every result: its format, and the build that made it.
[[nodiscard]] Json new_result(const char* format);

}  // namespace kvtier
