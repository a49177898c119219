#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <boost/container/static_vector.hpp>

#include "sim/backend/backend.hpp"
#include "sim/backend/topology.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/histogram.hpp"
#include "sim/core/ring.hpp"
#include "sim/policy/policy.hpp"
#include "sim/store/decisions.hpp"
#include "sim/store/sessions/lookup.hpp"
#include "sim/store/sessions/move.hpp"
#include "sim/store/sessions/pool.hpp"
#include "sim/store/sessions/store_facts.hpp"
#include "sim/store/sessions/stored_kv.hpp"
#include "sim/store/sessions/truncation.hpp"
#include "sim/store/tier_config.hpp"

namespace kvtier {

/// Keeps the stored KV: which entry is in which tier, its account, and its moves between tiers.
/// Policies choose; the store owns capacity, pinning, transfers and counting. Sessions own
/// entries: nothing outside knows that an entry holds a session.
///
/// An entry's copies are prefixes of its tokens. The fastest tier takes what finished turns save
/// (in HBM it is there already); each slower tier takes what leaves the one above. Transfers move
/// actual bytes, accounts charge reservations: whole blocks, or `StoreFacts::window_account`.
class SessionStore final : public StoredKv {
 public:
  struct Setup {
    StoreFacts facts;
    const PolicyRegistry* registry = nullptr;
    Backend* backend = nullptr;
    const QueueView* queue = nullptr;
    const RunningView* running = nullptr;
    DecisionObserver* decisions = nullptr;
    /// Payload of the timer at which prefetching is to be thought of again (on_timer).
    std::uint64_t timer = 0;
    /// Mark of its transfers, beside the number of the move, so that completions find it.
    std::uint64_t mark = 0;
  };
  explicit SessionStore(const Setup& setup);
  ~SessionStore() override;

  [[nodiscard]] bool stores_anything() const { return !tiers_.empty(); }

  // Commands of the control plane.

  void on_enqueued(SessionSlot session, QueuePosition position);
  void on_dequeued(SessionSlot session);
  /// The session's history was cut, and what is stored of it is too.
  void truncate(SessionSlot session, const Truncation& cut);
  /// Nothing of what is stored can be used any more.
  void invalidate(SessionSlot session, LossCause cause);
  /// The session's turn is admitted and needs `history` tokens. Its entry is in use until `save`.
  Lookup admit(SessionSlot session, EntryKey key, Tokens history);
  /// The KV that `admit` found is in HBM now (or its load was not needed).
  void end_load(SessionSlot session);
  /// The session's running turn is followed by one at this time; kNever if it is the last. For
  /// policies with oracle knowledge, before `save`.
  void set_next_use(SessionSlot session, SimTime time);
  /// Whether the entry of a waiting session could be loaded ahead of its turn, and from where: only
  /// from the fastest tier outside of HBM, and only when all of it lies there. Pins it until
  /// `admit`.
  [[nodiscard]] std::optional<Medium> begin_preload(SessionSlot session);
  /// Tokens of the history that the entry found by begin_preload holds.
  [[nodiscard]] Tokens stored_tokens(SessionSlot session) const;
  /// New KV of a running turn exists: its transfer to the fastest tier begins.
  void begin_save(SessionSlot session, EntryKey key, Tokens prompt);
  /// The turn ended with `tokens` in all; what is not saved yet stays in the HBM write buffer until
  /// it is.
  void save(SessionSlot session, EntryKey key, Tokens tokens);
  /// The session will not come back. Its entry stays until it is evicted; the number is free for
  /// another session.
  void forget(SessionSlot session);
  /// The transfer of this move is complete.
  void on_transfer(MoveId id);
  [[gnu::noinline]] void on_timer();

  // Prompts that several sessions begin with: entries of their own, which are found by what they
  // hold. Nothing happens to a session that has joined none.

  /// The session begins with this prompt, until it is forgotten.
  void join_prompt(SessionSlot session, EntryKey key, Tokens tokens);
  [[nodiscard]] bool has_joined_prompt(SessionSlot session) const {
    return member(session) != nullptr;
  }
  /// The session's turn is admitted and needs the prompt; before `admit`. A prompt that is in the
  /// fastest tier, or has room there, is held there once for all turns that run. Without room the
  /// turn has a copy of its own, of which nothing is stored.
  Lookup admit_prompt(SessionSlot session);
  /// The turn's prefill is done: its prompt's KV exists.
  void end_prefill(SessionSlot session);
  /// The turn has ended.
  void release_prompt(SessionSlot session);

  // Queries of the control plane.

  /// With the accounts of running requests and the read buffer, which the control plane charges.
  [[nodiscard]] Pool& hbm() { return *hbm_; }
  [[nodiscard]] const Pool& hbm() const { return *hbm_; }
  /// Saved KV of entries whose save is not complete: it stays in HBM, where the next turn finds it,
  /// and the write buffer does not count it.
  [[nodiscard]] Bytes saved_in_hbm() const;
  /// Entries whose save is not complete.
  [[nodiscard]] std::int64_t saves_in_progress() const { return saving_; }
  [[nodiscard]] EntryId entry_of(SessionSlot session) const {
    return session < sessions_.size() ? sessions_[session].entry : kNoEntry;
  }
  /// Whether the admitted turn uses the fastest tier's copy of its prompt, or a waiting one would.
  [[nodiscard]] bool shares_prompt(SessionSlot session) const;
  // StoredKv
  [[nodiscard]] EntryId needed_entry(SessionSlot session) const override;
  [[nodiscard]] Placement placement(SessionSlot session) const override;
  /// Called when the fetch that a late lookup waits for is done; the entry can then be loaded from
  /// `medium`.
  std::function<void(SessionSlot, Medium)> on_load_ready;

  [[nodiscard]] std::size_t tier_count() const { return tiers_.size(); }
  [[nodiscard]] Medium medium(std::size_t index) const { return tier(index).medium(); }
  [[nodiscard]] TierCounters counters(std::size_t index) const {
    return tier(index).counters(backend_.now());
  }
  [[nodiscard]] const PrefetchCounters& prefetches() const { return prefetches_; }
  [[nodiscard]] std::size_t live_entries() const { return live_entries_; }
  /// Throws InvariantError if accounts, copies and policies do not agree, or the control plane did
  /// not charge what it says.
  void check_invariants(const Pool::Sums& control_plane = {}) const;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::uint8_t kNoTier = UINT8_MAX;

  enum class CopyState : std::uint8_t { absent, arriving, resident };

  struct Copy {
    Tokens tokens;
    Bytes account;
    CopyState state = CopyState::absent;
    std::uint16_t pins = 0;
  };

  /// A turn's use of its shared prompt.
  enum class PromptUse : std::uint8_t {
    none,          // it has not been admitted, or has a copy of its own
    computing,     // its prefill makes the fastest tier's copy
    loading,       // its load does
    loading_copy,  // it loads a copy of its own
    awaited,       // a fetch in flight does
    held,          // the fastest tier's copy is pinned for it
  };
  struct Prompt {
    EntryKey key;
    Tokens tokens;
    /// Live sessions that begin with it.
    std::int64_t owners = 0;
    EntryId entry = kNoEntry;
    /// Why there is no entry.
    LossCause loss = LossCause::not_stored;
    /// Positions of its owners' requests.
    std::set<QueuePosition> waiting;
  };
  /// A session that has joined a prompt.
  struct Member {
    std::uint32_t prompt = kNone;
    PromptUse use = PromptUse::none;
    QueuePosition position = kNotQueued;
  };

  /// A power of two in size: finding one takes no multiplication.
  struct alignas(32) Session {
    EntryId entry = kNoEntry;
    /// Why it has no entry; not_stored until its first turn has ended.
    LossCause loss = LossCause::not_stored;
    /// When its first turn was admitted; kept when its entry is lost, until the session ends.
    SimTime began = kNever;
  };

  /// Whole cache lines, since there are many and each is looked at seldom.
  struct alignas(64) Entry {
    /// As policies see it. What differs between tiers is that of the tier shown last: see `view`.
    EntryView seen;
    SessionSlot owner = kNone;
    /// Holds a shared prompt, which has no owner but its sessions.
    std::uint32_t prompt = kNone;
    /// From the GPUs to the fastest tier, begun while its turn runs.
    MoveId save;
    /// To the GPUs, or to the fastest tier: a load, a preload or a fetch.
    MoveId read;
    /// The fetch that brought what no turn has used yet.
    MoveId fetched;
    /// By tier: to the next slower one.
    std::array<MoveId, kMedia> writes;
    bool live = false;
    /// Its turn runs (or waits for its load): the KV is in HBM.
    bool in_use = false;
    /// Invalidated while a move needs a copy of it: goes when that is done.
    bool doomed = false;
    LossCause loss = LossCause::capacity;
    /// Tiers whose copy is resident: a bit each.
    std::uint8_t residents = 0;
    /// Tiers whose policy knows the entry: a bit each. Those that hold it and do not let it go, and
    /// the fastest while a turn has what it held.
    std::uint8_t known = 0;
    /// Tiers whose copy, or its end, is on its way out, a bit each: no longer the policy's, its
    /// account is freed when the tier below has it.
    std::uint8_t leaving = 0;
    QueuePosition position = kNotQueued;
    std::array<Copy, kMedia> copies;
    /// Tokens of the whole sequence that is stored or being saved.
    Tokens tokens;
  };

  struct Tier : Pool {
    explicit Tier(const Setup& setup)
        : Pool(setup), config(setup.tier != nullptr ? *setup.tier : TierConfig{}) {}
    TierConfig config;
    /// Writes from this tier to the next one; the first may be in flight.
    Ring<MoveId> writes;
    /// Saves and fetches that wait for room here, first come first served.
    Ring<MoveId> waiting;
  };

  enum class Room { granted, coming, refused };
  /// A turn's use of an entry. The use of a copy that stays in its tier ends at once.
  enum class Use : std::uint8_t {
    at_once,  // all copies stay
    begins,   // the turn has what the fastest tier holds
    ends,     // and has it no more
  };

  [[nodiscard]] Entry& entry(EntryId id) { return entries_[id.value]; }
  [[nodiscard]] const Entry& entry(EntryId id) const { return entries_[id.value]; }
  /// The entry's write from the tier, if its transfer is in flight.
  [[nodiscard]] Move* active_write(const Entry& e, std::size_t from) {
    const MoveId id = e.writes[from];
    return id.valid() && moves_[id].transfer.valid() ? &moves_[id] : nullptr;
  }
  /// Its turn has ended: what is not in the fastest tier yet is in the write buffer.
  [[nodiscard]] static bool is_saving(const Entry& e) { return e.save.valid() && !e.in_use; }
  [[nodiscard]] bool reads_from(const Entry& e, std::size_t index) const {
    return e.read.valid() && moves_[e.read].from == index;
  }
  [[nodiscard]] bool is_fetched_now(const Entry& e) const {
    return e.read.valid() && moves_[e.read].transfer.valid();
  }
  [[nodiscard]] static bool has_moves(const Entry& e) {
    std::uint32_t all = e.save.value & e.read.value;  // no move: all bits
    for (const MoveId id : e.writes) {
      all &= id.value;
    }
    return all != MoveId{}.value;
  }
  [[nodiscard]] static bool is_leaving(const Entry& e, std::size_t index) {
    return (e.leaving >> index & 1U) != 0;
  }
  static void set_leaving(Entry& e, std::size_t index, bool leaves) {
    const unsigned bit = 1U << index;
    e.leaving = static_cast<std::uint8_t>(leaves ? e.leaving | bit : e.leaving & ~bit);
  }
  [[nodiscard]] static EntryId id_of(const Entry& e) { return e.seen.id; }
  [[nodiscard]] static bool is_arriving(const Entry& e) {
    return std::any_of(e.copies.begin(), e.copies.end(),
                       [](const Copy& copy) { return copy.state == CopyState::arriving; });
  }
  /// Whether the fastest tier's policy keeps the entry while a turn has its room.
  [[nodiscard]] static bool is_lent(const Entry& e) { return (e.known & ~e.residents & 1U) != 0; }
  /// Visits the moves of an entry that are not done.
  template <class Visit>
  void for_each_move(const Entry& e, Visit visit) {
    for (const MoveId id : {e.save, e.read, e.writes[0], e.writes[1], e.writes[2]}) {
      if (id.valid()) {
        visit(moves_[id]);
      }
    }
  }
  /// Visits the tiers of a mask, the fastest first.
  template <class Visit>
  static void for_each_tier_in(std::uint8_t mask, Visit visit) {
    for (unsigned left = mask; left != 0; left &= left - 1) {
      visit(static_cast<std::size_t>(std::countr_zero(left)));
    }
  }
  [[nodiscard]] Tier& tier(std::size_t index) { return *tier_at_[index]; }
  [[nodiscard]] const Tier& tier(std::size_t index) const { return *tier_at_[index]; }
  [[nodiscard]] Bytes account(const Tier& tier, Tokens tokens) const;
  /// Bytes that move when tokens after the first `stored` ones are written: whole blocks.
  [[nodiscard]] Bytes write_bytes(const Tier& tier, Tokens stored, Tokens tokens) const;
  [[nodiscard]] Bytes actual_bytes(Tokens tokens) const { return bytes_per_token_ * tokens.value; }
  /// The entry as the tier's policy sees it, until the next call.
  [[nodiscard]] const EntryView& view(std::size_t tier, Entry& e) const {
    show(tier, e, e.seen);
    return e.seen;
  }
  /// Sets in the view what differs between tiers.
  void show(std::size_t tier, const Entry& e, EntryView& view) const;
  [[nodiscard]] SimTime next_use(EntryId id) const {
    return id.value < next_uses_.size() ? next_uses_[id.value] : kNever;
  }
  /// The tier with the longest resident prefix, the fastest of equal ones; kNoTier if there is
  /// none.
  [[nodiscard]] std::uint8_t best_tier(const Entry& e) const;
  [[nodiscard]] bool needs_fetch(EntryId id) const;
  [[nodiscard]] SimDuration fetch_duration(EntryId id) const;
  /// The entry leaves the fastest tier, for its turn or before it, and may have been fetched.
  void end_prefetched(Entry& e, bool used);
  /// The fastest tier outside of HBM, from which a request's first layers can be loaded ahead;
  /// tier_count() if there is none.
  [[nodiscard]] std::size_t host_tier() const { return !tiers_.empty() && keeps_in_hbm(0) ? 1 : 0; }
  /// KV of turns is saved where they ran: no transfer, and nothing to load on a hit.
  [[nodiscard]] bool keeps_in_hbm(std::size_t index) const {
    return tier(index).medium() == Medium::hbm;
  }

  /// Whether the entry may come into the tier; what grows there is in already.
  [[nodiscard]] bool admits(std::size_t index, EntryId id) const {
    return entry(id).copies[index].state != CopyState::absent ||
           tier(index).admits(entry(id).seen.key);
  }
  void tell_admission(EntryKey key) {
    for (Tier& t : tiers_) {
      t.tell_admission(key);
    }
  }

  EntryId new_entry(EntryKey key);
  EntryId create_entry(EntryKey key, SessionSlot owner);
  EntryId find_or_create(SessionSlot session, EntryKey key) {
    const EntryId id = entry_of(session);
    return id.valid() ? id : create_entry(key, session);
  }
  void release_if_empty(Entry& e) {
    if (e.residents == 0 && e.live && !e.in_use && !has_moves(e) && !is_arriving(e)) {
      release(e);
    }
  }
  void release(Entry& e);
  /// To the copy's account, and that of its tier.
  void charge(std::size_t tier, Entry& e, Bytes bytes);
  [[nodiscard]] Bytes needed_account(std::size_t index, const Entry& e) const {
    return account(tier(index), e.copies[index].tokens);
  }
  /// Charges what the copy's tokens need now. If it is offered, `offer` has to follow.
  void recharge(std::size_t tier, Entry& e);
  void make_resident(std::size_t tier, Entry& e, Tokens tokens);
  /// The policy gets a copy that it may choose, and every request that waits for it.
  void tell_inserted(std::size_t index, Entry& e) {
    Tier& t = tier(index);
    e.known |= static_cast<std::uint8_t>(1U << index);
    offer(index, e);
    t.policy()->on_insert(view(index, e), backend_.now());
    if (t.sees_future()) [[unlikely]] {
      t.policy()->on_next_use(id_of(e), next_use(id_of(e)));
    }
    if (e.prompt != kNone) [[unlikely]] {
      tell_of_the_others(t, e);
    }
  }
  /// It leaves for good.
  void tell_removed(std::size_t index, Entry& e) {
    Tier& t = tier(index);
    e.known &= static_cast<std::uint8_t>(~(1U << index));
    t.withdraw(id_of(e));
    t.policy()->on_remove(id_of(e), backend_.now());
  }
  void tell_of_the_others(Tier& tier, const Entry& e);
  void tell_queue_change(Entry& e, const QueueChange& change);
  /// To a tier that takes what is created above it.
  void write_through(std::size_t from, Entry& e);
  /// The policy may keep the entry of a copy that a turn takes.
  void remove_copy(std::size_t tier, Entry& e, LossCause cause, bool lends = false);
  [[nodiscard]] bool moves_up(std::size_t tier) const;
  /// The entry moves up to HBM: an exclusive tier gives up its account, an inclusive one keeps its
  /// copy.
  void leave_upwards(std::size_t tier, Entry& e);
  /// The turn's KV is back in the fastest tier.
  void take_back(Entry& e);
  /// The turn's KV does not come back to the fastest tier.
  void give_up_lent(Entry& e);
  /// Removes a copy that a write in flight may still read or write.
  void give_up(std::size_t tier, Entry& e, bool lends = false);
  void stop_leaving(std::size_t tier, Entry& e);
  void touch(Entry& e, Use use);
  void pin(std::size_t tier, Entry& e);
  void unpin(std::size_t tier, Entry& e);
  /// The policy may choose a copy that it knows, once that is not read or written any more.
  void offer(std::size_t index, const Entry& e);
  /// The account of a copy that was truncated while it was pinned.
  void settle_unpinned(std::size_t tier, Entry& e);

  /// Sees to it that `room` will be free for the newcomer, if there is one. If no set of victims
  /// frees it: evicts nothing and returns false.
  [[nodiscard]] bool choose_victims(std::size_t index, Bytes room, Demand demand,
                                    EntryId newcomer) {
    const Bytes missing = room - tier(index).free_to_come();
    return missing.value <= 0 || take_victims(index, missing, demand, newcomer);
  }
  [[nodiscard]] bool take_victims(std::size_t tier, Bytes missing, Demand demand, EntryId newcomer);
  /// For a policy with oracle knowledge; until the next call.
  [[nodiscard, gnu::noinline]] const EntryView& show_newcomer(const Tier& tier, EntryId id);
  [[nodiscard]] RoomRequest room_request(std::size_t tier, Demand demand, EntryId newcomer) const;
  Room find_room(std::size_t index, Bytes bytes, Demand demand, EntryId newcomer) {
    const Tier& t = tier(index);
    if (bytes > t.capacity() || !choose_victims(index, bytes, demand, newcomer)) {
      return Room::refused;
    }
    return t.waiting.empty() && t.free() >= bytes ? Room::granted : Room::coming;
  }
  [[nodiscard]] static bool has_above(const Entry& e, std::size_t tier, Tokens tokens);
  void evict(std::size_t tier, Entry& e, Demand demand);
  [[nodiscard]] bool expired(std::size_t index, const Entry& e) const {
    return tier(index).expired(e.seen.last_used, backend_.now());
  }
  void drop_expired() {
    if (expires_) [[unlikely]] {
      drop_all_expired();
    }
  }
  void drop_all_expired();

  // Moves.

  /// Bytes that the move's copy takes there beyond those that it has.
  [[nodiscard]] Bytes wanted_room(const Move& move) const {
    return account(tier(move.to), move.tokens) - entry(move.entry).copies[move.to].account;
  }
  void wait_for_room(MoveId id);
  /// It has its room: its transfer begins, unless it did already.
  void grant(MoveId id);
  /// While can_grant says so, which it does.
  bool grant_waiting(std::size_t tier);
  void leave_line(MoveId id);
  /// The copy takes room for what comes.
  void arrive(std::size_t tier, Entry& e, Bytes room);
  /// Nothing comes: its room is free.
  void drop_arriving(std::size_t tier, Entry& e);
  /// The move's result is not wanted. What waits gives back its room and its source at once. Of
  /// what is in flight the backend moves all bytes: a save frees its room meanwhile, the others
  /// hold their copies until then.
  void cancel(MoveId id);
  void cancel_save(MoveId id);
  /// Starts a transfer of the entry's tokens from `first` to the move's last.
  void start_transfer(MoveId id, Medium from, Bytes bytes, Tokens first, bool open = false);

  void queue_write(std::size_t from, Entry& e);
  void end_write(std::size_t from);
  bool start_writes(std::size_t from);
  void finish_write(MoveId id);
  /// A write to this tier has ended. Its copy is written on; that of a cancelled write leaves.
  void write_on(std::size_t to, Entry& e, bool is_cancelled);
  void tell_demoted(const Entry& e) {
    if (e.position != kNotQueued) {
      prefetch_->on_demoted(id_of(e), e.position);
    }
  }

  /// Pins what it reads.
  MoveId begin_read(Entry& e, std::uint8_t source, std::uint8_t to);
  void end_read(MoveId id);
  /// Returns the tier that it read.
  std::uint8_t finish_load(Entry& e);
  void start_fetch(EntryId id);
  void finish_fetch(MoveId id);
  void try_prefetch();

  [[nodiscard]] Member* member(SessionSlot session) {
    return session < members_.size() && members_[session].prompt != kNone ? &members_[session]
                                                                          : nullptr;
  }
  [[nodiscard]] const Member* member(SessionSlot session) const {
    return const_cast<SessionStore*>(this)->member(session);
  }
  [[nodiscard]] Placement placement_of(EntryId id) const;
  [[nodiscard, gnu::noinline]] EntryId needed_by_member(EntryId own, const Member& m) const;
  void create_prompt_entry(std::uint32_t prompt);
  /// All of it is in the fastest tier.
  [[nodiscard]] bool is_here(const Entry& e) const {
    return e.copies[0].state == CopyState::resident && e.copies[0].tokens == e.tokens;
  }
  /// Another turn computes or loads it.
  [[nodiscard]] static bool comes_for_another(const Entry& e) {
    return e.copies[0].state == CopyState::arriving || e.read.valid();
  }
  [[nodiscard]] bool claim_room_for_prompt(SessionSlot session, Tokens tokens);
  void hold_prompt(Member& member);
  void end_prompt_load(SessionSlot session);
  void prompt_waits(SessionSlot session, QueuePosition position);
  void prompt_leaves_queue(SessionSlot session);
  void leave_prompt(SessionSlot session);
  void forget_prompt_if_unused(std::uint32_t prompt);
  void check_prompts() const;
  [[nodiscard]] Bytes check_moves() const;

  /// Tells the backend what the tier keeps. Of a key that has a new entry nothing is said. Nor of
  /// the fastest tier from a turn's admission until its save begins, because its load reads there;
  /// nor of a tier in HBM until the save is done.
  void tell_kept(std::size_t index, const Entry& e) {
    if (backend_.has_bytes()) [[unlikely]] {
      tell_bytes_kept(index, e);
    }
  }
  [[gnu::noinline]] void tell_bytes_kept(std::size_t index, const Entry& e);
  /// The turn that has ended needs no HBM for its KV, but for what a tier there has of it.
  void leave_hbm(const Entry& e) {
    if (backend_.has_bytes()) [[unlikely]] {
      backend_.set_resident_prefix(Medium::hbm, e.seen.key,
                                   keeps_in_hbm(0) ? e.copies[0].tokens : Tokens(0));
    }
  }

  /// The entry's save, begun now if there is none.
  MoveId save_of(Entry& e) {
    return e.save.valid() ? e.save : e.save = moves_.begin(id_of(e), kGpu, 0);
  }
  void submit_save(MoveId id, Tokens tokens, bool more_follows);
  /// HBM does not keep what a turn left in it: it goes to the next tier.
  [[nodiscard]] Room fall_through(MoveId id);
  void finish_save(MoveId id);
  void end_save(const Move& move);
  void drop_save(MoveId id, LossCause cause);

  void trim(std::size_t tier);
  /// Whether the first that waits for room can have it, or needs other victims than were chosen.
  [[nodiscard]] bool can_grant(const Tier& t) const {
    return !t.waiting.empty() &&
           (t.free() >= moves_[t.waiting.front()].room || t.free_to_come().value < 0);
  }
  /// Lets waiting moves go on after anything changed.
  [[gnu::always_inline]] void settle() {
    const bool may_fetch = can_fetch_ && !fetching_.valid();
    if (startable_ != 0 || keeps_free_ || may_fetch || waiting_ != 0) {
      settle_moves();
    }
  }
  void settle_moves();
  /// One round of it, where a tier keeps a free buffer. Says whether anything changed.
  [[nodiscard, gnu::noinline]] bool settle_with_free_buffers();
  void log(DecisionKind kind, std::size_t tier, const Entry& e, Tokens tokens,
           Demand demand = Demand::save) {
    if (decisions_ != nullptr) {
      report(kind, tier, e, tokens, demand);
    }
  }
  void report(DecisionKind kind, std::size_t tier, const Entry& e, Tokens tokens, Demand demand);

  Topology topology_;
  Backend& backend_;
  const QueueView& queue_;
  const RunningView* running_;
  DecisionObserver* decisions_;
  std::uint64_t timer_;
  std::uint64_t mark_;
  SaveMode save_mode_;
  /// Bytes of a token of stored KV.
  Bytes bytes_per_token_;
  /// Charge of a copy of any length; zero: by its length.
  Bytes window_account_;
  boost::container::static_vector<Tier, kMedia> tiers_;
  /// Their addresses, which take fewer instructions to find than places in the array.
  std::array<Tier*, kMedia> tier_at_{};
  /// The fastest tier, or one that stores nothing.
  std::unique_ptr<Tier> no_tier_;
  Tier* hbm_;
  std::unique_ptr<PrefetchPolicy> prefetch_;
  std::function<bool(EntryId)> needs_fetch_;
  std::function<SimDuration(EntryId)> fetch_duration_;
  /// The prefetch policy's context. Time and mean size are set for each call.
  PrefetchContext prefetch_context_;
  /// The next time at which a timer asks for a fetch.
  SimTime asks_at_ = kNever;
  PrefetchCounters prefetches_;

  Moves moves_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_entries_;
  /// By entry, as far as it was told.
  std::vector<SimTime> next_uses_;
  /// The last result of show_newcomer.
  EntryView newcomer_;
  std::vector<Session> sessions_;
  std::size_t live_entries_ = 0;
  std::vector<Prompt> prompts_;
  std::vector<std::uint32_t> free_prompts_;
  std::map<EntryKey, std::uint32_t> prompt_of_key_;
  std::vector<Member> members_;  // by session
  /// The session whose turn waits for the fetch of its prompt.
  SessionSlot awaiting_prompt_ = kNone;
  /// Over all tiers, for the mean size of an entry.
  Bytes used_;
  std::int64_t residents_ = 0;
  /// Tiers in which anything waits for room, a bit each.
  unsigned waiting_ = 0;

  /// The fetch that waits or is in flight: one at a time.
  MoveId fetching_;
  /// There is a slower tier to fetch from.
  bool can_fetch_ = false;
  /// A tier keeps a free buffer.
  bool keeps_free_ = false;
  /// A tier has a time to live.
  bool expires_ = false;
  /// A tier has an admission policy.
  bool filters_ = false;
  /// Tiers whose next write has not begun, a bit each.
  unsigned startable_ = 0;
  std::int64_t saving_ = 0;
};

// Small and called for nearly every move.

inline Bytes SessionStore::write_bytes(const Tier& tier, Tokens stored, Tokens tokens) const {
  const std::int64_t block = tier.config.block_size.value;
  const std::int64_t blocks = (tokens.value + block - 1) / block - stored.value / block;
  return bytes_per_token_ * (blocks * block);
}

/// The whole of an entry.
inline Bytes SessionStore::account(const Tier& tier, Tokens tokens) const {
  if (tokens.value == 0) {
    return Bytes(0);
  }
  if (window_account_.value != 0) {
    return window_account_;
  }
  return write_bytes(tier, Tokens(0), tokens);
}

inline void SessionStore::charge(std::size_t index, Entry& e, Bytes bytes) {
  if (index == 0 && e.prompt != kNone) [[unlikely]] {
    tier(0).note_shared(bytes);
  }
  used_ += bytes;
  e.copies[index].account += bytes;
  tier(index).charge_stored(bytes, backend_.now());
}

inline void SessionStore::show(std::size_t index, const Entry& e, EntryView& view) const {
  const Copy& copy = e.copies[index];
  view.tokens = copy.tokens;
  view.bytes = copy.account;
  view.queue_position = tier(index).sees_queue() ? e.position : kNotQueued;
}

inline void SessionStore::offer(std::size_t index, const Entry& e) {
  const Copy& copy = e.copies[index];
  if (copy.pins == 0 && (e.known & e.residents & 1U << index) != 0) {
    tier(index).offer(id_of(e), copy.account, e.seen.last_used);
  }
}

inline void SessionStore::recharge(std::size_t index, Entry& e) {
  if (const Bytes needed = needed_account(index, e); needed != e.copies[index].account) {
    charge(index, e, needed - e.copies[index].account);
  }
}

inline std::uint8_t SessionStore::best_tier(const Entry& e) const {
  std::uint8_t best = kNoTier;
  Tokens most(0);
  for_each_tier_in(e.residents, [&](std::size_t i) {
    if (e.copies[i].tokens > most) {
      most = e.copies[i].tokens;
      best = static_cast<std::uint8_t>(i);
    }
  });
  return best;
}

inline void SessionStore::pin(std::size_t index, Entry& e) {
  Copy& copy = e.copies[index];
  if (is_leaving(e, index)) [[unlikely]] {
    stop_leaving(index, e);
  }
  if (copy.pins++ == 0) {
    tier(index).withdraw(id_of(e));
  }
}

inline void SessionStore::unpin(std::size_t index, Entry& e) {
  Copy& copy = e.copies[index];
  KVTIER_ASSERT(copy.pins > 0, "only a pinned copy can be unpinned");
  if (--copy.pins == 0) {
    offer(index, e);
    if (needed_account(index, e) != copy.account) [[unlikely]] {
      settle_unpinned(index, e);
    }
  }
}

inline void SessionStore::arrive(std::size_t index, Entry& e, Bytes room) {
  Copy& copy = e.copies[index];
  charge(index, e, room);
  if (copy.state == CopyState::absent) {
    copy.state = CopyState::arriving;
  }
}

inline MoveId SessionStore::begin_read(Entry& e, std::uint8_t source, std::uint8_t to) {
  pin(source, e);
  e.read = moves_.begin(id_of(e), source, to);
  Move& move = moves_[e.read];
  move.holds_source = true;
  move.tokens = e.copies[source].tokens;
  return e.read;
}

/// Done or given up: its source is free again, and if it was a fetch, another entry can be fetched.
inline void SessionStore::end_read(MoveId id) {
  const Move& move = moves_[id];
  Entry& e = entry(move.entry);
  e.read = MoveId{};
  if (fetching_ == id) {
    fetching_ = MoveId{};
  }
  unpin(move.from, e);
}

inline void SessionStore::cancel(MoveId id) {
  Move& move = moves_[id];
  if (move.state == MoveState::waiting) {
    leave_line(id);
  }
  const bool in_flight = move.transfer.valid();
  if (move.from == kGpu) {
    cancel_save(id);
  } else if (!in_flight) {
    end_read(id);
  }
  if (in_flight) {
    move.state = MoveState::cancelled;
  } else {
    moves_.end(id);
  }
}

}  // namespace kvtier
