#pragma once

#include <map>
#include <memory>

#include "sim/device/kv_store.hpp"
#include "sim/engine/backend.hpp"

namespace kvtier {

/// Some layers of a move; none where a transfer is extended by nothing.
struct MoveLayers {
  std::shared_ptr<KvMove> move;
  std::int64_t first = 0;
  std::int64_t last = 0;
  /// No layer of the move comes later.
  [[nodiscard]] bool ends(std::int64_t layers) const { return first < last && last == layers; }
};

/// Says which tokens and layers the bytes of a transfer are. What goes to HBM goes layer by layer,
/// from the first on, and may come in two transfers (pre-loading); the rest goes token by token. A
/// tier's last block may be full of nothing: that is not moved. The token that a turn ends with is
/// never an input, and so has no KV of its own: it is given a copy of the one before. Transfers
/// with pieces move whole tokens at once.
class TransferMoves {
 public:
  TransferMoves(KvStore& store, Device& device, std::int64_t layers)
      : store_(store), stream_(device.make_stream()), layers_(layers) {}

  /// The next `bytes` of a transfer, room taken. Throws InvariantError if the entry does not have
  /// them.
  [[nodiscard]] MoveLayers next(const TransferCommand& command, Bytes bytes, bool more_follows);
  /// The entry has this many tokens in HBM, the one that its turn ended with among them.
  void complete(EntryKey key, std::int64_t tokens);
  /// The turn that the entry was loaded for computes.
  void end_load(EntryKey key) { loads_.erase(key); }

 private:
  [[nodiscard]] MoveLayers to_hbm(const TransferCommand& command, Bytes bytes, bool more_follows);

  [[nodiscard]] std::shared_ptr<KvMove> begin(const TransferCommand& command, std::int64_t first,
                                              std::int64_t count);

  struct Load {
    std::shared_ptr<KvMove> move;
    std::int64_t layers = 0;
  };

  KvStore& store_;
  std::unique_ptr<Stream> stream_;
  std::int64_t layers_;
  std::map<EntryKey, Load> loads_;
};

}  // namespace kvtier
