#pragma once

#include <cstdint>

#include "sim/backend/backend.hpp"
#include "sim/serving/block_hits.hpp"
#include "sim/store/sessions/pool.hpp"
#include "sim/store/sessions/stored_kv.hpp"

namespace kvtier {

class Store;

/// Marks in the cookies of transfers: whose they are. The batcher knows its own.
inline constexpr std::uint64_t kOwnTransfer = std::uint64_t{1} << 56;
inline constexpr std::uint64_t kTierTransfer = std::uint64_t{2} << 56;
inline constexpr std::uint64_t kOwnerMask = std::uint64_t{0xff} << 56;

/// Payloads of the batcher's timers; others are the users'.
inline constexpr std::uint64_t kBatcherTimer = UINT64_MAX - 1;
inline constexpr std::uint64_t kDeadlineTimer = UINT64_MAX - 2;

/// Admits waiting requests, says what the GPUs run, and keeps the stored KV. After each request
/// that begins to wait and each completion it gives the GPUs work if they have none.
class Batcher {
 public:
  virtual ~Batcher() = default;

  /// A turn arrives, its history cut as its record says.
  virtual void on_turn(SessionSlot slot) = 0;
  /// And now waits.
  virtual void on_enqueued(SessionSlot slot, QueuePosition position) = 0;
  /// Work of the GPUs or a transfer is done, or it is time for what a timer was set for.
  virtual void on_completion(Completion completion) = 0;

  [[nodiscard]] virtual std::size_t tier_count() const = 0;
  [[nodiscard]] virtual Medium medium(std::size_t tier) const = 0;
  [[nodiscard]] virtual TierCounters counters(std::size_t tier) const = 0;
  /// HBM, with the accounts of all that is in it.
  [[nodiscard]] virtual const Pool& hbm() const = 0;
  /// KV that is in HBM and in no account: what an ended turn has saved already stays until all of
  /// it is saved, and a device that loads layers ahead has room for all layers.
  [[nodiscard]] virtual Bytes beyond_accounts() const { return Bytes(0); }
  /// Entries of which some tier holds something.
  [[nodiscard]] virtual std::size_t stored_entries() const = 0;
  /// Loaded into HBM for turns, from the medium, over the whole run.
  [[nodiscard]] virtual Bytes loaded_bytes(Medium medium) const = 0;
  [[nodiscard]] virtual PrefetchCounters prefetches() const = 0;
  /// Admitted requests that had to wait again.
  [[nodiscard]] virtual std::int64_t preemptions() const = 0;
  /// Over the whole run, by look-up, those of preempted requests included; null if the system has
  /// no blocks that requests share.
  [[nodiscard]] virtual const BlockHits* block_hits() const { return nullptr; }
  // For requests that another instance prefills or goes on with (Requests::fetches_kv, keeps_kv).

  /// KV that the request waited for has arrived.
  virtual void on_arrived(SessionSlot) {}
  /// KV of a request that has ended need not be kept any more; by its number.
  virtual void let_go_kept(std::uint32_t /*request*/) {}
  /// Requests wait beside the queue, some of them for KV that is still being written to a tier.
  [[nodiscard]] virtual bool waits_for_copies() const { return false; }
  /// Another instance has written KV to a shared tier: these requests look again.
  virtual void ask_again() {}
  /// For systems of blocks.
  [[nodiscard]] virtual Store* block_store() { return nullptr; }
  /// Throws InvariantError if the books of the stored KV do not agree.
  virtual void check_invariants() const = 0;
};

}  // namespace kvtier
