#pragma once

/// Included before a kernel's source (CMakeLists.txt), so that a host compiler takes it: the words
/// of CUDA C++ as functions of the emulation. Compiled with -fsanitize=thread, whose calls before
/// each read and write the emulation answers itself (block.cpp).

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "tests/cuda_emulation/planted.hpp"

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __shared__
/// A block runs by itself.
#define __shared__ static

namespace kvtier::emulation {

dim3 grid();
dim3 block_size();
uint3 block_index();
uint3 thread_index();

void barrier(int line);
void warp_barrier(unsigned mask, int line);
int lane();
/// The 32 bits that a lane gave, once all lanes of the mask are there.
std::uint32_t shuffle(unsigned mask, std::uint32_t value, int from, int line);
std::int64_t global_timer();

/// Shared memory of the largest block of sm_90, and the beginning of a launch's dynamic one.
constexpr std::size_t kSharedMax = 227 << 10;
std::byte* dynamic_shared();
/// All lanes of the warp give operands; the last lane to come computes on those of all.
void compute_by_warp(void* operands, void (*compute)(void* const* operands), int line);
/// Checks a read that uninstrumented code is about to make.
void will_read(const void* address, std::size_t bytes);

struct WarpProducts;
WarpProducts& products_of_warp();
/// The warp's number among the four.
int warp_of_warpgroup();
/// Checks a read of 16 bytes by a product of the warp. No thread may write them until its end.
void read_by_product(const std::byte* chunk);
void end_read_by_product(const std::byte* chunk);
/// Ends the kernel with a fault of the warp.
void fail_product(std::string_view check, const std::string& text);

struct Launch {
  dim3 grid;
  dim3 block;
  std::size_t shared = 0;
  cudaStream_t stream = nullptr;
};
/// A kernel with its arguments, which lie in a read-only place as on a GPU.
struct Kernel {
  virtual ~Kernel() = default;
  virtual void thread() const = 0;
  std::size_t bytes = 0;
};
void queue_kernel(const Launch& launch, const char* name, std::unique_ptr<Kernel> kernel);

template <class Function>
class Launcher {
 public:
  Launcher(const Launch& launch, const char* name, Function function)
      : launch_(launch), name_(name), function_(function) {}
  template <class... Arguments>
  void operator()(Arguments... arguments) const {
    struct Call final : Kernel {
      Call(Function f, Arguments... a) : function(f), given(a...) { bytes = sizeof *this; }
      void thread() const override { std::apply(function, given); }
      Function function;
      std::tuple<Arguments...> given;
    };
    queue_kernel(launch_, name_, std::make_unique<Call>(function_, arguments...));
  }

 private:
  Launch launch_;
  const char* name_;
  Function function_;
};

}  // namespace kvtier::emulation

#define gridDim (::kvtier::emulation::grid())
#define blockDim (::kvtier::emulation::block_size())
#define blockIdx (::kvtier::emulation::block_index())
#define threadIdx (::kvtier::emulation::thread_index())

// Lanes meet at a line of the source, wherever the compiler copied it to.
[[gnu::always_inline]] inline void __syncthreads(int line = __builtin_LINE()) {
  ::kvtier::emulation::barrier(line);
}
[[gnu::always_inline]] inline void __syncwarp(unsigned mask = 0xffffffffU,
                                              int line = __builtin_LINE()) {
  ::kvtier::emulation::warp_barrier(mask, line);
}
template <class T>
[[gnu::always_inline]] inline T __shfl_sync(unsigned mask, T value, int from,
                                            int line = __builtin_LINE()) {
  static_assert(sizeof(T) == 4);
  return __builtin_bit_cast(
      T, ::kvtier::emulation::shuffle(mask, __builtin_bit_cast(std::uint32_t, value), from % 32,
                                      line));
}
template <class T>
[[gnu::always_inline]] inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask,
                                                int line = __builtin_LINE()) {
  return __shfl_sync(mask, value, ::kvtier::emulation::lane() ^ lane_mask, line);
}

inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }

#include "tests/cuda_emulation/instructions.hpp"
