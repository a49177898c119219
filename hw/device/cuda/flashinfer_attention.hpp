#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "kernels/paged_attention.hpp"

/// Attention by the kernels of FlashInfer (Apache-2.0), which vLLM and SGLang run, on pages of one
/// token. Its headers are not part of this project. In a module built without them, version() is
/// empty, takes() is false, and all other functions throw std::runtime_error.
namespace kvtier::flashinfer_attention {

[[nodiscard]] std::string version();
/// Whether the kernels take the shape: heads are 64, 128 or 256 wide. Keys carry their positions.
[[nodiscard]] bool takes(const kernels::PagedAttentionShape& shape);

/// A PagedBatch on the host.
struct Batch {
  kernels::PagedAttentionShape shape;
  std::vector<std::int32_t> context_begin;
  std::vector<std::int32_t> query_begin;
};

/// Memory of a plan: floats and integers on the device, and as many integers on the host.
struct Sizes {
  std::size_t floats = 0;
  std::size_t integers = 0;
};
[[nodiscard]] Sizes sizes_of(const Batch& batch);

struct Memory {
  void* floats = nullptr;
  void* integers = nullptr;
  void* integers_on_host = nullptr;
  Sizes sizes;
};
/// Fills the memory on `stream` and returns the plan's numbers, which `attend` also needs.
[[nodiscard]] std::vector<std::int64_t> plan(const Batch& batch, const Memory& memory,
                                             cudaStream_t stream);

/// All pointers are in device memory. `page_lengths` is 1 for each request.
template <class Element>
struct Call {
  kernels::PagedAttentionShape shape;
  std::int64_t requests = 0;
  const std::int32_t* slots = nullptr;
  const std::int32_t* context_begin = nullptr;
  const std::int32_t* query_begin = nullptr;
  const std::int32_t* page_lengths = nullptr;
  const Element* queries = nullptr;
  const Element* keys = nullptr;
  const Element* values = nullptr;
  Element* output = nullptr;
};
/// For __nv_bfloat16 and __half.
template <class Element>
[[nodiscard]] cudaError_t attend(const Call<Element>& call,
                                 const std::vector<std::int64_t>& planned, const Memory& memory,
                                 cudaStream_t stream);

}  // namespace kvtier::flashinfer_attention
