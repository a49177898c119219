#pragma once

#include <cstdint>
#include <vector>

#include "sim/backend/backend.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/units.hpp"
#include "sim/policy/ids.hpp"

namespace kvtier {

/// Place of a move among those of its store. The completion of its transfer carries it.
struct MoveId {
  std::uint32_t value = UINT32_MAX;
  friend constexpr bool operator==(MoveId, MoveId) = default;
  [[nodiscard]] constexpr bool valid() const { return value != UINT32_MAX; }
};

/// The end of an edge that is no tier: HBM of requests that run, with its write buffer.
inline constexpr std::uint8_t kGpu = UINT8_MAX;

enum class MoveState : std::uint8_t {
  over,       // its id is free
  planned,    // has asked for no room yet
  waiting,    // for room
  in_flight,  // has its room
  cancelled,  // its result is of no use; the backend still moves its bytes
  arrived,    // a fetch that is done, until its entry is used or leaves
};

/// One transfer of an entry along an edge. A done or cancelled move ends once no completion of it
/// can come.
struct alignas(64) Move {
  EntryId entry = kNoEntry;
  /// Tiers, the fastest first, or kGpu.
  std::uint8_t from = kGpu;
  std::uint8_t to = kGpu;
  MoveState state = MoveState::over;
  /// The copy that it reads stays until it is done: pinned, or leaving with it.
  bool holds_source = false;
  /// Valid from the transfer's start to its completion. The bytes of a save move while it waits.
  TransferId transfer;
  /// Tokens of the entry that are in `to` once it is done; of a save whose turn runs, those that
  /// the backend was given.
  Tokens tokens;
  /// Bytes that the backend moves. A save whose turn has ended takes so much of the write buffer.
  Bytes bytes;
  /// Room that was promised to it while it waits in line.
  Bytes room;
  /// Of a save: the first token that it moves. `to` held those before.
  Tokens first;
  /// A fetch's transfer began and ended.
  SimTime began;
  SimTime ended;
};
static_assert(sizeof(Move) == 64);

/// A store's moves. References to them hold until another one begins.
class Moves {
 public:
  [[nodiscard]] Move& operator[](MoveId id) { return moves_[id.value]; }
  [[nodiscard]] const Move& operator[](MoveId id) const { return moves_[id.value]; }
  [[nodiscard]] MoveId begin(EntryId entry, std::uint8_t from, std::uint8_t to) {
    if (!free_.valid()) [[unlikely]] {
      add();
    }
    const MoveId id = free_;
    Move& move = (*this)[id];
    free_.value = move.entry.value;
    move.entry = entry;
    move.from = from;
    move.to = to;
    move.state = MoveState::planned;
    move.holds_source = false;
    move.tokens = Tokens(0);
    move.bytes = Bytes(0);
    return id;
  }
  void end(MoveId id) {
    Move& move = (*this)[id];
    KVTIER_ASSERT(move.state != MoveState::over && !move.transfer.valid(),
                  "a move ends once, and not while its bytes move");
    move.state = MoveState::over;
    move.entry.value = free_.value;
    free_ = id;
  }
  /// The move's transfer is complete. Throws if no move waits for that.
  [[nodiscard]] Move& complete(MoveId id) {
    KVTIER_ASSERT(id.value < moves_.size() && (*this)[id].transfer.valid(),
                  "a transfer completes that was started");
    Move& move = (*this)[id];
    move.transfer = TransferId{};
    return move;
  }
  /// Visits those that are not over.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::uint32_t i = 0; i < moves_.size(); ++i) {
      if (moves_[i].state != MoveState::over) {
        visit(MoveId{i}, moves_[i]);
      }
    }
  }

 private:
  [[gnu::noinline]] void add() {
    free_.value = static_cast<std::uint32_t>(moves_.size());
    moves_.emplace_back();
  }

  std::vector<Move> moves_;
  /// The one that ended last; its entry is the number of the one that ended before it.
  MoveId free_;
};

}  // namespace kvtier
