#include "sim/engine/tier_manager.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {

const char* to_string(DecisionKind kind) {
  constexpr std::array<const char*, 7> names{"insert",     "evict",    "demote",   "expire",
                                             "invalidate", "prefetch", "drop_save"};
  return names[static_cast<std::size_t>(kind)];
}

TierManager::TierManager(const Setup& setup)
    : config_(*setup.config),
      topology_(server_topology(config_.hardware)),
      backend_(*setup.backend),
      queue_(*setup.queue),
      running_(setup.running),
      decisions_(setup.decisions),
      timer_(setup.timer),
      mark_(setup.mark),
      bytes_per_token_(stored_kv_bytes_per_token(*setup.config)),
      window_account_(setup.config->serving.kv_reservation == Reservation::context_window
                          ? bytes_per_token_ * setup.config->model.context_window.value
                          : Bytes(0)) {
  const auto pool = [&](Medium medium, const TierConfig* tier, const KvShares& shares) {
    return Tier({.medium = medium,
                 .config = &config_,
                 .registry = setup.registry,
                 .tier = tier,
                 .shares = shares,
                 .key_of = [this](EntryId id) { return entry(id).key; }});
  };
  const auto add = [&](Medium medium, const auto& tier, const auto& hardware) {
    if (tier) {
      tiers_.push_back(pool(medium, &*tier, {.capacity = hardware->capacity}));
    }
  };
  const TiersConfig& used = config_.system.tiers;
  Tier hbm = pool(Medium::hbm, used.hbm ? &*used.hbm : nullptr, hbm_shares(config_));
  if (used.hbm) {
    tiers_.push_back(std::move(hbm));
  } else {
    no_tier_ = std::make_unique<Tier>(std::move(hbm));
  }
  add(Medium::dram, used.dram, config_.hardware.dram);
  add(Medium::cxl, used.cxl, config_.hardware.cxl);
  add(Medium::ssd, used.ssd, config_.hardware.ssd);
  hbm_ = used.hbm ? &tiers_.front() : no_tier_.get();
  for (const Tier& t : tiers_) {
    expires_ = expires_ || t.config.ttl.has_value();
    filters_ = filters_ || t.filters();
    keeps_free_ = keeps_free_ || t.config.free_buffer.value > 0;
  }
  const PolicyKind<PrefetchPolicy>* prefetch =
      find_policy(setup.registry->prefetch, config_.system.prefetch.name);
  KVTIER_ASSERT(prefetch != nullptr, "the config was checked");
  prefetch_ = prefetch->make(config_.system.prefetch.parameters);
  can_fetch_ = tiers_.size() > 1 && prefetch->name != kNoPrefetch;
  needs_fetch_ = [this](EntryId id) { return needs_fetch(id); };
  fetch_duration_ = [this](EntryId id) { return fetch_duration(id); };
}

TierManager::~TierManager() = default;

// ---- Accounts and copies ----

bool TierManager::needs_fetch(EntryId id) const {
  const Entry& e = entry(id);
  if (e.copies[0].state != CopyState::absent || e.in_use || has_moves(e) || e.doomed || !e.live) {
    return false;
  }
  const std::uint8_t source = best_tier(e);
  return source != kNoTier && !expired(source, e);
}

SimDuration TierManager::fetch_duration(EntryId id) const {
  const Entry& e = entry(id);
  const std::uint8_t source = best_tier(e);
  return topology_.idle_time(tier(source).medium(), tier(0).medium(),
                             write_bytes(tier(source), Tokens(0), e.copies[source].tokens));
}

Placement TierManager::placement_of(EntryId id) const {
  if (!id.valid()) {
    return Placement::none;
  }
  const Entry& e = entry(id);
  if (is_saving(e)) {
    return Placement::fastest;  // on its way there, and in HBM until then
  }
  const std::uint8_t best = best_tier(e);
  return best == kNoTier ? Placement::none : best == 0 ? Placement::fastest : Placement::slower;
}

EntryId TierManager::new_entry(EntryKey key) {
  std::uint32_t number = 0;
  if (free_entries_.empty()) {
    number = static_cast<std::uint32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    number = free_entries_.back();
    free_entries_.pop_back();
  }
  Entry& e = entries_[number];
  std::construct_at(&e);  // an assignment would make it elsewhere and copy it
  e.key = key;
  e.live = true;
  e.session_began = backend_.now();
  e.last_used = backend_.now();
  ++live_entries_;
  return EntryId{number};
}

EntryId TierManager::create_entry(EntryKey key, SessionSlot owner) {
  if (owner >= sessions_.size()) {
    sessions_.resize(static_cast<std::size_t>(owner) + 1);
  }
  const EntryId id = new_entry(key);
  Entry& e = entry(id);
  e.owner = owner;
  Session& session = sessions_[owner];
  session.began = std::min(session.began, e.session_began);
  session.entry = id;
  e.session_began = session.began;
  return id;
}

void TierManager::release(EntryId id) {
  Entry& e = entry(id);
  KVTIER_ASSERT(e.known == 0, "no policy keeps an entry that is gone");
  if (e.owner != kNone) {
    sessions_[e.owner].entry = kNoEntry;
    sessions_[e.owner].loss = e.loss;
  }
  e.live = false;
  --live_entries_;
  free_entries_.push_back(id.value);
  if (e.prompt != kNone) {
    prompts_[e.prompt].entry = kNoEntry;
    prompts_[e.prompt].loss = e.loss;
    forget_prompt_if_unused(e.prompt);
  }
}

void TierManager::tell_queue_change(EntryId id, const QueueChange& change) {
  Entry& e = entry(id);
  e.position = change.first;
  for_each_tier_in(e.known, [&](std::size_t i) {
    if (tier(i).sees_queue()) {
      tier(i).policy()->on_queue_change(id, change);
    }
  });
}

void TierManager::make_resident(std::size_t index, EntryId id, Tokens tokens) {
  Tier& t = tier(index);
  Entry& e = entry(id);
  Copy& copy = e.copies[index];
  copy.tokens = tokens;
  recharge(index, id);
  tell_kept(index, id);
  const Bytes blocks = write_bytes(t, Tokens(0), tokens);
  ++t.count().stores;
  t.count().blocks += blocks;
  t.count().block_waste += blocks - actual_bytes(tokens);
  if (copy.state == CopyState::resident) {
    t.policy()->on_resize(view(index, id), backend_.now());
    return;
  }
  copy.state = CopyState::resident;
  e.residents |= static_cast<std::uint8_t>(1U << index);
  ++residents_;
  ++t.count().insertions;
  e.first_inserted = std::min(e.first_inserted, backend_.now());
  if ((e.known >> index & 1U) != 0) {
    take_back(id);
  } else {
    tell_inserted(index, id);
  }
  log(DecisionKind::insert, index, id, tokens);
}

void TierManager::remove_copy(std::size_t index, EntryId id, LossCause cause, bool lends) {
  Tier& t = tier(index);
  Entry& e = entry(id);
  Copy& copy = e.copies[index];
  KVTIER_ASSERT(copy.state == CopyState::resident && copy.pins == 0,
                "only an unpinned resident copy can be removed");
  if (index == 0 && e.fetched.valid()) {
    end_prefetched(e, false);
  }
  if (is_leaving(e, index)) {
    t.leave(-copy.account);
  } else if (lends) {
    t.withdraw(id);
  } else {
    tell_removed(index, id);
  }
  const Bytes account = copy.account;
  if (e.prompt != kNone && index == 0) [[unlikely]] {
    tier(0).note_shared(-account);
  }
  charge(index, e, -account);
  copy = Copy{};
  --residents_;
  e.residents &= static_cast<std::uint8_t>(~(1U << index));
  e.loss = cause;
  tell_kept(index, id);
}

/// Whether an entry of a faster tier has no copy in this one.
bool TierManager::moves_up(std::size_t index) const {
  const TierConfig& config = tier(index).config;
  return !config.inclusive && config.write == WriteMoment::on_evict;
}

void TierManager::leave_upwards(std::size_t index, EntryId id) {
  if (tier(index).config.inclusive) {
    if (is_leaving(entry(id), index)) {
      stop_leaving(index, id);
    }
    return;
  }
  give_up(index, id, index == 0);
}

void TierManager::take_back(EntryId id) {
  EvictionPolicy& policy = *tier(0).policy();
  offer(0, id);
  policy.on_release(view(0, id), backend_.now());
  if (tier(0).sees_future()) [[unlikely]] {
    policy.on_next_use(id, next_use(id));
  }
}

void TierManager::give_up_lent(EntryId id) {
  if (is_lent(entry(id))) {
    tell_removed(0, id);
  }
}

void TierManager::give_up(std::size_t index, EntryId id, bool lends) {
  Entry& e = entry(id);
  if (index > 0 && active_write(e, index - 1) != nullptr) {
    cancel(e.writes[index - 1]);  // removed when the write is done
    return;
  }
  Move* const outgoing = active_write(e, index);
  if (outgoing != nullptr && outgoing->holds_source) {
    outgoing->holds_source = false;
    if (moves_up(index + 1)) {
      cancel(e.writes[index]);
    }
    if (!is_leaving(e, index)) {
      unpin(index, id);
    }
  }
  remove_copy(index, id, LossCause::capacity, lends);
}

void TierManager::stop_leaving(std::size_t index, EntryId id) {
  Tier& t = tier(index);
  Entry& e = entry(id);
  Copy& copy = e.copies[index];
  t.leave(-copy.account);
  recharge(index, id);  // less if it was truncated on its way
  tell_inserted(index, id);
  Move* const outgoing = active_write(e, index);
  if (outgoing != nullptr && outgoing->holds_source) {
    if (moves_up(index + 1)) {
      cancel(e.writes[index]);
    }
    pin(index, id);
  }
}

void TierManager::touch(EntryId id, Use use) {
  Entry& e = entry(id);
  const SimTime now = backend_.now();
  e.last_used = now;
  for_each_tier_in(e.known, [&](std::size_t i) {
    Tier& t = tier(i);
    if (use != Use::ends) {
      t.policy()->on_hit(id, now);
    }
    if (i > 0 || use != Use::begins) {
      t.policy()->on_release(view(i, id), now);
    }
    t.use(id, now);
  });
}

void TierManager::settle_unpinned(std::size_t index, EntryId id) {
  recharge(index, id);
  offer(index, id);
  tier(index).policy()->on_resize(view(index, id), backend_.now());
}

// ---- The control plane's calls ----

void TierManager::on_enqueued(SessionSlot session, QueuePosition position) {
  if (const EntryId id = entry_of(session); id.valid()) {
    tell_queue_change(id, {.position = position, .waits = true, .first = position});
  }
  if (!members_.empty()) [[unlikely]] {
    prompt_waits(session, position);
  }
  settle();
}

void TierManager::on_dequeued(SessionSlot session) {
  if (const EntryId id = entry_of(session); id.valid()) {
    tell_queue_change(id, {.position = entry(id).position, .waits = false, .first = kNotQueued});
  }
  if (!members_.empty()) [[unlikely]] {
    prompt_leaves_queue(session);
  }
}

void TierManager::truncate(SessionSlot session, const Truncation& cut) {
  const EntryId id = entry_of(session);
  if (!id.valid()) {
    return;
  }
  Entry& e = entry(id);
  backend_.cut(e.key, cut.kept, cut.dropped);
  e.tokens = cut.left_of(e.tokens);
  for_each_move(e, [&](Move& move) {
    move.tokens = cut.left_of(move.tokens);
    if (move.state == MoveState::waiting) {
      tier(0).promise(-move.room);
      move.room = wanted_room(move);
      tier(0).promise(move.room);
    }
  });
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    Copy& copy = e.copies[i];
    if (copy.state != CopyState::resident) {
      continue;
    }
    copy.tokens = cut.left_of(copy.tokens);
    if (copy.pins > 0 || is_leaving(e, i)) {
      continue;  // in the middle of a move: its end settles the account
    }
    if (copy.tokens.value == 0) {
      log(DecisionKind::invalidate, i, id, Tokens(0));
      // A short prefix of what is left to the session was all that an earlier loss had left here.
      remove_copy(i, id, e.tokens.value == 0 ? LossCause::overflow : e.loss);
      continue;
    }
    recharge(i, id);
    offer(i, id);
    tier(i).policy()->on_resize(view(i, id), backend_.now());
  }
  if (is_saving(e) && e.tokens.value == 0) {
    cancel(e.save);
    give_up_lent(id);
    leave_hbm(id);
    e.loss = LossCause::overflow;
  }
  release_if_empty(id);
  settle();
}

void TierManager::invalidate(SessionSlot session, LossCause cause) {
  const EntryId id = entry_of(session);
  if (!id.valid()) {
    return;
  }
  Entry& e = entry(id);
  if (is_saving(e)) {
    cancel(e.save);
    leave_hbm(id);
  }
  give_up_lent(id);
  if (e.read.valid()) {
    cancel(e.read);
  }
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const Copy& copy = e.copies[i];
    if (copy.state == CopyState::resident && copy.pins == 0 && active_write(e, i) == nullptr) {
      log(DecisionKind::invalidate, i, id, copy.tokens);
      remove_copy(i, id, cause);
    }
  }
  backend_.cut(e.key, Tokens(0), e.tokens);
  e.doomed = true;
  e.loss = cause;
  e.owner = kNone;
  sessions_[session].entry = kNoEntry;
  sessions_[session].loss = cause;
  release_if_empty(id);
  settle();
}

Lookup TierManager::admit(SessionSlot session, EntryKey key, Tokens history) {
  if (tiers_.empty()) {
    return {.reused = Tokens(0),
            .cause = history.value > 0 ? LossCause::not_stored : LossCause::none};
  }
  drop_expired();
  if (decisions_ != nullptr) {
    decisions_->on_use(key, backend_.now());
  }
  const EntryId id = entry_of(session);
  Lookup lookup;
  if (id.valid()) {
    Entry& e = entry(id);
    KVTIER_ASSERT(!e.in_use, "a session runs one turn at a time");
    e.in_use = true;
    lookup.cause = e.loss;
    if (e.save.valid()) {
      lookup.reused = std::min(history, e.tokens);
      lookup.medium = Medium::hbm;
      cancel(e.save);
      touch(id, is_lent(e) ? Use::begins : Use::at_once);
    } else if (is_fetched_now(e)) {
      lookup.reused = std::min(history, moves_[e.read].tokens);
      lookup.medium = tier(0).medium();
      lookup.late = true;
      lookup.fetched_from = tier(moves_[e.read].from).medium();
      ++prefetches_.late;
      tier(0).count().read += keeps_in_hbm(0) ? Bytes(0) : actual_bytes(lookup.reused);
    } else {
      if (e.read.valid()) {  // a preload, or a fetch that waits for room: load it now instead
        cancel(e.read);
      }
      const std::uint8_t best = best_tier(e);
      if (best != kNoTier) {
        lookup.reused = std::min(history, e.copies[best].tokens);
        lookup.medium = tier(best).medium();
        const Copy& fastest = e.copies[0];
        // A shorter copy than the one below is of no use.
        const bool lends = !tier(0).config.inclusive && fastest.state == CopyState::resident &&
                           (best == 0 || fastest.pins == 0);
        touch(id, lends ? Use::begins : Use::at_once);
        if (best == 0) {
          if (e.fetched.valid()) {
            end_prefetched(e, true);
          }
          leave_upwards(0, id);
        } else {
          (void)begin_read(id, best, kGpu);
          if (lends) {
            leave_upwards(0, id);
          }
        }
        tier(best).count().read += keeps_in_hbm(best) ? Bytes(0) : actual_bytes(lookup.reused);
      } else {
        e.first_inserted = kNever;  // nothing of it is left but a write that is queued
      }
    }
    for (std::size_t i = 1; i < tiers_.size(); ++i) {
      // What an earlier way down left behind.
      const bool is_read = e.read.valid() && moves_[e.read].from == i;
      if (moves_up(i) && e.copies[i].state != CopyState::absent && !is_read) {
        give_up(i, id);
      }
    }
  } else {
    lookup.cause = session < sessions_.size() ? sessions_[session].loss : LossCause::not_stored;
    entry(find_or_create(session, key)).in_use = true;
  }
  if (lookup.reused >= history) {
    lookup.cause = LossCause::none;
  }
  settle();
  return lookup;
}

void TierManager::end_load(SessionSlot session) {
  end_prompt_load(session);
  if (const EntryId id = entry_of(session); id.valid() && entry(id).read.valid()) {
    leave_upwards(finish_load(id), id);
  }
  settle();
}

void TierManager::set_next_use(SessionSlot session, SimTime time) {
  if (tiers_.empty()) {
    return;
  }
  const EntryId id = entry_of(session);
  KVTIER_ASSERT(id.valid(), "an admitted turn has an entry");
  if (id.value >= next_uses_.size()) {
    next_uses_.resize(static_cast<std::size_t>(id.value) + 1, kNever);
  }
  next_uses_[id.value] = time;
  for_each_tier_in(entry(id).known, [&](std::size_t i) {
    if (tier(i).sees_future()) {
      tier(i).policy()->on_next_use(id, time);
    }
  });
}

std::optional<Medium> TierManager::begin_preload(SessionSlot session) {
  const EntryId id = entry_of(session);
  if (!id.valid()) {
    return std::nullopt;
  }
  const Entry& e = entry(id);
  const std::size_t host = host_tier();
  if (host == tiers_.size() || e.save.valid() || e.read.valid() || e.doomed) {
    return std::nullopt;
  }
  const Copy& copy = e.copies[host];
  if (best_tier(e) != host || is_leaving(e, host) || copy.tokens < e.tokens || expired(host, e)) {
    return std::nullopt;
  }
  (void)begin_read(id, static_cast<std::uint8_t>(host), kGpu);
  return tier(host).medium();
}

Tokens TierManager::stored_tokens(SessionSlot session) const {
  const EntryId id = entry_of(session);
  return id.valid() ? entry(id).tokens : Tokens(0);
}

void TierManager::forget(SessionSlot session) {
  leave_prompt(session);
  const EntryId id = entry_of(session);
  if (id.valid()) {
    entry(id).owner = kNone;
  }
  if (session < sessions_.size()) {
    sessions_[session] = Session{};
  }
}

void TierManager::on_timer() {
  if (backend_.now() >= asks_at_) {
    asks_at_ = kNever;
  }
  settle();
}

void TierManager::report(DecisionKind kind, std::size_t index, EntryId id, Tokens tokens,
                         Demand demand) {
  decisions_->on_decision({.kind = kind,
                           .tier = tier(index).medium(),
                           .key = entry(id).key,
                           .tokens = tokens,
                           .time = backend_.now(),
                           .demand = demand,
                           .position = entry(id).position});
}

Bytes TierManager::saved_in_hbm() const {
  Bytes saved;
  for (const Entry& e : entries_) {
    saved +=
        is_saving(e) && !keeps_in_hbm(0) ? actual_bytes(e.tokens) - moves_[e.save].bytes : Bytes(0);
  }
  return saved;
}

/// A move and its entry know each other, what it needs is pinned or has room, and nothing else is.
/// Returns what saves take of the write buffer.
Bytes TierManager::check_moves() const {
  Bytes buffered;
  Bytes promised;
  std::int64_t saving = 0;
  std::size_t waiting = 0;
  std::array<std::size_t, kMedia> writes{};
  std::vector<std::array<int, kMedia>> pins(entries_.size());
  std::vector<std::array<bool, kMedia>> comes(entries_.size());
  moves_.for_each([&](MoveId id, const Move& move) {
    const bool is_save = move.from == kGpu;
    const bool in_flight = move.transfer.valid();
    KVTIER_ASSERT(move.state != MoveState::cancelled || in_flight,
                  "a cancelled move stays for its completion alone");
    if (is_save && move.state == MoveState::cancelled) {
      return;  // its entry may hold something else by now
    }
    const Entry& e = entry(move.entry);
    if (move.state == MoveState::arrived) {
      KVTIER_ASSERT(e.fetched == id && (e.residents & 1U) != 0, "what was fetched is there");
      return;
    }
    const bool is_read = !is_save && (move.to == kGpu || move.to == 0);
    KVTIER_ASSERT(e.live && id == (is_save   ? e.save
                                   : is_read ? e.read
                                             : e.writes[move.from]),
                  "an entry knows its moves");
    if (move.state == MoveState::waiting) {
      promised += move.room;
      ++waiting;
    }
    const bool resident = move.to != kGpu && (e.residents >> move.to & 1U) != 0;
    if (is_save) {
      saving += e.in_use ? 0 : 1;
      buffered += e.in_use ? Bytes(0) : move.bytes;
      comes[move.entry.value][0] = move.state == MoveState::in_flight;
      pins[move.entry.value][0] += resident && !e.in_use ? 1 : 0;
    } else if (is_read) {
      pins[move.entry.value][move.from] += 1;
      comes[move.entry.value][0] |= move.to == 0 && move.state != MoveState::waiting;
    } else {
      const MoveId first = tier(move.from).writes.front();
      KVTIER_ASSERT(!in_flight || first == id, "one write of a tier at a time is in flight");
      ++writes[move.from];
      comes[move.entry.value][move.to] = in_flight;
      pins[move.entry.value][move.to] += in_flight && resident ? 1 : 0;
      pins[move.entry.value][move.from] += move.holds_source && !is_leaving(e, move.from) ? 1 : 0;
    }
  });
  for (const Member& m : members_) {
    if (m.use == PromptUse::held) {
      pins[prompts_[m.prompt].entry.value][0] += 1;
    } else if (m.use == PromptUse::computing) {
      comes[prompts_[m.prompt].entry.value][0] = true;
    }
  }
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    KVTIER_ASSERT(writes[i] == tier(i).writes.size(), "every write is in its tier's queue");
    for (std::size_t id = 0; id < entries_.size(); ++id) {
      const Copy& copy = entries_[id].copies[i];
      KVTIER_ASSERT(copy.pins == pins[id][i], "moves and turns pin what they need");
      KVTIER_ASSERT(
          copy.state == CopyState::resident || comes[id][i] == (copy.state == CopyState::arriving),
          "what arrives is moved or computed");
      KVTIER_ASSERT(!is_leaving(entries_[id], i) || entries_[id].writes[i].valid(),
                    "what leaves is written to the next tier");
    }
  }
  KVTIER_ASSERT(waiting == waiting_for_room_.size() && saving == saving_, "moves are counted");
  KVTIER_ASSERT(tiers_.empty() || promised == tier(0).promised(), "room is promised to what waits");
  return buffered;
}

void TierManager::check_invariants(const Pool::Sums& control_plane) const {
  Pool::Sums in_hbm = control_plane;
  in_hbm[Account::write_buffer] += check_moves();
  if (no_tier_ != nullptr) {
    hbm().check_invariants(in_hbm, {});
  }
  std::int64_t residents = 0;
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const Tier& t = tier(i);
    Pool::Sums sums = keeps_in_hbm(i) ? in_hbm : Pool::Sums{};
    for (std::uint32_t id = 0; id < entries_.size(); ++id) {
      const Entry& e = entries_[id];
      const Copy& copy = e.copies[i];
      KVTIER_ASSERT(e.live || copy.state == CopyState::absent, "a released entry has no copies");
      const bool shared = i == 0 && e.prompt != kNone;
      sums[shared ? Account::shared_prefixes : Account::stored] += copy.account;
      sums.leaving += is_leaving(e, i) ? copy.account : Bytes(0);
      const bool resident = copy.state == CopyState::resident;
      residents += resident ? 1 : 0;
      KVTIER_ASSERT((e.residents >> i & 1U) == (resident ? 1 : 0),
                    "an entry knows where it is resident");
      const bool known = (e.known >> i & 1U) != 0;
      KVTIER_ASSERT(known == ((resident && !is_leaving(e, i)) || (i == 0 && is_lent(e))),
                    "a policy knows what its tier holds, and what a turn has of it");
      const bool may_leave = resident && !is_leaving(e, i) && copy.pins == 0;
      KVTIER_ASSERT(t.offers(EntryId{id}) == may_leave,
                    "a tier offers what it holds and does not move");
      sums.offered += may_leave ? copy.account : Bytes(0);
      KVTIER_ASSERT(!is_lent(e) || e.in_use || e.save.valid(),
                    "what is lent comes back or is given up");
      if (copy.state == CopyState::resident && copy.pins == 0 && !is_leaving(e, i)) {
        KVTIER_ASSERT(copy.account == account(t, copy.tokens),
                      "an account is what the reservation says");
        KVTIER_ASSERT(copy.tokens.value > 0, "a resident copy holds something");
      }
      KVTIER_ASSERT(
          !e.doomed || copy.state != CopyState::resident || copy.pins > 0 || e.writes[i].valid(),
          "what is invalid and not moving is gone");
      const bool above =
          i > 0 && e.copies[i - 1].state == CopyState::resident && !is_leaving(e, i - 1);
      const bool moving = e.in_use || has_moves(e);
      KVTIER_ASSERT(!(above && copy.state == CopyState::resident && !t.config.inclusive &&
                      !moving && t.config.write == WriteMoment::on_evict),
                    "no entry is in two exclusive tiers");
    }
    t.check_invariants(sums, [&](const Pool::Visit& visit) {
      for (std::uint32_t id = 0; id < entries_.size(); ++id) {
        if ((entries_[id].known >> i & 1U) != 0) {
          EntryView known = view(i, EntryId{id});
          known.next_use = next_use(EntryId{id});
          visit(known);
        }
      }
    });
  }
  KVTIER_ASSERT(residents == residents_, "copies are counted");
  check_prompts();
}

}  // namespace kvtier
