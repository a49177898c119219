#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "sim/core/units.hpp"
#include "sim/policy/ids.hpp"

/// The views of policies. The engine fills a view according to the policy's knowledge.
namespace kvtier {

/// One entry as a tier holds it.
struct EntryView {
  EntryId id;
  EntryKey key;
  /// A small number to break ties, unique among the entries that a store holds. An entry that comes
  /// back from its turn may have a different number.
  std::uint32_t place = 0;
  /// Tokens whose KV the tier holds; they follow the first `depth` tokens of the context.
  Tokens tokens;
  Tokens depth{0};
  /// Bytes that the tier's account charges for it (the reservation), not the bytes that move.
  Bytes bytes;
  /// When the entry came into the store. Kept while any tier holds it or a turn uses it, and
  /// forgotten when the last copy is evicted.
  SimTime first_inserted;
  /// When the first turn of the entry's session was admitted. Evictions do not change it.
  SimTime session_began;
  SimTime last_used;
  /// Position of the first request for this entry; kNotQueued for policies without look-ahead
  /// knowledge.
  QueuePosition queue_position = kNotQueued;
  /// Next use, kNever if there is none; for policies with oracle knowledge. Set for a newcomer and
  /// in checks; otherwise on_next_use tells it.
  SimTime next_use = kNever;
};

/// A request for an entry began to wait at `position`, or left the queue.
struct QueueChange {
  QueuePosition position;
  bool waits = false;
  /// Position of the entry's first request now. An entry shared by several sessions may have more
  /// than one.
  QueuePosition first = kNotQueued;
};

/// Why a tier needs room.
enum class Demand {
  save,        // a finished turn's KV
  prefetch,    // an entry whose request waits, fetched ahead of time
  demotion,    // a victim of the tier above
  background,  // the free buffer has to be restored
};

/// A tier's request for room. The set of victims has the number of bytes (victims.hpp).
struct RoomRequest {
  SimTime now;
  Demand demand = Demand::save;
  /// Position of the request that the room is for. kNotQueued if none waits or the policy has no
  /// look-ahead knowledge.
  QueuePosition incoming = kNotQueued;
  /// First position of the queue, and the end of the order policy's window at its head. kNotQueued
  /// for policies without look-ahead knowledge.
  QueuePosition queue_first = kNotQueued;
  QueuePosition window_end = kNotQueued;
  /// The entry that the room is for. Only set for policies with oracle knowledge; null if room is
  /// made ahead of time.
  const EntryView* newcomer = nullptr;
};

/// Place of a waiting request's stored KV, by how soon the request could run. KV that is no longer
/// stored is computed and does not count.
enum class Placement : std::uint8_t {
  fastest,  // all in the fastest tier
  none,     // nothing is stored, so there is nothing to wait for
  slower,   // some of it has to be brought from a slower tier
};

/// Tokens of a prompt that are stored.
struct FoundTokens {
  /// In the fastest tier.
  Tokens nearest;
  Tokens total;
};

/// The waiting requests in order of arrival. Positions run from first() to end(). Each position but
/// the first may be empty, because its request left out of turn.
class QueueView {
 public:
  virtual ~QueueView() = default;
  [[nodiscard]] QueuePosition first() const { return first_; }
  [[nodiscard]] QueuePosition end() const { return end_; }
  /// The stored entry that the request at `position` needs; kNoEntry if it needs none or the
  /// position is empty.
  [[nodiscard]] virtual EntryId entry_at(QueuePosition position) const = 0;
  [[nodiscard]] virtual bool waiting_at(QueuePosition position) const = 0;
  /// Placement of the request that waits at `position`.
  [[nodiscard]] virtual Placement placement_at(QueuePosition position) const = 0;
  /// Stored tokens of the prompt that waits at `position`, in a system of blocks. Zero in other
  /// systems.
  [[nodiscard]] virtual FoundTokens find(QueuePosition) const { return {}; }
  /// Common prefix of two waiting prompts, in a system of blocks. Zero in other systems.
  [[nodiscard]] virtual Tokens common_prefix(QueuePosition, QueuePosition) const {
    return Tokens(0);
  }
  /// The priority of the request that waits at `position`: the smaller, the more urgent.
  [[nodiscard]] virtual std::int64_t priority_at(QueuePosition /*position*/) const { return 0; }
  /// End of the order policy's window. Requests before it run before all requests behind it.
  [[nodiscard]] virtual QueuePosition window_end() const = 0;

 protected:
  QueuePosition first_{0};
  QueuePosition end_{0};
};

/// The running requests, as the scheduler knows them.
class RunningView {
 public:
  virtual ~RunningView() = default;
  /// Time per output token of the running requests so far. Before their first tokens, that of the
  /// last decode; nullopt before the first decode.
  [[nodiscard]] virtual std::optional<SimDuration> tpot() const = 0;
  /// Visits each running request: the time of its first token, and its predicted output tokens.
  virtual void for_each_running(
      const std::function<void(SimTime first_token, Tokens predicted)>& visit) const = 0;
};

/// A tier's entries, for check_invariants.
class TierView {
 public:
  virtual ~TierView() = default;
  /// `offered`: the entry may leave now. Only then the policy knows its current size and times.
  virtual void for_each_resident(
      const std::function<void(const EntryView&, bool offered)>& visit) const = 0;
};

}  // namespace kvtier
