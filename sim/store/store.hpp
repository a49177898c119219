#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/streams.hpp"
#include "sim/store/rules.hpp"

namespace kvtier {

/// The longest usable prefix of a context.
struct Match {
  Tokens tokens;
  /// Of those, how many the fastest pool that has them is this one.
  std::vector<Tokens> by_pool;
};

struct PoolCounters {
  /// Blocks that came in, from a request, from above or from below.
  std::int64_t inserted = 0;
  /// Blocks with a key that left to make room.
  std::int64_t evicted = 0;
  /// Of those, blocks that the next pool took.
  std::int64_t demoted = 0;
  /// Blocks that were not written because there was no room (NoRoom::skip).
  std::int64_t skipped = 0;

  friend bool operator==(const PoolCounters&, const PoolCounters&) = default;
};

struct FreeBlocks {
  std::int64_t available = 0;
  std::int64_t empty = 0;
};

/// Dense number of a request that holds KV in the first pool.
struct RequestId {
  std::uint32_t value = UINT32_MAX;
};

/// Keeps KV of contexts in pools, and finds it. Whole blocks have keys: the block's place in its
/// stream. Moves take no time.
class Store {
 public:
  virtual ~Store() = default;
  /// Time goes on; it begins at 0. What has not been used for its pool's time to live leaves.
  virtual void advance(SimTime now) = 0;
  [[nodiscard]] virtual Match match(const Context& prompt) const = 0;
  /// Looks the prompt up and counts the use where look-ups do. With StoreRules::requests_in_first
  /// it holds what it found and takes memory for the rest of the first `room` tokens, if there is
  /// enough for the first `needed` ones, which are no fewer. Without room it returns nullopt, and
  /// nothing has changed but `match`.
  virtual std::optional<RequestId> acquire(const Context& prompt, Tokens room, Tokens needed,
                                           Match& match) = 0;
  std::optional<RequestId> acquire(const Context& prompt, Tokens room, Match& match) {
    return acquire(prompt, room, room, match);
  }
  /// The request's context becomes longer; it may go on in a stream that forks from the former one
  /// at its end. False, and nothing happens, if there is no room.
  [[nodiscard]] virtual bool grow(RequestId request, const Context& context) = 0;
  /// KV of the context's first tokens exists, which are no fewer than before, nor than were found.
  /// Publication::computed publishes it.
  virtual void computed(RequestId request, Tokens tokens) = 0;
  /// The request has ended. KV of its context exists, and it holds it no more.
  virtual void release(RequestId request) = 0;
  /// Blocks of the first pool that requests may take, and of those the ones that hold nothing.
  [[nodiscard]] virtual FreeBlocks free_blocks() const = 0;

  /// KV of the stream's own tokens from there on leaves all pools, but for what requests hold or
  /// have written.
  virtual void truncate(StreamId stream, Tokens tokens) = 0;
  /// Whether a pool has KV of the stream, or remembers that it had. If not, and if no request names
  /// it, the stream may be closed.
  [[nodiscard]] virtual bool remembers(StreamId stream) const = 0;

  [[nodiscard]] virtual PoolCounters counters(std::size_t pool) const = 0;
  /// Blocks with a key that a pool holds.
  [[nodiscard]] virtual std::int64_t resident_blocks(std::size_t pool) const = 0;
  /// All that a pool holds, block by block in the order of eviction, blocks in use last and sorted:
  /// for tests.
  [[nodiscard]] virtual std::vector<Stretch> contents(std::size_t pool) const = 0;
  /// Throws InvariantError if accounts and contents do not agree.
  virtual void check_invariants() const = 0;
};

}  // namespace kvtier
