#include "sim/serving/requests.hpp"

#include <algorithm>
#include <memory>

#include "hw/model/model.hpp"
#include "sim/core/assert.hpp"
#include "sim/policy/routing.hpp"
#include "sim/serving/store_rules.hpp"

namespace kvtier {
namespace {

/// Timer of the next session's arrival; others are session slots.
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

Requests::Requests(const Setup& setup)
    : config_(*setup.config),
      topology_(server_topology(config_.hardware)),
      backend_(*setup.backend),
      source_(*setup.sessions),
      observer_(setup.observer),
      reports_iterations_(observer_ != nullptr && observer_->wants_iterations()),
      progress_(setup.progress),
      hbm_limit_(running_kv_capacity(*setup.config)),
      fitter_(*setup.config),
      is_logged_(is_logged(setup.config->workload)),
      turn_metrics_(load_rates(*setup.config)),
      finds_stationarity_(setup.config->workload.measure == Measure::automatic),
      dispatcher_(setup.dispatcher),
      load_(setup.load) {
  if (const auto& hbm = config_.system.tiers.hbm; config_.system.blocks && hbm) {
    load_block_ = hbm->block_size.value;
    found_block_ = static_cast<std::int32_t>(load_block_);
  }
  if (load_ != nullptr) {
    load_block_bytes_ = kv_bytes_per_token(config_.model) * load_block_;
    load_->kv_blocks_capacity = config_.system.blocks && config_.system.tiers.hbm
                                    ? store_rules(config_).pools.front().capacity
                                    : hbm_limit_ / load_block_bytes_;
  }
  const PolicyChoice& order = config_.system.order;
  order_ = known_policy(setup.registry->order, order.name).make(order.parameters);
}

// ---- Users ----

void Requests::begin() {
  if (source_.streams() != nullptr) {
    const Tokens block(load_block_);
    const std::optional<BlocksConfig>& blocks = config_.system.blocks;
    workload_.count_blocks(source_, block);
    without_limit_.emplace(*source_.streams(),
                           blocks && !blocks->partial_reuse ? block : Tokens(1));
    looks_up_on_admission_ = !blocks;
  }
  draw_session();
  if (has_drawn_) {
    backend_.set_timer(drawn_.arrival, kSessionTimer);
  }
}

void Requests::draw_session() {
  has_drawn_ = source_.next(drawn_);
  if (has_drawn_) {
    fitter_.fit_turns(drawn_, source_);
    workload_.add(drawn_);
    note_offered();
  }
}

/// The session drawn last, as part of the load that is offered.
void Requests::note_offered() {
  last_session_arrival_ = drawn_.arrival;
  if (workload_.parts() == 1) {
    first_arrival_ = drawn_.arrival;
  }
  SimTime due = drawn_.arrival;
  if (is_logged_) {
    for (std::size_t i = 1; i < drawn_.turns.size(); ++i) {
      due = due + drawn_.turns[i].think;
    }
  }
  last_due_ = std::max(last_due_, due);
}

inline SessionSlot Requests::free_slot() {
  if (free_sessions_.empty()) {
    sessions_.emplace_back();
    return static_cast<SessionSlot>(sessions_.size() - 1);
  }
  const SessionSlot slot = free_sessions_.back();
  free_sessions_.pop_back();
  return slot;
}

SessionSlot Requests::begin_session() {
  const SessionSlot slot = free_slot();
  if (finds_stationarity_ && stationarity_.add(static_cast<std::int64_t>(live_sessions_))) {
    is_stationary_ = true;
    measurement_moves_ = true;
  }
  ++live_sessions_;
  Session& s = sessions_[slot];
  s.turns.swap(drawn_.turns);
  s.contents.swap(drawn_.contents);
  s.next_turn = 0;
  s.shared_prompt = drawn_.shared_prompt;
  s.priority = drawn_.priority;
  s.identity = drawn_.identity();
  s.began = drawn_.arrival;
  s.due = drawn_.arrival;
  s.history = s.shared_prompt.tokens;
  s.request.session = drawn_.id;
  draw_session();
  if (has_drawn_) {
    backend_.set_timer(drawn_.arrival, kSessionTimer);
  } else {
    measurement_moves_ = true;
  }
  return slot;
}

SessionSlot Requests::begin_turn(std::uint64_t timer) {
  if (dispatcher_ != nullptr) [[unlikely]] {
    return begin_dispatched(static_cast<SessionSlot>(timer));
  }
  const SessionSlot slot =
      timer == kSessionTimer ? begin_session() : static_cast<SessionSlot>(timer);
  Session& s = sessions_[slot];
  Turn& turn = s.turns[static_cast<std::size_t>(s.next_turn)];
  const Tokens shared = s.shared_prompt.tokens;
  Tokens truncated;
  if (s.contents.empty()) [[likely]] {
    truncated = fitter_.fit_history(s.history, shared, turn);
  } else {
    const TurnContent& content = s.contents[static_cast<std::size_t>(s.next_turn)];
    s.history = content.prompt.tokens - turn.user;
  }
  RequestRecord& r = s.request;
  const std::int64_t id = r.session;
  std::construct_at(&r);  // an assignment would make it elsewhere and copy it
  r.session = id;
  r.turn = s.next_turn;
  r.arrived = backend_.now();
  r.history = s.history;
  r.input = turn.user;
  r.output = turn.assistant;
  r.truncated = truncated;
  r.shared = shared;
  r.shared_prompt = shared.value > 0 ? s.shared_prompt.id : -1;
  r.block = found_block_;
  if (++s.next_turn < std::ssize(s.turns)) {
    s.think = s.turns[static_cast<std::size_t>(s.next_turn)].think;
  }
  ++begun_turns_;
  return slot;
}

TurnTokens Requests::tokens(SessionSlot slot) const {
  const Session& s = sessions_[slot];
  const RequestRecord& r = s.request;
  return {.shared_prompt = s.shared_prompt,
          .named = s.contents.empty()       ? TurnContent{}
                   : dispatcher_ != nullptr ? s.contents.front()
                                            : s.contents[static_cast<std::size_t>(r.turn)],
          .first = r.turn == 0,
          .history = r.history,
          .input = r.input,
          .output = r.output,
          .cut = r.truncated};
}

/// Sets the timer of the turn after the one that ends at `end`.
void Requests::set_next_arrival(SessionSlot slot, SimTime end) {
  Session& s = sessions_[slot];
  if (is_logged_) [[unlikely]] {
    s.due = s.due + s.think;
    backend_.set_timer(std::max(end, s.due), slot);
  } else {
    backend_.set_timer(end + s.think, slot);
  }
}

// ---- Requests that a dispatcher sends ----

SessionSlot Requests::dispatch(const DispatchedRequest& request) {
  const SessionSlot slot = request.slot ? *request.slot : free_slot();
  Session& s = sessions_[slot];
  s.request = request.record;
  s.shared_prompt = request.shared_prompt;
  s.priority = request.priority;
  if (request.content.prompt.stream.valid()) {
    s.contents.assign(1, request.content);
  }
  if (slot >= dispatched_.size()) {
    dispatched_.resize(static_cast<std::size_t>(slot) + 1);
  }
  dispatched_[slot] = {.number = request.number,
                       .cached = Tokens(0),
                       .keeps_kv = request.keeps_kv,
                       .fetches_kv = request.fetches_kv};
  if (!request.begins_session) {
    backend_.set_timer(backend_.now(), slot);
  } else {
    // As if users were here: the timer of a session is set when the one before it has come.
    beginning_.push_back(slot);
    if (beginning_.size() == 1) {
      backend_.set_timer(backend_.now(), slot);
    }
  }
  ++arriving_;
  count_dispatched(s.request);
  return slot;
}

void Requests::count_dispatched(const RequestRecord& request) {
  ++load_->requests;
  ++load_->waiting;
  const Tokens prompt = request.history + request.input;
  load_->prefill_tokens += prompt;
  load_->uncached_prefill_tokens += prompt;
  load_->prefill_blocks += load_blocks(request);
}

SessionSlot Requests::begin_dispatched(SessionSlot slot) {
  if (!beginning_.empty() && beginning_.front() == slot) {
    beginning_.pop_front();
    if (!beginning_.empty()) {
      backend_.set_timer(backend_.now(), beginning_.front());
    }
  }
  --arriving_;
  ++begun_turns_;
  sessions_[slot].request.arrived = backend_.now();
  return slot;
}

void Requests::note_cached(SessionSlot slot, Tokens tokens) {
  dispatched_[slot].cached = tokens;
  load_->uncached_prefill_tokens -= tokens;
}

void Requests::tell_first_token(SessionSlot slot) {
  const RequestRecord& r = request(slot);
  const Tokens prompt = r.history + r.input;
  load_->prefill_tokens -= prompt;
  load_->uncached_prefill_tokens -= prompt - dispatched_[slot].cached;
  load_->prefill_blocks -= load_blocks(r);
  load_->decode_blocks += load_blocks(r);
  dispatcher_->on_first_token(dispatched_[slot].number);
}

bool Requests::finish_dispatched(SessionSlot slot) {
  RequestRecord& r = sessions_[slot].request;
  r.finished = last_finish_ = backend_.now();
  r.measured = r.measured && r.admitted >= measured_.from;
  if (r.measured) {
    served_.add(r, !fetches_kv(slot));
  }
  ++finished_turns_;
  --load_->requests;
  load_->decode_blocks -= load_blocks(r);
  // No reference outlives this call: it may dispatch requests to this instance.
  const bool session_ended = dispatcher_->on_finished(dispatched_[slot].number, r);
  if (session_ended || !stores_sessions(config_.system)) {
    free_sessions_.push_back(slot);
    return true;
  }
  return false;
}

// ---- Iterations ----

void Requests::add_to_iteration(SessionSlot slot, Tokens prompt) {
  const RequestRecord& r = request(slot);
  iteration_.parts.push_back({.session = r.session, .turn = r.turn, .prompt = prompt});
}

void Requests::report_iterations(SimTime begin, std::int64_t iterations) {
  for (std::int64_t i = 1; i <= iterations; ++i) {
    iteration_.begin = begin;
    iteration_.end = i < iterations ? backend_.iteration_end(i) : backend_.now();
    observer_->on_iteration(iteration_);
    iteration_.preempted.clear();
    begin = iteration_.end;
  }
  iteration_.parts.clear();
}

void Requests::preempted(SessionSlot slot) {
  RequestRecord& r = request(slot);
  ++r.preemptions;
  if (reports_iterations_) {
    iteration_.preempted.push_back({.session = r.session, .turn = r.turn});
  }
}

// ---- Ends ----

bool Requests::finish(SessionSlot slot) {
  if (dispatcher_ != nullptr) [[unlikely]] {
    return finish_dispatched(slot);
  }
  Session& s = sessions_[slot];
  RequestRecord& r = s.request;
  const SimTime now = backend_.now();
  r.finished = now;
  last_finish_ = now;
  s.history = r.history + r.input + r.output;
  r.measured = r.measured && r.admitted >= measured_.from;
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
  if (s.next_turn < std::ssize(s.turns)) {
    set_next_arrival(slot, now);
    return false;
  }
  session_durations_.add(now - s.began);
  if (observer_ != nullptr) {
    observer_->on_session_end(key(slot), now);
  }
  free_sessions_.push_back(slot);
  --live_sessions_;
  return true;
}

void Requests::check_finished() const {
  KVTIER_ASSERT(
      begun_turns_ == finished_turns_ && (is_dispatched() || finished_turns_ == workload_.turns()),
      "every turn finished");
  KVTIER_ASSERT(measured_gpu_time().busy() <= measured_.span(),
                "GPUs are busy for no longer than they are measured");
  KVTIER_ASSERT(queue_length_ == 0 && suspended_ == 0 && slots_used_ == 0 && hbm_used_.value == 0,
                "nothing is left running");
}

// ---- The queue ----

EntryId Requests::entry_at(QueuePosition position) const {
  const SessionSlot slot = waiting(position);
  return slot == kNoSession || stored_ == nullptr ? kNoEntry : stored_->needed_entry(slot);
}

Placement Requests::placement_at(QueuePosition position) const {
  return stored_ == nullptr ? Placement::none : stored_->placement(waiting(position));
}

FoundTokens Requests::find(QueuePosition position) const {
  return stored_ == nullptr ? FoundTokens{} : stored_->find(waiting(position));
}

Tokens Requests::common_prefix(QueuePosition a, QueuePosition b) const {
  return stored_ == nullptr ? Tokens(0) : stored_->common_prefix(waiting(a), waiting(b));
}

bool Requests::waiting_at(QueuePosition position) const {
  return position >= first_ && position < end_ && waiting(position) != kNoSession;
}

QueuePosition Requests::enqueue(SessionSlot slot) {
  if (end_.value - first_.value > queue_mask_) {
    std::vector<SessionSlot> larger(2 * queue_.size(), kNoSession);
    for (std::uint64_t at = first_.value; at < end_.value; ++at) {
      larger[at & (larger.size() - 1)] = queue_[at & queue_mask_];
    }
    queue_.swap(larger);
    queue_mask_ = queue_.size() - 1;
  }
  const QueuePosition position = end_;
  queue_[position.value & queue_mask_] = slot;
  ++end_.value;
  ++queue_length_;
  report_queue();
  return position;
}

SessionSlot Requests::take(QueuePosition position) {
  KVTIER_ASSERT(waiting_at(position), "an order policy names a waiting request");
  const SessionSlot slot = waiting(position);
  leave_queue(position);
  return slot;
}

void Requests::admitted(SessionSlot slot) {
  if (dispatcher_ != nullptr) [[unlikely]] {
    dispatcher_->on_admitted(dispatched_[slot].number);
  } else if (measurement_moves_) [[unlikely]] {
    move_measurement();
  }
  ++admitted_turns_;
  request(slot).admitted = backend_.now();
  request(slot).measured = measuring_;
  if (looks_up_on_admission_) [[unlikely]] {
    look_up_without_limit(slot);
  }
  // Whoever is asked about after the next one arrived long ago: its record is in no cache.
  if (const QueuePosition soon{first_.value + 1}; waiting_at(soon)) {
    __builtin_prefetch(&request(waiting(soon)));
    __builtin_prefetch(&request(waiting(soon)).found);
  }
}

void Requests::leave_queue(QueuePosition position) {
  vacate(position);
  --queue_length_;
  report_queue();
}

void Requests::vacate(QueuePosition position) {
  queue_[position.value & queue_mask_] = kNoSession;
  while (first_ < end_ && waiting(first_) == kNoSession) {
    ++first_.value;
  }
}

void Requests::hide(QueuePosition position) {
  hidden_.emplace_back(position, waiting(position));
  vacate(position);
}

void Requests::show_hidden() {
  for (const auto& [position, slot] : hidden_) {
    queue_[position.value & queue_mask_] = slot;
    first_ = std::min(first_, position);
  }
  hidden_.clear();
}

void Requests::set_suspended(std::size_t requests) {
  suspended_ = requests;
  report_queue();
}

void Requests::report_queue() {
  const std::size_t length = queue_length_ + suspended_;
  queue_trend_.set_length(length, backend_.now());
  if (load_ != nullptr) [[unlikely]] {
    load_->waiting = static_cast<std::int64_t>(length) + arriving_;
  }
  if (observer_ != nullptr) {
    observer_->on_queue(length, backend_.now());
  }
}

// ---- Counting ----

void Requests::occupy(std::int64_t slots, Bytes hbm) {
  const SimTime now = backend_.now();
  if (now != occupied_since_) {
    const double seconds = (now - occupied_since_).seconds();
    occupied_.slots +=
        seconds * static_cast<double>(slots_used_) / static_cast<double>(config_.serving.slots);
    occupied_.kv_memory +=
        seconds * static_cast<double>(hbm_used_.value) / static_cast<double>(hbm_limit_.value);
    occupied_since_ = now;
  }
  if (slots != 0) {
    slots_used_ += slots;
    queue_trend_.set_in_service(static_cast<std::size_t>(slots_used_), now);
  }
  hbm_used_ = hbm;
  if (load_ != nullptr) [[unlikely]] {
    load_->kv_blocks = hbm / load_block_bytes_;
  }
}

SimDuration Requests::measured_since(SimTime since) const {
  const SimTime from = std::max(since, measured_.from);
  const SimTime to = measuring_ ? backend_.now() : std::min(backend_.now(), measured_.to);
  return std::max(SimDuration(), to - from);
}

void Requests::count_gpu(SimTime since, const GpuTime& time) {
  gpu_time_ += time;
  const SimDuration elapsed = backend_.now() - since;
  const SimDuration measured = measured_since(since);
  if (measured == elapsed) [[likely]] {
    measured_gpu_time_ += time;
  } else if (measured.ns > 0) {
    measured_gpu_time_ += time.scaled(measured, elapsed);
  }
}

void Requests::end_command(SimDuration elapsed, SimDuration waited, WaitCause way) {
  const SimTime now = backend_.now();
  waits_.end_command(elapsed, waited, way, now);
  if (waited.ns > 0) {
    const SimDuration measured = measured_since(now - elapsed);
    measured_load_waits_[way] += SimDuration(
        static_cast<std::int64_t>(static_cast<Int128>(waited.ns) * measured.ns / elapsed.ns));
  }
}

void Requests::look_up_without_limit(SessionSlot slot) {
  if (request(slot).preemptions > 0) [[unlikely]] {
    return;
  }
  if (dispatcher_ != nullptr) [[unlikely]] {
    dispatcher_->on_looked_up(dispatched_[slot].number);
  } else if (without_limit_) {
    const TurnContent content = tokens(slot).named;
    const Tokens found = without_limit_->serve(content.prompt, content.whole);
    if (measuring_) {
      hits_without_limit_.add(content.prompt.tokens, {found}, Tokens(found_block_));
    }
  }
}

/// Before an admission: no command of the GPUs is cut in two by a border of the measured part.
void Requests::move_measurement() {
  if (admitted_turns_ < config_.workload.warmup_turns) {
    return;
  }
  const bool is_over = measured_.stationary && !has_drawn_;
  if (!measuring_ && !is_over) {
    begin_measurement();
  } else if (is_stationary_ && has_drawn_ && !measured_.stationary) {
    if (observer_ != nullptr) {
      observer_->on_measurement_restart();
    }
    begin_measurement();
  } else if (is_over) {
    end_measurement(backend_.now());
  }
  measurement_moves_ = false;
}

void Requests::begin_measurement() {
  measuring_ = true;
  occupy(0, hbm_used_);
  occupied_before_ = occupied_;
  waits_.settle(backend_.now());
  waits_before_ = waits_.requests();
  measured_load_waits_ = {};
  measured_ = {.from = backend_.now(),
               .to = backend_.now(),
               .stationary = is_stationary_ && has_drawn_,
               .sessions_before = workload_.parts() - (has_drawn_ ? 1 : 0)};
  turn_metrics_ = TurnMetrics(load_rates(config_));
  served_ = {};
  measured_gpu_time_ = {};
  hits_without_limit_ = {};
  if (on_measurement_begin) {
    on_measurement_begin();
  }
}

void Requests::end_measurement(SimTime at) {
  if (!measuring_) {
    return;
  }
  occupy(0, hbm_used_);
  measuring_ = false;
  measured_.to = at;
  occupied_after_ = occupied_;
  waits_.settle(backend_.now());
  waits_after_ = waits_.requests();
  if (on_measurement_end) {
    on_measurement_end();
  }
}

}  // namespace kvtier
