#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <type_traits>

#include <cublasLt.h>

#include "hw/device/device.hpp"

/// Products of matrices by cuBLASLt, whose choice of a kernel takes the host about a millisecond.
namespace kvtier {

/// Chooses the kernels of products. All numbers of rows with the same `rows` share a kernel, and
/// each choice is made once. Any thread may call.
class GemmPlans {
 public:
  /// `type`: CUDA_R_16BF or CUDA_R_16F. `workspace`: bytes that each product may use.
  GemmPlans(cudaDataType_t type, std::size_t workspace);
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;

  /// The number itself up to 16, then 32 and multiples of 64.
  [[nodiscard]] static std::int64_t rows(std::int64_t m);
  /// Queues a product; `workspace` is in device memory.
  void multiply(const GemmWork& work, void* workspace, cudaStream_t stream);

 private:
  template <class Handle, cublasStatus_t (*destroy)(Handle)>
  struct Destroy {
    void operator()(Handle handle) const { destroy(handle); }
  };
  template <class Handle, cublasStatus_t (*destroy)(Handle)>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, destroy>>;
  using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
  struct Layouts {
    Layout weights;
    Layout input;
    Layout output;
  };
  struct Plan {
    Layouts layouts;
    cublasLtMatmulAlgo_t algorithm{};
  };
  /// m, n and k.
  using Size = std::array<std::int64_t, 3>;

  [[nodiscard]] Layouts layouts_of(const Size& size) const;
  [[nodiscard]] cublasLtMatmulAlgo_t choose(const Size& size) const;
  [[nodiscard]] bool takes(const Layouts& layouts, const cublasLtMatmulAlgo_t& algorithm) const;
  [[nodiscard]] const Plan& plan_of(const Size& size);

  cudaDataType_t type_;
  std::size_t workspace_;
  Owned<cublasLtHandle_t, cublasLtDestroy> handle_;
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product_;
  Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference_;
  std::mutex mutex_;
  std::map<Size, cublasLtMatmulAlgo_t> chosen_;
  std::map<Size, Plan> plans_;
};

}  // namespace kvtier
