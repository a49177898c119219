#pragma once

#include <memory>
#include <string>
#include <vector>

#include "calibrate/bench.hpp"
#include "calibrate/plan.hpp"
#include "hw/device/storage.hpp"

/// The measurements. Each returns its plan as tables of cells. Data are random, and computed or
/// moved data are verified.
namespace kvtier::calibrate {

/// gemm, the attentions, elementwise, rotation.
[[nodiscard]] std::vector<PlannedTable> plan_compute(const Target& target);

/// The copies, pin_memory, call_overhead, layer_pipeline.
[[nodiscard]] std::vector<PlannedTable> plan_copies(const Target& target);

/// control_step.
[[nodiscard]] std::vector<PlannedTable> plan_control(const Target& target);

/// model_step, idle_pass.
[[nodiscard]] std::vector<PlannedTable> plan_steps(const Target& target);
/// The model and the KV of the largest step, which stay on the device from the first step on.
[[nodiscard]] Bytes memory_of_steps(const ModelConfig& model, Bytes element);

/// A test file whose data hold their own offsets.
class StorageBench;
[[nodiscard]] std::shared_ptr<StorageBench> make_storage_bench(const std::string& directory,
                                                               Bytes size, StorageEngineKind kind);
/// The same with an engine of the caller, for tests with known times.
[[nodiscard]] std::shared_ptr<StorageBench> make_storage_bench(
    std::function<std::unique_ptr<StorageEngine>(const StorageOptions&)> open, Bytes size);
/// The profile's description of the drive.
[[nodiscard]] ProfileStorage describe(const StorageBench& bench);
/// Requests that the drive merged with neighbours while the bench was at work.
[[nodiscard]] std::int64_t merged_requests(const StorageBench& bench);

/// The drive operations. The first cell fills the file.
[[nodiscard]] std::vector<PlannedTable> plan_storage(const Target& target,
                                                     std::shared_ptr<StorageBench> bench);

}  // namespace kvtier::calibrate
