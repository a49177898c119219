#include <cmath>

#include "kernels/paged_cuda.hpp"

namespace kvtier::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
/// Keys that a warp scores between two updates of its running maximum, and those that it takes
/// before it leaves as many to each of the others.
constexpr int kKeysTogether = 4;
constexpr int kKeyChunk = 32;
static_assert(kKeyChunk % kKeysTogether == 0 && kKeyChunk <= kPositionsMin);

__device__ float sum_of_warp(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  }
  return value;
}

__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float to_float(__half x) { return __half2float(x); }
template <class Element>
__device__ Element to_element(float x);
template <>
__device__ __nv_bfloat16 to_element<__nv_bfloat16>(float x) {
  return __float2bfloat16(x);
}
template <>
__device__ __half to_element<__half>(float x) {
  return __float2half(x);
}

/// A tile's request, and its first row in it.
struct Tile {
  std::int64_t request;
  std::int64_t first;
};

/// Each request has `tiles_each` tiles or, with 0, as many as its rows need and at most one more:
/// those of request r begin at number floor(query rows before it / rows) + r. So that a long prompt
/// beside many decodes costs no blocks for the rows that those do not have.
template <int rows>
__device__ Tile find_tile(const PagedBatch& batch, std::int64_t group, std::int64_t tiles_each) {
  const std::int64_t tile = blockIdx.x;
  if (tiles_each > 0) {
    return {tile / tiles_each, tile % tiles_each * rows};
  }
  const auto begin = [&](std::int64_t request) {
    return batch.query_begin[request] * group / rows + request;
  };
  std::int64_t low = 0;
  std::int64_t high = batch.requests;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (begin(middle) <= tile ? low : high) = middle;
  }
  return {low, (tile - begin(low)) * rows};
}

/// One block for `rows` query rows, a row being a query head of a query token, that read the same
/// KV head of one request. Its warps take turns over the context, kKeyChunk keys at a time, and
/// merge their partial softmax at the end; a lane holds the pairs lane, lane + 32, ... of a head,
/// `share` of them. Plain, without tensor cores: bound by memory in decode, far from the peak in
/// long prefills.
template <class Element, int share, int rows>
__global__ void __launch_bounds__(kThreads)
    attend_kernel(PagedAttentionShape shape, PagedBatch batch, RotaryAngles angles,
                  std::int64_t tiles_each, std::int64_t query_stride, std::int64_t kv_stride,
                  const Element* __restrict__ queries, const Element* __restrict__ keys,
                  const Element* __restrict__ values, Element* __restrict__ output) {
  const auto group = static_cast<int>(shape.query_heads / shape.kv_heads);
  const auto [request, first] = find_tile<rows>(batch, group, tiles_each);
  const std::int64_t query_begin = batch.query_begin[request];
  const std::int64_t query_count = batch.query_begin[request + 1] - query_begin;
  const std::int64_t left = query_count * group - first;
  if (left <= 0) {
    return;
  }
  const int row_count = left < rows ? static_cast<int>(left) : rows;
  const std::int64_t kv_head = blockIdx.y;
  const std::int64_t past =
      batch.context_begin[request + 1] - batch.context_begin[request] - query_count;
  const std::int32_t* const slots = batch.slots + batch.context_begin[request];
  const auto width = static_cast<int>(shape.head_dim);
  const int half = width / 2;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const float scale = rsqrtf(static_cast<float>(width));

  __shared__ std::int64_t query_at[rows];
  __shared__ std::int64_t output_at[rows];
  if (threadIdx.x < row_count) {
    const std::int64_t token = query_begin + (first + threadIdx.x) / group;
    const std::int64_t head = kv_head * group + (first + threadIdx.x) % group;
    query_at[threadIdx.x] = token * query_stride + head * width;
    output_at[threadIdx.x] = (token * shape.query_heads + head) * width;
  }
  __syncthreads();

  /// Tokens that a row sees; none for one behind the last.
  std::int64_t seen[rows];
  float sum[rows][2 * share];
  float largest[rows];
  float total[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    seen[r] = r < row_count ? past + (first + r) / group + 1 : 0;
    largest[r] = -INFINITY;
    total[r] = 0;
    for (int i = 0; i < 2 * share; ++i) {
      sum[r][i] = 0;
    }
  }
  const std::int64_t context = past + (first + row_count - 1) / group + 1;
  for (std::int64_t begin = static_cast<std::int64_t>(warp) * kKeyChunk; begin < context;
       begin += kWarps * kKeyChunk) {
    // A score depends on the distance alone, so that positions are counted from the chunk's first
    // key, whose angles and those behind it stay in the nearest cache.
    float q[rows][2 * share];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const std::int64_t distance = seen[r] - 1 - begin;
#pragma unroll
      for (int j = 0; j < share; ++j) {
        const int pair = lane + j * kWarp;
        float a = 0;
        float b = 0;
        if (distance >= 0 && pair < half) {
          a = to_float(queries[query_at[r] + pair]) * scale;
          b = to_float(queries[query_at[r] + pair + half]) * scale;
          if (angles.cosines != nullptr) {
            const float cosine = angles.cosines[distance * half + pair];
            const float sine = angles.sines[distance * half + pair];
            const float turned = a * cosine - b * sine;
            b = a * sine + b * cosine;
            a = turned;
          }
        }
        q[r][2 * j] = a;
        q[r][2 * j + 1] = b;
      }
    }
    const std::int64_t end = begin + kKeyChunk < context ? begin + kKeyChunk : context;
    for (std::int64_t at = begin; at < end; at += kKeysTogether) {
      float score[rows][kKeysTogether];
      std::int64_t place[kKeysTogether];
#pragma unroll
      for (int k = 0; k < kKeysTogether; ++k) {
        const std::int64_t t = at + k < context ? at + k : context - 1;
        place[k] = slots[t] * kv_stride + kv_head * width;
        float key[2 * share];
#pragma unroll
        for (int j = 0; j < share; ++j) {
          const int pair = lane + j * kWarp;
          float a = 0;
          float b = 0;
          if (pair < half) {
            a = to_float(keys[place[k] + pair]);
            b = to_float(keys[place[k] + pair + half]);
            if (angles.cosines != nullptr) {
              const std::int64_t angle = (at + k - begin) * half + pair;
              const float cosine = angles.cosines[angle];
              const float sine = angles.sines[angle];
              const float turned = a * cosine - b * sine;
              b = a * sine + b * cosine;
              a = turned;
            }
          }
          key[2 * j] = a;
          key[2 * j + 1] = b;
        }
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          float dot = 0;
#pragma unroll
          for (int i = 0; i < 2 * share; ++i) {
            dot += q[r][i] * key[i];
          }
          dot = sum_of_warp(dot);
          score[r][k] = at + k < seen[r] ? dot : -INFINITY;
        }
      }
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        float top = largest[r];
#pragma unroll
        for (int k = 0; k < kKeysTogether; ++k) {
          top = fmaxf(top, score[r][k]);
        }
        // A row that has seen no key yet has weights of zero, not the difference of infinities.
        const float from = top == -INFINITY ? 0.0F : top;
        const float shrink = __expf(largest[r] - from);
        largest[r] = top;
        total[r] *= shrink;
#pragma unroll
        for (int i = 0; i < 2 * share; ++i) {
          sum[r][i] *= shrink;
        }
#pragma unroll
        for (int k = 0; k < kKeysTogether; ++k) {
          score[r][k] = __expf(score[r][k] - from);
          total[r] += score[r][k];
        }
      }
#pragma unroll
      for (int k = 0; k < kKeysTogether; ++k) {
#pragma unroll
        for (int j = 0; j < share; ++j) {
          const int pair = lane + j * kWarp;
          if (pair < half) {
            const float a = to_float(values[place[k] + pair]);
            const float b = to_float(values[place[k] + pair + half]);
#pragma unroll
            for (int r = 0; r < rows; ++r) {
              sum[r][2 * j] += score[r][k] * a;
              sum[r][2 * j + 1] += score[r][k] * b;
            }
          }
        }
      }
    }
  }

  __shared__ float all_largest[kWarps][rows];
  __shared__ float all_total[kWarps][rows];
  __shared__ float all_sums[kWarps][rows][2 * share * kWarp];
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    if (lane == 0) {
      all_largest[warp][r] = largest[r];
      all_total[warp][r] = total[r];
    }
#pragma unroll
    for (int j = 0; j < share; ++j) {
      const int pair = lane + j * kWarp;
      if (pair < half) {
        all_sums[warp][r][pair] = sum[r][2 * j];
        all_sums[warp][r][pair + half] = sum[r][2 * j + 1];
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < row_count * width; i += kThreads) {
    const int r = i / width;
    const int d = i % width;
    float top = -INFINITY;
    for (int w = 0; w < kWarps; ++w) {
      top = fmaxf(top, all_largest[w][r]);
    }
    float numerator = 0;
    float denominator = 0;
    for (int w = 0; w < kWarps; ++w) {
      const float weight = __expf(all_largest[w][r] - top);  // 0 for a warp that saw no key
      numerator += weight * all_sums[w][r][d];
      denominator += weight * all_total[w][r];
    }
    output[output_at[r] + d] = to_element<Element>(numerator / denominator);
  }
}

template <bool gathers>
__global__ void rows_kernel(Rows rows) {
  constexpr auto kUnit = static_cast<std::int64_t>(sizeof(uint4));
  const std::int64_t units = rows.row_bytes / kUnit;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < rows.rows * units; i += stride) {
    const std::int64_t row = i / units;
    const std::int64_t slot = rows.slots == nullptr ? row : rows.slots[row];
    const std::int64_t packed = row * rows.packed_stride / kUnit + i % units;
    const std::int64_t scattered = slot * rows.slot_stride / kUnit + i % units;
    static_cast<uint4*>(rows.to)[gathers ? packed : scattered] =
        static_cast<const uint4*>(rows.from)[gathers ? scattered : packed];
  }
}

/// One warp a row.
__global__ void fold_kernel(Rows rows) {
  const std::int64_t units = rows.row_bytes / static_cast<std::int64_t>(sizeof(uint4));
  const int lane = threadIdx.x % kWarp;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
       row < rows.rows; row += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const std::int64_t slot = rows.slots == nullptr ? row : rows.slots[row];
    const auto* const words = reinterpret_cast<const uint4*>(static_cast<const char*>(rows.from) +
                                                             slot * rows.slot_stride);
    unsigned all = 0;
    for (std::int64_t i = lane; i < units; i += kWarp) {
      const uint4 four = words[i];
      all ^= four.x ^ four.y ^ four.z ^ four.w;
    }
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      all ^= __shfl_xor_sync(0xffffffffU, all, offset);
    }
    if (lane == 0) {
      static_cast<unsigned*>(rows.to)[row] = all;
    }
  }
}

/// One block a piece; 16 bytes a time where both ends are aligned.
__global__ void pieces_kernel(const Piece* __restrict__ pieces) {
  const Piece piece = pieces[blockIdx.x];
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(piece.to) | reinterpret_cast<std::uintptr_t>(piece.from)) %
          sizeof(uint4) ==
      0;
  const std::int64_t units = aligned ? piece.bytes / static_cast<std::int64_t>(sizeof(uint4)) : 0;
  for (std::int64_t i = threadIdx.x; i < units; i += blockDim.x) {
    static_cast<uint4*>(piece.to)[i] = static_cast<const uint4*>(piece.from)[i];
  }
  for (std::int64_t i = units * static_cast<std::int64_t>(sizeof(uint4)) + threadIdx.x;
       i < piece.bytes; i += blockDim.x) {
    static_cast<char*>(piece.to)[i] = static_cast<const char*>(piece.from)[i];
  }
}

__device__ float sum_of_block(float value) {
  __shared__ float parts[kWarps];
  value = sum_of_warp(value);
  if (threadIdx.x % kWarp == 0) {
    parts[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  float sum = 0;
  for (const float part : parts) {
    sum += part;
  }
  return sum;
}

template <class Element>
__global__ void norm_kernel(const Element* __restrict__ input, Element* __restrict__ output,
                            std::int64_t width) {
  constexpr float kEpsilon = 1e-5F;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * width;
  float squares = 0;
  for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float x = to_float(input[begin + i]);
    squares += x * x;
  }
  const float factor = rsqrtf(sum_of_block(squares) / static_cast<float>(width) + kEpsilon);
  for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
    output[begin + i] = to_element<Element>(to_float(input[begin + i]) * factor);
  }
}

template <class Element>
__global__ void gated_kernel(const Element* __restrict__ input, Element* __restrict__ output,
                             std::int64_t rows, std::int64_t width) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < rows * width; i += stride) {
    const std::int64_t begin = i / width * 2 * width + i % width;
    const float x = to_float(input[begin]);
    output[i] = to_element<Element>(x / (1 + __expf(-x)) * to_float(input[begin + width]));
  }
}

template <class Element>
__global__ void largest_kernel(const Element* __restrict__ values, std::int32_t* output,
                               std::int64_t width) {
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * width;
  __shared__ float best_values[kThreads];
  __shared__ std::int64_t best_places[kThreads];
  float best = -INFINITY;
  std::int64_t place = width;
  for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float x = to_float(values[begin + i]);
    if (x > best || place == width) {
      best = x;
      place = i;
    }
  }
  best_values[threadIdx.x] = best;
  best_places[threadIdx.x] = place;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int t = 1; t < kThreads; ++t) {
      if (best_values[t] > best || (best_values[t] == best && best_places[t] < place)) {
        best = best_values[t];
        place = best_places[t];
      }
    }
    output[blockIdx.x] = static_cast<std::int32_t>(place);
  }
}

template <class Element>
__global__ void activation_kernel(const Element* __restrict__ input, Element* __restrict__ output,
                                  std::int64_t count) {
  constexpr float kRootHalf = 0.70710678F;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const float x = to_float(input[i]);
    output[i] = to_element<Element>(0.5F * x * (1 + erff(x * kRootHalf)));
  }
}

/// `output` may be `a` or `b`.
template <class Element>
__global__ void add_kernel(const Element* a, const Element* b, Element* output,
                           std::int64_t count) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    output[i] = to_element<Element>(to_float(a[i]) + to_float(b[i]));
  }
}

/// `to` may be `from`, as each pair is read and written by one thread.
template <class Element>
__global__ void rotate_kernel(const Element* from, Element* to,
                              const std::int32_t* __restrict__ slots, std::int64_t rows,
                              std::int64_t from_stride, std::int64_t to_stride, std::int64_t heads,
                              std::int64_t head_dim, RotaryAngles angles,
                              const std::int32_t* __restrict__ positions,
                              std::int64_t first_position) {
  const std::int64_t half = head_dim / 2;
  const std::int64_t per_row = heads * half;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < rows * per_row; i += stride) {
    const std::int64_t row = i / per_row;
    const std::int64_t head = i % per_row / half;
    const std::int64_t pair = i % half;
    const std::int64_t position = positions == nullptr ? first_position + row : positions[row];
    const float cosine = angles.cosines[position * half + pair];
    const float sine = angles.sines[position * half + pair];
    const std::int64_t slot = slots == nullptr ? row : slots[row];
    const std::int64_t source = slot * from_stride + head * head_dim + pair;
    const std::int64_t target = row * to_stride + head * head_dim + pair;
    const float first = to_float(from[source]);
    const float second = to_float(from[source + half]);
    to[target] = to_element<Element>(first * cosine - second * sine);
    to[target + half] = to_element<Element>(first * sine + second * cosine);
  }
}

__device__ std::int64_t global_ns() {
  std::int64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void busy_kernel(std::int64_t ns) {
  const std::int64_t end = global_ns() + ns;
  while (ns > 0 && global_ns() < end) {
  }
}

/// Enough blocks to fill any device; the kernels loop over the rest.
unsigned blocks_for(std::int64_t items) {
  constexpr std::int64_t kMost = 4096;
  const std::int64_t needed = (items + kThreads - 1) / kThreads;
  return static_cast<unsigned>(needed < kMost ? (needed > 0 ? needed : 1) : kMost);
}

}  // namespace

template <class Element>
cudaError_t attend_paged(const PagedAttentionShape& shape, const PagedBatch& batch,
                         RotaryAngles angles, std::int64_t queries_max, std::int64_t queries_total,
                         const Element* queries, const Element* keys, const Element* values,
                         Element* output, cudaStream_t stream) {
  const std::int64_t group = shape.query_heads / shape.kv_heads;
  const std::int64_t query_rows = queries_max * group;
  if (query_rows == 0 || batch.requests == 0) {
    return cudaSuccess;
  }
  const std::int64_t query_stride =
      shape.query_stride > 0 ? shape.query_stride : shape.query_heads * shape.head_dim;
  const std::int64_t kv_stride =
      shape.kv_stride > 0 ? shape.kv_stride : shape.kv_heads * shape.head_dim;
  const auto launch = [&]<int share, int rows>() {
    const std::int64_t tiles_max = (query_rows + rows - 1) / rows;
    const std::int64_t alike = tiles_max * batch.requests;
    const std::int64_t by_need = queries_total * group / rows + batch.requests;
    const dim3 grid(static_cast<unsigned>(alike < by_need ? alike : by_need),
                    static_cast<unsigned>(shape.kv_heads));
    attend_kernel<Element, share, rows>
        <<<grid, kThreads, 0, stream>>>(shape, batch, angles, alike < by_need ? tiles_max : 0,
                                        query_stride, kv_stride, queries, keys, values, output);
  };
  // What a lane holds of all rows has to fit in its registers.
  if (shape.head_dim <= 2 * kWarp) {
    query_rows == 1 ? launch.template operator()<1, 1>() : launch.template operator()<1, 8>();
  } else if (shape.head_dim <= 4 * kWarp) {
    query_rows == 1 ? launch.template operator()<2, 1>() : launch.template operator()<2, 8>();
  } else {
    query_rows == 1 ? launch.template operator()<4, 1>() : launch.template operator()<4, 4>();
  }
  return cudaGetLastError();
}

cudaError_t gather_rows(const Rows& rows, cudaStream_t stream) {
  const std::int64_t units = rows.row_bytes / static_cast<std::int64_t>(sizeof(uint4));
  rows_kernel<true><<<blocks_for(rows.rows * units), kThreads, 0, stream>>>(rows);
  return cudaGetLastError();
}

cudaError_t scatter_rows(const Rows& rows, cudaStream_t stream) {
  const std::int64_t units = rows.row_bytes / static_cast<std::int64_t>(sizeof(uint4));
  rows_kernel<false><<<blocks_for(rows.rows * units), kThreads, 0, stream>>>(rows);
  return cudaGetLastError();
}

cudaError_t fold_rows(const Rows& rows, cudaStream_t stream) {
  fold_kernel<<<blocks_for(rows.rows * kWarp), kThreads, 0, stream>>>(rows);
  return cudaGetLastError();
}

cudaError_t copy_pieces(const Piece* pieces, std::int64_t count, cudaStream_t stream) {
  pieces_kernel<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(pieces);
  return cudaGetLastError();
}

template <class Element>
cudaError_t rms_norm(const Element* input, Element* output, std::int64_t rows, std::int64_t width,
                     cudaStream_t stream) {
  if (rows == 0) {
    return cudaSuccess;
  }
  norm_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(input, output, width);
  return cudaGetLastError();
}

template <class Element>
cudaError_t gated_activation(const Element* input, Element* output, std::int64_t rows,
                             std::int64_t width, cudaStream_t stream) {
  gated_kernel<<<blocks_for(rows * width), kThreads, 0, stream>>>(input, output, rows, width);
  return cudaGetLastError();
}

template <class Element>
cudaError_t activation(const Element* input, Element* output, std::int64_t count,
                       cudaStream_t stream) {
  activation_kernel<<<blocks_for(count), kThreads, 0, stream>>>(input, output, count);
  return cudaGetLastError();
}

template <class Element>
cudaError_t add(const Element* a, const Element* b, Element* output, std::int64_t count,
                cudaStream_t stream) {
  add_kernel<<<blocks_for(count), kThreads, 0, stream>>>(a, b, output, count);
  return cudaGetLastError();
}

template <class Element>
cudaError_t index_of_largest(const Element* values, std::int32_t* output, std::int64_t rows,
                             std::int64_t width, cudaStream_t stream) {
  if (rows == 0) {
    return cudaSuccess;
  }
  largest_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(values, output, width);
  return cudaGetLastError();
}

template <class Element>
cudaError_t rotate(const Element* from, Element* to, const std::int32_t* slots, std::int64_t rows,
                   std::int64_t from_stride, std::int64_t to_stride, std::int64_t heads,
                   std::int64_t head_dim, RotaryAngles angles, const std::int32_t* positions,
                   std::int64_t first_position, cudaStream_t stream) {
  rotate_kernel<<<blocks_for(rows * heads * head_dim / 2), kThreads, 0, stream>>>(
      from, to, slots, rows, from_stride, to_stride, heads, head_dim, angles, positions,
      first_position);
  return cudaGetLastError();
}

cudaError_t busy(std::int64_t ns, cudaStream_t stream) {
  busy_kernel<<<1, 1, 0, stream>>>(ns);
  return cudaGetLastError();
}

#define KVTIER_INSTANTIATE(Element)                                                                \
  template cudaError_t attend_paged(const PagedAttentionShape&, const PagedBatch&, RotaryAngles,   \
                                    std::int64_t, std::int64_t, const Element*, const Element*,    \
                                    const Element*, Element*, cudaStream_t);                       \
  template cudaError_t rms_norm(const Element*, Element*, std::int64_t, std::int64_t,              \
                                cudaStream_t);                                                     \
  template cudaError_t gated_activation(const Element*, Element*, std::int64_t, std::int64_t,      \
                                        cudaStream_t);                                             \
  template cudaError_t activation(const Element*, Element*, std::int64_t, cudaStream_t);           \
  template cudaError_t add(const Element*, const Element*, Element*, std::int64_t, cudaStream_t);  \
  template cudaError_t index_of_largest(const Element*, std::int32_t*, std::int64_t, std::int64_t, \
                                        cudaStream_t);                                             \
  template cudaError_t rotate(const Element*, Element*, const std::int32_t*, std::int64_t,         \
                              std::int64_t, std::int64_t, std::int64_t, std::int64_t,              \
                              RotaryAngles, const std::int32_t*, std::int64_t, cudaStream_t)
KVTIER_INSTANTIATE(__nv_bfloat16);
KVTIER_INSTANTIATE(__half);
#undef KVTIER_INSTANTIATE

}  // namespace kvtier::kernels::cuda
