#include "sim/store/sessions/move.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"

namespace kvtier::test {
namespace {

TEST(Moves, AnIdIsUsedAgainOnceItsMoveIsOver) {
  Moves moves;
  const MoveId first = moves.begin(EntryId{1}, 0, 1);
  const MoveId second = moves.begin(EntryId{2}, kGpu, 0);
  EXPECT_NE(first, second);
  moves.end(first);
  const MoveId third = moves.begin(EntryId{3}, 1, 0);
  EXPECT_EQ(third, first);
  EXPECT_EQ(moves[third].entry, EntryId{3});
  EXPECT_EQ(moves[third].state, MoveState::planned);
  EXPECT_FALSE(moves[third].holds_source);
  EXPECT_EQ(moves[second].entry, EntryId{2});
}

TEST(Moves, AreVisitedUntilTheyAreOver) {
  Moves moves;
  const MoveId first = moves.begin(EntryId{1}, 0, 1);
  static_cast<void>(moves.begin(EntryId{2}, 0, 1));
  moves.end(first);
  std::vector<EntryId> seen;
  moves.for_each([&](MoveId, const Move& move) { seen.push_back(move.entry); });
  EXPECT_EQ(seen, std::vector{EntryId{2}});
}

TEST(Moves, ACancelledMoveKeepsItsIdUntilItsTransferIsComplete) {
  Moves moves;
  const MoveId id = moves.begin(EntryId{1}, 0, 1);
  moves[id].transfer = TransferId{7};
  moves[id].state = MoveState::cancelled;
  EXPECT_THROW(moves.end(id), InvariantError);
  EXPECT_NE(moves.begin(EntryId{2}, 0, 1), id);
  EXPECT_EQ(moves.complete(id).state, MoveState::cancelled);
  moves.end(id);
  EXPECT_THROW(moves.end(id), InvariantError);
}

TEST(Moves, ATransferCompletesOnce) {
  Moves moves;
  EXPECT_THROW(static_cast<void>(moves.complete(MoveId{0})), InvariantError);
  const MoveId id = moves.begin(EntryId{1}, 0, 1);
  EXPECT_THROW(static_cast<void>(moves.complete(id)), InvariantError);
  moves[id].transfer = TransferId{7};
  static_cast<void>(moves.complete(id));
  EXPECT_THROW(static_cast<void>(moves.complete(id)), InvariantError);
}

}  // namespace
}  // namespace kvtier::test
