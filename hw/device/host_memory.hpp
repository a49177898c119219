#pragma once

#include "sim/core/units.hpp"

namespace kvtier {

/// Memory of the host.
[[nodiscard]] Bytes host_memory();
/// What programs can have of it now: also what the page cache would give up.
[[nodiscard]] Bytes available_host_memory();

}  // namespace kvtier
