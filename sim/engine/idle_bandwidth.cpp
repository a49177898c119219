#include "sim/engine/idle_bandwidth.hpp"

#include <optional>

namespace kvtier {

SlowestLink slowest_link(const HardwareConfig& hardware, Medium from, Medium to) {
  const bool over_host_link = to == Medium::hbm && from != Medium::cxl;
  const bool back_over_host_link = from == Medium::hbm && to != Medium::cxl;
  std::optional<SlowestLink> slowest;
  const auto crosses = [&slowest](BytesPerSecond bandwidth, WaitCause link) {
    if (!slowest || bandwidth < slowest->bandwidth) {
      slowest = {bandwidth, link};
    }
  };
  if (over_host_link) {
    crosses(host_link(hardware).forward, WaitCause::host_link);
  } else if (back_over_host_link) {
    crosses(host_link(hardware).backward, WaitCause::host_link);
  }
  if (from == Medium::ssd) {
    const SsdLimits& drive = hardware.ssd->bandwidth;
    crosses(over_host_link ? drive.read_over_host_link() : drive.forward, WaitCause::drive);
  } else if (to == Medium::ssd) {
    crosses(hardware.ssd->bandwidth.backward, WaitCause::drive);
  }
  if (from == Medium::cxl) {
    crosses(hardware.cxl->bandwidth.forward, WaitCause::cxl_memory);
  } else if (to == Medium::cxl) {
    crosses(hardware.cxl->bandwidth.backward, WaitCause::cxl_memory);
  }
  if (from == Medium::dram || to == Medium::dram) {
    if (const std::optional<BytesPerSecond> left = dram_bandwidth_left(hardware)) {
      crosses(*left, WaitCause::host_memory);
    }
  }
  return *slowest;
}

}  // namespace kvtier
