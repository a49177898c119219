#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hw/device/open_device.hpp"
#include "sim/serving/simulate.hpp"
#include "sim/study/runs/recorders.hpp"
#include "sim/study/sweep/sweep.hpp"
#include "sim/study/validate/passes.hpp"

/// Compares one config on the simulated backend and on a device. docs/validation.md has the method.
namespace kvtier {

struct ValidateOptions {
  /// `cpu` computes with all processors but one, which is left for the other work.
  DeviceName device{.kind = "cpu"};
  /// Folder for the drive's file, if the config uses a drive.
  std::string storage = ".";
  /// Runs on the device, all of the same workload.
  std::int64_t repetitions = 3;
  /// Compare every token's KV with the computed KV after every move. This is slow.
  bool verify = false;
  /// See RunOptions.
  std::filesystem::path base_dir;
  /// Records the simulation and the first run on the device, with the same tracks. Not used in lock
  /// step, where both have the same times. The caller calls `commit`.
  Recorders* recorders = nullptr;
  /// Called several times a second; may throw to end the run.
  std::function<void()> check = [] {};
  /// Called with the run (0: the simulation) and its finished turns; may throw to end the run.
  std::function<void(std::int64_t, std::int64_t)> progress = [](std::int64_t, std::int64_t) {};
};

/// One metric: the simulated number, and the median of the repetitions.
struct ValidationRow {
  std::string metric;
  std::string unit;
  double simulated = 0;
  double measured = 0;
  double lowest = 0;
  double highest = 0;
  /// For rates the difference, for other numbers simulated / measured - 1.
  double error = 0;
  /// The number of a simulation at the device's pace in these runs, and its error.
  double at_pace = 0;
  double error_at_pace = 0;
  /// Largest allowed |error|; nullopt for metrics without a band.
  std::optional<double> band;

  [[nodiscard]] bool in_band() const;
};

struct Validation {
  std::string device;
  /// See stand_ins.
  std::vector<std::string> stand_ins;
  std::vector<ValidationRow> rows;
  Json simulated;
  std::vector<Json> measured;
  /// Of all repetitions together.
  Passes passes;
  /// The larger mean share in use of batch slots and of HBM for KV. Above a limit the validation is
  /// out of band.
  double occupied = 0;

  [[nodiscard]] bool in_band() const;
};

/// Throws for a config that cannot run on the device, as `validate` does.
void check_validates(const RunConfig& config, const ValidateOptions& options);

/// Runs the config in simulation and on the device. Hit rates must agree within 1 point. p50 and
/// p90 of TTFT must agree within 10 %, or three times the noise (half of the repetitions' range),
/// if that is more. Numbers at the runs' own pace have no band; they show the machine's share of an
/// error. Throws as `simulate` does, ConfigError for a config that the device cannot run, and
/// DeviceError for devices and drives.
[[nodiscard]] Validation validate(const RunConfig& config, const PolicyRegistry& registry,
                                  const ValidateOptions& options);

/// A run with simulated times whose work is done on the device.
struct LockStep {
  std::string device;
  std::vector<std::string> stand_ins;
  /// Whether the decisions, metrics and workload equal those of the simulation.
  bool equal = false;
  std::int64_t decisions = 0;
  std::int64_t moves = 0;
  Bytes moved;
  Bytes verified;
};
/// Throws as `validate` does, and DeviceError for a token with wrong KV after a move.
[[nodiscard]] LockStep validate_in_lock_step(const RunConfig& config,
                                             const PolicyRegistry& registry,
                                             const ValidateOptions& options);

/// The label columns of a table with a line for each config of a sweep.
struct ValidationColumns {
  std::vector<std::string> axes;
  /// Width of the longest label of each axis.
  std::vector<std::size_t> widths;
};
[[nodiscard]] ValidationColumns columns_of(const Sweep& sweep);
[[nodiscard]] std::string header_line(const ValidationColumns& columns);
[[nodiscard]] std::string table_line(const ValidationColumns& columns,
                                     const std::vector<std::string>& labels,
                                     const Validation& validation);

/// The result as JSON (`kvtier.validation/1`).
[[nodiscard]] Json to_json(const Validation& validation);
[[nodiscard]] Json to_json(const LockStep& run);
[[nodiscard]] std::string to_table(const Validation& validation);
[[nodiscard]] std::string to_text(const LockStep& run);

}  // namespace kvtier
