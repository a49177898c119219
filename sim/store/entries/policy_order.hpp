#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/core/streams.hpp"
#include "sim/policy/policy.hpp"
#include "sim/policy/victims.hpp"
#include "sim/store/entries/waiting_requests.hpp"
#include "sim/store/rules.hpp"

namespace kvtier {

/// Policies know a block, or a node, by the place of its first block.
[[nodiscard]] inline EntryKey key_of(StreamId stream, std::int64_t begin) {
  return EntryKey{std::uint64_t{stream.value} << 32U | static_cast<std::uint64_t>(begin)};
}

[[nodiscard]] inline std::pair<StreamId, std::int64_t> place_of(EntryKey key) {
  return {StreamId{static_cast<std::uint32_t>(key.value >> 32U)},
          static_cast<std::int64_t>(key.value & UINT32_MAX)};
}

/// The policies of one pool, made from the registry. The pool says what an entry is (a block, a
/// node or blocks of a stream), which entries may leave, and when they are used. Entries have the
/// lowest numbers that are free. If the pool's unit is a tail, entries may leave in part.
class PolicyOrder final : private VictimSet {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  using Stays = std::function<bool(std::uint32_t entry)>;

  /// Throws InvariantError if the registry does not have the policies.
  /// `streams` outlives it.
  PolicyOrder(const PoolRules& rules, Bytes bytes_per_token, const Streams& streams,
              const PolicyRegistry& registry);

  void advance(SimTime now) { now_ = now; }
  [[nodiscard]] SimTime now() const { return now_; }
  /// Whether the unit is a tail.
  [[nodiscard]] bool leaves_in_part() const { return leaves_in_part_; }

  /// An entry of so many blocks, which may not leave yet, and was used then. Returns its number.
  std::uint32_t insert(EntryKey key, std::int64_t first_block, std::int64_t blocks, SimTime used);
  std::uint32_t insert(EntryKey key, std::int64_t first_block, std::int64_t blocks) {
    return insert(key, first_block, blocks, now_);
  }
  /// An entry of a block that has no key.
  std::uint32_t insert_keyless();
  /// A request finds it, and uses it until `release`.
  void hit(std::uint32_t entry);
  void release(std::uint32_t entry);
  /// The entry keeps its first blocks. The others, from the block with this key on, are an entry of
  /// the same state, whose number is returned. It may not leave yet.
  std::uint32_t split(std::uint32_t entry, EntryKey key, std::int64_t first_blocks);
  /// The entry has other blocks now.
  void resize(std::uint32_t entry, std::int64_t first_block, std::int64_t blocks);
  void remove(std::uint32_t entry);
  /// Whether it may leave.
  void offer(std::uint32_t entry, bool may_leave) {
    offer_last(entry, may_leave ? entries_[entry].blocks : 0);
  }
  /// So many of its last blocks may leave, and if entries leave whole all or none.
  void offer_last(std::uint32_t entry, std::int64_t blocks);

  [[nodiscard]] bool looks_ahead() const { return ahead_ != nullptr; }
  /// Itself, if its policy looks ahead; else null.
  [[nodiscard]] PolicyOrder* looking_ahead() { return looks_ahead() ? this : nullptr; }

  // The queue, if the policy looks ahead.

  /// It outlives this. Without one no request waits.
  void set_queue(const QueueView& queue) { ahead_->queue = &queue; }
  /// A request with this prompt begins to wait.
  void begin_waiting(const Context& prompt, QueuePosition position);
  void end_waiting(QueuePosition position);

  /// Asks the policy for entries with so many blocks. `newcomer`: the room is for this block, and
  /// the admission policy may refuse that it replaces a victim. Where entries leave in part, no
  /// more leave in the background. `stays`: a set with such an entry is refused. False: none shall
  /// leave.
  [[nodiscard]] bool choose(std::int64_t blocks, Demand demand, const EntryKey* newcomer,
                            const Stays* stays = nullptr);
  /// Adds to the chosen entries (none without a successful choice) the first ones to come in, until
  /// there are so many blocks: a request needs their memory, whatever the policy says.
  void choose_oldest(std::int64_t blocks);
  /// A chosen entry, and the number of blocks that it keeps.
  struct Chosen {
    std::uint32_t entry = kNone;
    std::int64_t keep = 0;
  };
  /// Not taken yet.
  [[nodiscard]] const std::vector<Chosen>& chosen() const { return chosen_; }
  /// In order. They have to leave one after the other, by `remove` or in part.
  [[nodiscard]] std::vector<Chosen> take_chosen() { return std::exchange(chosen_, {}); }
  /// They have been taken.
  void clear_chosen() { chosen_.clear(); }

  [[nodiscard]] bool filters() const { return admission_ != nullptr; }
  [[nodiscard]] bool admits(EntryKey key) const {
    return admission_ == nullptr || admission_->admits(key);
  }
  /// A request has used or made a block with this key.
  void note_use(EntryKey key) {
    if (admission_ != nullptr) {
      admission_->on_use(key);
    }
  }
  [[nodiscard]] bool is_offered(std::uint32_t entry) const { return offers(EntryId{entry}); }
  [[nodiscard]] EntryKey key(std::uint32_t entry) const { return entries_[entry].key; }
  void check_invariants() const;

 private:
  struct Entry {
    EntryKey key;
    std::int64_t first_block = 0;
    std::int64_t blocks = 0;
    /// The first ones, which may not leave; if it is offered.
    std::int64_t stay = 0;
    SimTime inserted;
    SimTime used;
    /// Grows with each entry that comes in.
    std::uint64_t arrival = 0;
  };

  struct LookAhead {
    const QueueView* queue = nullptr;
    WaitingRequests waiting;
    /// Entries by their first block.
    std::set<std::tuple<StreamId, std::int64_t, std::uint32_t>> entries;
    /// Scratch of a request that begins to wait.
    std::vector<Stretch> path;
  };

  std::uint32_t make(const Entry& entry);
  [[nodiscard]] std::tuple<StreamId, std::int64_t, std::uint32_t> place(std::uint32_t entry) const {
    return {place_of(entries_[entry].key).first, entries_[entry].first_block, entry};
  }
  /// Position of the first request that waits for an entry.
  [[nodiscard]] QueuePosition first_waiting(std::uint32_t entry) const;
  /// The policy learns of a request that waits for an entry, or does not any more.
  void tell_queue_change(std::uint32_t entry, QueuePosition position, bool waits);
  /// The policy learns of all requests that wait for a new entry but the first, which it knows.
  void tell_others_waiting(std::uint32_t entry);
  void tell_path(std::span<const Stretch> path, QueuePosition position, bool waits);
  [[nodiscard]] EntryView view(std::uint32_t entry) const;
  [[nodiscard]] bool may_leave(EntryId victim, Tokens keep) override;
  [[nodiscard]] Tokens rounded(EntryId victim, Tokens keep) const override;
  [[nodiscard]] Tokens spared(EntryId victim) const override;
  /// The tokens that the victim keeps if only those leave that are still wanted.
  [[nodiscard]] Tokens spared_of_missing(EntryId victim) const;
  [[nodiscard]] Bytes bytes_of(EntryId victim, Tokens tokens) const override;

  Tokens block_;
  Bytes block_bytes_;
  const Streams& streams_;
  bool leaves_in_part_;
  std::unique_ptr<EvictionPolicy> eviction_;
  /// Null: everything is admitted.
  std::unique_ptr<AdmissionPolicy> admission_;
  /// Null: the policy does not look ahead.
  std::unique_ptr<LookAhead> ahead_;
  /// The policy says how much of a victim leaves.
  bool keeps_parts_;
  SimTime now_;
  std::uint64_t arrivals_ = 0;
  std::uint64_t keyless_ = 0;
  std::vector<Entry> entries_;
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> free_;
  const EntryKey* newcomer_ = nullptr;
  Demand demand_ = Demand::save;
  const Stays* stays_ = nullptr;
  std::vector<Chosen> chosen_;
};

/// Adds the policies that look ahead, in the order of their pools, of which some may be null.
template <class Pools>
void add_looking_ahead(const Pools& pools, std::vector<PolicyOrder*>& found) {
  for (const auto& pool : pools) {
    if (PolicyOrder* policies = pool != nullptr ? pool->looking_ahead() : nullptr) {
      found.push_back(policies);
    }
  }
}

/// Why blocks that are written to a pool need room there.
[[nodiscard]] inline Demand demand_of(const StoreRules& rules, std::size_t pool) {
  return pool > 0 && rules.edges[pool - 1].write == Write::on_evict ? Demand::demotion
                                                                    : Demand::save;
}

/// The policies of a pool of nodes; null if it has an order of its own.
[[nodiscard]] inline std::unique_ptr<PolicyOrder> make_policy_order(
    const StoreRules& rules, std::size_t pool, const Streams& streams,
    const PolicyRegistry& registry) {
  return has_own_order(rules, pool)
             ? nullptr
             : std::make_unique<PolicyOrder>(rules.pools[pool], rules.bytes_per_token, streams,
                                             registry);
}

}  // namespace kvtier
