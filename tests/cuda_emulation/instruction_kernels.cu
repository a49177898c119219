/// One warp that runs one of the instructions of kernels/instructions.cuh on what a test gives, or
/// uses asynchronous copies in a right or a wrong way.

#include <cuda_runtime.h>

#include "kernels/instructions.cuh"

namespace kvtier::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kRow = 16;

/// Row i of `rows`, of 16 bytes, is what lane i gives the address of.
template <int count, bool transposed>
__global__ void load_kernel(const uint4* rows, std::uint32_t* output) {
  unsigned char* const shared = dynamic_shared();
  reinterpret_cast<uint4*>(shared)[threadIdx.x] = rows[threadIdx.x];
  __syncwarp();
  std::uint32_t matrices[count];
  if constexpr (transposed) {
    load_matrices_transposed(matrices, shared + threadIdx.x * kRow);
  } else {
    load_matrices(matrices, shared + threadIdx.x * kRow);
  }
  for (int m = 0; m < count; ++m) {
    output[threadIdx.x * count + m] = matrices[m];
  }
}

__global__ void transpose_kernel(const std::uint32_t* input, std::uint32_t* output) {
  output[threadIdx.x] = transpose_matrix(input[threadIdx.x]);
}

/// Each lane has four registers of a, two of b, and four sums to add to.
template <class Element>
__global__ void multiply_kernel(const std::uint32_t* input, float* output) {
  const std::uint32_t* const mine = input + threadIdx.x * 10;
  const std::uint32_t a[4] = {mine[0], mine[1], mine[2], mine[3]};
  const std::uint32_t b[2] = {mine[4], mine[5]};
  float sums[4];
  for (int i = 0; i < 4; ++i) {
    sums[i] = __uint_as_float(mine[6 + i]);
  }
  multiply_add<Element>(sums, a, b);
  for (int i = 0; i < 4; ++i) {
    output[threadIdx.x * 4 + i] = sums[i];
  }
}

__global__ void spread_kernel(const std::uint32_t* input, std::uint32_t* output) {
  output[threadIdx.x] =
      __shfl_sync(0xffffffffU, input[threadIdx.x], static_cast<int>(threadIdx.x * 5 % kWarp));
}

enum CopyUse { right, without_wait, without_barrier, over_readers, never_awaited, behind_the_end };

/// Each lane copies a row and reads that of its neighbour; rows of odd lanes are zeros.
template <CopyUse use>
__global__ void copy_kernel(const uint4* rows, uint4* output) {
  unsigned char* const shared = dynamic_shared();
  uint4* const row = reinterpret_cast<uint4*>(shared) + threadIdx.x;
  if constexpr (use == over_readers) {
    *row = {};
    __syncwarp();
    output[threadIdx.x] = reinterpret_cast<uint4*>(shared)[threadIdx.x ^ 1];
  }
  copy_async(use == behind_the_end ? row + kWarp : row, rows + threadIdx.x, threadIdx.x % 2 == 0);
  commit_copies();
  if constexpr (use == never_awaited) {
    return;
  }
  if constexpr (use != without_wait) {
    wait_for_copies<0>();
  } else {
    wait_for_copies<1>();
  }
  if constexpr (use != without_barrier) {
    __syncwarp();
  }
  output[threadIdx.x] = reinterpret_cast<uint4*>(shared)[threadIdx.x ^ 1];
  wait_for_copies<0>();
}

}  // namespace
}  // namespace kvtier::kernels::cuda

namespace {

/// Runs launch(input, output) on memory of the device.
template <class In, class Out, class Run>
cudaError_t run_on_device(const void* from, std::size_t bytes, void* to, std::size_t out_bytes,
                          Run launch) {
  void* input = nullptr;
  void* output = nullptr;
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaSetDevice(0);
  const auto also = [&](cudaError_t next) { error = error == cudaSuccess ? next : error; };
  also(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  also(cudaMalloc(&input, bytes));
  also(cudaMalloc(&output, out_bytes));
  also(cudaMemcpy(input, from, bytes, cudaMemcpyHostToDevice));
  also(cudaStreamSynchronize(cudaStreamLegacy));
  launch(static_cast<const In*>(input), static_cast<Out*>(output), stream);
  also(cudaGetLastError());
  also(cudaStreamSynchronize(stream));
  also(cudaMemcpy(to, output, out_bytes, cudaMemcpyDeviceToHost));
  cudaFree(input);
  cudaFree(output);
  cudaStreamDestroy(stream);
  return error;
}

}  // namespace

/// 0: no error.
extern "C" int kvtier_run_instruction(int which, const void* from, std::size_t bytes, void* to,
                                      std::size_t out_bytes) {
  using namespace kvtier::kernels::cuda;
  constexpr std::size_t kShared = 512;
  const auto rows = [&](auto launch) {
    return run_on_device<uint4, std::uint32_t>(from, bytes, to, out_bytes, launch);
  };
  const auto numbers = [&](auto launch) {
    return run_on_device<std::uint32_t, std::uint32_t>(from, bytes, to, out_bytes, launch);
  };
  const auto products = [&](auto launch) {
    return run_on_device<std::uint32_t, float>(from, bytes, to, out_bytes, launch);
  };
  const auto copies = [&](auto launch) {
    return run_on_device<uint4, uint4>(from, bytes, to, out_bytes, launch);
  };
  using Half = __half;
  using Bfloat = __nv_bfloat16;
  switch (which) {
    case 0:
      return rows([](auto in, auto out, auto stream) {
        load_kernel<4, false><<<1, kWarp, kShared, stream>>>(in, out);
      });
    case 1:
      return rows([](auto in, auto out, auto stream) {
        load_kernel<4, true><<<1, kWarp, kShared, stream>>>(in, out);
      });
    case 2:
      return rows([](auto in, auto out, auto stream) {
        load_kernel<2, false><<<1, kWarp, kShared, stream>>>(in, out);
      });
    case 3:
      return numbers([](auto in, auto out, auto stream) {
        transpose_kernel<<<1, kWarp, 0, stream>>>(in, out);
      });
    case 4:
      return products([](auto in, auto out, auto stream) {
        multiply_kernel<Bfloat><<<1, kWarp, 0, stream>>>(in, out);
      });
    case 5:
      return products([](auto in, auto out, auto stream) {
        multiply_kernel<Half><<<1, kWarp, 0, stream>>>(in, out);
      });
    case 6:
      return numbers(
          [](auto in, auto out, auto stream) { spread_kernel<<<1, kWarp, 0, stream>>>(in, out); });
    case 10:
      return copies([](auto in, auto out, auto stream) {
        copy_kernel<right><<<1, kWarp, kShared, stream>>>(in, out);
      });
    case 11:
      return copies([](auto in, auto out, auto stream) {
        copy_kernel<without_wait><<<1, kWarp, kShared, stream>>>(in, out);
      });
    case 12:
      return copies([](auto in, auto out, auto stream) {
        copy_kernel<without_barrier><<<1, kWarp, kShared, stream>>>(in, out);
      });
    case 13:
      return copies([](auto in, auto out, auto stream) {
        copy_kernel<over_readers><<<1, kWarp, kShared, stream>>>(in, out);
      });
    case 14:
      return copies([](auto in, auto out, auto stream) {
        copy_kernel<never_awaited><<<1, kWarp, kShared, stream>>>(in, out);
      });
    case 15:
      return copies([](auto in, auto out, auto stream) {
        copy_kernel<behind_the_end><<<1, kWarp, kShared, stream>>>(in, out);
      });
    case 16:
      // More dynamic shared memory than a function has unless it asks.
      return copies([](auto in, auto out, auto stream) {
        copy_kernel<right><<<1, kWarp, 64 << 10, stream>>>(in, out);
      });
    default:
      return -1;
  }
}
