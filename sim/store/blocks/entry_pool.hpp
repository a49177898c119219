#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/streams.hpp"
#include "sim/policy/policy.hpp"
#include "sim/policy/victims.hpp"
#include "sim/store/block_run.hpp"
#include "sim/store/decisions.hpp"
#include "sim/store/policy_order.hpp"
#include "sim/store/rules.hpp"

namespace kvtier {

/// One pool's extents as the entries that an EvictionPolicy chooses from. With
/// EvictionUnit::sequence a stream has one entry, from its first own block on; with tail, an entry
/// is split where a request uses a part of it, and grows by what comes in beside it.
class EntryPool final : public VictimSet {
 public:
  /// `puts_wanted`: the number of puts that the edge below waits for (EdgeRules::uses), 0 if it
  /// does not.
  EntryPool(const PoolRules& rules, Bytes bytes_per_token, std::int64_t puts_wanted,
            const PolicyRegistry& registry);

  /// Tells of blocks that leave other than as victims, as those of pool `number`.
  void set_log(BlockLog* log, std::size_t number) {
    log_ = log;
    number_ = number;
  }
  [[nodiscard]] bool splits_entries() const { return rules_.unit == EvictionUnit::tail; }
  [[nodiscard]] std::int64_t free() const { return rules_.capacity - stored_ - taken_; }
  [[nodiscard]] std::int64_t stored() const { return stored_; }
  /// Blocks that may leave.
  [[nodiscard]] std::int64_t evictable() const { return available() / block_bytes_; }

  [[nodiscard]] Piece first_piece(StreamId stream, std::int64_t begin, std::int64_t end) const;
  [[nodiscard]] Piece last_piece(StreamId stream, std::int64_t begin, std::int64_t end) const;

  /// Time goes on: what has expired leaves.
  void advance(SimTime now);

  /// Until the next call, entries with blocks of this path are not offered.
  void protect(const std::vector<Stretch>& path);
  /// The part of an entry that is on the path, or among these blocks if none is, by itself if
  /// entries have parts.
  std::uint32_t part_of(std::uint32_t entry, const BlockRun& run);
  void use(std::uint32_t entry);
  /// Counts a put. Returns whether the edge below writes it.
  bool count_put(std::uint32_t entry);

  /// Asks the policy for room for so many blocks. False: there is none, and nothing leaves.
  /// Otherwise take_victims() has to follow. What the newcomer would become a part of stays.
  [[nodiscard]] bool find_room(std::int64_t blocks, Demand demand, const BlockRun* newcomer);
  /// The chosen set leaves. Returns what has left, in order.
  [[nodiscard]] std::vector<BlockRun> take_victims();
  /// Whether blocks that are absent may come in: always what belongs to an entry that is here.
  [[nodiscard]] bool admits(const BlockRun& run) const;
  void tell_admission(StreamId stream, std::int64_t begin);
  /// Blocks that are absent come in, and there is room.
  void insert(const BlockRun& run);
  /// Those of the run that are present leave for good; a sequence if the run has its end. What is
  /// held stays.
  void remove(const BlockRun& run);
  /// The stream's blocks from this one on leave, but for entries that are held.
  void truncate(StreamId stream, std::int64_t blocks);

  // Requests that have memory here.

  /// Blocks that belong to no entry.
  void take(std::int64_t blocks) { taken_ += blocks; }
  void give_back(std::int64_t blocks) { taken_ -= blocks; }
  /// A request holds what an entry has of these blocks, or all of a sequence. Returns the entry.
  std::uint32_t hold(std::uint32_t entry, std::int64_t begin, std::int64_t end);
  /// Blocks of a request become an entry that it holds, or a part of the entry before them, which
  /// has the same holders.
  void publish(const BlockRun& run, bool grows);
  void let_go(std::uint32_t entry);
  [[nodiscard]] std::uint32_t holders(std::uint32_t entry) const { return entries_[entry].holders; }
  /// The entry that ends before a block.
  [[nodiscard]] std::uint32_t entry_before(StreamId stream, std::int64_t begin) const;
  /// The end of the entry that has a block; 0 if none has.
  [[nodiscard]] std::int64_t end_of(StreamId stream, std::int64_t block) const {
    const Piece piece = first_piece(stream, block, block + 1);
    return piece.present ? entries_[piece.segment].end : 0;
  }

  [[nodiscard]] bool holds(StreamId stream) const {
    return stream.value < of_stream_.size() && !of_stream_[stream.value].empty();
  }
  [[nodiscard]] std::vector<Stretch> contents() const;
  void check_invariants() const;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Entry {
    EntryKey key;
    StreamId stream;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::uint32_t holders = 0;
    std::uint32_t puts = 0;
    bool live = false;
    SimTime inserted;
    SimTime used;
  };

  /// The last entry of the stream that begins at the position or before it.
  [[nodiscard]] std::uint32_t locate(StreamId stream, std::int64_t position) const;
  [[nodiscard]] std::uint32_t neighbour_of(const BlockRun& run) const;
  [[nodiscard]] EntryView view(std::uint32_t entry) const;
  [[nodiscard]] bool on_path(const Entry& entry) const;
  [[nodiscard]] bool is_leased(const Entry& entry) const {
    return rules_.lease.ns > 0 && entry.used + rules_.lease > now_;
  }
  void refresh(std::uint32_t entry);
  void refresh(const std::vector<Stretch>& path);
  void set_used(std::uint32_t entry);
  [[nodiscard]] bool knows_age() const { return rules_.ttl || rules_.lease.ns > 0; }
  std::uint32_t make(const Entry& entry);
  /// The policy hears of it.
  std::uint32_t make_known(Entry entry);
  void leave(std::uint32_t entry);
  void log_left(DecisionKind why, const Entry& entry, std::int64_t begin, std::int64_t end) {
    if (log_ != nullptr) [[unlikely]] {
      log_->on_decision(why, number_, {entry.stream, begin, end});
    }
  }
  /// The entry keeps [begin, end).
  void resize(std::uint32_t entry, std::int64_t begin, std::int64_t end);
  std::uint32_t split(std::uint32_t entry, std::int64_t at);
  std::uint32_t cut_out(std::uint32_t entry, std::int64_t begin, std::int64_t end);

  [[nodiscard]] bool may_leave(EntryId victim, Tokens keep) override;
  [[nodiscard]] Tokens rounded(EntryId victim, Tokens keep) const override;
  [[nodiscard]] Tokens spared(EntryId victim) const override;
  [[nodiscard]] Bytes bytes_of(EntryId victim, Tokens tokens) const override;

  PoolRules rules_;
  BlockLog* log_ = nullptr;
  std::size_t number_ = 0;
  Bytes block_bytes_;
  std::uint32_t puts_wanted_;
  EntryPolicies policies_;
  SimTime now_;
  std::int64_t stored_ = 0;
  std::int64_t taken_ = 0;
  std::vector<Entry> entries_;
  /// The lowest is used next.
  std::set<std::uint32_t> free_entries_;
  /// Entries of each stream, by position.
  std::vector<std::vector<std::uint32_t>> of_stream_;
  std::vector<Stretch> path_;
  /// By last use, if that matters.
  std::set<std::pair<std::int64_t, std::uint32_t>> by_age_;
  /// The set that is chosen has to free so many blocks, for this newcomer.
  std::int64_t wanted_ = 0;
  const BlockRun* newcomer_ = nullptr;
};

}  // namespace kvtier
