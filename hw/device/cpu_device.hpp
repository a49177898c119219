#pragma once

#include <memory>

#include "hw/device/device.hpp"

namespace kvtier {

/// The host as a device: streams are threads, kernels share the given number of threads (0: as many
/// as there are processors), matrices are OpenBLAS's. Device memory is large pages where the system
/// has them; pinned memory is memory that is present from the start, as nothing here reads behind
/// the processor's back.
[[nodiscard]] std::unique_ptr<Device> make_cpu_device(std::int64_t threads = 0);

}  // namespace kvtier
