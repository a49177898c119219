#include <algorithm>

#include "sim/core/assert.hpp"
#include "sim/store/sessions/session_store.hpp"

/// Entries that leave a tier in parts, from their end (Pensieve, arXiv 2312.05516): each tier has
/// one run of an entry's tokens. HBM that running requests share keeps a part that the next tier
/// has too until its room is taken.
namespace kvtier {

// ---- Borders and accounts ----

void SessionStore::show_part(std::size_t index, const Entry& e, EntryView& view) const {
  const Borders& b = borders(e, index);
  const Tier& t = tier(index);
  view.tokens = b.kept - b.begin;
  view.depth = b.begin;
  view.bytes = block_bytes(t) * blocks(t, view.tokens);
  view.queue_position = t.sees_queue() ? e.position : kNotQueued;
}

Bytes SessionStore::bytes_of(const Tier& t, EntryId id, Tokens tokens) const {
  const Borders& b = borders(id, index_of(t));
  return block_bytes(t) * (blocks(t, b.begin + tokens - b.coming) - blocks(t, b.begin - b.coming));
}

Bytes SessionStore::needed_by_part(std::size_t index, const Entry& e) const {
  const Tier& t = tier(index);
  return block_bytes(t) * blocks(t, e.copies[index].tokens - borders(e, index).coming);
}

/// A part of a block may free nothing, and can leave all the same. Of an entry of which something
/// leaves nothing else is offered.
Bytes SessionStore::offered_part(std::size_t index, const Entry& e) const {
  const Borders& b = borders(e, index);
  const MoveId write = e.writes[index];
  if (b.kept == b.begin || b.kept < b.clean ||
      (write.valid() && moves_[write].state != MoveState::planned && moves_[write].holds_source)) {
    return Bytes(0);
  }
  return std::max(Bytes(1), bytes_of(tier(index), id_of(e), b.kept - b.begin));
}

/// At a block's border, or where the tier's part begins. A shared prefix leaves whole.
Tokens SessionStore::rounded(const Tier& t, EntryId id, Tokens keep) const {
  const Borders& b = borders(id, index_of(t));
  KVTIER_ASSERT(keep.value > 0 && keep < b.kept - b.begin, "a victim shrinks");
  if (entry(id).prompt != kNone) {
    return Tokens(0);
  }
  const std::int64_t block = t.config.block_size.value;
  const Tokens end = b.coming + Tokens((b.begin + keep - b.coming).value / block * block);
  return std::max(b.begin, end) - b.begin;
}

void SessionStore::set_borders(std::size_t index, EntryId id, const Borders& next, Tokens tokens,
                               bool tells, bool charges) {
  KVTIER_ASSERT(next.coming.value >= 0 && next.coming <= next.begin && next.begin <= next.kept &&
                    next.kept <= next.clean && next.clean <= tokens,
                "a copy's borders are in order");
  Tier& t = tier(index);
  Entry& e = entry(id);
  Copy& copy = e.copies[index];
  Borders& b = borders_[id.value][index];
  const auto bytes = [&](const Borders& of, Tokens from, Tokens to) {
    return block_bytes(t) * (blocks(t, to - of.coming) - blocks(t, from - of.coming));
  };
  const Bytes cached = bytes(next, next.clean, tokens);
  t.leave(bytes(next, next.kept, next.clean) - bytes(b, b.kept, b.clean));
  t.cache(cached - bytes(b, b.clean, copy.tokens));
  const Tokens before = b.kept - b.begin;
  const bool moved = b.begin != next.begin;
  b = next;
  copy.tokens = tokens;
  set_leaving(e, index, next.kept < next.clean);
  if (index == 0 && cached_.contains(id) != (cached.value > 0)) {
    cached.value > 0 ? cached_.push_back(id) : cached_.remove(id);
  }
  if (charges) {
    recharge(index, e);
  }
  if (!tells) {
    return;
  }
  const Tokens after = b.kept - b.begin;
  const bool known = (e.known >> index & 1U) != 0;
  if (!known && after.value > 0) {
    tell_inserted(index, e);
  } else if (known && after.value == 0) {
    tell_removed(index, e);
  } else {
    offer(index, e);
    if (known && (before != after || moved)) {
      t.policy()->on_resize(view(index, e), backend_.now());
    }
  }
}

void SessionStore::shorten(std::size_t index, EntryId id, const Borders& next, Tokens tokens,
                           LossCause cause) {
  if (next.begin == tokens && entry(id).copies[index].pins == 0) {
    remove_copy(index, entry(id), cause);
  } else {
    set_borders(index, id, next, tokens);
    tell_kept(index, entry(id));
  }
}

void SessionStore::clear_borders(std::size_t index, EntryId id) {
  Tier& t = tier(index);
  const Borders b = borders(id, index);
  const Tokens tokens = entry(id).copies[index].tokens;
  t.leave(block_bytes(t) * (blocks(t, b.kept - b.coming) - blocks(t, b.clean - b.coming)));
  t.cache(block_bytes(t) * (blocks(t, b.clean - b.coming) - blocks(t, tokens - b.coming)));
  if (index == 0 && cached_.contains(id)) {
    cached_.remove(id);
  }
  borders_[id.value][index] = Borders{};
  set_leaving(entry(id), index, false);
}

void SessionStore::add_part(std::size_t index, EntryId id, Tokens first, Tokens tokens) {
  Entry& e = entry(id);
  Copy& copy = e.copies[index];
  Borders next = borders(id, index);
  const bool is_new = copy.state != CopyState::resident;
  if (is_new) {
    next = {.coming = first, .begin = first, .kept = tokens, .clean = tokens};
    copy.state = CopyState::resident;
    e.residents |= static_cast<std::uint8_t>(1U << index);
    ++residents_;
    e.seen.first_inserted = std::min(e.seen.first_inserted, backend_.now());
  } else {
    next.begin = next.coming = std::min(next.begin, first);
    if (tokens > copy.tokens) {
      KVTIER_ASSERT(next.kept == copy.tokens, "nothing leaves of a copy that grows at its end");
      next.kept = next.clean = tokens;
    } else {
      tokens = copy.tokens;
    }
  }
  const bool comes_back = is_new && (e.known >> index & 1U) != 0;
  set_borders(index, id, next, tokens, !comes_back);
  if (comes_back) {
    take_back(e);
  }
  tell_kept(index, e);
  if (is_new) {
    log(DecisionKind::insert, index, e, tokens);
  }
}

void SessionStore::count_part(std::size_t index, Tokens tokens) {
  Tier& t = tier(index);
  const Bytes taken = block_bytes(t) * blocks(t, tokens);
  ++t.count().insertions;
  ++t.count().stores;
  t.count().blocks += taken;
  t.count().block_waste += taken - actual_bytes(tokens);
}

// ---- Eviction ----

bool SessionStore::may_leave(const Tier& t, EntryId id, Tokens keep) {
  const std::size_t index = index_of(t);
  if (index == 0 && t.is_shared()) {
    const Borders& b = borders(id, 0);
    return room_below(id, rounded_or_none(t, id, keep) + b.begin) || !only_ahead_;
  }
  // A part that leaves the last tier takes with it the part that HBM has cached.
  return !(only_ahead_ && index == 1 && cached_.contains(id));
}

void SessionStore::evict_part(std::size_t index, EntryId id, Tokens keep, Demand demand) {
  Tier& t = tier(index);
  Entry& e = entry(id);
  Borders b = borders(id, index);
  const Tokens first = b.begin + keep;
  if ((e.residents >> index & 1U) == 0 || first >= b.kept) {
    return;  // it went with another victim
  }
  // A part that HBM has cached does not count: it leaves with the copy below.
  const auto has = [&](std::size_t i) {
    const Tokens end = i == 0 && tier(0).is_shared() ? borders(id, 0).clean : e.copies[i].tokens;
    return (e.residents >> i & 1U) != 0 && borders(id, i).begin <= first && end >= b.kept;
  };
  const bool below = index + 1 < tiers_.size();
  bool needless = false;
  if (below) {
    needless = ((e.in_use || e.save.valid()) && moves_up(index + 1)) || has(index + 1);
    for (std::size_t i = 0; i < index; ++i) {
      needless = needless || has(i);
    }
  }
  const bool goes_down = below && !needless && (!t.is_shared() || room_below(id, first));
  if (goes_down) {
    t.count().evictions += t.is_shared() ? 0 : 1;
    log(DecisionKind::demote, index, e, b.kept - first, demand);
    b.kept = first;
    set_borders(index, id, b, e.copies[index].tokens);
    if (!e.writes[index].valid()) {
      queue_write(index, e);
    }
    return;
  }
  ++t.count().evictions;
  log(needless ? DecisionKind::demote : DecisionKind::evict, index, e,
      e.copies[index].tokens - first, demand);
  if (needless) {
    b.kept = b.clean = first;
    shorten(index, id, b, first, LossCause::capacity);
  } else {
    const bool refused = below && filters_ && !admits(index + 1, id);
    const bool fits =
        !below || account(tier(index + 1), b.kept - first) <= tier(index + 1).capacity();
    drop_from(index, id, first,
              !fits     ? LossCause::larger_than_tier
              : refused ? LossCause::not_admitted
                        : LossCause::capacity);
  }
  tell_demoted(e);
  release_if_empty(e);
}

/// The tokens from `first` on are nowhere else, so what slower tiers have behind them is of no use,
/// nor what HBM has cached of this tier.
void SessionStore::drop_from(std::size_t index, EntryId id, Tokens first, LossCause cause) {
  Entry& e = entry(id);
  e.loss = cause;
  Borders b = borders(id, index);
  b.kept = b.clean = first;
  shorten(index, id, b, first, cause);
  if (index > 0 && (e.residents & 1U) != 0) {
    const Borders& above = borders(id, 0);
    const Tokens end = std::max(above.clean, std::min(e.copies[0].tokens, first));
    if (end < e.copies[0].tokens) {
      shorten(0, id, above, end, cause);
    }
  }
  drop_beyond_gap(id, cause);
}

void SessionStore::expire_behind(std::size_t index, EntryId id) {
  if (index > 0 && cached_.contains(id)) {
    const Borders above = borders(id, 0);
    shorten(0, id, above, above.clean, LossCause::ttl);
  }
  drop_beyond_gap(id, LossCause::ttl);
}

void SessionStore::drop_beyond_gap(EntryId id, LossCause cause) {
  Entry& e = entry(id);
  Tokens reach(0);
  for (std::size_t round = 0; round < tiers_.size(); ++round) {
    for_each_tier_in(e.residents, [&](std::size_t i) {
      if (borders(id, i).begin <= reach) {
        reach = std::max(reach, e.copies[i].tokens);
      }
    });
  }
  for_each_tier_in(e.residents, [&](std::size_t i) {
    if (borders(id, i).begin > reach && e.copies[i].pins == 0 && active_write(e, i) == nullptr &&
        (i == 0 || active_write(e, i - 1) == nullptr)) {
      remove_copy(i, e, cause);
    }
  });
}

// ---- Room in HBM for running requests ----

Bytes SessionStore::available_to(SessionSlot session) const {
  const EntryId id = entry_of(session);
  if (!id.valid() || !hbm_->is_shared() || (entry(id).residents & 1U) == 0 ||
      is_fetched_now(entry(id))) {
    return available();
  }
  return available() + block_bytes(tier(0)) * blocks(tier(0), borders(id, 0).clean);
}

void SessionStore::reclaim(Bytes bytes) {
  KVTIER_ASSERT(hbm_->is_shared() && bytes <= hbm_->cached(),
                "running requests take what is available");
  Tier& t = tier(0);
  const Bytes block = block_bytes(t);
  while (bytes.value > 0) {
    const EntryId id = cached_.front();
    const Borders b = borders(id, 0);
    const Tokens tokens = entry(id).copies[0].tokens;
    const std::int64_t all = blocks(t, tokens) - blocks(t, b.clean);
    const std::int64_t taken = std::min(all, (bytes.value + block.value - 1) / block.value);
    ++t.count().evictions;
    shorten(
        0, id, b,
        taken == all ? b.clean : Tokens((blocks(t, tokens) - taken) * t.config.block_size.value),
        LossCause::capacity);
    release_if_empty(entry(id));
    bytes -= block * taken;
  }
}

bool SessionStore::moves_down() const {
  if (tiers_.empty() || tier(0).writes.empty()) {
    return false;
  }
  const Move& first = moves_[tier(0).writes.front()];
  return hbm_->leaving().value > 0 || (first.transfer.valid() && first.sources == 0);
}

bool SessionStore::make_room() {
  bool changed = false;
  ahead_is_stuck_ = false;
  if (!hbm_->is_shared()) {
    return false;
  }
  while (!moves_down() && projected() < std::max(wanted_, ahead_)) {
    if (tiers_.size() > 1 && loads_first_ && loads_ > 0) {
      break;
    }
    only_ahead_ = projected() >= wanted_;
    RoomRequest request =
        room_request(0, only_ahead_ ? Demand::background : Demand::save, kNoEntry);
    const bool chosen = hbm_->choose_for(kNoEntry, request, Bytes(1));
    only_ahead_ = false;
    if (!chosen) {
      ahead_is_stuck_ = hbm_->refused();
      break;
    }
    changed = true;
    const Victim victim = hbm_->victims().front();
    evict_part(0, victim.entry, victim.keep, request.demand);
    settle();
  }
  return changed;
}

std::optional<Bytes> SessionStore::available_before_saving() const {
  const bool waits = moves_down() || ahead_is_stuck_ || (loads_first_ && loads_ > 0);
  if (ahead_.value == 0 || waits || hbm_->stored() == hbm_->cached() + hbm_->leaving()) {
    return std::nullopt;
  }
  return std::max(Bytes(0), projected() - ahead_);
}

// ---- Moves ----

SessionStore::PartWrite SessionStore::part_write(std::size_t from, EntryId id, Tokens first,
                                                 Tokens end) const {
  const Tier& to = tier(from + 1);
  const Entry& e = entry(id);
  const Copy& copy = e.copies[from + 1];
  const Borders& b = borders(id, from + 1);
  PartWrite write;
  write.first = first;
  write.tokens = end;
  Tokens moved = end - first;
  if ((e.residents >> (from + 1) & 1U) != 0) {
    if (copy.tokens < first && borders(id, from).begin <= copy.tokens) {
      write.first = first = copy.tokens;  // what lies between comes too
    }
    if (copy.tokens < first || b.begin > end) {
      write.replaces = true;
      moved = end - first;
    } else {
      write.first = std::min(first, b.begin);
      write.tokens = std::max(end, copy.tokens);
      write.extends = end > copy.tokens;
      moved = std::max(Tokens(0), b.begin - first) + std::max(Tokens(0), end - copy.tokens);
    }
  }
  write.room = block_bytes(to) * blocks(to, write.tokens - write.first) - copy.account;
  write.bytes = actual_bytes(moved);
  return write;
}

bool SessionStore::room_below(EntryId id, Tokens first) {
  if (tiers_.size() < 2 || (filters_ && !admits(1, id))) {
    return false;
  }
  // Each round shortens what the next tier has, that of the same entry too.
  while (true) {
    const PartWrite write = part_write(0, id, first, borders(id, 0).kept);
    const Tier& to = tier(1);
    if (block_bytes(to) * blocks(to, borders(id, 0).kept - first) > to.capacity()) {
      return false;
    }
    if (write.room <= to.free_to_come()) {
      return true;
    }
    if (!choose_victims(1, write.room, Demand::demotion, id)) {
      return false;
    }
  }
}

SessionStore::Room SessionStore::find_room_for_part(std::size_t from, MoveId move_id) {
  const EntryId id = moves_[move_id].entry;
  Entry& e = entry(id);
  const std::size_t to = from + 1;
  const Borders& b = borders(id, from);
  const bool resident = (e.residents >> from & 1U) != 0;
  const bool leaves = resident && b.kept < b.clean;
  const bool through = resident && tier(to).config.write == WriteMoment::on_create;
  if (e.doomed || (!leaves && !through)) {
    return Room::refused;
  }
  const PartWrite write =
      leaves ? part_write(from, id, b.kept, b.clean) : part_write(from, id, b.begin, b.kept);
  const bool is_there = (e.residents >> to & 1U) != 0;
  if (write.bytes.value == 0) {
    return Room::refused;
  }
  if (is_there && write.replaces) {
    if (e.copies[to].pins > 0 || active_write(e, to) != nullptr) {
      return Room::refused;
    }
    remove_copy(to, e, LossCause::capacity);
    return find_room_for_part(from, move_id);
  }
  if (is_there && !write.extends && is_leaving(e, to)) {
    return Room::coming;  // its tail makes room for its head
  }
  if (is_there) {
    pin(to, e);
  }
  Room room =
      filters_ && !admits(to, id) ? Room::refused : find_room(to, write.room, Demand::demotion, id);
  if (room != Room::granted) {
    if (is_there) {
      unpin(to, e);
    }
    return room;
  }
  Move& move = moves_[move_id];
  move.first = write.first;
  move.tokens = write.tokens;
  move.room = write.room;
  move.bytes = write.bytes;
  return room;
}

void SessionStore::finish_part_write(MoveId move_id) {
  const Move move = moves_[move_id];
  const std::size_t from = move.from;
  const std::size_t to = move.to;
  const EntryId id = move.entry;
  const bool is_cancelled = move.state == MoveState::cancelled;
  Entry& e = entry(id);
  KVTIER_ASSERT(tier(from).writes.front() == move_id, "writes end in the order they began");
  const bool extended = e.copies[to].state == CopyState::resident;
  end_write(from);
  if (!e.doomed && move.tokens > move.first) {
    add_part(to, id, move.first, move.tokens);
  } else if (!extended) {
    drop_arriving(to, e);
  } else {
    borders_[id.value][to].coming = borders(id, to).begin;
  }
  if (extended) {
    unpin(to, e);
  }
  if (move.holds_source && move.sources != 0) {
    unpin(from, e);
  } else if (move.holds_source && is_leaving(e, from)) {
    Borders b = borders(id, from);
    b.clean = b.kept;
    const bool stays = tier(from).is_shared() && (e.residents >> to & 1U) != 0;
    shorten(from, id, b, stays ? e.copies[from].tokens : b.kept, LossCause::capacity);
    tell_demoted(e);
  } else if (!move.holds_source) {
    const bool through = tier(to).config.write == WriteMoment::on_create;
    if (is_leaving(e, from) || (through && e.copies[from].state == CopyState::resident)) {
      queue_write(from, e);
    }
    tell_demoted(e);
  }
  if (e.copies[from].state == CopyState::resident) {
    offer(from, e);
  }
  write_on(to, e, is_cancelled);
  for_each_tier_in(e.residents, [&](std::size_t i) {
    const Copy& copy = e.copies[i];
    if ((e.doomed || copy.tokens == borders(id, i).begin) && copy.pins == 0 &&
        active_write(e, i) == nullptr && (i == 0 || active_write(e, i - 1) == nullptr)) {
      remove_copy(i, e, LossCause::overflow);
    }
  });
  release_if_empty(e);
}

void SessionStore::rescue(std::size_t index, EntryId id) {
  Borders b = borders(id, index);
  b.kept = b.clean;
  set_borders(index, id, b, entry(id).copies[index].tokens);
  Move* const outgoing = active_write(entry(id), index);
  if (outgoing != nullptr && outgoing->holds_source) {
    outgoing->sources = static_cast<std::uint8_t>(1U << index);
    if (moves_up(index + 1)) {
      cancel(entry(id).writes[index]);
    }
    pin(index, entry(id));
  }
}

void SessionStore::truncate_parts(EntryId id, const Truncation& cut) {
  Entry& e = entry(id);
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const Copy& copy = e.copies[i];
    if (copy.state != CopyState::resident) {
      continue;
    }
    const Borders b = borders(id, i);
    const Borders next{.coming = cut.left_of(b.coming),
                       .begin = cut.left_of(b.begin),
                       .kept = cut.left_of(b.kept),
                       .clean = cut.left_of(b.clean)};
    const Tokens tokens = cut.left_of(copy.tokens);
    if (tokens == next.begin && copy.pins == 0 && active_write(e, i) == nullptr) {
      log(DecisionKind::invalidate, i, e, Tokens(0));
      remove_copy(i, e, e.tokens.value == 0 ? LossCause::overflow : e.loss);
    } else {
      set_borders(i, id, next, tokens, true, copy.pins == 0);
    }
  }
}

/// Its room was found by find_room_for_part or start_fetch.
void SessionStore::grant_part(MoveId id) {
  const Move& move = moves_[id];
  Borders& there = borders_[move.entry.value][move.to];
  there.coming = entry(move.entry).copies[move.to].state == CopyState::resident
                     ? std::min(there.begin, move.first)
                     : there.begin;
  count_part(move.to, move.tokens - move.first);
}

void SessionStore::start_part_transfer(MoveId id, Medium from, Bytes bytes) {
  Move& move = moves_[id];
  move.bytes = bytes;
  const Entry& e = entry(move.entry);
  boost::container::static_vector<KvPiece, 2> pieces;
  const auto add = [&](Tokens first, Tokens end) {
    if (first < end) {
      pieces.push_back({.key = e.seen.key, .first = first, .count = end - first});
    }
  };
  const Copy& there = e.copies[move.to];
  const bool joins = there.state == CopyState::resident;
  add(move.first, joins ? std::min(move.tokens, borders(e, move.to).begin) : move.tokens);
  add(joins ? std::max(move.first, there.tokens) : move.tokens, move.tokens);
  move.transfer = backend_.start_transfer({.from = from,
                                           .to = tier(move.to).medium(),
                                           .bytes = bytes,
                                           .key = e.seen.key,
                                           .cookie = mark_ | id.value,
                                           .pieces = {pieces.data(), pieces.size()}});
}

// ---- Look-ups ----

Placement SessionStore::placement_of_parts(const Entry& e) const {
  const Tokens there = in_fastest(e);
  return farthest_from(e, there) != kNoTier ? Placement::slower
         : there.value > 0                  ? Placement::fastest
                                            : Placement::none;
}

std::uint8_t SessionStore::farthest_from(const Entry& e, Tokens token) const {
  std::uint8_t best = kNoTier;
  Tokens most = token;
  for_each_tier_in(e.residents, [&](std::size_t i) {
    if (!keeps_in_hbm(i) && borders(e, i).begin <= token && e.copies[i].tokens > most) {
      most = e.copies[i].tokens;
      best = static_cast<std::uint8_t>(i);
    }
  });
  return best;
}

unsigned SessionStore::extend_fastest(EntryId id) {
  if (entry(id).copies[0].state != CopyState::resident) {
    return 0;
  }
  Borders b = borders(id, 0);
  b.kept = b.clean = entry(id).copies[0].tokens;
  set_borders(0, id, b, b.kept);
  return 1;
}

Tokens SessionStore::findable(SessionSlot session, Tokens most) {
  drop_expired();
  const EntryId id = entry_of(session);
  if (!id.valid()) {
    return Tokens(0);
  }
  const Entry& e = entry(id);
  if (e.save.valid()) {
    return std::min(most, e.tokens);
  }
  if (is_fetched_now(e)) {
    return std::min(most, moves_[e.read].tokens);
  }
  Tokens at = keeps_in_hbm(0) ? in_fastest(e) : Tokens(0);
  for (std::uint8_t next = farthest_from(e, at); next != kNoTier && at < most;
       next = farthest_from(e, at)) {
    at = e.copies[next].tokens;
  }
  return std::min(most, at);
}

void SessionStore::use_parts(EntryId id, std::uint8_t tiers) {
  Entry& e = entry(id);
  const bool lends = !tier(0).config.inclusive && e.copies[0].state == CopyState::resident &&
                     ((tiers & 1U) != 0 || e.copies[0].pins == 0);
  touch(e, lends ? Use::begins : Use::at_once);
  if ((tiers & 1U) != 0 && e.fetched.valid()) {
    end_prefetched(e, true);
  }
  if (const unsigned behind = tiers & ~1U; behind != 0) {
    (void)begin_read(e, static_cast<std::uint8_t>(behind), kGpu);
  }
  if (lends || (tiers & 1U) != 0) {
    leave_upwards(0, e);
  }
}

std::uint8_t SessionStore::find_parts(EntryId id, Tokens history, Lookup& lookup) {
  const Entry& e = entry(id);
  load_parts_.clear();
  std::uint8_t sources = 0;
  std::array<Tokens, kMedia> by_medium{};
  const bool in_hbm = keeps_in_hbm(0);
  Tokens at = in_hbm ? std::min(history, in_fastest(e)) : Tokens(0);
  lookup.medium = Medium::hbm;
  by_medium[0] = at;
  while (at < history) {
    const std::uint8_t source = farthest_from(e, at);
    if (source == kNoTier) {
      break;
    }
    const Tokens end = std::min(history, e.copies[source].tokens);
    const Medium medium = tier(source).medium();
    load_parts_.push_back({.from = medium, .first = at, .count = end - at});
    by_medium[static_cast<std::size_t>(medium)] += end - at;
    tier(source).count().read += actual_bytes(end - at);
    sources |= static_cast<std::uint8_t>(1U << source);
    lookup.medium = std::max(lookup.medium, medium);
    at = end;
  }
  lookup.reused = at;
  for (std::size_t i = 0; i < static_cast<std::size_t>(lookup.medium); ++i) {
    lookup.nearer[i] = by_medium[i];
  }
  return sources | (in_hbm && by_medium[0].value > 0 ? 1U : 0U);
}

void SessionStore::check_borders(std::size_t index, EntryId id) const {
  const Copy& copy = entry(id).copies[index];
  const Borders& b = borders(id, index);
  KVTIER_ASSERT(b.coming <= b.begin && b.begin <= b.kept && b.kept <= b.clean &&
                    (b.clean <= copy.tokens || copy.state != CopyState::resident),
                "a copy's borders are in order");
  KVTIER_ASSERT(copy.state == CopyState::resident || b.clean.value == 0,
                "what is not there has no borders");
  KVTIER_ASSERT(
      index > 0 || !tier(0).is_shared() ||
          (copy.state == CopyState::resident &&
           blocks(tier(0), copy.tokens) > blocks(tier(0), b.clean)) == cached_.contains(id),
      "cached copies are in the order in which they were saved");
}

}  // namespace kvtier
