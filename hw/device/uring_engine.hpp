#pragma once

#include "hw/device/storage.hpp"

namespace kvtier {

/// Opens io_uring. Returns null and sets `reason` if the ring cannot be made or a test read fails.
/// Requested polling that fails is left out; the engine's name tells which polling is used.
[[nodiscard]] std::unique_ptr<StorageEngine> open_uring_engine(int descriptor,
                                                               const StorageOptions& options,
                                                               std::string& reason);

}  // namespace kvtier
