#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// GPU instructions that CUDA C++ does not offer: asynchronous copies and matrix products of a
/// warp. A lane has a group g = lane / 4 and a place t = lane % 4. A register holds two numbers of
/// 16 bits; a register of an 8 x 8 matrix holds row g, columns 2 t and 2 t + 1. For other
/// compilers, tests/cuda_emulation has these functions.
#ifdef __CUDACC__
namespace kvtier::kernels::cuda {

__device__ inline unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

/// Copies the 16 bytes at `global` to `shared`, both multiples of 16; zeros if `reads` is false.
/// The thread sees them after it has waited, other threads after a later barrier.
__device__ inline void copy_async(void* shared, const void* global, bool reads) {
  const int bytes = reads ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(shared)), "l"(global), "r"(bytes)
               : "memory");
}
/// Makes the copies since the last call a group.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
/// Waits until at most `pending` of the thread's groups have not arrived.
template <int pending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory");
}

/// Loads 8 x 8 matrices from shared memory: lane 8 m + i gives the address of row i of matrix m.
template <int count>
__device__ void load_matrices(std::uint32_t (&matrices)[count], const void* row) {
  static_assert(count == 2 || count == 4);
  if constexpr (count == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(matrices[0]), "=r"(matrices[1])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
}
/// The same, transposed on the way.
template <int count>
__device__ void load_matrices_transposed(std::uint32_t (&matrices)[count], const void* row) {
  static_assert(count == 4);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(shared_address(row))
               : "memory");
}
/// An 8 x 8 matrix in registers, transposed.
__device__ inline std::uint32_t transpose_matrix(std::uint32_t matrix) {
  std::uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(matrix));
  return transposed;
}

/// sums += a x b, of 16 x 16 and 16 x 8 numbers. The four registers of `a` are its quarters, the
/// left column of them first; the two of `b` hold rows 2 t, 2 t + 1 and those 8 below of column g.
/// `sums` are row g, columns 2 t and 2 t + 1, and the same 8 rows below.
template <class Element>
__device__ void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4],
                             const std::uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// 2^x with a relative error of at most 2^-22; results below 2^-126 are zero.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The beginning of a launch's dynamic shared memory.
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

}  // namespace kvtier::kernels::cuda
#endif
