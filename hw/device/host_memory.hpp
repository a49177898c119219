#pragma once

#include "sim/core/units.hpp"

namespace kvtier {

/// Memory of the host.
[[nodiscard]] Bytes host_memory();
/// Memory that programs can have now, with that of the page cache.
[[nodiscard]] Bytes available_host_memory();

}  // namespace kvtier
