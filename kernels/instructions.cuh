#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// GPU instructions that CUDA C++ does not offer: asynchronous copies and matrix products of a warp
/// or of a warpgroup (four warps). A lane has a group g = lane / 4 and a place t = lane % 4. A
/// register holds two numbers of 16 bits; a register of an 8 x 8 matrix holds row g, columns 2 t
/// and 2 t + 1. For other compilers, tests/cuda_emulation has these functions.
namespace kvtier::kernels::cuda {

/// Descriptor of a matrix in shared memory for wgmma: rows of 128 bytes, whose chunks of 16 bytes
/// are swizzled by address (bits 4 to 6 are XORed with bits 7 to 9). `stride` bytes lie between
/// groups of 8 rows. Rows are those of the matrix if it is K-major, and values of k if it is
/// MN-major. An MN-major matrix is cut into parts of 64 columns, `leading` bytes apart; a K-major
/// one has no use for `leading`.
__device__ inline std::uint64_t matrix_descriptor(unsigned address, unsigned leading,
                                                  unsigned stride) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  const auto field = [](unsigned bytes) { return std::uint64_t{(bytes & 0x3ffffU) >> 4}; };
  return field(address) | field(leading) << 16 | field(stride) << 32 | kSwizzle128;
}

}  // namespace kvtier::kernels::cuda

#ifdef __CUDACC__
namespace kvtier::kernels::cuda {

/// Whether the code that is compiled is for a GPU with wgmma. sm_90a is the only one.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool kHasWarpgroupProducts = true;
#else
inline constexpr bool kHasWarpgroupProducts = false;
#endif

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

/// Makes the thread's writes to shared memory, which it has waited for, visible to wgmma. A barrier
/// has to follow.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

/// Ends the compiler's freedom to move accesses to these registers across.
template <class T>
__device__ __forceinline__ void pin(T& value) {
  if constexpr (std::is_array_v<T>) {
#pragma unroll
    for (unsigned i = 0; i < std::extent_v<T>; ++i) {
      pin(value[i]);
    }
  } else if constexpr (std::is_same_v<T, float>) {
    asm volatile("" : "+f"(value) : : "memory");
  } else {
    asm volatile("" : "+r"(value) : : "memory");
  }
}
/// Has `value`, which is not negative, computed before the next barrier. The assembler moves
/// arithmetic across barriers and waits, but not a store, even if it never happens.
__device__ __forceinline__ void compute_before_barrier(float value, void* shared) {
  asm volatile("{.reg .pred p; setp.lt.f32 p, %1, 0f00000000; @p st.shared.f32 [%0], %1;}"
               :
               : "r"(shared_address(shared)), "f"(value)
               : "memory");
}
/// Orders accesses to `registers` before the products that follow.
template <class... Registers>
__device__ __forceinline__ void fence_products(Registers&... registers) {
  (pin(registers), ...);
  asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}
/// Makes the products since the last call a group.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}
/// Waits until at most `pending` of the warpgroup's groups are in flight. `sums` are those of the
/// groups that have ended. Until then, nothing may use the sums of a product or write what it
/// reads.
template <int pending, class... Sums>
__device__ __forceinline__ void wait_for_products(Sums&... sums) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(pending) : "memory");
  (pin(sums), ...);
}

// clang-format off
#define KVTIER_64_SUMS \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define KVTIER_64_OPERANDS(s) \
  "+f"((s)[0]), "+f"((s)[1]), "+f"((s)[2]), "+f"((s)[3]), "+f"((s)[4]), "+f"((s)[5]), "+f"((s)[6]), "+f"((s)[7]), \
  "+f"((s)[8]), "+f"((s)[9]), "+f"((s)[10]), "+f"((s)[11]), "+f"((s)[12]), "+f"((s)[13]), "+f"((s)[14]), "+f"((s)[15]), \
  "+f"((s)[16]), "+f"((s)[17]), "+f"((s)[18]), "+f"((s)[19]), "+f"((s)[20]), "+f"((s)[21]), "+f"((s)[22]), "+f"((s)[23]), \
  "+f"((s)[24]), "+f"((s)[25]), "+f"((s)[26]), "+f"((s)[27]), "+f"((s)[28]), "+f"((s)[29]), "+f"((s)[30]), "+f"((s)[31]), \
  "+f"((s)[32]), "+f"((s)[33]), "+f"((s)[34]), "+f"((s)[35]), "+f"((s)[36]), "+f"((s)[37]), "+f"((s)[38]), "+f"((s)[39]), \
  "+f"((s)[40]), "+f"((s)[41]), "+f"((s)[42]), "+f"((s)[43]), "+f"((s)[44]), "+f"((s)[45]), "+f"((s)[46]), "+f"((s)[47]), \
  "+f"((s)[48]), "+f"((s)[49]), "+f"((s)[50]), "+f"((s)[51]), "+f"((s)[52]), "+f"((s)[53]), "+f"((s)[54]), "+f"((s)[55]), \
  "+f"((s)[56]), "+f"((s)[57]), "+f"((s)[58]), "+f"((s)[59]), "+f"((s)[60]), "+f"((s)[61]), "+f"((s)[62]), "+f"((s)[63])
// clang-format on

/// sums = a x b, or sums += a x b if `adds`, of a warpgroup: a of 64 x 16 and b of 16 x 128 numbers
/// in shared memory, both K-major. Sum i of a lane has row 16 w + g + 8 (i / 2 % 2), with w the
/// warp in its group, and column 8 (i / 4) + 2 t + i % 2. The product runs asynchronously.
template <class Element>
__device__ __forceinline__ void multiply_shared(float (&sums)[64], std::uint64_t a, std::uint64_t b,
                                                bool adds) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " KVTIER_64_SUMS
        ", %64, %65, p, 1, 1, 0, 0;}"
        : KVTIER_64_OPERANDS(sums)
        : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
  } else {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " KVTIER_64_SUMS
        ", %64, %65, p, 1, 1, 0, 0;}"
        : KVTIER_64_OPERANDS(sums)
        : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
  }
}
/// sums += a x b of a warpgroup, as multiply_shared, but with `a` in registers and `b` MN-major.
/// Each warp has 16 rows of `a`, whose registers are those of multiply_add.
template <class Element>
__device__ __forceinline__ void multiply_registers(float (&sums)[64], const std::uint32_t (&a)[4],
                                                   std::uint64_t b) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %69, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " KVTIER_64_SUMS
        ", {%64, %65, %66, %67}, %68, p, 1, 1, 1;}"
        : KVTIER_64_OPERANDS(sums)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
  } else {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %69, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " KVTIER_64_SUMS
        ", {%64, %65, %66, %67}, %68, p, 1, 1, 1;}"
        : KVTIER_64_OPERANDS(sums)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
  }
}
#undef KVTIER_64_SUMS
#undef KVTIER_64_OPERANDS

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
/// The same, at a multiple of the 1,024 bytes after which a swizzle repeats.
__device__ inline unsigned char* dynamic_shared_swizzled() {
  extern __shared__ __align__(1024) unsigned char swizzled_memory[];
  return swizzled_memory;
}

}  // namespace kvtier::kernels::cuda
#endif
