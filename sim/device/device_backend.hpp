#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "sim/core/event_queue.hpp"
#include "sim/device/lane.hpp"
#include "sim/device/serving_backend.hpp"

namespace kvtier {

/// One prefill, iteration with prompts, or run of decode iterations, and its time without waiting
/// for KV.
struct ComputedWork {
  std::vector<PrefillPart> parts{};
  std::int64_t batch = 0;
  /// Context of the first iteration.
  Tokens context;
  std::int64_t iterations = 1;
  double seconds = 0;
  /// The host's time until all work was queued, without waits for KV; it overlaps with the
  /// device's time, from the first work to the end of the last.
  double submit_seconds = 0;
  double device_seconds = 0;
  /// Passes between the last idle time and this work.
  std::int64_t passes_before = 0;
};

/// Runs the control plane's commands on a device, by the wall clock. A decoder computes; copies and
/// files move KV, each kind of move in its own thread. A failure ends the run: `wait` throws the
/// DeviceError.
class DeviceBackend final : public ServingBackend {
 public:
  /// Keeps references. If the host is the device, computing and all other work, with the calling
  /// thread, share the processors (share_processors). Throws DeviceError if memory is short or the
  /// drive cannot be used.
  explicit DeviceBackend(const ServingSetup& setup);
  ~DeviceBackend() override;

  Completion wait() override;
  [[nodiscard]] bool pending() const override;
  void set_timer(SimTime at, std::uint64_t payload) override;
  TransferId start_transfer(const TransferCommand& command) override;
  [[nodiscard]] bool extend_transfer(TransferId transfer, Bytes bytes, Tokens first,
                                     Tokens end) override;
  [[nodiscard]] Bytes in_flight(Medium from, Medium to) const override;
  void start_prefill(const PrefillCommand& command) override;
  void start_iteration(const IterationCommand& command) override;
  /// Decode's share of the time is its share of the tokens.
  [[nodiscard]] IterationTime iteration_time() const override { return iteration_time_; }
  void start_decode(const DecodeCommand& command) override;
  void stop_decode() override;

  /// Waits for transfers whose completion is not reported. Throws InvariantError if a completion or
  /// timer is pending, or if slots and entries do not agree.
  void finish();
  /// All work in order; call after `finish`.
  [[nodiscard]] std::span<const ComputedWork> computed() const { return computed_; }

 private:
  /// The layers of a load that have been queued to HBM, with an event after each.
  struct LoadProgress {
    std::vector<std::unique_ptr<Event>> events;
    /// Layers before this one are no part of the load.
    std::int64_t first = 0;
    std::atomic<std::int64_t> queued = 0;
    /// Its completion has been posted.
    std::atomic<bool> ended = false;
  };
  using Loads = std::vector<std::shared_ptr<LoadProgress>>;
  struct Transfer {
    /// The command without its pieces.
    TransferCommand command;
    /// Those of the extension, too.
    Bytes bytes;
    /// Moves that have not ended.
    int moves = 0;
    /// Null unless it is a load.
    std::shared_ptr<LoadProgress> progress{};
  };
  /// Whether the end of the transfer is reported as a completion.
  [[nodiscard]] static bool reports(const Transfer& transfer) {
    return !transfer.command.open || transfer.command.notify_when_drained;
  }
  struct Done {
    Completion completion;
    SimTime at;
  };

  [[nodiscard]] SimTime wall() const;
  /// Starts the commanded work of all threads, computing first, because a thread that moves KV may
  /// take the processor of the commanding thread.
  void wake_lanes();
  /// Queues GPU work, which ends with a completion.
  void compute(Lane::Task task);
  void post(Completion completion);
  void fail(std::exception_ptr failure);
  void start_move(TransferId id, const TransferCommand& command);
  [[nodiscard]] Lane& lane_of(const TransferCommand& command);
  void end_move(TransferId id);
  /// Queues the copies of a load, and lets another lane report its end.
  void load(TransferId id, const KvMove& move, LoadProgress& progress, const MoveLane& lane);
  /// Queues a pass that waits for these loads, layer by layer or whole. Loads that have ended are
  /// ignored. The stream waits for copies. The host waits only for the drive, and for the
  /// submission of copies.
  void start_pass(DecoderPass pass, std::span<const TransferId> loads,
                  const LayerSchedule& schedule, ComputedWork work);
  void run_pass(const DecoderPass& pass, const LayerSchedule& schedule, const Loads& loads,
                ComputedWork work, const MoveLane& lane);
  /// Waits on the host until a load has come so far; throws if it never will.
  void wait_until(const std::function<bool()>& reached) const;
  /// Seconds that layers waited for their KV.
  [[nodiscard]] double stalled(const LayerSchedule& schedule, const Loads& loads) const;
  /// Records `work`, which ends now, as the last work of the compute thread.
  void note_work(ComputedWork work, std::chrono::steady_clock::time_point begin);
  void decode(const DecodeCommand& command, const std::vector<EntryKey>& running,
              const MoveLane& lane);

  Device& device_;
  /// After this time without work, a pass is cold.
  SimDuration idle_gap_;
  /// Keeps the calling thread on its processors while the backend exists.
  std::optional<StayOn> here_;
  std::vector<std::unique_ptr<Event>> layer_ends_;
  std::unique_ptr<Event> pass_end_;

  std::chrono::steady_clock::time_point begin_{};
  bool begun_ = false;
  EventQueue timers_;
  /// Decode's share of the tokens of the current or last iteration.
  double decode_share_ = 0;
  IterationTime iteration_time_;
  std::atomic<bool> stop_decode_ = false;
  /// A lane failed, or the run ends early. Pending work will not complete.
  std::atomic<bool> stopping_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, Transfer> transfers_;
  std::uint32_t next_transfer_ = 0;
  std::deque<Done> done_;
  /// Completions that are still to come.
  std::int64_t expected_ = 0;
  std::exception_ptr failure_;
  /// Members of the compute thread.
  std::vector<ComputedWork> computed_;
  std::optional<std::chrono::steady_clock::time_point> computed_until_;
  /// Passes since the last idle time, up to `computed_until_`.
  std::int64_t passes_ = 0;

  /// Last members, so that their threads end before the members that they use.
  std::unique_ptr<Lane> compute_;
  std::unique_ptr<Lane> loads_to_hbm_;
  /// Waits for copies of loads, so that the next load is queued ahead.
  std::unique_ptr<Lane> ends_of_loads_;
  std::unique_ptr<Lane> saves_;
  std::unique_ptr<Lane> writes_;
  std::unique_ptr<Lane> fetches_;
};

}  // namespace kvtier
