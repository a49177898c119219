#pragma once

#include "hw/device/storage.hpp"

namespace kvtier {

/// Null, with the reason, if the ring cannot be made or a test read fails. Polling that was asked
/// for and fails is left out and named.
[[nodiscard]] std::unique_ptr<StorageEngine> open_uring_engine(int descriptor,
                                                               const StorageOptions& options,
                                                               std::string& reason);

}  // namespace kvtier
