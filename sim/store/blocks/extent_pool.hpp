#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "sim/core/streams.hpp"
#include "sim/store/block_listener.hpp"
#include "sim/store/block_run.hpp"
#include "sim/store/decisions.hpp"
#include "sim/store/entries/block_entries.hpp"
#include "sim/store/store.hpp"

namespace kvtier {

/// One pool's blocks with keys, as extents: neighbouring blocks of a stream that are in the same
/// state and, unless a request holds them, neighbours in the order of eviction. Costs depend on the
/// number of extents, never on that of blocks. Blocks are found by position; a duplicate of a block
/// is found when the earlier ones have left.
///
/// If policies of the registry choose (BlockEntries), blocks enter their order when a request that
/// computed them lets them go, or another one finds them. If each block is an entry, an extent is
/// one block.
class ExtentPool {
 public:
  /// `puts_wanted`: the number of puts that the edge below waits for (EdgeRules::uses), 0 if it
  /// does not. `streams`: where it has to know which blocks follow which (leaves_only, parts), or
  /// policies choose, else null; they outlive it. `policies`: null where the pool has an order of
  /// its own (has_own_order).
  ExtentPool(const PoolRules& rules, std::int64_t puts_wanted, const Streams* streams = nullptr,
             std::unique_ptr<BlockEntries> policies = nullptr);

  static constexpr std::uint32_t kNone = UINT32_MAX;

  /// Is told of blocks from here on, as those of pool `number`. It outlives this.
  void set_listener(BlockListener* listener, std::size_t number) {
    listener_ = listener;
    number_ = number;
  }
  void set_log(BlockLog* log, std::size_t number) {
    log_ = log;
    number_ = number;
  }
  [[nodiscard]] std::int64_t capacity() const { return rules_.capacity; }
  /// Blocks of all kinds, and of those how many may leave.
  [[nodiscard]] std::int64_t used() const { return used_; }
  [[nodiscard]] std::int64_t free() const { return rules_.capacity - used_; }
  [[nodiscard]] std::int64_t evictable() const {
    return groups() != nullptr ? policies_->evictable()
                               : evictable_ - (has_leases() ? leased() : 0);
  }
  [[nodiscard]] std::int64_t resident() const { return resident_; }
  /// Whether each stream that it has blocks of takes a place (PoolRules::reserved).
  [[nodiscard]] bool reserves() const { return rules_.reserved > 0; }
  /// Whether a stream takes another one when blocks of it come in, and how many are free.
  [[nodiscard]] bool takes_place(StreamId stream) const {
    return reserves() && !policies_->has(stream);
  }
  [[nodiscard]] std::int64_t free_places() const {
    return rules_.capacity / rules_.reserved - policies_->entries();
  }
  /// Memory that blocks take which may leave, with what is reserved for them.
  [[nodiscard]] std::int64_t idle() const {
    return reserves() ? std::max(evictable(), policies_->evictable_entries() * rules_.reserved)
                      : evictable();
  }

  /// The first piece of [begin, end) of a stream.
  [[nodiscard]] Piece first_piece(StreamId stream, std::int64_t begin, std::int64_t end) const {
    const std::uint32_t at = locate(stream, begin);
    if (at != kNone && extents_[at].end > begin) {
      return {true, at, begin, extents_[at].end < end ? extents_[at].end : end};
    }
    const std::uint32_t next = at != kNone ? extents_[at].behind : head_of(stream);
    const bool cut = next != kNone && extents_[next].begin < end;
    return {false, kNone, begin, cut ? extents_[next].begin : end};
  }
  /// The last piece of [begin, end) of a stream.
  [[nodiscard]] Piece last_piece(StreamId stream, std::int64_t begin, std::int64_t end) const {
    const std::uint32_t at = locate(stream, end - 1);
    if (at != kNone && extents_[at].end >= end) {
      return {true, at, extents_[at].begin > begin ? extents_[at].begin : begin, end};
    }
    const bool cut = at != kNone && extents_[at].end > begin;
    return {false, kNone, cut ? extents_[at].end : begin, end};
  }

  /// Time goes on: what has expired leaves.
  void advance(SimTime now);

  /// Blocks that are present, all in one extent, go where a use puts them. It counts (lfu) or not.
  void touch(const BlockRun& run, std::uint32_t extent, bool counts = true);
  /// Counts a put of them, which touches them or not. Returns whether the edge below writes it.
  bool count_put(const BlockRun& run, std::uint32_t extent, bool touches);
  /// arc: these blocks, which are absent, are to come in. Those that are remembered are the last to
  /// be forgotten.
  void adapt_arc(const BlockRun& run);
  /// Blocks come in at the end of the order. There is room for them, and they are absent. Unless
  /// they have `arrived` they are being written (begin_write).
  void insert(const BlockRun& run, bool arrived = true);
  /// So many blocks leave the front of the order, and as many as a round frees if they may; those
  /// with keys are added to `victims` in order. They leave even if a policy refuses to choose.
  void evict(std::int64_t blocks, std::vector<BlockRun>& victims);
  /// Asks the policy for so many blocks, or those of a round, before `evict` with as many. With a
  /// newcomer, the admission policy may refuse. False: none leave. True for an order of its own.
  [[nodiscard]] bool choose(std::int64_t blocks, const BlockRun* newcomer,
                            Demand demand = Demand::save,
                            const BlockEntries::Stays* stays = nullptr);
  /// Whether policies of the registry choose.
  [[nodiscard]] bool is_ranked() const { return policies_ != nullptr; }
  /// Whether they are, and each block is an entry of theirs, and so an extent.
  [[nodiscard]] bool ranks_blocks() const { return is_ranked() && groups_ == nullptr; }
  /// Its policies, if they look ahead; else null.
  [[nodiscard]] PolicyOrder* looking_ahead() const {
    return is_ranked() ? policies_->looking_ahead() : nullptr;
  }
  /// Their entries, if blocks of a stream may be one; else null.
  [[nodiscard]] BlockEntries* groups() const { return groups_; }
  /// Whether a block may come in.
  [[nodiscard]] bool admits(StreamId stream, std::int64_t block) const {
    return policies_ == nullptr || policies_->admits(stream, block);
  }
  [[nodiscard]] bool filters() const { return policies_ != nullptr && policies_->filters(); }
  void note_use(StreamId stream, std::int64_t block) { policies_->note_use(stream, block); }
  /// How many blocks may leave at once before newcomers: whole rounds that free `wanted` or fewer.
  /// One (and as many as its round frees) where a newcomer may leave before what is here, or
  /// changes the next victim. 0: none may.
  [[nodiscard]] std::int64_t victims_before_newcomers(std::int64_t wanted) const;
  /// Those of the run that are present, and that no copy reads or writes, leave for good: the log
  /// is told why, if there is a reason.
  void remove(const BlockRun& run, std::optional<DecisionKind> why = DecisionKind::move_up);
  /// The stream's blocks from this one on leave with their duplicates, unless held or pinned.
  void truncate(StreamId stream, std::int64_t blocks);
  /// These blocks leave, which no request holds, and those behind them take their numbers. Only
  /// without duplicates and parts, and of policies with entries of several blocks.
  void cut(const Stretch& blocks);
  /// Whether it has blocks of the stream, or remembers them.
  [[nodiscard]] bool remembers(StreamId stream) const;

  // Pinned blocks keep their place in the order and are not evicted.

  void pin(const BlockRun& run) { change_pins(run, Pin::plain, 1); }
  void unpin(const BlockRun& run) { change_pins(run, Pin::plain, -1); }
  /// They are being written, and are not to be read yet.
  void begin_write(const BlockRun& run) { change_pins(run, Pin::write, 1); }
  void end_write(const BlockRun& run) { change_pins(run, Pin::write, -1); }
  [[nodiscard]] bool is_being_written(std::uint32_t extent) const {
    return extents_[extent].writes > 0;
  }
  /// They are being read.
  void begin_load(const BlockRun& run) { change_pins(run, Pin::load, 1); }
  void end_load(const BlockRun& run) { change_pins(run, Pin::load, -1); }
  [[nodiscard]] bool is_being_loaded(std::uint32_t extent) const {
    return extents_[extent].loads > 0;
  }

  // lru, as vLLM's offload has it: what a running request uses has a place of its own in the order,
  // behind all that was used before the request's first use. There it is ordered by position, the
  // last block first.

  /// A place at the back.
  [[nodiscard]] std::uint32_t open_place();
  /// Its blocks stay resident, as all blocks in the order.
  void close_place(std::uint32_t place);
  /// Blocks that are present, all in one extent, go to the place, if they were not used by a
  /// request that came later or ended since.
  void use_at(const BlockRun& run, std::uint32_t extent, std::uint32_t place);
  /// Blocks come in at the place.
  void insert_at(const BlockRun& run, std::uint32_t place);
  /// The uses from here on are later than all before.
  void begin_uses() { ++rank_; }

  // Requests that hold blocks.

  /// Blocks of a path that is used which are a part of evictable(): none of entries of several
  /// blocks.
  [[nodiscard]] std::int64_t evictable_of(const Piece& used) const {
    return is_evictable(used.segment) && groups() == nullptr ? used.end - used.begin : 0;
  }
  /// Whether blocks of an extent may leave.
  [[nodiscard]] bool is_evictable(std::uint32_t extent) const {
    const Extent& blocks = extents_[extent];
    return blocks.holders == 0 && blocks.pins == 0 && !is_leased(blocks);
  }
  /// A request holds blocks that are present, all in one extent.
  void hold(const BlockRun& run, std::uint32_t extent);
  /// Blocks of a request that have no key: they take room and cannot leave.
  void take(std::int64_t blocks) { used_ += blocks; }
  void give_back(std::int64_t blocks) { used_ -= blocks; }
  /// Blocks of a request without a key get one, and are held by it. With a `duplicate_id` that
  /// is not 0 they are duplicates of blocks that are present.
  void publish(const BlockRun& run, std::uint32_t duplicate_id);
  /// The request holds these blocks no more. `used`: it found them, so this is a use.
  void let_go(const BlockRun& run, std::uint32_t duplicate_id, bool used);
  /// Blocks of a request that have no key, from this one of its context on, wait at the end of the
  /// order of eviction.
  void leave_keyless(std::int64_t block, std::int64_t count);

  // Parts: blocks without a key that are found by their first tokens (StoreRules::partial_reuse).

  /// The last block of a context, which is not full, waits at the end of the order. It is found,
  /// unless there is one of the same tokens.
  void leave_part(const Context& context);
  /// A block that has the first tokens behind a prompt's whole blocks.
  struct Part {
    StreamId stream;
    std::int64_t block = 0;
    std::uint32_t extent = kNone;
    std::int64_t tokens = 0;
  };
  /// The one that has most of them, the whole one and the one of the earliest stream of equal ones.
  [[nodiscard]] Part best_part(const Context& prompt, std::int64_t block) const;
  [[nodiscard]] bool is_part(const Part& part) const { return extents_[part.extent].tokens > 0; }
  /// Whether a block is free to be taken over; that nothing follows it is another question.
  [[nodiscard]] bool is_free(const Part& part) const { return is_evictable(part.extent); }
  /// Whether the pool has a block behind this one.
  [[nodiscard]] bool is_followed(StreamId stream, std::int64_t block) const;
  /// It leaves, not as a victim.
  void remove_part(const Part& part) {
    drop(cut_out(part.extent, part.block, part.block + 1), DecisionKind::invalidate);
  }

  // arc, for tests.

  /// T1, T2, B1 and B2, oldest first.
  [[nodiscard]] std::array<std::vector<Stretch>, 4> lists() const;
  [[nodiscard]] double target() const { return target_; }
  void set_target(double target) { target_ = target; }

  [[nodiscard]] std::vector<Stretch> contents() const;
  void check_invariants() const;

 private:
  enum class Order : std::uint8_t { lru, fifo, lfu, arc, priority, policy };
  /// A block: the stream of its last token, or the one from which others fork before it, and its
  /// number.
  using Key = std::pair<StreamId, std::int64_t>;
  struct Extent {
    StreamId stream;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    /// In the order of eviction; toward its front and its back.
    std::uint32_t before = kNone;
    std::uint32_t after = kNone;
    /// In the stream, by position.
    std::uint32_t ahead = kNone;
    std::uint32_t behind = kNone;
    std::uint32_t holders = 0;
    /// lfu's count, or the priority; 0 for other orders.
    std::uint32_t rank_class = 0;
    std::uint32_t puts = 0;
    /// All pins, and of those the ones of writes and of loads.
    std::uint32_t pins = 0;
    std::uint32_t writes = 0;
    std::uint32_t loads = 0;
    /// Grows with the place in the order, where requests have places of their own.
    std::uint64_t rank = 0;
    /// The pool has the block several times: 0 for the first, higher for later ones.
    std::uint32_t duplicate_id = 0;
    /// The end that leaves first.
    End first = End::tail;
    bool ordered = false;
    /// arc: in T2.
    bool frequent = false;
    /// Used since it came in, or newcomers are leased, too.
    bool leasable = false;
    /// The number by which the policies know it; kNone: they do not.
    std::uint32_t entry = kNone;
    /// Tokens of a part; 0 for whole blocks.
    std::int64_t tokens = 0;
    /// It is a duplicate of blocks that are found, and not in the stream's list.
    bool duplicate = false;
    /// The last use, where age matters.
    SimTime used;

    [[nodiscard]] std::int64_t size() const { return end - begin; }
  };
  void tell_stored(StreamId stream, std::int64_t begin, std::int64_t end) {
    if (listener_ != nullptr) [[unlikely]] {
      listener_->on_stored(number_, {stream, begin, end});
    }
  }
  void tell_removed(StreamId stream, std::int64_t begin, std::int64_t end) {
    if (listener_ != nullptr) [[unlikely]] {
      listener_->on_removed(number_, {stream, begin, end});
    }
  }
  /// Blocks with a key leave without being counted.
  void log_left(DecisionKind why, StreamId stream, std::int64_t begin, std::int64_t end) {
    if (log_ != nullptr) [[unlikely]] {
      log_->on_decision(why, number_, {stream, begin, end});
    }
  }
  struct Ends {
    std::uint32_t front = kNone;
    std::uint32_t back = kNone;
  };

  [[nodiscard]] std::uint32_t head_of(StreamId stream) const { return ends_in(stream).front; }
  [[nodiscard]] Ends ends_in(StreamId stream) const {
    return stream.value < in_stream_.size() ? in_stream_[stream.value] : Ends{};
  }
  /// The last extent of the stream that begins at the position or before it.
  [[nodiscard]] std::uint32_t locate(StreamId stream, std::int64_t position) const {
    if (ranks_blocks()) [[unlikely]] {
      return locate_block(stream, position);
    }
    // Requests ask most often for what follows the last one.
    const Ends ends = ends_in(stream);
    if (ends.back == kNone || extents_[ends.back].begin <= position) {
      return ends.back;
    }
    std::uint32_t found = kNone;
    for (std::uint32_t at = ends.front; extents_[at].begin <= position; at = extents_[at].behind) {
      found = at;
    }
    return found;
  }
  /// The same, where an extent is a block.
  [[nodiscard]] std::uint32_t locate_block(StreamId stream, std::int64_t position) const;
  [[nodiscard]] bool is_lfu() const { return order_ == Order::lfu; }
  /// The order has classes: counts or priorities.
  [[nodiscard]] bool has_classes() const { return is_lfu() || order_ == Order::priority; }
  [[nodiscard]] bool is_keyless(const Extent& extent) const {
    return !extent.stream.valid() || extent.tokens > 0;
  }
  [[nodiscard]] bool is_arc() const { return order_ == Order::arc; }
  Ends& ends_of(const Extent& extent) {
    return has_classes() ? by_class_[extent.rank_class] : extent.frequent ? frequent_ : ends_;
  }
  /// The class of a block that comes in, and the end of those after it in the same one.
  [[nodiscard]] std::uint32_t first_class(std::int64_t block) const {
    return is_lfu()                    ? 1U
           : order_ == Order::priority ? static_cast<std::uint32_t>(priority_of(rules_, block))
                                       : 0U;
  }
  /// Visits the parts of a run whose blocks have the same class, in the run's direction.
  template <class Visit>
  void for_each_class(const BlockRun& run, Visit visit) const;

  /// It is asked for forks of streams where each block is an entry.
  [[nodiscard]] bool knows_forks() const { return streams_ != nullptr && groups() == nullptr; }
  [[nodiscard]] Key fork_of(StreamId stream) const;
  [[nodiscard]] Key group_of(StreamId stream, std::int64_t block) const;
  /// Whether a block that may leave follows the extent's last one.
  [[nodiscard]] bool has_free_child(const Extent& extent) const;
  /// The block of the last fork before the end of the extent whose blocks may leave.
  [[nodiscard]] std::int64_t last_free_fork(const Extent& extent) const;
  [[nodiscard]] bool may_leave(std::uint32_t extent) const {
    return is_evictable(extent) &&
           (!rules_.leaves_only || is_keyless(extents_[extent]) || extents_[extent].duplicate ||
            !has_free_child(extents_[extent]));
  }

  [[nodiscard]] bool has_leases() const { return rules_.lease.ns > 0; }
  [[nodiscard]] bool knows_age() const { return rules_.ttl || has_leases(); }
  [[nodiscard]] bool is_leased(const Extent& extent) const {
    return has_leases() && !is_keyless(extent) && extent.leasable &&
           extent.used + rules_.lease > now_;
  }
  /// Blocks that would be evictable without their lease.
  [[nodiscard]] std::int64_t leased() const;
  void set_used(std::uint32_t at);
  void publish_alike(const BlockRun& run, std::uint32_t duplicate_id);
  /// An extent without holders and pins leaves, not as a victim.
  void drop(std::uint32_t at, DecisionKind why);
  std::uint32_t make(const Extent& extent);
  /// The extent of blocks that come in now.
  [[nodiscard]] Extent extent_of(const BlockRun& run) const;
  /// The same. The accounts have the blocks from here on.
  Extent newcomer(const BlockRun& run);
  void free_extent(std::uint32_t at);
  void link_in_stream(std::uint32_t at);
  void unlink_from_stream(std::uint32_t at);
  /// To the back of the order, joined with what is there if they are alike.
  void append(std::uint32_t at);
  void unorder(std::uint32_t at);
  /// Cuts an extent in two that stay neighbours; returns the part behind `position`.
  std::uint32_t split(std::uint32_t at, std::int64_t position);
  /// The part [begin, end) of an extent as one of its own.
  std::uint32_t cut_out(std::uint32_t at, std::int64_t begin, std::int64_t end);
  /// Whether `later` may be a part of `earlier`, behind which it is in the order.
  [[nodiscard]] bool follows(const Extent& earlier, const Extent& later) const;
  /// Joins an extent with the one before it in the order, if they are alike. Returns what is left.
  std::uint32_t join_back(std::uint32_t at);
  /// Moves an extent of blocks that were used to its new place.
  void use(std::uint32_t at, End first, bool counts = true);
  /// Joins an extent with its neighbours in the order, if they are alike.
  void join(std::uint32_t at) {
    const std::uint32_t joined = join_back(at);
    if (extents_[joined].after != kNone) {
      join_back(extents_[joined].after);
    }
  }
  enum class Pin : std::uint8_t { plain, write, load };
  void change_pins(const BlockRun& run, Pin kind, int change);

  // Policies of the registry.

  /// The policy learns of a block, if it does not know it.
  void learn(std::uint32_t at);
  /// Tells the policy whether it may leave, and whether the block before it may (leaves_only).
  void refresh(std::uint32_t at);
  void refresh_before(StreamId stream, std::int64_t block);
  void use_ranked(std::uint32_t at, End first);
  void let_go_ranked(std::uint32_t at, End first);
  void evict_ranked(std::int64_t blocks, std::vector<BlockRun>& victims);
  /// Blocks with keys have left to make room.
  void add_victim(const BlockRun& run, bool duplicate, std::vector<BlockRun>& victims);
  void leave_ranked(std::uint32_t at, std::vector<BlockRun>& victims);
  void leave_ranked(const BlockRun& run, std::vector<BlockRun>& victims);
  /// Joins an extent with its neighbours in its stream if they are alike, for policies of entries
  /// of several blocks.
  void join_in_stream(std::uint32_t at);
  void join_ahead(std::uint32_t at);
  /// Whether an extent of such a policy may become a part of the one ahead in its stream.
  [[nodiscard]] bool continues(const Extent& ahead, const Extent& behind) const;
  /// Blocks that come in become a part of the extent ahead, if they are alike.
  void insert_into_group(Extent made);
  [[nodiscard]] static BlockRun run_of(const Extent& extent, End first = End::head) {
    return {extent.stream, extent.begin, extent.end, first};
  }

  /// An extent that is not in the order goes to the place.
  void put_at(std::uint32_t at, std::uint32_t place);
  /// The earliest duplicates of blocks that have left are found from here on.
  void uncover(StreamId stream, std::int64_t begin, std::int64_t end);
  /// The front extent that may leave.
  [[nodiscard]] std::uint32_t victim() const;

  PoolRules rules_;
  BlockListener* listener_ = nullptr;
  BlockLog* log_ = nullptr;
  std::size_t number_ = 0;
  Order order_ = Order::lru;
  SimTime now_;
  std::uint32_t puts_wanted_;
  std::uint64_t rank_ = 0;
  std::int64_t used_ = 0;
  std::int64_t evictable_ = 0;
  std::int64_t resident_ = 0;

  std::vector<Extent> extents_;
  std::vector<std::uint32_t> free_extents_;
  /// The first and the last extent of each stream.
  std::vector<Ends> in_stream_;
  Ends ends_;
  std::map<std::uint32_t, Ends> by_class_;
  /// arc: T2, where ends_ is T1; the size of T1 and its wanted size; B1 and B2.
  Ends frequent_;
  std::int64_t recent_ = 0;
  double target_ = 0;
  std::vector<ExtentPool> ghosts_;
  std::vector<std::uint32_t> duplicates_;
  /// Null where forks and parts are not asked for.
  const Streams* streams_;
  /// Streams that have extents, by the block before which they fork.
  std::map<Key, std::vector<StreamId>> forks_;
  /// Extents of parts, by the block before them; and how many of them a stream has.
  std::map<Key, std::vector<std::uint32_t>> parts_;
  std::map<StreamId, std::int64_t> streams_of_parts_;
  /// Extents by last use, where age matters.
  std::set<std::pair<std::int64_t, std::uint32_t>> by_age_;

  /// Null for an order of its own.
  std::unique_ptr<BlockEntries> policies_;
  /// The same, if blocks of a stream may be one entry; else null.
  BlockEntries* groups_ = nullptr;
  /// The extents of the policy's entries.
  std::vector<std::uint32_t> extent_of_;
  /// The extents of a stream's blocks from its first own one on.
  struct Blocks {
    std::int64_t first = 0;
    std::vector<std::uint32_t> extents;
  };
  std::vector<Blocks> blocks_of_;
};

}  // namespace kvtier
