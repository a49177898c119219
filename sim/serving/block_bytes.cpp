#include "sim/serving/block_bytes.hpp"

#include <algorithm>

#include "sim/serving/store_rules.hpp"

namespace kvtier {

std::vector<KvPiece> pieces_of(const Streams& streams, const std::vector<Stretch>& blocks,
                               Tokens size) {
  std::vector<KvPiece> pieces;
  for (const Stretch& stretch : blocks) {
    pieces.push_back(piece_of(streams, stretch, size));
  }
  return pieces;
}

std::vector<KvPiece> pieces_of(const Streams& streams, StreamId stream, Tokens first, Tokens end,
                               Tokens size) {
  std::vector<Stretch> path;
  streams.path(stream, (end.value + size.value - 1) / size.value, size.value, path);
  std::vector<KvPiece> pieces;
  for (const Stretch& stretch : path) {
    KvPiece piece = piece_of(streams, stretch, size);
    const Tokens piece_end = std::min(piece.first + piece.count, end);
    piece.first = std::max(piece.first, first);
    piece.count = piece_end - piece.first;
    if (piece.count.value > 0) {
      pieces.push_back(piece);
    }
  }
  return pieces;
}

void BlockBytes::on_decision(DecisionKind kind, std::size_t pool, const Stretch& blocks) {
  if (next_ != nullptr) {
    next_->on_decision(kind, pool, blocks);
  }
  switch (kind) {
    case DecisionKind::move_up:
      if (pool == 1 && reads_what_moves_up_ && has_victims_behind(rules_)) {
        moving_up_.push_back(piece_of(streams_, blocks, rules_.pools[1].block));
        break;
      }
      [[fallthrough]];
    case DecisionKind::evict:
    case DecisionKind::demote:
    case DecisionKind::expire:
    case DecisionKind::invalidate: {
      const PoolRules& rules = rules_.pools[pool];
      backend_.remove_blocks(medium_of(rules.name), piece_of(streams_, blocks, rules.block));
      break;
    }
    case DecisionKind::insert:
    case DecisionKind::prefetch:
    case DecisionKind::promote:
      add(kind, pool, blocks);
      break;
    case DecisionKind::drop_save:
    case DecisionKind::skip:
    case DecisionKind::shift:  // Backend::cut
      break;
  }
}

void BlockBytes::end_moves_up() {
  for (const KvPiece& piece : moving_up_) {
    backend_.remove_blocks(medium_of(rules_.pools[1].name), piece);
  }
  moving_up_.clear();
}

void BlockBytes::add(DecisionKind kind, std::size_t pool, const Stretch& blocks) {
  const PoolRules& to = rules_.pools[pool];
  const KvPiece piece = piece_of(streams_, blocks, to.block);
  if (pool == 0) {
    backend_.add_blocks({.to = medium_of(to.name), .blocks = piece, .request = request_});
    return;
  }
  // Blocks are written from the pool before, and come up from the one behind.
  const PoolRules& from = rules_.pools[kind == DecisionKind::insert ? pool - 1 : pool + 1];
  const std::vector<KvPiece> source =
      pieces_of(streams_, blocks.stream, piece.first, piece.first + piece.count, from.block);
  backend_.add_blocks({.to = medium_of(to.name),
                       .blocks = piece,
                       .request = request_,
                       .from = medium_of(from.name),
                       .source = source});
}

}  // namespace kvtier
