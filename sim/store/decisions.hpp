#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/backend/backend.hpp"
#include "sim/core/streams.hpp"
#include "sim/core/units.hpp"
#include "sim/policy/ids.hpp"
#include "sim/policy/views.hpp"

namespace kvtier {

enum class DecisionKind : std::uint8_t {
  insert,
  evict,
  demote,
  expire,
  invalidate,
  prefetch,
  drop_save,
  // Only of blocks.
  /// They come in because a request found them in a slower tier.
  promote,
  /// They leave because a faster tier takes them, and they may be in one of the two only.
  move_up,
  /// They do not come in: there is no room, or the tier does not admit them.
  skip,
  /// A history was cut here. Blocks behind take the places of so many, which have left.
  shift
};
[[nodiscard]] const char* to_string(DecisionKind kind);

/// One decision about one entry in one tier, for the decision log.
struct Decision {
  DecisionKind kind;
  Medium tier;
  EntryKey key;
  Tokens tokens;
  SimTime time;
  /// The reason for the room (evict, demote).
  Demand demand = Demand::save;
  QueuePosition position = kNotQueued;
};

/// One decision about neighbouring blocks of a stream in one tier.
struct BlockDecision {
  DecisionKind kind;
  Medium tier;
  /// Streams::birth of the stream, which no other stream of the run has.
  std::uint32_t stream = 0;
  /// The first one is the stream's token `begin`, counted from the start of the context.
  Tokens begin;
  Tokens tokens;
  std::int64_t blocks = 0;
  SimTime time;
};

/// Receives each decision of a store about blocks of its pools. Each copy of a block counts, where
/// a BlockListener receives a block once.
class BlockLog {
 public:
  virtual ~BlockLog() = default;
  /// `blocks` are numbered in blocks of the pool.
  virtual void on_decision(DecisionKind kind, std::size_t pool, const Stretch& blocks) = 0;
  /// The pool's blocks of the stream from this one on have numbers that are smaller by so much, and
  /// those with these numbers have left.
  virtual void on_shift(std::size_t /*pool*/, StreamId /*stream*/, std::int64_t /*from*/,
                        std::int64_t /*by*/) {}
};

/// Receives each decision at the time at which it is made.
class DecisionObserver {
 public:
  virtual ~DecisionObserver() = default;
  virtual void on_decision(const Decision& decision) = 0;
  /// The entry with this key was asked for.
  virtual void on_use(EntryKey key, SimTime now) = 0;
  virtual void on_block_decision(const BlockDecision&) {}
};

}  // namespace kvtier
