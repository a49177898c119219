#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "sim/backend/simulated_backend.hpp"
#include "sim/core/config.hpp"
#include "sim/serving/config.hpp"
#include "sim/serving/instance.hpp"
#include "sim/store/decisions.hpp"

namespace kvtier {

/// How a run is carried out. None of it changes a result.
struct RunOptions {
  DecodeStepping stepping = DecodeStepping::closed_form;
  RunObserver* observer = nullptr;
  DecisionObserver* decisions = nullptr;
  /// Called now and then with the number of finished turns; may throw to end the run.
  std::function<void(std::int64_t)> progress;
  /// Called with the instance before it runs: observers may read its counters while it does.
  std::function<void(const Instance&)> on_start;
  /// Folder at which relative paths of the workload start.
  std::filesystem::path base_dir;
};

/// A run's result as `kvtier.result/1`: `config`, `workload`, `load` and `metrics`
/// (architecture.md), and with a profile `timing`. The same config and seed give the same bytes.
/// Throws ConfigError (bad config or workload), DeviceError (unreadable trace).
[[nodiscard]] Json simulate(const RunConfig& config, const PolicyRegistry& registry,
                            const RunOptions& options = {});

/// The same on a backend of the caller's, which is run to its end; without `timing` and links.
/// Throws what the backend throws, too.
[[nodiscard]] Json run_on(Backend& backend, const RunConfig& config, const PolicyRegistry& registry,
                          const RunOptions& options = {});

}  // namespace kvtier
