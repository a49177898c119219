/// The matrix product that the device module uses, as cuBLASLt defines it.

#include <cstring>
#include <vector>

#include <cblas.h>
#include <cublasLt.h>
#include <fmt/format.h>

#include "tests/cuda_emulation/runtime.hpp"

using namespace kvtier::emulation;  // NOLINT(google-build-using-namespace)

namespace {

/// Opaque types of the library.
struct Handle {
  int device = 0;
};
struct Product {
  cublasOperation_t turned = CUBLAS_OP_N;
};
struct Layout {
  cudaDataType_t type{};
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::int64_t stride = 0;
};
struct Preference {
  std::uint64_t workspace = 0;
};
/// In a cublasLtMatmulAlgo_t.
struct Algorithm {
  std::uint64_t chosen;
  std::uint64_t rows;
  std::uint64_t inputs;
  /// The largest number of columns.
  std::uint64_t columns;
};

template <class Opaque, class Pointer>
Opaque& of(Pointer pointer) {
  return *reinterpret_cast<Opaque*>(pointer);
}
template <class Opaque>
const Opaque& of(const void* pointer) {
  return *static_cast<const Opaque*>(pointer);
}

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

/// Whether these are output = weights^T x input.
bool fit(const Layout& weights, const Layout& input, const Layout& output) {
  return weights.type == input.type && input.type == output.type && weights.rows == input.rows &&
         weights.columns == output.rows && input.columns == output.columns &&
         weights.stride >= static_cast<std::int64_t>(weights.rows) &&
         input.stride >= static_cast<std::int64_t>(input.rows) &&
         output.stride >= static_cast<std::int64_t>(output.rows);
}

Algorithm algorithm_of(const cublasLtMatmulAlgo_t& opaque) {
  Algorithm algorithm;
  static_assert(sizeof algorithm <= sizeof opaque);
  std::memcpy(&algorithm, &opaque, sizeof algorithm);
  return algorithm;
}

/// An algorithm takes fewer columns than it was chosen for, but one for many takes even numbers.
bool takes(const Algorithm& algorithm, const Layout& weights, const Layout& input) {
  constexpr std::uint64_t kMany = 512;
  return algorithm.chosen == 1 && algorithm.rows == weights.columns &&
         algorithm.inputs == weights.rows && algorithm.columns >= input.columns &&
         (algorithm.columns <= kMany || input.columns % 2 == algorithm.columns % 2);
}

template <class Opaque, class Pointer>
cublasStatus_t create(const char* function, Pointer* made, Opaque opaque) {
  const std::lock_guard lock(machine);
  if (must_fail(function)) {
    return CUBLAS_STATUS_ALLOC_FAILED;
  }
  ++count().blas_handles;
  *made = reinterpret_cast<Pointer>(new Opaque(opaque));
  return CUBLAS_STATUS_SUCCESS;
}
template <class Opaque, class Pointer>
cublasStatus_t destroy(Pointer made) {
  const std::lock_guard lock(machine);
  --count().blas_handles;
  delete reinterpret_cast<Opaque*>(made);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  openblas_set_num_threads(1);  // the products of tests are too small to share
  return create(__func__, handle, Handle{.device = current_device()});
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy<Handle>(handle); }
std::size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS"
                                         : "CUBLAS_STATUS of the emulation";
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return create(__func__, product, Product{});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  return destroy<Product>(product);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* data, std::size_t size) {
  if (attribute != CUBLASLT_MATMUL_DESC_TRANSA || size != sizeof(cublasOperation_t)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  of<Product>(product).turned = of<cublasOperation_t>(data);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t stride) {
  return create(__func__, layout,
                Layout{.type = type, .rows = rows, .columns = columns, .stride = stride});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy<Layout>(layout);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create(__func__, preference, Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy<Preference>(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* data, std::size_t size) {
  if (attribute != CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES || size != sizeof(std::uint64_t)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  of<Preference>(preference).workspace = of<std::uint64_t>(data);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t weights,
    cublasLtMatrixLayout_t input, cublasLtMatrixLayout_t output, cublasLtMatrixLayout_t /*result*/,
    cublasLtMatmulPreference_t /*preference*/, int /*wanted*/,
    cublasLtMatmulHeuristicResult_t* results, int* found) {
  const std::lock_guard lock(machine);
  ++count().blas_choices;
  if (of<Product>(product).turned != CUBLAS_OP_T ||
      !fit(of<Layout>(weights), of<Layout>(input), of<Layout>(output))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Algorithm algorithm{.chosen = 1,
                            .rows = of<Layout>(weights).columns,
                            .inputs = of<Layout>(weights).rows,
                            .columns = of<Layout>(input).columns};
  results[0] = {};
  std::memcpy(&results[0].algo, &algorithm, sizeof algorithm);
  *found = must_fail(__func__) ? 0 : 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t /*handle*/,
                                       cublasLtMatmulDesc_t /*product*/,
                                       cublasLtMatrixLayout_t weights, cublasLtMatrixLayout_t input,
                                       cublasLtMatrixLayout_t /*output*/,
                                       cublasLtMatrixLayout_t /*result*/,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const std::lock_guard lock(machine);
  *result = {};
  return !must_fail(__func__) &&
                 takes(algorithm_of(*algorithm), of<Layout>(weights), of<Layout>(input))
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* /*added*/, cublasLtMatrixLayout_t /*added_layout*/,
                              void* c, cublasLtMatrixLayout_t c_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t on) {
  const std::lock_guard lock(machine);
  CUstream_st& stream = *stream_of(on);
  const int device = of<Handle>(handle).device;
  if (device != current_device() || stream.device != current_device()) {
    fault("device", fmt::format("cublasLtMatmul: a handle of device {} on a stream of device {} "
                                "while device {} is current",
                                device, stream.device, current_device()));
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  const Layout weights = of<Layout>(a_layout);
  const Layout input = of<Layout>(b_layout);
  const Layout output = of<Layout>(c_layout);
  if (of<Product>(product).turned != CUBLAS_OP_T || of<float>(alpha) != 1 || of<float>(beta) != 0) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (!fit(weights, input, output) || algorithm == nullptr ||
      !takes(algorithm_of(*algorithm), weights, input)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  ++count().blas_calls;
  Work work;
  work.steps.push_back([=] {
    constexpr std::size_t kElement = 2;
    const auto bytes = [](const Layout& matrix) {
      return (static_cast<std::size_t>(matrix.stride) * (matrix.columns - 1) + matrix.rows) *
             kElement;
    };
    if (output.rows == 0 || output.columns == 0 ||
        !check_range("cublasLtMatmul", a, bytes(weights), device) ||
        !check_range("cublasLtMatmul", b, bytes(input), device) ||
        !check_range("cublasLtMatmul", c, bytes(output), device) ||
        !check_range("cublasLtMatmul", workspace, workspace_bytes, device)) {
      return;
    }
    const auto numbers = [&](const void* data, const Layout& matrix) {
      return floats(data, bytes(matrix) / kElement, matrix.type);
    };
    const std::vector<float> left = numbers(a, weights);
    const std::vector<float> right = numbers(b, input);
    std::vector<float> sums(output.rows * output.columns);
    const auto size = [](auto n) { return static_cast<blasint>(n); };
    cblas_sgemm(CblasColMajor, CblasTrans, CblasNoTrans, size(output.rows), size(output.columns),
                size(weights.rows), 1, left.data(), size(weights.stride), right.data(),
                size(input.stride), 0, sums.data(), size(output.rows));
    for (std::size_t column = 0; column < output.columns; ++column) {
      for (std::size_t row = 0; row < output.rows; ++row) {
        const float value = sums[column * output.rows + row];
        const std::size_t at = column * static_cast<std::size_t>(output.stride) + row;
        if (output.type == CUDA_R_16F) {
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
