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
  const QueuePosition position = e.position;
  ++t.count().evictions;
  const bool below = index + 1 < tiers_.size();
  if (!below) {
    log(DecisionKind::evict, index, id, copy.tokens, demand);
    remove_copy(index, id, LossCause::capacity);
  } else if (((e.in_use || e.saving) && moves_up(index + 1)) || has_above(e, index, copy.tokens) ||
             (e.copies[index + 1].state == CopyState::resident &&
              e.copies[index + 1].tokens >= copy.tokens)) {
    log(DecisionKind::demote, index, id, copy.tokens, demand);
    remove_copy(index, id, LossCause::capacity);
  } else {
    log(DecisionKind::demote, index, id, copy.tokens, demand);
    tell_removed(index, id);
    copy.leaving = true;
    t.leave(copy.account);
    if (!writes_from(e, index)) {
      queue_write(index, id);
    }
    return;
  }
  if (position != kNotQueued) {
    prefetch_->on_demoted(id, position);
  }
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

void TierManager::wait_for_room(EntryId id) {
  Entry& e = entry(id);
  e.room_wanted = wanted_room(e);
  waiting_for_room_.push_back(id);
  tier(0).promise(e.room_wanted);
}

void TierManager::cancel_wait(EntryId id) {
  const bool found = waiting_for_room_.erase(id);
  KVTIER_ASSERT(found, "only what waits for room can stop waiting");
  tier(0).promise(-entry(id).room_wanted);
}

bool TierManager::grant_waiting() {
  Tier& t = tier(0);
  bool progress = false;
  while (can_grant()) {
    const EntryId id = waiting_for_room_.front();
    const Bytes wanted = entry(id).room_wanted;
    const bool fits = t.free() >= wanted;
    // What was on its way out may have been rescued by a hit: then other victims are needed.
    const Demand demand = entry(id).saving ? Demand::save : Demand::prefetch;
    if (!fits && choose_victims(0, Bytes(0), demand, id)) {
      if (t.free() < wanted) {
        break;
      }
    }
    const bool granted = t.free() >= wanted;
    waiting_for_room_.pop_front();
    t.promise(-wanted);
    progress = true;
    if (entry(id).saving) {
      granted ? grant_save(id) : drop_save(id, LossCause::capacity);
    } else if (granted) {
      activate_fetch(id);
    } else {
      end_fetch(id);
    }
  }
  return progress;
}

// ---- Writes to the next slower tier ----

void TierManager::queue_write(std::size_t from, EntryId id) {
  entry(id).writes |= static_cast<std::uint8_t>(1U << from);
  tier(from).writes.push_back(id);
  note_writes(from);
}

/// Takes the first write off the queue.
EntryId TierManager::end_write(std::size_t from) {
  Tier& t = tier(from);
  const EntryId id = t.writes.front();
  t.writes.pop_front();
  t.write.entry = kNoEntry;
  entry(id).writes &= static_cast<std::uint8_t>(~(1U << from));
  note_writes(from);
  return id;
}

bool TierManager::start_writes(std::size_t from) {
  Tier& t = tier(from);
  bool progress = false;
  while (!t.writes.empty() && !t.write.entry.valid()) {
    const EntryId id = t.writes.front();
    Entry& e = entry(id);
    const std::size_t to = from + 1;
    Copy& source = e.copies[from];
    Copy& target = e.copies[to];
    const bool through = tier(to).config.write == WriteMoment::on_create;
    const bool wanted = source.state == CopyState::resident && !e.doomed &&
                        source.tokens > target.tokens && (source.leaving || through);
    Room room = Room::refused;
    if (wanted) {
      if (target.state == CopyState::resident) {
        pin(to, id);
      }
      room = filters_ && !admits(to, id)
                 ? Room::refused
                 : find_room(to, account(tier(to), source.tokens) - target.account,
                             Demand::demotion, id);
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
      charge(to, e, account(tier(to), source.tokens) - target.account);
      if (target.state == CopyState::absent) {
        target.state = CopyState::arriving;
      }
      if (!source.leaving) {
        pin(from, id);
      }
      const Bytes bytes = write_bytes(tier(to), target.tokens, source.tokens);
      t.write = {.entry = id, .tokens = source.tokens, .source_gone = false, .target_gone = false};
      note_writes(from);
      tier(to).count().written += bytes;
      t.count().read += bytes;
      backend_.start_transfer(
          {.from = t.medium(),
           .to = tier(to).medium(),
           .bytes = bytes,
           .key = e.key,
           .tokens = source.tokens,
           .cookie = cookie(TransferKind::write, 0, static_cast<std::uint32_t>(from))});
      return true;
    }
    (void)end_write(from);
    if (source.state == CopyState::resident && source.leaving) {
      const bool lost = target.tokens < source.tokens;
      const bool fits = account(tier(to), source.tokens) <= tier(to).capacity();
      if (lost) {
        log(DecisionKind::evict, from, id, source.tokens, Demand::demotion);
      }
      remove_copy(from, id,
                  !fits             ? LossCause::larger_than_tier
                  : !admits(to, id) ? LossCause::not_admitted
                                    : LossCause::capacity);
      if (e.position != kNotQueued) {
        prefetch_->on_demoted(id, e.position);
      }
    }
    release_if_empty(id);
  }
  return progress;
}

void TierManager::finish_write(std::size_t from) {
  const Write write = tier(from).write;
  const std::size_t to = from + 1;
  const EntryId id = end_write(from);
  KVTIER_ASSERT(write.entry == id, "writes end in the order they began");
  Entry& e = entry(id);
  const bool extended = e.copies[to].state == CopyState::resident;
  if (write.tokens.value > 0) {
    make_resident(to, id, write.tokens);
  } else {  // truncated to nothing meanwhile
    if (!extended) {
      charge(to, e, -e.copies[to].account);
      e.copies[to] = Copy{};
      tell_kept(to, id);
    }
  }
  if (extended) {
    unpin(to, id);
  }
  Copy& source = e.copies[from];
  if (write.source_gone) {
    const bool through = tier(to).config.write == WriteMoment::on_create;
    if (source.state == CopyState::resident && (source.leaving || through)) {
      queue_write(from, id);
    }
    if (e.position != kNotQueued) {
      prefetch_->on_demoted(id, e.position);
    }
  } else if (source.state == CopyState::resident) {
    if (source.leaving) {
      remove_copy(from, id, LossCause::capacity);
      if (e.position != kNotQueued) {
        prefetch_->on_demoted(id, e.position);
      }
    } else if (source.pins > 0) {
      unpin(from, id);
    }
  }
  if (e.copies[to].state == CopyState::resident) {
    if (write.target_gone && !writes_from(e, from) && e.source_tier != to) {
      give_up(to, id);
    } else if (to + 1 < tiers_.size() && tier(to + 1).config.write == WriteMoment::on_create &&
               !writes_from(e, to)) {
      queue_write(to, id);
    }
  }
  for_each_tier_in(e.residents, [&](std::size_t i) {
    const Copy& copy = e.copies[i];
    if ((e.doomed || copy.tokens.value == 0) && copy.pins == 0 && active_write(id, i) == nullptr) {
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
  const SimDuration idle = backend_.now() - e.fetched;
  const SimDuration took = e.fetched - e.fetch_begin;
  std::int64_t& outcome = !used          ? prefetches_.unused
                          : idle <= took ? prefetches_.on_time
                                         : prefetches_.early;
  ++outcome;
  prefetches_.idle_byte_ns += static_cast<Int128>(actual_bytes(e.copies[0].tokens).value) * idle.ns;
  e.fetched = kNever;
}

void TierManager::start_fetch(EntryId id) {
  Entry& e = entry(id);
  const std::uint8_t source = best_tier(e);
  pin(source, id);
  e.source_tier = source;
  // The free buffer is for what turns save: a fetch that took it would only drive others out.
  const Bytes wanted = account(tier(0), e.copies[source].tokens) + tier(0).config.free_buffer;
  const Room room = find_room(0, wanted, Demand::prefetch, id);
  if (room == Room::refused) {
    unpin(source, id);
    e.source_tier = kNoTier;
    return;
  }
  e.fetching = true;
  fetching_ = id;
  log(DecisionKind::prefetch, source, id, e.copies[source].tokens, Demand::prefetch);
  if (room == Room::granted) {
    activate_fetch(id);
  } else {
    wait_for_room(id);
  }
}

void TierManager::activate_fetch(EntryId id) {
  Entry& e = entry(id);
  const Copy& source = e.copies[e.source_tier];
  arrive_in_fastest(id, source.tokens);
  e.fetch_active = true;
  e.fetch_begin = backend_.now();
  ++prefetches_.begun;
  const Bytes bytes = write_bytes(tier(e.source_tier), Tokens(0), source.tokens);
  tier(e.source_tier).count().read += bytes;
  tier(0).count().written += bytes;
  backend_.start_transfer({.from = tier(e.source_tier).medium(),
                           .to = tier(0).medium(),
                           .bytes = bytes,
                           .key = e.key,
                           .tokens = source.tokens,
                           .cookie = cookie(TransferKind::fetch, 0, id.value)});
}

/// The copy takes its room and is not there yet.
void TierManager::arrive_in_fastest(EntryId id, Tokens tokens) {
  Entry& e = entry(id);
  e.copies[0].state = CopyState::arriving;
  charge(0, e, account(tier(0), tokens));
  if (e.prompt != kNone) [[unlikely]] {
    tier(0).note_shared(e.copies[0].account);
  }
}

/// Of a fetch that waits for room.
void TierManager::cancel_fetch(EntryId id) {
  cancel_wait(id);
  end_fetch(id);
}

/// Done or given up: its source is free again, and another entry can be fetched.
void TierManager::end_fetch(EntryId id) {
  Entry& e = entry(id);
  const std::uint8_t source = e.source_tier;
  e.fetching = false;
  e.fetch_active = false;
  e.source_tier = kNoTier;
  fetching_ = kNoEntry;
  unpin(source, id);
}

void TierManager::finish_fetch(EntryId id) {
  Entry& e = entry(id);
  const std::uint8_t source = e.source_tier;
  const Tokens tokens = e.copies[source].tokens;
  end_fetch(id);
  if (e.doomed) {  // invalidated on its way
    ++prefetches_.unused;
    charge(0, e, -e.copies[0].account);
    e.copies[0] = Copy{};
    tell_kept(0, id);
    give_up(source, id);
    release_if_empty(id);
    return;
  }
  make_resident(0, id, tokens);
  leave_upwards(source, id);
  if (e.prompt != kNone) {
    write_through(id);  // what no turn saves again
  }
  if (e.in_use) {
    touch(id, tier(0).config.inclusive ? Use::at_once : Use::begins);
    leave_upwards(0, id);
    on_load_ready(e.owner, tier(0).medium());
  } else if (e.prompt != kNone && awaiting_prompt_ != kNone) {
    const SessionSlot session = std::exchange(awaiting_prompt_, kNone);
    touch(id, Use::begins);
    hold_prompt(members_[session]);
    on_load_ready(session, tier(0).medium());
  } else {
    e.fetched = backend_.now();
  }
}

// ---- Saves ----

void TierManager::submit_save(EntryId id, Tokens tokens, bool more_follows) {
  Entry& e = entry(id);
  const Tokens kept = e.copies[0].state == CopyState::resident ? e.copies[0].tokens : Tokens(0);
  Tokens moved = std::max(Tokens(0), tokens - std::max(e.save_submitted, kept));
  if (e.save_submitted.value == 0) {
    e.save_relies_on = kept;
  } else if (kept < e.save_relies_on) {
    moved += e.save_relies_on - kept;
    e.save_relies_on = kept;
  }
  if (moved.value == 0) {
    KVTIER_ASSERT(!e.save_transfer.valid(), "a turn adds tokens to its prompt");
    return;
  }
  e.save_submitted = tokens;
  if (keeps_in_hbm(0)) {
    return;
  }
  const Bytes bytes = actual_bytes(moved);
  tier(0).count().written += bytes;
  if (e.save_transfer.valid() && backend_.extend_transfer(e.save_transfer, bytes, tokens)) {
    e.save_in_flight += bytes;
    return;
  }
  e.save_in_flight = bytes;
  e.save_transfer =
      backend_.start_transfer({.from = Medium::hbm,
                               .to = tier(0).medium(),
                               .bytes = bytes,
                               .key = e.key,
                               .tokens = tokens,
                               .cookie = cookie(TransferKind::save, e.save_epoch, id.value),
                               .open = more_follows});
}

void TierManager::begin_save(SessionSlot session, EntryKey key, Tokens prompt) {
  if (tiers_.empty() || config_.system.save.mode == SaveMode::blocking) {
    return;
  }
  submit_save(find_or_create(session, key), prompt, true);
}

void TierManager::save(SessionSlot session, EntryKey key, Tokens tokens) {
  if (tiers_.empty()) {
    backend_.keep(Medium::hbm, key, Tokens(0));
    return;
  }
  const EntryId id = find_or_create(session, key);
  Entry& e = entry(id);
  drop_expired();
  e.in_use = false;
  e.saving = true;
  ++saving_;
  e.save_granted = false;
  e.tokens = tokens;
  e.last_used = backend_.now();
  if (e.copies[0].leaving) {
    give_up(0, id);  // others wait for its room: the save asks for room of its own
  }
  submit_save(id, tokens, false);
  if (keeps_in_hbm(0)) {
    backend_.keep(Medium::hbm, key, tokens);
  }
  if (e.copies[0].state == CopyState::resident) {
    pin(0, id);  // an inclusive tier's own copy grows
  }
  const Bytes wanted = wanted_room(e);
  if (filters_) [[unlikely]] {
    tell_admission(key);
  }
  const bool too_large = account(tier(0), tokens) > tier(0).capacity();
  const bool refused = too_large || (filters_ && !admits(0, id));
  const Room room = refused ? Room::refused : find_room(0, wanted, Demand::save, id);
  if (room == Room::refused) {
    drop_save(id, too_large ? LossCause::larger_than_tier
                  : refused ? LossCause::not_admitted
                            : LossCause::capacity);
  } else {
    e.buffered = room == Room::granted ? e.save_in_flight : actual_bytes(tokens);
    hbm().charge(Account::write_buffer, e.buffered);
    if (room == Room::granted) {
      grant_save(id);
    } else {
      wait_for_room(id);
    }
  }
  settle();
}

void TierManager::grant_save(EntryId id) {
  Entry& e = entry(id);
  Copy& copy = e.copies[0];
  charge(0, e, wanted_room(e));
  if (copy.state == CopyState::absent) {
    copy.state = CopyState::arriving;
  }
  e.save_granted = true;
  finish_save_if_complete(id);
}

void TierManager::finish_save(EntryId id) {
  Entry& e = entry(id);
  const bool extended = e.copies[0].state == CopyState::resident;
  make_resident(0, id, e.tokens);
  leave_hbm(id);
  if (extended) {
    unpin(0, id);
  }
  e.saving = false;
  --saving_;
  e.save_submitted = Tokens(0);
  hbm().charge(Account::write_buffer, -e.buffered);
  e.buffered = Bytes(0);
  write_through(id);
}

void TierManager::write_through(EntryId id) {
  if (tiers_.size() > 1 && tier(1).config.write == WriteMoment::on_create &&
      !writes_from(entry(id), 0)) {
    queue_write(0, id);
  }
}

/// Forgets a save: its transfer goes on (the bytes are on their way) but its completion will mean
/// nothing.
void TierManager::cancel_save(EntryId id) {
  Entry& e = entry(id);
  Copy& copy = e.copies[0];
  if (copy.state == CopyState::arriving) {
    charge(0, e, -copy.account);
    copy = Copy{};
  }
  tell_kept(0, id);
  if (copy.state == CopyState::resident) {
    unpin(0, id);  // gives back what the save was granted
    if (copy.pins == 0 && copy.tokens.value == 0) {
      remove_copy(0, id, LossCause::overflow);
    }
  }
  e.saving = false;
  --saving_;
  e.save_granted = false;
  e.save_submitted = Tokens(0);
  e.save_transfer = TransferId{};
  e.save_in_flight = Bytes(0);
  e.save_epoch = static_cast<std::uint16_t>(e.save_epoch + 1);
  hbm().charge(Account::write_buffer, -e.buffered);
  e.buffered = Bytes(0);
}

void TierManager::drop_save(EntryId id, LossCause cause) {
  log(DecisionKind::drop_save, 0, id, entry(id).tokens);
  entry(id).save_granted = false;
  cancel_save(id);
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
