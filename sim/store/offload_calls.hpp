#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/store/store.hpp"

namespace kvtier {

/// State of one block in the pool behind the first one.
enum class BlockState : std::uint8_t { absent, written, ready };

/// Accounts of an offload's pool, in blocks.
struct OffloadFacts {
  std::int64_t free = 0;
  /// Blocks that are complete, and that no call holds.
  std::int64_t evictable = 0;
  /// For arc: T1, T2, B1 and B2, oldest first, and the wanted size of T1.
  std::array<std::vector<Stretch>, 4> lists{};
  double target = 0;
};

/// The calls of an offload with any of its blocks, without requests in the first pool: an engine's
/// own tests make them. Stores run requests through the same code. A block's number is its place in
/// the context of each request that names it.
class OffloadCalls {
 public:
  struct Offer {
    /// False: too few others may leave, and nothing was written or evicted.
    bool fits = true;
    /// Blocks that are being written, and those that left for them in order.
    std::vector<Stretch> written{};
    std::vector<Stretch> evicted{};
  };

  virtual ~OffloadCalls() = default;
  /// A request that holds nothing; Store::end ends it, and counts its uses along this stream.
  [[nodiscard]] virtual RequestId begin(StreamId stream) = 0;
  /// Store::offer of these blocks. If some are written it is a copy (Store::take_copies).
  virtual Offer offer(RequestId request, const std::vector<Stretch>& blocks) = 0;
  /// The request loads blocks, which are ready.
  virtual void begin_load(RequestId request, const std::vector<Stretch>& blocks) = 0;
  virtual void end_load(const std::vector<Stretch>& blocks) = 0;
  /// Sets arc's wanted size of T1.
  virtual void set_target(double target) = 0;

  [[nodiscard]] virtual BlockState state(StreamId stream, std::int64_t block) const = 0;
  /// How often a block was offered, as far as EdgeRules::uses counts it.
  [[nodiscard]] virtual std::int64_t offers(StreamId stream, std::int64_t block) const = 0;
  [[nodiscard]] virtual OffloadFacts facts() const = 0;
};

}  // namespace kvtier
