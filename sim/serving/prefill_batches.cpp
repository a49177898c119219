#include "sim/serving/prefill_batches.hpp"

#include <algorithm>
#include <iterator>
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
      predictor_(config_.system.length_prediction, static_cast<std::uint64_t>(config_.seed)),
      refreshes_(config_.system.order.name == "fcfs" &&
                 config_.system.tiers.hbm->eviction.name == "lru"),
      first_share_(room_.share) {}

bool PrefillBatches::plan() {
  for (const SessionSlot slot : running_) {
    work_[slot].decodes_now = false;
  }
  const bool any_decodes = std::ssize(running_) > (chunked_ ? 1 : 0);
  full_ = full_ && any_decodes;
  lacks_room_ = full_;
  if (chunked_ || (!full_ && requests_.queue_length() > 0)) {
    choose_prompts();
    for (const SessionSlot slot : prompts_) {
      take(work_[slot], work_[slot].computed + work_[slot].chunk);
    }
    lacks_room_ = full_ || (prompts_.empty() && !any_decodes);
  }
  if (!prompts_.empty()) {
    return false;
  }
  if (running_.empty()) {
    first_share_ = room_.share;
    decodes_since_ = 0;
  }
  return decode_all();
}

bool PrefillBatches::has_candidate() const {
  return !full_ && requests_.queue_length() > 0 && std::ssize(running_) < config_.serving.slots &&
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
  if (chunked_ && !continue_chunked()) {
    return;
  }
  while (left_.value > 0 && requests_.queue_length() > 0) {
    full_ = full_ || std::ssize(running_) >= config_.serving.slots;
    if (full_ || (config_.serving.one_at_a_time && !is_idle())) {
      return;
    }
    const QueuePosition position = requests_.next();
    const Chosen chosen = choose(requests_.waiting(position));
    if (chosen == Chosen::yes) {
      static_cast<void>(requests_.take(position));
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
  const Tokens wanted = work.prompt - nearest + rest_of_response(slot) + Tokens(block_);
  const Tokens known = std::min(match.tokens, work.prompt - Tokens(1));
  Tokens added = work.prompt - known;
  const bool cut = in_blocks(added) > left_;
  if (cut) {
    const Tokens whole_blocks(left_.value / block_ * block_);
    added = Tokens((known + whole_blocks).value / block_ * block_) - known;
    if (added.value <= 0) {
      static_cast<void>(store_->refresh(prompt));
      return Chosen::no_budget;
    }
  }
  const Room room{.taken = match.tokens,
                  .needed = nearest + Tokens(least_available(wanted, expected_))};
  if (!acquire(slot, room, match)) {
    return Chosen::no_room;
  }
  work.computed = known;
  work.chunk = added;
  running_.push_back(slot);
  prompts_.push_back(slot);
  if (cut) {
    KVTIER_ASSERT(!chunked_, "one prompt is cut at a time");
    chunked_ = slot;
  }
  reserve(added, cut ? Tokens(0) : std::min(longest_response(slot), room_.most));
  return Chosen::yes;
}

// ---- Decoding ----

bool PrefillBatches::decode_all() {
  const bool preempts = next_blocks(decoding_slots()) > store_->free_blocks().available;
  if (preempts) {
    preempt_for_decode();
  }
  for (const SessionSlot slot : decoding_slots()) {
    Work& work = work_[slot];
    take(work, work.computed + Tokens(1));
    work.decodes_now = true;
  }
  return preempts;
}

void PrefillBatches::preempt_for_decode() {
  std::vector<SessionSlot> kept = decoding_slots();
  const auto length = [&](SessionSlot slot) {
    const Work& work = work_[slot];
    return std::tuple(work.generated, Tokens(0) - work.content.prompt.tokens);
  };
  std::stable_sort(kept.begin(), kept.end(),
                   [&](SessionSlot a, SessionSlot b) { return length(a) > length(b); });
  do {
    const SessionSlot slot = kept.back();
    if (running_.size() == 1) {
      refuse_turn(slot);
    }
    kept.pop_back();
    store_->abandon(work_[slot].id);
    leave_running(slot);
    set_preempted(slot);
    store_->make_empty(blocks(Tokens(std::ssize(kept) * room_.after_preemption)));
    static_cast<void>(requests_.enqueue(slot));
  } while (next_blocks(kept) > store_->free_blocks().available);
  Tokens generated;
  Tokens longest;
  for (const SessionSlot slot : kept) {
    generated += work_[slot].generated + Tokens(room_.after_preemption);
    longest += longest_response(slot);
  }
  first_share_ =
      std::min(1.0, static_cast<double>(generated.value) / static_cast<double>(longest.value + 1));
  decodes_since_ = 0;
  keeps_share_ = !kept.empty();
  full_ = false;
}

std::vector<SessionSlot> PrefillBatches::decoding_slots() const {
  std::vector<SessionSlot> slots;
  std::copy_if(running_.begin(), running_.end(), std::back_inserter(slots),
               [&](SessionSlot slot) { return slot != chunked_; });
  return slots;
}

std::int64_t PrefillBatches::next_blocks(const std::vector<SessionSlot>& slots) const {
  return std::count_if(slots.begin(), slots.end(),
                       [&](SessionSlot slot) { return work_[slot].computed.value % block_ == 0; });
}

// ---- Room for responses ----

Tokens PrefillBatches::longest_response(SessionSlot slot) const {
  const RequestRecord& r = requests_.request(slot);
  const Tokens fits(capacity_ * block_ - block_ - 1);
  return std::clamp(predictor_.predict(r.session, r.turn, r.output), Tokens(1),
                    std::max(Tokens(1), fits - work_[slot].content.prompt.tokens));
}

Tokens PrefillBatches::rest_of_response(SessionSlot slot) const {
  return std::clamp(longest_response(slot) - work_[slot].generated, Tokens(0), room_.most);
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
