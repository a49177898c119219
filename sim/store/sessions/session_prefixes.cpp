#include <algorithm>

#include "sim/core/assert.hpp"
#include "sim/store/sessions/session_store.hpp"

/// The prompts that several sessions begin with, as the session store keeps them: one entry each,
/// whoever needs it, held in the fastest tier while turns that use it run (CaR's nodes with several
/// owners).
namespace kvtier {

void SessionStore::join_prompt(SessionSlot session, EntryKey key, Tokens tokens) {
  if (session >= members_.size()) {
    members_.resize(static_cast<std::size_t>(session) + 1);
  }
  const auto [known, is_new] =
      prompt_of_key_.try_emplace(key, static_cast<std::uint32_t>(prompts_.size()));
  if (is_new) {
    if (free_prompts_.empty()) {
      prompts_.emplace_back();
    } else {
      known->second = free_prompts_.back();
      free_prompts_.pop_back();
    }
    prompts_[known->second] = {.key = key, .tokens = tokens, .waiting = {}};
  }
  Prompt& prompt = prompts_[known->second];
  KVTIER_ASSERT(prompt.tokens == tokens, "a prompt has the same tokens in every session");
  ++prompt.owners;
  members_[session] = {.prompt = known->second};
}

void SessionStore::leave_prompt(SessionSlot session) {
  Member* const m = member(session);
  if (m == nullptr) {
    return;
  }
  KVTIER_ASSERT(m->use == PromptUse::none && m->position == kNotQueued,
                "a session that ends has no turn in work");
  const std::uint32_t prompt = m->prompt;
  *m = Member{};
  --prompts_[prompt].owners;
  forget_prompt_if_unused(prompt);
}

void SessionStore::forget_prompt_if_unused(std::uint32_t number) {
  Prompt& prompt = prompts_[number];
  if (prompt.owners == 0 && !prompt.entry.valid()) {
    prompt_of_key_.erase(prompt.key);
    prompt = Prompt{};
    free_prompts_.push_back(number);
  }
}

// ---- The queue ----

void SessionStore::prompt_waits(SessionSlot session, QueuePosition position) {
  Member* const m = member(session);
  if (m == nullptr) {
    return;
  }
  Prompt& prompt = prompts_[m->prompt];
  m->position = position;
  prompt.waiting.insert(position);
  if (prompt.entry.valid()) {
    tell_queue_change(entry(prompt.entry),
                      {.position = position, .waits = true, .first = *prompt.waiting.begin()});
  }
}

void SessionStore::prompt_leaves_queue(SessionSlot session) {
  Member* const m = member(session);
  if (m == nullptr) {
    return;
  }
  Prompt& prompt = prompts_[m->prompt];
  prompt.waiting.erase(m->position);
  if (prompt.entry.valid()) {
    tell_queue_change(entry(prompt.entry),
                      {.position = m->position,
                       .waits = false,
                       .first = prompt.waiting.empty() ? kNotQueued : *prompt.waiting.begin()});
  }
  m->position = kNotQueued;
}

/// Reports all requests but the first, which on_insert reported.
void SessionStore::tell_of_the_others(Tier& tier, const Entry& e) {
  for (const QueuePosition position : prompts_[e.prompt].waiting) {
    if (tier.sees_queue() && position != e.position) {
      tier.policy()->on_queue_change(id_of(e),
                                     {.position = position, .waits = true, .first = e.position});
    }
  }
}

EntryId SessionStore::needed_entry(SessionSlot session) const {
  const EntryId own = entry_of(session);
  const Member* const m = member(session);
  return m == nullptr ? own : needed_by_member(own, *m);
}

EntryId SessionStore::needed_by_member(EntryId own, const Member& m) const {
  if (own.valid() && placement_of(own) == Placement::slower) {
    return own;
  }
  const EntryId prompt = prompts_[m.prompt].entry;
  return prompt.valid() ? prompt : own;
}

Placement SessionStore::placement(SessionSlot session) const {
  const Placement own = placement_of(entry_of(session));
  const Member* const m = member(session);
  if (m == nullptr) {
    return own;
  }
  const Placement prompt = placement_of(prompts_[m->prompt].entry);
  if (own == Placement::slower || prompt == Placement::slower) {
    return Placement::slower;
  }
  return std::min(own, prompt);
}

bool SessionStore::shares_prompt(SessionSlot session) const {
  const Member* const m = member(session);
  if (m == nullptr) {
    return false;
  }
  if (m->use != PromptUse::none) {
    return m->use != PromptUse::loading_copy;
  }
  const EntryId id = prompts_[m->prompt].entry;
  return id.valid() && is_here(entry(id)) && !expired(0, entry(id));
}

// ---- Turns ----

Lookup SessionStore::admit_prompt(SessionSlot session) {
  Member* const m = member(session);
  if (m == nullptr) {
    return {};
  }
  KVTIER_ASSERT(m->use == PromptUse::none, "a session runs one turn at a time");
  drop_expired();
  Prompt& prompt = prompts_[m->prompt];
  if (decisions_ != nullptr) {
    decisions_->on_use(prompt.key, backend_.now());
  }
  if (filters_) [[unlikely]] {
    tell_admission(prompt.key);
  }
  // An entry of which nothing is left stays while a write of it is queued.
  if (!prompt.entry.valid() || best_tier(entry(prompt.entry)) == kNoTier) {
    LossCause loss = prompt.loss;
    if (prompt.entry.valid()) {
      loss = entry(prompt.entry).loss;
      entry(prompt.entry).seen.first_inserted = kNever;
    }
    if (claim_room_for_prompt(session, prompt.tokens)) {
      if (!prompt.entry.valid()) {
        create_prompt_entry(m->prompt);
      }
      arrive(0, entry(prompt.entry), account(tier(0), prompt.tokens));
      m->use = PromptUse::computing;
    }
    return {.reused = Tokens(0), .cause = loss};
  }
  Entry& e = entry(prompt.entry);
  Lookup found{.reused = prompt.tokens, .medium = tier(0).medium()};
  if (is_fetched_now(e)) {
    found.late = true;
    found.fetched_from = tier(moves_[e.read].from).medium();
    ++prefetches_.late;
    awaiting_prompt_ = session;
    m->use = PromptUse::awaited;
    return found;
  }
  if (e.read.valid() && e.read == fetching_) {  // still waits for room
    cancel(e.read);
  }
  const bool here = is_here(e);
  touch(e, here ? Use::begins : Use::at_once);
  if (here) {
    if (e.fetched.valid()) {
      end_prefetched(e, true);
    }
    hold_prompt(*m);
    return found;
  }
  const std::uint8_t source = best_tier(e);
  KVTIER_ASSERT(!e.read.valid(), "one turn at a time loads a prompt");
  found.medium = tier(source).medium();
  tier(source).count().read += actual_bytes(prompt.tokens);
  const MoveId load = begin_read(e, source, kGpu);
  const bool has_room = claim_room_for_prompt(session, prompt.tokens);
  if (has_room) {
    moves_[load].to = 0;
    arrive(0, e, account(tier(0), prompt.tokens));
  }
  m->use = has_room ? PromptUse::loading : PromptUse::loading_copy;
  return found;
}

void SessionStore::create_prompt_entry(std::uint32_t number) {
  Prompt& prompt = prompts_[number];
  prompt.entry = new_entry(prompt.key);
  Entry& e = entry(prompt.entry);
  e.prompt = number;
  e.tokens = prompt.tokens;
  e.position = prompt.waiting.empty() ? kNotQueued : *prompt.waiting.begin();
}

/// Room that can be had at once, and not at the cost of what the turn itself needs.
bool SessionStore::claim_room_for_prompt(SessionSlot session, Tokens tokens) {
  const EntryId own = entry_of(session);
  const bool protects = own.valid() && entry(own).copies[0].state == CopyState::resident &&
                        !is_leaving(entry(own), 0);
  if (protects) {
    pin(0, entry(own));
  }
  const Room room = find_room(0, account(tier(0), tokens), Demand::save, kNoEntry);
  if (protects) {
    unpin(0, entry(own));
  }
  return room == Room::granted;
}

void SessionStore::hold_prompt(Member& m) {
  pin(0, entry(prompts_[m.prompt].entry));
  m.use = PromptUse::held;
}

void SessionStore::end_prompt_load(SessionSlot session) {
  Member* const m = member(session);
  if (m == nullptr || (m->use != PromptUse::loading && m->use != PromptUse::loading_copy)) {
    return;
  }
  Entry& e = entry(prompts_[m->prompt].entry);
  const std::uint8_t source = finish_load(e);
  if (m->use == PromptUse::loading_copy) {
    m->use = PromptUse::none;
    return;
  }
  make_resident(0, e, e.tokens);
  leave_upwards(source, e);
  hold_prompt(*m);
  write_through(0, e);
}

void SessionStore::end_prefill(SessionSlot session) {
  Member* const m = member(session);
  if (m == nullptr || m->use != PromptUse::computing) {
    return;
  }
  Entry& e = entry(prompts_[m->prompt].entry);
  make_resident(0, e, e.tokens);
  hold_prompt(*m);
  write_through(0, e);
  settle();
}

void SessionStore::release_prompt(SessionSlot session) {
  Member* const m = member(session);
  if (m == nullptr || m->use == PromptUse::none) {
    return;
  }
  KVTIER_ASSERT(m->use == PromptUse::held, "a turn ends after its prompt has come");
  Entry& e = entry(prompts_[m->prompt].entry);
  m->use = PromptUse::none;
  touch(e, Use::ends);
  unpin(0, e);
}

void SessionStore::check_prompts() const {
  std::vector<std::int64_t> owners(prompts_.size());
  for (const Member& m : members_) {
    if (m.prompt != kNone) {
      ++owners[m.prompt];
    }
  }
  for (std::uint32_t i = 0; i < prompts_.size(); ++i) {
    const Prompt& prompt = prompts_[i];
    KVTIER_ASSERT(prompt.owners == owners[i], "a prompt counts its sessions");
    KVTIER_ASSERT(
        !prompt.entry.valid() || (entry(prompt.entry).live && entry(prompt.entry).prompt == i),
        "a prompt knows its entry");
  }
}

}  // namespace kvtier
