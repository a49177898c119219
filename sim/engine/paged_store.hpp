#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/engine/backend.hpp"
#include "sim/engine/config.hpp"
#include "sim/engine/decisions.hpp"
#include "sim/engine/lookup.hpp"
#include "sim/engine/pool.hpp"
#include "sim/engine/stored_kv.hpp"
#include "sim/engine/truncation.hpp"
#include "sim/policy/entry_list.hpp"
#include "sim/policy/policy.hpp"

namespace kvtier {

/// KV in blocks of tokens (PagedAttention): the blocks of HBM are shared by running requests and,
/// where the system has a tier in HBM, by the sessions between their turns; host memory (or CXL
/// memory) behind it takes what leaves HBM. A session is evicted in parts, from its end, so that
/// what is stored of it is always a head in HBM, a middle in host memory and a tail that was
/// dropped (Pensieve, arXiv 2312.05516).
///
/// A part that has been copied to host memory keeps its blocks in HBM until they are taken for
/// something else, the longest copied first; until then it is found there.
///
/// Policies choose who shrinks and by how much; the store owns blocks, copies and counting. One
/// copy to host memory is in flight at a time, and the next victim is chosen when it is done. Where
/// loads come first, none begins while one is in flight; a copy that has begun goes on.
/// Everything is O(log n) in the sessions stored.
class PagedStore final : public StoredKv {
 public:
  struct Setup {
    const RunConfig* config = nullptr;
    const PolicyRegistry* registry = nullptr;
    Backend* backend = nullptr;
    DecisionObserver* decisions = nullptr;
    /// The cookie of copies to host memory.
    std::uint64_t cookie = 0;
  };
  explicit PagedStore(const Setup& setup);
  ~PagedStore() override;

  // Running requests.

  [[nodiscard]] std::int64_t blocks(Tokens tokens) const {
    return (tokens.value + block_size_ - 1) / block_size_;
  }
  [[nodiscard]] std::int64_t capacity() const { return hbm_.total_capacity() / block_bytes_; }
  /// Blocks of HBM that can be taken now: free ones, and those whose copy is complete.
  [[nodiscard]] std::int64_t available() const { return free() + clean_; }
  /// The same if the session's own blocks are free for it to use.
  [[nodiscard]] std::int64_t available_to(SessionSlot session) const;

  /// What is found of a session's KV: a head in HBM, then a middle in host memory.
  struct Held {
    Tokens hbm;
    Tokens host;
    [[nodiscard]] Tokens tokens() const { return hbm + host; }
  };
  /// Of the first `most` tokens.
  [[nodiscard]] Held held(SessionSlot session, Tokens most) const;
  /// A request takes the blocks of `tokens` tokens, those that its session holds among them, and
  /// leaves nothing stored; the policy in HBM keeps an entry that it knows. The middle that is
  /// returned has to be loaded; its room in host memory is free after end_load.
  Held take(SessionSlot session, Tokens tokens, Tokens most_reused);
  /// Running requests take more blocks, which are available.
  void grow(std::int64_t blocks);
  /// A request that has the blocks of `tokens` tokens gives them back, but for `kept` tokens, which
  /// stay stored.
  void give_back(SessionSlot session, EntryKey key, Tokens tokens, Tokens kept);
  /// All loads are done.
  void end_load() {
    charge(host_, -loading_);
    loading_ = 0;
  }

  // Stored sessions.

  /// Policies here choose from the past alone and see no queue.
  [[nodiscard]] EntryId needed_entry(SessionSlot) const override { return kNoEntry; }
  [[nodiscard]] Placement placement(SessionSlot session) const override;

  /// Whether anything is stored between turns.
  [[nodiscard]] bool stores_anything() const { return hbm_.policy() != nullptr; }
  /// Why the session's KV, if part of it is missing, is not there.
  [[nodiscard]] LossCause loss(SessionSlot session) const;
  /// The session's history was cut, and what is stored of it is too.
  void truncate(SessionSlot session, const Truncation& cut);
  /// Nothing of what is stored can be used any more.
  void invalidate(SessionSlot session, LossCause cause);
  /// The session will not come back; what is stored stays until it is evicted.
  void forget(SessionSlot session);

  // Room.

  /// Blocks that should be available, beside what the share to copy ahead asks for.
  void want(std::int64_t blocks) { wanted_ = blocks; }
  /// Evicts what can be evicted now for what is wanted. Says whether anything changed.
  bool make_room();
  /// A copy to host memory is in flight; room comes when it is done.
  [[nodiscard]] bool copying() const { return copying_; }
  void on_copied();
  /// Copies ahead go on when one is done or a load is.
  [[nodiscard]] bool copies_ahead() const { return ahead_ > 0; }
  /// How many of the available blocks may be taken before the next copy ahead is due; nullopt while
  /// none can begin.
  [[nodiscard]] std::optional<std::int64_t> blocks_before_copying() const;

  // Counting.

  [[nodiscard]] std::size_t tier_count() const {
    return (hbm_.policy() != nullptr ? 1U : 0U) + (host_.policy() != nullptr ? 1U : 0U);
  }
  [[nodiscard]] Medium medium(std::size_t tier) const { return tier == 0 ? Medium::hbm : behind_; }
  /// The medium of the tier behind HBM.
  [[nodiscard]] Medium behind() const { return behind_; }
  [[nodiscard]] const Pool& hbm() const { return hbm_; }
  [[nodiscard]] TierCounters counters(std::size_t tier) const {
    return (tier == 0 ? hbm_ : host_).counters(backend_.now());
  }
  [[nodiscard]] std::size_t stored_entries() const { return live_ - in_use_; }
  /// Throws InvariantError if blocks, entries and policies do not agree, or running requests do not
  /// have so many blocks, if that is known.
  void check_invariants(std::optional<std::int64_t> running = {}) const;

 private:
  static constexpr SessionSlot kNoSession = UINT32_MAX;

  /// The borders of what is stored of a session, in tokens:
  /// 0 <= copying <= clean <= hbm <= end. HBM holds [0, hbm), host memory [clean, end), and
  /// [copying, clean) is on its way there.
  struct Parts {
    Tokens copying;
    Tokens clean;
    Tokens hbm;
    Tokens end;
    friend bool operator==(const Parts&, const Parts&) = default;
  };
  struct Entry {
    bool live = false;
    /// A request has it, and nothing is stored.
    bool in_use = false;
    /// The policy in HBM keeps it meanwhile.
    bool is_lent = false;
    EntryKey key;
    /// Of what is stored; free for others while a request has it.
    std::uint32_t place = 0;
    SessionSlot owner = kNoSession;
    Parts parts;
    SimTime first_stored;
    SimTime stored;
    SimTime session_began;
  };
  struct Session {
    EntryId entry = kNoEntry;
    /// Why what is missing is not there.
    LossCause loss = LossCause::not_stored;
    SimTime began = kNever;
  };
  /// Of whole blocks. The store knows what an entry frees, and which part of it may stay.
  class Blocks final : public Pool {
   public:
    Blocks(PagedStore& store, const Setup& setup) : Pool(setup), store_(store) {}

   private:
    [[nodiscard]] bool may_leave(EntryId id, Tokens keep) override {
      return store_.may_leave(*this, id, keep);
    }
    [[nodiscard]] Tokens rounded(EntryId id, Tokens keep) const override {
      return store_.rounded(*this, store_.entry(id).parts, keep);
    }
    [[nodiscard]] Bytes bytes_of(EntryId id, Tokens tokens) const override {
      return store_.bytes_of(*this, store_.entry(id).parts, tokens);
    }

    PagedStore& store_;
  };

  [[nodiscard]] Entry& entry(EntryId id) { return entries_[id.value]; }
  [[nodiscard]] const Entry& entry(EntryId id) const { return entries_[id.value]; }
  [[nodiscard]] EntryId entry_of(SessionSlot session) const {
    return session < sessions_.size() ? sessions_[session].entry : kNoEntry;
  }
  [[nodiscard]] std::int64_t free() const { return hbm_.unused() / block_bytes_; }
  [[nodiscard]] std::int64_t clean_blocks(const Parts& p) const {
    return blocks(p.hbm) - blocks(p.clean);
  }
  [[nodiscard]] std::int64_t coming_blocks(const Parts& p) const {
    return blocks(p.clean) - blocks(p.copying);
  }
  [[nodiscard]] std::int64_t host_blocks(const Parts& p) const { return blocks(p.end - p.copying); }
  /// What the tiers' policies see as held: in HBM what is only there, in host memory what is there.
  [[nodiscard]] Tokens held_in(const Pool& pool, const Parts& p) const {
    return &pool == &hbm_ ? p.copying : p.end - p.clean;
  }
  /// What the first `tokens` of that free when they leave. What lies in host memory need not begin
  /// at a block's border.
  [[nodiscard]] Bytes bytes_of(const Pool& pool, const Parts& p, Tokens tokens) const {
    return block_bytes_ *
           (&pool == &hbm_ ? blocks(tokens)
                           : blocks(p.clean + tokens - p.copying) - blocks(p.clean - p.copying));
  }
  /// A part of a block may free nothing, and can leave all the same.
  [[nodiscard]] Bytes offered(const Pool& pool, const Parts& p) const {
    const Tokens tokens = held_in(pool, p);
    return tokens.value > 0 ? std::max(Bytes(1), bytes_of(pool, p, tokens)) : Bytes(0);
  }
  [[nodiscard]] bool may_leave(const Pool& pool, EntryId id, Tokens keep);
  [[nodiscard]] Tokens rounded(const Pool& pool, const Parts& p, Tokens keep) const;
  [[nodiscard]] Tokens whole_blocks(Tokens tokens) const {
    return Tokens(tokens.value / block_size_ * block_size_);
  }
  /// Blocks that will be available when the copy in flight is done.
  [[nodiscard]] std::int64_t projected() const { return available() + coming_; }
  [[nodiscard]] std::int64_t target() const { return std::max(wanted_, ahead_); }

  [[nodiscard]] Pool::Setup pool_of(const Setup& setup, Medium medium) const;
  EntryId create(SessionSlot session, EntryKey key);
  /// Changes an entry and everything that follows from it: blocks, policies, order of copies. An
  /// entry of which nothing is left goes, unless a request has it.
  void set(EntryId id, const Parts& parts);
  void lend(EntryId id);
  void release(EntryId id);
  void tell(const Pool& pool, EntryId id, const Parts& from, const Parts& to);
  /// Shows the policies what they may choose of the entry.
  void offer(EntryId id);
  [[nodiscard]] EntryView view(EntryId id, Tokens tokens) const;
  /// Tells the backend what need not be held any more of an entry that was not taken.
  void tell_kept(EntryKey key, const Parts& before, const Parts& after);
  void reclaim(std::int64_t blocks);
  bool make_host_room(EntryId id, Tokens keep);
  void shrink_in_host(EntryId id, Tokens keep);
  /// Where an entry ends of which host memory keeps so many tokens: at a block's border, or where
  /// host memory begins.
  [[nodiscard]] Tokens end_in_host(const Parts& p, Tokens keep) const {
    return std::max(p.clean, p.copying + whole_blocks(p.clean + keep - p.copying));
  }
  void copy_to_host(EntryId id, Tokens keep);
  /// Blocks that are stored more.
  void charge(Pool& pool, std::int64_t blocks) {
    pool.charge_stored(block_bytes_ * blocks, backend_.now());
  }
  void log(DecisionKind kind, Medium medium, EntryId id, Tokens tokens);

  Backend& backend_;
  DecisionObserver* decisions_;
  std::uint64_t cookie_;
  Bytes bytes_per_token_;
  std::int64_t block_size_;
  Bytes block_bytes_;
  /// Blocks that copying ahead keeps available.
  std::int64_t ahead_ = 0;
  bool loads_first_;

  Medium behind_;
  Blocks hbm_;
  Blocks host_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_entries_;
  std::uint32_t places_ = 0;
  std::vector<std::uint32_t> free_places_;
  std::vector<Session> sessions_;
  std::size_t live_ = 0;
  std::size_t in_use_ = 0;
  /// Entries with blocks in HBM whose copy is complete, the longest copied first.
  EntryList copied_;

  // Blocks of HBM.
  std::int64_t clean_ = 0;
  std::int64_t coming_ = 0;
  std::int64_t wanted_ = 0;
  /// Blocks of host memory.
  std::int64_t loading_ = 0;

  bool copying_ = false;
  /// The victim is copied ahead of time, and host memory has room for the copy.
  bool only_ahead_ = false;
  bool copy_fits_ = false;
  /// The last attempt to copy ahead found no room that it may take.
  bool ahead_is_stuck_ = false;
  /// Whose part it is; kNoEntry if it is of no use any more.
  EntryId copied_entry_ = kNoEntry;
};

}  // namespace kvtier
