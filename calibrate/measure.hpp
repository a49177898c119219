#pragma once

#include <memory>
#include <string>
#include <vector>

#include "calibrate/bench.hpp"
#include "calibrate/plan.hpp"
#include "hw/device/storage.hpp"

/// The measures: each says what it is going to do as tables of planned cells. Data are random, and
/// what is computed or moved is verified.
namespace kvtier::calibrate {

/// G1, A1 to A3, E1, R1.
[[nodiscard]] std::vector<PlannedTable> plan_compute(const Target& target);

/// C1 to C7.
[[nodiscard]] std::vector<PlannedTable> plan_copies(const Target& target);

/// X1.
[[nodiscard]] std::vector<PlannedTable> plan_control(const Target& target);

/// X2.
[[nodiscard]] std::vector<PlannedTable> plan_steps(const Target& target);

/// A test file full of data that say where they belong.
class StorageBench;
[[nodiscard]] std::shared_ptr<StorageBench> make_storage_bench(const std::string& directory,
                                                               Bytes size, StorageEngineKind kind);
/// With an engine of one's own, for known truth.
[[nodiscard]] std::shared_ptr<StorageBench> make_storage_bench(
    std::function<std::unique_ptr<StorageEngine>(const StorageOptions&)> open, Bytes size);
/// What a profile says of it.
[[nodiscard]] ProfileStorage describe(const StorageBench& bench);
/// Requests that the drive merged with neighbours while the bench was at work.
[[nodiscard]] std::int64_t merged_requests(const StorageBench& bench);

/// D1 to D5. The first cell fills the file.
[[nodiscard]] std::vector<PlannedTable> plan_storage(const Target& target,
                                                     std::shared_ptr<StorageBench> bench);

}  // namespace kvtier::calibrate
