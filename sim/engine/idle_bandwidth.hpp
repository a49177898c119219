#pragma once

#include "hw/hardware.hpp"
#include "sim/engine/backend.hpp"

namespace kvtier {

/// The rate of a move while nothing else moves: that of the slowest link on its way. The drives and
/// CXL memory that it uses are installed.
[[nodiscard]] BytesPerSecond idle_bandwidth(const HardwareConfig& hardware, Medium from, Medium to);

}  // namespace kvtier
