#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

#include <dlfcn.h>

#include "hw/device/open_device.hpp"
#include "tests/cuda_emulation/control.hpp"

namespace kvtier::emulation {

/// The emulated module at a path, and what a test asks of it.
class Module {
 public:
  explicit Module(std::filesystem::path path)
      : path_(std::move(path)), handle_(::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      throw std::runtime_error(::dlerror());
    }
  }

  [[nodiscard]] std::unique_ptr<Device> open(int index, ElementType element) const {
    return open_module_device(path_, index, element);
  }
  void schedule(Schedule schedule, std::uint64_t seed) const {
    symbol<decltype(kvtier_emulation_schedule)>("kvtier_emulation_schedule")(schedule, seed);
  }
  [[nodiscard]] Counters counters() const {
    Counters found{};
    symbol<decltype(kvtier_emulation_counters)>("kvtier_emulation_counters")(&found);
    return found;
  }
  void fail(const char* function, int n) const {
    symbol<decltype(kvtier_emulation_fail)>("kvtier_emulation_fail")(function, n);
  }
  [[nodiscard]] bool plant(const std::string& name) const {
    return symbol<decltype(kvtier_emulation_plant)>("kvtier_emulation_plant")(name.c_str());
  }
  /// "check: text" of the first fault, or nothing.
  [[nodiscard]] std::string fault() const {
    const char* const text = symbol<decltype(kvtier_emulation_fault)>("kvtier_emulation_fault")(0);
    return text == nullptr ? "" : text;
  }
  [[nodiscard]] std::vector<std::string> planted() const {
    std::vector<std::string> names;
    const auto name = symbol<decltype(kvtier_emulation_planted)>("kvtier_emulation_planted");
    for (int i = 0; name(i) != nullptr; ++i) {
      names.emplace_back(name(i));
    }
    return names;
  }

 private:
  template <class Function>
  [[nodiscard]] Function* symbol(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(handle_, name));
  }

  std::filesystem::path path_;
  void* handle_;
};

}  // namespace kvtier::emulation
