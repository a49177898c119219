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
#include "sim/study/validate/pace.hpp"

/// One config on the simulated backend and on a device, side by side (measurement.md, rungs 5a, 5b
/// and 6 of the ladder).
namespace kvtier {

struct ValidateOptions {
  /// `cpu` computes with all processors but one, which the rest of the work has.
  DeviceName device{.kind = "cpu"};
  /// Folder for the drive's file, where the config uses a drive.
  std::string storage = ".";
  /// Runs on the device, all of the same workload.
  std::int64_t repetitions = 3;
  /// Compare every token's KV after every move with what was computed: right, and slow.
  bool verify = false;
  /// See RunOptions.
  std::filesystem::path base_dir;
  /// Gets two runs, the simulation and the first one on the device, with the same tracks; not in
  /// lock-step, where they have the same times. Its `commit` is the caller's.
  Recorders* recorders = nullptr;
  /// Called several times a second; what it throws ends the run.
  std::function<void()> check = [] {};
  /// Called now and then with the run (0: simulation), and its finished turns; may throw to end.
  std::function<void(std::int64_t, std::int64_t)> progress = [](std::int64_t, std::int64_t) {};
};

/// One number of a result: simulated, and in the median of the repetitions.
struct ValidationRow {
  std::string metric;
  std::string unit;
  double simulated = 0;
  double measured = 0;
  double lowest = 0;
  double highest = 0;
  /// Error. For rates the difference, for times simulated / measured - 1.
  double error = 0;
  /// Simulated again with the pace at which the device computed in these runs, and its error.
  double at_pace = 0;
  double error_at_pace = 0;
  /// Largest |error| in band; nullopt if there is no band.
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
  /// Pace of all repetitions together.
  Pace pace;
  /// Mean share in use of the batch slots or of the HBM for KV, whichever is used more. Times are
  /// judged up to a limit.
  double occupied = 0;

  [[nodiscard]] bool in_band() const;
};

/// Throws what `validate` would throw for the config before it runs.
void check_validates(const RunConfig& config, const ValidateOptions& options);

/// Hit rates are judged within 1 point, p50 and p90 of the time to first token within 10 % or three
/// times the spread of the repetitions, whichever is more. What the simulation says at the runs'
/// own pace is shown beside it and judged by nobody: it tells the machine's share of an error.
/// Throws as simulate does, ConfigError for what a device cannot run, DeviceError for devices and
/// drives.
[[nodiscard]] Validation validate(const RunConfig& config, const PolicyRegistry& registry,
                                  const ValidateOptions& options);

/// A run whose times are simulated and whose work is done on the device.
struct LockStep {
  std::string device;
  std::vector<std::string> stand_ins;
  /// The decisions of both runs are the same, line by line, and so are the results.
  bool equal = false;
  std::int64_t decisions = 0;
  std::int64_t moves = 0;
  Bytes moved;
  Bytes verified;
};
/// Throws as validate does, and DeviceError for a token whose KV is wrong after a move.
[[nodiscard]] LockStep validate_in_lock_step(const RunConfig& config,
                                             const PolicyRegistry& registry,
                                             const ValidateOptions& options);

/// One config of several: its names, in a table that has a line for each.
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

/// `kvtier.validation/1`.
[[nodiscard]] Json to_json(const Validation& validation);
[[nodiscard]] Json to_json(const LockStep& run);
[[nodiscard]] std::string to_table(const Validation& validation);
[[nodiscard]] std::string to_text(const LockStep& run);

}  // namespace kvtier
