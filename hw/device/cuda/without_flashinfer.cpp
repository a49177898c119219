#include <stdexcept>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "hw/device/cuda/flashinfer_attention.hpp"

namespace kvtier::flashinfer_attention {
namespace {

[[noreturn]] void refuse() {
  throw std::runtime_error("this module was built without FlashInfer (make flashinfer)");
}

}  // namespace

std::string version() { return ""; }
bool takes(const kernels::PagedAttentionShape& /*shape*/) { return false; }
Sizes sizes_of(const Batch& /*batch*/) { refuse(); }
std::vector<std::int64_t> plan(const Batch& /*batch*/, const Memory& /*memory*/,
                               cudaStream_t /*stream*/) {
  refuse();
}
template <class Element>
cudaError_t attend(const Call<Element>& /*call*/, const std::vector<std::int64_t>& /*planned*/,
                   const Memory& /*memory*/, cudaStream_t /*stream*/) {
  refuse();
}
template cudaError_t attend(const Call<__nv_bfloat16>&, const std::vector<std::int64_t>&,
                            const Memory&, cudaStream_t);
template cudaError_t attend(const Call<__half>&, const std::vector<std::int64_t>&, const Memory&,
                            cudaStream_t);

}  // namespace kvtier::flashinfer_attention
