#include <algorithm>
#include <utility>

#include "sim/core/assert.hpp"
#include "sim/store/sessions/session_store.hpp"

/// How the session store makes room and moves KV: evictions, writes to the next slower tier,
/// fetches to the fastest one, saves of finished turns.
namespace kvtier {
namespace {

/// More rounds than any chain of waiting moves can need: each round starts, grants or drops at
/// least one.
constexpr int kMostSettleRounds = 1 << 20;

}  // namespace

// ---- Room ----

RoomRequest SessionStore::room_request(std::size_t index, Demand demand, EntryId newcomer) const {
  RoomRequest request{.now = backend_.now(), .demand = demand};
  if (tier(index).sees_queue()) {
    request.incoming = newcomer.valid() ? entry(newcomer).position : kNotQueued;
    request.queue_first = queue_.first();
    request.window_end = queue_.window_end();
  }
  return request;
}

const EntryView& SessionStore::show_newcomer(const Tier& t, EntryId id) {
  const Entry& e = entry(id);
  newcomer_ = e.seen;
  newcomer_.tokens = e.tokens;
  newcomer_.depth = Tokens(0);
  newcomer_.bytes = account(t, e.tokens);
  newcomer_.queue_position = kNotQueued;
  newcomer_.next_use = next_use(id);
  return newcomer_;
}

bool SessionStore::take_victims(std::size_t index, Bytes missing, Demand demand, EntryId newcomer) {
  Tier& t = tier(index);
  RoomRequest request = room_request(index, demand, newcomer);
  if (t.sees_future() && newcomer.valid()) [[unlikely]] {
    request.newcomer = &show_newcomer(t, newcomer);
  }
  if (!t.choose_for(newcomer, request, missing)) {
    return false;
  }
  for (const Victim& victim : t.victims()) {
    evict(index, entry(victim.entry), demand);
  }
  return true;
}

/// Whether a faster tier holds at least as much, which will come down in its turn.
bool SessionStore::has_above(const Entry& e, std::size_t index, Tokens tokens) {
  bool found = false;
  const unsigned above = (1U << index) - 1;
  for_each_tier_in(static_cast<std::uint8_t>(e.residents & above),
                   [&](std::size_t i) { found = found || e.copies[i].tokens >= tokens; });
  return found;
}

void SessionStore::evict(std::size_t index, Entry& e, Demand demand) {
  Tier& t = tier(index);
  Copy& copy = e.copies[index];
  ++t.count().evictions;
  const bool below = index + 1 < tiers_.size();
  if (!below) {
    log(DecisionKind::evict, index, e, copy.tokens, demand);
    remove_copy(index, e, LossCause::capacity);
  } else if (((e.in_use || e.save.valid()) && moves_up(index + 1)) ||
             has_above(e, index, copy.tokens) ||
             (e.copies[index + 1].state == CopyState::resident &&
              e.copies[index + 1].tokens >= copy.tokens)) {
    log(DecisionKind::demote, index, e, copy.tokens, demand);
    remove_copy(index, e, LossCause::capacity);
  } else {
    log(DecisionKind::demote, index, e, copy.tokens, demand);
    tell_removed(index, e);
    set_leaving(e, index, true);
    t.leave(copy.account);
    if (!e.writes[index].valid()) {
      queue_write(index, e);
    }
    return;
  }
  tell_demoted(e);
  release_if_empty(e);
}

void SessionStore::drop_all_expired() {
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    for (EntryId id = tier(i).next_expired(backend_.now()); id.valid();
         id = tier(i).next_expired(backend_.now())) {
      Entry& e = entry(id);
      log(DecisionKind::expire, i, e, e.copies[i].tokens);
      remove_copy(i, e, LossCause::ttl);
      release_if_empty(e);
    }
  }
}

// ---- Any move ----

void SessionStore::wait_for_room(MoveId id) {
  Move& move = moves_[id];
  Tier& t = tier(move.to);
  move.state = MoveState::waiting;
  t.waiting.push_back(id);
  t.promise(move.room);
  waiting_ |= 1U << move.to;
}

void SessionStore::leave_line(MoveId id) {
  const std::size_t to = moves_[id].to;
  Tier& t = tier(to);
  const bool found = t.waiting.erase(id);
  KVTIER_ASSERT(found, "only what waits for room can stop waiting");
  t.promise(-moves_[id].room);
  waiting_ = t.waiting.empty() ? waiting_ & ~(1U << to) : waiting_;
}

bool SessionStore::grant_waiting(std::size_t index) {
  Tier& t = tier(index);
  bool progress = false;
  do {
    const MoveId id = t.waiting.front();
    const EntryId entry = moves_[id].entry;
    const Bytes room = moves_[id].room;
    const bool is_save = moves_[id].from == kGpu;
    const bool fits = t.free() >= room;
    // A hit may have kept a victim that was leaving. Then other victims are needed.
    const Demand demand = is_save ? Demand::save : Demand::prefetch;
    if (!fits && choose_victims(index, Bytes(0), demand, entry)) {
      if (t.free() < room) {
        break;
      }
    }
    progress = true;
    if (t.free() >= room) {
      leave_line(id);
      grant(id);
    } else {
      is_save ? drop_save(id, LossCause::capacity) : cancel(id);
    }
  } while (can_grant(t));
  return progress;
}

void SessionStore::drop_arriving(std::size_t index, Entry& e) {
  Copy& copy = e.copies[index];
  charge(index, e, -copy.account);
  copy = Copy{};
  tell_kept(index, e);
}

void SessionStore::grant(MoveId id) {
  Move& move = moves_[id];
  Entry& e = entry(move.entry);
  const Tokens stored = e.copies[move.to].tokens;
  arrive(move.to, e, move.room);
  move.state = MoveState::in_flight;
  if (move.from != kGpu) {
    Tier& from = tier(move.from);
    Tier& to = tier(move.to);
    const Bytes bytes = write_bytes(move.from > move.to ? from : to, stored, move.tokens);
    move.began = backend_.now();
    prefetches_.begun += move.to == 0 ? 1 : 0;
    from.count().read += bytes;
    to.count().written += bytes;
    start_transfer(id, from.medium(), bytes, stored);
  } else if (!move.transfer.valid()) {
    finish_save(id);
  }
}

void SessionStore::start_transfer(MoveId id, Medium from, Bytes bytes, Tokens first, bool open) {
  Move& move = moves_[id];
  move.bytes = bytes;
  move.transfer = backend_.start_transfer({.from = from,
                                           .to = tier(move.to).medium(),
                                           .bytes = bytes,
                                           .key = entry(move.entry).seen.key,
                                           .first = first,
                                           .end = move.tokens,
                                           .cookie = mark_ | id.value,
                                           .open = open});
}

void SessionStore::cancel_save(MoveId id) {
  const Move& move = moves_[id];
  Entry& e = entry(move.entry);
  const std::size_t to = move.to;
  const Copy& copy = e.copies[to];
  if (copy.state == CopyState::arriving) {
    drop_arriving(to, e);
  } else {
    tell_kept(to, e);
  }
  if (copy.state == CopyState::resident) {
    unpin(to, e);  // gives back what the save was granted
    if (copy.state == CopyState::resident && copy.pins == 0 && copy.tokens.value == 0) {
      remove_copy(to, e, LossCause::overflow);
    }
  }
  end_save(move);
}

void SessionStore::on_transfer(MoveId id) {
  const Move& move = moves_.complete(id);
  if (move.from == kGpu) {
    if (move.state == MoveState::cancelled) {
      moves_.end(id);
    } else if (move.state == MoveState::in_flight) {
      finish_save(id);
    }
  } else if (move.to == 0) {
    finish_fetch(id);
  } else {
    finish_write(id);
  }
  settle();
}

// ---- Writes to the next slower tier ----

void SessionStore::queue_write(std::size_t from, Entry& e) {
  const auto tier_number = static_cast<std::uint8_t>(from);
  const MoveId move =
      moves_.begin(id_of(e), tier_number, static_cast<std::uint8_t>(tier_number + 1));
  e.writes[from] = move;
  startable_ |= tier(from).writes.empty() ? 1U << from : 0U;
  tier(from).writes.push_back(move);
}

/// Takes the first write off the queue.
void SessionStore::end_write(std::size_t from) {
  Tier& t = tier(from);
  const MoveId id = t.writes.front();
  t.writes.pop_front();
  entry(moves_[id].entry).writes[from] = MoveId{};
  moves_.end(id);
  const unsigned bit = 1U << from;
  startable_ = t.writes.empty() ? startable_ & ~bit : startable_ | bit;
}

bool SessionStore::start_writes(std::size_t from) {
  Tier& t = tier(from);
  bool progress = false;
  while ((startable_ >> from & 1U) != 0) {
    const MoveId move_id = t.writes.front();
    const EntryId id = moves_[move_id].entry;
    Entry& e = entry(id);
    const std::size_t to = from + 1;
    Copy& source = e.copies[from];
    Copy& target = e.copies[to];
    const bool through = tier(to).config.write == WriteMoment::on_create;
    const bool wanted = source.state == CopyState::resident && !e.doomed &&
                        source.tokens > target.tokens && (is_leaving(e, from) || through);
    Room room = Room::refused;
    if (wanted) {
      moves_[move_id].tokens = source.tokens;
      if (target.state == CopyState::resident) {
        pin(to, e);
      }
      moves_[move_id].room = wanted_room(moves_[move_id]);
      room = filters_ && !admits(to, id)
                 ? Room::refused
                 : find_room(to, moves_[move_id].room, Demand::demotion, id);
      if (room != Room::granted && target.state == CopyState::resident) {
        unpin(to, e);
        if (target.tokens.value == 0 && target.pins == 0) {
          remove_copy(to, e, LossCause::overflow);  // truncated on its way out, and rescued
        }
      }
      if (room == Room::coming) {
        return progress;
      }
    }
    progress = true;
    if (room == Room::granted) {
      moves_[move_id].holds_source = true;
      if (!is_leaving(e, from)) {
        pin(from, e);
      }
      grant(move_id);
      startable_ &= ~(1U << from);
      return true;
    }
    end_write(from);
    if (is_leaving(e, from)) {
      const bool lost = target.tokens < source.tokens;
      const bool fits = account(tier(to), source.tokens) <= tier(to).capacity();
      if (lost) {
        log(DecisionKind::evict, from, e, source.tokens, Demand::demotion);
      }
      const LossCause cause = !fits             ? LossCause::larger_than_tier
                              : !admits(to, id) ? LossCause::not_admitted
                                                : LossCause::capacity;
      remove_copy(from, e, cause);
      tell_demoted(e);
    }
    release_if_empty(e);
  }
  return progress;
}

inline void SessionStore::write_on(std::size_t to, Entry& e, bool is_cancelled) {
  if (e.copies[to].state != CopyState::resident) {
    return;
  }
  if (is_cancelled && !e.writes[to - 1].valid() && !reads_from(e, to)) {
    give_up(to, e);
  } else if (to + 1 < tiers_.size() && tier(to + 1).config.write == WriteMoment::on_create &&
             !e.writes[to].valid()) {
    queue_write(to, e);
  }
}

void SessionStore::finish_write(MoveId move_id) {
  const Move& move = moves_[move_id];
  const std::size_t from = move.from;
  const std::size_t to = move.to;
  Entry& e = entry(move.entry);
  const bool holds_source = move.holds_source;
  const bool is_cancelled = move.state == MoveState::cancelled;
  KVTIER_ASSERT(tier(from).writes.front() == move_id, "writes end in the order they began");
  const bool extended = e.copies[to].state == CopyState::resident;
  end_write(from);
  if (move.tokens.value > 0) {
    make_resident(to, e, move.tokens);
  } else if (!extended) {  // truncated to nothing meanwhile
    drop_arriving(to, e);
  }
  if (extended) {
    unpin(to, e);
  }
  if (!holds_source) {
    const bool through = tier(to).config.write == WriteMoment::on_create;
    if (is_leaving(e, from) || (through && e.copies[from].state == CopyState::resident)) {
      queue_write(from, e);
    }
    tell_demoted(e);
  } else if (is_leaving(e, from)) {
    remove_copy(from, e, LossCause::capacity);
    tell_demoted(e);
  } else {
    unpin(from, e);
  }
  write_on(to, e, is_cancelled);
  for_each_tier_in(e.residents, [&](std::size_t i) {
    const Copy& copy = e.copies[i];
    if ((e.doomed || copy.tokens.value == 0) && copy.pins == 0 && active_write(e, i) == nullptr) {
      remove_copy(i, e, LossCause::overflow);
    }
  });
  release_if_empty(e);
}

// ---- Fetches to the fastest tier ----

void SessionStore::try_prefetch() {
  PrefetchContext& context = prefetch_context_;
  context.now = backend_.now();
  context.mean_entry = residents_ > 0 ? used_ / residents_ : Bytes(0);
  const std::optional<Fetch> wanted = prefetch_->next_fetch(context);
  if (!wanted) {
    return;
  }
  if (wanted->at <= context.now) {
    start_fetch(wanted->entry);
  } else if (wanted->at < asks_at_) {
    asks_at_ = wanted->at;
    backend_.set_timer(asks_at_, timer_);
  }
}

void SessionStore::end_prefetched(Entry& e, bool used) {
  const Move& fetch = moves_[e.fetched];
  const SimDuration idle = backend_.now() - fetch.ended;
  std::int64_t& outcome = !used                               ? prefetches_.unused
                          : idle <= fetch.ended - fetch.began ? prefetches_.on_time
                                                              : prefetches_.early;
  ++outcome;
  prefetches_.idle_byte_ns += static_cast<Int128>(actual_bytes(e.copies[0].tokens).value) * idle.ns;
  moves_.end(std::exchange(e.fetched, MoveId{}));
}

std::uint8_t SessionStore::finish_load(Entry& e) {
  const MoveId move = e.read;
  end_read(move);
  moves_.end(move);
  return moves_[move].from;
}

void SessionStore::start_fetch(EntryId id) {
  Entry& e = entry(id);
  const std::uint8_t source = best_tier(e);
  const MoveId move = begin_read(e, source, 0);
  moves_[move].room = wanted_room(moves_[move]);
  // The free buffer is for what turns save: a fetch that took it would only drive others out.
  const Bytes wanted = moves_[move].room + tier(0).config.free_buffer;
  const Room room = find_room(0, wanted, Demand::prefetch, id);
  if (room == Room::refused) {
    cancel(move);
    return;
  }
  fetching_ = move;
  log(DecisionKind::prefetch, source, e, moves_[move].tokens, Demand::prefetch);
  if (room == Room::granted) {
    grant(move);
  } else {
    wait_for_room(move);
  }
}

void SessionStore::finish_fetch(MoveId move_id) {
  const std::size_t from = moves_[move_id].from;
  Entry& e = entry(moves_[move_id].entry);
  end_read(move_id);
  if (moves_[move_id].state == MoveState::cancelled) {
    ++prefetches_.unused;
    if (e.copies[0].state == CopyState::arriving) {
      drop_arriving(0, e);
    }
    give_up(from, e);
    moves_.end(move_id);
    release_if_empty(e);
    return;
  }
  make_resident(0, e, moves_[move_id].tokens);
  leave_upwards(from, e);
  if (e.prompt != kNone) {
    write_through(0, e);  // what no turn saves again
  }
  SessionSlot session = e.in_use ? e.owner : kNone;
  if (e.in_use) {
    touch(e, tier(0).config.inclusive ? Use::at_once : Use::begins);
    leave_upwards(0, e);
  } else if (e.prompt != kNone && awaiting_prompt_ != kNone) {
    session = std::exchange(awaiting_prompt_, kNone);
    touch(e, Use::begins);
    hold_prompt(members_[session]);
  } else {
    moves_[move_id].state = MoveState::arrived;
    moves_[move_id].ended = backend_.now();
    e.fetched = move_id;
    return;
  }
  moves_.end(move_id);
  on_load_ready(session, tier(0).medium());
}

// ---- Saves ----

void SessionStore::submit_save(MoveId id, Tokens tokens, bool more_follows) {
  Move& move = moves_[id];
  const Copy& copy = entry(move.entry).copies[0];
  const Tokens kept = copy.state == CopyState::resident ? copy.tokens : Tokens(0);
  Tokens first = std::max(move.tokens, kept);
  Tokens moved = tokens - first;
  if (move.tokens.value == 0) {
    move.first = kept;
  } else if (kept < move.first) [[unlikely]] {
    moved = std::max(Tokens(0), moved) + move.first - kept;
    move.first = first = kept;
  }
  if (moved.value <= 0) {
    if (move.transfer.valid() && !more_follows) {
      // A request that was preempted before its first token left nothing more to save.
      const bool goes_on = backend_.extend_transfer(move.transfer, Bytes(0), tokens, tokens);
      move.transfer = goes_on ? move.transfer : TransferId{};
    }
    return;
  }
  move.tokens = tokens;
  if (keeps_in_hbm(0)) {
    return;
  }
  const Bytes bytes = actual_bytes(moved);
  tier(0).count().written += bytes;
  if (move.transfer.valid() && backend_.extend_transfer(move.transfer, bytes, first, tokens)) {
    move.bytes += bytes;
  } else {
    start_transfer(id, Medium::hbm, bytes, first, more_follows);
  }
}

void SessionStore::begin_save(SessionSlot session, EntryKey key, Tokens prompt) {
  if (tiers_.empty() || save_mode_ == SaveMode::blocking) {
    return;
  }
  submit_save(save_of(entry(find_or_create(session, key))), prompt, true);
}

void SessionStore::save(SessionSlot session, EntryKey key, Tokens tokens) {
  if (tiers_.empty()) {
    backend_.set_resident_prefix(Medium::hbm, key, Tokens(0));
    return;
  }
  const EntryId id = find_or_create(session, key);
  Entry& e = entry(id);
  const MoveId move = save_of(e);
  drop_expired();
  e.in_use = false;
  ++saving_;
  e.tokens = tokens;
  e.seen.last_used = backend_.now();
  if (is_leaving(e, 0)) {
    give_up(0, e);  // others wait for its room: the save asks for room of its own
  }
  submit_save(move, tokens, false);
  moves_[move].tokens = tokens;
  hbm().charge(Account::write_buffer, moves_[move].bytes);
  if (keeps_in_hbm(0)) {
    backend_.set_resident_prefix(Medium::hbm, key, tokens);
  }
  if (e.copies[0].state == CopyState::resident) {
    pin(0, e);  // an inclusive tier's own copy grows
  }
  moves_[move].room = wanted_room(moves_[move]);
  if (filters_) [[unlikely]] {
    tell_admission(key);
  }
  const bool too_large = account(tier(0), tokens) > tier(0).capacity();
  const bool refused = too_large || (filters_ && !admits(0, id));
  Room room = refused ? Room::refused : find_room(0, moves_[move].room, Demand::save, id);
  if (room == Room::refused && keeps_in_hbm(0) && tiers_.size() > 1) {
    room = fall_through(move);
  }
  if (room == Room::refused) {
    drop_save(move, too_large ? LossCause::larger_than_tier
                    : refused ? LossCause::not_admitted
                              : LossCause::capacity);
  } else if (room == Room::granted) {
    grant(move);
  } else {
    hbm().charge(Account::write_buffer, actual_bytes(tokens) - moves_[move].bytes);
    moves_[move].bytes = actual_bytes(tokens);
    wait_for_room(move);
  }
  settle();
}

SessionStore::Room SessionStore::fall_through(MoveId id) {
  Move& move = moves_[id];
  const EntryId saved = move.entry;
  Entry& e = entry(saved);
  give_up_lent(e);
  const Copy& copy = e.copies[1];
  if (is_leaving(e, 1)) {
    give_up(1, e);
  }
  if (copy.state == CopyState::arriving || active_write(e, 0) != nullptr || e.writes[0].valid()) {
    return Room::refused;  // an earlier write of it is still under way
  }
  move.to = 1;
  move.first = Tokens(0);
  if (copy.state == CopyState::resident) {
    pin(1, e);
  }
  move.room = wanted_room(move);
  if (account(tier(1), move.tokens) > tier(1).capacity() || (filters_ && !admits(1, saved))) {
    return Room::refused;
  }
  const Tokens kept = copy.state == CopyState::resident ? copy.tokens : Tokens(0);
  const Tokens moved = move.tokens - kept;
  const Room room = find_room(1, move.room, Demand::save, saved);
  if (room != Room::refused && moved.value > 0) {
    hbm().count().read += actual_bytes(moved);
    tier(1).count().written += actual_bytes(moved);
    start_transfer(id, Medium::hbm, actual_bytes(moved), kept);
    hbm().charge(Account::write_buffer, moves_[id].bytes);
  }
  return room;
}

void SessionStore::finish_save(MoveId move_id) {
  const Move& move = moves_[move_id];
  Entry& e = entry(move.entry);
  const std::size_t to = move.to;
  const bool extended = e.copies[to].state == CopyState::resident;
  make_resident(to, e, move.tokens);
  leave_hbm(e);
  if (extended) {
    unpin(to, e);
  }
  end_save(move);
  moves_.end(move_id);
  write_through(to, e);
}

/// Done or given up: nothing of it is in the write buffer.
void SessionStore::end_save(const Move& move) {
  entry(move.entry).save = MoveId{};
  --saving_;
  hbm().charge(Account::write_buffer, -move.bytes);
}

void SessionStore::write_through(std::size_t from, Entry& e) {
  if (from + 1 < tiers_.size() && tier(from + 1).config.write == WriteMoment::on_create &&
      !e.writes[from].valid()) {
    queue_write(from, e);
  }
}

void SessionStore::drop_save(MoveId move, LossCause cause) {
  Entry& e = entry(moves_[move].entry);
  log(DecisionKind::drop_save, 0, e, e.tokens);
  cancel(move);
  give_up_lent(e);
  leave_hbm(e);
  e.loss = cause;
  release_if_empty(e);
}

// ---- All of them ----

void SessionStore::trim(std::size_t index) {
  Tier& t = tier(index);
  if (t.config.free_buffer.value > 0) {
    (void)choose_victims(index, t.config.free_buffer, Demand::background, kNoEntry);
  }
}

bool SessionStore::settle_with_free_buffers() {
  trim(0);
  bool progress = false;
  for (unsigned left = waiting_; left != 0; left &= left - 1) {
    const auto to = static_cast<std::size_t>(std::countr_zero(left));
    progress = (can_grant(tier(to)) && grant_waiting(to)) || progress;
  }
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    if (i > 0) {
      trim(i);
    }
    if ((startable_ >> i & 1U) != 0) {
      progress = start_writes(i) || progress;
    }
  }
  return progress;
}

void SessionStore::settle_moves() {
  for (int round = 0; round < kMostSettleRounds; ++round) {
    bool progress = false;
    if (keeps_free_) [[unlikely]] {
      progress = settle_with_free_buffers();
    } else {
      for (unsigned left = waiting_; left != 0; left &= left - 1) {
        const auto to = static_cast<std::size_t>(std::countr_zero(left));
        if (can_grant(tier(to))) {
          progress = grant_waiting(to) || progress;
        }
      }
      // A write that starts may queue others behind it, on slower tiers.
      for (unsigned left = startable_; left != 0;) {
        const auto from = static_cast<unsigned>(std::countr_zero(left));
        progress = start_writes(from) || progress;
        left = startable_ & ~0U << 1U << from;
      }
    }
    if (!progress && !fetching_.valid() && can_fetch_) {
      const unsigned startable = startable_;
      try_prefetch();
      progress = fetching_.valid() || startable_ != startable;
    }
    if (!progress) {
      return;
    }
  }
  KVTIER_ASSERT(false, "waiting moves settle");
}

}  // namespace kvtier
