#include <algorithm>
#include <cmath>

#include "kernels/paged_cuda.hpp"
#include "kernels/uniform_numbers.hpp"

namespace kvtier::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
/// A link to the host needs a few hundred KiB of reads in flight. More processors do not speed an
/// upload up, and are missing in passes beside it.
constexpr std::int64_t kUploadBlocks = 4;
constexpr int kUploadThreads = 1024;
constexpr int kUploadReads = 4;

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

/// One warp for each row.
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

/// 16 bytes at a time, and the last ones one by one. A thread has several reads in flight, because
/// the host's memory is far away.
__global__ void upload_kernel(uint4* __restrict__ to, const uint4* __restrict__ from,
                              std::int64_t bytes) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t units = bytes / static_cast<std::int64_t>(sizeof(uint4));
  for (std::int64_t begin = first; begin < units; begin += kUploadReads * threads) {
    uint4 moved[kUploadReads];
    for (int i = 0; i < kUploadReads; ++i) {
      const std::int64_t at = begin + i * threads;
      moved[i] = from[at < units ? at : begin];
    }
    for (int i = 0; i < kUploadReads; ++i) {
      const std::int64_t at = begin + i * threads;
      if (at < units) {
        to[at] = moved[i];
      }
    }
  }
  for (std::int64_t i = units * static_cast<std::int64_t>(sizeof(uint4)) + first; i < bytes;
       i += threads) {
    reinterpret_cast<char*>(to)[i] = reinterpret_cast<const char*>(from)[i];
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

template <class Element>
__global__ void uniform_kernel(Element* output, std::int64_t count, float bound,
                               std::uint64_t seed) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    output[i] = to_element<Element>(bound * uniform_at(seed, static_cast<std::uint64_t>(i)));
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

cudaError_t upload(void* to, const void* from, std::int64_t bytes, cudaStream_t stream) {
  if (bytes == 0) {
    return cudaSuccess;
  }
  constexpr std::int64_t kBlockBytes = std::int64_t{kUploadThreads} * kUploadReads * sizeof(uint4);
  const std::int64_t blocks = std::min(kUploadBlocks, (bytes + kBlockBytes - 1) / kBlockBytes);
  upload_kernel<<<static_cast<unsigned>(blocks), kUploadThreads, 0, stream>>>(
      static_cast<uint4*>(to), static_cast<const uint4*>(from), bytes);
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

template <class Element>
cudaError_t fill_uniform(Element* output, std::int64_t count, float bound, std::uint64_t seed,
                         cudaStream_t stream) {
  uniform_kernel<<<blocks_for(count), kThreads, 0, stream>>>(output, count, bound, seed);
  return cudaGetLastError();
}

cudaError_t busy(std::int64_t ns, cudaStream_t stream) {
  busy_kernel<<<1, 1, 0, stream>>>(ns);
  return cudaGetLastError();
}

#define KVTIER_INSTANTIATE(Element)                                                                \
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
                              RotaryAngles, const std::int32_t*, std::int64_t, cudaStream_t);      \
  template cudaError_t fill_uniform(Element*, std::int64_t, float, std::uint64_t, cudaStream_t)
KVTIER_INSTANTIATE(__nv_bfloat16);
KVTIER_INSTANTIATE(__half);
#undef KVTIER_INSTANTIATE

}  // namespace kvtier::kernels::cuda
