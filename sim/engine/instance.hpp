#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sim/engine/backend.hpp"
#include "sim/engine/config.hpp"
#include "sim/engine/history.hpp"
#include "sim/engine/metrics.hpp"
#include "sim/engine/tier_manager.hpp"
#include "traces/session.hpp"
#include "traces/statistics.hpp"

namespace kvtier {

/// What the GPUs do in a span of time, for timelines.
enum class GpuActivity : std::uint8_t { prefill, decode, save_stall };
[[nodiscard]] const char* to_string(GpuActivity activity);

/// KV that was moved from one medium to another, for timelines.
struct TransferRecord {
  Medium from;
  Medium to;
  Bytes bytes;
  EntryKey key;
  SimTime begin;
  SimTime end;
};

/// Hears of a run as it goes; every member may be left as it is.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void on_request(const RequestRecord&) {}
  /// `session` is that of the prefilled request, or -1.
  virtual void on_gpu(GpuActivity, SimTime /*begin*/, SimTime /*end*/, std::int64_t /*session*/,
                      std::int64_t /*batch*/) {}
  virtual void on_queue(std::size_t /*length*/, SimTime) {}
  /// Comes when the transfer is complete.
  virtual void on_transfer(const TransferRecord&) {}
  /// The session will not come back.
  virtual void on_session_end(EntryKey, SimTime) {}
};

/// One serving instance: the control plane over a backend. It admits requests in the order policy's
/// order, batches them (prefill_first: a prefill runs alone, then all running requests decode
/// together), moves KV through the tier manager, and plays the users: a session's next turn arrives
/// when its last token is out plus the think time. Reads no clock and no device: the backend is all
/// it knows of time.
class Instance final : public QueueView {
 public:
  struct Setup {
    const RunConfig* config = nullptr;
    const PolicyRegistry* registry = nullptr;
    Backend* backend = nullptr;
    SessionSource* sessions = nullptr;
    RunObserver* observer = nullptr;
    DecisionObserver* decisions = nullptr;
    /// Called now and then with the number of finished turns; may throw to end the run.
    std::function<void(std::int64_t)> progress;
  };
  explicit Instance(const Setup& setup);

  /// Runs every session to its end and every transfer to completion. Throws ConfigError for a turn
  /// longer than the context window (where that is an error).
  void run();

  [[nodiscard]] const TurnMetrics& turns() const { return turn_metrics_; }
  [[nodiscard]] const WorkloadStatistics& workload() const { return workload_; }
  [[nodiscard]] std::int64_t finished_turns() const { return finished_turns_; }
  [[nodiscard]] TierManager& tiers() { return tiers_; }

  /// The measured part: from the admission of the first turn after warm-up to the end of the last
  /// turn.
  [[nodiscard]] SimTime measured_from() const { return measured_from_; }
  [[nodiscard]] SimTime last_finish() const { return last_finish_; }
  [[nodiscard]] GpuTime measured_gpu_time() const;
  [[nodiscard]] const GpuTime& total_gpu_time() const { return gpu_time_; }
  /// Tier counters when the measured part began.
  [[nodiscard]] const std::vector<TierCounters>& tiers_before() const { return tiers_before_; }
  /// Tier counters when it ended: transfers may go on after the last turn, and are not part of it.
  [[nodiscard]] const std::vector<TierCounters>& tiers_after() const { return tiers_after_; }
  /// Called when the measured part begins and ends, for counters outside the control plane.
  std::function<void()> on_measurement_begin;
  std::function<void()> on_measurement_end;
  [[nodiscard]] QueueTrend& queue_trend() { return queue_trend_; }
  [[nodiscard]] SimTime last_session_arrival() const { return last_session_arrival_; }
  /// Integral over the measured part of the share of the instance that is occupied, in seconds: all
  /// of it while a request waits, else the larger of the shares of its slots and of its HBM for
  /// running KV.
  [[nodiscard]] double measured_occupied_seconds() const {
    return occupied_seconds_ - occupied_seconds_before_;
  }
  /// Loaded into HBM for turns, from the medium, over the whole run.
  [[nodiscard]] Bytes loaded_bytes(Medium medium) const {
    return loaded_bytes_[static_cast<std::size_t>(medium)];
  }
  [[nodiscard]] std::int64_t preemptions() const {
    return 0;
  }  // prefill_first reserves a turn's KV on admission
  [[nodiscard]] std::size_t most_live_sessions() const { return sessions_.size(); }

  // QueueView
  [[nodiscard]] EntryId entry_at(QueuePosition position) const override;
  [[nodiscard]] bool waiting_at(QueuePosition position) const override;

 private:
  static constexpr SessionSlot kNoSession = UINT32_MAX;

  enum class Gpu : std::uint8_t { idle, waits_for_fetch, prefill, decode, stalled };

  struct Session {
    std::vector<Turn> turns;
    std::int64_t next_turn = 0;
    /// Tokens of all earlier turns that have not been truncated away.
    Tokens history;
    RequestRecord request;
    std::int64_t finish_iteration = 0;
    /// The first layers of its next turn are in the read buffer, or on their way there.
    bool preloads = false;
    Bytes preloaded;
    TransferId load;
  };
  struct Running {
    std::int64_t finish_iteration;
    std::uint32_t sequence;
    SessionSlot slot;
  };
  /// Of numbers that are counted on from 0 when they run out.
  [[nodiscard]] static bool later(std::uint32_t a, std::uint32_t b) {
    return static_cast<std::int32_t>(a - b) > 0;
  }
  /// A type, not a function, so that heaps inline it.
  struct FinishesLater {
    [[nodiscard]] bool operator()(const Running& a, const Running& b) const {
      return a.finish_iteration != b.finish_iteration ? a.finish_iteration > b.finish_iteration
                                                      : later(a.sequence, b.sequence);
    }
  };

  [[nodiscard]] Session& session(SessionSlot slot) { return sessions_[slot]; }
  [[nodiscard]] EntryKey key(const Session& s) const {
    return {static_cast<std::uint64_t>(s.request.session)};
  }

  void draw_session();
  void begin_session();
  void begin_turn(SessionSlot slot);
  void enqueue(SessionSlot slot);
  void leave_queue(QueuePosition position);

  void handle(const Completion& completion);
  void schedule();
  /// The waiting request that is next, if it can be admitted now.
  [[nodiscard]] std::optional<QueuePosition> admissible() const;
  void admit(QueuePosition position);
  void start_load(SessionSlot slot, Medium medium);
  void start_prefill(SessionSlot slot, bool loads, std::int64_t ready_layers);
  void finish_prefill();
  void start_decode();
  void finish_decode(std::int64_t iterations);
  void finish_turn(SessionSlot slot);
  void finish_load_transfer(SessionSlot slot);
  void preload_next();
  [[nodiscard]] bool must_stall() const;
  void end_stall();
  void begin_measurement();
  /// Accounts the time since the last change of what is occupied, then takes `slots` and `bytes`
  /// more.
  void occupy(std::int64_t slots, Bytes bytes);

  const RunConfig& config_;
  Backend& backend_;
  SessionSource& source_;
  RunObserver* observer_;
  std::function<void(std::int64_t)> progress_;
  std::unique_ptr<OrderPolicy> order_;
  TierManager tiers_;

  Bytes bytes_per_token_;
  Bytes hbm_limit_;
  Bytes hbm_used_;
  std::int64_t slots_used_ = 0;
  double occupied_seconds_ = 0;
  double occupied_seconds_before_ = 0;
  SimTime occupied_since_;
  TurnFitter fitter_;
  /// A truncation makes stored KV useless, which shows when the turn is served; where it only cuts
  /// the KV, the room is free as soon as the turn arrives.
  bool invalidates_;
  bool preloads_;

  SessionSpec drawn_;
  bool has_drawn_ = false;
  std::vector<Session> sessions_;
  std::vector<SessionSlot> free_sessions_;
  std::size_t live_sessions_ = 0;

  /// The queue: a ring indexed by position.
  std::vector<SessionSlot> queue_ = std::vector<SessionSlot>(1024, kNoSession);
  std::size_t queue_length_ = 0;

  Gpu gpu_ = Gpu::idle;
  SimTime gpu_since_;
  SessionSlot prefilling_ = kNoSession;
  SimDuration prefill_compute_;
  SessionSlot preloading_ = kNoSession;
  bool load_in_flight_ = false;
  std::vector<Running> running_;  // a heap, the first to finish in front
  std::int64_t iteration_ = 0;
  Tokens context_;
  /// Integral of decode time over the number of running requests.
  SimDuration decode_per_request_;
  std::uint32_t next_sequence_ = 0;

  std::array<Bytes, kMedia> loaded_bytes_{};
  TurnMetrics turn_metrics_;
  WorkloadStatistics workload_;
  QueueTrend queue_trend_;
  std::int64_t admitted_turns_ = 0;
  std::int64_t finished_turns_ = 0;
  std::int64_t begun_turns_ = 0;
  bool measuring_ = false;
  SimTime measured_from_;
  SimTime last_finish_;
  SimTime last_session_arrival_;
  GpuTime gpu_time_;
  GpuTime gpu_time_before_;
  std::vector<TierCounters> tiers_before_;
  std::vector<TierCounters> tiers_after_;
};

}  // namespace kvtier
