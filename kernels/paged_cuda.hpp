#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/paged_attention.hpp"

/// The same work as paged_attention.hpp and row_functions.hpp on a GPU, in bfloat16 with sums in
/// float. Every call queues on `stream` and returns the error of the launch.
namespace kvtier::kernels::cuda {

using Element = __nv_bfloat16;

/// All requests of a batch at once; the longest query has `queries_max` rows.
[[nodiscard]] cudaError_t attend_paged(const PagedAttentionShape& shape, const PagedBatch& batch,
                                       std::int64_t queries_max, const Element* queries,
                                       const Element* keys, const Element* values, Element* output,
                                       cudaStream_t stream);

/// Rows of a multiple of 16 bytes. to[i] = from[slots[i]], and to[slots[i]] = from[i].
[[nodiscard]] cudaError_t gather_rows(const void* from, void* to, const std::int32_t* slots,
                                      std::int64_t rows, std::int64_t row_bytes,
                                      cudaStream_t stream);
[[nodiscard]] cudaError_t scatter_rows(const void* from, void* to, const std::int32_t* slots,
                                       std::int64_t rows, std::int64_t row_bytes,
                                       cudaStream_t stream);

/// One piece of a copy that all processors share; `to` and `from` are what a kernel can reach.
struct Piece {
  void* to;
  const void* from;
  std::int64_t bytes;
};
[[nodiscard]] cudaError_t copy_pieces(const Piece* pieces, std::int64_t count, cudaStream_t stream);

[[nodiscard]] cudaError_t rms_norm(const Element* input, Element* output, std::int64_t rows,
                                   std::int64_t width, cudaStream_t stream);
[[nodiscard]] cudaError_t gated_activation(const Element* input, Element* output, std::int64_t rows,
                                           std::int64_t width, cudaStream_t stream);
[[nodiscard]] cudaError_t index_of_largest(const Element* values, std::int32_t* output,
                                           std::int64_t rows, std::int64_t width,
                                           cudaStream_t stream);
/// Row i of `to` is row slots[i] of `from` at position first_position + i.
[[nodiscard]] cudaError_t rotate(const Element* from, Element* to, const std::int32_t* slots,
                                 std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                                 double base, std::int64_t first_position, cudaStream_t stream);

/// Spins until the device's clock has gone on by so much.
[[nodiscard]] cudaError_t busy(std::int64_t ns, cudaStream_t stream);

}  // namespace kvtier::kernels::cuda
