#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/check.hpp"
#include "calibrate/measure.hpp"
#include "calibrate/plan.hpp"
#include "hw/device/open_device.hpp"
#include "hw/device/storage.hpp"
#include "hw/model/model.hpp"
#include "hw/profile/profile.hpp"

/// Measures the machine at hand and writes its profile.
namespace kvtier::calibrate {

struct CalibrateOptions {
  DeviceName device{.kind = "cpu"};
  /// A folder on the drive to measure; unset: no drive.
  std::optional<std::string> storage;
  ModelConfig model;
  /// The whole grid with more time for each cell, or a grid that takes 90 seconds.
  bool full = false;
  /// Continue with the cells that an earlier run kept.
  bool resume = false;
  /// The kernels of attention to keys as stored. Whole steps run the project's own alone, so
  /// another library leaves them out.
  AttentionLibrary attention = AttentionLibrary::own;
  std::filesystem::path out;
  std::string version;
  /// See RunOptions.
  std::function<void(const Progress&)> progress = [](const Progress&) {};
  std::function<void()> check = [] {};
};

/// Writes the profile to `out`, which appears only when all is done. Until then the measured part
/// is kept beside it under kept_path. Throws ConfigError for a run that cannot be resumed or a
/// model that the device cannot take, DeviceError for devices and drives.
Profile calibrate(const CalibrateOptions& options);

struct LiveCheckOptions {
  DeviceName device{.kind = "cpu"};
  /// The model of the profile's tables.
  ModelConfig model;
  CheckOptions cells;
  /// See RunOptions.
  std::function<void(const Progress&)> progress = [](const Progress&) {};
  std::function<void()> check = [] {};
};

/// Runs check_by_measuring on the profile's device. Throws ConfigError for another device or model,
/// DeviceError for devices.
[[nodiscard]] CheckReport check_on_device(const Profile& profile, const LiveCheckOptions& options);

/// The file in which a run that ends early keeps its measured cells.
[[nodiscard]] std::filesystem::path kept_path(const std::filesystem::path& out);

/// The plan of a run on this device and drive.
[[nodiscard]] std::vector<PlannedTable> plan_all(const Target& target,
                                                 std::shared_ptr<StorageBench> storage);

/// Throws ConfigError for a model whose heads the attention kernels do not take.
void check_heads(const ModelConfig& model);

/// The date of a profile that is made now.
[[nodiscard]] std::string utc_now();

/// The closing lines of the output: cells measured and left out, samples rejected.
[[nodiscard]] std::vector<std::string> summarize(const Profile& profile);

}  // namespace kvtier::calibrate
