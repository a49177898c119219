#include "hw/profile/profile_grid.hpp"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "hw/profile/profile_timing.hpp"
#include "tests/hw/tiny_profile.hpp"

namespace kvtier {
namespace {

using test::cell;
using test::tiny_profile;

constexpr double kRounding = 1e-9;

ProfileGrid grid_of(const Profile& profile, OperationId operation) {
  return make_grid(profile, *find_tables(profile, operation).front());
}

/// A limit that is negligible and proportional to the product of the sizes.
double product(double x, double y) { return 1e-6 * x * (1 + y); }

TEST(ProfileGrid, GivesTheMedianOfEachCell) {
  const Profile profile = tiny_profile();
  for (const OperationId operation :
       {OperationId::gemm, OperationId::prefill_attention, OperationId::decode_attention}) {
    const ProfileTable& table = *find_tables(profile, operation).front();
    const ProfileGrid grid = make_grid(profile, table);
    for (const ProfileCell& measured : table.cells) {
      const double second = measured.at.size() > 1 ? static_cast<double>(measured.at[1]) : 0;
      const ProfileGrid::Time time = grid.at(static_cast<double>(measured.at[0]), second);
      EXPECT_DOUBLE_EQ(time.seconds, measured.median_seconds);
      EXPECT_FALSE(time.extrapolated);
    }
  }
}

TEST(ProfileGrid, IsAPowerOfTheFirstAxis) {
  const ProfileGrid grid = grid_of(tiny_profile(), OperationId::gemm);
  // 1 s for 1, 2 s for 4: half way up the exponents is 2, in 2^(1/2) s. 2 s for 4, 8 s for 16: 4.
  EXPECT_NEAR(grid.at(2).seconds, std::sqrt(2.0), kRounding);
  EXPECT_NEAR(grid.at(8).seconds, 4, kRounding);
  EXPECT_FALSE(grid.at(8).extrapolated);
}

TEST(ProfileGrid, IsLinearAlongTheSecondAxis) {
  const ProfileGrid grid = grid_of(tiny_profile(), OperationId::prefill_attention);
  // n + P/8: 1 + 20/8 = 3.5, and between n = 1 (1.5) and n = 4 (4.5) at P = 4: 1.5 x 3^(1/2).
  EXPECT_NEAR(grid.at(1, 20).seconds, 3.5, kRounding);
  EXPECT_NEAR(grid.at(2, 4).seconds, 1.5 * std::sqrt(3.0), kRounding);
}

TEST(ProfileGrid, HoldsTheAttainedShareBeyondTheGrid) {
  const Profile profile = tiny_profile();
  // The limit of 16 tokens is 2 x 32 x 16 FLOP, of 32 tokens twice that: 2 x 8 s.
  const ProfileGrid::Time tokens = grid_of(profile, OperationId::gemm).at(32);
  EXPECT_NEAR(tokens.seconds, 16, kRounding);
  EXPECT_TRUE(tokens.extrapolated);
  // 4 new after 32 are 4 x 32 + 10 = 138 pairs in 8 s, after 64 they are 266; compute is the limit
  // (16 FLOP a pair, 8 B a token).
  const ProfileGrid::Time past = grid_of(profile, OperationId::prefill_attention).at(4, 64);
  EXPECT_NEAR(past.seconds, 8.0 * 266 / 138, kRounding);
  EXPECT_TRUE(past.extrapolated);
}

TEST(ProfileGrid, IsNeverFasterThanTheShortestCellBelowTheGrid) {
  const ProfileGrid grid({{cell({8}, 3), cell({16}, 5)}}, product);
  EXPECT_EQ(grid.at(1).seconds, 3);
  EXPECT_TRUE(grid.at(1).extrapolated);
}

TEST(ProfileGrid, IsNeverFasterThanLight) {
  Profile profile = tiny_profile();
  profile.device.peak = FlopsPerSecond(100);
  // 2 x 32 x 16 = 1,024 FLOP take 10.24 s, not the 8 s of the cell; 256 FLOP 2.56, not 2.
  const ProfileGrid grid = grid_of(profile, OperationId::gemm);
  EXPECT_NEAR(grid.at(16).seconds, 10.24, kRounding);
  EXPECT_NEAR(grid.at(4).seconds, 2.56, kRounding);
}

TEST(ProfileGrid, IgnoresTheMemorysLimitForHotCaches) {
  Profile profile = tiny_profile();
  profile.device.memory_bandwidth = BytesPerSecond(1);
  EXPECT_NEAR(grid_of(profile, OperationId::gemm).at(1).seconds, 64, kRounding);  // 32 x 2 B
  profile.tables[0].cache = CacheState::hot;
  EXPECT_NEAR(grid_of(profile, OperationId::gemm).at(1).seconds, 1, kRounding);
}

TEST(ProfileGrid, TakesTheMiddleOfTimesThatFallWithinNoise) {
  const ProfileGrid grid({{cell({1}, 2), cell({2}, 1.5), cell({4}, 3)}}, product);
  EXPECT_NEAR(grid.at(1).seconds, std::sqrt(2 * 1.5), kRounding);
  EXPECT_NEAR(grid.at(2).seconds, std::sqrt(2 * 1.5), kRounding);
  EXPECT_NEAR(grid.at(4).seconds, 3, kRounding);
}

TEST(ProfileGrid, FillsAGapFromItsRowThenItsColumnThenTheLimit) {
  // Row 1 lacks 8, row 2 lacks 8 and 32, row 4 lacks 32.
  const ProfileGrid grid(
      {{cell({1, 0}, 1), cell({1, 32}, 5), cell({2, 0}, 2), cell({4, 0}, 4), cell({4, 8}, 8)}},
      product);
  EXPECT_NEAR(grid.at(1, 8).seconds, 2, kRounding);  // 1 + 8/32 x 4
  EXPECT_FALSE(grid.at(1, 8).extrapolated);
  EXPECT_NEAR(grid.at(2, 8).seconds, 4, kRounding);  // between 2 and 8
  EXPECT_FALSE(grid.at(2, 8).extrapolated);
  EXPECT_NEAR(grid.at(4, 32).seconds, 8.0 * 33 / 9, kRounding);
  EXPECT_TRUE(grid.at(4, 32).extrapolated);
  EXPECT_TRUE(grid.at(4, 20).extrapolated);
  // Row 2 holds what is attained at 8: 4 x 33/9.
  EXPECT_NEAR(grid.at(2, 32).seconds, 4.0 * 33 / 9, kRounding);
}

TEST(ProfileGrid, NeverFallsAsASizeGrows) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(0.6, 1.6);
  std::bernoulli_distribution measured(0.7);
  for (int round = 0; round < 20; ++round) {
    std::vector<ProfileCell> cells{cell({1, 0}, 1)};
    for (std::int64_t x = 1; x <= 64; x *= 2) {
      for (std::int64_t y = 0; y <= 64; y = y == 0 ? 4 : 2 * y) {
        if (measured(random) && x + y > 1) {
          cells.push_back(cell({x, y}, static_cast<double>(x * (4 + y)) * noise(random)));
        }
      }
    }
    const ProfileGrid grid(cells, product);
    for (double x = 0.5; x < 200; x *= 1.3) {
      double before = 0;
      for (double y = 0; y < 100; y += 3) {
        const double here = grid.at(x, y).seconds;
        EXPECT_GE(here * (1 + 1e-12), before) << x << ", " << y;
        EXPECT_GE(grid.at(x * 1.1, y).seconds * (1 + 1e-12), here) << x << ", " << y;
        before = here;
      }
    }
  }
}

}  // namespace
}  // namespace kvtier
