#pragma once

#include "hw/hardware.hpp"
#include "sim/engine/backend.hpp"
#include "sim/engine/waits.hpp"

namespace kvtier {

/// The slowest link of a move's way.
struct SlowestLink {
  /// What the move gets when nothing else moves.
  BytesPerSecond bandwidth;
  /// What a GPU that waits for the move waits for.
  WaitCause link;
};
/// The drives and CXL memory that the move uses are installed.
[[nodiscard]] SlowestLink slowest_link(const HardwareConfig& hardware, Medium from, Medium to);
[[nodiscard]] inline BytesPerSecond idle_bandwidth(const HardwareConfig& hardware, Medium from,
                                                   Medium to) {
  return slowest_link(hardware, from, to).bandwidth;
}

}  // namespace kvtier
