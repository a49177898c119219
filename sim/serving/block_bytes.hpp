#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "sim/backend/backend.hpp"
#include "sim/core/streams.hpp"
#include "sim/store/decisions.hpp"
#include "sim/store/rules.hpp"

namespace kvtier {

/// The tokens of blocks, each of `size` tokens, as a piece. Its key is the number of the stream
/// that no other stream of the run has.
[[nodiscard]] inline KvPiece piece_of(const Streams& streams, const Stretch& blocks, Tokens size) {
  return {.key = {streams.birth(blocks.stream)},
          .first = size * blocks.begin,
          .count = size * (blocks.end - blocks.begin)};
}
[[nodiscard]] std::vector<KvPiece> pieces_of(const Streams& streams,
                                             const std::vector<Stretch>& blocks, Tokens size);
/// Tokens [first, end) of a context as pieces of the streams of its blocks. A block belongs to the
/// stream of its last token.
[[nodiscard]] std::vector<KvPiece> pieces_of(const Streams& streams, StreamId stream, Tokens first,
                                             Tokens end, Tokens size);

/// Tells a backend with bytes which blocks come into the pools of a store, and which leave.
class BlockBytes final : public BlockLog {
 public:
  /// All arguments outlive this. `next` is told of all decisions, too; null if there is none.
  BlockBytes(StoreRules rules, const Streams& streams, Backend& backend, BlockLog* next)
      : rules_(std::move(rules)), streams_(streams), backend_(backend), next_(next) {}

  /// The request for which the store decides from here on. If it is being admitted, it reads what
  /// moves up, when its load begins.
  void set_request(EntryKey request, bool is_admitted = false) {
    request_ = request;
    reads_what_moves_up_ = is_admitted;
  }

  void on_decision(DecisionKind kind, std::size_t pool, const Stretch& blocks) override;
  void on_shift(std::size_t pool, StreamId stream, std::int64_t from, std::int64_t by) override {
    if (next_ != nullptr) {
      next_->on_shift(pool, stream, from, by);
    }
  }
  /// The loads of what has moved up have begun.
  void end_moves_up();

 private:
  void add(DecisionKind kind, std::size_t pool, const Stretch& blocks);

  StoreRules rules_;
  const Streams& streams_;
  Backend& backend_;
  BlockLog* next_;
  std::optional<EntryKey> request_;
  bool reads_what_moves_up_ = false;
  /// Blocks of the second pool that have moved up, and that loads read there.
  std::vector<KvPiece> moving_up_;
};

}  // namespace kvtier
