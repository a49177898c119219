#include "sim/core/statistics.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"

namespace kvtier::test {
namespace {

// Places 0.75, 1.5 and 2.25 of 1, 2, 4, 8.
TEST(Quantile, LiesBetweenNeighboursInProportion) {
  const std::vector<double> sorted{1, 2, 4, 8};
  EXPECT_DOUBLE_EQ(quantile(sorted, 0.25), 1.75);
  EXPECT_DOUBLE_EQ(quantile(sorted, 0.5), 3);
  EXPECT_DOUBLE_EQ(quantile(sorted, 0.75), 5);
  EXPECT_EQ(quantile(sorted, 0), 1);
  EXPECT_EQ(quantile(sorted, 1), 8);
  EXPECT_EQ(quantile(std::vector<double>{7}, 0.75), 7);
}

TEST(LowerQuantile, IsTheValueBelowThePlace) {
  const std::vector<double> sorted{1, 2, 4, 8};
  EXPECT_EQ(lower_quantile(sorted, 0.25), 1);
  EXPECT_EQ(lower_quantile(sorted, 0.5), 2);
  EXPECT_EQ(lower_quantile(sorted, 1), 8);
}

TEST(Quantile, NeedsValuesAndAShare) {
  EXPECT_THROW(static_cast<void>(quantile({}, 0.5)), InvariantError);
  EXPECT_THROW(static_cast<void>(quantile(std::vector<double>{1}, 1.1)), InvariantError);
}

TEST(Median, IsTheMeanOfTheTwoInTheMiddleOfAnEvenCount) {
  EXPECT_EQ(median({8, 1, 4, 2}), 3);
  EXPECT_EQ(median({4, 1, 8}), 4);
}

// Tables of Student's t, two-sided 95 %: 12.706, 4.303, 2.776, 2.228, 2.045 and, in the limit, the
// normal distribution's 1.960.
TEST(StudentT, IsThatOfTables) {
  EXPECT_NEAR(student_t(1), 12.706, 0.0005);
  EXPECT_NEAR(student_t(2), 4.303, 0.0005);
  EXPECT_NEAR(student_t(4), 2.776, 0.0005);
  EXPECT_NEAR(student_t(10), 2.228, 0.0005);
  EXPECT_NEAR(student_t(29), 2.045, 0.0005);
  EXPECT_NEAR(student_t(1000000), 1.960, 0.0005);
}

// 1, 2, 3, 6: mean 3; squares 4 + 1 + 0 + 9 = 14, over 3 x 4: the standard error is sqrt(7/6) =
// 1.0801, times 3.182 (3 degrees) 3.437.
TEST(MeanInterval, IsOfTheSpreadOfItsValues) {
  const MeanInterval interval = mean_interval({1, 2, 3, 6});
  EXPECT_DOUBLE_EQ(interval.mean, 3);
  EXPECT_NEAR(interval.half_width, 3.437, 0.001);
  EXPECT_FALSE(interval.excludes_zero());
}

// 2, 2.2: mean 2.1, standard error 0.1, times 12.706: 0.83 to 3.37.
TEST(MeanInterval, ExcludesZeroOnEitherSide) {
  EXPECT_TRUE(mean_interval({2, 2.2}).excludes_zero());
  EXPECT_TRUE(mean_interval({-2, -2.2}).excludes_zero());
  EXPECT_FALSE(mean_interval({2, -2.2}).excludes_zero());
  EXPECT_FALSE(mean_interval({0, 0}).excludes_zero());
  EXPECT_TRUE(mean_interval({1, 1}).excludes_zero());
}

}  // namespace
}  // namespace kvtier::test
