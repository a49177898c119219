#include "sim/backend/simulated_backend.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "sim/core/assert.hpp"
#include "sim/core/histogram.hpp"

namespace kvtier {
namespace {

/// Ticks that windows add to one iteration, number `iteration` from 0.
std::int64_t window_ticks_now(const TimingModel& timing, std::span<const Tokens> contexts,
                              std::int64_t iteration) {
  const std::span<const Tokens> windows = timing.windows();
  const std::span<const std::int64_t> slopes = timing.window_slopes(std::ssize(contexts));
  std::int64_t ticks = 0;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    Tokens within;
    for (const Tokens context : contexts) {
      within += std::min(context + Tokens(iteration), windows[i]);
    }
    ticks = detail::time_sum(ticks, detail::time_product(slopes[i], within.value));
  }
  return ticks;
}

bool computing_slows_links(const HardwareConfig& hardware) {
  return std::ranges::any_of(hardware.contention, [](const Contention& item) {
    return item.while_work == ContendingWork::compute && item.left < 1;
  });
}

}  // namespace

const char* to_string(Medium medium) {
  constexpr std::array<const char*, kMedia> names{"hbm", "dram", "cxl", "ssd"};
  return names[static_cast<std::size_t>(medium)];
}

BytesPerSecond load_bandwidth_beside_work(const HardwareConfig& hardware, Medium from, bool saves) {
  SharedLinks links(server_topology(hardware));
  const std::size_t load = links.topology().find_edge(from, Medium::hbm);
  links.set_computing(true, SimTime());
  static_cast<void>(links.start(load, Bytes(1), 0, SimTime()));
  if (saves) {
    const std::size_t save = links.topology().find_edge(Medium::hbm, from);
    static_cast<void>(links.start(save, Bytes(1), 0, SimTime()));
  }
  return BytesPerSecond(links.rate(load));
}

SimulatedBackend::SimulatedBackend(const HardwareConfig& hardware, std::int64_t model_layers,
                                   const TimingModel& timing, DecodeStepping stepping)
    : Backend(false, !timing.windows().empty()),
      timing_(&timing),
      layers_(model_layers),
      stepping_(stepping),
      gpu_is_watched_(stepping == DecodeStepping::per_iteration || wants_contexts() ||
                      computing_slows_links(hardware)),
      before_work_(hardware.efficiency.command_overhead / 2),
      after_work_(hardware.efficiency.command_overhead - before_work_),
      links_(server_topology(hardware)),
      transfers_land_(std::ranges::any_of(topology().edges, [](const Edge& edge) {
        return edge.latency.ns > 0 || !edge.slow_starts.empty();
      })) {}

Completion SimulatedBackend::wait() {
  Completion completion;
  while (!step_on(completion)) {
  }
  return completion;
}

bool SimulatedBackend::step(Completion& completion) { return step_on(completion); }

inline bool SimulatedBackend::step_on(Completion& completion) {
  SimTime transfer = links_.next_completion();
  bool lands = false;
  if (transfers_land_) [[unlikely]] {
    lands = next_tail_end_ < transfer;
    transfer = std::min(transfer, next_tail_end_);
  }
  const SimTime timer = next_timer_;
  const SimTime device = transfer < timer ? transfer : timer;
  if (gpu_done_ <= device) {
    KVTIER_ASSERT(gpu_done_ != kNever, "something is pending");
    advance_to(gpu_done_);
    if (gpu_is_watched_) [[unlikely]] {
      if (decode_goes_on()) {
        return false;
      }
      links_.set_computing(false, now_);
    }
    completion = finish_gpu();
    return true;
  }
  advance_to(device);
  if (timer < transfer) {
    completion = finish_timer();
    return true;
  }
  if (lands) [[unlikely]] {
    completion = finish_tail_latency();
    return true;
  }
  const SharedLinks::Pending& finished = links_.finish_next();
  if (finished.open) {
    return false;
  }
  if (!transfers_land_) [[likely]] {
    completion = end_transfer(finished.id, finished.cookie);
    return true;
  }
  begin_tail_latency({.at = now_ + edge_of(finished.id).beginning(finished.bytes),
                      .transfer = finished.id,
                      .cookie = finished.cookie});
  return false;
}

SimTime SimulatedBackend::next_time() {
  return std::min({links_.next_completion(), next_tail_end_, next_timer_, gpu_done_});
}

void SimulatedBackend::idle_until(SimTime time) {
  KVTIER_ASSERT(next_time() >= time, "what is due before has happened");
  advance_to(time);
}

inline Completion SimulatedBackend::end_transfer(TransferId transfer, std::uint64_t cookie) {
  if (gpu_ == Gpu::prefill && awaits_ > 0 && stop_awaiting(transfer)) {
    finish_load(now_, edge_of(transfer).latency);
  }
  return {CompletionKind::transfer, cookie};
}

void SimulatedBackend::begin_tail_latency(const TailLatency& tail) {
  const auto behind = std::ranges::upper_bound(in_tail_latency_, tail.at, {}, &TailLatency::at);
  in_tail_latency_.insert(behind, tail);
  next_tail_end_ = in_tail_latency_.front().at;
}

Completion SimulatedBackend::finish_tail_latency() {
  const TailLatency ended = in_tail_latency_.front();
  in_tail_latency_.erase(in_tail_latency_.begin());
  next_tail_end_ = in_tail_latency_.empty() ? kNever : in_tail_latency_.front().at;
  return end_transfer(ended.transfer, ended.cookie);
}

inline void SimulatedBackend::advance_to(SimTime next) {
  KVTIER_ASSERT(next >= now_, "time is monotone");
  now_ = next;
}

Completion SimulatedBackend::finish_timer() {
  const std::uint64_t payload = timers_.pop().payload;
  next_timer_ = timers_.empty() ? kNever : timers_.top().time;
  return {CompletionKind::timer, payload};
}

Completion SimulatedBackend::finish_gpu() {
  const Gpu done = std::exchange(gpu_, Gpu::idle);
  gpu_done_ = kNever;
  gpu_free_since_ = now_;
  if (later_timing_ != nullptr) [[unlikely]] {
    timing_ = std::exchange(later_timing_, nullptr);
  }
  if (done == Gpu::prefill) {
    return {CompletionKind::prefill, static_cast<std::uint64_t>(prefill_time_.total.ns)};
  }
  count_decode();
  passes_ += decode_end_iteration_;
  return {CompletionKind::decode, static_cast<std::uint64_t>(decode_end_iteration_)};
}

bool SimulatedBackend::pending() const {
  return gpu_ != Gpu::idle || links_.in_flight() > 0 || !in_tail_latency_.empty() ||
         !timers_.empty();
}

void SimulatedBackend::set_timer(SimTime at, std::uint64_t payload) {
  KVTIER_ASSERT(at >= now_, "a timer is not set in the past");
  timers_.push(at, 0, payload);
  next_timer_ = std::min(next_timer_, at);
}

TransferId SimulatedBackend::start_transfer(const TransferCommand& command) {
  const std::size_t edge = topology().find_edge(command.from, command.to);
  KVTIER_ASSERT(edge != Topology::kNoEdge, "a transfer goes along an edge");
  return links_.start(edge, command.bytes, command.cookie, now_,
                      command.open && !command.notify_when_drained);
}

bool SimulatedBackend::extend_transfer(TransferId transfer, Bytes bytes, Tokens, Tokens) {
  return links_.extend(transfer, bytes, now_);
}

Bytes SimulatedBackend::moved(Medium from, Medium to) const {
  const std::size_t edge = topology().find_edge(from, to);
  return edge != Topology::kNoEdge ? links_.moved(edge, now_) : Bytes(0);
}

Bytes SimulatedBackend::in_flight(Medium from, Medium to) const {
  const std::size_t edge = topology().find_edge(from, to);
  return edge != Topology::kNoEdge ? links_.left(edge, now_) : Bytes(0);
}

void SimulatedBackend::start_prefill(const PrefillCommand& command) {
  prefill_time_ = timing_->prefill(std::span(&command.part, 1));
  prefill_ = command;
  begin_prefill();
}

void SimulatedBackend::start_iteration(const IterationCommand& command) {
  const bool has_contexts = wants_contexts() && command.decode_batch > 0;
  KVTIER_ASSERT(!has_contexts || std::ssize(contexts_) == command.decode_batch,
                "the running requests have told their contexts");
  prefill_time_ = has_contexts ? timing_->iteration_of(command.parts, contexts_)
                               : timing_->iteration(command.parts, command.decode_batch,
                                                    command.decode_context);
  prefill_ = {.part = {}, .key = {}, .loads = command.loads, .schedule = command.schedule};
  begin_prefill();
  if (command.decode_batch > 0) {
    timing_use_.decode.add(prefill_time_.total.seconds(), prefill_time_.shares);
  }
  SimDuration decode;
  if (has_contexts) [[unlikely]] {
    const std::vector<DecodePiece>& pieces = timing_->decode(command.decode_batch);
    const Tokens context = command.decode_context;
    decode = SimDuration(detail::time_sum(piece_at(pieces, context).at(context),
                                          sum_window_ticks(*timing_, contexts_, 1)) /
                         kTicksPerNs);
  } else if (command.decode_batch > 0) {
    decode = timing_->decode_duration(command.decode_batch, command.decode_context);
  }
  iteration_time_ = {.compute = prefill_time_.total,
                     .decode = std::min(decode, prefill_time_.total)};
}

void SimulatedBackend::begin_prefill() {
  KVTIER_ASSERT(gpu_ == Gpu::idle, "one GPU command at a time");
  ++timing_use_.prefills;
  timing_use_.extrapolated_prefills += prefill_time_.extrapolated ? 1 : 0;
  timing_use_.prefill.add(prefill_time_.total.seconds(), prefill_time_.shares);
  gpu_ = Gpu::prefill;
  prefill_time_.total = prefill_time_.after(passes_before());
  passes_ = passes_before() + 1;
  gpu_started_ = now_ + before_work_;
  awaits_ = prefill_.loads.size();
  std::ranges::copy(prefill_.loads, awaited_.begin());
  prefill_.loads = {};
  loaded_done_ = SimTime();
  gpu_done_ = awaits_ > 0 ? kNever : gpu_started_ + prefill_time_.total + after_work_;
  if (gpu_is_watched_) [[unlikely]] {
    watch_prefill();
  }
}

std::int64_t SimulatedBackend::passes_before() const {
  return now_ - gpu_free_since_ < timing_->idle_gap() ? passes_ : 0;
}

/// A prefill that waits for all layers computes nothing until its loads have ended.
void SimulatedBackend::watch_prefill() {
  links_.set_computing(awaits_ == 0 || !prefill_.schedule.whole, now_);
}

void SimulatedBackend::finish_load(SimTime at, SimDuration latency) {
  const SimTime asked = gpu_started_ - before_work_;
  const PassTime pass{.layers = layers_,
                      .before = before_work_,
                      .total = prefill_time_.total,
                      .layer = prefill_time_.layer,
                      .after = after_work_};
  const SimDuration end = prefill_.schedule.end(pass, {.total = at - asked, .latency = latency});
  loaded_done_ = std::max(loaded_done_, asked + end);
  if (awaits_ == 0) {
    gpu_done_ = loaded_done_;
    if (gpu_is_watched_ && prefill_.schedule.whole) [[unlikely]] {
      watch_prefill();
    }
  }
}

inline bool SimulatedBackend::stop_awaiting(TransferId transfer) {
  for (std::size_t i = 0; i < awaits_; ++i) {
    if (awaited_[i] == transfer) {
      awaited_[i] = awaited_[--awaits_];
      return true;
    }
  }
  return false;
}

void SimulatedBackend::start_decode(const DecodeCommand& command) {
  KVTIER_ASSERT(gpu_ == Gpu::idle, "one GPU command at a time");
  KVTIER_ASSERT(command.batch > 0 && command.iterations > 0, "a decode has work");
  decode_ = command;
  pieces_ = &timing_->decode(command.batch);
  gpu_ = Gpu::decode;
  passes_ = passes_before();
  gpu_started_ = now_ + before_work_ + timing_->decode_warm_up(passes_);
  decode_end_iteration_ = command.iterations;
  if (gpu_is_watched_) [[unlikely]] {
    return watch_decode();
  }
  gpu_done_ = decode_end(decode_end_iteration_) + after_work_;
}

void SimulatedBackend::watch_decode() {
  links_.set_computing(true, now_);
  KVTIER_ASSERT(!wants_contexts() || std::ssize(contexts_) == decode_.batch,
                "the running requests have told their contexts");
  if (stepping_ == DecodeStepping::per_iteration) {
    reference_iteration_ = 0;
    reference_ticks_ = 0;
    step_iteration();
  } else if (wants_contexts()) {
    gpu_done_ = windowed_decode_end(decode_end_iteration_) + after_work_;
  } else {
    gpu_done_ = decode_end(decode_end_iteration_) + after_work_;
  }
}

/// Continues with the next iteration of a stepped decode, if there is one.
bool SimulatedBackend::decode_goes_on() {
  if (gpu_ != Gpu::decode || stepping_ != DecodeStepping::per_iteration ||
      ++reference_iteration_ >= decode_end_iteration_) {
    return false;
  }
  step_iteration();
  return true;
}

/// The first iteration that ends after now: one that ended at this instant has already been
/// followed by the next.
template <class End>
std::int64_t SimulatedBackend::first_ending_after_now(End end) const {
  std::int64_t low = 1;
  std::int64_t high = decode_end_iteration_;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (end(middle) > now_) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

void SimulatedBackend::stop_decode() {
  KVTIER_ASSERT(gpu_ == Gpu::decode, "a decode is running");
  if (stepping_ == DecodeStepping::per_iteration) {
    if (reference_iteration_ + 1 < decode_end_iteration_) {
      decode_end_iteration_ = reference_iteration_ + 1;
      gpu_done_ = gpu_done_ + after_work_;
    }
    return;
  }
  if (wants_contexts()) [[unlikely]] {
    decode_end_iteration_ =
        first_ending_after_now([this](std::int64_t n) { return windowed_decode_end(n); });
    gpu_done_ = windowed_decode_end(decode_end_iteration_) + after_work_;
    return;
  }
  decode_end_iteration_ = first_ending_after_now([this](std::int64_t n) { return decode_end(n); });
  gpu_done_ = decode_end(decode_end_iteration_) + after_work_;
}

std::int64_t SimulatedBackend::decode_ticks(std::int64_t iterations) const {
  return sum_decode_ticks(*pieces_, decode_.batch, decode_.context, iterations);
}

SimTime SimulatedBackend::decode_end(std::int64_t iterations) const {
  return gpu_started_ + SimDuration(decode_ticks(iterations) / kTicksPerNs);
}

SimTime SimulatedBackend::iteration_end(std::int64_t iteration) const {
  return wants_contexts() ? windowed_decode_end(iteration) : decode_end(iteration);
}

SimTime SimulatedBackend::windowed_decode_end(std::int64_t iterations) const {
  const std::int64_t ticks =
      detail::time_sum(decode_ticks(iterations), sum_window_ticks(*timing_, contexts_, iterations));
  return gpu_started_ + SimDuration(ticks / kTicksPerNs);
}

void SimulatedBackend::step_iteration() {
  const Tokens context = decode_.context + Tokens(decode_.batch * reference_iteration_);
  reference_ticks_ = detail::time_sum(reference_ticks_, piece_at(*pieces_, context).at(context));
  if (wants_contexts()) [[unlikely]] {
    reference_ticks_ = detail::time_sum(
        reference_ticks_, window_ticks_now(*timing_, contexts_, reference_iteration_));
  }
  gpu_done_ = gpu_started_ + SimDuration(reference_ticks_ / kTicksPerNs);
  if (reference_iteration_ + 1 == decode_end_iteration_) {
    gpu_done_ = gpu_done_ + after_work_;
  }
}

void SimulatedBackend::count_decode() {
  timing_use_.decode_iterations += decode_end_iteration_;
  timing_use_.extrapolated_decode_iterations +=
      count_extrapolated(*pieces_, decode_.batch, decode_.context, decode_end_iteration_);
  // Shares change slowly with the context.
  const DecodePiece& piece = piece_at(*pieces_, decode_.context);
  timing_use_.decode.add(SimDuration(piece.at(decode_.context) / kTicksPerNs).seconds() *
                             static_cast<double>(decode_end_iteration_),
                         piece.shares);
}

void SourceSeconds::add(double seconds, const TimeShares& shares) {
  all += seconds;
  roofline += seconds * shares.roofline;
  cached_law += seconds * shares.cached_law;
}

SourceSeconds& SourceSeconds::operator+=(const SourceSeconds& other) {
  all += other.all;
  roofline += other.roofline;
  cached_law += other.cached_law;
  return *this;
}

TimeShares SourceSeconds::shares() const {
  return all > 0 ? TimeShares{.roofline = roofline / all, .cached_law = cached_law / all}
                 : TimeShares{};
}

TimingUse& TimingUse::operator+=(const TimingUse& other) {
  prefills += other.prefills;
  extrapolated_prefills += other.extrapolated_prefills;
  decode_iterations += other.decode_iterations;
  extrapolated_decode_iterations += other.extrapolated_decode_iterations;
  prefill += other.prefill;
  decode += other.decode;
  return *this;
}

void SimulatedBackend::check_drained() const {
  KVTIER_ASSERT(timers_.empty(), "every timer has been reported");
  KVTIER_ASSERT(gpu_ == Gpu::idle, "every GPU command has been reported");
  KVTIER_ASSERT(links_.in_flight() == 0 && in_tail_latency_.empty(),
                "every transfer has been reported");
}

std::int64_t sum_window_ticks(const TimingModel& timing, std::span<const Tokens> contexts,
                              std::int64_t iterations) {
  const std::span<const Tokens> windows = timing.windows();
  const std::span<const std::int64_t> slopes = timing.window_slopes(std::ssize(contexts));
  std::int64_t ticks = 0;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    std::int64_t within = 0;
    for (const Tokens context : contexts) {
      const std::int64_t growing =
          std::clamp<std::int64_t>((windows[i] - context).value, 0, iterations);
      within += growing * context.value + growing * (growing - 1) / 2 +
                (iterations - growing) * windows[i].value;
    }
    ticks = detail::time_sum(ticks, detail::time_product(slopes[i], within));
  }
  return ticks;
}

std::int64_t sum_equal_decode_ticks(const TimingModel& timing, std::int64_t batch, Tokens context,
                                    std::int64_t iterations) {
  const std::int64_t ticks = sum_decode_ticks(timing.decode(batch), batch, context, iterations);
  if (timing.windows().empty()) {
    return ticks;
  }
  std::vector<Tokens> contexts(static_cast<std::size_t>(batch), Tokens(context.value / batch));
  for (std::int64_t i = 0; i < context.value % batch; ++i) {
    contexts[static_cast<std::size_t>(i)] += Tokens(1);
  }
  return detail::time_sum(ticks, sum_window_ticks(timing, contexts, iterations));
}

std::int64_t count_extrapolated(const std::vector<DecodePiece>& pieces, std::int64_t batch,
                                Tokens context, std::int64_t iterations) {
  // Iterations whose context is below `end`.
  const auto before = [&](Tokens end) {
    const std::int64_t tokens = std::max<std::int64_t>(0, (end - context).value);
    return std::min(iterations, (tokens + batch - 1) / batch);
  };
  std::int64_t count = 0;
  const DecodePiece* piece = &piece_at(pieces, context);
  const DecodePiece* const last = &pieces.back();
  for (std::int64_t begin = 0; begin < iterations; ++piece) {
    const std::int64_t end = piece < last ? before(piece[1].from) : iterations;
    count += piece->extrapolated ? end - begin : 0;
    begin = end;
  }
  return count;
}

std::int64_t sum_decode_ticks(const std::vector<DecodePiece>& pieces, std::int64_t batch,
                              Tokens context, std::int64_t iterations) {
  std::int64_t ticks = 0;
  std::size_t piece = static_cast<std::size_t>(&piece_at(pieces, context) - pieces.data());
  while (iterations > 0) {
    std::int64_t steps = iterations;
    if (piece + 1 < pieces.size()) {
      const std::int64_t to_next = (pieces[piece + 1].from - context).value;  // > 0
      steps = std::min(steps, (to_next + batch - 1) / batch);
    }
    const std::int64_t contexts = steps * context.value + batch * (steps * (steps - 1) / 2);
    ticks = detail::time_sum(ticks,
                             detail::time_sum(detail::time_product(steps, pieces[piece].base),
                                              detail::time_product(pieces[piece].slope, contexts)));
    context += Tokens(steps * batch);
    iterations -= steps;
    while (piece + 1 < pieces.size() && pieces[piece + 1].from <= context) {
      ++piece;
    }
  }
  return ticks;
}

}  // namespace kvtier
