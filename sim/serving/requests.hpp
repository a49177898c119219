#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sim/backend/backend.hpp"
#include "sim/backend/topology.hpp"
#include "sim/backend/transfer_observer.hpp"
#include "sim/serving/batcher.hpp"
#include "sim/serving/config.hpp"
#include "sim/serving/contexts.hpp"
#include "sim/serving/history.hpp"
#include "sim/serving/metrics.hpp"
#include "sim/serving/stationarity.hpp"
#include "sim/serving/waits.hpp"
#include "sim/store/curves/unlimited_cache.hpp"
#include "sim/store/sessions/stored_kv.hpp"
#include "traces/session.hpp"
#include "traces/statistics.hpp"

namespace kvtier {

struct InstanceLoad;

/// The GPUs' activity in a span of time, for timelines.
enum class GpuActivity : std::uint8_t { prefill, decode, save_stall };
[[nodiscard]] const char* to_string(GpuActivity activity);

/// A request's part of an iteration.
struct IterationPart {
  std::int64_t session = 0;
  std::int64_t turn = 0;
  /// Tokens of its prompt that the iteration computes. 0: it computes a token of its response.
  Tokens prompt;
};

/// One pass of the GPUs over the model.
struct Iteration {
  std::uint32_t instance = 0;
  SimTime begin;
  SimTime end;
  std::vector<IterationPart> parts;
  /// Requests that lost their memory since the iteration before.
  std::vector<IterationPart> preempted;
};

/// Hears of a run as it goes; every member may be left as it is.
class RunObserver : public TransferObserver {
 public:
  virtual void on_request(const RequestRecord&) {}
  /// The stationary state is reached: none of the requests so far are measured.
  virtual void on_measurement_restart() {}
  /// `session` is that of the prefilled request, or -1.
  virtual void on_gpu(GpuActivity, SimTime /*begin*/, SimTime /*end*/, std::int64_t /*session*/,
                      std::int64_t /*batch*/) {}
  /// Whether it wants each iteration, which takes a call for each token of a response.
  [[nodiscard]] virtual bool wants_iterations() const { return false; }
  virtual void on_iteration(const Iteration&) {}
  virtual void on_queue(std::size_t /*length*/, SimTime) {}
  /// The session will not come back.
  virtual void on_session_end(EntryKey, SimTime) {}
};

/// Sends requests to an instance of a cluster, whose users are elsewhere, and is told of them. A
/// request has a number here.
class Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  /// It is about to leave the instance's queue.
  virtual void on_admitted(std::uint32_t request) = 0;
  /// Its prompt is looked up, and the hits count.
  virtual void on_looked_up(std::uint32_t request) = 0;
  virtual void on_first_token(std::uint32_t request) = 0;
  /// It has memory, and waits for KV of so many tokens of its prompt, which another instance has
  /// computed: Batcher::on_arrived.
  virtual void fetch(std::uint32_t request, Tokens tokens) = 0;
  /// All of its tokens are out. Returns whether its session has ended. The record is valid during
  /// the call.
  [[nodiscard]] virtual bool on_finished(std::uint32_t request, const RequestRecord& record) = 0;
};

/// The measured turns of an instance of a cluster. What else is counted of them is counted of the
/// whole cluster: an instance among many should have little memory that each of its turns touches.
struct ServedTurns {
  std::int64_t turns = 0;
  Tokens prompt_tokens;
  /// Those that were looked up here, and what was found of them.
  Tokens looked_up_tokens;
  Tokens found_tokens;
  Tokens output_tokens;
  Histogram ttft_ns;

  void add(const RequestRecord& record, bool looked_up) {
    ++turns;
    prompt_tokens += record.prompt();
    if (looked_up) {
      looked_up_tokens += record.prompt();
      found_tokens += record.found_tokens();
    }
    output_tokens += record.output;
    ttft_ns.add((record.first_token - record.arrived).ns);
  }
};

/// A request as it is dispatched.
struct DispatchedRequest {
  std::uint32_t number = 0;
  /// The request as it was sent; nothing has happened to it yet.
  RequestRecord record;
  /// In a system of blocks.
  TurnContent content;
  SharedPrompt shared_prompt;
  std::int64_t priority = 0;
  /// It is the first of its session.
  bool begins_session = false;
  /// Its KV is kept when it ends, until Batcher::let_go_kept.
  bool keeps_kv = false;
  /// KV of its prompt is fetched from another instance.
  bool fetches_kv = false;
  /// The place of its session, if the instance has served the session before and stores its KV.
  std::optional<SessionSlot> slot;
};

/// The source, queue and end of requests: plays the users (a session's next turn arrives when its
/// last token is out plus the think time), keeps the queue, and counts what the turns and the GPUs
/// did. A Batcher decides what runs when.
class Requests final : public QueueView {
 public:
  struct Setup {
    const RunConfig* config = nullptr;
    const PolicyRegistry* registry = nullptr;
    Backend* backend = nullptr;
    SessionSource* sessions = nullptr;
    RunObserver* observer = nullptr;
    /// Called now and then with the number of finished turns; may throw to end the run.
    std::function<void(std::int64_t)> progress;
    /// For an instance of a cluster: requests come from there, and there are no users. `sessions`
    /// gives the streams that they name.
    Dispatcher* dispatcher = nullptr;
    /// And its load, which is kept up to date.
    InstanceLoad* load = nullptr;
  };
  explicit Requests(const Setup& setup);

  // The users.

  /// Sets the timer of the first arrival.
  void begin();
  /// Whether a turn is still to come or to end.
  [[nodiscard]] bool any_left() const { return has_drawn_ || live_sessions_ > 0; }
  /// The turn that a timer was set for arrives; it does not wait yet.
  SessionSlot begin_turn(std::uint64_t timer);
  /// A request arrives now from the dispatcher; its timer is set. Returns its place, which is free
  /// again when its session ends or, in a system of blocks, the request.
  SessionSlot dispatch(const DispatchedRequest& request);
  /// Adds a request to the instance's load: all that is left of one that is sent to a lost
  /// instance.
  void count_dispatched(const RequestRecord& request);
  [[nodiscard]] bool is_dispatched() const { return dispatcher_ != nullptr; }
  // Dispatched requests.
  [[nodiscard]] std::uint32_t number(SessionSlot slot) const { return dispatched_[slot].number; }
  [[nodiscard]] bool keeps_kv(SessionSlot slot) const {
    return dispatcher_ != nullptr && dispatched_[slot].keeps_kv;
  }
  [[nodiscard]] bool fetches_kv(SessionSlot slot) const {
    return dispatcher_ != nullptr && dispatched_[slot].fetches_kv;
  }
  void fetch(SessionSlot slot, Tokens tokens) {
    dispatcher_->fetch(dispatched_[slot].number, tokens);
  }
  /// A dispatched request arrives: so much of its prompt is stored here.
  void note_cached(SessionSlot slot, Tokens tokens);
  /// The turn that is in work in a slot, or the last one.
  [[nodiscard]] RequestRecord& request(SessionSlot slot) { return sessions_[slot].request; }
  [[nodiscard]] const RequestRecord& request(SessionSlot slot) const {
    return sessions_[slot].request;
  }
  /// All that its tokens follow from.
  [[nodiscard]] TurnTokens tokens(SessionSlot slot) const;
  [[nodiscard]] SessionSource& source() { return source_; }
  [[nodiscard]] const SharedPrompt& shared_prompt(SessionSlot slot) const {
    return sessions_[slot].shared_prompt;
  }
  [[nodiscard]] EntryKey key(SessionSlot slot) const {
    return {static_cast<std::uint64_t>(request(slot).session)};
  }

  /// By slot, of the session in it.
  [[nodiscard]] std::int64_t priority(SessionSlot slot) const { return sessions_[slot].priority; }
  /// SessionSpec::identity.
  [[nodiscard]] std::int64_t identity(SessionSlot slot) const { return sessions_[slot].identity; }
  /// Whether the order goes by it.
  [[nodiscard]] bool preempts_by_priority() const { return order_->preempts_by_priority(); }

  // The queue.

  QueuePosition enqueue(SessionSlot slot);
  [[nodiscard]] std::size_t queue_length() const { return queue_length_; }
  [[nodiscard]] SessionSlot waiting(QueuePosition position) const {
    return queue_[position.value & queue_mask_];
  }
  /// Position of the order policy's next request; one must wait.
  [[nodiscard]] QueuePosition next() const { return order_->next(*this); }
  /// Requests are about to be chosen for a batch.
  void begin_batch() { order_->begin_batch(*this); }
  /// The request leaves the queue for the GPUs.
  SessionSlot admit(QueuePosition position) {
    const SessionSlot slot = take(position);
    admitted(slot);
    return slot;
  }
  /// A waiting request is passed over, and stays where it is: the order policy does not see it.
  void hide(QueuePosition position);
  [[nodiscard]] bool any_visible() const { return queue_length_ > hidden_.size(); }
  void show_hidden();
  /// The request leaves the queue, and waits elsewhere (set_suspended) until it is admitted.
  SessionSlot take(QueuePosition position);
  void admitted(SessionSlot slot);
  /// An admitted request waits again, `requests` of them in all, outside of the queue.
  void set_suspended(std::size_t requests);
  /// The queries about stored KV; without it no request has any.
  void set_stored(const StoredKv* stored) { stored_ = stored; }
  // QueueView
  [[nodiscard]] EntryId entry_at(QueuePosition position) const override;
  [[nodiscard]] bool waiting_at(QueuePosition position) const override;
  [[nodiscard]] Placement placement_at(QueuePosition position) const override;
  [[nodiscard]] FoundTokens find(QueuePosition position) const override;
  [[nodiscard]] Tokens common_prefix(QueuePosition a, QueuePosition b) const override;
  [[nodiscard]] std::int64_t priority_at(QueuePosition position) const override {
    return priority(waiting(position));
  }
  [[nodiscard]] QueuePosition window_end() const override { return order_->window_end(*this); }

  // Calls by a batcher.

  /// The turn's first token is out.
  void first_token(SessionSlot slot) {
    request(slot).first_token = backend_.now();
    if (dispatcher_ != nullptr) [[unlikely]] {
      tell_first_token(slot);
    }
  }

  /// All tokens of the turn are out. Says whether its session has ended; the slot is free then.
  [[nodiscard]] bool finish(SessionSlot slot);
  /// Counts the time since the last change; from now on `slots` more are taken, and running
  /// requests take `hbm` in all.
  void occupy(std::int64_t slots, Bytes hbm);
  /// Whether any request waits, suspended ones included.
  [[nodiscard]] bool any_waits() const { return queue_length_ + suspended_ > 0; }
  [[nodiscard]] WaitClock& waits() { return waits_; }
  [[nodiscard]] const Topology& topology() const { return topology_; }
  [[nodiscard]] const GpuTime& gpu_time() const { return gpu_time_; }
  /// The GPUs did this from `since` until now. If a border of the measured part cuts this time,
  /// each kind counts in proportion.
  void count_gpu(SimTime since, const GpuTime& time);
  /// A GPU command that took `elapsed` ends now, of which it waited for KV for `waited`, because of
  /// `way`.
  void end_command(SimDuration elapsed, SimDuration waited, WaitCause way);
  /// A prompt is looked up now: counts what a cache without limit has of it. A preempted request
  /// counts once.
  void look_up_without_limit(SessionSlot slot);
  /// For stored KV, by a GPU command that computed for `compute` of `elapsed`. On a device what its
  /// overhead was in truth is not known.
  [[nodiscard]] SimDuration waited_for_kv(SimDuration elapsed, SimDuration compute) const {
    const SimDuration work = compute + config_.hardware.efficiency.command_overhead;
    return elapsed > work ? elapsed - work : SimDuration(0);
  }
  void report_gpu(GpuActivity activity, SimTime since, std::int64_t session, std::int64_t batch) {
    if (observer_ != nullptr) {
      observer_->on_gpu(activity, since, backend_.now(), session, batch);
    }
  }

  // Iterations, if an observer wants them.

  [[nodiscard]] bool reports_iterations() const { return reports_iterations_; }
  /// The request takes part in the iteration that ends now, with so many tokens of its prompt or,
  /// if 0, a token of its response.
  void add_to_iteration(SessionSlot slot, Tokens prompt);
  /// The iteration, or the first of so many of a decode, began then. The last one ends now.
  void report_iterations(SimTime begin, std::int64_t iterations);
  /// An admitted request loses its memory.
  void preempted(SessionSlot slot);

  // Counters.

  [[nodiscard]] const TurnMetrics& turns() const { return turn_metrics_; }
  /// In a cluster.
  [[nodiscard]] const ServedTurns& served() const { return served_; }
  [[nodiscard]] const WorkloadStatistics& workload() const { return workload_; }
  [[nodiscard]] std::int64_t finished_turns() const { return finished_turns_; }
  /// The measured part. A run without a stationary state is measured to its end.
  [[nodiscard]] const MeasuredPart& measured() const { return measured_; }
  [[nodiscard]] bool measuring() const { return measuring_; }
  /// The measured part begins, anew if it had begun.
  void begin_measurement();
  /// Ends the measured part unless it has ended.
  void end_measurement(SimTime at);
  [[nodiscard]] SimTime last_finish() const { return last_finish_; }
  [[nodiscard]] const GpuTime& measured_gpu_time() const { return measured_gpu_time_; }
  /// Hits of the measured part's look-ups in a cache without limit; nullopt if the source names no
  /// tokens.
  [[nodiscard]] std::optional<BlockHits> hits_without_limit() const {
    return without_limit_ ? std::optional(hits_without_limit_) : std::nullopt;
  }
  [[nodiscard]] QueueTrend& queue_trend() { return queue_trend_; }
  [[nodiscard]] SimTime last_session_arrival() const { return last_session_arrival_; }
  /// From the first arrival of a session to the last one; of a logged workload, to the last time
  /// at which a turn was to arrive.
  [[nodiscard]] SimDuration offered_span() const { return last_due_ - first_arrival_; }
  /// Durations of the sessions that ended, from arrival to last token.
  [[nodiscard]] const SessionDurations& session_durations() const { return session_durations_; }
  [[nodiscard]] Occupied measured_occupied() const { return occupied_after_ - occupied_before_; }
  [[nodiscard]] WaitTimes measured_waits() const { return waits_after_ - waits_before_; }
  [[nodiscard]] const WaitTimes& measured_load_waits() const { return measured_load_waits_; }
  [[nodiscard]] std::size_t most_live_sessions() const { return sessions_.size(); }
  /// Called when the measured part begins, also when it begins anew, and when it ends.
  std::function<void()> on_measurement_begin;
  std::function<void()> on_measurement_end;
  /// Throws InvariantError unless every turn that began has finished.
  void check_finished() const;

 private:
  static constexpr SessionSlot kNoSession = UINT32_MAX;

  /// Whole cache lines, since there are many and each is looked at seldom.
  struct alignas(64) Session {
    RequestRecord request;
    std::vector<Turn> turns;
    /// If the source names tokens.
    std::vector<TurnContent> contents;
    std::int64_t next_turn = 0;
    /// Between the turn in work and the next one.
    SimDuration think;
    SimTime began;
    /// Logged arrival of the current turn.
    SimTime due;
    SharedPrompt shared_prompt;
    std::int64_t priority = 0;
    std::int64_t identity = 0;
    /// Tokens of the shared prompt, and of all earlier turns that have not been truncated away.
    Tokens history;
  };

  void draw_session();
  void note_offered();
  SessionSlot begin_session();
  void set_next_arrival(SessionSlot slot, SimTime end);
  void leave_queue(QueuePosition position);
  /// A place is empty now.
  void vacate(QueuePosition position);
  void report_queue();
  void move_measurement();
  SessionSlot free_slot();
  SessionSlot begin_dispatched(SessionSlot slot);
  bool finish_dispatched(SessionSlot slot);
  void tell_first_token(SessionSlot slot);
  /// The measured part of the time from `since` until now.
  [[nodiscard]] SimDuration measured_since(SimTime since) const;
  [[nodiscard]] std::int64_t load_blocks(const RequestRecord& record) const {
    return (record.history + record.input).value / load_block_;
  }

  /// Further state of a cluster's request in a slot.
  struct Dispatched {
    std::uint32_t number = 0;
    Tokens cached;
    bool keeps_kv = false;
    bool fetches_kv = false;
  };

  const RunConfig& config_;
  Topology topology_;
  Backend& backend_;
  SessionSource& source_;
  RunObserver* observer_;
  bool reports_iterations_;
  /// The next one to be reported.
  Iteration iteration_;
  std::function<void(std::int64_t)> progress_;
  std::unique_ptr<OrderPolicy> order_;
  const StoredKv* stored_ = nullptr;

  Bytes hbm_limit_;
  Bytes hbm_used_;
  std::int64_t slots_used_ = 0;
  Occupied occupied_;
  Occupied occupied_before_;
  Occupied occupied_after_;
  SimTime occupied_since_;
  WaitClock waits_;
  WaitTimes waits_before_;
  WaitTimes waits_after_;
  WaitTimes measured_load_waits_;
  TurnFitter fitter_;
  bool is_logged_;

  SessionSpec drawn_;
  bool has_drawn_ = false;
  std::vector<Session> sessions_;
  std::vector<SessionSlot> free_sessions_;
  std::size_t live_sessions_ = 0;

  /// A ring indexed by position.
  std::vector<SessionSlot> queue_ = std::vector<SessionSlot>(1024, kNoSession);
  std::uint64_t queue_mask_ = queue_.size() - 1;
  std::size_t queue_length_ = 0;
  std::vector<std::pair<QueuePosition, SessionSlot>> hidden_;
  std::size_t suspended_ = 0;

  TurnMetrics turn_metrics_;
  WorkloadStatistics workload_;
  QueueTrend queue_trend_;
  std::int64_t admitted_turns_ = 0;
  std::int64_t finished_turns_ = 0;
  std::int64_t begun_turns_ = 0;
  bool measuring_ = false;
  MeasuredPart measured_;
  bool finds_stationarity_;
  Stationarity stationarity_;
  bool is_stationary_ = false;
  /// The next admission may begin or end the measured part.
  bool measurement_moves_ = true;
  SessionDurations session_durations_;
  Dispatcher* dispatcher_;
  InstanceLoad* load_;
  ServedTurns served_;
  /// Tokens and bytes of a block of HBM.
  std::int64_t load_block_ = 16;
  /// RequestRecord::block.
  std::int32_t found_block_ = 0;
  Bytes load_block_bytes_;
  std::vector<Dispatched> dispatched_;
  /// Requests that begin a session and arrive at this instant, one after the other. The timer of
  /// the first one is set.
  std::deque<SessionSlot> beginning_;
  /// Dispatched, and not in the queue yet.
  std::int64_t arriving_ = 0;
  SimTime last_finish_;
  SimTime first_arrival_;
  SimTime last_due_;
  SimTime last_session_arrival_;
  GpuTime gpu_time_;
  GpuTime measured_gpu_time_;
  std::optional<UnlimitedCache> without_limit_;
  /// The batcher looks up nothing that other requests have computed.
  bool looks_up_on_admission_ = false;
  BlockHits hits_without_limit_;
};

}  // namespace kvtier
