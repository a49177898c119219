#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/attention_plan.hpp"
#include "kernels/paged_attention.hpp"

/// attend_paged (paged_attention.hpp) on the tensor cores of a GPU of sm_80 or later, with sums in
/// float. Rows of queries, keys, values and output begin at multiples of 16 bytes.
namespace kvtier::kernels::cuda {

/// A number of 8 bits, e4m3: a sign, four bits of exponent and three of mantissa.
struct Float8 {
  unsigned char bits;
};

/// An AttentionPlan in memory of the device.
struct AttentionLists {
  const AttentionItem* decode = nullptr;
  const AttentionItem* prefill = nullptr;
  const AttentionMerge* merges = nullptr;
  std::int64_t decode_items = 0;
  std::int64_t prefill_items = 0;
  std::int64_t merge_items = 0;
  std::int64_t merge_rows = 0;
  std::int64_t decode_rows = 0;
  /// Room for the plan's part_rows x part_numbers(shape) numbers.
  float* parts = nullptr;
};

/// Numbers of a part's row: for each KV head the sums, the largest score and the total weight.
[[nodiscard]] inline std::int64_t part_numbers(const PagedAttentionShape& shape) {
  return shape.kv_heads * (shape.head_dim + 2);
}

/// `Element` is __nv_bfloat16 or __half, `Kv` the same or Float8. Keys and values are the stored
/// numbers times their scale.
template <class Element, class Kv>
struct AttentionCall {
  PagedAttentionShape shape;
  PagedBatch batch;
  RotaryAngles angles;
  AttentionLists lists;
  const Element* queries = nullptr;
  const Kv* keys = nullptr;
  const Kv* values = nullptr;
  Element* output = nullptr;
  float key_scale = 1;
  float value_scale = 1;
};

/// Queues on `stream` and returns the error of a launch. The angles are those of at least
/// kPositionsMin positions.
inline constexpr std::int64_t kPositionsMin = 16;
template <class Element, class Kv>
[[nodiscard]] cudaError_t attend_paged(const AttentionCall<Element, Kv>& call, cudaStream_t stream);

}  // namespace kvtier::kernels::cuda
