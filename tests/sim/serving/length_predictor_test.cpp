#include "sim/serving/length_predictor.hpp"

#include <cmath>

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(LengthPredictor, PredictsExactlyOrAConstant) {
  const LengthPredictor exact({.kind = LengthPrediction::exact}, 1);
  EXPECT_EQ(exact.predict(3, 1, Tokens(321)), Tokens(321));
  const LengthPredictor constant({.kind = LengthPrediction::constant, .tokens = Tokens(100)}, 1);
  EXPECT_EQ(constant.predict(3, 1, Tokens(321)), Tokens(100));
}

TEST(LengthPredictor, NoiseDependsOnlyOnTheTurnAndTheSeed) {
  const LengthPredictor noise({.kind = LengthPrediction::noise, .sigma = 0.5}, 1);
  const Tokens first = noise.predict(3, 1, Tokens(1'000));
  static_cast<void>(noise.predict(4, 0, Tokens(1'000)));
  EXPECT_EQ(noise.predict(3, 1, Tokens(1'000)), first);
  EXPECT_NE(noise.predict(3, 2, Tokens(1'000)), first);
  EXPECT_NE(noise.predict(4, 1, Tokens(1'000)), first);
  const LengthPredictor other({.kind = LengthPrediction::noise, .sigma = 0.5}, 2);
  EXPECT_NE(other.predict(3, 1, Tokens(1'000)), first);
}

/// The logarithm of the factor has mean 0 and the given deviation: over 4,000 draws of sigma 0.5
/// within 5 standard errors, 0.5 / sqrt(4000) = 0.008 and 0.5 / sqrt(8000) = 0.006.
TEST(LengthPredictor, NoiseHasTheDeviationItIsGiven) {
  const LengthPredictor noise({.kind = LengthPrediction::noise, .sigma = 0.5}, 1);
  constexpr int kDraws = 4'000;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double logarithm =
        std::log(static_cast<double>(noise.predict(i / 4, i % 4, Tokens(1'000'000)).value) / 1e6);
    sum += logarithm;
    squares += logarithm * logarithm;
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.04);
  EXPECT_NEAR(std::sqrt(squares / kDraws), 0.5, 0.03);
}

TEST(LengthPredictor, PredictsAtLeastOneToken) {
  const LengthPredictor noise({.kind = LengthPrediction::noise, .sigma = 10}, 1);
  for (int session = 0; session < 100; ++session) {
    EXPECT_GE(noise.predict(session, 0, Tokens(1)), Tokens(1));
    EXPECT_LE(noise.predict(session, 0, Tokens(1'000'000)), Tokens(1'000'000'000));
  }
}

}  // namespace
}  // namespace kvtier
