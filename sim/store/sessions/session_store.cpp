#include "sim/store/sessions/session_store.hpp"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {

SessionStore::SessionStore(const Setup& setup)
    : topology_(setup.facts.topology),
      backend_(*setup.backend),
      queue_(*setup.queue),
      running_(setup.running),
      decisions_(setup.decisions),
      timer_(setup.timer),
      mark_(setup.mark),
      save_mode_(setup.facts.save),
      bytes_per_token_(setup.facts.bytes_per_token),
      window_account_(setup.facts.window_account) {
  const auto pool = [&](Medium medium, const TierConfig* tier, const KvShares& shares) {
    return Tier({.medium = medium,
                 .registry = setup.registry,
                 .tier = tier,
                 .facts = tier != nullptr ? tier_facts(setup.facts, medium) : TierFacts{},
                 .shares = shares,
                 .key_of = [this](EntryId id) { return entry(id).seen.key; }});
  };
  const auto add = [&](Medium medium, const std::optional<TierConfig>& tier) {
    if (tier) {
      const Bytes capacity = setup.facts.capacity[static_cast<std::size_t>(medium)];
      tiers_.push_back(pool(medium, &*tier, {.capacity = capacity}));
    }
  };
  const TiersConfig& used = setup.facts.tiers;
  Tier hbm = pool(Medium::hbm, used.hbm ? &*used.hbm : nullptr, setup.facts.hbm);
  if (used.hbm) {
    tiers_.push_back(std::move(hbm));
  } else {
    no_tier_ = std::make_unique<Tier>(std::move(hbm));
  }
  add(Medium::dram, used.dram);
  add(Medium::cxl, used.cxl);
  add(Medium::ssd, used.ssd);
  hbm_ = used.hbm ? &tiers_.front() : no_tier_.get();
  std::ranges::transform(tiers_, tier_at_.begin(), [](Tier& t) { return &t; });
  for (const Tier& t : tiers_) {
    expires_ = expires_ || t.config.ttl.has_value();
    filters_ = filters_ || t.filters();
    keeps_free_ = keeps_free_ || t.config.free_buffer.value > 0;
  }
  const PolicyChoice& prefetch = setup.facts.prefetch;
  prefetch_ = known_policy(setup.registry->prefetch, prefetch.name).make(prefetch.parameters);
  can_fetch_ = tiers_.size() > 1 && prefetch.name != kNoPrefetch;
  // Prefetch policies ask by numbers, which may be wrong in a policy of a library or of Python.
  needs_fetch_ = [this](EntryId id) {
    if (id.value >= entries_.size()) {
      throw std::out_of_range(fmt::format("there is no entry {}", id.value));
    }
    return needs_fetch(id);
  };
  fetch_duration_ = [this](EntryId id) {
    if (!needs_fetch_(id)) {
      throw std::invalid_argument(fmt::format("entry {} needs no fetch", id.value));
    }
    return fetch_duration(id);
  };
  prefetch_context_ = {.queue = &queue_,
                       .running = running_,
                       .memory = tiers_.empty() ? Bytes(0) : tiers_.front().capacity(),
                       .needs_fetch = &needs_fetch_,
                       .fetch_duration = &fetch_duration_};
}

SessionStore::~SessionStore() = default;

// ---- Accounts and copies ----

bool SessionStore::needs_fetch(EntryId id) const {
  const Entry& e = entry(id);
  if (e.in_use || has_moves(e) || e.doomed || !e.live) {
    return false;
  }
  if (e.copies[0].state != CopyState::absent) {
    return false;
  }
  const std::uint8_t source = best_tier(e);
  return source != kNoTier && !expired(source, e);
}

SimDuration SessionStore::fetch_duration(EntryId id) const {
  const Entry& e = entry(id);
  const std::uint8_t source = best_tier(e);
  return topology_.idle_time(tier(source).medium(), tier(0).medium(),
                             write_bytes(tier(source), Tokens(0), e.copies[source].tokens));
}

Placement SessionStore::placement_of(EntryId id) const {
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

EntryId SessionStore::new_entry(EntryKey key) {
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
  const SimTime now = backend_.now();
  e.seen = {.id = EntryId{number},
            .key = key,
            .place = number,
            .first_inserted = kNever,
            .session_began = now,
            .last_used = now};
  e.live = true;
  ++live_entries_;
  return EntryId{number};
}

EntryId SessionStore::create_entry(EntryKey key, SessionSlot owner) {
  if (owner >= sessions_.size()) {
    sessions_.resize(static_cast<std::size_t>(owner) + 1);
  }
  const EntryId id = new_entry(key);
  Entry& e = entry(id);
  e.owner = owner;
  Session& session = sessions_[owner];
  session.began = std::min(session.began, e.seen.session_began);
  session.entry = id;
  e.seen.session_began = session.began;
  return id;
}

void SessionStore::release(Entry& e) {
  KVTIER_ASSERT(e.known == 0, "no policy keeps an entry that is gone");
  if (e.owner != kNone) {
    sessions_[e.owner].entry = kNoEntry;
    sessions_[e.owner].loss = e.loss;
  }
  e.live = false;
  --live_entries_;
  free_entries_.push_back(id_of(e).value);
  if (e.prompt != kNone) {
    prompts_[e.prompt].entry = kNoEntry;
    prompts_[e.prompt].loss = e.loss;
    forget_prompt_if_unused(e.prompt);
  }
}

void SessionStore::tell_queue_change(Entry& e, const QueueChange& change) {
  e.position = change.first;
  for_each_tier_in(e.known, [&](std::size_t i) {
    if (tier(i).sees_queue()) {
      tier(i).policy()->on_queue_change(id_of(e), change);
    }
  });
}

void SessionStore::make_resident(std::size_t index, Entry& e, Tokens tokens) {
  Tier& t = tier(index);
  Copy& copy = e.copies[index];
  copy.tokens = tokens;
  const Bytes blocks = write_bytes(t, Tokens(0), tokens);
  const Bytes needed = window_account_.value != 0 && tokens.value != 0 ? window_account_ : blocks;
  if (needed != copy.account) {
    charge(index, e, needed - copy.account);
  }
  tell_kept(index, e);
  ++t.count().stores;
  t.count().blocks += blocks;
  t.count().block_waste += blocks - actual_bytes(tokens);
  if (copy.state == CopyState::resident) {
    t.policy()->on_resize(view(index, e), backend_.now());
    return;
  }
  copy.state = CopyState::resident;
  e.residents |= static_cast<std::uint8_t>(1U << index);
  ++residents_;
  ++t.count().insertions;
  e.seen.first_inserted = std::min(e.seen.first_inserted, backend_.now());
  if ((e.known >> index & 1U) != 0) {
    take_back(e);
  } else {
    tell_inserted(index, e);
  }
  log(DecisionKind::insert, index, e, tokens);
}

void SessionStore::remove_copy(std::size_t index, Entry& e, LossCause cause, bool lends) {
  Tier& t = tier(index);
  Copy& copy = e.copies[index];
  KVTIER_ASSERT(copy.state == CopyState::resident && copy.pins == 0,
                "only an unpinned resident copy can be removed");
  if (index == 0 && e.fetched.valid()) {
    end_prefetched(e, false);
  }
  if (is_leaving(e, index)) {
    t.leave(-copy.account);
    set_leaving(e, index, false);
  } else if (lends) {
    t.withdraw(id_of(e));
  } else {
    tell_removed(index, e);
  }
  const Bytes account = copy.account;
  charge(index, e, -account);
  copy = Copy{};
  --residents_;
  e.residents &= static_cast<std::uint8_t>(~(1U << index));
  e.loss = cause;
  tell_kept(index, e);
}

/// Whether an entry of a faster tier has no copy in this one.
bool SessionStore::moves_up(std::size_t index) const {
  const TierConfig& config = tier(index).config;
  return !config.inclusive && config.write == WriteMoment::on_evict;
}

void SessionStore::leave_upwards(std::size_t index, Entry& e) {
  if (tier(index).config.inclusive) {
    if (is_leaving(e, index)) {
      stop_leaving(index, e);
    }
    return;
  }
  give_up(index, e, index == 0);
}

void SessionStore::take_back(Entry& e) {
  EvictionPolicy& policy = *tier(0).policy();
  offer(0, e);
  policy.on_release(view(0, e), backend_.now());
  if (tier(0).sees_future()) [[unlikely]] {
    policy.on_next_use(id_of(e), next_use(id_of(e)));
  }
}

void SessionStore::tell_bytes_kept(std::size_t index, const Entry& e) {
  const bool reads = e.in_use && !e.save.valid();
  if (!e.doomed && !(index == 0 && (reads || (keeps_in_hbm(0) && e.save.valid())))) {
    backend_.set_resident_prefix(tier(index).medium(), e.seen.key, e.copies[index].tokens);
  }
}

void SessionStore::give_up_lent(Entry& e) {
  if (is_lent(e)) {
    tell_removed(0, e);
  }
}

void SessionStore::give_up(std::size_t index, Entry& e, bool lends) {
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
      unpin(index, e);
    }
  }
  remove_copy(index, e, LossCause::capacity, lends);
}

void SessionStore::stop_leaving(std::size_t index, Entry& e) {
  Tier& t = tier(index);
  Copy& copy = e.copies[index];
  t.leave(-copy.account);
  set_leaving(e, index, false);
  recharge(index, e);  // less if it was truncated on its way
  tell_inserted(index, e);
  Move* const outgoing = active_write(e, index);
  if (outgoing != nullptr && outgoing->holds_source) {
    if (moves_up(index + 1)) {
      cancel(e.writes[index]);
    }
    pin(index, e);
  }
}

void SessionStore::touch(Entry& e, Use use) {
  const SimTime now = backend_.now();
  e.seen.last_used = now;
  for_each_tier_in(e.known, [&](std::size_t i) {
    Tier& t = tier(i);
    if (use != Use::ends) {
      t.policy()->on_hit(id_of(e), now);
    }
    if (i > 0 || use != Use::begins) {
      t.policy()->on_release(view(i, e), now);
    }
    t.use(id_of(e), now);
  });
}

void SessionStore::settle_unpinned(std::size_t index, Entry& e) {
  recharge(index, e);
  offer(index, e);
  tier(index).policy()->on_resize(view(index, e), backend_.now());
}

// ---- The control plane's calls ----

void SessionStore::on_enqueued(SessionSlot session, QueuePosition position) {
  if (const EntryId id = entry_of(session); id.valid()) {
    tell_queue_change(entry(id), {.position = position, .waits = true, .first = position});
  }
  if (!members_.empty()) [[unlikely]] {
    prompt_waits(session, position);
  }
  settle();
}

void SessionStore::on_dequeued(SessionSlot session) {
  if (const EntryId id = entry_of(session); id.valid()) {
    Entry& e = entry(id);
    tell_queue_change(e, {.position = e.position, .waits = false, .first = kNotQueued});
  }
  if (!members_.empty()) [[unlikely]] {
    prompt_leaves_queue(session);
  }
}

void SessionStore::truncate(SessionSlot session, const Truncation& cut) {
  const EntryId id = entry_of(session);
  if (!id.valid()) {
    return;
  }
  Entry& e = entry(id);
  backend_.cut(e.seen.key, cut.kept, cut.dropped);
  e.tokens = cut.left_of(e.tokens);
  for_each_move(e, [&](Move& move) {
    move.tokens = cut.left_of(move.tokens);
    if (move.state == MoveState::waiting) {
      tier(move.to).promise(-move.room);
      move.room = wanted_room(move);
      tier(move.to).promise(move.room);
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
      log(DecisionKind::invalidate, i, e, Tokens(0));
      // A short prefix of what is left to the session was all that an earlier loss had left here.
      remove_copy(i, e, e.tokens.value == 0 ? LossCause::overflow : e.loss);
      continue;
    }
    recharge(i, e);
    offer(i, e);
    tier(i).policy()->on_resize(view(i, e), backend_.now());
  }
  if (is_saving(e) && e.tokens.value == 0) {
    cancel(e.save);
    give_up_lent(e);
    leave_hbm(e);
    e.loss = LossCause::overflow;
  }
  release_if_empty(e);
  settle();
}

void SessionStore::invalidate(SessionSlot session, LossCause cause) {
  const EntryId id = entry_of(session);
  if (!id.valid()) {
    return;
  }
  Entry& e = entry(id);
  if (is_saving(e)) {
    cancel(e.save);
    leave_hbm(e);
  }
  give_up_lent(e);
  if (e.read.valid()) {
    cancel(e.read);
  }
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const Copy& copy = e.copies[i];
    if (copy.state == CopyState::resident && copy.pins == 0 && active_write(e, i) == nullptr) {
      log(DecisionKind::invalidate, i, e, copy.tokens);
      remove_copy(i, e, cause);
    }
  }
  backend_.cut(e.seen.key, Tokens(0), e.tokens);
  e.doomed = true;
  e.loss = cause;
  e.owner = kNone;
  sessions_[session].entry = kNoEntry;
  sessions_[session].loss = cause;
  release_if_empty(e);
  settle();
}

Lookup SessionStore::admit(SessionSlot session, EntryKey key, Tokens history) {
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
      touch(e, is_lent(e) ? Use::begins : Use::at_once);
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
        touch(e, lends ? Use::begins : Use::at_once);
        if (best == 0) {
          if (e.fetched.valid()) {
            end_prefetched(e, true);
          }
          leave_upwards(0, e);
        } else {
          (void)begin_read(e, best, kGpu);
          if (lends) {
            leave_upwards(0, e);
          }
        }
        tier(best).count().read += keeps_in_hbm(best) ? Bytes(0) : actual_bytes(lookup.reused);
      } else {
        e.seen.first_inserted = kNever;  // nothing of it is left but a write that is queued
      }
    }
    for (std::size_t i = 1; i < tiers_.size(); ++i) {
      // A copy left by an earlier way down.
      if (e.copies[i].state != CopyState::absent && moves_up(i) && !reads_from(e, i)) {
        give_up(i, e);
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

void SessionStore::end_load(SessionSlot session) {
  end_prompt_load(session);
  if (const EntryId id = entry_of(session); id.valid() && entry(id).read.valid()) {
    Entry& e = entry(id);
    leave_upwards(finish_load(e), e);
  }
  settle();
}

void SessionStore::set_next_use(SessionSlot session, SimTime time) {
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

std::optional<Medium> SessionStore::begin_preload(SessionSlot session) {
  const EntryId id = entry_of(session);
  if (!id.valid()) {
    return std::nullopt;
  }
  Entry& e = entry(id);
  const std::size_t host = host_tier();
  if (host == tiers_.size() || e.save.valid() || e.read.valid() || e.doomed) {
    return std::nullopt;
  }
  const Copy& copy = e.copies[host];
  if (best_tier(e) != host || is_leaving(e, host) || copy.tokens < e.tokens || expired(host, e)) {
    return std::nullopt;
  }
  (void)begin_read(e, static_cast<std::uint8_t>(host), kGpu);
  return tier(host).medium();
}

Tokens SessionStore::stored_tokens(SessionSlot session) const {
  const EntryId id = entry_of(session);
  return id.valid() ? entry(id).tokens : Tokens(0);
}

void SessionStore::forget(SessionSlot session) {
  leave_prompt(session);
  const EntryId id = entry_of(session);
  if (id.valid()) {
    entry(id).owner = kNone;
  }
  if (session < sessions_.size()) {
    sessions_[session] = Session{};
  }
}

void SessionStore::on_timer() {
  if (backend_.now() >= asks_at_) {
    asks_at_ = kNever;
  }
  settle();
}

void SessionStore::report(DecisionKind kind, std::size_t index, const Entry& e, Tokens tokens,
                          Demand demand) {
  decisions_->on_decision({.kind = kind,
                           .tier = tier(index).medium(),
                           .key = e.seen.key,
                           .tokens = tokens,
                           .time = backend_.now(),
                           .demand = demand,
                           .position = e.position});
}

Bytes SessionStore::saved_in_hbm() const {
  Bytes saved;
  for (const Entry& e : entries_) {
    saved += is_saving(e) && !keeps_in_hbm(moves_[e.save].to)
                 ? actual_bytes(e.tokens) - moves_[e.save].bytes
                 : Bytes(0);
  }
  return saved;
}

/// A move and its entry know each other, what it needs is pinned or has room, and nothing else is.
/// Returns what saves take of the write buffer.
Bytes SessionStore::check_moves() const {
  Bytes buffered;
  std::array<Bytes, kMedia> promised{};
  std::int64_t saving = 0;
  std::array<std::size_t, kMedia> waiting{};
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
      promised[move.to] += move.room;
      ++waiting[move.to];
    }
    const bool resident = move.to != kGpu && (e.residents >> move.to & 1U) != 0;
    if (is_save) {
      saving += e.in_use ? 0 : 1;
      buffered += e.in_use ? Bytes(0) : move.bytes;
      comes[move.entry.value][move.to] = move.state == MoveState::in_flight;
      pins[move.entry.value][move.to] += resident && !e.in_use ? 1 : 0;
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
    KVTIER_ASSERT(
        waiting[i] == tier(i).waiting.size() && (waiting[i] > 0) == ((waiting_ >> i & 1U) != 0),
        "moves that wait are counted");
    KVTIER_ASSERT(promised[i] == tier(i).promised(), "room is promised to what waits");
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
  KVTIER_ASSERT(saving == saving_, "moves are counted");
  return buffered;
}

void SessionStore::check_invariants(const Pool::Sums& control_plane) const {
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
      KVTIER_ASSERT(is_leaving(e, i) == (resident && !known), "an entry knows where it leaves");
      const bool holds = resident && !is_leaving(e, i);
      KVTIER_ASSERT(known == (holds || (i == 0 && is_lent(e))),
                    "a policy knows what its tier holds, and what a turn has of it");
      const bool may_leave = holds && copy.pins == 0;
      KVTIER_ASSERT(t.offers(EntryId{id}) == may_leave,
                    "a tier offers what it holds and does not move");
      sums.offered += may_leave ? copy.account : Bytes(0);
      KVTIER_ASSERT(!is_lent(e) || e.in_use || e.save.valid(),
                    "what is lent comes back or is given up");
      if (copy.state == CopyState::resident && copy.pins == 0 && !is_leaving(e, i)) {
        KVTIER_ASSERT(copy.account == needed_account(i, e),
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
          EntryView known = entries_[id].seen;
          show(i, entries_[id], known);
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
