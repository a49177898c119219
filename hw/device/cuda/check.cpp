#include "hw/device/cuda/check.hpp"

#include <fmt/format.h>

#include "sim/core/errors.hpp"

namespace kvtier {

void check(const char* call, cudaError_t error) {
  if (error != cudaSuccess) {
    // Clears the error. Otherwise the next launch would report it as its own.
    static_cast<void>(cudaGetLastError());
    throw DeviceError(
        fmt::format("{}: {} ({})", call, cudaGetErrorName(error), cudaGetErrorString(error)));
  }
}

void check(const char* call, cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw DeviceError(fmt::format("{}: {}", call, cublasLtGetStatusName(status)));
  }
}

}  // namespace kvtier
