#pragma once

#include "hw/hardware.hpp"
#include "sim/engine/backend.hpp"

namespace kvtier {

/// What a move towards the GPUs gets when nothing else moves: the slowest link of its way. Both
/// media are installed.
[[nodiscard]] BytesPerSecond idle_bandwidth(const HardwareConfig& hardware, Medium from, Medium to);

}  // namespace kvtier
