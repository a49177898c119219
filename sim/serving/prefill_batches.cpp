#include "sim/serving/prefill_batches.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

/// In every so many choices of prompts the first so many waiting requests use what is stored of
/// them, the first one last (SGLang's waiting prefix refresh).
constexpr std::int64_t kRefreshInterval = 32;
constexpr std::int64_t kRefreshed = 128;

/// The least number of available tokens of which `wanted` are fewer than remain beside the expected
/// ones.
std::int64_t least_available(Tokens wanted, double expected) {
  const auto fits = [&](std::int64_t available) {
    return static_cast<double>(wanted.value) < static_cast<double>(available) - expected;
  };
  auto least = static_cast<std::int64_t>(static_cast<double>(wanted.value) + expected);
  while (!fits(least)) {
    ++least;
  }
  return least;
}

}  // namespace

PrefillBatches::PrefillBatches(const Setup& setup)
    : BlockBatcher(setup),
      room_(config_.system.blocks->response_room),
      refreshes_(config_.system.order.name == "fcfs" &&
                 config_.system.tiers.hbm->eviction.name == "lru"),
      storage_(config_.system.blocks->storage_fetch),
      first_share_(room_.share) {}

void PrefillBatches::on_enqueued(SessionSlot slot, QueuePosition position) {
  begin_prefetch(slot);
  BlockBatcher::on_enqueued(slot, position);
}

bool PrefillBatches::plan() {
  note_ends();
  decodes_ = false;
  const bool any_decodes = std::ssize(running_) > (chunked_ ? 1 : 0);
  // A batch that cut a prompt is followed by another one for all.
  full_ = full_ && any_decodes && running_.size() == ran_ && !chunked_;
  lacks_room_ = full_;
  if (chunked_ || (!full_ && any_candidate())) {
    choose_prompts();
    lacking_ = prompts_;
    lacks_room_ = full_ || (prompts_.empty() && !any_decodes);
  }
  bool preempts = false;
  if (prompts_.empty()) {
    if (running_.empty()) {
      first_share_ = room_.share;
      decodes_since_ = 0;
    }
    preempts = decode_all();
  }
  ran_ = running_.size();
  return preempts;
}

bool PrefillBatches::has_candidate() const {
  return !full_ && any_candidate() && std::ssize(running_) < config_.serving.slots &&
         (!config_.serving.one_at_a_time || is_idle());
}

void PrefillBatches::on_decoded(std::int64_t iterations) {
  decodes_since_ += iterations - (std::exchange(keeps_share_, false) ? 1 : 0);
}

// ---- Batches of prompts ----

void PrefillBatches::choose_prompts() {
  left_ = std::min(chunk_, budget_);
  expected_ = 0;
  const double share_of_rest = share();
  for (const SessionSlot slot : decoding_slots()) {
    expected_ += static_cast<double>(rest_of_response(slot).value) * share_of_rest;
  }
  requests_.begin_batch();
  refresh_waiting();
  if (!chunked_ || continue_chunked()) {
    choose_waiting();
    requests_.show_hidden();
  }
}

void PrefillBatches::choose_waiting() {
  while (left_.value > 0 && requests_.any_visible()) {
    full_ = full_ || std::ssize(running_) >= config_.serving.slots;
    if (full_ || (config_.serving.one_at_a_time && !is_idle())) {
      return;
    }
    const QueuePosition position = requests_.next();
    if (!is_prefetched(requests_.waiting(position))) {
      requests_.hide(position);
      continue;
    }
    const Chosen chosen = choose(requests_.waiting(position));
    if (chosen == Chosen::yes) {
      static_cast<void>(take_from_queue(position));
    }
    if (chosen == Chosen::no_room) {
      without_room_ = requests_.waiting(position);
    }
    if (chosen == Chosen::no_room || (chosen == Chosen::yes && remaining() <= 0)) {
      full_ = !running_.empty();
    }
    if (chosen != Chosen::yes) {
      return;
    }
  }
}

void PrefillBatches::refresh_waiting() {
  if (!refreshes_ || requests_.queue_length() == 0 || passes_++ % kRefreshInterval != 0) {
    return;
  }
  std::vector<SessionSlot> slots;
  for (QueuePosition at = requests_.first(); at < requests_.end() && std::ssize(slots) < kRefreshed;
       ++at.value) {
    if (requests_.waiting_at(at)) {
      slots.push_back(requests_.waiting(at));
    }
  }
  std::for_each(slots.rbegin(), slots.rend(),
                [&](SessionSlot slot) { static_cast<void>(store_->refresh(prompt_of(slot))); });
}

bool PrefillBatches::continue_chunked() {
  Work& work = work_[*chunked_];
  // It has to go on to give its memory back.
  const auto remains = static_cast<std::int64_t>(remaining());
  const Tokens most = remains > 0 ? std::min(left_, Tokens(remains)) : left_;
  const Tokens rest = work.prompt - work.computed;
  const Tokens added = std::min(most, rest);
  if (blocks(work.computed + added) - blocks(work.held) > store_->free_blocks().available) {
    return false;
  }
  work.chunk = added;
  prompts_.push_back(*chunked_);
  reserve(added, rest > most ? Tokens(0) : std::min(longest_response(*chunked_), room_.most));
  if (rest <= most) {
    chunked_.reset();
  }
  return true;
}

PrefillBatches::Chosen PrefillBatches::choose(SessionSlot slot) {
  Work& work = work_[slot];
  const Context prompt = prompt_of(slot);
  Match match = store_->match(prompt);
  const Tokens nearest = match.by_pool[0];
  const Tokens behind = accounts_.size() > 1 ? match.by_pool[1] : Tokens(0);
  if (step(work.prompt, nearest + behind).value <= 0) {
    static_cast<void>(store_->refresh(prompt));
    return Chosen::no_budget;
  }
  const Tokens wanted = work.prompt - nearest + rest_of_response(slot) + Tokens(block_);
  const Room room{.taken = nearest, .needed = nearest + Tokens(least_available(wanted, expected_))};
  const auto id = acquire_blocks(slot, room, match);
  if (!id) {
    return Chosen::no_room;
  }
  const Tokens known = std::min(match.tokens, work.prompt - Tokens(1));
  const Tokens added = step(work.prompt, known);
  if (added.value <= 0) {
    store_->abandon(*id);
    backend_.end_request(request_key(slot));
    return Chosen::no_budget;
  }
  hold(slot, *id, match.tokens, match);
  work.computed = known;
  work.chunk = added;
  running_.push_back({slot});
  prompts_.push_back(slot);
  const bool cut = known + added < work.prompt;
  if (cut) {
    KVTIER_ASSERT(!chunked_, "one prompt is cut at a time");
    chunked_ = slot;
  }
  reserve(added, cut ? Tokens(0) : std::min(longest_response(slot), room_.most));
  return Chosen::yes;
}

Tokens PrefillBatches::step(Tokens prompt, Tokens known) const {
  const Tokens added = prompt - known;
  if (in_blocks(added) <= left_) {
    return added;
  }
  const Tokens whole_blocks(left_.value / block_ * block_);
  return Tokens((known + whole_blocks).value / block_ * block_) - known;
}

// ---- Storage ----

void PrefillBatches::begin_prefetch(SessionSlot slot) {
  if (accounts_.size() < 3) {
    return;
  }
  const auto begun = store_->prefetch(prompt_of(slot));
  settle();
  if (begun) {
    work_[slot].prefetch = begun->id;
    prefetches_[begun->id] = {.slot = slot, .wanted = *begun};
    read_next();
  }
}

void PrefillBatches::read_next() {
  const auto next = std::find_if_not(prefetches_.begin(), prefetches_.end(),
                                     [](const auto& one) { return one.second.is_complete(); });
  if (reading_ || next == prefetches_.end()) {
    return;
  }
  const PrefetchInFlight& prefetch = next->second;
  const Tokens batch =
      std::min(Tokens(storage_.batch * block_), prefetch.wanted.tokens - prefetch.came);
  pieces_.clear();
  if (backend_.has_bytes()) [[unlikely]] {
    add_prefetched(prefetch, batch);
  }
  static_cast<void>(move(2, batch, prefetch.slot, kPrefetch | next->first, pieces_));
  reading_ = true;
}

void PrefillBatches::add_prefetched(const PrefetchInFlight& prefetch, Tokens tokens) {
  Tokens before = prefetch.came;
  for (const Stretch& stretch : prefetch.wanted.stretches) {
    KvPiece piece = piece_of(contexts_.streams(), stretch, Tokens(block_));
    const Tokens skipped = std::min(before, piece.count);
    before -= skipped;
    piece.first += skipped;
    piece.count = std::min(piece.count - skipped, tokens);
    tokens -= piece.count;
    if (piece.count.value > 0) {
      pieces_.push_back(piece);
    }
  }
}

void PrefillBatches::on_prefetched(std::uint32_t id) {
  reading_ = false;
  if (const auto found = prefetches_.find(id); found != prefetches_.end()) {
    PrefetchInFlight& prefetch = found->second;
    prefetch.came =
        std::min(prefetch.came + Tokens(storage_.batch * block_), prefetch.wanted.tokens);
    if (prefetch.is_complete()) {
      stop_decode();
    }
  } else {
    drop_arrivals(kPrefetch | id);
  }
  read_next();
}

void PrefillBatches::end_prefetch(std::uint32_t id) {
  const auto found = prefetches_.find(id);
  const PrefetchInFlight prefetch = found->second;
  prefetches_.erase(found);
  passed_over_ -= prefetch.passed_over ? 1 : 0;
  work_[prefetch.slot].prefetch = 0;
  work_[prefetch.slot].prefetched = store_->prefetched(id, prefetch.came);
  drop_arrivals(kPrefetch | id);
}

bool PrefillBatches::is_prefetched(SessionSlot slot) {
  const std::uint32_t id = work_[slot].prefetch;
  if (id == 0) {
    return true;
  }
  PrefetchInFlight& prefetch = prefetches_.at(id);
  const SimTime now = backend_.now();
  if (storage_.wait == FetchWait::best_effort || (prefetch.deadline && *prefetch.deadline <= now)) {
    end_prefetch(id);
    return true;
  }
  if (storage_.wait == FetchWait::timeout && !prefetch.deadline) {
    const std::int64_t blocks = prefetch.wanted.asked.value / block_;
    prefetch.deadline =
        now + storage_.timeout + storage_.timeout_per_1024_tokens * (blocks * block_) / 1024;
    backend_.set_timer(*prefetch.deadline, kDeadlineTimer);
  }
  passed_over_ += std::exchange(prefetch.passed_over, true) ? 0 : 1;
  return false;
}

void PrefillBatches::on_deadline() {
  for (auto& [id, prefetch] : prefetches_) {
    if (prefetch.passed_over && *prefetch.deadline <= backend_.now()) {
      prefetch.passed_over = false;
      --passed_over_;
      stop_decode();
    }
  }
}

void PrefillBatches::on_copied(std::uint64_t tier, std::uint32_t id) {
  copied_[tier].push_back(id);
  stop_decode();
}

bool PrefillBatches::note_ends() {
  const auto is_first_complete = [&] {
    return !prefetches_.empty() && prefetches_.begin()->second.is_complete();
  };
  const bool any = !copied_[1].empty() || is_first_complete() || !copied_[2].empty();
  const auto note_copies = [&](std::size_t tier) {
    for (const std::uint32_t id : std::exchange(copied_[tier], {})) {
      end_copy(tier, id);
    }
  };
  note_copies(1);
  while (is_first_complete()) {
    end_prefetch(prefetches_.begin()->first);
  }
  note_copies(2);
  return any;
}

void PrefillBatches::check_invariants() const {
  BlockBatcher::check_invariants();
  KVTIER_ASSERT(prefetches_.empty() && passed_over_ == 0, "no request waits for storage");
}

// ---- Decoding ----

bool PrefillBatches::decode_all() {
  const bool preempts = next_blocks(decoding_slots()) > store_->free_blocks().available;
  const std::int64_t before = preemptions_;
  if (preempts && !preempt_for_decode()) {
    return preemptions_ > before;
  }
  lacking_.clear();
  for (Running& one : running_) {
    if (one.slot != chunked_) {
      begin_decoding(one);
      lacking_.push_back(one.slot);
    }
  }
  decodes_ = true;
  return preempts;
}

bool PrefillBatches::take_memory() {
  const auto takes = [&](SessionSlot slot) {
    return grow(slot, computed(slot) + (decodes_ ? Tokens(1) : work_[slot].chunk));
  };
  do {
    lacking_.erase(lacking_.begin(), std::find_if_not(lacking_.begin(), lacking_.end(), takes));
  } while (!lacking_.empty() && note_ends());
  if (!lacking_.empty()) {
    expect_more_room(lacking_.front());
  }
  return lacking_.empty();
}

bool PrefillBatches::preempt_for_decode() {
  std::vector<SessionSlot> kept = decoding_slots();
  const auto length = [&](SessionSlot slot) {
    return std::tuple(generated(slot), Tokens(0) - work_[slot].content.prompt.tokens);
  };
  std::stable_sort(kept.begin(), kept.end(),
                   [&](SessionSlot a, SessionSlot b) { return length(a) > length(b); });
  std::vector<SessionSlot> preempted;
  bool has_room = false;
  while (!has_room && running_.size() > 1) {
    const SessionSlot slot = kept.back();
    kept.pop_back();
    store_->abandon(work_[slot].id);
    backend_.end_request(request_key(slot));
    leave_running(slot);
    set_preempted(slot);
    store_->make_empty(blocks(Tokens(std::ssize(kept) * room_.after_preemption)));
    preempted.push_back(slot);
    has_room = next_blocks(kept) <= store_->free_blocks().available;
  }
  for (const SessionSlot slot : preempted) {
    tell_waiting(slot, requests_.enqueue(slot));
    begin_prefetch(slot);
  }
  if (!has_room) {
    expect_more_room(kept.back());
  }
  if (preempted.empty()) {
    return false;
  }
  Tokens expected;
  Tokens longest;
  for (const SessionSlot slot : kept) {
    expected += generated(slot) + Tokens(room_.after_preemption);
    longest += longest_response(slot);
  }
  first_share_ =
      std::min(1.0, static_cast<double>(expected.value) / static_cast<double>(longest.value + 1));
  decodes_since_ = 0;
  keeps_share_ = !kept.empty();
  full_ = false;
  return has_room;
}

void PrefillBatches::expect_more_room(SessionSlot slot) {
  settle();
  if (!any_copies() && prefetches_.empty()) {
    refuse_turn(slot);
  }
}

std::vector<SessionSlot> PrefillBatches::decoding_slots() const {
  std::vector<SessionSlot> slots;
  slots.reserve(running_.size());
  for (const Running& one : running_) {
    if (one.slot != chunked_) {
      slots.push_back(one.slot);
    }
  }
  return slots;
}

std::int64_t PrefillBatches::next_blocks(const std::vector<SessionSlot>& slots) const {
  return std::count_if(slots.begin(), slots.end(),
                       [&](SessionSlot slot) { return computed(slot).value % block_ == 0; });
}

// ---- Room for responses ----

Tokens PrefillBatches::longest_response(SessionSlot slot) const {
  const RequestRecord& r = requests_.request(slot);
  const Tokens fits(capacity_ * block_ - block_ - 1);
  return std::clamp(predictor_.predict(r.session, r.turn, r.output), Tokens(1),
                    std::max(Tokens(1), fits - work_[slot].content.prompt.tokens));
}

Tokens PrefillBatches::rest_of_response(SessionSlot slot) const {
  return std::clamp(longest_response(slot) - generated(slot), Tokens(0), room_.most);
}

double PrefillBatches::remaining() const {
  return static_cast<double>(store_->free_blocks().available * block_) - expected_;
}

void PrefillBatches::reserve(Tokens prompt, Tokens response) {
  left_ -= in_blocks(prompt);
  expected_ += static_cast<double>((in_blocks(prompt) + Tokens(block_) + response).value);
}

/// After k decodes without a preemption the share has fallen k times.
double PrefillBatches::share() const {
  if (decodes_since_ == 0) {
    return first_share_;
  }
  const double fall = (room_.share - room_.least_share) / static_cast<double>(room_.decodes);
  return std::max(first_share_ - fall * static_cast<double>(decodes_since_), room_.least_share);
}

}  // namespace kvtier
