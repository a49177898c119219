#include "sim/engine/paged_store.hpp"

#include <algorithm>

#include "hw/model.hpp"
#include "sim/core/assert.hpp"
#include "sim/engine/tier_facts.hpp"

namespace kvtier {
namespace {

std::unique_ptr<EvictionPolicy> make_policy(const PolicyRegistry& registry,
                                            const PolicyChoice& choice, const RunConfig& config,
                                            Medium medium) {
  const PolicyKind<EvictionPolicy>* kind = find_policy(registry.eviction, choice.name);
  KVTIER_ASSERT(kind != nullptr, "the config was checked");
  auto policy = kind->make(choice.parameters);
  policy->on_start(tier_facts(config, medium));
  return policy;
}

}  // namespace

/// What a policy's check sees of one tier.
class PagedStore::View final : public TierView {
 public:
  View(const PagedStore& store, Tokens (*held)(const Parts&)) : store_(store), held_(held) {}
  void for_each_resident(
      const std::function<void(const EntryView&, bool offered)>& visit) const override {
    for (std::uint32_t i = 0; i < store_.entries_.size(); ++i) {
      const Entry& e = store_.entries_[i];
      if (e.live && held_(e.parts).value > 0) {
        visit(store_.view(EntryId{i}, held_(e.parts)), true);
      } else if (e.is_lent && held_ == only_in_hbm) {
        visit(store_.view(EntryId{i}, Tokens(0)), false);
      }
    }
  }

 private:
  const PagedStore& store_;
  Tokens (*held_)(const Parts&);
};

/// Victims in HBM keep whole blocks. A copy ahead of time needs room in host memory.
class PagedStore::HbmOffers final : public VictimSet {
 public:
  explicit HbmOffers(PagedStore& store) : store_(store) {}

 private:
  [[nodiscard]] bool may_leave(EntryId id, Tokens keep) override {
    store_.copy_fits_ = store_.make_host_room(id, store_.whole_blocks(keep));
    return store_.copy_fits_ || !store_.only_ahead_;
  }
  [[nodiscard]] Tokens rounded(EntryId id, Tokens keep) const override {
    KVTIER_ASSERT(keep.value > 0 && keep < only_in_hbm(store_.entry(id).parts), "a victim shrinks");
    return store_.whole_blocks(keep);
  }
  [[nodiscard]] Bytes bytes_of(EntryId, Tokens tokens) const override {
    return store_.block_bytes_ * store_.blocks(tokens);
  }

  PagedStore& store_;
};

/// What lies in host memory need not begin at a block's border.
class PagedStore::HostOffers final : public VictimSet {
 public:
  explicit HostOffers(const PagedStore& store) : store_(store) {}

 private:
  /// A dropped copy takes with it what HBM still holds.
  [[nodiscard]] bool may_leave(EntryId id, Tokens) override {
    return !store_.only_ahead_ || store_.clean_blocks(store_.entry(id).parts) == 0;
  }
  [[nodiscard]] Tokens rounded(EntryId id, Tokens keep) const override {
    const Parts& parts = store_.entry(id).parts;
    KVTIER_ASSERT(keep.value > 0 && keep < in_host(parts), "a victim shrinks");
    return store_.end_in_host(parts, keep) - parts.clean;
  }
  [[nodiscard]] Bytes bytes_of(EntryId id, Tokens tokens) const override {
    const Parts& p = store_.entry(id).parts;
    return store_.block_bytes_ *
           (store_.blocks(p.clean + tokens - p.copying) - store_.blocks(p.clean - p.copying));
  }

  const PagedStore& store_;
};

PagedStore::PagedStore(const Setup& setup)
    : backend_(*setup.backend),
      decisions_(setup.decisions),
      cookie_(setup.cookie),
      bytes_per_token_(kv_bytes_per_token(setup.config->model)),
      block_size_(setup.config->system.paging->block_size.value),
      block_bytes_(bytes_per_token_ * block_size_),
      capacity_(running_kv_capacity(*setup.config) / block_bytes_),
      loads_first_(setup.config->system.paging->swap_in_first) {
  hbm_.offers = std::make_unique<HbmOffers>(*this);
  host_.offers = std::make_unique<HostOffers>(*this);
  const TiersConfig& tiers = setup.config->system.tiers;
  if (tiers.hbm) {
    hbm_.policy = make_policy(*setup.registry, tiers.hbm->eviction, *setup.config, Medium::hbm);
  }
  if (tiers.dram || tiers.cxl) {
    const HardwareConfig& hardware = setup.config->hardware;
    behind_ = tiers.dram ? Medium::dram : Medium::cxl;
    host_.policy = make_policy(*setup.registry, (tiers.dram ? tiers.dram : tiers.cxl)->eviction,
                               *setup.config, behind_);
    host_capacity_ = (tiers.dram ? hardware.dram->capacity : hardware.cxl->capacity) / block_bytes_;
    ahead_ = static_cast<std::int64_t>(static_cast<double>(capacity_) *
                                       setup.config->system.paging->swap_out_below);
  }
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
    host_.counters.read += bytes_per_token_ * found.host.value;
    loading_ += blocks(found.host);
    tell_kept(entry(id).key, entry(id).parts, {.hbm = found.hbm});
    lend(id);
  }
  grow(blocks(tokens));
  return found;
}

void PagedStore::grow(std::int64_t blocks) {
  KVTIER_ASSERT(blocks <= available(), "blocks are taken that are available");
  if (blocks > free()) {
    reclaim(blocks - free());
  }
  running_ += blocks;
}

void PagedStore::give_back(SessionSlot session, EntryKey key, Tokens tokens, Tokens kept) {
  KVTIER_ASSERT(kept <= tokens, "no more is kept than was there");
  running_ -= blocks(tokens);
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
  TierCounters& counters = hbm_.counters;
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

void PagedStore::tell(Tier& tier, EntryId id, Tokens before, Tokens after) {
  if (!tier.policy || before == after) {
    return;
  }
  const SimTime now = backend_.now();
  Entry& e = entry(id);
  const bool is_lent = e.is_lent && &tier == &hbm_;
  if (before.value == 0 && is_lent) {
    e.is_lent = false;
    tier.policy->on_release(view(id, after), now);
  } else if (before.value == 0) {
    tier.policy->on_insert(view(id, after), now);
  } else if (after.value == 0) {
    if (!is_lent) {
      tier.policy->on_remove(id, now);
    }
  } else {
    tier.policy->on_resize(view(id, after), now);
  }
}

void PagedStore::offer(EntryId id) {
  const Parts& p = entry(id).parts;
  hbm_.offers->offer(id, block_bytes_ * blocks(only_in_hbm(p)));
  // A part of a block may free nothing, and can leave all the same.
  const std::int64_t host = blocks(p.end - p.copying) - blocks(p.clean - p.copying);
  host_.offers->offer(id,
                      in_host(p).value > 0 ? std::max(Bytes(1), block_bytes_ * host) : Bytes(0));
}

void PagedStore::set(EntryId id, const Parts& next) {
  KVTIER_ASSERT(next.copying.value >= 0 && next.copying <= next.clean && next.clean <= next.hbm &&
                    next.hbm <= next.end,
                "a head in HBM, then a middle in host memory");
  Entry& e = entry(id);
  const Parts before = e.parts;
  stored_ += blocks(next.hbm) - blocks(before.hbm);
  clean_ += clean_blocks(next) - clean_blocks(before);
  coming_ += coming_blocks(next) - coming_blocks(before);
  host_used_ += host_blocks(next) - host_blocks(before);
  e.parts = next;
  offer(id);
  tell(hbm_, id, only_in_hbm(before), only_in_hbm(next));
  tell(host_, id, in_host(before), in_host(next));
  if (copied_.contains(id) != (clean_blocks(next) > 0)) {
    clean_blocks(next) > 0 ? copied_.push_back(id) : copied_.remove(id);
  }
  note(hbm_, stored_);
  note_host();
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
  if (host_.policy && in_host(e.parts).value > 0) {
    host_.policy->on_hit(id, now);
  }
  if (hbm_.policy && only_in_hbm(e.parts).value > 0) {
    hbm_.policy->on_hit(id, now);
    e.is_lent = true;
  }
  set(id, {});
  free_places_.push_back(e.place);
}

void PagedStore::release(EntryId id) {
  Entry& e = entry(id);
  if (e.is_lent) {
    hbm_.policy->on_remove(id, backend_.now());
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
    ++hbm_.counters.evictions;
    tell_kept(entry(id).key, before, parts);
    set(id, parts);
  }
}

bool PagedStore::make_room() {
  bool changed = false;
  ahead_is_stuck_ = false;
  while (!copying_ && hbm_.policy && projected() < target()) {
    if (host_.policy && loads_first_ && loading_ > 0) {
      break;
    }
    only_ahead_ = projected() >= wanted_;
    // One victim at a time: its copy takes time, after which another may be worse.
    const RoomRequest request{.now = backend_.now(),
                              .demand = only_ahead_ ? Demand::background : Demand::save};
    if (!hbm_.offers->choose(*hbm_.policy, request, Bytes(1))) {
      ahead_is_stuck_ = hbm_.offers->refused();
      break;
    }
    const auto [id, keep] = hbm_.offers->victims().front();
    changed = true;
    if (copy_fits_) {
      copy_to_host(id, keep);
    } else {
      ++hbm_.counters.evictions;
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
  if (!host_.policy || blocks(entry(id).parts.copying - keep) + loading_ > host_capacity_) {
    return false;
  }
  while (true) {
    const Parts& parts = entry(id).parts;
    const std::int64_t more = blocks(parts.end - keep) - host_blocks(parts);
    const std::int64_t missing = host_used_ + loading_ + more - host_capacity_;
    if (missing <= 0) {
      return true;
    }
    const RoomRequest request{.now = backend_.now(), .demand = Demand::demotion};
    if (!host_.offers->choose(*host_.policy, request, block_bytes_ * missing)) {
      return false;
    }
    for (const Victim& victim : host_.offers->victims()) {
      shrink_in_host(victim.entry, victim.keep);
    }
  }
}

void PagedStore::shrink_in_host(EntryId id, Tokens keep) {
  const Parts before = entry(id).parts;
  Parts parts = before;
  const Tokens end = end_in_host(parts, keep);
  ++host_.counters.evictions;
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
  hbm_.counters.read += bytes;
  host_.counters.written += bytes;
  ++host_.counters.stores;
  ++host_.counters.insertions;
  host_.counters.blocks += block_bytes_ * blocks(tokens);
  host_.counters.block_waste += block_bytes_ * blocks(tokens) - bytes;
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
  if (ahead_ == 0 || waits || stored_ == clean_ + coming_) {
    return std::nullopt;
  }
  return std::max<std::int64_t>(0, projected() - ahead_);
}

// ---- Counting ----

void PagedStore::note_host() { note(host_, host_used_ + loading_); }

void PagedStore::note(Tier& tier, std::int64_t used) {
  const SimTime now = backend_.now();
  TierCounters& counters = tier.counters;
  counters.occupancy_byte_ns +=
      static_cast<Int128>(tier.account.value) * static_cast<Int128>((now - tier.since).ns);
  tier.since = now;
  tier.account = block_bytes_ * used;
  counters.occupancy_peak = std::max(counters.occupancy_peak, tier.account);
}

TierCounters PagedStore::counters(std::size_t index) const {
  const Tier& tier = index == 0 ? hbm_ : host_;
  TierCounters counters = tier.counters;
  counters.occupancy_byte_ns += static_cast<Int128>(tier.account.value) *
                                static_cast<Int128>((backend_.now() - tier.since).ns);
  return counters;
}

void PagedStore::log(DecisionKind kind, Medium medium, EntryId id, Tokens tokens) {
  if (decisions_ != nullptr) {
    decisions_->on_decision({.kind = kind,
                             .tier = medium,
                             .key = entry(id).key,
                             .tokens = tokens,
                             .time = backend_.now()});
  }
}

void PagedStore::check_invariants() const {
  std::int64_t stored = 0;
  std::int64_t clean = 0;
  std::int64_t coming = 0;
  std::int64_t host = 0;
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
  KVTIER_ASSERT(stored == stored_ && clean == clean_ && coming == coming_ && host == host_used_,
                "blocks are those of the entries");
  KVTIER_ASSERT(live == live_ && in_use == in_use_ && copied == copied_.size(),
                "every entry is counted");
  KVTIER_ASSERT(free() >= 0 && running_ >= 0, "HBM holds no more than it has blocks");
  KVTIER_ASSERT(host_used_ + loading_ <= host_capacity_ || host_capacity_ == 0,
                "host memory holds no more than it has blocks");
  if (hbm_.policy) {
    hbm_.policy->check_invariants(View(*this, only_in_hbm));
  }
  if (host_.policy) {
    host_.policy->check_invariants(View(*this, in_host));
  }
}

}  // namespace kvtier
