/// One warp or warpgroup that runs one of the instructions of kernels/instructions.cuh on what a
/// test gives, or uses asynchronous copies and products in a right or a wrong way.

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

constexpr int kWarpgroup = 128;
/// Tiles of 64 and 128 rows of 128 bytes.
constexpr int kA = 64 * 128;
constexpr int kImage = kA + 128 * 128;

enum class ProductUse {
  right,
  overwrites,
  without_proxy_fence,
  proxy_fence_after_barrier,
  without_fence,
  without_wait,
  never_awaited,
  writes_what_it_reads,
  adds_to_sums_in_flight,
  by_three_warps,
  without_swizzle,
  behind_the_end
};

/// Input: an image of shared memory, 64 sums for each thread, and four registers of A for each
/// thread if `in_registers`. K-major matrices begin at the second 16 columns of their rows. The two
/// parts of the MN-major one are 4,096 bytes apart.
template <class Element, bool in_registers, ProductUse use>
__global__ void product_kernel(const std::uint32_t* input, float* output) {
  using enum ProductUse;
  unsigned char* const shared = dynamic_shared_swizzled();
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kImage / 4; i += kWarpgroup) {
    reinterpret_cast<std::uint32_t*>(shared)[i] = input[i];
  }
  if constexpr (use != without_proxy_fence && use != proxy_fence_after_barrier) {
    fence_async_proxy();
  }
  __syncthreads();
  if constexpr (use == proxy_fence_after_barrier) {
    fence_async_proxy();
  }
  const std::uint32_t* const mine = input + kImage / 4 + thread * 64;
  float sums[64];
  for (int i = 0; i < 64; ++i) {
    sums[i] = __uint_as_float(mine[i]);
  }
  if (use == by_three_warps && thread >= 3 * kWarp) {
    return;
  }
  if constexpr (use != without_fence) {
    fence_products(sums);
  }
  const unsigned a = shared_address(shared) + 32;
  const unsigned b = shared_address(shared) + kA;
  if constexpr (in_registers) {
    const std::uint32_t* const given = input + kImage / 4 + kWarpgroup * 64 + thread * 4;
    const std::uint32_t registers[4] = {given[0], given[1], given[2], given[3]};
    multiply_registers<Element>(sums, registers, matrix_descriptor(b, 4096, 1024));
  } else {
    const std::uint64_t descriptor = matrix_descriptor(b + 32, 16, 1024);
    multiply_shared<Element>(
        sums,
        matrix_descriptor(use == behind_the_end ? a + kImage : a, 16, 1024) &
            (use == without_swizzle ? ~std::uint64_t{0} >> 2 : ~std::uint64_t{0}),
        descriptor, use != overwrites);
  }
  commit_products();
  if constexpr (use == writes_what_it_reads) {
    __syncthreads();
    shared[thread * 16] = 0;
  }
  if constexpr (use == adds_to_sums_in_flight) {
    sums[3] = 1;
  }
  if constexpr (use == without_wait) {
    for (int i = 0; i < 64; ++i) {
      output[thread * 64 + i] = sums[i];
    }
  }
  if constexpr (use != never_awaited) {
    wait_for_products<0>(sums);
  }
  if constexpr (use != without_wait) {
    for (int i = 0; i < 64; ++i) {
      output[thread * 64 + i] = sums[i];
    }
  }
}

template <class Element, bool in_registers, ProductUse use>
constexpr auto product = [](const std::uint32_t* in, float* out, cudaStream_t stream) {
  product_kernel<Element, in_registers, use><<<1, kWarpgroup, kImage, stream>>>(in, out);
};

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
    case 20:
      return products(product<Bfloat, false, ProductUse::right>);
    case 21:
      return products(product<Half, false, ProductUse::right>);
    case 22:
      return products(product<Bfloat, true, ProductUse::right>);
    case 23:
      return products(product<Half, true, ProductUse::right>);
    case 24:
      return products(product<Half, false, ProductUse::overwrites>);
    case 30:
      return products(product<Half, true, ProductUse::without_proxy_fence>);
    case 31:
      return products(product<Half, true, ProductUse::proxy_fence_after_barrier>);
    case 32:
      return products(product<Half, true, ProductUse::without_fence>);
    case 33:
      return products(product<Half, true, ProductUse::without_wait>);
    case 34:
      return products(product<Half, true, ProductUse::never_awaited>);
    case 35:
      return products(product<Half, false, ProductUse::writes_what_it_reads>);
    case 36:
      return products(product<Half, true, ProductUse::adds_to_sums_in_flight>);
    case 37:
      return products(product<Half, true, ProductUse::by_three_warps>);
    case 38:
      return products(product<Half, false, ProductUse::without_swizzle>);
    case 39:
      return products(product<Half, false, ProductUse::behind_the_end>);
    default:
      return -1;
  }
}
