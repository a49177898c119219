#include "sim/engine/paged_store.hpp"

#include <algorithm>

#include "hw/model.hpp"
#include "sim/core/assert.hpp"

namespace kvtier {

PagedStore::PagedStore(const Setup& setup)
    : backend_(*setup.backend),
      decisions_(setup.decisions),
      cookie_(setup.cookie),
      bytes_per_token_(kv_bytes_per_token(setup.config->model)),
      block_size_(setup.config->system.paging->block_size.value),
      block_bytes_(bytes_per_token_ * block_size_),
      loads_first_(setup.config->system.paging->swap_in_first),
      behind_(setup.config->system.tiers.cxl ? Medium::cxl : Medium::dram),
      hbm_(*this, pool_of(setup, Medium::hbm)),
      host_(*this, pool_of(setup, behind_)) {
  if (host_.policy() != nullptr) {
    ahead_ = static_cast<std::int64_t>(static_cast<double>(capacity()) *
                                       setup.config->system.paging->swap_out_below);
  }
}

Pool::Setup PagedStore::pool_of(const Setup& setup, Medium medium) const {
  const TiersConfig& tiers = setup.config->system.tiers;
  const HardwareConfig& hardware = setup.config->hardware;
  Pool::Setup pool{.medium = medium, .config = setup.config, .registry = setup.registry};
  const auto use = [&](Bytes capacity, const auto& tier) {
    pool.tier = tier ? &*tier : nullptr;
    pool.shares.capacity = block_bytes_ * (capacity / block_bytes_);
  };
  if (medium == Medium::hbm) {
    use(running_kv_capacity(*setup.config), tiers.hbm);
  } else if (tiers.cxl) {
    use(hardware.cxl->capacity, tiers.cxl);
  } else if (tiers.dram) {
    use(hardware.dram->capacity, tiers.dram);
  }
  return pool;
}

PagedStore::~PagedStore() = default;

// ---- Running requests ----

std::int64_t PagedStore::available_to(SessionSlot session) const {
  const EntryId id = entry_of(session);
  return available() + (id.valid() ? blocks(entry(id).parts.clean) : 0);
}

PagedStore::Held PagedStore::held(SessionSlot session, Tokens most) const {
  const EntryId id = entry_of(session);
  if (!id.valid()) {
    return {};
  }
  const Parts& p = entry(id).parts;
  const Tokens in_hbm = std::min(p.hbm, most);
  return {.hbm = in_hbm, .host = std::min(p.end, most) - in_hbm};
}

PagedStore::Held PagedStore::take(SessionSlot session, Tokens tokens, Tokens most_reused) {
  const Held found = held(session, most_reused);
  if (session >= sessions_.size()) {
    sessions_.resize(static_cast<std::size_t>(session) + 1);
  }
  sessions_[session].began = std::min(sessions_[session].began, backend_.now());
  const EntryId id = entry_of(session);
  if (id.valid()) {
    if (decisions_ != nullptr) {
      decisions_->on_use(entry(id).key, backend_.now());
    }
    host_.count().read += bytes_per_token_ * found.host.value;
    tell_kept(entry(id).key, entry(id).parts, {.hbm = found.hbm});
    lend(id);
    loading_ += blocks(found.host);
    charge(host_, blocks(found.host));
  }
  grow(blocks(tokens));
  return found;
}

void PagedStore::grow(std::int64_t blocks) {
  KVTIER_ASSERT(blocks <= available(), "blocks are taken that are available");
  if (blocks > free()) {
    reclaim(blocks - free());
  }
  hbm_.charge(Account::running, block_bytes_ * blocks);
}

void PagedStore::give_back(SessionSlot session, EntryKey key, Tokens tokens, Tokens kept) {
  KVTIER_ASSERT(kept <= tokens, "no more is kept than was there");
  hbm_.charge(Account::running, -(block_bytes_ * blocks(tokens)));
  const bool stores = stores_anything() && kept.value > 0;
  backend_.keep(Medium::hbm, key, stores ? kept : Tokens(0));
  EntryId id = entry_of(session);
  if (!stores) {
    if (id.valid()) {
      release(id);
    }
    return;
  }
  if (id.valid()) {
    KVTIER_ASSERT(entry(id).in_use, "a request gives back what it took");
    entry(id).in_use = false;
    --in_use_;
  } else {
    id = create(session, key);
  }
  sessions_[session].loss = LossCause::capacity;
  entry(id).stored = backend_.now();
  if (free_places_.empty()) {
    entry(id).place = places_++;
  } else {
    entry(id).place = free_places_.back();
    free_places_.pop_back();
  }
  set(id, {.copying = kept, .clean = kept, .hbm = kept, .end = kept});
  TierCounters& counters = hbm_.count();
  ++counters.insertions;
  ++counters.stores;
  counters.blocks += block_bytes_ * blocks(kept);
  counters.block_waste += block_bytes_ * blocks(kept) - bytes_per_token_ * kept.value;
  log(DecisionKind::insert, Medium::hbm, id, kept);
}

// ---- Entries ----

EntryId PagedStore::create(SessionSlot session, EntryKey key) {
  EntryId id;
  if (free_entries_.empty()) {
    id = EntryId{static_cast<std::uint32_t>(entries_.size())};
    entries_.emplace_back();
  } else {
    id = EntryId{free_entries_.back()};
    free_entries_.pop_back();
  }
  Session& owner = sessions_[session];
  KVTIER_ASSERT(!owner.entry.valid(), "a session has one entry");
  owner.entry = id;
  entry(id) = {.live = true,
               .key = key,
               .owner = session,
               .parts = {},
               .first_stored = backend_.now(),
               .session_began = owner.began};
  ++live_;
  return id;
}

EntryView PagedStore::view(EntryId id, Tokens tokens) const {
  const Entry& e = entry(id);
  return {.id = id,
          .key = e.key,
          .place = e.place,
          .tokens = tokens,
          .bytes = block_bytes_ * blocks(tokens),
          .first_inserted = e.first_stored,
          .session_began = e.session_began,
          .last_used = e.stored,
          .queue_position = kNotQueued};
}

void PagedStore::tell(const Pool& pool, EntryId id, const Parts& from, const Parts& to) {
  const Tokens before = held_in(pool, from);
  const Tokens after = held_in(pool, to);
  if (pool.policy() == nullptr || before == after) {
    return;
  }
  const SimTime now = backend_.now();
  Entry& e = entry(id);
  const bool is_lent = e.is_lent && &pool == &hbm_;
  if (before.value == 0 && is_lent) {
    e.is_lent = false;
    pool.policy()->on_release(view(id, after), now);
  } else if (before.value == 0) {
    pool.policy()->on_insert(view(id, after), now);
  } else if (after.value == 0) {
    if (!is_lent) {
      pool.policy()->on_remove(id, now);
    }
  } else {
    pool.policy()->on_resize(view(id, after), now);
  }
}

void PagedStore::offer(EntryId id) {
  const Entry& e = entry(id);
  hbm_.offer(id, offered(hbm_, e.parts), e.stored);
  host_.offer(id, offered(host_, e.parts), e.stored);
}

bool PagedStore::may_leave(const Pool& pool, EntryId id, Tokens keep) {
  if (&pool == &host_) {  // a dropped copy takes with it what HBM still holds
    return !only_ahead_ || clean_blocks(entry(id).parts) == 0;
  }
  copy_fits_ = make_host_room(id, whole_blocks(keep));
  return copy_fits_ || !only_ahead_;
}

Tokens PagedStore::rounded(const Pool& pool, const Parts& p, Tokens keep) const {
  KVTIER_ASSERT(keep.value > 0 && keep < held_in(pool, p), "a victim shrinks");
  return &pool == &hbm_ ? whole_blocks(keep) : end_in_host(p, keep) - p.clean;
}

void PagedStore::set(EntryId id, const Parts& next) {
  KVTIER_ASSERT(next.copying.value >= 0 && next.copying <= next.clean && next.clean <= next.hbm &&
                    next.hbm <= next.end,
                "a head in HBM, then a middle in host memory");
  Entry& e = entry(id);
  const Parts before = e.parts;
  charge(hbm_, blocks(next.hbm) - blocks(before.hbm));
  charge(host_, host_blocks(next) - host_blocks(before));
  clean_ += clean_blocks(next) - clean_blocks(before);
  coming_ += coming_blocks(next) - coming_blocks(before);
  e.parts = next;
  offer(id);
  tell(hbm_, id, before, next);
  tell(host_, id, before, next);
  if (copied_.contains(id) != (clean_blocks(next) > 0)) {
    clean_blocks(next) > 0 ? copied_.push_back(id) : copied_.remove(id);
  }
  if (next.copying == next.clean && copied_entry_ == id) {
    copied_entry_ = kNoEntry;
  }
  if (next.end.value == 0 && !e.in_use) {
    release(id);
  }
}

/// A request takes all that is stored. The policy in HBM keeps the entry until the request gives it
/// back; for the one behind, it moves away.
void PagedStore::lend(EntryId id) {
  Entry& e = entry(id);
  const SimTime now = backend_.now();
  e.in_use = true;
  ++in_use_;
  if (host_.policy() != nullptr && held_in(host_, e.parts).value > 0) {
    host_.policy()->on_hit(id, now);
  }
  if (hbm_.policy() != nullptr && held_in(hbm_, e.parts).value > 0) {
    hbm_.policy()->on_hit(id, now);
    e.is_lent = true;
  }
  set(id, {});
  free_places_.push_back(e.place);
}

void PagedStore::release(EntryId id) {
  Entry& e = entry(id);
  if (e.is_lent) {
    hbm_.policy()->on_remove(id, backend_.now());
  }
  if (e.in_use) {
    --in_use_;
  } else {
    free_places_.push_back(e.place);
  }
  if (e.owner != kNoSession) {
    sessions_[e.owner].entry = kNoEntry;
  }
  e = Entry{};
  free_entries_.push_back(id.value);
  --live_;
}

void PagedStore::tell_kept(EntryKey key, const Parts& before, const Parts& after) {
  if (after.hbm < before.hbm) {
    backend_.keep(Medium::hbm, key, after.hbm);
  }
  if (before.copying < before.end && after.end < before.end) {
    backend_.keep(behind_, key, after.copying < after.end ? after.end : Tokens(0));
  }
}

Placement PagedStore::placement(SessionSlot session) const {
  const EntryId id = entry_of(session);
  if (!id.valid()) {
    return Placement::none;
  }
  const Parts& p = entry(id).parts;
  return p.hbm == p.end ? Placement::fastest : Placement::slower;
}

LossCause PagedStore::loss(SessionSlot session) const {
  return session < sessions_.size() ? sessions_[session].loss : LossCause::not_stored;
}

void PagedStore::truncate(SessionSlot session, const Truncation& cut) {
  const EntryId id = entry_of(session);
  if (!id.valid()) {
    return;
  }
  const Parts& p = entry(id).parts;
  backend_.cut(entry(id).key, cut.kept, cut.dropped);
  set(id, {.copying = cut.left_of(p.copying),
           .clean = cut.left_of(p.clean),
           .hbm = cut.left_of(p.hbm),
           .end = cut.left_of(p.end)});
}

void PagedStore::invalidate(SessionSlot session, LossCause cause) {
  const EntryId id = entry_of(session);
  if (id.valid()) {
    log(DecisionKind::invalidate, Medium::hbm, id, entry(id).parts.end);
    tell_kept(entry(id).key, entry(id).parts, {});
    set(id, {});
  }
  if (session < sessions_.size()) {
    sessions_[session].loss = cause;
  }
}

void PagedStore::forget(SessionSlot session) {
  const EntryId id = entry_of(session);
  if (id.valid()) {
    entry(id).owner = kNoSession;
  }
  if (session < sessions_.size()) {
    sessions_[session] = Session{};
  }
}

// ---- Room ----

void PagedStore::reclaim(std::int64_t wanted) {
  while (wanted > 0) {
    const EntryId id = copied_.front();
    const Parts before = entry(id).parts;
    Parts parts = before;
    const std::int64_t taken = std::min(wanted, clean_blocks(parts));
    parts.hbm = taken == clean_blocks(parts) ? parts.clean
                                             : Tokens((blocks(parts.hbm) - taken) * block_size_);
    wanted -= taken;
    ++hbm_.count().evictions;
    tell_kept(entry(id).key, before, parts);
    set(id, parts);
  }
}

bool PagedStore::make_room() {
  bool changed = false;
  ahead_is_stuck_ = false;
  while (!copying_ && hbm_.policy() != nullptr && projected() < target()) {
    if (host_.policy() != nullptr && loads_first_ && loading_ > 0) {
      break;
    }
    only_ahead_ = projected() >= wanted_;
    // One victim at a time: its copy takes time, after which another may be worse.
    const RoomRequest request{.now = backend_.now(),
                              .demand = only_ahead_ ? Demand::background : Demand::save};
    if (!hbm_.choose(request, Bytes(1))) {
      ahead_is_stuck_ = hbm_.refused();
      break;
    }
    const auto [id, keep] = hbm_.victims().front();
    changed = true;
    if (copy_fits_) {
      copy_to_host(id, keep);
    } else {
      ++hbm_.count().evictions;
      log(DecisionKind::evict, Medium::hbm, id, entry(id).parts.end - keep);
      const Parts kept{.copying = keep, .clean = keep, .hbm = keep, .end = keep};
      tell_kept(entry(id).key, entry(id).parts, kept);
      set(id, kept);
    }
  }
  return changed;
}

/// Room in host memory for what the entry has only in HBM behind `keep` tokens; the same rule
/// chooses there, and what leaves is dropped. Not for a copy ahead of time if it would cost KV that
/// HBM still holds: a dropped copy takes that with it.
bool PagedStore::make_host_room(EntryId id, Tokens keep) {
  const std::int64_t capacity = host_.capacity() / block_bytes_;
  if (host_.policy() == nullptr || blocks(entry(id).parts.copying - keep) + loading_ > capacity) {
    return false;
  }
  while (true) {
    const Parts& parts = entry(id).parts;
    const std::int64_t more = blocks(parts.end - keep) - host_blocks(parts);
    const Bytes missing = block_bytes_ * more - host_.free();
    if (missing.value <= 0) {
      return true;
    }
    const RoomRequest request{.now = backend_.now(), .demand = Demand::demotion};
    if (!host_.choose(request, missing)) {
      return false;
    }
    for (const Victim& victim : host_.victims()) {
      shrink_in_host(victim.entry, victim.keep);
    }
  }
}

void PagedStore::shrink_in_host(EntryId id, Tokens keep) {
  const Parts before = entry(id).parts;
  Parts parts = before;
  const Tokens end = end_in_host(parts, keep);
  ++host_.count().evictions;
  log(DecisionKind::evict, behind_, id, parts.end - end);
  parts.end = end;
  parts.hbm = std::min(parts.hbm, end);
  tell_kept(entry(id).key, before, parts);
  set(id, parts);
}

void PagedStore::copy_to_host(EntryId id, Tokens keep) {
  Parts parts = entry(id).parts;
  const Tokens tokens = parts.copying - keep;
  log(DecisionKind::demote, Medium::hbm, id, tokens);
  parts.copying = keep;
  set(id, parts);
  copying_ = true;
  copied_entry_ = id;
  const Bytes bytes = bytes_per_token_ * tokens.value;
  hbm_.count().read += bytes;
  host_.count().written += bytes;
  ++host_.count().stores;
  ++host_.count().insertions;
  host_.count().blocks += block_bytes_ * blocks(tokens);
  host_.count().block_waste += block_bytes_ * blocks(tokens) - bytes;
  const KvPiece piece{.key = entry(id).key, .first = keep, .count = tokens};
  static_cast<void>(backend_.start_transfer({.from = Medium::hbm,
                                             .to = behind_,
                                             .bytes = bytes,
                                             .key = piece.key,
                                             .cookie = cookie_,
                                             .pieces = {&piece, 1}}));
}

void PagedStore::on_copied() {
  KVTIER_ASSERT(copying_, "a copy completes that was started");
  copying_ = false;
  if (copied_entry_.valid()) {
    const EntryId id = copied_entry_;
    Parts parts = entry(id).parts;
    parts.clean = parts.copying;
    set(id, parts);
  }
}

std::optional<std::int64_t> PagedStore::blocks_before_copying() const {
  const bool waits = copying_ || ahead_is_stuck_ || (loads_first_ && loading_ > 0);
  if (ahead_ == 0 || waits || hbm_.stored() == block_bytes_ * (clean_ + coming_)) {
    return std::nullopt;
  }
  return std::max<std::int64_t>(0, projected() - ahead_);
}

// ---- Counting ----

void PagedStore::log(DecisionKind kind, Medium medium, EntryId id, Tokens tokens) {
  if (decisions_ != nullptr) {
    decisions_->on_decision({.kind = kind,
                             .tier = medium,
                             .key = entry(id).key,
                             .tokens = tokens,
                             .time = backend_.now()});
  }
}

void PagedStore::check_invariants(std::optional<std::int64_t> running) const {
  std::int64_t stored = 0;
  std::int64_t clean = 0;
  std::int64_t coming = 0;
  std::int64_t host = loading_;
  Pool::Sums in_hbm;
  Pool::Sums behind;
  std::size_t live = 0;
  std::size_t in_use = 0;
  std::size_t copied = 0;
  for (std::uint32_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    if (!e.live) {
      continue;
    }
    ++live;
    stored += blocks(e.parts.hbm);
    clean += clean_blocks(e.parts);
    coming += coming_blocks(e.parts);
    host += host_blocks(e.parts);
    copied += clean_blocks(e.parts) > 0 ? 1 : 0;
    in_use += e.in_use ? 1 : 0;
    in_hbm.offered += offered(hbm_, e.parts);
    behind.offered += offered(host_, e.parts);
    KVTIER_ASSERT((e.parts.end.value == 0) == e.in_use,
                  "an entry holds something, or a request has it");
    KVTIER_ASSERT(!e.is_lent || e.in_use, "what is lent comes back or is given up");
    KVTIER_ASSERT((e.parts.copying < e.parts.clean) == (copied_entry_ == EntryId{i}),
                  "what is on its way is the copy in flight");
    KVTIER_ASSERT((clean_blocks(e.parts) > 0) == copied_.contains(EntryId{i}),
                  "blocks with a copy are in the order of copies");
    KVTIER_ASSERT(e.owner == kNoSession || sessions_[e.owner].entry == EntryId{i},
                  "an entry's session knows it");
  }
  KVTIER_ASSERT(clean == clean_ && coming == coming_, "blocks are those of the entries");
  KVTIER_ASSERT(live == live_ && in_use == in_use_ && copied == copied_.size(),
                "every entry is counted");
  const auto check = [&](const Pool& pool, const Pool::Sums& sums) {
    pool.check_invariants(sums, [&](const Pool::Visit& visit) {
      for (std::uint32_t i = 0; i < entries_.size(); ++i) {
        const Tokens tokens = held_in(pool, entries_[i].parts);
        if (tokens.value > 0 || (entries_[i].is_lent && &pool == &hbm_)) {
          visit(view(EntryId{i}, tokens));
        }
      }
    });
  };
  in_hbm[Account::stored] = block_bytes_ * stored;
  in_hbm[Account::running] = running ? block_bytes_ * *running : hbm_.used(Account::running);
  behind[Account::stored] = block_bytes_ * host;
  check(hbm_, in_hbm);
  check(host_, behind);
}

}  // namespace kvtier
