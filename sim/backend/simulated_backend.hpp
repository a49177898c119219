#pragma once

#include <string_view>
#include <vector>

#include "hw/model/hardware.hpp"
#include "hw/timing/timing_model.hpp"
#include "sim/backend/backend.hpp"
#include "sim/backend/shared_links.hpp"
#include "sim/backend/topology.hpp"
#include "sim/core/event_queue.hpp"

namespace kvtier {

/// How decode iterations advance the clock. Both ways give the same times, to the nanosecond.
enum class DecodeStepping {
  closed_form,    // one jump to the next change of the batch
  per_iteration,  // one event per iteration: the reference
};

/// Seconds of passes, and their parts by source.
struct SourceSeconds {
  double all = 0;
  double roofline = 0;
  double cached_law = 0;

  void add(double seconds, const TimeShares& shares);
  SourceSeconds& operator+=(const SourceSeconds& other);
  [[nodiscard]] TimeShares shares() const;
};

/// Calls of the timing model, how many of their times are extrapolated, and the sources of times.
struct TimingUse {
  std::int64_t prefills = 0;
  std::int64_t extrapolated_prefills = 0;
  std::int64_t decode_iterations = 0;
  std::int64_t extrapolated_decode_iterations = 0;
  /// Passes with prompts, and passes with running requests. Some have both.
  SourceSeconds prefill;
  SourceSeconds decode;

  TimingUse& operator+=(const TimingUse& other);
};

/// Bandwidth of a load from this medium into HBM while the GPUs compute and, if `saves`, while KV
/// is saved from HBM to that medium.
[[nodiscard]] BytesPerSecond load_bandwidth_beside_work(const HardwareConfig& hardware, Medium from,
                                                        bool saves);

/// Runs the control plane's commands on a virtual clock, with durations from the timing model.
class SimulatedBackend : public Backend {
 public:
  /// Keeps a reference to `timing`. No transfer may use a medium that `hardware` does not have.
  SimulatedBackend(const HardwareConfig& hardware, std::int64_t model_layers,
                   const TimingModel& timing, DecodeStepping stepping);

  Completion wait() override;
  /// Time of the next event, which may report no completion; kNever if nothing is pending.
  [[nodiscard]] SimTime next_time();
  /// Processes the next event. False if it reports no completion: a stepped decode continues, or a
  /// transfer has moved its bytes but is open or in its latency.
  [[nodiscard]] bool step(Completion& completion);
  /// Advances the clock to this time; no event may be due before.
  void idle_until(SimTime time);
  [[nodiscard]] bool pending() const override;
  void set_timer(SimTime at, std::uint64_t payload) override;
  TransferId start_transfer(const TransferCommand& command) override;
  [[nodiscard]] bool extend_transfer(TransferId transfer, Bytes bytes, Tokens first,
                                     Tokens end) override;
  void start_prefill(const PrefillCommand& command) override;
  void start_iteration(const IterationCommand& command) override;
  [[nodiscard]] IterationTime iteration_time() const override { return iteration_time_; }
  void start_decode(const DecodeCommand& command) override;
  void stop_decode() override;
  void decode_contexts(std::span<const Tokens> contexts) override {
    contexts_.assign(contexts.begin(), contexts.end());
  }

  [[nodiscard]] const Topology& topology() const { return links_.topology(); }
  [[nodiscard]] LinkCounters link_counters(std::size_t link) const {
    return links_.counters(link, now_);
  }
  /// Empty counters for a link that the server does not have.
  [[nodiscard]] LinkCounters link_counters(std::string_view name) const {
    const std::optional<std::size_t> link = topology().find_link(name);
    return link ? link_counters(*link) : LinkCounters{};
  }
  /// Bytes that have moved from one medium to another.
  [[nodiscard]] Bytes moved(Medium from, Medium to) const;
  [[nodiscard]] Bytes in_flight(Medium from, Medium to) const override;
  [[nodiscard]] SimTime iteration_end(std::int64_t iteration) const override;
  /// Sets the timing model of GPU commands that start from now on. `timing` must outlive the
  /// backend.
  void set_timing(const TimingModel& timing) {
    (gpu_ == Gpu::idle ? timing_ : later_timing_) = &timing;
  }
  [[nodiscard]] const TimingUse& timing_use() const { return timing_use_; }
  /// Throws InvariantError unless every transfer, timer and GPU command has been reported.
  void check_drained() const;

 private:
  enum class Gpu { idle, prefill, decode };
  /// A transfer whose bytes have moved, during its latency.
  struct TailLatency {
    SimTime at;
    TransferId transfer;
    std::uint64_t cookie = 0;
  };

  [[nodiscard]] const Edge& edge_of(TransferId transfer) const {
    return topology().edges[links_.path_of(transfer)];
  }
  void advance_to(SimTime next);
  [[nodiscard]] bool step_on(Completion& completion);
  Completion end_transfer(TransferId transfer, std::uint64_t cookie);
  [[gnu::noinline]] void begin_tail_latency(const TailLatency& tail);
  [[gnu::noinline]] Completion finish_tail_latency();
  // Separate functions, so that `wait` needs fewer registers.
  [[gnu::noinline]] Completion finish_timer();
  [[gnu::noinline]] Completion finish_gpu();
  void begin_prefill();
  /// Number of passes between the last idle time and the pass that begins now.
  [[nodiscard]] std::int64_t passes_before() const;
  [[gnu::noinline]] void finish_load(SimTime at, SimDuration latency);
  /// Removes the transfer from the awaited loads. Returns whether the prefill waited for it.
  [[nodiscard]] bool stop_awaiting(TransferId transfer);
  /// Ticks from the start of the running decode to the end of its iteration number `iterations`.
  [[nodiscard]] std::int64_t decode_ticks(std::int64_t iterations) const;
  [[nodiscard]] SimTime decode_end(std::int64_t iterations) const;
  /// The same for a model with windows.
  [[nodiscard, gnu::noinline]] SimTime windowed_decode_end(std::int64_t iterations) const;
  template <class End>
  [[nodiscard]] std::int64_t first_ending_after_now(End end) const;
  void step_iteration();
  void count_decode();
  [[gnu::noinline]] void watch_prefill();
  void watch_decode();
  [[nodiscard]] bool decode_goes_on();

  const TimingModel* timing_;
  /// Timing model of the commands after the current one, if it differs.
  const TimingModel* later_timing_ = nullptr;
  std::int64_t layers_;
  DecodeStepping stepping_;
  /// The backend acts at each begin and end of GPU work: decode steps through its iterations, or
  /// links are slower while the GPU computes.
  bool gpu_is_watched_;
  /// Time from a command to its work, and from the end of its work to its report. Copies in both
  /// count as beside computing; the error is small.
  SimDuration before_work_;
  SimDuration after_work_;
  SharedLinks links_;
  /// Some edge has a latency.
  bool transfers_land_ = false;
  /// In order of their ends.
  std::vector<TailLatency> in_tail_latency_;
  SimTime next_tail_end_ = kNever;
  EventQueue timers_;
  SimTime next_timer_ = kNever;

  Gpu gpu_ = Gpu::idle;
  SimTime gpu_done_ = kNever;
  /// End of the last command, and the number of passes since the last idle time.
  SimTime gpu_free_since_;
  std::int64_t passes_ = 0;
  /// Start of the current command's work.
  SimTime gpu_started_;
  PrefillCommand prefill_;
  /// Loads of the current prefill that are in flight.
  std::array<TransferId, kMedia> awaited_{};
  std::size_t awaits_ = 0;
  /// End of the prefill, given the completed loads.
  SimTime loaded_done_;
  IterationTime iteration_time_;
  PrefillTime prefill_time_;
  DecodeCommand decode_;
  const std::vector<DecodePiece>* pieces_ = nullptr;
  /// Contexts of the running requests, for a model with windows.
  std::vector<Tokens> contexts_;
  std::int64_t decode_end_iteration_ = 0;
  std::int64_t reference_iteration_ = 0;
  std::int64_t reference_ticks_ = 0;
  TimingUse timing_use_;
};

/// Time of `iterations` iterations in ticks. The context starts at `context` and grows by `batch`
/// each iteration. A closed form per piece.
[[nodiscard]] std::int64_t sum_decode_ticks(const std::vector<DecodePiece>& pieces,
                                            std::int64_t batch, Tokens context,
                                            std::int64_t iterations);

/// Additional time of these iterations for tokens within the model's windows, in ticks. It is the
/// sum over windows of slope x sum over iterations and requests of min(context, window). Contexts
/// are those of the first iteration; each grows by 1 per iteration. The sum has a closed form for
/// each request, because its context passes the window at most once.
[[nodiscard]] std::int64_t sum_window_ticks(const TimingModel& timing,
                                            std::span<const Tokens> contexts,
                                            std::int64_t iterations);

/// sum_decode_ticks plus sum_window_ticks, for requests whose contexts add up to `context` and
/// differ by at most 1.
[[nodiscard]] std::int64_t sum_equal_decode_ticks(const TimingModel& timing, std::int64_t batch,
                                                  Tokens context, std::int64_t iterations);

/// Number of these iterations in extrapolated pieces.
[[nodiscard]] std::int64_t count_extrapolated(const std::vector<DecodePiece>& pieces,
                                              std::int64_t batch, Tokens context,
                                              std::int64_t iterations);

}  // namespace kvtier
