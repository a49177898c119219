#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/streams.hpp"
#include "sim/store/rules.hpp"

namespace kvtier {

/// The longest usable prefix of a context.
struct Match {
  Tokens tokens;
  /// The part of those whose fastest pool is this one. For nodes, acquire has only the tokens that
  /// the request uses: those in the first pool and those loaded from the second.
  std::vector<Tokens> by_pool;
  /// The part before the first block that is found behind the first pool.
  Tokens before_loads{};
  /// The request asks again later: an offload is still writing some of what was found there or,
  /// with StoreRules::loads_alone and if the pool is not shared, another request loads it. Or the
  /// next block is on its way to a pool, and in no other one (is_buffered).
  bool waits = false;
  /// The blocks that were found behind the second pool; empty if the store has no log.
  std::vector<Stretch> far{};
  /// If the second pool has what the first one evicts (has_victims_behind): the blocks that were
  /// found in each of the two; empty if the store has no log.
  std::array<std::vector<Stretch>, 2> by_place{};
  /// Set by acquire: some of what was found there is in a write that stalls and has not begun.
  bool reads_written = false;

  /// Nodes: of what is loaded from the second pool, so much was fetched from storage for it.
  void count_fetched(Tokens fetched) {
    if (fetched.value == 0) {
      return;
    }
    const Tokens moved = std::min(fetched, by_pool[1]);
    by_pool[1] -= moved;
    by_pool[2] += moved;
  }
};

/// Memory of the first pool that a request asks for.
struct Room {
  /// Tokens of its prompt whose KV it takes now, or the found ones if they are more.
  Tokens taken;
  /// There has to be enough for so many tokens of the prompt, which are no fewer.
  Tokens needed;
  /// Blocks that stay available besides, whichever of the two is looked at.
  std::int64_t watermark = 0;
  /// Blocks that others will take, which stay available besides what it takes now.
  std::int64_t reserved = 0;
  /// KV of the prompt arrives later from elsewhere: others find it from publish_loaded on. Only of
  /// blocks, with StoreRules::loads_alone.
  bool arrives = false;
  /// For a request that waits, whose KV comes before it runs: blocks that no request holds leave
  /// first, so that there are no more than PoolRules::idle with it. Its policy may refuse; without
  /// room they have left even so.
  bool comes_early = false;
};

/// A copy of blocks to a pool from the one before it that has begun.
struct Copy {
  std::uint32_t id = 0;
  std::int64_t blocks = 0;
  std::size_t pool = 1;
  /// The next iteration waits for it, and the store takes it for complete.
  bool waits = false;
  /// The blocks themselves; empty if the store has no log.
  std::vector<Stretch> stretches{};
};

/// KV that may come to the second pool from behind it, and for which there is room.
struct Prefetch {
  std::uint32_t id = 0;
  Tokens tokens;
  /// Tokens that storage was asked for. Only nodes set it.
  Tokens asked{};
  /// The blocks that may come; empty if the store has no log.
  std::vector<Stretch> stretches{};
};

struct PoolCounters {
  /// Blocks that came in, from a request, from above or from below.
  std::int64_t inserted = 0;
  /// Blocks with a key that left to make room.
  std::int64_t evicted = 0;
  /// The part of those that the next pool took.
  std::int64_t demoted = 0;
  /// Inserted blocks that a request found in a slower pool (requests_in_first).
  std::int64_t promoted = 0;
  /// Blocks that were not written because there was no room (NoRoom::skip).
  std::int64_t skipped = 0;

  friend bool operator==(const PoolCounters&, const PoolCounters&) = default;
};

struct FreeBlocks {
  std::int64_t available = 0;
  std::int64_t empty = 0;
};

class BlockListener;
class BlockLog;
class PolicyOrder;
class OffloadCalls;

/// Dense number of a request that holds KV in the first pool.
struct RequestId {
  std::uint32_t value = UINT32_MAX;
};

/// Keeps KV of contexts in pools, and finds it. Whole blocks have keys: the block's place in its
/// stream. It says which copies begin, and the caller says when they have arrived.
class Store {
 public:
  virtual ~Store() = default;
  /// Time goes on; it begins at 0. What has not been used for its pool's time to live leaves.
  virtual void advance(SimTime now) = 0;
  [[nodiscard]] virtual Match match(const Context& prompt) const = 0;
  /// Looks the prompt up and counts the use where look-ups do. With StoreRules::requests_in_first
  /// it holds what it found and takes memory as `room` says. Without room it returns nullopt, and
  /// nothing has changed but `match`; of nodes, uses were counted and loads stay in the first pool.
  /// `again`: a request that was released and has not ended, which goes on (only with offloads()).
  virtual std::optional<RequestId> acquire(const Context& prompt, const Room& room, Match& match,
                                           RequestId again) = 0;
  std::optional<RequestId> acquire(const Context& prompt, const Room& room, Match& match) {
    return acquire(prompt, room, match, RequestId{});
  }
  std::optional<RequestId> acquire(const Context& prompt, Tokens room, Match& match) {
    return acquire(prompt, {.taken = room, .needed = room}, match, RequestId{});
  }
  /// The request's context becomes longer; it may go on in a stream that forks from the former one
  /// at its end. With Publication::never it may become shorter, too. False, and nothing happens, if
  /// there is no room.
  [[nodiscard]] virtual bool grow(RequestId request, const Context& context) = 0;
  /// KV of the context's first tokens exists, which are no fewer than before, nor than were found.
  /// Publication::computed publishes it, and a cache of its own behind the first pool takes it.
  virtual void computed(RequestId request, Tokens tokens) = 0;
  /// KV of the request's context exists, and it holds it no more: it has ended or, with
  /// offloads(), was preempted.
  virtual void release(RequestId request) = 0;

  // Only of nodes (SGLang).

  /// The request holds its KV no more, and nothing of it is published.
  virtual void abandon(RequestId);
  /// Nodes leave until so many blocks of the first pool are empty, if so many may.
  virtual void make_empty(std::int64_t blocks);
  /// A use of what there is of the context, all of which counts.
  virtual Match refresh(const Context& context);

  // Copies to slower pools: of nodes, offloads, edges whose writes take time, and of entries.

  /// Those that have begun since this was called last, faster pools first.
  [[nodiscard]] virtual std::vector<Copy> take_copies() { return {}; }
  /// Copies whose sources have left their pool since this was called last. Before their memory is
  /// written, the copies have to arrive, or there is a buffer for their blocks (is_buffered). With
  /// Publication::never those of a copy from the first pool are the ones that a released request
  /// has written, else they are all of it. Called behind take_copies.
  [[nodiscard]] virtual std::vector<Copy> take_awaited() { return {}; }
  /// A copy that does not stall (Copy::waits) has arrived: its blocks are found, and may leave. So
  /// may their sources. Entries ignore it: their blocks are found when the copy begins.
  virtual void copied(std::uint32_t) {}

  // The pool behind the first one as an engine's offload: it learns of requests by these calls.
  // Nodes have loads, too, but no offers.

  /// Whether it has such a pool (StoreRules::requests_in_first, Touch::end behind). If so, requests
  /// keep their numbers until `end`.
  [[nodiscard]] virtual bool offloads() const { return false; }
  /// The KV that the request found behind the first pool is in its memory, and may leave there.
  /// Other requests find loaded nodes before that.
  virtual void loaded(RequestId) {}
  /// From here on others find what it loaded in the first pool.
  virtual void publish_loaded(RequestId) {}
  /// KV of the context's first tokens is about to be computed, or exists. What of it is not in the
  /// pool behind is written there, all of it or, without room, nothing: false, and the next call
  /// tries again.
  virtual bool offer(RequestId, Tokens) { return true; }
  /// The request was released and comes no more: its uses count.
  virtual void end(RequestId) {}
  /// Its calls without requests in the first pool; null if there is no such pool.
  [[nodiscard]] virtual OffloadCalls* offload_calls() { return nullptr; }

  // Pools behind the second one: requests that wait to be acquired fetch from there
  // (prefetches_to).

  /// Looks for KV of the prompt behind what the first two pools have, and makes room in the second
  /// one, where others do not find it until it has come. nullopt if there is none, it is not worth
  /// a fetch, has no room or stays where it is (EdgeRules::promotes). Of nodes, this is a look-up
  /// and a use.
  [[nodiscard]] virtual std::optional<Prefetch> prefetch(const Context& /*prompt*/) {
    return std::nullopt;
  }
  /// The prefetch is over: its first tokens have come, the others will not; of blocks all have.
  /// Returns how many of them were not in the second pool meanwhile.
  virtual Tokens prefetched(std::uint32_t /*prefetch*/, Tokens /*came*/) { return Tokens(0); }

  /// Blocks that have left the pool to which KV is prefetched since this was called last, which
  /// notes them from its first call on. Not of nodes.
  [[nodiscard]] virtual std::vector<Stretch> take_demoted() { return {}; }

  /// Blocks of the first pool that requests may take, and of those the ones that hold nothing.
  [[nodiscard]] virtual FreeBlocks free_blocks() const = 0;

  /// The policies of its own pools that look ahead. They want to hear of requests that wait.
  [[nodiscard]] virtual std::vector<PolicyOrder*> looking_ahead() { return {}; }

  /// KV of the stream's own tokens from there on leaves all pools, but for what requests hold or
  /// have written.
  virtual void truncate(StreamId stream, Tokens tokens) = 0;
  /// Tokens of the stream behind the first `kept` ones are gone, so many of them, and those behind
  /// follow the kept ones with their KV (keeps_kv_behind_cuts; AttentionStore, arXiv 2403.19708,
  /// 3.4). They are the stream's own. No request holds any of them, waits for them or has still to
  /// end, and all copies were taken.
  virtual void cut(StreamId stream, Tokens kept, Tokens dropped);
  /// Whether a pool has KV of the stream, or remembers that it had. If not, and if no request names
  /// it, the stream may be closed.
  [[nodiscard]] virtual bool remembers(StreamId stream) const = 0;

  [[nodiscard]] virtual PoolCounters counters(std::size_t pool) const = 0;
  /// Blocks with a key that a pool holds.
  [[nodiscard]] virtual std::int64_t resident_blocks(std::size_t pool) const = 0;
  /// All that a pool holds, block by block in the order of eviction, blocks in use last and sorted:
  /// for tests.
  [[nodiscard]] virtual std::vector<Stretch> contents(std::size_t pool) const = 0;
  /// Tells of blocks of its own pools from here on, not of shared ones; the listener outlives the
  /// store. False: this store does not.
  virtual bool set_listener(BlockListener*) { return false; }
  /// Tells of every decision about its pools from here on; the log outlives the store. False: this
  /// store does not.
  virtual bool set_log(BlockLog*) { return false; }
  /// Throws InvariantError if accounts and contents do not agree.
  virtual void check_invariants() const = 0;
};

}  // namespace kvtier
