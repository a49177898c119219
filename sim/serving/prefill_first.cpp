#include "sim/serving/prefill_first.hpp"

#include <algorithm>

#include "hw/model/model.hpp"
#include "sim/core/assert.hpp"
#include "sim/policy/grow.hpp"
#include "sim/serving/history.hpp"
#include "sim/serving/running_responses.hpp"
#include "sim/serving/store_rules.hpp"

namespace kvtier {

PrefillFirst::PrefillFirst(const Setup& setup)
    : config_(*setup.config),
      backend_(*setup.backend),
      requests_(*setup.requests),
      tiers_({.facts = store_facts(*setup.config),
              .registry = setup.registry,
              .backend = setup.backend,
              .queue = setup.requests,
              .running = this,
              .decisions = setup.decisions,
              .timer = kBatcherTimer,
              .mark = kTierTransfer}),
      bytes_per_token_(kv_bytes_per_token(setup.config->model)),
      stored_sizes_(stored_layer_sizes(*setup.config)),
      unequal_layers_(has_unequal_layers(*setup.config)),
      invalidates_(setup.config->system.positions == KeyPositions::embedded),
      read_buffer_(*setup.config),
      preloads_(read_buffer_.most_layers() > 0 &&
                setup.config->system.load.discipline != LoadDiscipline::blocking),
      shares_(setup.config->system.sharing == Sharing::prompts),
      loads_alone_(load_wait(setup.config->system) == LoadWait::request),
      waits_for_whole_load_{waits_for_whole_load(*setup.config, Medium::hbm),
                            waits_for_whole_load(*setup.config, Medium::dram),
                            waits_for_whole_load(*setup.config, Medium::cxl),
                            waits_for_whole_load(*setup.config, Medium::ssd)},
      free_slots_(setup.config->serving.slots),
      predictor_(setup.config->system.length_prediction,
                 static_cast<std::uint64_t>(setup.config->seed)) {
  requests_.set_stored(&tiers_);
  tiers_.on_load_ready = [this](SessionSlot slot, Medium medium) { finish_fetch(slot, medium); };
}

void PrefillFirst::on_turn(SessionSlot slot) {
  if (slot >= loads_.size()) [[unlikely]] {
    grow(loads_, static_cast<std::size_t>(slot) + 1);
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
        const auto slot = static_cast<SessionSlot>(completion.payload);
        if (loads_alone_) [[unlikely]] {
          finish_own_load(slot);
        } else {
          finish_load_transfer(slot);
        }
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
  if (preloads_ && preloading_ == kNoSession && loads_in_flight_ == 0 &&
      requests_.queue_length() > 0) {
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

void PrefillFirst::stall() {
  gpu_ = Gpu::stalled;
  gpu_since_ = backend_.now();
}

void PrefillFirst::end_stall() {
  gpu_ = Gpu::idle;
  requests_.count_gpu(gpu_since_, {.exposed_save = backend_.now() - gpu_since_});
  requests_.report_gpu(GpuActivity::save_stall, gpu_since_, -1, 0);
}

void PrefillFirst::schedule() {
  if (loads_alone_) [[unlikely]] {
    schedule_beside_loads();
    return;
  }
  if (requests_.queue_length() == 0 && running_.empty()) {
    return;  // saves that are still in progress hold nothing up
  }
  if (must_stall()) {
    stall();
  } else if (const QueuePosition next = admissible(); next != kNotQueued) {
    admit(next);
  } else if (!running_.empty()) {
    start_decode();
  }
}

void PrefillFirst::schedule_beside_loads() {
  if (running_.empty() && ready_.empty() &&
      (requests_.queue_length() == 0 || admissible() == kNotQueued)) {
    return;  // nor when all that were admitted wait for their KV
  }
  if (must_stall()) {
    stall();
    return;
  }
  if (!ready_.empty()) {
    prefilling_ = ready_.front();
    ready_.erase(ready_.begin());
    loading_from_ = Medium::hbm;
    gpu_since_ = backend_.now();
    start_prefill(prefilling_, {}, 0, true);
    return;
  }
  while (gpu_ == Gpu::idle) {
    const QueuePosition next = admissible();
    if (next == kNotQueued) {
      break;
    }
    admit(next);
  }
  if (gpu_ == Gpu::idle && !running_.empty()) {
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
  tiers_.on_dequeued(slot);
  if (invalidates_) {
    truncate_stored(tiers_, slot, config_, r);
  }
  Lookup prompt;
  bool brings_prompt = false;
  if (shares_) {
    if (prompt_comes(r.shared_prompt)) {
      // It computes a copy of its own, as prompts of one batch do.
      prompt.cause = LossCause::capacity;
    } else {
      prompt = tiers_.admit_prompt(slot);
      brings_prompt = prompt.reused.value == 0 ? tiers_.shares_prompt(slot)
                                               : prompt.late || prompt.medium != Medium::hbm;
    }
    prompt_ = {.key = prompt_key(r.shared_prompt),
               .tokens = r.shared,
               .exists = prompt.reused.value > 0,
               .shared = tiers_.shares_prompt(slot)};
  }
  loads_[slot].running = running_tokens(slot);
  occupy(1, loads_[slot].running);
  r.found = tiers_.admit(slot, requests_.key(slot), own_history(r, config_.system));
  if (shares_) {
    note_pieces(requests_.key(slot), prompt, r.found);
  }
  if (shares_ && r.shared.value > 0) {
    r.found = combine(prompt, r.found);
  }
  if (preloading_ == slot) {
    preloading_ = kNoSession;
    tiers_.hbm().charge(Account::read_buffer, -loads_[slot].preloaded);
  }
  const Lookup& found = r.found;
  const bool waits = found.reused.value > 0 && (found.medium != Medium::hbm || found.late);
  if (waits && loads_alone_) [[unlikely]] {
    wait_for_kv(slot, brings_prompt);
    return;
  }
  prefilling_ = slot;
  loading_from_ = Medium::hbm;
  gpu_since_ = backend_.now();
  gpu_ = Gpu::waits_for_fetch;
  if (!waits) {
    start_prefill(slot, {}, 0);
  } else if (!found.late) {
    start_load(slot, found.medium);
  }
}

void PrefillFirst::note_pieces(EntryKey key, const Lookup& prompt, const Lookup& own) {
  for (std::vector<KvPiece>& pieces : load_pieces_) {
    pieces.clear();
  }
  const auto comes = [](const Lookup& lookup) {
    return lookup.reused.value > 0 && lookup.medium != Medium::hbm;
  };
  if (comes(prompt)) {
    load_pieces_[static_cast<std::size_t>(prompt.medium)].push_back(
        {.key = prompt_.key,
         .first = Tokens(0),
         .count = prompt.reused,
         .turn = prompt_.shared ? std::nullopt : std::optional(key)});
  }
  if (comes(own)) {
    load_pieces_[static_cast<std::size_t>(own.medium)].push_back(
        {.key = key, .first = Tokens(0), .count = own.reused});
  }
}

void PrefillFirst::count_wait(SimDuration elapsed, SimDuration waited, Medium from, Medium to) {
  // A device may take longer than it computes without a load.
  const bool loads = waited.ns > 0 && from != Medium::hbm;
  requests_.end_command(elapsed, loads ? waited : SimDuration(),
                        loads ? requests_.topology().wait_cause(from, to) : WaitCause::gpu_compute);
}

/// Loads from several media at once.
void PrefillFirst::start_loads(SessionSlot slot) {
  boost::container::static_vector<TransferId, kMedia> transfers;
  for (std::size_t i = 0; i < kMedia; ++i) {
    Tokens tokens;
    for (const KvPiece& piece : load_pieces_[i]) {
      tokens += piece.count;
    }
    if (tokens.value > 0) {
      const Bytes bytes = stored_sizes_.back() * tokens.value;
      loading_from_ = static_cast<Medium>(i);
      loaded_bytes_[i] += bytes;
      transfers.push_back(backend_.start_transfer({.from = loading_from_,
                                                   .to = Medium::hbm,
                                                   .bytes = bytes,
                                                   .key = requests_.key(slot),
                                                   .cookie = kOwnTransfer | slot,
                                                   .pieces = load_pieces_[i]}));
    }
  }
  loads_in_flight_ = static_cast<int>(transfers.size());
  start_prefill(slot, {transfers.data(), transfers.size()}, 0);
}

void PrefillFirst::start_load(SessionSlot slot, Medium medium) {
  const auto in_use = [](const std::vector<KvPiece>& pieces) { return !pieces.empty(); };
  if (shares_ && std::ranges::count_if(load_pieces_, in_use) > 1) {
    start_loads(slot);
    return;
  }
  Load& load = loads_[slot];
  loading_from_ = medium;
  const Tokens tokens = requests_.request(slot).outside_hbm();
  const Bytes total = stored_sizes_.back() * tokens.value;
  const Bytes rest = total - std::min(total, load.preloaded);
  std::int64_t layers_ready = 0;
  loaded_bytes_[static_cast<std::size_t>(medium)] += rest;
  if (load.layers_ahead > 0 && backend_.extend_transfer(load.transfer, rest, Tokens(0), tokens)) {
    loads_in_flight_ = 1;
  } else {
    layers_ready = load.layers_ahead;
    if (rest.value > 0) {
      load.transfer =
          backend_.start_transfer({.from = medium,
                                   .to = Medium::hbm,
                                   .bytes = rest,
                                   .key = requests_.key(slot),
                                   .first = Tokens(0),
                                   .end = tokens,
                                   .cookie = kOwnTransfer | slot,
                                   .pieces = load_pieces_[static_cast<std::size_t>(medium)],
                                   .layer = load.layers_ahead});
      loads_in_flight_ = 1;
    } else {
      tiers_.end_load(slot);
    }
  }
  start_prefill(slot, {&load.transfer, static_cast<std::size_t>(loads_in_flight_)}, layers_ready);
}

void PrefillFirst::start_prefill(SessionSlot slot, std::span<const TransferId> loads,
                                 std::int64_t layers_ready, bool has_waited) {
  const RequestRecord& r = requests_.request(slot);
  if (shares_ && r.shared.value > 0 && !has_waited) {
    backend_.begin_with(requests_.key(slot), prompt_);
  }
  backend_.start_prefill(
      {.part = {.added = r.history - r.found.reused + r.input, .past = r.found.reused},
       .key = requests_.key(slot),
       .loads = loads,
       .schedule = {.ready = layers_ready,
                    .sizes = unequal_layers_ ? std::span<const Bytes>(stored_sizes_)
                                             : std::span<const Bytes>(),
                    .whole = waits_for_whole_load_[static_cast<std::size_t>(r.found.medium)]}});
  gpu_ = Gpu::prefill;
}

void PrefillFirst::finish_load_transfer(SessionSlot slot) {
  if (--loads_in_flight_ > 0) {
    return;
  }
  loads_[slot].transfer = TransferId{};
  tiers_.end_load(slot);
}

void PrefillFirst::finish_fetch(SessionSlot slot, Medium medium) {
  RequestRecord& r = requests_.request(slot);
  // The session or its prompt may be fetched late while the other has to be loaded.
  const Medium from = r.found.medium != Medium::hbm ? r.found.medium : medium;
  if (loads_alone_) [[unlikely]] {
    r.late_wait = backend_.now() - waiting(slot)->since;
    if (from != Medium::hbm) {
      start_own_loads(slot, from);
    } else {
      make_ready(slot);
    }
    return;
  }
  KVTIER_ASSERT(gpu_ == Gpu::waits_for_fetch && slot == prefilling_,
                "the prefill in work waits for this fetch");
  r.late_wait = backend_.now() - gpu_since_;
  count_wait(r.late_wait, r.late_wait, r.found.fetched_from, medium);
  if (from != Medium::hbm) {
    start_load(slot, from);
  } else {
    start_prefill(slot, {}, 0);
  }
}

// ---- Requests that wait for their KV alone ----

std::vector<PrefillFirst::Waiting>::iterator PrefillFirst::waiting(SessionSlot slot) {
  const auto found = std::ranges::find(waiting_, slot, &Waiting::slot);
  KVTIER_ASSERT(found != waiting_.end(), "the request waits for its KV");
  return found;
}

bool PrefillFirst::prompt_comes(std::int64_t prompt) const {
  return std::ranges::any_of(waiting_, [&](const Waiting& other) {
    return other.brings_prompt && requests_.request(other.slot).shared_prompt == prompt;
  });
}

void PrefillFirst::wait_for_kv(SessionSlot slot, bool brings_prompt) {
  waiting_.push_back({.slot = slot, .since = backend_.now(), .brings_prompt = brings_prompt});
  if (shares_) {
    load_pieces_.swap(waiting_.back().pieces);
  }
  const RequestRecord& r = requests_.request(slot);
  if (shares_ && r.shared.value > 0) {
    backend_.begin_with(requests_.key(slot), prompt_);
  }
  if (!r.found.late) {
    start_own_loads(slot, r.found.medium);
  }
}

void PrefillFirst::start_own_loads(SessionSlot slot, Medium medium) {
  const auto request = waiting(slot);
  const auto start = [&](Medium from, Tokens tokens, std::span<const KvPiece> pieces) {
    const Bytes bytes = stored_sizes_.back() * tokens.value;
    loaded_bytes_[static_cast<std::size_t>(from)] += bytes;
    ++request->loads;
    static_cast<void>(backend_.start_transfer({.from = from,
                                               .to = Medium::hbm,
                                               .bytes = bytes,
                                               .key = requests_.key(slot),
                                               .first = Tokens(0),
                                               .end = tokens,
                                               .cookie = kOwnTransfer | slot,
                                               .pieces = pieces}));
  };
  if (!shares_) {
    start(medium, requests_.request(slot).outside_hbm(), {});
    return;
  }
  for (std::size_t i = 0; i < kMedia; ++i) {
    Tokens tokens;
    for (const KvPiece& piece : request->pieces[i]) {
      tokens += piece.count;
    }
    if (tokens.value > 0) {
      start(static_cast<Medium>(i), tokens, request->pieces[i]);
    }
  }
}

void PrefillFirst::finish_own_load(SessionSlot slot) {
  if (--waiting(slot)->loads == 0) {
    tiers_.end_load(slot);
    make_ready(slot);
  }
}

void PrefillFirst::make_ready(SessionSlot slot) {
  const auto request = waiting(slot);
  requests_.request(slot).exposed_load = backend_.now() - request->since;
  waiting_.erase(request);
  ready_.push_back(slot);
  if (gpu_ == Gpu::decode) {
    backend_.stop_decode();
  }
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
  load.preloaded = stored_sizes_[static_cast<std::size_t>(load.layers_ahead - 1)] * tokens.value;
  tiers_.hbm().charge(Account::read_buffer, load.preloaded);
  loaded_bytes_[static_cast<std::size_t>(*medium)] += load.preloaded;
  load.transfer = backend_.start_transfer({.from = *medium,
                                           .to = Medium::hbm,
                                           .bytes = load.preloaded,
                                           .key = requests_.key(slot),
                                           .first = Tokens(0),
                                           .end = tokens,
                                           .cookie = kOwnTransfer | slot,
                                           .open = true,
                                           .layer = load.layers_ahead});
}

void PrefillFirst::finish_prefill(SimDuration compute) {
  const SessionSlot slot = prefilling_;
  RequestRecord& r = requests_.request(slot);
  const SimTime now = backend_.now();
  prefilling_ = kNoSession;
  gpu_ = Gpu::idle;
  requests_.first_token(slot);
  const SimDuration waited = requests_.waited_for_kv(now - gpu_since_, compute);
  // Counted when the fetch was done.
  const SimDuration late = loads_alone_ ? SimDuration() : r.late_wait;
  r.exposed_load += waited;
  r.prefill_compute = now - gpu_since_ - waited;
  count_wait(now - gpu_since_ - late, std::max(waited - late, SimDuration()), loading_from_,
             Medium::hbm);
  r.decode_share = SimDuration(0) - decode_per_request_;
  requests_.count_gpu(gpu_since_, {.prefill = r.prefill_compute, .exposed_load = waited});
  requests_.report_gpu(GpuActivity::prefill, gpu_since_, r.session, 1);
  if (requests_.reports_iterations()) {
    requests_.add_to_iteration(slot, std::max(Tokens(1), r.prompt() - r.found.reused));
    requests_.report_iterations(gpu_since_, 1);
  }
  if (shares_) {
    tiers_.end_prefill(slot);
  }
  const Tokens prompt = r.history + r.input;
  tiers_.begin_save(slot, requests_.key(slot), own_history(r, config_.system) + r.input);
  if (r.output.value == 1) {
    finish_turn(slot);
    return;
  }
  const Running running{iteration_ + r.output.value - 1, next_sequence_++, slot};
  running_.insert(std::ranges::lower_bound(running_, running, FinishesLater{}), running);
  context_ += prompt + Tokens(1);
}

void PrefillFirst::start_decode() {
  gpu_ = Gpu::decode;
  gpu_since_ = backend_.now();
  if (backend_.wants_running()) [[unlikely]] {
    tell_running(backend_, requests_, running_, [this](const Running& one) {
      const RequestRecord& r = requests_.request(one.slot);
      return r.history + r.input + r.output - Tokens(one.finish_iteration - iteration_);
    });
  }
  backend_.start_decode({.batch = static_cast<std::int64_t>(running_.size()),
                         .context = context_,
                         .iterations = running_.back().finish_iteration - iteration_});
}

void PrefillFirst::finish_decode(std::int64_t iterations) {
  const SimTime now = backend_.now();
  const auto batch = static_cast<std::int64_t>(running_.size());
  gpu_ = Gpu::idle;
  requests_.count_gpu(gpu_since_, {.decode = now - gpu_since_});
  requests_.end_command(now - gpu_since_, SimDuration(), WaitCause::gpu_compute);
  last_decode_ = now - gpu_since_;
  last_iterations_ = iterations;
  decode_per_request_ += (now - gpu_since_) / batch;
  requests_.report_gpu(GpuActivity::decode, gpu_since_, -1, batch);
  if (requests_.reports_iterations()) {
    for (const Running& one : running_) {
      requests_.add_to_iteration(one.slot, Tokens(0));
    }
    requests_.report_iterations(gpu_since_, iterations);
  }
  iteration_ += iterations;
  context_ += Tokens(iterations * batch);
  while (!running_.empty() && running_.back().finish_iteration == iteration_) {
    const SessionSlot slot = running_.back().slot;
    running_.pop_back();
    const RequestRecord& r = requests_.request(slot);
    context_ -= r.history + r.input + r.output;
    finish_turn(slot);
  }
}

std::optional<SimDuration> PrefillFirst::tpot() const {
  // An iteration in work has not put out anything yet.
  const SimTime until = gpu_ == Gpu::decode ? gpu_since_ : backend_.now();
  if (const auto mean = mean_tpot(requests_, running_, iteration_, until)) {
    return mean;
  }
  return last_iterations_ > 0 ? std::optional(last_decode_ / last_iterations_) : std::nullopt;
}

void PrefillFirst::for_each_running(const std::function<void(SimTime, Tokens)>& visit) const {
  visit_running(
      requests_, running_, predictor_,
      [this](SessionSlot slot) -> Tokens& { return loads_[slot].predicted; }, visit);
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
  for (const Waiting& request : waiting_) {
    sums[Account::running] += bytes_per_token_ * loads_[request.slot].running.value;
  }
  for (const SessionSlot slot : ready_) {
    sums[Account::running] += bytes_per_token_ * loads_[slot].running.value;
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
