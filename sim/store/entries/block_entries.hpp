#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sim/core/streams.hpp"
#include "sim/store/block_run.hpp"
#include "sim/store/entries/intervals.hpp"
#include "sim/store/entries/policy_order.hpp"
#include "sim/store/rules.hpp"

namespace kvtier {

/// The blocks of one pool as entries from which its policies choose (EvictionUnit). Each block is
/// an entry, or blocks of a stream are one together:
///
/// * sequence: all that the pool has of a stream. It leaves as a whole, if all of it may leave.
/// * tail: a run of a stream. Blocks leave from its end, as many as are wanted or as the policy
///   says. Blocks that come in beside an entry become a part of it. A use cuts an entry where it
///   ends.
///
/// An entry of several blocks is used once by a request's use, however many of its blocks are, and
/// what is on the path of that use does not leave meanwhile.
///
/// A pool names blocks by a run and the number that `insert` gave it: where each block is an entry
/// the run is one block, and the number says which one; else the run says all.
class BlockEntries {
 public:
  static constexpr std::uint32_t kNone = PolicyOrder::kNone;

  /// `streams` outlives it. Throws InvariantError if the registry does not have the policies.
  BlockEntries(const PoolRules& rules, Bytes bytes_per_token, const Streams& streams,
               const PolicyRegistry& registry);

  void advance(SimTime now);
  /// Whether an entry may have several blocks.
  [[nodiscard]] bool groups() const { return groups_blocks_; }

  /// Its policies, if they look ahead; else null.
  [[nodiscard]] PolicyOrder* looking_ahead() { return order_.looking_ahead(); }

  // Only of entries of several blocks.

  /// A request uses a context, until end_use.
  void begin_use(const Context& context) {
    ++use_;
    extend_use(context);
  }
  /// It uses more tokens of it.
  void extend_use(const Context& context) {
    tell_all();
    if (context.tokens >= block_) {
      use_path(context);
    }
  }
  /// Calls no policy, so it does not throw.
  void end_use() {
    if (!path_.empty()) {
      change_path();
      path_.clear();
    }
  }
  /// The blocks that may leave, those that are chosen among them.
  [[nodiscard]] std::int64_t evictable() {
    if (!to_be_counted_.empty()) {
      count_changed();
    }
    return evictable_;
  }
  /// Entries, and those that may leave.
  [[nodiscard]] std::int64_t entries() const {
    return std::ssize(groups_) - std::ssize(free_groups_);
  }
  [[nodiscard]] std::int64_t evictable_entries();
  [[nodiscard]] bool has(StreamId stream) const { return !groups_in(stream).empty(); }

  /// Blocks come in, which may not leave yet. Returns their number.
  std::uint32_t insert(const BlockRun& run);
  /// Only where each block is an entry: it has no key.
  std::uint32_t insert_keyless() { return order_.insert_keyless(); }
  /// A request finds them, and uses them until `release`.
  void hit(const BlockRun& run, std::uint32_t number);
  void release(const BlockRun& run, std::uint32_t number);
  /// Both, one entry after the other.
  void use(const BlockRun& run, std::uint32_t number);
  void remove(const BlockRun& run, std::uint32_t number);
  /// Only of entries of several blocks: those of a stream from this one on have numbers that are
  /// smaller by so much, and there are none with these numbers.
  void shift(StreamId stream, std::int64_t from, std::int64_t by);
  /// Whether they may leave.
  void offer(const BlockRun& run, std::uint32_t number, bool may_leave);
  [[nodiscard]] bool is_offered(const BlockRun& run, std::uint32_t number) const;

  /// Whether blocks of a run keep their entry: a set with it is refused.
  using Stays = std::function<bool(const BlockRun& run)>;
  /// Asks the policy for so many blocks. `newcomer`: the room is for its first block. The entry
  /// that this extends stays, and the admission policy may refuse that it replaces a victim. In the
  /// background tails leave no more than so many. False: none shall leave.
  [[nodiscard]] bool choose(std::int64_t blocks, Demand demand, const BlockRun* newcomer,
                            const Stays* stays = nullptr);
  /// Adds to the chosen blocks (none without a successful choice) the entries that came in first.
  void choose_oldest(std::int64_t blocks);
  [[nodiscard]] bool has_chosen() const { return !order_.chosen().empty(); }
  struct Leaving {
    BlockRun run;
    std::uint32_t number = kNone;
  };
  /// The chosen blocks in order, those of an entry from its head; by number where each block is an
  /// entry, else by run. They have to leave one after the other by `remove`.
  [[nodiscard]] std::vector<Leaving> take_chosen();

  [[nodiscard]] bool filters() const { return order_.filters(); }
  /// Whether a block may come in: always if its stream has an entry of several blocks.
  [[nodiscard]] bool admits(StreamId stream, std::int64_t block) const;
  /// A request has used or made a block, which it tells once.
  void note_use(StreamId stream, std::int64_t block);
  /// The policy learns of all that has changed first.
  void check_invariants();

 private:
  /// Blocks of a stream that are one entry.
  struct Group {
    StreamId stream;
    Intervals blocks;
    /// Those that may not leave.
    Intervals busy;
    /// The policy's number; kNone until it learns of it.
    std::uint32_t entry = kNone;
    /// Blocks that could leave when they were counted last.
    std::int64_t evictable = 0;
    bool to_be_counted = false;
    /// The policy knows of other blocks, or of more or fewer that may leave.
    bool to_be_told = false;
    bool resized = false;
    /// The uses that counted last.
    std::uint64_t hit_in = 0;
    std::uint64_t released_in = 0;

    [[nodiscard]] std::int64_t begin() const { return blocks.first(); }
    [[nodiscard]] std::int64_t end() const { return blocks.end_of_last(); }
    [[nodiscard]] std::int64_t size() const { return blocks.size(); }
  };

  /// Admission policies know all that a stream has by its first own block.
  [[nodiscard]] EntryKey key_of_stream(StreamId stream) const {
    return key_of(stream, streams_.first_of(stream) / block_.value);
  }
  [[nodiscard]] const std::vector<std::uint32_t>& groups_in(StreamId stream) const;
  /// The group of which blocks become a part; kNone: there is none.
  [[nodiscard]] std::uint32_t group_for(const BlockRun& run) const;
  /// Visits groups that have blocks of a run, in its direction, and those blocks. No group comes or
  /// leaves meanwhile.
  template <class Visit>
  void for_each_group(const BlockRun& run, Visit visit) const;
  /// Whether a use ends before a block: entries are cut there.
  [[nodiscard]] bool ends_use(StreamId stream, std::int64_t block) const;
  /// A group of blocks from this one on that are in no other one.
  std::uint32_t make_group(StreamId stream, std::int64_t first);
  void free_group(std::uint32_t group);
  void add(std::uint32_t group, const Intervals& blocks, const Intervals& busy);
  /// The policy knows the group by this number.
  void know(std::uint32_t group, std::uint32_t entry);
  /// Joins a group with those beside the blocks that have come into it.
  void join_beside(std::uint32_t group, const BlockRun& run);
  /// A group of which the policy does not know becomes a part of the one beside it.
  void join_new(std::uint32_t before, std::uint32_t behind);
  /// The group's blocks from this one on are a group of their own.
  void cut(std::uint32_t group, std::int64_t block);
  [[nodiscard]] std::int64_t count_evictable(const Group& group) const;
  /// Its evictable blocks have to be counted again.
  void change(std::uint32_t group);
  /// The policy has to learn of its size, or of how many of its blocks may leave.
  void tell(std::uint32_t group);
  void count_changed();
  void change_path();
  void use_path(const Context& context);
  void note_use_of(StreamId stream);
  [[nodiscard]] SimTime last_use_of(StreamId stream) const;
  void tell_size(Group& group);
  /// The policy learns of a group.
  void tell_new(std::uint32_t group);
  void tell_all() {
    if (!new_.empty() || !to_be_counted_.empty() || !to_be_told_.empty()) {
      tell_changes();
    }
  }
  void tell_changes();
  /// The same group, of which the policy knows.
  Group& known(std::uint32_t group);
  /// From the first block of an entry to its last one.
  [[nodiscard]] BlockRun run_of(std::uint32_t entry) const;
  void hit_group(std::uint32_t group);
  void release_group(std::uint32_t group);

  Tokens block_;
  const Streams& streams_;
  bool groups_blocks_;
  PolicyOrder order_;

  /// By stream. What comes into a slower tier has not been used since.
  std::vector<SimTime> last_use_;
  std::uint64_t use_ = 1;
  std::vector<Stretch> path_;
  std::vector<Group> groups_;
  std::vector<std::uint32_t> free_groups_;
  /// Groups of each stream, in order.
  std::vector<std::vector<std::uint32_t>> in_stream_;
  /// By the policy's number.
  std::vector<std::uint32_t> group_of_;
  /// Groups of which the policy does not know, in the order in which they came in.
  std::vector<std::uint32_t> new_;
  std::vector<std::uint32_t> to_be_counted_;
  std::vector<std::uint32_t> to_be_told_;
  std::int64_t evictable_ = 0;
};

/// While this lives, a request uses a context in pools. If their entries have several blocks, those
/// with some of it do not leave meanwhile.
template <class Pools>
class UseOfPools {
 public:
  UseOfPools(const Pools& pools, const Context& context) : pools_(pools) {
    for_each([&](BlockEntries& entries) { entries.begin_use(context); });
  }
  ~UseOfPools() {
    for_each([](BlockEntries& entries) { entries.end_use(); });
  }
  UseOfPools(const UseOfPools&) = delete;
  UseOfPools& operator=(const UseOfPools&) = delete;

  /// It uses more tokens of it.
  void extend(const Context& context) {
    for_each([&](BlockEntries& entries) { entries.extend_use(context); });
  }

 private:
  template <class Act>
  void for_each(Act act) const {
    for (const auto& pool : pools_) {
      if (BlockEntries* entries = pool->groups()) [[unlikely]] {
        act(*entries);
      }
    }
  }

  const Pools& pools_;
};

/// Null if the pool of blocks has an order of its own.
[[nodiscard]] inline std::unique_ptr<BlockEntries> make_block_entries(
    const StoreRules& rules, std::size_t pool, const Streams& streams,
    const PolicyRegistry& registry) {
  return has_own_order(rules, pool)
             ? nullptr
             : std::make_unique<BlockEntries>(rules.pools[pool], rules.bytes_per_token, streams,
                                              registry);
}

}  // namespace kvtier
