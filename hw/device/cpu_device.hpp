#pragma once

#include <memory>

#include "hw/device/device.hpp"

namespace kvtier {

/// The host as a device: streams are threads, kernels share the given number of threads (0: as many
/// as there are processors), matrices are OpenBLAS's. Device memory is large pages if the system
/// has them. Pinned memory is resident from the start; no device reads it directly.
[[nodiscard]] std::unique_ptr<Device> make_cpu_device(std::int64_t threads = 0);

}  // namespace kvtier
