#include "hw/device/cuda/gemm_plans.hpp"

#include <utility>

#include <fmt/format.h>

#include "hw/device/cuda/check.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {

GemmPlans::GemmPlans(cudaDataType_t type, std::size_t workspace)
    : type_(type), workspace_(workspace) {
  cublasLtHandle_t handle = nullptr;
  check("cublasLtCreate", cublasLtCreate(&handle));
  handle_.reset(handle);
  cublasLtMatmulDesc_t product = nullptr;
  check("cublasLtMatmulDescCreate",
        cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  product_.reset(product);
  const cublasOperation_t turned = CUBLAS_OP_T;
  check(
      "cublasLtMatmulDescSetAttribute",
      cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned));
  cublasLtMatmulPreference_t preference = nullptr;
  check("cublasLtMatmulPreferenceCreate", cublasLtMatmulPreferenceCreate(&preference));
  preference_.reset(preference);
  check("cublasLtMatmulPreferenceSetAttribute",
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace_, sizeof workspace_));
}

std::int64_t GemmPlans::rows(std::int64_t m) {
  constexpr std::int64_t kSmall = 16;
  constexpr std::int64_t kTile = 64;
  return m <= kSmall ? m : m <= 2 * kSmall ? 2 * kSmall : (m + kTile - 1) / kTile * kTile;
}

GemmPlans::Layouts GemmPlans::layouts_of(const Size& size) const {
  const auto make = [this](std::int64_t rows, std::int64_t columns) {
    cublasLtMatrixLayout_t layout = nullptr;
    check("cublasLtMatrixLayoutCreate",
          cublasLtMatrixLayoutCreate(&layout, type_, static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), rows));
    return Layout(layout);
  };
  // cuBLASLt counts columns first: output^T = weights x input^T.
  const auto [m, n, k] = size;
  return {.weights = make(k, n), .input = make(k, m), .output = make(n, m)};
}

cublasLtMatmulAlgo_t GemmPlans::choose(const Size& size) const {
  const Layouts layouts = layouts_of(size);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  check("cublasLtMatmulAlgoGetHeuristic",
        cublasLtMatmulAlgoGetHeuristic(handle_.get(), product_.get(), layouts.weights.get(),
                                       layouts.input.get(), layouts.output.get(),
                                       layouts.output.get(), preference_.get(), 1, &found, &count));
  if (count == 0) {
    throw DeviceError(fmt::format("cublasLtMatmulAlgoGetHeuristic: no kernel for {} x {} x {}",
                                  size[0], size[1], size[2]));
  }
  return found.algo;
}

bool GemmPlans::takes(const Layouts& layouts, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t found{};
  return cublasLtMatmulAlgoCheck(handle_.get(), product_.get(), layouts.weights.get(),
                                 layouts.input.get(), layouts.output.get(), layouts.output.get(),
                                 &algorithm, &found) == CUBLAS_STATUS_SUCCESS &&
         found.workspaceSize <= workspace_;
}

const GemmPlans::Plan& GemmPlans::plan_of(const Size& size) {
  const std::lock_guard lock(mutex_);
  if (const auto found = plans_.find(size); found != plans_.end()) {
    return found->second;
  }
  const Size largest{rows(size[0]), size[1], size[2]};
  auto chosen = chosen_.find(largest);
  if (chosen == chosen_.end()) {
    chosen = chosen_.emplace(largest, choose(largest)).first;
  }
  Plan plan{.layouts = layouts_of(size), .algorithm = chosen->second};
  if (!takes(plan.layouts, plan.algorithm)) {
    plan.algorithm = choose(size);
  }
  return plans_.emplace(size, std::move(plan)).first->second;
}

void GemmPlans::multiply(const GemmWork& work, void* workspace, cudaStream_t stream) {
  const Plan& plan = plan_of({work.m, work.n, work.k});
  const float one = 1;
  const float zero = 0;
  check("cublasLtMatmul",
        cublasLtMatmul(handle_.get(), product_.get(), &one, work.weights,
                       plan.layouts.weights.get(), work.input, plan.layouts.input.get(), &zero,
                       work.output, plan.layouts.output.get(), work.output,
                       plan.layouts.output.get(), &plan.algorithm, workspace, workspace_, stream));
}

}  // namespace kvtier
