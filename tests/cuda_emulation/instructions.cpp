/// Operations of a warp or of a warpgroup on matrices, after the tables of fragments of the PTX
/// ISA: with g = lane / 4 and t = lane % 4, register r of a 8 x 8 matrix has row g, columns 2 t and
/// 2 t + 1.

#include <array>
#include <bit>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <fmt/format.h>

#include "tests/cuda_emulation/device_code.hpp"
#include "tests/cuda_emulation/products.hpp"
#include "tests/cuda_emulation/runtime.hpp"

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

// ---- Warpgroups ----

constexpr int kRowsOfWarp = 16;
constexpr int kColumns = 128;
constexpr int kDepth = 16;
constexpr std::size_t kChunk = 16;
using Chunk = std::array<std::uint16_t, 8>;
/// A lane's sums in flight.
constexpr std::uint32_t kInFlight = 0x7fc0dead;

float number_of(std::uint16_t bits, bool bfloat16) {
  return bfloat16 ? std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16)
                  : __half2float(std::bit_cast<__half>(bits));
}

/// The table "Matrix Descriptor Format" of the PTX ISA.
struct Descriptor {
  unsigned start = 0;
  unsigned leading = 0;
  unsigned stride = 0;

  explicit Descriptor(std::uint64_t bits) {
    const auto field = [&](int first) {
      return static_cast<unsigned>(bits >> first & 0x3fff) << 4;
    };
    start = field(0);
    leading = field(16);
    stride = field(32);
    constexpr std::uint64_t kFields =
        0x3fff | std::uint64_t{0x3fff} << 16 | std::uint64_t{0x3fff} << 32 | std::uint64_t{3} << 62;
    if (bits >> 62 != 1 || (bits & ~kFields) != 0) {
      fail_product("bounds",
                   "a descriptor has another layout than 128-byte swizzle from a "
                   "multiple of 1,024");
    }
  }

  /// A chunk of 16 bytes of row `row`. Rows are those of the matrix if it is K-major and values of
  /// k otherwise.
  [[nodiscard]] Chunk read(int row, int chunk, int part, ChunksRead& reads) const {
    unsigned at = start + static_cast<unsigned>(part) * leading +
                  static_cast<unsigned>(row / 8) * stride + static_cast<unsigned>(row % 8) * 128 +
                  static_cast<unsigned>(chunk) * kChunk;
    at ^= (at >> 7 & 7) << 4;
    if (at + kChunk > kSharedMax) {
      fail_product("bounds", "a descriptor leads out of shared memory");
    }
    const std::byte* const from = dynamic_shared() + at;
    read_by_product(from);
    reads.push_back(from);
    Chunk found;
    std::memcpy(found.data(), from, kChunk);
    return found;
  }
};

void check_in_flight(const SumsInFlight& sums) {
  for (const float* lane : sums.registers) {
    for (int i = 0; i < 64; ++i) {
      if (std::bit_cast<std::uint32_t>(lane[i]) != kInFlight) {
        fail_product("async", "sums of a product in flight were changed");
      }
    }
  }
}

/// Sum i of a lane.
int row_of_sum(int lane, int i) { return lane / 4 + 8 * (i / 2 % 2); }
int column_of_sum(int lane, int i) { return 8 * (i / 4) + 2 * (lane % 4) + i % 2; }

void multiply_rows_of_warp(void* const* operands) {
  const auto lane_of = [&](int lane) -> const WarpgroupProduct& {
    return *static_cast<const WarpgroupProduct*>(operands[lane]);
  };
  const WarpgroupProduct& any = lane_of(0);
  const int warp = warp_of_warpgroup();
  WarpProducts& products = products_of_warp();
  for (int lane = 1; lane < kLanes; ++lane) {
    const WarpgroupProduct& one = lane_of(lane);
    if (one.a != any.a || one.b != any.b || one.adds != any.adds) {
      fail_product("shuffle", "lanes have different operands of one product");
    }
  }
  if (!products.fenced) {
    fail_product("async", "a product without wgmma.fence after the last wait");
  }
  ProductInFlight product{.sums = any.sums, .reads = {}};
  float a[kRowsOfWarp][kDepth];
  if (any.registers == nullptr) {
    const Descriptor descriptor(any.a);
    for (int row = 0; row < kRowsOfWarp; ++row) {
      for (int k = 0; k < kDepth; k += 8) {
        const Chunk chunk =
            descriptor.read(warp * kRowsOfWarp + row, k / 8, /*part=*/0, product.reads);
        for (int i = 0; i < 8; ++i) {
          a[row][k + i] = number_of(chunk[static_cast<std::size_t>(i)], any.bfloat16);
        }
      }
    }
  } else {
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int r = 0; r < 4; ++r) {
        for (int i = 0; i < 2; ++i) {
          a[lane / 4 + 8 * (r % 2)][2 * (lane % 4) + i + 8 * (r / 2)] =
              number_of(half_of(lane_of(lane).registers[r], i), any.bfloat16);
        }
      }
    }
  }
  float b[kDepth][kColumns];
  const Descriptor descriptor(any.b);
  if (any.transposed) {
    for (int k = 0; k < kDepth; ++k) {
      for (int n = 0; n < kColumns; n += 8) {
        const Chunk chunk = descriptor.read(k, n % 64 / 8, n / 64, product.reads);
        for (int i = 0; i < 8; ++i) {
          b[k][n + i] = number_of(chunk[static_cast<std::size_t>(i)], any.bfloat16);
        }
      }
    }
  } else {
    for (int n = 0; n < kColumns; ++n) {
      for (int k = 0; k < kDepth; k += 8) {
        const Chunk chunk = descriptor.read(n, k / 8, /*part=*/0, product.reads);
        for (int i = 0; i < 8; ++i) {
          b[k + i][n] = number_of(chunk[static_cast<std::size_t>(i)], any.bfloat16);
        }
      }
    }
  }
  SumsInFlight& sums = products.sums[any.sums];
  if (sums.products++ > 0) {
    check_in_flight(sums);
  } else {
    for (int lane = 0; lane < kLanes; ++lane) {
      float* const registers = lane_of(lane).sums;
      sums.registers[static_cast<std::size_t>(lane)] = registers;
      for (int i = 0; i < 64; ++i) {
        sums.values[static_cast<std::size_t>(row_of_sum(lane, i))]
                   [static_cast<std::size_t>(column_of_sum(lane, i))] = registers[i];
        registers[i] = std::bit_cast<float>(kInFlight);
      }
    }
  }
  for (std::size_t m = 0; m < kRowsOfWarp; ++m) {
    auto& row = sums.values[m];
    if (!any.adds) {
      row = {};
    }
    for (int k = 0; k < kDepth; ++k) {
      for (std::size_t n = 0; n < kColumns; ++n) {
        row[n] += a[m][k] * b[k][n];
      }
    }
  }
  products.uncommitted.push_back(std::move(product));
  ++count().products;
}

void end_product(WarpProducts& products, const ProductInFlight& product) {
  for (const std::byte* chunk : product.reads) {
    end_read_by_product(chunk);
  }
  SumsInFlight& sums = products.sums.at(product.sums);
  if (--sums.products > 0) {
    return;
  }
  check_in_flight(sums);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 64; ++i) {
      sums.registers[static_cast<std::size_t>(lane)][i] =
          sums.values[static_cast<std::size_t>(row_of_sum(lane, i))]
                     [static_cast<std::size_t>(column_of_sum(lane, i))];
    }
  }
  products.sums.erase(product.sums);
}

void fence_of_warp(void* const* /*operands*/) { products_of_warp().fenced = true; }

void commit_of_warp(void* const* /*operands*/) {
  WarpProducts& products = products_of_warp();
  products.in_flight.push_back(std::move(products.uncommitted));
  products.uncommitted.clear();
}

void wait_of_warp(void* const* operands) {
  WarpProducts& products = products_of_warp();
  products.fenced = false;
  const auto pending = static_cast<std::size_t>(*static_cast<const int*>(operands[0]));
  for (; products.in_flight.size() > pending; products.in_flight.pop_front()) {
    for (const ProductInFlight& product : products.in_flight.front()) {
      end_product(products, product);
    }
  }
}

// Distinct operations never meet, wherever they stand.
enum Operation {
  load = 1 << 20,
  transpose = 2 << 20,
  multiply = 3 << 20,
  multiply_warpgroup = 4 << 20,
  fence_warpgroup = 5 << 20,
  commit_warpgroup = 6 << 20,
  wait_warpgroup = 7 << 20
};

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

unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(static_cast<const std::byte*>(shared) - dynamic_shared());
}

void multiply_by_warpgroup(WarpgroupProduct product, int line) {
  compute_by_warp(&product, multiply_rows_of_warp, Operation::multiply_warpgroup + line);
  if (lane() == 0) {
    std::uint64_t& issued = products_of_warp().issued;
    for (const std::uint64_t part :
         {product.a, product.b, static_cast<std::uint64_t>(line), std::uint64_t{product.adds}}) {
      issued = (issued ^ part) * 0x100000001b3U + 1;
    }
  }
}

void fence_products(int line) {
  compute_by_warp(nullptr, fence_of_warp, Operation::fence_warpgroup + line);
}

void commit_products(int line) {
  compute_by_warp(nullptr, commit_of_warp, Operation::commit_warpgroup + line);
}

void wait_for_products(int pending, int line) {
  compute_by_warp(&pending, wait_of_warp, Operation::wait_warpgroup + line);
}

}  // namespace kvtier::emulation
