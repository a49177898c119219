#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "sim/backend/simulated_backend.hpp"

namespace kvtier {
namespace {

const std::vector<DecodePiece> kPieces{
    {.from = Tokens(0), .base = 1, .slope = 0, .extrapolated = true},
    {.from = Tokens(10), .base = 1, .slope = 0},
    {.from = Tokens(20), .base = 1, .slope = 0, .extrapolated = true}};

TEST(CountExtrapolated, CountsIterationsOutsideOfTheMeasuredRange) {
  // Contexts 4, 7, 10, 13, 16, 19, 22, 25: the first two and the last two.
  EXPECT_EQ(count_extrapolated(kPieces, 3, Tokens(4), 8), 4);
  EXPECT_EQ(count_extrapolated(kPieces, 3, Tokens(10), 4), 0);
  EXPECT_EQ(count_extrapolated(kPieces, 3, Tokens(30), 5), 5);
}

TEST(CountExtrapolated, EqualsLookingAtEachIteration) {
  for (std::int64_t batch = 1; batch < 8; ++batch) {
    for (std::int64_t context = 0; context < 30; ++context) {
      for (std::int64_t iterations = 0; iterations < 20; ++iterations) {
        std::int64_t expected = 0;
        for (std::int64_t i = 0; i < iterations; ++i) {
          expected += piece_at(kPieces, Tokens(context + i * batch)).extrapolated ? 1 : 0;
        }
        EXPECT_EQ(count_extrapolated(kPieces, batch, Tokens(context), iterations), expected)
            << batch << ", " << context << ", " << iterations;
      }
    }
  }
}

}  // namespace
}  // namespace kvtier
