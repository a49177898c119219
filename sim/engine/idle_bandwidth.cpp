#include "sim/engine/idle_bandwidth.hpp"

#include <algorithm>

namespace kvtier {

BytesPerSecond idle_bandwidth(const HardwareConfig& hardware, Medium from, Medium to) {
  const bool over_host_link = to == Medium::hbm && from != Medium::cxl;
  const bool back_over_host_link = from == Medium::hbm && to != Medium::cxl;
  std::optional<BytesPerSecond> slowest;
  const auto crosses = [&slowest](BytesPerSecond link) {
    slowest = slowest ? std::min(*slowest, link) : link;
  };
  if (over_host_link) {
    crosses(host_link(hardware).forward);
  } else if (back_over_host_link) {
    crosses(host_link(hardware).backward);
  }
  if (from == Medium::ssd) {
    const SsdLimits& drive = hardware.ssd->bandwidth;
    crosses(over_host_link ? drive.read_over_host_link() : drive.forward);
  } else if (to == Medium::ssd) {
    crosses(hardware.ssd->bandwidth.backward);
  }
  if (from == Medium::cxl) {
    crosses(hardware.cxl->bandwidth.forward);
  } else if (to == Medium::cxl) {
    crosses(hardware.cxl->bandwidth.backward);
  }
  if (from == Medium::dram || to == Medium::dram) {
    if (const std::optional<BytesPerSecond> left = dram_bandwidth_left(hardware)) {
      crosses(*left);
    }
  }
  return *slowest;
}

}  // namespace kvtier
