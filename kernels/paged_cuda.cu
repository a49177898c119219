#include <cmath>

#include "kernels/paged_cuda.hpp"

namespace kvtier::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
/// Numbers of a head that one lane holds: 256 / 32.
constexpr int kWidestShare = 8;
/// Keys that a warp scores between two updates of its running maximum.
constexpr int kKeysTogether = 4;

__device__ float sum_of_warp(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  }
  return value;
}

/// One block for each query head of each query token; its warps take turns over the context and
/// merge their partial softmax at the end. Plain, without tensor cores: bound by memory in decode,
/// far from the peak in long prefills.
__global__ void attend_kernel(PagedAttentionShape shape, PagedBatch batch,
                              const Element* __restrict__ queries, const Element* __restrict__ keys,
                              const Element* __restrict__ values, Element* __restrict__ output) {
  const std::int64_t request = blockIdx.z;
  const std::int64_t query_count = batch.query_begin[request + 1] - batch.query_begin[request];
  const std::int64_t query = blockIdx.x;
  if (query >= query_count) {
    return;
  }
  const std::int64_t head = blockIdx.y;
  const std::int64_t context =
      batch.context_begin[request + 1] - batch.context_begin[request] - query_count + query + 1;
  const std::int32_t* const slots = batch.slots + batch.context_begin[request];
  const std::int64_t width = shape.head_dim;
  const std::int64_t kv_row = shape.kv_heads * width;
  const std::int64_t kv_offset = head / (shape.query_heads / shape.kv_heads) * width;
  const std::int64_t at = ((batch.query_begin[request] + query) * shape.query_heads + head) * width;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;

  float q[kWidestShare];
  float sum[kWidestShare];
  const float scale = rsqrtf(static_cast<float>(width));
  for (int i = 0; i < kWidestShare; ++i) {
    const int d = lane + i * kWarp;
    q[i] = d < width ? __bfloat162float(queries[at + d]) * scale : 0.0F;
    sum[i] = 0;
  }
  float largest = -INFINITY;
  float total = 0;
  for (std::int64_t begin = static_cast<std::int64_t>(warp) * kKeysTogether; begin < context;
       begin += kWarps * kKeysTogether) {
    float score[kKeysTogether];
    std::int64_t row[kKeysTogether];
    float block_largest = largest;
    for (int j = 0; j < kKeysTogether; ++j) {
      const std::int64_t t = begin + j < context ? begin + j : context - 1;
      row[j] = slots[t] * kv_row + kv_offset;
      float dot = 0;
      for (int i = 0; i < kWidestShare; ++i) {
        const int d = lane + i * kWarp;
        if (d < width) {
          dot += q[i] * __bfloat162float(keys[row[j] + d]);
        }
      }
      score[j] = begin + j < context ? sum_of_warp(dot) : -INFINITY;
      block_largest = fmaxf(block_largest, score[j]);
    }
    const float shrink = __expf(largest - block_largest);
    largest = block_largest;
    total *= shrink;
    for (int i = 0; i < kWidestShare; ++i) {
      sum[i] *= shrink;
    }
    for (int j = 0; j < kKeysTogether; ++j) {
      const float weight = __expf(score[j] - largest);
      total += weight;
      for (int i = 0; i < kWidestShare; ++i) {
        const int d = lane + i * kWarp;
        if (d < width) {
          sum[i] += weight * __bfloat162float(values[row[j] + d]);
        }
      }
    }
  }

  __shared__ float all_largest[kWarps];
  __shared__ float all_total[kWarps];
  __shared__ float all_sums[kWarps][kWidestShare * kWarp];
  if (lane == 0) {
    all_largest[warp] = largest;
    all_total[warp] = total;
  }
  for (int i = 0; i < kWidestShare; ++i) {
    all_sums[warp][lane + i * kWarp] = sum[i];
  }
  __syncthreads();
  float top = -INFINITY;
  for (int w = 0; w < kWarps; ++w) {
    top = fmaxf(top, all_largest[w]);
  }
  for (int d = threadIdx.x; d < width; d += kThreads) {
    float numerator = 0;
    float denominator = 0;
    for (int w = 0; w < kWarps; ++w) {
      const float weight = __expf(all_largest[w] - top);  // 0 for a warp that saw no key
      numerator += weight * all_sums[w][d];
      denominator += weight * all_total[w];
    }
    output[at + d] = __float2bfloat16(numerator / denominator);
  }
}

template <bool gathers>
__global__ void rows_kernel(const uint4* __restrict__ from, uint4* __restrict__ to,
                            const std::int32_t* __restrict__ slots, std::int64_t rows,
                            std::int64_t units) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < rows * units; i += stride) {
    const std::int64_t row = i / units;
    const std::int64_t scattered = slots[row] * units + i % units;
    if (gathers) {
      to[i] = from[scattered];
    } else {
      to[scattered] = from[i];
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

__global__ void norm_kernel(const Element* __restrict__ input, Element* __restrict__ output,
                            std::int64_t width) {
  constexpr float kEpsilon = 1e-5F;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * width;
  float squares = 0;
  for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float x = __bfloat162float(input[begin + i]);
    squares += x * x;
  }
  const float factor = rsqrtf(sum_of_block(squares) / static_cast<float>(width) + kEpsilon);
  for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
    output[begin + i] = __float2bfloat16(__bfloat162float(input[begin + i]) * factor);
  }
}

__global__ void activation_kernel(const Element* __restrict__ input, Element* __restrict__ output,
                                  std::int64_t rows, std::int64_t width) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < rows * width; i += stride) {
    const std::int64_t begin = i / width * 2 * width + i % width;
    const float x = __bfloat162float(input[begin]);
    output[i] = __float2bfloat16(x / (1 + __expf(-x)) * __bfloat162float(input[begin + width]));
  }
}

__global__ void largest_kernel(const Element* __restrict__ values, std::int32_t* output,
                               std::int64_t width) {
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * width;
  __shared__ float best_values[kThreads];
  __shared__ std::int64_t best_places[kThreads];
  float best = -INFINITY;
  std::int64_t place = width;
  for (std::int64_t i = threadIdx.x; i < width; i += kThreads) {
    const float x = __bfloat162float(values[begin + i]);
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

__global__ void rotate_kernel(const Element* __restrict__ from, Element* __restrict__ to,
                              const std::int32_t* __restrict__ slots, std::int64_t rows,
                              std::int64_t heads, std::int64_t head_dim, float log_base,
                              std::int64_t first_position) {
  const std::int64_t half = head_dim / 2;
  const std::int64_t per_row = heads * half;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < rows * per_row; i += stride) {
    const std::int64_t row = i / per_row;
    const std::int64_t head = i % per_row / half;
    const std::int64_t pair = i % half;
    const float frequency =
        expf(-2 * log_base * static_cast<float>(pair) / static_cast<float>(head_dim));
    float sine;
    float cosine;
    sincosf(static_cast<float>(first_position + row) * frequency, &sine, &cosine);
    const std::int64_t source = (slots[row] * heads + head) * head_dim + pair;
    const std::int64_t target = (row * heads + head) * head_dim + pair;
    const float first = __bfloat162float(from[source]);
    const float second = __bfloat162float(from[source + half]);
    to[target] = __float2bfloat16(first * cosine - second * sine);
    to[target + half] = __float2bfloat16(first * sine + second * cosine);
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

cudaError_t attend_paged(const PagedAttentionShape& shape, const PagedBatch& batch,
                         std::int64_t queries_max, const Element* queries, const Element* keys,
                         const Element* values, Element* output, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(queries_max), static_cast<unsigned>(shape.query_heads),
                  static_cast<unsigned>(batch.requests));
  attend_kernel<<<grid, kThreads, 0, stream>>>(shape, batch, queries, keys, values, output);
  return cudaGetLastError();
}

cudaError_t gather_rows(const void* from, void* to, const std::int32_t* slots, std::int64_t rows,
                        std::int64_t row_bytes, cudaStream_t stream) {
  const auto units = row_bytes / static_cast<std::int64_t>(sizeof(uint4));
  rows_kernel<true><<<blocks_for(rows * units), kThreads, 0, stream>>>(
      static_cast<const uint4*>(from), static_cast<uint4*>(to), slots, rows, units);
  return cudaGetLastError();
}

cudaError_t scatter_rows(const void* from, void* to, const std::int32_t* slots, std::int64_t rows,
                         std::int64_t row_bytes, cudaStream_t stream) {
  const auto units = row_bytes / static_cast<std::int64_t>(sizeof(uint4));
  rows_kernel<false><<<blocks_for(rows * units), kThreads, 0, stream>>>(
      static_cast<const uint4*>(from), static_cast<uint4*>(to), slots, rows, units);
  return cudaGetLastError();
}

cudaError_t copy_pieces(const Piece* pieces, std::int64_t count, cudaStream_t stream) {
  pieces_kernel<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(pieces);
  return cudaGetLastError();
}

cudaError_t rms_norm(const Element* input, Element* output, std::int64_t rows, std::int64_t width,
                     cudaStream_t stream) {
  norm_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(input, output, width);
  return cudaGetLastError();
}

cudaError_t gated_activation(const Element* input, Element* output, std::int64_t rows,
                             std::int64_t width, cudaStream_t stream) {
  activation_kernel<<<blocks_for(rows * width), kThreads, 0, stream>>>(input, output, rows, width);
  return cudaGetLastError();
}

cudaError_t index_of_largest(const Element* values, std::int32_t* output, std::int64_t rows,
                             std::int64_t width, cudaStream_t stream) {
  largest_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(values, output, width);
  return cudaGetLastError();
}

cudaError_t rotate(const Element* from, Element* to, const std::int32_t* slots, std::int64_t rows,
                   std::int64_t heads, std::int64_t head_dim, double base,
                   std::int64_t first_position, cudaStream_t stream) {
  rotate_kernel<<<blocks_for(rows * heads * head_dim / 2), kThreads, 0, stream>>>(
      from, to, slots, rows, heads, head_dim, static_cast<float>(std::log(base)), first_position);
  return cudaGetLastError();
}

cudaError_t busy(std::int64_t ns, cudaStream_t stream) {
  busy_kernel<<<1, 1, 0, stream>>>(ns);
  return cudaGetLastError();
}

}  // namespace kvtier::kernels::cuda
