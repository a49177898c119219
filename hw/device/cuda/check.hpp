#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

/// Throw DeviceError with the call and the error's name.
namespace kvtier {

void check(const char* call, cudaError_t error);
void check(const char* call, cublasStatus_t status);

}  // namespace kvtier
