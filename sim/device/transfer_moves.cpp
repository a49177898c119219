#include "sim/device/transfer_moves.hpp"

#include <algorithm>

#include "sim/core/assert.hpp"

namespace kvtier {

MoveLayers TransferMoves::next(const TransferCommand& command, Bytes bytes, bool more_follows) {
  if (!command.pieces.empty()) {
    return {.move = std::make_shared<KvMove>(
                store_.begin(command.from, command.to, command.pieces, command.key)),
            .first = 0,
            .last = layers_};
  }
  if (command.to == Medium::hbm) {
    return to_hbm(command, bytes, more_follows);
  }
  const std::int64_t there = store_.tokens(command.to, command.key);
  const std::int64_t count = command.tokens.value - there;
  KVTIER_ASSERT(count > 0, "a transfer moves tokens");
  MoveLayers part{.move = nullptr, .first = 0, .last = layers_};
  if (command.from == Medium::hbm) {
    complete(command.key, command.tokens.value);
  }
  part.move = begin(command, there, count);
  return part;
}

void TransferMoves::complete(EntryKey key, std::int64_t tokens) {
  if (store_.tokens(Medium::hbm, key) + 1 == tokens) {
    store_.repeat_last(key, *stream_);
  }
}

std::shared_ptr<KvMove> TransferMoves::begin(const TransferCommand& command, std::int64_t first,
                                             std::int64_t count) {
  const KvPiece piece{.key = command.key, .first = Tokens(first), .count = Tokens(count)};
  return std::make_shared<KvMove>(store_.begin(command.from, command.to, {&piece, 1}, command.key));
}

MoveLayers TransferMoves::to_hbm(const TransferCommand& command, Bytes bytes, bool more_follows) {
  const Bytes token = store_.token_bytes();
  const Bytes row = token / layers_;
  const auto begun = loads_.find(command.key);
  if (begun != loads_.end()) {
    const Load load = begun->second;
    loads_.erase(begun);
    const auto tokens = std::ssize(load.move->to_slots);
    KVTIER_ASSERT(bytes == (layers_ - load.layers) * tokens * row,
                  "what was pre-loaded and the rest are the entry");
    return {.move = load.move, .first = load.layers, .last = layers_};
  }
  const std::int64_t tokens = command.tokens.value;
  // What is fetched to a tier in HBM is whole blocks.
  const std::int64_t layers = std::min(layers_, bytes / (tokens * row));
  KVTIER_ASSERT(layers == layers_ || layers * tokens * row == bytes, "whole layers are loaded");
  store_.keep(Medium::hbm, command.key, 0);
  std::shared_ptr<KvMove> move = begin(command, 0, tokens);
  if (more_follows) {
    loads_[command.key] = {.move = move, .layers = layers};
  }
  return {.move = std::move(move), .first = 0, .last = layers};
}

}  // namespace kvtier
