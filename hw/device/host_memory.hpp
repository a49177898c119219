#pragma once

#include "sim/core/units.hpp"

namespace kvtier {

/// Memory of the host.
[[nodiscard]] Bytes host_memory();
/// Memory that programs can allocate now, including reclaimable page cache.
[[nodiscard]] Bytes available_host_memory();

}  // namespace kvtier
