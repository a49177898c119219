#include <algorithm>
#include <utility>

#include "sim/core/assert.hpp"
#include "sim/engine/tier_manager.hpp"

/// How the tier manager makes room and moves KV: evictions, writes to the next slower tier, fetches
/// to the fastest one, saves of finished turns.
namespace kvtier {
namespace {

/// More rounds than any chain of waiting moves can need: each round starts, grants or drops at
/// least one.
constexpr int kMostSettleRounds = 1 << 20;

}  // namespace

// ---- Room ----

bool TierManager::take_victims(std::size_t index, Bytes missing, Demand demand, EntryId newcomer) {
  Tier& t = tier(index);
  RoomRequest request{.now = backend_.now(), .demand = demand};
  if (t.sees_queue()) {
    request.incoming = newcomer.valid() ? entry(newcomer).position : kNotQueued;
    request.queue_first = queue_.first();
    request.window_end = queue_.window_end();
  }
  std::optional<EntryView> shown;
  if (t.sees_future() && newcomer.valid()) [[unlikely]] {
    const Entry& e = entry(newcomer);
    shown = EntryView{.id = newcomer,
                      .key = e.key,
                      .place = newcomer.value,
                      .tokens = e.tokens,
                      .bytes = account(t, e.tokens),
                      .first_inserted = e.first_inserted,
                      .session_began = e.session_began,
                      .last_used = e.last_used,
                      .next_use = next_use(newcomer)};
    request.newcomer = &*shown;
  }
  if (!t.choose_for(newcomer, request, missing)) {
    return false;
  }
  for (const Victim& victim : t.victims()) {
    evict(index, victim.entry, demand);
  }
  return true;
}

/// Whether a faster tier holds at least as much, which will come down in its turn.
bool TierManager::has_above(const Entry& e, std::size_t index, Tokens tokens) {
  bool found = false;
  const unsigned above = (1U << index) - 1;
  for_each_tier_in(static_cast<std::uint8_t>(e.residents & above),
                   [&](std::size_t i) { found = found || e.copies[i].tokens >= tokens; });
  return found;
}

void TierManager::evict(std::size_t index, EntryId id, Demand demand) {
  Tier& t = tier(index);
  Entry& e = entry(id);
  Copy& copy = e.copies[index];
  ++t.count().evictions;
  const bool below = index + 1 < tiers_.size();
  if (!below) {
    log(DecisionKind::evict, index, id, copy.tokens, demand);
    remove_copy(index, id, LossCause::capacity);
  } else if (((e.in_use || e.save.valid()) && moves_up(index + 1)) ||
             has_above(e, index, copy.tokens) ||
             (e.copies[index + 1].state == CopyState::resident &&
              e.copies[index + 1].tokens >= copy.tokens)) {
    log(DecisionKind::demote, index, id, copy.tokens, demand);
    remove_copy(index, id, LossCause::capacity);
  } else {
    log(DecisionKind::demote, index, id, copy.tokens, demand);
    tell_removed(index, id);
    t.leave(copy.account);
    if (!e.writes[index].valid()) {
      queue_write(index, id);
    }
    return;
  }
  tell_demoted(id);
  release_if_empty(id);
}

void TierManager::drop_all_expired() {
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    for (EntryId id = tier(i).next_expired(backend_.now()); id.valid();
         id = tier(i).next_expired(backend_.now())) {
      log(DecisionKind::expire, i, id, entry(id).copies[i].tokens);
      remove_copy(i, id, LossCause::ttl);
      release_if_empty(id);
    }
  }
}

// ---- Any move ----

void TierManager::wait_for_room(MoveId id) {
  Move& move = moves_[id];
  move.state = MoveState::waiting;
  waiting_for_room_.push_back(id);
  tier(0).promise(move.room);
}

void TierManager::leave_line(MoveId id) {
  const bool found = waiting_for_room_.erase(id);
  KVTIER_ASSERT(found, "only what waits for room can stop waiting");
  tier(0).promise(-moves_[id].room);
}

bool TierManager::grant_waiting() {
  Tier& t = tier(0);
  bool progress = false;
  while (can_grant()) {
    const MoveId id = waiting_for_room_.front();
    const EntryId entry = moves_[id].entry;
    const Bytes room = moves_[id].room;
    const bool is_save = moves_[id].from == kGpu;
    const bool fits = t.free() >= room;
    // What was on its way out may have been rescued by a hit: then other victims are needed.
    const Demand demand = is_save ? Demand::save : Demand::prefetch;
    if (!fits && choose_victims(0, Bytes(0), demand, entry)) {
      if (t.free() < room) {
        break;
      }
    }
    progress = true;
    if (t.free() >= room) {
      waiting_for_room_.pop_front();
      t.promise(-room);
      grant(id);
    } else {
      is_save ? drop_save(id, LossCause::capacity) : cancel(id);
    }
  }
  return progress;
}

void TierManager::drop_arriving(std::size_t index, EntryId id) {
  Entry& e = entry(id);
  Copy& copy = e.copies[index];
  if (e.prompt != kNone && index == 0) [[unlikely]] {
    tier(0).note_shared(-copy.account);
  }
  charge(index, e, -copy.account);
  copy = Copy{};
  tell_kept(index, id);
}

void TierManager::grant(MoveId id) {
  Move& move = moves_[id];
  const Tokens stored = entry(move.entry).copies[move.to].tokens;
  arrive(move.to, move.entry, move.room);
  move.state = MoveState::in_flight;
  if (move.from != kGpu) {
    Tier& from = tier(move.from);
    Tier& to = tier(move.to);
    const Bytes bytes = write_bytes(move.from > move.to ? from : to, stored, move.tokens);
    move.began = backend_.now();
    prefetches_.begun += move.to == 0 ? 1 : 0;
    from.count().read += bytes;
    to.count().written += bytes;
    start_transfer(id, from.medium(), bytes);
  } else if (!move.transfer.valid()) {
    finish_save(id);
  }
}

void TierManager::start_transfer(MoveId id, Medium from, Bytes bytes, bool open) {
  Move& move = moves_[id];
  move.bytes = bytes;
  move.transfer = backend_.start_transfer({.from = from,
                                           .to = tier(move.to).medium(),
                                           .bytes = bytes,
                                           .key = entry(move.entry).key,
                                           .tokens = move.tokens,
                                           .cookie = mark_ | id.value,
                                           .open = open});
}

void TierManager::cancel_save(MoveId id) {
  const Move& move = moves_[id];
  const EntryId saved = move.entry;
  const Copy& copy = entry(saved).copies[0];
  if (copy.state == CopyState::arriving) {
    drop_arriving(0, saved);
  } else {
    tell_kept(0, saved);
  }
  if (copy.state == CopyState::resident) {
    unpin(0, saved);  // gives back what the save was granted
    if (copy.pins == 0 && copy.tokens.value == 0) {
      remove_copy(0, saved, LossCause::overflow);
    }
  }
  end_save(move);
}

void TierManager::on_transfer(MoveId id) {
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

void TierManager::queue_write(std::size_t from, EntryId id) {
  const auto tier_number = static_cast<std::uint8_t>(from);
  const MoveId move = moves_.begin(id, tier_number, static_cast<std::uint8_t>(tier_number + 1));
  entry(id).writes[from] = move;
  startable_ |= tier(from).writes.empty() ? 1U << from : 0U;
  tier(from).writes.push_back(move);
}

/// Takes the first write off the queue.
void TierManager::end_write(std::size_t from) {
  Tier& t = tier(from);
  const MoveId id = t.writes.front();
  t.writes.pop_front();
  entry(moves_[id].entry).writes[from] = MoveId{};
  moves_.end(id);
  const unsigned bit = 1U << from;
  startable_ = t.writes.empty() ? startable_ & ~bit : startable_ | bit;
}

bool TierManager::start_writes(std::size_t from) {
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
        pin(to, id);
      }
      moves_[move_id].room = wanted_room(moves_[move_id]);
      room = filters_ && !admits(to, id)
                 ? Room::refused
                 : find_room(to, moves_[move_id].room, Demand::demotion, id);
      if (room != Room::granted && target.state == CopyState::resident) {
        unpin(to, id);
        if (target.tokens.value == 0 && target.pins == 0) {
          remove_copy(to, id, LossCause::overflow);  // truncated on its way out, and rescued
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
        pin(from, id);
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
        log(DecisionKind::evict, from, id, source.tokens, Demand::demotion);
      }
      remove_copy(from, id,
                  !fits             ? LossCause::larger_than_tier
                  : !admits(to, id) ? LossCause::not_admitted
                                    : LossCause::capacity);
      tell_demoted(id);
    }
    release_if_empty(id);
  }
  return progress;
}

void TierManager::finish_write(MoveId move_id) {
  const Move& move = moves_[move_id];
  const std::size_t from = move.from;
  const std::size_t to = move.to;
  const EntryId id = move.entry;
  const bool holds_source = move.holds_source;
  const bool is_cancelled = move.state == MoveState::cancelled;
  Entry& e = entry(id);
  KVTIER_ASSERT(tier(from).writes.front() == move_id, "writes end in the order they began");
  const bool extended = e.copies[to].state == CopyState::resident;
  end_write(from);
  if (move.tokens.value > 0) {
    make_resident(to, id, move.tokens);
  } else if (!extended) {  // truncated to nothing meanwhile
    drop_arriving(to, id);
  }
  if (extended) {
    unpin(to, id);
  }
  if (!holds_source) {
    const bool through = tier(to).config.write == WriteMoment::on_create;
    if (is_leaving(e, from) || (through && e.copies[from].state == CopyState::resident)) {
      queue_write(from, id);
    }
    tell_demoted(id);
  } else if (is_leaving(e, from)) {
    remove_copy(from, id, LossCause::capacity);
    tell_demoted(id);
  } else {
    unpin(from, id);
  }
  if (e.copies[to].state == CopyState::resident) {
    const bool is_read = e.read.valid() && moves_[e.read].from == to;
    if (is_cancelled && !e.writes[from].valid() && !is_read) {
      give_up(to, id);
    } else if (to + 1 < tiers_.size() && tier(to + 1).config.write == WriteMoment::on_create &&
               !e.writes[to].valid()) {
      queue_write(to, id);
    }
  }
  for_each_tier_in(e.residents, [&](std::size_t i) {
    const Copy& copy = e.copies[i];
    if ((e.doomed || copy.tokens.value == 0) && copy.pins == 0 && active_write(e, i) == nullptr) {
      remove_copy(i, id, LossCause::overflow);
    }
  });
  release_if_empty(id);
}

// ---- Fetches to the fastest tier ----

void TierManager::try_prefetch() {
  const PrefetchContext context{.now = backend_.now(),
                                .queue = &queue_,
                                .running = running_,
                                .memory = tier(0).capacity(),
                                .mean_entry = residents_ > 0 ? used_ / residents_ : Bytes(0),
                                .needs_fetch = &needs_fetch_,
                                .fetch_duration = &fetch_duration_};
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

void TierManager::end_prefetched(Entry& e, bool used) {
  const Move& fetch = moves_[e.fetched];
  const SimDuration idle = backend_.now() - fetch.ended;
  std::int64_t& outcome = !used                               ? prefetches_.unused
                          : idle <= fetch.ended - fetch.began ? prefetches_.on_time
                                                              : prefetches_.early;
  ++outcome;
  prefetches_.idle_byte_ns += static_cast<Int128>(actual_bytes(e.copies[0].tokens).value) * idle.ns;
  moves_.end(std::exchange(e.fetched, MoveId{}));
}

std::uint8_t TierManager::finish_load(EntryId id) {
  const MoveId move = entry(id).read;
  end_read(move);
  moves_.end(move);
  return moves_[move].from;
}

void TierManager::start_fetch(EntryId id) {
  const std::uint8_t source = best_tier(entry(id));
  const MoveId move = begin_read(id, source, 0);
  moves_[move].room = wanted_room(moves_[move]);
  // The free buffer is for what turns save: a fetch that took it would only drive others out.
  const Bytes wanted = moves_[move].room + tier(0).config.free_buffer;
  const Room room = find_room(0, wanted, Demand::prefetch, id);
  if (room == Room::refused) {
    cancel(move);
    return;
  }
  fetching_ = move;
  log(DecisionKind::prefetch, source, id, moves_[move].tokens, Demand::prefetch);
  if (room == Room::granted) {
    grant(move);
  } else {
    wait_for_room(move);
  }
}

void TierManager::finish_fetch(MoveId move_id) {
  const EntryId id = moves_[move_id].entry;
  const std::size_t from = moves_[move_id].from;
  Entry& e = entry(id);
  end_read(move_id);
  if (moves_[move_id].state == MoveState::cancelled) {
    ++prefetches_.unused;
    drop_arriving(0, id);
    give_up(from, id);
    moves_.end(move_id);
    release_if_empty(id);
    return;
  }
  make_resident(0, id, moves_[move_id].tokens);
  leave_upwards(from, id);
  if (e.prompt != kNone) {
    write_through(id);  // what no turn saves again
  }
  SessionSlot session = e.in_use ? e.owner : kNone;
  if (e.in_use) {
    touch(id, tier(0).config.inclusive ? Use::at_once : Use::begins);
    leave_upwards(0, id);
  } else if (e.prompt != kNone && awaiting_prompt_ != kNone) {
    session = std::exchange(awaiting_prompt_, kNone);
    touch(id, Use::begins);
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

void TierManager::submit_save(MoveId id, Tokens tokens, bool more_follows) {
  Move& move = moves_[id];
  const Copy& copy = entry(move.entry).copies[0];
  const Tokens kept = copy.state == CopyState::resident ? copy.tokens : Tokens(0);
  Tokens moved = std::max(Tokens(0), tokens - std::max(move.tokens, kept));
  if (move.tokens.value == 0) {
    move.relies_on = kept;
  } else if (kept < move.relies_on) {
    moved += move.relies_on - kept;
    move.relies_on = kept;
  }
  if (moved.value == 0) {
    KVTIER_ASSERT(!move.transfer.valid(), "a turn adds tokens to its prompt");
    return;
  }
  move.tokens = tokens;
  if (keeps_in_hbm(0)) {
    return;
  }
  const Bytes bytes = actual_bytes(moved);
  tier(0).count().written += bytes;
  if (move.transfer.valid() && backend_.extend_transfer(move.transfer, bytes, tokens)) {
    move.bytes += bytes;
  } else {
    start_transfer(id, Medium::hbm, bytes, more_follows);
  }
}

void TierManager::begin_save(SessionSlot session, EntryKey key, Tokens prompt) {
  if (tiers_.empty() || config_.system.save.mode == SaveMode::blocking) {
    return;
  }
  submit_save(save_of(find_or_create(session, key)), prompt, true);
}

void TierManager::save(SessionSlot session, EntryKey key, Tokens tokens) {
  if (tiers_.empty()) {
    backend_.keep(Medium::hbm, key, Tokens(0));
    return;
  }
  const EntryId id = find_or_create(session, key);
  const MoveId move = save_of(id);
  Entry& e = entry(id);
  drop_expired();
  e.in_use = false;
  ++saving_;
  e.tokens = tokens;
  e.last_used = backend_.now();
  if (is_leaving(e, 0)) {
    give_up(0, id);  // others wait for its room: the save asks for room of its own
  }
  submit_save(move, tokens, false);
  moves_[move].tokens = tokens;
  hbm().charge(Account::write_buffer, moves_[move].bytes);
  if (keeps_in_hbm(0)) {
    backend_.keep(Medium::hbm, key, tokens);
  }
  if (e.copies[0].state == CopyState::resident) {
    pin(0, id);  // an inclusive tier's own copy grows
  }
  moves_[move].room = wanted_room(moves_[move]);
  if (filters_) [[unlikely]] {
    tell_admission(key);
  }
  const bool too_large = account(tier(0), tokens) > tier(0).capacity();
  const bool refused = too_large || (filters_ && !admits(0, id));
  const Room room = refused ? Room::refused : find_room(0, moves_[move].room, Demand::save, id);
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

void TierManager::finish_save(MoveId move_id) {
  const Move& move = moves_[move_id];
  const EntryId id = move.entry;
  const bool extended = entry(id).copies[0].state == CopyState::resident;
  make_resident(0, id, move.tokens);
  leave_hbm(id);
  if (extended) {
    unpin(0, id);
  }
  end_save(move);
  moves_.end(move_id);
  write_through(id);
}

/// Done or given up: nothing of it is in the write buffer.
void TierManager::end_save(const Move& move) {
  entry(move.entry).save = MoveId{};
  --saving_;
  hbm().charge(Account::write_buffer, -move.bytes);
}

void TierManager::write_through(EntryId id) {
  if (tiers_.size() > 1 && tier(1).config.write == WriteMoment::on_create &&
      !entry(id).writes[0].valid()) {
    queue_write(0, id);
  }
}

void TierManager::drop_save(MoveId move, LossCause cause) {
  const EntryId id = moves_[move].entry;
  log(DecisionKind::drop_save, 0, id, entry(id).tokens);
  cancel(move);
  give_up_lent(id);
  leave_hbm(id);
  entry(id).loss = cause;
  release_if_empty(id);
}

// ---- All of them ----

void TierManager::trim(std::size_t index) {
  Tier& t = tier(index);
  if (t.config.free_buffer.value > 0) {
    (void)choose_victims(index, t.config.free_buffer, Demand::background, kNoEntry);
  }
}

void TierManager::settle_moves() {
  for (int round = 0; round < kMostSettleRounds; ++round) {
    if (keeps_free_) {
      trim(0);
    }
    bool progress = can_grant() && grant_waiting();
    for (std::size_t i = 0; keeps_free_ ? i < tiers_.size() : (startable_ >> i) != 0; ++i) {
      if (keeps_free_ && i > 0) {
        trim(i);
      }
      if ((startable_ >> i & 1U) != 0) {
        progress = start_writes(i) || progress;
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
