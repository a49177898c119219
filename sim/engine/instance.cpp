#include "sim/engine/instance.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "hw/hardware.hpp"
#include "hw/model.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

// Marks in the cookies of transfers: whose they are.
constexpr std::uint64_t kOwnTransfer = std::uint64_t{1} << 56;
constexpr std::uint64_t kTierTransfer = std::uint64_t{2} << 56;
constexpr std::uint64_t kOwnerMask = std::uint64_t{0xff} << 56;

/// Timer payload of the next session's arrival; others are session slots.
constexpr std::uint64_t kSessionTimer = UINT64_MAX;

constexpr std::int64_t kProgressInterval = 8192;

}  // namespace

const char* to_string(GpuActivity activity) {
  switch (activity) {
    case GpuActivity::prefill:
      return "prefill";
    case GpuActivity::decode:
      return "decode";
    case GpuActivity::save_stall:
      return "save_stall";
  }
  return "?";
}

Instance::Instance(const Setup& setup)
    : config_(*setup.config),
      backend_(*setup.backend),
      source_(*setup.sessions),
      observer_(setup.observer),
      progress_(setup.progress),
      tiers_({.config = setup.config,
              .registry = setup.registry,
              .backend = setup.backend,
              .queue = this,
              .decisions = setup.decisions,
              .cookie_mark = kTierTransfer}),
      bytes_per_token_(kv_bytes_per_token(setup.config->model)),
      hbm_limit_(running_kv_capacity(*setup.config)),
      fitter_(*setup.config),
      invalidates_(setup.config->system.positions == Positions::embedded),
      preloads_(setup.config->system.load.buffers > 0 &&
                setup.config->system.load.discipline != LoadDiscipline::blocking),
      turn_metrics_(load_rates(*setup.config)) {
  const PolicyKind<OrderPolicy>* order =
      find_policy(setup.registry->order, config_.system.order.name);
  KVTIER_ASSERT(order != nullptr, "the config was checked");
  order_ = order->make(config_.system.order.parameters);
  tiers_.on_load_ready = [this](SessionSlot slot, Medium medium) {
    KVTIER_ASSERT(gpu_ == Gpu::waits_for_fetch && slot == prefilling_,
                  "the prefill in work waits for this fetch");
    session(slot).request.late_wait = backend_.now() - gpu_since_;
    if (medium == Medium::hbm) {
      start_prefill(slot, false, 0);
    } else {
      start_load(slot, medium);
    }
  };
}

void Instance::run() {
  draw_session();
  if (has_drawn_) {
    backend_.set_timer(drawn_.arrival, kSessionTimer);
  }
  while (has_drawn_ || live_sessions_ > 0) {
    handle(backend_.wait());
  }
  for (std::size_t i = 0; i < tiers_.tier_count(); ++i) {
    tiers_after_.push_back(tiers_.counters(i));
  }
  if (on_measurement_end) {
    on_measurement_end();
  }
  while (backend_.pending()) {
    const Completion completion = backend_.wait();
    KVTIER_ASSERT(completion.kind == CompletionKind::transfer,
                  "only transfers outlast the last turn");
    handle(completion);
  }
  KVTIER_ASSERT(begun_turns_ == finished_turns_ && finished_turns_ == workload_.turns(),
                "every turn finished");
  KVTIER_ASSERT(queue_length_ == 0 && running_.empty() && hbm_used_.value == 0,
                "nothing is left running");
  tiers_.check_invariants();
}

// ---- Users ----

void Instance::draw_session() {
  has_drawn_ = source_.next(drawn_);
  if (has_drawn_) {
    fitter_.fit_turns(drawn_, source_);
    workload_.add(drawn_);
    last_session_arrival_ = drawn_.arrival;
  }
}

void Instance::begin_session() {
  SessionSlot slot = 0;
  if (free_sessions_.empty()) {
    slot = static_cast<SessionSlot>(sessions_.size());
    sessions_.emplace_back();
  } else {
    slot = free_sessions_.back();
    free_sessions_.pop_back();
  }
  ++live_sessions_;
  Session& s = session(slot);
  s.turns.swap(drawn_.turns);
  s.next_turn = 0;
  s.history = Tokens(0);
  s.request = RequestRecord{};
  s.request.session = drawn_.id;
  draw_session();
  if (has_drawn_) {
    backend_.set_timer(drawn_.arrival, kSessionTimer);
  }
  begin_turn(slot);
}

void Instance::begin_turn(SessionSlot slot) {
  Session& s = session(slot);
  Turn& turn = s.turns[static_cast<std::size_t>(s.next_turn)];
  const std::int64_t id = s.request.session;
  const Tokens truncated = fitter_.fit_history(s.history, turn);
  s.request = RequestRecord{};
  s.request.session = id;
  s.request.turn = s.next_turn;
  s.request.arrived = backend_.now();
  s.request.history = s.history;
  s.request.input = turn.user;
  s.request.output = turn.assistant;
  s.request.truncated = truncated;
  s.preloads = false;
  s.preloaded = Bytes(0);
  s.load = TransferId{};
  ++s.next_turn;
  ++begun_turns_;
  if (!invalidates_) {
    truncate_stored(tiers_, slot, config_, truncated, s.history);
  }
  enqueue(slot);
}

// ---- The queue ----

EntryId Instance::entry_at(QueuePosition position) const {
  const SessionSlot slot = queue_[position.value & (queue_.size() - 1)];
  return slot == kNoSession ? kNoEntry : tiers_.entry_of(slot);
}

bool Instance::waiting_at(QueuePosition position) const {
  return position >= first_ && position < end_ &&
         queue_[position.value & (queue_.size() - 1)] != kNoSession;
}

void Instance::enqueue(SessionSlot slot) {
  if (end_.value - first_.value == queue_.size()) {
    std::vector<SessionSlot> larger(2 * queue_.size(), kNoSession);
    for (std::uint64_t at = first_.value; at < end_.value; ++at) {
      larger[at & (larger.size() - 1)] = queue_[at & (queue_.size() - 1)];
    }
    queue_.swap(larger);
  }
  occupy(0, Bytes(0));
  const QueuePosition position = end_;
  queue_[position.value & (queue_.size() - 1)] = slot;
  ++end_.value;
  ++queue_length_;
  queue_trend_.set_length(queue_length_, backend_.now());
  if (observer_ != nullptr) {
    observer_->on_queue(queue_length_, backend_.now());
  }
  tiers_.on_enqueued(slot, position);
  if (gpu_ == Gpu::decode && admissible()) {
    backend_.stop_decode();
  }
}

void Instance::leave_queue(QueuePosition position) {
  occupy(0, Bytes(0));
  queue_[position.value & (queue_.size() - 1)] = kNoSession;
  --queue_length_;
  while (first_ < end_ && queue_[first_.value & (queue_.size() - 1)] == kNoSession) {
    ++first_.value;
  }
  queue_trend_.set_length(queue_length_, backend_.now());
  if (observer_ != nullptr) {
    observer_->on_queue(queue_length_, backend_.now());
  }
}

// ---- The GPUs ----

void Instance::handle(const Completion& completion) {
  switch (completion.kind) {
    case CompletionKind::prefill:
      finish_prefill();
      break;
    case CompletionKind::decode:
      finish_decode(static_cast<std::int64_t>(completion.payload));
      break;
    case CompletionKind::transfer:
      if ((completion.payload & kOwnerMask) == kOwnTransfer) {
        finish_load_transfer(static_cast<SessionSlot>(completion.payload));
      } else {
        tiers_.on_transfer(completion.payload & ~kOwnerMask);
      }
      break;
    case CompletionKind::timer:
      if (completion.payload == kSessionTimer) {
        begin_session();
      } else {
        begin_turn(static_cast<SessionSlot>(completion.payload));
      }
      break;
  }
  if (gpu_ == Gpu::stalled && !must_stall()) {
    end_stall();
  }
  if (gpu_ == Gpu::idle) {
    schedule();
  }
  if (preloads_ && preloading_ == kNoSession && !load_in_flight_ && queue_length_ > 0) {
    preload_next();
  }
}

bool Instance::must_stall() const {
  return tiers_.write_buffer_excess().value > 0 ||
         (config_.system.save.mode == SaveMode::blocking && tiers_.saves_in_progress() > 0);
}

void Instance::end_stall() {
  gpu_ = Gpu::idle;
  gpu_time_.exposed_save += backend_.now() - gpu_since_;
  if (observer_ != nullptr) {
    observer_->on_gpu(GpuActivity::save_stall, gpu_since_, backend_.now(), -1, 0);
  }
}

void Instance::schedule() {
  if (must_stall()) {
    gpu_ = Gpu::stalled;
    gpu_since_ = backend_.now();
  } else if (const std::optional<QueuePosition> next = admissible()) {
    admit(*next);
  } else if (!running_.empty()) {
    start_decode();
  }
}

std::optional<QueuePosition> Instance::admissible() const {
  if (queue_length_ == 0 || running_.size() >= static_cast<std::size_t>(config_.serving.slots)) {
    return std::nullopt;
  }
  const QueuePosition next = order_->next(*this);
  const RequestRecord& r = sessions_[queue_[next.value & (queue_.size() - 1)]].request;
  const bool fits =
      hbm_used_ + bytes_per_token_ * (r.history + r.input + r.output).value <= hbm_limit_;
  return fits ? std::optional(next) : std::nullopt;
}

void Instance::admit(QueuePosition position) {
  KVTIER_ASSERT(waiting_at(position), "an order policy names a waiting request");
  const SessionSlot slot = queue_[position.value & (queue_.size() - 1)];
  Session& s = session(slot);
  leave_queue(position);
  if (admitted_turns_++ == config_.workload.warmup_turns) {
    begin_measurement();
  }
  s.request.admitted = backend_.now();
  s.request.measured = measuring_;
  occupy(1, bytes_per_token_ * (s.request.history + s.request.input + s.request.output).value);
  prefilling_ = slot;
  gpu_since_ = backend_.now();
  gpu_ = Gpu::waits_for_fetch;
  tiers_.on_dequeued(slot);
  if (invalidates_) {
    truncate_stored(tiers_, slot, config_, s.request.truncated, s.request.history);
  }
  s.request.found = tiers_.admit(slot, key(s), s.request.history);
  if (preloading_ == slot) {
    preloading_ = kNoSession;
  }
  const Lookup& found = s.request.found;
  if (found.reused.value == 0 || (found.medium == Medium::hbm && !found.late)) {
    start_prefill(slot, false, 0);
  } else if (!found.late) {
    start_load(slot, found.medium);
  }
}

void Instance::start_load(SessionSlot slot, Medium medium) {
  Session& s = session(slot);
  const Bytes total = bytes_per_token_ * s.request.found.reused.value;
  const Bytes rest = total - std::min(total, s.preloaded);
  std::int64_t ready_layers = 0;
  loaded_bytes_[static_cast<std::size_t>(medium)] += rest;
  if (s.preloads && backend_.extend_transfer(s.load, rest)) {
    load_in_flight_ = true;
  } else {
    ready_layers = s.preloads ? std::min(config_.system.load.buffers, config_.model.layers) : 0;
    if (rest.value > 0) {
      s.load = backend_.start_transfer({.from = medium,
                                        .to = Medium::hbm,
                                        .bytes = rest,
                                        .key = key(s),
                                        .cookie = kOwnTransfer | slot});
      load_in_flight_ = true;
    } else {
      tiers_.end_load(slot);
    }
  }
  start_prefill(slot, load_in_flight_, ready_layers);
}

void Instance::start_prefill(SessionSlot slot, bool loads, std::int64_t ready_layers) {
  Session& s = session(slot);
  const RequestRecord& r = s.request;
  prefill_compute_ = backend_.start_prefill(
      {.part = {.added = r.history - r.found.reused + r.input, .past = r.found.reused},
       .load = loads ? s.load : TransferId{},
       .ready_layers = ready_layers,
       .wait_for_all_layers = config_.system.load.discipline == LoadDiscipline::blocking});
  gpu_ = Gpu::prefill;
}

void Instance::finish_load_transfer(SessionSlot slot) {
  Session& s = session(slot);
  s.load = TransferId{};
  load_in_flight_ = false;
  tiers_.end_load(slot);
}

/// Loads the first layers of the request that runs next into the read buffer, which is free.
void Instance::preload_next() {
  const SessionSlot slot = queue_[order_->next(*this).value & (queue_.size() - 1)];
  Session& s = session(slot);
  if (s.request.history.value == 0 || (invalidates_ && s.request.truncated.value > 0)) {
    return;
  }
  const std::optional<Medium> medium = tiers_.begin_preload(slot);
  if (!medium) {
    return;
  }
  const std::int64_t layers = std::min(config_.system.load.buffers, config_.model.layers);
  const Tokens tokens = std::min(s.request.history, tiers_.stored_tokens(slot));
  preloading_ = slot;
  s.preloads = true;
  s.preloaded = bytes_per_token_ * tokens.value / config_.model.layers * layers;
  loaded_bytes_[static_cast<std::size_t>(*medium)] += s.preloaded;
  s.load = backend_.start_transfer({.from = *medium,
                                    .to = Medium::hbm,
                                    .bytes = s.preloaded,
                                    .key = key(s),
                                    .cookie = kOwnTransfer | slot,
                                    .open = true});
}

void Instance::finish_prefill() {
  const SessionSlot slot = prefilling_;
  Session& s = session(slot);
  RequestRecord& r = s.request;
  const SimTime now = backend_.now();
  prefilling_ = kNoSession;
  gpu_ = Gpu::idle;
  r.first_token = now;
  r.prefill_compute = prefill_compute_;
  r.decode_share = SimDuration(0) - decode_per_request_;
  r.exposed_load = now - gpu_since_ - prefill_compute_;
  gpu_time_.prefill += prefill_compute_;
  gpu_time_.exposed_load += r.exposed_load;
  if (observer_ != nullptr) {
    observer_->on_gpu(GpuActivity::prefill, gpu_since_, now, r.session, 1);
  }
  const Tokens prompt = r.history + r.input;
  tiers_.begin_save(slot, key(s), prompt);
  if (r.output.value == 1) {
    finish_turn(slot);
    return;
  }
  s.finish_iteration = iteration_ + r.output.value - 1;
  running_.push_back({s.finish_iteration, next_sequence_++, slot});
  std::push_heap(running_.begin(), running_.end(), FinishesLater{});
  context_ += prompt + Tokens(1);
}

void Instance::start_decode() {
  gpu_ = Gpu::decode;
  gpu_since_ = backend_.now();
  backend_.start_decode({.batch = static_cast<std::int64_t>(running_.size()),
                         .context = context_,
                         .iterations = running_.front().finish_iteration - iteration_});
}

void Instance::finish_decode(std::int64_t iterations) {
  const SimTime now = backend_.now();
  const auto batch = static_cast<std::int64_t>(running_.size());
  gpu_ = Gpu::idle;
  gpu_time_.decode += now - gpu_since_;
  decode_per_request_ += (now - gpu_since_) / batch;
  if (observer_ != nullptr) {
    observer_->on_gpu(GpuActivity::decode, gpu_since_, now, -1, batch);
  }
  iteration_ += iterations;
  context_ += Tokens(iterations * batch);
  while (!running_.empty() && running_.front().finish_iteration == iteration_) {
    const SessionSlot slot = running_.front().slot;
    std::pop_heap(running_.begin(), running_.end(), FinishesLater{});
    running_.pop_back();
    const RequestRecord& r = session(slot).request;
    context_ -= r.history + r.input + r.output;
    finish_turn(slot);
  }
}

void Instance::finish_turn(SessionSlot slot) {
  Session& s = session(slot);
  RequestRecord& r = s.request;
  const SimTime now = backend_.now();
  r.finished = now;
  r.decode_share += decode_per_request_;
  last_finish_ = now;
  const Tokens total = r.history + r.input + r.output;
  occupy(-1, -(bytes_per_token_ * total.value));
  s.history = total;
  tiers_.save(slot, key(s), total);
  if (r.measured) {
    turn_metrics_.add(r);
  }
  if (observer_ != nullptr) {
    observer_->on_request(r);
  }
  ++finished_turns_;
  if (progress_ && finished_turns_ % kProgressInterval == 0) {
    progress_(finished_turns_);
  }
  if (s.next_turn < static_cast<std::int64_t>(s.turns.size())) {
    backend_.set_timer(now + s.turns[static_cast<std::size_t>(s.next_turn)].think, slot);
    return;
  }
  if (observer_ != nullptr) {
    observer_->on_session_end(key(s), now);
  }
  tiers_.forget(slot);
  free_sessions_.push_back(slot);
  --live_sessions_;
}

void Instance::occupy(std::int64_t slots, Bytes bytes) {
  const SimTime now = backend_.now();
  if (now != occupied_since_) {
    double share = 1;
    if (queue_length_ == 0) {
      const double slot_share =
          static_cast<double>(slots_used_) / static_cast<double>(config_.serving.slots);
      const double hbm_share =
          static_cast<double>(hbm_used_.value) / static_cast<double>(hbm_limit_.value);
      share = std::max(slot_share, hbm_share);
    }
    occupied_seconds_ += share * (now - occupied_since_).seconds();
    occupied_since_ = now;
  }
  slots_used_ += slots;
  hbm_used_ += bytes;
}

void Instance::begin_measurement() {
  measuring_ = true;
  occupy(0, Bytes(0));
  occupied_seconds_before_ = occupied_seconds_;
  measured_from_ = backend_.now();
  gpu_time_before_ = gpu_time_;
  for (std::size_t i = 0; i < tiers_.tier_count(); ++i) {
    tiers_before_.push_back(tiers_.counters(i));
  }
  if (on_measurement_begin) {
    on_measurement_begin();
  }
}

GpuTime Instance::measured_gpu_time() const {
  return {.prefill = gpu_time_.prefill - gpu_time_before_.prefill,
          .decode = gpu_time_.decode - gpu_time_before_.decode,
          .exposed_load = gpu_time_.exposed_load - gpu_time_before_.exposed_load,
          .exposed_save = gpu_time_.exposed_save - gpu_time_before_.exposed_save};
}

}  // namespace kvtier
