#include "sim/store/blocks/repeated_sum.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

double added_one_by_one(double value, double step, double limit, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    value = std::min(value + step, limit);
  }
  return value;
}

double subtracted_one_by_one(double value, double step, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    value = std::max(value - step, 0.0);
  }
  return value;
}

TEST(RepeatedSum, IsThatOfSingleSteps) {
  RandomStream random(1, "repeated sums");
  const auto below = [&](std::size_t most) { return static_cast<double>(random.index(most)); };
  for (int i = 0; i < 4000; ++i) {
    const double limit = 1 + below(std::size_t{1} << (1 + random.index(20)));
    const double start = random.index(4) == 0 ? 0.0 : limit * below(1000) / 999;
    const double step = random.index(3) == 0   ? 1.0
                        : random.index(2) == 0 ? 1 + below(1000) / 1024
                                               : (1 + below(5000)) / (1 + below(70));
    const auto count = static_cast<std::int64_t>(random.index(20000));
    EXPECT_EQ(add_repeatedly(start, step, limit, count),
              added_one_by_one(start, step, limit, count))
        << start << " + " << count << " x " << step;
    EXPECT_EQ(subtract_repeatedly(start, step, count), subtracted_one_by_one(start, step, count))
        << start << " - " << count << " x " << step;
  }
}

TEST(RepeatedSum, RoundsTiesAsSingleStepsDo) {
  // 1 + 2^-53 x (2 i + 1) lies between two neighbours above 1.
  const double half = std::ldexp(1.0, -53);
  for (const double step : {half, 3 * half, 5 * half, half * (1 + std::ldexp(1.0, -40))}) {
    EXPECT_EQ(add_repeatedly(1.25, step, 2, 1000), added_one_by_one(1.25, step, 2, 1000));
    EXPECT_EQ(subtract_repeatedly(1.25, step, 1000), subtracted_one_by_one(1.25, step, 1000));
  }
}

}  // namespace
}  // namespace kvtier
