#pragma once

/// The functions of kernels/instructions.cuh for kernels on an emulated GPU, with fragments as the
/// PTX ISA lays them out. Included by device_code.hpp.

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>

namespace kvtier::emulation {

void copy_async(void* shared, const void* global, bool reads);
void commit_copies();
void wait_for_copies(int pending);
/// `count` matrices of 8 x 8 numbers of 16 bits, whose rows the lanes 0 .. 8 x count - 1 give.
void load_matrices(std::uint32_t* matrices, int count, const void* row, bool transposed, int line);
std::uint32_t transpose_matrix(std::uint32_t matrix, int line);
/// m16n8k16 in bfloat16 or float16, with sums in float.
void multiply_add(float* sums, const std::uint32_t* a, const std::uint32_t* b, bool bfloat16,
                  int line);

/// The offset in dynamic shared memory, in place of an address.
unsigned shared_address(const void* shared);
void fence_async_proxy();
void fence_products(int line);
/// m64n128k16 in bfloat16 or float16, with `a` in registers unless that is null. B is K-major, or
/// MN-major if `transposed`.
struct WarpgroupProduct {
  float* sums = nullptr;
  const std::uint32_t* registers = nullptr;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  bool transposed = false;
  bool adds = true;
  bool bfloat16 = false;
};
void multiply_by_warpgroup(WarpgroupProduct product, int line);
void commit_products(int line);
void wait_for_products(int pending, int line);

}  // namespace kvtier::emulation

namespace kvtier::kernels::cuda {

inline void copy_async(void* shared, const void* global, bool reads) {
  emulation::copy_async(shared, global, reads);
}
inline void commit_copies() { emulation::commit_copies(); }
template <int pending>
void wait_for_copies() {
  emulation::wait_for_copies(pending);
}
template <int count>
void load_matrices(std::uint32_t (&matrices)[count], const void* row, int line = __builtin_LINE()) {
  emulation::load_matrices(matrices, count, row, /*transposed=*/false, line);
}
template <int count>
void load_matrices_transposed(std::uint32_t (&matrices)[count], const void* row,
                              int line = __builtin_LINE()) {
  emulation::load_matrices(matrices, count, row, /*transposed=*/true, line);
}
inline std::uint32_t transpose_matrix(std::uint32_t matrix, int line = __builtin_LINE()) {
  return emulation::transpose_matrix(matrix, line);
}
template <class Element>
void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                  int line = __builtin_LINE()) {
  emulation::multiply_add(sums, a, b, std::is_same_v<Element, __nv_bfloat16>, line);
}

inline constexpr bool kHasWarpgroupProducts = true;
inline unsigned shared_address(const void* shared) { return emulation::shared_address(shared); }
inline void fence_async_proxy() { emulation::fence_async_proxy(); }
inline void compute_before_barrier(float /*value*/, void* /*shared*/) {}
template <class... Registers>
[[gnu::always_inline]] inline void fence_products(Registers&... /*registers*/) {
  emulation::fence_products(sizeof...(Registers));
}
inline void commit_products(int line = __builtin_LINE()) { emulation::commit_products(line); }
template <int pending, class... Sums>
void wait_for_products(Sums&... /*sums*/) {
  emulation::wait_for_products(pending, pending);
}
template <class Element>
void multiply_shared(float (&sums)[64], std::uint64_t a, std::uint64_t b, bool adds,
                     int line = __builtin_LINE()) {
  emulation::multiply_by_warpgroup({.sums = sums,
                                    .a = a,
                                    .b = b,
                                    .adds = adds,
                                    .bfloat16 = std::is_same_v<Element, __nv_bfloat16>},
                                   line);
}
template <class Element>
void multiply_registers(float (&sums)[64], const std::uint32_t (&a)[4], std::uint64_t b,
                        int line = __builtin_LINE()) {
  emulation::multiply_by_warpgroup({.sums = sums,
                                    .registers = a,
                                    .b = b,
                                    .transposed = true,
                                    .bfloat16 = std::is_same_v<Element, __nv_bfloat16>},
                                   line);
}

inline float fast_exp2(float x) { return std::exp2(x); }
inline unsigned char* dynamic_shared() {
  return reinterpret_cast<unsigned char*>(emulation::dynamic_shared());
}
inline unsigned char* dynamic_shared_swizzled() { return dynamic_shared(); }

}  // namespace kvtier::kernels::cuda
