#include "sim/engine/idle_bandwidth.hpp"

#include <algorithm>

namespace kvtier {

BytesPerSecond idle_bandwidth(const HardwareConfig& hardware, Medium from, Medium to) {
  const bool crosses_pcie = to == Medium::hbm && from != Medium::cxl;
  const bool crosses_dram = from == Medium::dram || to == Medium::dram;
  BytesPerSecond bandwidth = hardware.links.pcie.forward;
  if (from == Medium::cxl) {
    bandwidth = hardware.cxl->bandwidth.forward;
  } else if (from == Medium::ssd) {
    const SsdLimits& drive = hardware.ssd->bandwidth;
    bandwidth = crosses_pcie ? std::min(bandwidth, drive.read_over_host_link()) : drive.forward;
  }
  if (const std::optional<BytesPerSecond> left = dram_bandwidth_left(hardware);
      crosses_dram && left) {
    bandwidth = std::min(bandwidth, *left);
  }
  return bandwidth;
}

}  // namespace kvtier
