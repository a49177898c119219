#include "hw/device/blas.hpp"

#include <cstdlib>

#include <dlfcn.h>
#include <fmt/format.h>

#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

constexpr const char* kLibrary = "libopenblas.so.0";

[[noreturn]] void cannot_load() {
  throw DeviceError(
      fmt::format("cpu: OpenBLAS cannot be loaded ({}); install libopenblas0", ::dlerror()));
}

template <class Function>
void find(Function& function, void* library, const char* name) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    cannot_load();
  }
}

Blas load() {
  ::setenv("OPENBLAS_NUM_THREADS", "1", 1);  // read once, by the loaded library
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    cannot_load();
  }
  Blas blas;
  find(blas.sgemm, library, "cblas_sgemm");
  find(blas.config, library, "openblas_get_config");
  find(blas.core_name, library, "openblas_get_corename");
  decltype(&::openblas_set_num_threads) set_threads = nullptr;
  find(set_threads, library, "openblas_set_num_threads");
  set_threads(1);  // the program may be linked with it, and then the variable comes too late
  return blas;
}

}  // namespace

const Blas& blas() {
  static const Blas loaded = load();
  return loaded;
}

}  // namespace kvtier
