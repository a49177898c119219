#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "hw/device/device.hpp"

namespace kvtier {

/// "cpu", "cpu:THREADS" or "cuda:N".
struct DeviceName {
  std::string kind;
  /// Number of the GPU. For the host: its threads, 0 for one on each processor.
  int index = 0;
  /// Type of a GPU's numbers: bfloat16 or float16.
  ElementType element = ElementType::bfloat16;
};

/// Throws ConfigError, its line starting with `--device`, for any other text.
[[nodiscard]] DeviceName parse_device_name(std::string_view text);

/// Throws DeviceError, with what to install, if the module, the driver or the device is missing.
[[nodiscard]] std::unique_ptr<Device> open_device(const DeviceName& name);

/// The module of CUDA devices: ../lib/kvtier/kvtier_cuda.so, relative to the program's folder.
[[nodiscard]] std::filesystem::path cuda_module_path();

/// The same with the module at `path`.
[[nodiscard]] std::unique_ptr<Device> open_module_device(const std::filesystem::path& path,
                                                         int index, ElementType element);

/// Unmangled symbols that a module exports. The version symbol returns kDeviceModuleVersion; a
/// module with another version is refused, because its interface may differ.
inline constexpr int kDeviceModuleVersion = 5;
inline constexpr const char* kModuleVersionSymbol = "kvtier_device_module_version";
inline constexpr const char* kModuleOpenSymbol = "kvtier_open_device";

}  // namespace kvtier
