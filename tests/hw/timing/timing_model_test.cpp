#include "hw/timing/timing_model.hpp"

#include <vector>

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(PieceAt, IsTheLastPieceThatBeginsAtTheContextOrBefore) {
  const std::vector<DecodePiece> pieces{
      {Tokens(0), 100, 1}, {Tokens(10), 200, 0}, {Tokens(15), 7, 2}};
  EXPECT_EQ(&piece_at(pieces, Tokens(0)), &pieces[0]);
  EXPECT_EQ(&piece_at(pieces, Tokens(9)), &pieces[0]);
  EXPECT_EQ(&piece_at(pieces, Tokens(10)), &pieces[1]);
  EXPECT_EQ(&piece_at(pieces, Tokens(14)), &pieces[1]);
  EXPECT_EQ(&piece_at(pieces, Tokens(1000)), &pieces[2]);
}

}  // namespace
}  // namespace kvtier
