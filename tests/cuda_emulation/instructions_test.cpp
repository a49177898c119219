/// The instructions of a warp and of a warpgroup, against the tables of the PTX ISA, and
/// asynchronous copies and products that are used wrongly.

#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda_emulation/module.hpp"

namespace kvtier::emulation {
namespace {

constexpr std::size_t kLanes = 32;
using Words = std::vector<std::uint32_t>;

struct Ran {
  int error = 0;
  Words output;
  /// Name of the check that noticed a fault.
  std::string check;
};

/// In a process of its own: a fault ends an emulation.
Ran run(int which, const Words& input, std::size_t words) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const char* const path = KVTIER_EMULATION "/instructions/lib/kvtier/kvtier_cuda.so";
    const Module module(path);
    module.schedule(Schedule::random, 1);
    const auto function =
        reinterpret_cast<int (*)(int, const void*, std::size_t, void*, std::size_t)>(
            ::dlsym(::dlopen(path, RTLD_NOW | RTLD_LOCAL), "kvtier_run_instruction"));
    Words output(words + 1);
    output[0] = static_cast<std::uint32_t>(
        function(which, input.data(), input.size() * 4, &output[1], words * 4));
    std::string check = module.fault();
    check.resize(16);
    static_cast<void>(::write(ends[1], check.data(), check.size()));
    static_cast<void>(::write(ends[1], output.data(), output.size() * 4));
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string all;
  char part[4096];
  for (ssize_t n = 0; (n = ::read(ends[0], part, sizeof part)) > 0;) {
    all.append(part, static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  Ran ran;
  EXPECT_EQ(all.size(), 16 + 4 * (words + 1));
  ran.check = all.substr(0, std::min<std::size_t>(all.find(':'), 16));
  ran.check.resize(std::strlen(ran.check.c_str()));
  ran.output.resize(words + 1);
  std::memcpy(ran.output.data(), all.data() + 16, 4 * (words + 1));
  ran.error = static_cast<int>(ran.output.front());
  ran.output.erase(ran.output.begin());
  return ran;
}

/// Number i of 16 bits is i.
Words counted(std::size_t words) {
  Words all(words);
  for (std::uint32_t i = 0; i < words; ++i) {
    all[i] = (2 * i + 1) << 16 | 2 * i;
  }
  return all;
}
std::uint32_t pair(std::uint32_t low, std::uint32_t high) { return high << 16 | low; }

// Row i of 8 numbers holds 8 i .. 8 i + 7; matrix m is the rows 8 m .. 8 m + 7. Lane 5 has g = 1
// and t = 1: of matrix 0 row 1, columns 2 and 3, so the numbers 10 and 11, and of matrix 3 200
// more.
TEST(Instructions, LoadMatricesByRows) {
  const Ran ran = run(0, counted(4 * kLanes), 4 * kLanes);
  EXPECT_EQ(ran.check, "");
  EXPECT_EQ(ran.output[5 * 4], pair(10, 11));
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    for (std::uint32_t m = 0; m < 4; ++m) {
      const std::uint32_t first = 8 * (8 * m + lane / 4) + 2 * (lane % 4);
      EXPECT_EQ(ran.output[4 * lane + m], pair(first, first + 1)) << lane << " " << m;
    }
  }
}

TEST(Instructions, LoadTwoMatricesByTheRowsOfSixteenLanes) {
  const Ran ran = run(2, counted(4 * kLanes), 2 * kLanes);
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    for (std::uint32_t m = 0; m < 2; ++m) {
      const std::uint32_t first = 8 * (8 * m + lane / 4) + 2 * (lane % 4);
      EXPECT_EQ(ran.output[2 * lane + m], pair(first, first + 1)) << lane << " " << m;
    }
  }
}

// Transposed, lane 5 has row 1 of the transposed matrix: column 1 of rows 2 and 3, 17 and 25.
TEST(Instructions, LoadMatricesTransposed) {
  const Ran ran = run(1, counted(4 * kLanes), 4 * kLanes);
  EXPECT_EQ(ran.output[5 * 4], pair(17, 25));
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    for (std::uint32_t m = 0; m < 4; ++m) {
      const std::uint32_t first = 8 * (8 * m + 2 * (lane % 4)) + lane / 4;
      EXPECT_EQ(ran.output[4 * lane + m], pair(first, first + 8)) << lane << " " << m;
    }
  }
}

TEST(Instructions, TransposeAMatrixInRegisters) {
  const Ran ran = run(3, counted(kLanes), kLanes);
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    const std::uint32_t first = 8 * 2 * (lane % 4) + lane / 4;
    EXPECT_EQ(ran.output[lane], pair(first, first + 8)) << lane;
  }
}

TEST(Instructions, ReadAnyLane) {
  const Ran ran = run(6, counted(kLanes), kLanes);
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    EXPECT_EQ(ran.output[lane], counted(kLanes)[lane * 5 % kLanes]) << lane;
  }
}

/// Small whole numbers, so that every sum is exact.
template <class Element>
void multiply(int which, Element (*rounded)(float)) {
  std::mt19937 engine(1);
  float a[16][16];
  float b[16][8];
  float c[16][8];
  const auto fill = [&](auto& matrix) {
    for (auto& row : matrix) {
      for (float& x : row) {
        x = static_cast<float>(engine() % 17) - 8;
      }
    }
  };
  fill(a);
  fill(b);
  fill(c);
  const auto bits = [&](float x) {
    const Element one = rounded(x);
    std::uint16_t all = 0;
    std::memcpy(&all, &one, sizeof all);
    return all;
  };
  // The table of mma.m16n8k16: a0, a1 at (g, 2 t), a2, a3 at (g + 8, 2 t), a4, a5 at (g, 2 t + 8),
  // a6, a7 at (g + 8, 2 t + 8); b0, b1 at (2 t, g), b2, b3 at (2 t + 8, g); c0, c1 at (g, 2 t), c2,
  // c3 at (g + 8, 2 t).
  Words input;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const std::size_t g = lane / 4;
    const std::size_t t = 2 * (lane % 4);
    input.push_back(pair(bits(a[g][t]), bits(a[g][t + 1])));
    input.push_back(pair(bits(a[g + 8][t]), bits(a[g + 8][t + 1])));
    input.push_back(pair(bits(a[g][t + 8]), bits(a[g][t + 9])));
    input.push_back(pair(bits(a[g + 8][t + 8]), bits(a[g + 8][t + 9])));
    input.push_back(pair(bits(b[t][g]), bits(b[t + 1][g])));
    input.push_back(pair(bits(b[t + 8][g]), bits(b[t + 9][g])));
    for (const float x : {c[g][t], c[g][t + 1], c[g + 8][t], c[g + 8][t + 1]}) {
      input.push_back(__builtin_bit_cast(std::uint32_t, x));
    }
  }
  const Ran ran = run(which, input, 4 * kLanes);
  EXPECT_EQ(ran.check, "");
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t m = lane / 4 + 8 * (i / 2);
      const std::size_t n = 2 * (lane % 4) + i % 2;
      float expected = c[m][n];
      for (std::size_t k = 0; k < 16; ++k) {
        expected += a[m][k] * b[k][n];
      }
      EXPECT_EQ(__builtin_bit_cast(float, ran.output[4 * lane + i]), expected) << m << " " << n;
    }
  }
}

TEST(Instructions, MultiplyBfloat16) { multiply<__nv_bfloat16>(4, __float2bfloat16); }
TEST(Instructions, MultiplyFloat16) { multiply<__half>(5, __float2half); }

TEST(AsynchronousCopies, BringTheirRowsOrZeros) {
  const Ran ran = run(10, counted(4 * kLanes), 4 * kLanes);
  EXPECT_EQ(ran.check, "");
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const std::size_t from = lane ^ 1;
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(ran.output[4 * lane + i], from % 2 == 0 ? counted(4 * kLanes)[4 * from + i] : 0);
    }
  }
}

TEST(AsynchronousCopies, AreNoticedWhenUsedWrongly) {
  const auto noticed_by = [](int use) { return run(use, counted(4 * kLanes), 4 * kLanes).check; };
  EXPECT_EQ(noticed_by(11), "async") << "read before the wait";
  // A lane reads before its neighbour has waited, or just after.
  EXPECT_TRUE((std::set<std::string>{"async", "race", "unwritten"}).contains(noticed_by(12)))
      << "read before the barrier";
  EXPECT_EQ(noticed_by(13), "race") << "copied over what others read";
  EXPECT_EQ(noticed_by(14), "async") << "still under way at the end";
  EXPECT_EQ(noticed_by(15), "bounds") << "behind the launch's shared memory";
}

/// A product of a warpgroup on small whole numbers, so that every sum is exact.
struct Product {
  float a[64][16];
  float b[16][128];
  float c[64][128];
  Words input;
};

/// Row 16 w + g + 8 (i / 2 % 2), column 8 (i / 4) + 2 t + i % 2 of sum i of a thread.
std::size_t row_of(std::size_t thread, std::size_t i) {
  return thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2 % 2);
}
std::size_t column_of(std::size_t thread, std::size_t i) {
  return 8 * (i / 4) + 2 * (thread % 4) + i % 2;
}

template <class Element>
Product product_of(Element (*rounded)(float), bool in_registers) {
  Product product;
  std::mt19937 engine(2);
  const auto fill = [&](auto& matrix) {
    for (auto& row : matrix) {
      for (float& x : row) {
        x = static_cast<float>(engine() % 17) - 8;
      }
    }
  };
  fill(product.a);
  fill(product.b);
  fill(product.c);
  const auto bits = [&](float x) {
    const Element one = rounded(x);
    std::uint16_t all = 0;
    std::memcpy(&all, &one, sizeof all);
    return all;
  };
  constexpr std::size_t kA = 64 * 128;
  std::vector<std::uint16_t> image((kA + 128 * 128) / 2);
  // Of each 8 rows of 128 bytes, row r has its chunk c of 16 bytes in place c ^ r.
  const auto put = [&](std::size_t tile, std::size_t row, std::size_t column, float x) {
    image[(tile + row * 128 + (column / 8 ^ row % 8) * 16) / 2 + column % 8] = bits(x);
  };
  for (std::size_t k = 0; k < 16; ++k) {
    for (std::size_t m = 0; m < 64; ++m) {
      put(0, m, 16 + k, product.a[m][k]);
    }
    for (std::size_t n = 0; n < 128; ++n) {
      in_registers ? put(kA + n / 64 * 4096, k, n % 64, product.b[k][n])
                   : put(kA, n, 16 + k, product.b[k][n]);
    }
  }
  product.input.resize(image.size() / 2);
  std::memcpy(product.input.data(), image.data(), image.size() * 2);
  for (std::size_t thread = 0; thread < 128; ++thread) {
    for (std::size_t i = 0; i < 64; ++i) {
      product.input.push_back(
          __builtin_bit_cast(std::uint32_t, product.c[row_of(thread, i)][column_of(thread, i)]));
    }
  }
  for (std::size_t thread = 0; thread < 128; ++thread) {
    const std::size_t g = thread / 32 * 16 + thread % 32 / 4;
    const std::size_t t = 2 * (thread % 4);
    for (const auto& [row, column] : {std::pair(g, t), {g + 8, t}, {g, t + 8}, {g + 8, t + 8}}) {
      product.input.push_back(pair(bits(product.a[row][column]), bits(product.a[row][column + 1])));
    }
  }
  return product;
}

template <class Element>
void multiply_by_warpgroup(int which, Element (*rounded)(float), bool in_registers,
                           bool adds = true) {
  const Product product = product_of(rounded, in_registers);
  const Ran ran = run(which, product.input, std::size_t{128} * 64);
  EXPECT_EQ(ran.check, "");
  for (std::size_t thread = 0; thread < 128; ++thread) {
    for (std::size_t i = 0; i < 64; ++i) {
      const std::size_t m = row_of(thread, i);
      const std::size_t n = column_of(thread, i);
      float expected = adds ? product.c[m][n] : 0;
      for (std::size_t k = 0; k < 16; ++k) {
        expected += product.a[m][k] * product.b[k][n];
      }
      ASSERT_EQ(__builtin_bit_cast(float, ran.output[thread * 64 + i]), expected) << m << " " << n;
    }
  }
}

TEST(WarpgroupProducts, OfSharedMemoryInBfloat16) {
  multiply_by_warpgroup(20, __float2bfloat16, false);
}
TEST(WarpgroupProducts, OfSharedMemoryInFloat16) { multiply_by_warpgroup(21, __float2half, false); }
TEST(WarpgroupProducts, OfRegistersInBfloat16) {
  multiply_by_warpgroup(22, __float2bfloat16, true);
}
TEST(WarpgroupProducts, OfRegistersInFloat16) { multiply_by_warpgroup(23, __float2half, true); }
TEST(WarpgroupProducts, ReplaceTheirSums) {
  multiply_by_warpgroup(24, __float2half, false, /*adds=*/false);
}

TEST(WarpgroupProducts, AreNoticedWhenUsedWrongly) {
  const auto noticed_by = [](int which, bool in_registers = true) {
    return run(which, product_of(__float2half, in_registers).input, std::size_t{128} * 64).check;
  };
  EXPECT_EQ(noticed_by(30), "proxy") << "no proxy fence";
  EXPECT_EQ(noticed_by(31), "proxy") << "a proxy fence after the barrier";
  EXPECT_EQ(noticed_by(32), "async") << "no fence of the sums";
  EXPECT_EQ(noticed_by(34), "async") << "in flight at the end";
  EXPECT_EQ(noticed_by(35, false), "async") << "shared memory written while it is read";
  EXPECT_EQ(noticed_by(36), "async") << "sums written while in flight";
  EXPECT_EQ(noticed_by(37), "barrier") << "only three warps";
  EXPECT_EQ(noticed_by(38, false), "bounds") << "another layout than 128-byte swizzle";
  EXPECT_EQ(noticed_by(39, false), "bounds") << "behind the launch's shared memory";
}

TEST(WarpgroupProducts, GiveNoNumbersBeforeTheWait) {
  const Ran ran = run(33, product_of(__float2half, true).input, std::size_t{128} * 64);
  for (const std::uint32_t sum : ran.output) {
    ASSERT_TRUE(std::isnan(__builtin_bit_cast(float, sum)));
  }
}

TEST(SharedMemory, MoreThan48KibMustBeRequested) {
  EXPECT_EQ(run(16, counted(4 * kLanes), 4 * kLanes).error, cudaErrorInvalidValue);
}

}  // namespace
}  // namespace kvtier::emulation
