/// The matrix product that the device module uses, as cuBLAS defines it.

#include <vector>

#include <cblas.h>
#include <cublas_v2.h>
#include <fmt/format.h>

#include "tests/cuda_emulation/runtime.hpp"

using namespace kvtier::emulation;  // NOLINT(google-build-using-namespace)

struct cublasContext {
  int device = 0;
  cudaStream_t stream = nullptr;
};

namespace {

float to_float(const void* data, std::size_t i, cudaDataType_t type) {
  return type == CUDA_R_16F ? __half2float(static_cast<const __half*>(data)[i])
                            : __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
}

std::vector<float> floats(const void* data, std::size_t count, cudaDataType_t type) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = to_float(data, i, type);
  }
  return values;
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  const std::lock_guard lock(machine);
  if (must_fail(__func__)) {
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  openblas_set_num_threads(1);  // the products of tests are too small to share
  ++count().blas_handles;
  *handle = new cublasContext{.device = current_device()};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  const std::lock_guard lock(machine);
  --count().blas_handles;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetVersion_v2(cublasHandle_t /*handle*/, int* version) {
  const std::lock_guard lock(machine);
  *version = 130000;
  return must_fail(__func__) ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS"
                                         : "CUBLAS_STATUS of the emulation";
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  const std::lock_guard lock(machine);
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t a_turned,
                            cublasOperation_t b_turned, int m, int n, int k, const void* alpha,
                            const void* a, cudaDataType_t a_type, int a_stride, const void* b,
                            cudaDataType_t b_type, int b_stride, const void* beta, void* c,
                            cudaDataType_t c_type, int c_stride, cublasComputeType_t compute,
                            cublasGemmAlgo_t /*algorithm*/) {
  const std::lock_guard lock(machine);
  CUstream_st& stream = *stream_of(handle->stream);
  if (handle->device != current_device() || stream.device != current_device()) {
    fault("device",
          fmt::format("cublasGemmEx: a handle of device {} on a stream of device {} while "
                      "device {} is current",
                      handle->device, stream.device, current_device()));
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  const bool known = a_turned == CUBLAS_OP_T && b_turned == CUBLAS_OP_N &&
                     compute == CUBLAS_COMPUTE_32F && *static_cast<const float*>(alpha) == 1 &&
                     *static_cast<const float*>(beta) == 0;
  if (!known) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (a_type != b_type || a_type != c_type || m < 0 || n < 0 || k < 0 || a_stride < k ||
      b_stride < k || c_stride < m) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  ++count().blas_calls;
  Work work;
  work.steps.push_back([=, device = stream.device] {
    constexpr std::size_t kElement = 2;
    const auto size = [](int x) { return static_cast<std::size_t>(x); };
    const std::size_t a_count = size(a_stride) * size(m);
    const std::size_t b_count = size(b_stride) * size(n);
    if (m == 0 || n == 0 || !check_range("cublasGemmEx", a, a_count * kElement, device) ||
        !check_range("cublasGemmEx", b, b_count * kElement, device) ||
        !check_range("cublasGemmEx", c, (size(c_stride) * size(n - 1) + size(m)) * kElement,
                     device)) {
      return;
    }
    const std::vector<float> left = floats(a, a_count, a_type);
    const std::vector<float> right = floats(b, b_count, b_type);
    std::vector<float> product(size(m) * size(n));
    cblas_sgemm(CblasColMajor, CblasTrans, CblasNoTrans, m, n, k, 1, left.data(), a_stride,
                right.data(), b_stride, 0, product.data(), m);
    for (std::size_t column = 0; column < size(n); ++column) {
      for (std::size_t row = 0; row < size(m); ++row) {
        const float value = product[column * size(m) + row];
        const std::size_t at = column * size(c_stride) + row;
        if (c_type == CUDA_R_16F) {
          static_cast<__half*>(c)[at] = __float2half(value);
        } else {
          static_cast<__nv_bfloat16*>(c)[at] = __float2bfloat16(value);
        }
      }
    }
  });
  queue(stream, std::move(work));
  return CUBLAS_STATUS_SUCCESS;
}
}
