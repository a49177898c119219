#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sim/serving/batcher.hpp"
#include "sim/serving/requests.hpp"
#include "sim/store/decisions.hpp"

namespace kvtier {

/// One serving instance: the control plane over a backend. Waits for completions and tells its
/// parts of them: the requests, and the batcher that the config's batching mode names. Reads no
/// clock and no device: the backend is all it knows of time.
class Instance final {
 public:
  struct Setup {
    const RunConfig* config = nullptr;
    const PolicyRegistry* registry = nullptr;
    Backend* backend = nullptr;
    SessionSource* sessions = nullptr;
    RunObserver* observer = nullptr;
    DecisionObserver* decisions = nullptr;
    /// A system of blocks keeps them in a plain store of one object per block: the same, slowly.
    bool plain_store = false;
    /// Its stored KV, for a system of blocks; null: a store of its own. It outlives the instance.
    Store* store = nullptr;
    /// Called now and then with the number of finished turns; may throw to end the run.
    std::function<void(std::int64_t)> progress;
    /// For an instance of a cluster: the sender of its requests, and its load.
    Dispatcher* dispatcher = nullptr;
    InstanceLoad* load = nullptr;
  };
  explicit Instance(const Setup& setup);

  /// Runs every session to its end and every transfer to completion. Throws ConfigError for a turn
  /// longer than the context window (where that is an error).
  void run();
  /// A completion of the backend; `run` calls this for all of them.
  void on_completion(Completion completion);

  [[nodiscard]] const RunConfig& config() const { return config_; }
  [[nodiscard]] const TurnMetrics& turns() const { return requests_.turns(); }
  [[nodiscard]] const WorkloadStatistics& workload() const { return requests_.workload(); }
  [[nodiscard]] std::int64_t finished_turns() const { return requests_.finished_turns(); }
  [[nodiscard]] const Batcher& batcher() const { return *batcher_; }
  [[nodiscard]] Batcher& batcher() { return *batcher_; }
  [[nodiscard]] Requests& requests() { return requests_; }
  [[nodiscard]] const Requests& requests() const { return requests_; }

  [[nodiscard]] const MeasuredPart& measured() const { return requests_.measured(); }
  /// See Requests::offered_span.
  [[nodiscard]] SimDuration offered_span() const { return requests_.offered_span(); }
  [[nodiscard]] const SessionDurations& session_durations() const {
    return requests_.session_durations();
  }
  [[nodiscard]] GpuTime measured_gpu_time() const { return requests_.measured_gpu_time(); }
  [[nodiscard]] const GpuTime& total_gpu_time() const { return requests_.gpu_time(); }
  /// Tier counters when the measured part began.
  [[nodiscard]] const std::vector<TierCounters>& tiers_before() const { return tiers_before_; }
  /// Tier counters when it ended: transfers may go on afterwards, and are not part of it.
  [[nodiscard]] const std::vector<TierCounters>& tiers_after() const { return tiers_after_; }
  /// Called when the measured part begins and ends, for counters outside the control plane.
  std::function<void()> on_measurement_begin;
  std::function<void()> on_measurement_end;
  [[nodiscard]] QueueTrend& queue_trend() { return requests_.queue_trend(); }
  [[nodiscard]] SimTime last_session_arrival() const { return requests_.last_session_arrival(); }
  /// Occupied shares of the measured part.
  [[nodiscard]] Occupied measured_occupied() const { return requests_.measured_occupied(); }
  /// The measured time in which requests waited, by what kept the next one from being admitted.
  [[nodiscard]] WaitTimes measured_waits() const { return requests_.measured_waits(); }
  /// The measured time in which GPUs waited for KV to come, by what it came over.
  [[nodiscard]] WaitTimes measured_load_waits() const { return requests_.measured_load_waits(); }
  [[nodiscard]] std::int64_t preemptions() const {
    return preemptions_after_ - preemptions_before_;
  }
  [[nodiscard]] const PrefetchCounters& prefetches() const { return prefetches_; }
  [[nodiscard]] std::size_t most_live_sessions() const { return requests_.most_live_sessions(); }

 private:
  [[nodiscard]] std::vector<TierCounters> tier_counters() const;

  const RunConfig& config_;
  Backend& backend_;
  Requests requests_;
  std::unique_ptr<Batcher> batcher_;
  std::vector<TierCounters> tiers_before_;
  std::vector<TierCounters> tiers_after_;
  std::int64_t preemptions_before_ = 0;
  std::int64_t preemptions_after_ = 0;
  PrefetchCounters prefetches_before_;
  /// Counters of the measured part.
  PrefetchCounters prefetches_;
};

}  // namespace kvtier
