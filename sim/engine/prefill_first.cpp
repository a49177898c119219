#include "sim/engine/prefill_first.hpp"

#include <algorithm>

#include "hw/model.hpp"
#include "sim/core/assert.hpp"
#include "sim/engine/history.hpp"

namespace kvtier {

PrefillFirst::PrefillFirst(const Setup& setup)
    : config_(*setup.config),
      backend_(*setup.backend),
      requests_(*setup.requests),
      tiers_({.config = setup.config,
              .registry = setup.registry,
              .backend = setup.backend,
              .queue = setup.requests,
              .running = this,
              .decisions = setup.decisions,
              .timer = kBatcherTimer,
              .mark = kTierTransfer}),
      bytes_per_token_(kv_bytes_per_token(setup.config->model)),
      stored_up_to_layers_(stored_kv_up_to_layers(*setup.config)),
      invalidates_(setup.config->system.positions == KeyPositions::embedded),
      read_buffer_(*setup.config),
      preloads_(read_buffer_.most_layers() > 0 &&
                setup.config->system.load.discipline != LoadDiscipline::blocking),
      shares_(setup.config->system.sharing == Sharing::prompts),
      waits_for_whole_load_{waits_for_whole_load(*setup.config, Medium::hbm),
                            waits_for_whole_load(*setup.config, Medium::dram),
                            waits_for_whole_load(*setup.config, Medium::cxl),
                            waits_for_whole_load(*setup.config, Medium::ssd)},
      predictor_(setup.config->system.length_prediction,
                 static_cast<std::uint64_t>(setup.config->seed)) {
  requests_.set_stored(&tiers_);
  tiers_.on_load_ready = [this](SessionSlot slot, Medium medium) {
    KVTIER_ASSERT(gpu_ == Gpu::waits_for_fetch && slot == prefilling_,
                  "the prefill in work waits for this fetch");
    RequestRecord& r = requests_.request(slot);
    r.late_wait = backend_.now() - gpu_since_;
    count_wait(r.late_wait, r.late_wait, r.found.fetched_from, medium);
    // Of a session and its prompt one may be fetched late while the other has to be loaded.
    const Lookup& found = requests_.request(slot).found;
    if (found.medium != Medium::hbm) {
      start_load(slot, found.medium);
    } else if (medium != Medium::hbm) {
      start_load(slot, medium);
    } else {
      start_prefill(slot, false, 0);
    }
  };
}

void PrefillFirst::on_cut(SessionSlot slot, const Truncation& cut) {
  cut_stored(tiers_, slot, config_, cut, shares_ ? requests_.request(slot).shared : Tokens(0));
}

void PrefillFirst::on_turn(SessionSlot slot) {
  if (slot >= loads_.size()) {
    loads_.resize(static_cast<std::size_t>(slot) + 1);
  }
  loads_[slot] = Load{};
  const RequestRecord& r = requests_.request(slot);
  if (shares_ && r.shared.value > 0 && !tiers_.has_joined_prompt(slot)) {
    tiers_.join_prompt(slot, prompt_key(r.shared_prompt), r.shared);
  }
  if (!invalidates_ && r.truncated.value > 0) {
    truncate_stored(tiers_, slot, config_, r);
  }
}

void PrefillFirst::on_enqueued(SessionSlot slot, QueuePosition position) {
  tiers_.on_enqueued(slot, position);
  if (gpu_ == Gpu::decode && admissible() != kNotQueued) {
    backend_.stop_decode();
  }
  proceed();
}

void PrefillFirst::on_completion(Completion completion) {
  switch (completion.kind) {
    case CompletionKind::prefill:
      finish_prefill(SimDuration(static_cast<std::int64_t>(completion.payload)));
      break;
    case CompletionKind::decode:
      finish_decode(static_cast<std::int64_t>(completion.payload));
      break;
    case CompletionKind::transfer:
      if ((completion.payload & kOwnerMask) == kOwnTransfer) {
        finish_load_transfer(static_cast<SessionSlot>(completion.payload));
      } else {
        tiers_.on_transfer(MoveId{static_cast<std::uint32_t>(completion.payload)});
      }
      break;
    case CompletionKind::timer:
      tiers_.on_timer();
  }
  proceed();
}

void PrefillFirst::proceed() {
  if (gpu_ == Gpu::stalled && !must_stall()) {
    end_stall();
  }
  if (gpu_ == Gpu::idle) {
    schedule();
  }
  if (preloads_ && preloading_ == kNoSession && !load_in_flight_ && requests_.queue_length() > 0) {
    preload_next();
  }
  note_wait();
}

void PrefillFirst::note_wait() {
  const SimTime now = backend_.now();
  if (!requests_.any_waits()) {
    requests_.waits().set_none(now);
  } else if (!has_free_slot()) {
    requests_.waits().set(WaitCause::batch_slots, now);
  } else if (lacks_room_) {
    requests_.waits().set(WaitCause::hbm_for_kv, now);
  } else {
    requests_.waits().set(gpu_ == Gpu::stalled ? WaitCause::write_buffer : WaitCause::gpu_compute,
                          now);
  }
}

bool PrefillFirst::must_stall() const {
  return tiers_.hbm().write_buffer_excess().value > 0 ||
         (config_.system.save.mode == SaveMode::blocking && tiers_.saves_in_progress() > 0);
}

void PrefillFirst::end_stall() {
  gpu_ = Gpu::idle;
  requests_.gpu_time().exposed_save += backend_.now() - gpu_since_;
  requests_.report_gpu(GpuActivity::save_stall, gpu_since_, -1, 0);
}

void PrefillFirst::schedule() {
  if (requests_.queue_length() == 0 && running_.empty()) {
    return;  // saves that are still in progress hold nothing up
  }
  if (must_stall()) {
    gpu_ = Gpu::stalled;
    gpu_since_ = backend_.now();
  } else if (const QueuePosition next = admissible(); next != kNotQueued) {
    admit(next);
  } else if (!running_.empty()) {
    start_decode();
  }
}

QueuePosition PrefillFirst::admissible() {
  lacks_room_ = false;
  if (requests_.queue_length() == 0 || !has_free_slot()) {
    return kNotQueued;
  }
  const QueuePosition next = requests_.next();
  const Tokens tokens = running_tokens(requests_.waiting(next));
  lacks_room_ = bytes_per_token_ * tokens.value > tiers_.hbm().free_to_run();
  return lacks_room_ ? kNotQueued : next;
}

void PrefillFirst::admit(QueuePosition position) {
  const SessionSlot slot = requests_.admit(position);
  RequestRecord& r = requests_.request(slot);
  prefilling_ = slot;
  loading_from_ = Medium::hbm;
  gpu_since_ = backend_.now();
  gpu_ = Gpu::waits_for_fetch;
  tiers_.on_dequeued(slot);
  if (invalidates_) {
    truncate_stored(tiers_, slot, config_, r);
  }
  Lookup prompt;
  if (shares_) {
    prompt = tiers_.admit_prompt(slot);
    prompt_ = {.key = prompt_key(r.shared_prompt),
               .tokens = r.shared,
               .exists = prompt.reused.value > 0,
               .shared = tiers_.shares_prompt(slot)};
    load_pieces_.clear();
  }
  loads_[slot].running = running_tokens(slot);
  occupy(1, loads_[slot].running);
  r.found = tiers_.admit(slot, requests_.key(slot), own_history(r, config_.system));
  if (shares_ && r.shared.value > 0) {
    note_pieces(requests_.key(slot), prompt, r.found);
    r.found = together(prompt, r.found);
  }
  if (preloading_ == slot) {
    preloading_ = kNoSession;
    tiers_.hbm().charge(Account::read_buffer, -loads_[slot].preloaded);
  }
  const Lookup& found = r.found;
  if (found.reused.value == 0 || (found.medium == Medium::hbm && !found.late)) {
    start_prefill(slot, false, 0);
  } else if (!found.late) {
    start_load(slot, found.medium);
  }
}

void PrefillFirst::note_pieces(EntryKey key, const Lookup& prompt, const Lookup& own) {
  const auto comes = [](const Lookup& lookup) {
    return lookup.reused.value > 0 && lookup.medium != Medium::hbm;
  };
  if (comes(prompt)) {
    load_pieces_.push_back({.key = prompt_.key,
                            .first = Tokens(0),
                            .count = prompt.reused,
                            .for_turn = !prompt_.shared});
  }
  if (comes(own)) {
    load_pieces_.push_back({.key = key, .first = Tokens(0), .count = own.reused});
  }
}

void PrefillFirst::count_wait(SimDuration elapsed, SimDuration waited, Medium from, Medium to) {
  // A device may take longer than it computes without a load.
  const bool loads = waited.ns > 0 && from != Medium::hbm;
  requests_.waits().end_command(
      elapsed, loads ? waited : SimDuration(),
      loads ? requests_.topology().wait_cause(from, to) : WaitCause::gpu_compute, backend_.now());
}

void PrefillFirst::start_load(SessionSlot slot, Medium medium) {
  Load& load = loads_[slot];
  loading_from_ = medium;
  const Tokens tokens = requests_.request(slot).outside_hbm();
  const Bytes total = stored_up_to_layers_.back() * tokens.value;
  const Bytes rest = total - std::min(total, load.preloaded);
  std::int64_t ready_layers = 0;
  loaded_bytes_[static_cast<std::size_t>(medium)] += rest;
  if (load.layers_ahead > 0 && backend_.extend_transfer(load.transfer, rest, tokens)) {
    load_in_flight_ = true;
  } else {
    ready_layers = load.layers_ahead;
    if (rest.value > 0) {
      load.transfer = backend_.start_transfer({.from = medium,
                                               .to = Medium::hbm,
                                               .bytes = rest,
                                               .key = requests_.key(slot),
                                               .tokens = tokens,
                                               .cookie = kOwnTransfer | slot,
                                               .pieces = load_pieces_});
      load_in_flight_ = true;
    } else {
      tiers_.end_load(slot);
    }
  }
  start_prefill(slot, load_in_flight_, ready_layers);
}

void PrefillFirst::start_prefill(SessionSlot slot, bool loads, std::int64_t ready_layers) {
  const RequestRecord& r = requests_.request(slot);
  if (shares_ && r.shared.value > 0) {
    backend_.begin_with(requests_.key(slot), prompt_);
  }
  backend_.start_prefill(
      {.part = {.added = r.history - r.found.reused + r.input, .past = r.found.reused},
       .key = requests_.key(slot),
       .load = loads ? loads_[slot].transfer : TransferId{},
       .ready_layers = ready_layers,
       .up_to_layers = config_.system.compression ? std::span<const Bytes>(stored_up_to_layers_)
                                                  : std::span<const Bytes>(),
       .wait_for_all_layers = waits_for_whole_load_[static_cast<std::size_t>(r.found.medium)]});
  gpu_ = Gpu::prefill;
}

void PrefillFirst::finish_load_transfer(SessionSlot slot) {
  loads_[slot].transfer = TransferId{};
  load_in_flight_ = false;
  tiers_.end_load(slot);
}

/// Loads the first layers of the request that runs next into the read buffer, which is free.
void PrefillFirst::preload_next() {
  const SessionSlot slot = requests_.waiting(requests_.next());
  const RequestRecord& r = requests_.request(slot);
  if (r.history.value == 0 || (invalidates_ && r.truncated.value > 0)) {
    return;
  }
  const std::optional<Medium> medium = tiers_.begin_preload(slot);
  if (!medium) {
    return;
  }
  const Tokens tokens = std::min(r.history, tiers_.stored_tokens(slot));
  Load& load = loads_[slot];
  preloading_ = slot;
  load.tokens_ahead = tokens;
  load.layers_ahead = read_buffer_.layers({.added = r.history - tokens + r.input, .past = tokens});
  load.preloaded =
      stored_up_to_layers_[static_cast<std::size_t>(load.layers_ahead - 1)] * tokens.value;
  tiers_.hbm().charge(Account::read_buffer, load.preloaded);
  loaded_bytes_[static_cast<std::size_t>(*medium)] += load.preloaded;
  load.transfer = backend_.start_transfer({.from = *medium,
                                           .to = Medium::hbm,
                                           .bytes = load.preloaded,
                                           .key = requests_.key(slot),
                                           .tokens = tokens,
                                           .cookie = kOwnTransfer | slot,
                                           .open = true});
}

void PrefillFirst::finish_prefill(SimDuration compute) {
  const SessionSlot slot = prefilling_;
  RequestRecord& r = requests_.request(slot);
  const SimTime now = backend_.now();
  prefilling_ = kNoSession;
  gpu_ = Gpu::idle;
  r.first_token = now;
  r.exposed_load = requests_.waited_for_kv(now - gpu_since_, compute);
  r.prefill_compute = now - gpu_since_ - r.exposed_load;
  count_wait(now - gpu_since_ - r.late_wait, std::max(r.exposed_load - r.late_wait, SimDuration()),
             loading_from_, Medium::hbm);
  r.decode_share = SimDuration(0) - decode_per_request_;
  requests_.gpu_time().prefill += r.prefill_compute;
  requests_.gpu_time().exposed_load += r.exposed_load;
  requests_.report_gpu(GpuActivity::prefill, gpu_since_, r.session, 1);
  if (shares_) {
    tiers_.end_prefill(slot);
  }
  const Tokens prompt = r.history + r.input;
  tiers_.begin_save(slot, requests_.key(slot), own_history(r, config_.system) + r.input);
  if (r.output.value == 1) {
    finish_turn(slot);
    return;
  }
  running_.push_back({iteration_ + r.output.value - 1, next_sequence_++, slot});
  std::push_heap(running_.begin(), running_.end(), FinishesLater{});
  context_ += prompt + Tokens(1);
}

void PrefillFirst::start_decode() {
  gpu_ = Gpu::decode;
  gpu_since_ = backend_.now();
  backend_.start_decode({.batch = static_cast<std::int64_t>(running_.size()),
                         .context = context_,
                         .iterations = running_.front().finish_iteration - iteration_});
}

void PrefillFirst::finish_decode(std::int64_t iterations) {
  const SimTime now = backend_.now();
  const auto batch = static_cast<std::int64_t>(running_.size());
  gpu_ = Gpu::idle;
  requests_.gpu_time().decode += now - gpu_since_;
  requests_.waits().end_command(now - gpu_since_, SimDuration(), WaitCause::gpu_compute, now);
  last_decode_ = now - gpu_since_;
  last_iterations_ = iterations;
  decode_per_request_ += (now - gpu_since_) / batch;
  requests_.report_gpu(GpuActivity::decode, gpu_since_, -1, batch);
  iteration_ += iterations;
  context_ += Tokens(iterations * batch);
  while (!running_.empty() && running_.front().finish_iteration == iteration_) {
    const SessionSlot slot = running_.front().slot;
    std::pop_heap(running_.begin(), running_.end(), FinishesLater{});
    running_.pop_back();
    const RequestRecord& r = requests_.request(slot);
    context_ -= r.history + r.input + r.output;
    finish_turn(slot);
  }
}

std::optional<SimDuration> PrefillFirst::tpot() const {
  // What an iteration in work will have put out is not known yet.
  const SimTime until = gpu_ == Gpu::decode ? gpu_since_ : backend_.now();
  SimDuration time;
  std::int64_t tokens = 0;
  for (const Running& running : running_) {
    const RequestRecord& r = requests_.request(running.slot);
    const std::int64_t left = running.finish_iteration - iteration_;
    tokens += r.output.value - 1 - left;
    time += until - r.first_token;
  }
  if (tokens > 0) {
    return time / tokens;
  }
  return last_iterations_ > 0 ? std::optional(last_decode_ / last_iterations_) : std::nullopt;
}

void PrefillFirst::for_each_running(const std::function<void(SimTime, Tokens)>& visit) const {
  for (const Running& running : running_) {
    const RequestRecord& r = requests_.request(running.slot);
    Tokens& predicted = loads_[running.slot].predicted;
    if (predicted.value == 0) {
      predicted = predictor_.predict(r.session, r.turn, r.output);
    }
    visit(r.first_token, predicted);
  }
}

Bytes PrefillFirst::beyond_accounts() const {
  Bytes beyond = tiers_.saved_in_hbm();
  if (preloading_ != kNoSession) {
    const Load& load = loads_[preloading_];
    beyond += bytes_per_token_ * load.tokens_ahead.value - load.preloaded;
  }
  return beyond;
}

void PrefillFirst::check_invariants() const {
  Pool::Sums sums;
  for (const Running& running : running_) {
    sums[Account::running] += bytes_per_token_ * loads_[running.slot].running.value;
  }
  if (prefilling_ != kNoSession) {
    sums[Account::running] += bytes_per_token_ * loads_[prefilling_].running.value;
  }
  if (preloading_ != kNoSession) {
    sums[Account::read_buffer] = loads_[preloading_].preloaded;
  }
  tiers_.check_invariants(sums);
}

void PrefillFirst::finish_turn(SessionSlot slot) {
  RequestRecord& r = requests_.request(slot);
  r.decode_share += decode_per_request_;
  occupy(-1, -loads_[slot].running);
  if (shares_) {
    tiers_.release_prompt(slot);
  }
  backend_.end_request(requests_.key(slot));
  tiers_.save(slot, requests_.key(slot), own_history(r, config_.system) + r.input + r.output);
  if (requests_.finish(slot)) {
    tiers_.forget(slot);
  }
}

}  // namespace kvtier
