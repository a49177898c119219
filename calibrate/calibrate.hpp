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
  /// A folder on the drive to measure, or nothing.
  std::optional<std::string> storage;
  ModelConfig model;
  /// The whole grid with more time for each cell, or one that is done in a minute and a half.
  bool full = false;
  /// Go on from what an earlier run kept.
  bool resume = false;
  std::filesystem::path out;
  std::string version;
  /// See RunOptions.
  std::function<void(const Progress&)> progress = [](const Progress&) {};
  std::function<void()> check = [] {};
};

/// What ends up in `out`, which appears only when all is done; until then the part that was
/// measured is kept beside it under kept_path. Throws ConfigError for a run that cannot be resumed
/// or a model that the device cannot take, DeviceError for devices and drives.
Profile calibrate(const CalibrateOptions& options);

struct LiveCheckOptions {
  DeviceName device{.kind = "cpu"};
  /// Of which the profile's tables were measured.
  ModelConfig model;
  CheckOptions cells;
  /// See RunOptions.
  std::function<void(const Progress&)> progress = [](const Progress&) {};
  std::function<void()> check = [] {};
};

/// check_by_measuring on the device that the profile is of. Throws ConfigError for another device
/// or model, DeviceError for devices.
[[nodiscard]] CheckReport check_on_device(const Profile& profile, const LiveCheckOptions& options);

/// Where a run that ends early leaves what it measured.
[[nodiscard]] std::filesystem::path kept_path(const std::filesystem::path& out);

/// The plan of such a run, on this device and drive.
[[nodiscard]] std::vector<PlannedTable> plan_all(const Target& target,
                                                 std::shared_ptr<StorageBench> storage);

/// Throws ConfigError for a model whose heads the attention kernels do not take.
void check_heads(const ModelConfig& model);

/// The date of a profile that is made now.
[[nodiscard]] std::string utc_now();

/// The lines that a user reads at the end: cells measured and left out, samples rejected.
[[nodiscard]] std::vector<std::string> summarize(const Profile& profile);

}  // namespace kvtier::calibrate
