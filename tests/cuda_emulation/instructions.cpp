/// Operations of a whole warp on matrices, after the tables of fragments of the PTX ISA: with g =
/// lane / 4 and t = lane % 4, register r of a 8 x 8 matrix has row g, columns 2 t and 2 t + 1.

#include <array>
#include <bit>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tests/cuda_emulation/device_code.hpp"

namespace kvtier::emulation {
namespace {

constexpr int kLanes = 32;
constexpr int kSide = 8;

std::uint16_t half_of(std::uint32_t pair, int which) {
  return static_cast<std::uint16_t>(pair >> (16 * which));
}
std::uint32_t pair_of(std::uint16_t low, std::uint16_t high) {
  return static_cast<std::uint32_t>(high) << 16 | low;
}

struct Load {
  std::uint32_t* matrices;
  const void* row;
  int count;
  bool transposed;
};

void load_all(void* const* operands) {
  const auto lane_of = [&](int lane) -> const Load& {
    return *static_cast<const Load*>(operands[lane]);
  };
  const Load& any = lane_of(0);
  for (int m = 0; m < any.count; ++m) {
    std::uint16_t matrix[kSide][kSide];
    for (int row = 0; row < kSide; ++row) {
      std::memcpy(matrix[row], lane_of(m * kSide + row).row, sizeof matrix[row]);
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const int g = lane / 4;
      const int c = 2 * (lane % 4);
      lane_of(lane).matrices[m] = any.transposed ? pair_of(matrix[c][g], matrix[c + 1][g])
                                                 : pair_of(matrix[g][c], matrix[g][c + 1]);
    }
  }
}

void transpose_all(void* const* operands) {
  std::uint16_t matrix[kSide][kSide];
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::uint32_t given = *static_cast<const std::uint32_t*>(operands[lane]);
    for (int i = 0; i < 2; ++i) {
      matrix[lane / 4][2 * (lane % 4) + i] = half_of(given, i);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const int c = 2 * (lane % 4);
    *static_cast<std::uint32_t*>(operands[lane]) =
        pair_of(matrix[c][lane / 4], matrix[c + 1][lane / 4]);
  }
}

struct Product {
  float* sums;
  const std::uint32_t* a;
  const std::uint32_t* b;
  bool bfloat16;
};

void multiply_all(void* const* operands) {
  constexpr int kM = 16;
  constexpr int kN = 8;
  constexpr int kK = 16;
  const auto lane_of = [&](int lane) -> const Product& {
    return *static_cast<const Product*>(operands[lane]);
  };
  const bool bfloat16 = lane_of(0).bfloat16;
  const auto number = [bfloat16](std::uint32_t pair, int which) {
    const std::uint16_t bits = half_of(pair, which);
    return bfloat16 ? std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16)
                    : __half2float(std::bit_cast<__half>(bits));
  };
  float a[kM][kK];
  float b[kN][kK];
  for (int lane = 0; lane < kLanes; ++lane) {
    const Product& one = lane_of(lane);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < 2; ++i) {
      for (int r = 0; r < 4; ++r) {
        a[g + 8 * (r % 2)][2 * t + i + 8 * (r / 2)] = number(one.a[r], i);
      }
      for (int r = 0; r < 2; ++r) {
        b[g][2 * t + i + 8 * r] = number(one.b[r], i);
      }
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const Product& one = lane_of(lane);
    for (int i = 0; i < 4; ++i) {
      const int m = lane / 4 + 8 * (i / 2);
      const int n = 2 * (lane % 4) + i % 2;
      float sum = one.sums[i];
      for (int k = 0; k < kK; ++k) {
        sum += a[m][k] * b[n][k];
      }
      one.sums[i] = sum;
    }
  }
}

// Distinct operations never meet, wherever they stand.
enum Operation { load = 1 << 20, transpose = 2 << 20, multiply = 3 << 20 };

}  // namespace

void load_matrices(std::uint32_t* matrices, int count, const void* row, bool transposed, int line) {
  constexpr std::size_t kRow = 16;
  if (lane() < kSide * count) {
    will_read(row, kRow);
  }
  Load mine{matrices, row, count, transposed};
  compute_by_warp(&mine, load_all, Operation::load + line);
}

std::uint32_t transpose_matrix(std::uint32_t matrix, int line) {
  compute_by_warp(&matrix, transpose_all, Operation::transpose + line);
  return matrix;
}

void multiply_add(float* sums, const std::uint32_t* a, const std::uint32_t* b, bool bfloat16,
                  int line) {
  Product mine{sums, a, b, bfloat16};
  compute_by_warp(&mine, multiply_all, Operation::multiply + line);
}

}  // namespace kvtier::emulation
