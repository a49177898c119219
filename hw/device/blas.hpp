#pragma once

#include <cblas.h>

namespace kvtier {

/// The functions of OpenBLAS that the host as a device calls.
struct Blas {
  decltype(&::cblas_sgemm) sgemm = nullptr;
  decltype(&::openblas_get_config) config = nullptr;
  decltype(&::openblas_get_corename) core_name = nullptr;
};

/// Loads OpenBLAS on the first call: when it is loaded it reserves memory, and it ends a program
/// whose threads are limited. It computes on the calling thread alone, because its own threads
/// would poll for milliseconds after each matrix. Throws DeviceError.
[[nodiscard]] const Blas& blas();

}  // namespace kvtier
