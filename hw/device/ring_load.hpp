#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "hw/device/storage.hpp"

/// Loads KV from a drive to HBM through a ring of buffers in host memory. Parts are copied to HBM
/// while later parts are read.
namespace kvtier {

/// Buffers of a ring, and their least size in total.
inline constexpr std::size_t kRingParts = 8;
inline constexpr std::int64_t kRingBytes = std::int64_t{2} << 20;
/// Requests that a move has in flight.
inline constexpr std::int64_t kMoveDepth = 16;

/// The requests of a move, in parts that complete one by one. No other move uses its engine
/// meanwhile.
class PartRequests {
 public:
  /// The engine's queue is empty and holds at least kMoveDepth requests.
  PartRequests(StorageEngine& engine, std::size_t parts);

  [[nodiscard]] bool has_room() const { return engine_.in_flight() < kMoveDepth; }
  /// Waits only if the queue is full.
  void submit(IoRequest request, std::size_t part);
  void wait_for(std::size_t part);

 private:
  void wait();

  StorageEngine& engine_;
  std::vector<std::int64_t> requests_;  // in flight, by part
};

struct RingLoad {
  std::size_t parts = 0;
  /// Submits the requests that read a part into buffer part % kRingParts.
  std::function<void(std::size_t part, PartRequests& requests)> read;
  /// Queues the copies of a part that has been read.
  std::function<void(std::size_t part)> copy;
  /// Waits for all copies that were queued.
  std::function<void()> synchronize;
};

/// The last copies may be in flight when it returns.
void load_through_ring(StorageEngine& engine, const RingLoad& load);

}  // namespace kvtier
