#include "sim/engine/paged_batcher.hpp"

#include <algorithm>

#include "hw/model.hpp"
#include "sim/core/assert.hpp"
#include "sim/engine/history.hpp"

namespace kvtier {

PagedBatcher::PagedBatcher(const Setup& setup)
    : config_(*setup.config),
      backend_(*setup.backend),
      requests_(*setup.requests),
      store_({.config = setup.config,
              .registry = setup.registry,
              .backend = setup.backend,
              .decisions = setup.decisions,
              .cookie = kTierTransfer}),
      mixes_(setup.config->system.batching == Batching::unified),
      bytes_per_token_(kv_bytes_per_token(setup.config->model)),
      block_size_(setup.config->system.paging->block_size.value),
      token_budget_(token_budget(*setup.config)),
      reserve_(static_cast<std::int64_t>(static_cast<double>(store_.capacity()) *
                                         setup.config->system.paging->decode_reserve)),
      takers_(static_cast<std::size_t>(block_size_), 0) {
  requests_.set_stored(&store_);
}

void PagedBatcher::on_cut(SessionSlot slot, const Truncation& cut) {
  cut_stored(store_, slot, config_, cut, Tokens(0));
}

void PagedBatcher::on_turn(SessionSlot slot) {
  const RequestRecord& r = requests_.request(slot);
  if (slot >= work_.size()) {
    work_.resize(static_cast<std::size_t>(slot) + 1);
  }
  work_[slot] = {.arrival = next_arrival_++, .length = r.history + r.input};
  truncate_stored(store_, slot, config_, r);
}

void PagedBatcher::on_completion(Completion completion) {
  switch (completion.kind) {
    case CompletionKind::prefill:
      finish_iteration();
      break;
    case CompletionKind::decode:
      finish_decode(static_cast<std::int64_t>(completion.payload));
      break;
    case CompletionKind::transfer:
      completion.payload == kOwnTransfer ? store_.end_load() : store_.on_copied();
      // When the next copy is due depends on the blocks that the running decode takes.
      if (gpu_ == Gpu::decode && !stopping_ && store_.copies_ahead()) {
        stopping_ = true;
        backend_.stop_decode();
      }
      break;
    case CompletionKind::timer:
      KVTIER_ASSERT(false, "nothing is timed here");
  }
  proceed();
}

void PagedBatcher::proceed() {
  act();
  note_wait();
}

void PagedBatcher::note_wait() {
  const SimTime now = backend_.now();
  if (!requests_.any_waits()) {
    requests_.waits().set_none(now);
  } else if (batch_size() >= config_.serving.slots) {
    requests_.waits().set(WaitCause::batch_slots, now);
  } else if (lacks_blocks_) {
    requests_.waits().set(WaitCause::hbm_for_kv, now);
  } else {
    requests_.waits().set(gpu_ == Gpu::stalled ? WaitCause::write_buffer : WaitCause::gpu_compute,
                          now);
  }
}

/// Gives the GPUs work if they have none, or a decode that runs an end.
void PagedBatcher::act() {
  if (gpu_ == Gpu::idle || gpu_ == Gpu::stalled) {
    schedule();
    return;
  }
  static_cast<void>(store_.make_room());
  if (gpu_ == Gpu::decode && !stopping_) {
    const std::optional<Candidate> candidate = next();
    if (candidate && admissible(candidate->slot)) {
      stopping_ = true;
      backend_.stop_decode();
    }
  }
}

void PagedBatcher::check_invariants() const {
  std::int64_t blocks = 0;
  for (const Running& running : running_) {
    blocks += store_.blocks(Tokens(work_[running.slot].length_offset + iteration_));
  }
  // In the middle of an iteration's end some prompts run already and others do not.
  store_.check_invariants(prompts_.empty() ? std::optional(blocks) : std::nullopt);
}

// ---- What runs next ----

void PagedBatcher::schedule() {
  count_stall();  // an admission may begin the measured part
  if (mixes_) {
    if (!make_room_to_decode()) {
      stall();
      return;
    }
    admit_all();
  } else {
    admit_all();
    if (prompts_.empty() && !make_room_to_decode()) {
      stall();
      return;
    }
  }
  static_cast<void>(store_.make_room());
  if (prompts_.empty() && running_.empty() && next()) {
    KVTIER_ASSERT(store_.copying(), "an idle instance has room or waits for it");
    stall();
    return;
  }
  end_stall();
  if (!prompts_.empty()) {
    start_iteration();
  } else if (!running_.empty()) {
    start_decode();
  }
}

std::optional<PagedBatcher::Candidate> PagedBatcher::next() const {
  if (!suspended_.empty()) {
    return Candidate{suspended_.back(), kNotQueued};
  }
  if (requests_.queue_length() == 0) {
    return std::nullopt;
  }
  const QueuePosition position = requests_.next();
  return Candidate{requests_.waiting(position), position};
}

void PagedBatcher::admit_all() {
  for (std::optional<Candidate> candidate = next(); candidate && admissible(candidate->slot);
       candidate = next()) {
    admit(*candidate);
  }
}

bool PagedBatcher::admissible(SessionSlot slot) {
  store_.want(0);
  lacks_blocks_ = false;
  const std::int64_t batch = batch_size();
  if (batch >= config_.serving.slots) {
    return false;
  }
  const Tokens length = work_[slot].length;
  const auto within_budget = [&] {
    const Tokens computed = length - store_.held(slot, length - Tokens(1)).tokens();
    return prompt_tokens_ + decoding_tokens() + computed <= token_budget_;
  };
  if (!within_budget()) {
    return false;
  }
  // The last token is computed, and the one after it needs a place.
  const std::int64_t needed =
      store_.blocks(length + Tokens(1)) + (mixes_ ? growth(1) : 0) + (batch > 0 ? reserve_ : 0);
  bool fits = store_.available_to(slot) >= needed;
  while (!fits) {
    store_.want(store_.available() + needed - store_.available_to(slot));
    if (!store_.make_room()) {
      lacks_blocks_ = true;
      return false;
    }
    fits = store_.available_to(slot) >= needed;
  }
  store_.want(0);
  // Room may have been made at the cost of what the session itself had stored.
  return within_budget();
}

void PagedBatcher::admit(const Candidate& candidate) {
  const SessionSlot slot = candidate.slot;
  const bool again = candidate.position == kNotQueued;
  if (again) {
    suspended_.pop_back();
    requests_.set_suspended(suspended_.size());
  } else {
    static_cast<void>(requests_.admit(candidate.position));
  }
  const Work& work = work_[slot];
  RequestRecord& r = requests_.request(slot);
  const LossCause loss = store_.loss(slot);
  const PagedStore::Held found =
      store_.take(slot, work.length + Tokens(1), work.length - Tokens(1));
  occupy(1);
  if (!again) {
    r.found = {.reused = found.tokens(),
               .medium = found.host.value > 0 ? store_.behind() : Medium::hbm,
               .late = false,
               .cause = found.tokens() < r.history ? loss : LossCause::none,
               .nearer = found.host.value > 0 ? found.hbm : Tokens(0)};
  }
  const Tokens computed = work.length - found.tokens();
  prompts_.push_back({slot, found.host});
  parts_.push_back({.added = computed, .past = found.tokens()});
  keys_.push_back(requests_.key(slot));
  if (found.host.value > 0) {
    loads_.push_back({.key = keys_.back(), .first = found.hbm, .count = found.host});
  }
  prompt_tokens_ += computed;
}

bool PagedBatcher::make_room_to_decode() {
  while (store_.available() < growth(1)) {
    store_.want(growth(1));
    if (store_.make_room()) {
      continue;
    }
    if (store_.copying()) {
      return false;
    }
    suspend_latest();
  }
  return true;
}

void PagedBatcher::suspend_latest() {
  KVTIER_ASSERT(running_.size() > 1, "one request alone always has room");
  const auto latest =
      std::max_element(running_.begin(), running_.end(),
                       [](const Running& a, const Running& b) { return a.arrival < b.arrival; });
  const Running suspended = *latest;
  running_.erase(latest);
  std::make_heap(running_.begin(), running_.end(), FinishesLater{});
  const SessionSlot slot = suspended.slot;
  Work& work = work_[slot];
  RequestRecord& r = requests_.request(slot);
  work.length = Tokens(work.length_offset + iteration_);
  work.generated = r.output - Tokens(suspended.finish_iteration - iteration_);
  --takers(work.length_offset);
  context_ -= work.length;
  r.decode_share += decode_per_request_;
  backend_.end_request(requests_.key(slot));
  // The KV of its last token was not computed yet.
  store_.give_back(slot, requests_.key(slot), work.length, work.length - Tokens(1));
  occupy(-1);
  const auto behind = std::find_if(suspended_.begin(), suspended_.end(), [&](SessionSlot other) {
    return work_[other].arrival < work.arrival;
  });
  suspended_.insert(behind, slot);
  requests_.set_suspended(suspended_.size());
  ++preemptions_;
}

// ---- The GPUs ----

void PagedBatcher::stall() {
  if (gpu_ != Gpu::stalled) {
    gpu_ = Gpu::stalled;
    gpu_since_ = backend_.now();
    stall_counted_ = gpu_since_;
  }
}

void PagedBatcher::count_stall() {
  if (gpu_ == Gpu::stalled) {
    requests_.gpu_time().exposed_save += backend_.now() - stall_counted_;
    stall_counted_ = backend_.now();
  }
}

void PagedBatcher::end_stall() {
  if (gpu_ == Gpu::stalled) {
    gpu_ = Gpu::idle;
    requests_.report_gpu(GpuActivity::save_stall, gpu_since_, -1, 0);
  }
}

void PagedBatcher::start_iteration() {
  KVTIER_ASSERT(prompt_tokens_ + decoding_tokens() <= token_budget_,
                "an iteration keeps to its token budget");
  TransferId load;
  if (!loads_.empty()) {
    const Bytes bytes = bytes_per_token_ * loaded_now().value;
    loaded_ += bytes;
    load = backend_.start_transfer({.from = store_.behind(),
                                    .to = Medium::hbm,
                                    .bytes = bytes,
                                    .key = loads_.front().key,
                                    .cookie = kOwnTransfer,
                                    .pieces = loads_});
  }
  std::int64_t batch = 0;
  if (mixes_ && !running_.empty()) {
    batch = static_cast<std::int64_t>(running_.size());
    store_.grow(growth(1));
    occupy(0);
  }
  gpu_ = Gpu::prefill;
  gpu_since_ = backend_.now();
  backend_.start_iteration({.parts = parts_,
                            .keys = keys_,
                            .decode_batch = batch,
                            .decode_context = batch > 0 ? context_ : Tokens(0),
                            .load = load,
                            .wait_for_all_layers = waits_for_whole_load(config_, store_.behind())});
}

void PagedBatcher::finish_iteration() {
  const SimTime now = backend_.now();
  const auto [compute, decode] = backend_.iteration_time();
  const SimDuration waited = requests_.waited_for_kv(now - gpu_since_, compute);
  const SimDuration prefill = now - gpu_since_ - waited - decode;
  gpu_ = Gpu::idle;
  requests_.gpu_time().prefill += prefill;
  requests_.gpu_time().decode += decode;
  requests_.gpu_time().exposed_load += waited;
  const bool loads = waited.ns > 0 && !loads_.empty();  // a device may take longer without a load
  requests_.waits().end_command(now - gpu_since_, loads ? waited : SimDuration(),
                                loads
                                    ? requests_.topology().wait_cause(store_.behind(), Medium::hbm)
                                    : WaitCause::gpu_compute,
                                now);
  const auto prompts = static_cast<std::int64_t>(prompts_.size());
  requests_.report_gpu(
      GpuActivity::prefill, gpu_since_,
      prompts == 1 ? requests_.request(prompts_.front().slot).session : std::int64_t{-1}, prompts);
  if (mixes_ && !running_.empty()) {
    decode_per_request_ += decode / static_cast<std::int64_t>(running_.size());
    advance(1);
  }
  const Tokens loaded = loaded_now();
  finish_ended();
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    const SessionSlot slot = prompts_[i].slot;
    Work& work = work_[slot];
    RequestRecord& r = requests_.request(slot);
    if (work.generated.value == 0) {
      r.first_token = now;
    }
    r.prefill_compute += prefill * parts_[i].added.value / prompt_tokens_.value;
    if (loaded.value > 0) {
      r.exposed_load += waited * prompts_[i].loaded.value / loaded.value;
    }
    ++work.generated.value;
    ++work.length.value;
    run(slot);
  }
  prompts_.clear();
  parts_.clear();
  keys_.clear();
  loads_.clear();
  prompt_tokens_ = Tokens(0);
}

/// What the iteration loads.
Tokens PagedBatcher::loaded_now() const {
  Tokens loaded;
  for (const KvPiece& piece : loads_) {
    loaded += piece.count;
  }
  return loaded;
}

/// The request has all of its KV and goes on token by token.
void PagedBatcher::run(SessionSlot slot) {
  Work& work = work_[slot];
  RequestRecord& r = requests_.request(slot);
  r.decode_share -= decode_per_request_;
  if (work.generated == r.output) {
    finish_turn(slot);
    return;
  }
  work.length_offset = work.length.value - iteration_;
  ++takers(work.length_offset);
  context_ += work.length;
  running_.push_back({iteration_ + (r.output - work.generated).value, work.arrival, slot});
  std::push_heap(running_.begin(), running_.end(), FinishesLater{});
}

void PagedBatcher::start_decode() {
  std::int64_t iterations = running_.front().finish_iteration - iteration_;
  iterations = std::min(iterations, iterations_within(store_.available()));
  if (const std::optional<std::int64_t> blocks = store_.blocks_before_copying()) {
    iterations = std::min(iterations, iterations_within(*blocks) + 1);
  }
  gpu_ = Gpu::decode;
  gpu_since_ = backend_.now();
  stopping_ = false;
  backend_.start_decode({.batch = static_cast<std::int64_t>(running_.size()),
                         .context = context_,
                         .iterations = iterations});
}

void PagedBatcher::finish_decode(std::int64_t iterations) {
  const SimDuration duration = backend_.now() - gpu_since_;
  const auto batch = static_cast<std::int64_t>(running_.size());
  gpu_ = Gpu::idle;
  requests_.gpu_time().decode += duration;
  requests_.waits().end_command(duration, SimDuration(), WaitCause::gpu_compute, backend_.now());
  decode_per_request_ += duration / batch;
  requests_.report_gpu(GpuActivity::decode, gpu_since_, -1, batch);
  store_.grow(growth(iterations));
  occupy(0);
  advance(iterations);
  finish_ended();
}

void PagedBatcher::advance(std::int64_t iterations) {
  iteration_ += iterations;
  context_ += Tokens(iterations * static_cast<std::int64_t>(running_.size()));
}

void PagedBatcher::finish_ended() {
  while (!running_.empty() && running_.front().finish_iteration == iteration_) {
    const SessionSlot slot = running_.front().slot;
    std::pop_heap(running_.begin(), running_.end(), FinishesLater{});
    running_.pop_back();
    Work& work = work_[slot];
    work.length = Tokens(work.length_offset + iteration_);
    --takers(work.length_offset);
    context_ -= work.length;
    finish_turn(slot);
  }
}

void PagedBatcher::finish_turn(SessionSlot slot) {
  RequestRecord& r = requests_.request(slot);
  const Tokens total = r.history + r.input + r.output;
  KVTIER_ASSERT(work_[slot].length == total, "a turn ends with all of its tokens");
  r.decode_share += decode_per_request_;
  backend_.end_request(requests_.key(slot));
  store_.give_back(slot, requests_.key(slot), total, total);
  occupy(-1);
  if (requests_.finish(slot)) {
    store_.forget(slot);
  }
}

// ---- Blocks ----

std::int64_t PagedBatcher::growth(std::int64_t iterations) const {
  std::int64_t blocks = iterations / block_size_ * static_cast<std::int64_t>(running_.size());
  for (std::int64_t i = 0; i < iterations % block_size_; ++i) {
    blocks += takers_at(iteration_ + i);
  }
  return blocks;
}

std::int64_t PagedBatcher::iterations_within(std::int64_t blocks) const {
  const auto a_period = static_cast<std::int64_t>(running_.size());
  std::int64_t iterations = blocks / a_period * block_size_;
  std::int64_t rest = blocks % a_period;
  for (rest -= takers_at(iteration_ + iterations); rest >= 0;
       rest -= takers_at(iteration_ + iterations)) {
    ++iterations;
  }
  return iterations;
}

}  // namespace kvtier
