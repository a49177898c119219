#include "sim/device/transfer_moves.hpp"

#include "sim/core/assert.hpp"

namespace kvtier {

MoveLayers TransferMoves::next(const TransferCommand& command, Bytes bytes, bool more_follows) {
  if (command.to == Medium::hbm) {
    return to_hbm(command, bytes, more_follows);
  }
  const std::int64_t there = store_.tokens(command.to, command.key);
  const std::int64_t count = command.tokens.value - there;
  KVTIER_ASSERT(count > 0, "a transfer moves tokens");
  MoveLayers part{.move = nullptr, .first = 0, .last = layers_};
  if (command.from == Medium::hbm &&
      store_.tokens(Medium::hbm, command.key) + 1 == command.tokens.value) {
    store_.repeat_last(command.key, *stream_);
  }
  part.move =
      std::make_shared<KvMove>(store_.begin(command.from, command.to, command.key, there, count));
  return part;
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
  const std::int64_t layers = bytes / (tokens * row);
  KVTIER_ASSERT(layers * tokens * row == bytes, "whole layers are loaded");
  store_.keep(Medium::hbm, command.key, 0);
  auto move =
      std::make_shared<KvMove>(store_.begin(command.from, command.to, command.key, 0, tokens));
  if (more_follows) {
    loads_[command.key] = {.move = move, .layers = layers};
  }
  return {.move = std::move(move), .first = 0, .last = layers};
}

}  // namespace kvtier
