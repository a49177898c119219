#include "sim/device/device_backend.hpp"

#include <algorithm>
#include <future>
#include <thread>
#include <utility>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

constexpr std::int64_t kLanes = 6;

class Stopwatch {
 public:
  [[nodiscard]] std::chrono::steady_clock::time_point begin() const { return begin_; }
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

DeviceBackend::DeviceBackend(const ServingSetup& setup)
    : ServingBackend(setup, kLanes),
      device_(*setup.device),
      idle_gap_(setup.idle_gap),
      pass_end_(device_.make_event()) {
  for (std::int64_t i = 0; i <= layers_; ++i) {
    layer_ends_.push_back(device_.make_event());
  }
  const ProcessorShares processors = share_processors(device_, processors_of_thread());
  const auto make = [&](std::int64_t number, StreamKind kind, const Processors& where,
                        bool reaches_drive) {
    return std::make_unique<Lane>(
        Lane::Setup{.device = &device_,
                    .stream = kind,
                    .processors = where,
                    .storage = reaches_drive ? store_.open_engine() : nullptr,
                    .scratch = store_.scratch(number),
                    .failed = [this](std::exception_ptr failure) { fail(std::move(failure)); }});
  };
  std::int64_t number = 0;
  compute_ = make(number++, StreamKind::usual, processors.compute, false);
  loads_to_hbm_ = make(number++, StreamKind::background, processors.rest, true);
  ends_of_loads_ = make(number++, StreamKind::background, processors.rest, false);
  saves_ = make(number++, StreamKind::background, processors.rest, false);
  writes_ = make(number++, StreamKind::background, processors.rest, true);
  fetches_ = make(number++, StreamKind::background, processors.rest, true);
  here_.emplace(processors.rest);
  // By the stream of the run, because a device keeps memory for each stream.
  auto warmed = std::make_shared<std::packaged_task<void(const MoveLane&)>>(
      [this](const MoveLane& lane) { warm_up(*decoder_, store_.hbm(), *lane.stream); });
  std::future<void> done = warmed->get_future();
  compute_->add([warmed = std::move(warmed)](const MoveLane& its) { (*warmed)(its); });
  compute_->wake();
  try {
    done.get();
  } catch (const std::future_error&) {
    // The lane has failed before and drops its tasks.
    const std::lock_guard lock(mutex_);
    std::rethrow_exception(failure_);
  }
}

DeviceBackend::~DeviceBackend() {
  stopping_ = true;
  stop_decode_ = true;
  compute_.reset();
  loads_to_hbm_.reset();
  ends_of_loads_.reset();
  saves_.reset();
  writes_.reset();
  fetches_.reset();
}

// ---- Time and completions ----

SimTime DeviceBackend::wall() const {
  return SimTime(std::chrono::duration_cast<std::chrono::nanoseconds>(
                     std::chrono::steady_clock::now() - begin_)
                     .count());
}

void DeviceBackend::wake_lanes() {
  for (Lane* const lane :
       {compute_.get(), loads_to_hbm_.get(), fetches_.get(), saves_.get(), writes_.get()}) {
    lane->wake();
  }
}

void DeviceBackend::post(Completion completion) {
  {
    const std::lock_guard lock(mutex_);
    done_.push_back({completion, wall()});
  }
  changed_.notify_one();
}

void DeviceBackend::fail(std::exception_ptr failure) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_ = std::move(failure);
    }
    // After the failure is noted: a pass that waits for a load then fails, too.
    stopping_ = true;
  }
  changed_.notify_one();
}

Completion DeviceBackend::wait() {
  if (!begun_) {
    begin_ = std::chrono::steady_clock::now();
    begun_ = true;
  }
  wake_lanes();
  check_();
  std::unique_lock lock(mutex_);
  while (true) {
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    const SimTime timer = timers_.empty() ? kNever : timers_.top().time;
    if (!done_.empty() && done_.front().at <= timer) {
      const Done done = done_.front();
      done_.pop_front();
      --expected_;
      now_ = std::max(now_, done.at);
      if (done.completion.kind == CompletionKind::prefill) {
        const SimDuration compute(static_cast<std::int64_t>(done.completion.payload));
        iteration_time_ = {.compute = compute,
                           .decode = duration_from_seconds(decode_share_ * compute.seconds())};
      }
      return done.completion;
    }
    if (timer <= wall()) {
      now_ = std::max(now_, timer);
      return {CompletionKind::timer, timers_.pop().payload};
    }
    KVTIER_ASSERT(expected_ > 0 || timer != kNever, "something is pending");
    // Threads wake up late, and every arrival would be late. So the last quarter of a millisecond
    // is a busy wait, even if computing shares the processor.
    constexpr SimDuration kWatched(250000);
    const SimTime watch = timer == kNever ? kNever : timer - kWatched;
    if (watch <= wall()) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
      continue;
    }
    constexpr SimDuration kGlance(100000000);
    const SimTime until = std::min(watch, wall() + kGlance);
    changed_.wait_until(lock, begin_ + std::chrono::nanoseconds(until.ns));
    check_();
  }
}

bool DeviceBackend::pending() const {
  const std::lock_guard lock(mutex_);
  return expected_ > 0 || !timers_.empty();
}

void DeviceBackend::finish() {
  wake_lanes();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return transfers_.empty() || failure_; });
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    KVTIER_ASSERT(expected_ == 0 && timers_.empty(), "all was reported");
  }
  store_.check_invariants();
}

void DeviceBackend::set_timer(SimTime at, std::uint64_t payload) { timers_.push(at, 0, payload); }

// ---- Moves ----

TransferId DeviceBackend::start_transfer(const TransferCommand& command) {
  TransferId id;
  {
    const std::lock_guard lock(mutex_);
    do {
      id.value = next_transfer_++;
    } while (!id.valid() || transfers_.contains(id.value));
    Transfer& transfer = transfers_[id.value];
    transfer = {.command = command, .bytes = command.bytes, .moves = 1};
    transfer.command.pieces = {};
    if (command.to == Medium::hbm) {
      transfer.progress = std::make_shared<LoadProgress>();
      transfer.progress->first = command.open ? 0 : command.layer;
      for (std::int64_t i = 0; i < layers_; ++i) {
        transfer.progress->events.push_back(device_.make_event());
      }
    }
    expected_ += reports(transfer) ? 1 : 0;
  }
  start_move(id, command);
  return id;
}

Bytes DeviceBackend::in_flight(Medium from, Medium to) const {
  const std::lock_guard lock(mutex_);
  Bytes sum;
  for (const auto& [id, transfer] : transfers_) {
    if (transfer.command.from == from && transfer.command.to == to) {
      sum += transfer.bytes;
    }
  }
  return sum;
}

bool DeviceBackend::extend_transfer(TransferId transfer, Bytes bytes, Tokens first, Tokens end) {
  TransferCommand rest;
  {
    const std::lock_guard lock(mutex_);
    const auto found = transfers_.find(transfer.value);
    if (found == transfers_.end()) {
      return false;
    }
    KVTIER_ASSERT(found->second.command.open, "an open transfer is extended");
    expected_ += reports(found->second) ? 0 : 1;
    found->second.command = rest = rest_of(found->second.command, first, end);
    found->second.bytes += bytes;
    ++found->second.moves;
  }
  start_move(transfer, rest);
  return true;
}

Lane& DeviceBackend::lane_of(const TransferCommand& command) {
  if (command.to == Medium::hbm) {
    return *loads_to_hbm_;
  }
  if (command.from == Medium::hbm && command.to != Medium::ssd) {
    return *saves_;
  }
  return command.to > command.from ? *writes_ : *fetches_;
}

void DeviceBackend::start_move(TransferId id, const TransferCommand& command) {
  std::shared_ptr<LoadProgress> progress;
  {
    const std::lock_guard lock(mutex_);
    progress = transfers_.at(id.value).progress;
  }
  lane_of(command).add([this, id, move = store_.begin(command), progress](const MoveLane& lane) {
    if (progress != nullptr) {
      load(id, move, *progress, lane);
    } else {
      store_.move(move, lane);
      store_.end(move);
      end_move(id);
    }
  });
}

void DeviceBackend::load(TransferId id, const KvMove& move, LoadProgress& progress,
                         const MoveLane& lane) {
  const auto on_layer = [&](std::int64_t layer) {
    device_.record(*progress.events[static_cast<std::size_t>(layer)], *lane.stream);
    progress.queued = layer + 1;
  };
  if (move.from == Medium::ssd) {
    store_.load_from_drive(move, lane, on_layer);
  } else {
    for (std::int64_t layer = move.first_layer; layer < move.last_layer; ++layer) {
      store_.queue_layers(move, layer, layer + 1, *lane.stream);
      on_layer(layer);
    }
  }
  const std::shared_ptr<Event> end = device_.make_event();
  device_.record(*end, *lane.stream);
  ends_of_loads_->add([this, id, move, end](const MoveLane& ends) {
    end->synchronize();
    store_.verify(move, ends);
    store_.end(move);
    end_move(id);
  });
  ends_of_loads_->wake();
}

void DeviceBackend::end_move(TransferId id) {
  std::shared_ptr<LoadProgress> progress;
  {
    const std::lock_guard lock(mutex_);
    const auto found = transfers_.find(id.value);
    Transfer& transfer = found->second;
    if (--transfer.moves > 0) {
      return;
    }
    if (reports(transfer)) {
      done_.push_back({{CompletionKind::transfer, transfer.command.cookie}, wall()});
    }
    progress = transfer.progress;
    transfers_.erase(found);
  }
  changed_.notify_one();
  if (progress != nullptr) {
    progress->ended = true;
  }
}

// ---- Compute ----

void DeviceBackend::compute(Lane::Task task) {
  {
    const std::lock_guard lock(mutex_);
    ++expected_;
  }
  compute_->add(std::move(task));
}

void DeviceBackend::start_prefill(const PrefillCommand& command) {
  decode_share_ = 0;
  start_pass(pass_of(command), command.loads, command.schedule, {.parts = {command.part}});
}

void DeviceBackend::start_iteration(const IterationCommand& command) {
  DecoderPass pass = pass_of(command);
  decode_share_ =
      static_cast<double>(command.decode_batch) / static_cast<double>(pass.computed.size());
  start_pass(std::move(pass), command.loads, command.schedule,
             {.parts = {command.parts.begin(), command.parts.end()},
              .batch = command.decode_batch,
              .context = command.decode_context});
}

void DeviceBackend::start_pass(DecoderPass pass, std::span<const TransferId> loads,
                               const LayerSchedule& schedule, ComputedWork work) {
  Loads moving;
  {
    const std::lock_guard lock(mutex_);
    for (const TransferId id : loads) {
      if (const auto found = transfers_.find(id.value); found != transfers_.end()) {
        moving.push_back(found->second.progress);
      }
    }
  }
  compute([this, pass = std::move(pass), schedule, moving = std::move(moving),
           work = std::move(work)](const MoveLane& lane) {
    run_pass(pass, schedule, moving, work, lane);
  });
}

void DeviceBackend::run_pass(const DecoderPass& pass, const LayerSchedule& schedule,
                             const Loads& loads, ComputedWork work, const MoveLane& lane) {
  Stream& stream = *lane.stream;
  double not_queued = 0;  // seconds in which the host waited for loads
  const auto wait_for = [&](std::int64_t layer) {
    for (const std::shared_ptr<LoadProgress>& load : loads) {
      if (layer >= load->first) {
        const Stopwatch waiting;
        wait_until([&] { return load->queued > layer; });
        not_queued += waiting.seconds();
        device_.wait(stream, *load->events[static_cast<std::size_t>(layer)]);
      }
    }
  };
  const Stopwatch watch;
  device_.record(*layer_ends_[0], stream);
  if (schedule.whole) {
    wait_for(layers_ - 1);
  }
  decoder_->begin(pass.batch, stream);
  for (std::int64_t layer = 0; layer < layers_; ++layer) {
    if (!schedule.whole) {
      wait_for(layer);
    }
    decoder_->forward_layer(layer, store_.hbm().layer(layer), stream);
    device_.record(*layer_ends_[static_cast<std::size_t>(layer) + 1], stream);
  }
  decoder_->finish(stream);
  device_.record(*pass_end_, stream);
  work.submit_seconds = watch.seconds() - not_queued;
  stream.synchronize();
  const double seconds = watch.seconds();
  for (const std::shared_ptr<LoadProgress>& load : loads) {
    // The control plane gets the completion of a load before that of its prefill.
    wait_until([&] { return load->ended.load(); });
  }
  const double waited = stalled(schedule, loads);
  work.seconds = std::max(0.0, seconds - waited);
  work.device_seconds =
      std::max(0.0, device_.seconds_between(*layer_ends_[0], *pass_end_) - waited);
  store_.note_computed(pass.computed, lane);
  note_work(std::move(work), watch.begin());
  post({CompletionKind::prefill,
        static_cast<std::uint64_t>(duration_from_seconds(computed_.back().seconds).ns)});
}

void DeviceBackend::note_work(ComputedWork work, std::chrono::steady_clock::time_point begin) {
  const bool goes_on =
      computed_until_ && begin - *computed_until_ < std::chrono::nanoseconds(idle_gap_.ns);
  work.passes_before = goes_on ? passes_ : 0;
  passes_ = work.passes_before + work.iterations;
  computed_.push_back(std::move(work));
  computed_until_ = std::chrono::steady_clock::now();
}

/// A busy wait, because threads wake up late and this processor is idle. With few processors it
/// ends after some milliseconds.
void DeviceBackend::wait_until(const std::function<bool()>& reached) const {
  constexpr std::chrono::milliseconds kWatched(5);
  constexpr std::chrono::microseconds kGlance(50);
  const bool watches = has_processors_for_polling();
  const auto begin = std::chrono::steady_clock::now();
  while (!reached()) {
    if (stopping_) {
      throw DeviceError("a prefill waits for a load that will not complete");
    }
    if (watches || std::chrono::steady_clock::now() - begin < kWatched) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kGlance);
    }
  }
}

/// A layer waits from the end of the layer before it until its KV has arrived.
double DeviceBackend::stalled(const LayerSchedule& schedule, const Loads& loads) const {
  const auto before = [&](std::size_t end, std::int64_t layer) {
    double seconds = 0;
    for (const std::shared_ptr<LoadProgress>& load : loads) {
      if (layer >= load->first) {
        const Event& there = *load->events[static_cast<std::size_t>(layer)];
        seconds = std::max(seconds, device_.seconds_between(*layer_ends_[end], there));
      }
    }
    return seconds;
  };
  if (schedule.whole) {
    return before(0, layers_ - 1);
  }
  double seconds = 0;
  for (std::int64_t layer = 0; layer < layers_; ++layer) {
    seconds += before(static_cast<std::size_t>(layer), layer);
  }
  return seconds;
}

void DeviceBackend::start_decode(const DecodeCommand& command) {
  stop_decode_ = false;
  compute([this, command, running = decoding(command.batch)](const MoveLane& lane) {
    decode(command, running, lane);
  });
}

void DeviceBackend::decode(const DecodeCommand& command, const std::vector<EntryKey>& running,
                           const MoveLane& lane) {
  ComputedWork work{.batch = command.batch, .context = command.context, .iterations = 0};
  const Stopwatch watch;
  while (work.iterations < command.iterations && (work.iterations == 0 || !stop_decode_)) {
    DecoderPass pass;
    const Stopwatch submission;
    add_decode(pass, store_, running, decoder_->shape().vocabulary);
    device_.record(*layer_ends_[0], *lane.stream);
    decoder_->forward(pass.batch, store_.hbm(), *lane.stream);
    device_.record(*pass_end_, *lane.stream);
    work.submit_seconds += submission.seconds();
    lane.stream->synchronize();
    work.device_seconds += device_.seconds_between(*layer_ends_[0], *pass_end_);
    store_.note_computed(pass.computed, lane);
    ++work.iterations;
  }
  work.seconds = watch.seconds();
  const std::int64_t iterations = work.iterations;
  note_work(std::move(work), watch.begin());
  post({CompletionKind::decode, static_cast<std::uint64_t>(iterations)});
}

void DeviceBackend::stop_decode() { stop_decode_ = true; }

}  // namespace kvtier
