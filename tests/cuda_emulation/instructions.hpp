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
inline float fast_exp2(float x) { return std::exp2(x); }
inline unsigned char* dynamic_shared() {
  return reinterpret_cast<unsigned char*>(emulation::dynamic_shared());
}

}  // namespace kvtier::kernels::cuda
