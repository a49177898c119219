#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/rotary_table.hpp"

/// Moves of rows by slots, and the functions of row_functions.hpp, on a GPU, with sums in float.
/// Every call queues on `stream` and returns the error of the launch. A call without rows does
/// nothing. `Element` is __nv_bfloat16 or __half.
namespace kvtier::kernels::cuda {

/// Row i of the packed side belongs to row slots[i] (i, if `slots` is null) of the other side.
/// Sizes and strides of rows are multiples of 16 bytes.
struct Rows {
  const void* from;
  void* to;
  const std::int32_t* slots;
  std::int64_t rows;
  std::int64_t row_bytes;
  std::int64_t packed_stride;
  std::int64_t slot_stride;
};
[[nodiscard]] cudaError_t gather_rows(const Rows& rows, cudaStream_t stream);
[[nodiscard]] cudaError_t scatter_rows(const Rows& rows, cudaStream_t stream);
/// The exclusive or of the 32-bit words of each row of the slots' side.
[[nodiscard]] cudaError_t fold_rows(const Rows& rows, cudaStream_t stream);

/// Copies between memories that a kernel can access. Both addresses are multiples of 16 bytes.
[[nodiscard]] cudaError_t upload(void* to, const void* from, std::int64_t bytes,
                                 cudaStream_t stream);

template <class Element>
[[nodiscard]] cudaError_t rms_norm(const Element* input, Element* output, std::int64_t rows,
                                   std::int64_t width, cudaStream_t stream);
template <class Element>
[[nodiscard]] cudaError_t gated_activation(const Element* input, Element* output, std::int64_t rows,
                                           std::int64_t width, cudaStream_t stream);
template <class Element>
[[nodiscard]] cudaError_t activation(const Element* input, Element* output, std::int64_t count,
                                     cudaStream_t stream);
template <class Element>
[[nodiscard]] cudaError_t add(const Element* a, const Element* b, Element* output,
                              std::int64_t count, cudaStream_t stream);
template <class Element>
[[nodiscard]] cudaError_t index_of_largest(const Element* values, std::int32_t* output,
                                           std::int64_t rows, std::int64_t width,
                                           cudaStream_t stream);
/// Row i of `to` is row slots[i] (i) of `from`, each head at position positions[i], or
/// first_position + i without `positions`. Strides in numbers. `from` may be `to`, without slots.
template <class Element>
[[nodiscard]] cudaError_t rotate(const Element* from, Element* to, const std::int32_t* slots,
                                 std::int64_t rows, std::int64_t from_stride,
                                 std::int64_t to_stride, std::int64_t heads, std::int64_t head_dim,
                                 RotaryAngles angles, const std::int32_t* positions,
                                 std::int64_t first_position, cudaStream_t stream);

/// output[i] = bound x uniform_at(seed, i) (uniform_numbers.hpp).
template <class Element>
[[nodiscard]] cudaError_t fill_uniform(Element* output, std::int64_t count, float bound,
                                       std::uint64_t seed, cudaStream_t stream);

/// Spins for `ns` nanoseconds of the device's clock.
[[nodiscard]] cudaError_t busy(std::int64_t ns, cudaStream_t stream);

}  // namespace kvtier::kernels::cuda
