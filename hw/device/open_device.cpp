#include "hw/device/open_device.hpp"

#include <charconv>

#include <dlfcn.h>
#include <fmt/format.h>

#include "hw/device/cpu_device.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/text.hpp"

namespace kvtier {
namespace {

constexpr const char* kWhatCudaNeeds =
    "a CUDA device needs an NVIDIA GPU with its driver, the CUDA runtime and cuBLAS "
    "(cuda-cudart, libcublas), and a kvtier that was built with nvcc on the PATH";

[[noreturn]] void cannot_open(int index, const std::string& why) {
  throw DeviceError(fmt::format("cuda:{}: {}; {}", index, why, kWhatCudaNeeds));
}

}  // namespace

DeviceName parse_device_name(std::string_view text) {
  const std::size_t colon = text.find(':');
  DeviceName name{.kind = std::string(text.substr(0, colon))};
  const bool known = name.kind == "cpu" || name.kind == "cuda";
  if (known && colon == std::string_view::npos) {
    return name;
  }
  if (known) {
    const std::string_view number = text.substr(colon + 1);
    const char* const end = number.data() + number.size();
    const auto [read_to, error] = std::from_chars(number.data(), end, name.index);
    const int least = name.kind == "cpu" ? 1 : 0;
    if (error == std::errc() && read_to == end && name.index >= least) {
      return name;
    }
  }
  throw ConfigError(
      fmt::format("--device: expected cpu, cpu:THREADS or cuda:N, got {}", quote_text(text)));
}

std::filesystem::path cuda_module_path() {
  std::error_code none;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", none);
  return (program.parent_path() / "../lib/kvtier/kvtier_cuda.so").lexically_normal();
}

std::unique_ptr<Device> open_module_device(const std::filesystem::path& path, int index,
                                           ElementType element) {
  std::error_code none;
  if (!std::filesystem::exists(path, none)) {
    cannot_open(index, "this kvtier was built without CUDA");
  }
  // The module is never unloaded, because its code runs until the last device is destroyed.
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    cannot_open(index, fmt::format("the CUDA module cannot be loaded ({})", ::dlerror()));
  }
  const auto version = reinterpret_cast<int (*)()>(::dlsym(module, kModuleVersionSymbol));
  const auto open =
      reinterpret_cast<Device* (*)(int, ElementType)>(::dlsym(module, kModuleOpenSymbol));
  if (version == nullptr || open == nullptr || version() != kDeviceModuleVersion) {
    throw DeviceError(
        fmt::format("{}: is no device module of this kvtier; build both together", path.string()));
  }
  try {
    return std::unique_ptr<Device>(open(index, element));
  } catch (const DeviceError& error) {
    cannot_open(index, error.what());
  }
}

std::unique_ptr<Device> open_device(const DeviceName& name) {
  if (name.kind == "cpu") {
    return make_cpu_device(name.index);
  }
  return open_module_device(cuda_module_path(), name.index, name.element);
}

}  // namespace kvtier
