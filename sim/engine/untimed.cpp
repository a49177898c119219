#include <algorithm>
#include <queue>
#include <vector>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/event_queue.hpp"
#include "sim/engine/history.hpp"
#include "sim/engine/result.hpp"
#include "sim/engine/simulate.hpp"
#include "sim/engine/tier_manager.hpp"

namespace kvtier {
namespace {

/// Moves take no time: they complete in the order in which they were asked for, before the next
/// access.
class InstantBackend final : public Backend {
 public:
  void set_now(SimTime now) { now_ = now; }
  Completion wait() override {
    KVTIER_ASSERT(next_ < transfers_.size(), "something is pending");
    const Completion completion{CompletionKind::transfer, transfers_[next_++]};
    if (next_ == transfers_.size()) {
      transfers_.clear();
      next_ = 0;
    }
    return completion;
  }
  [[nodiscard]] bool pending() const override { return next_ < transfers_.size(); }
  void set_timer(SimTime, std::uint64_t) override {
    KVTIER_ASSERT(false, "an untimed replay sets no timers");
  }
  TransferId start_transfer(const TransferCommand& command) override {
    transfers_.push_back(command.cookie);
    return TransferId{0};
  }
  [[nodiscard]] bool extend_transfer(TransferId, Bytes, Tokens) override { return false; }
  void start_prefill(const PrefillCommand&) override {}
  IterationTime start_iteration(const IterationCommand&) override { return {}; }
  void start_decode(const DecodeCommand&) override {}
  void stop_decode() override {}

 private:
  std::vector<std::uint64_t> transfers_;
  std::size_t next_ = 0;
};

/// No request ever waits.
class EmptyQueue final : public QueueView {
 public:
  [[nodiscard]] EntryId entry_at(QueuePosition) const override { return kNoEntry; }
  [[nodiscard]] bool waiting_at(QueuePosition) const override { return false; }
  [[nodiscard]] Placement placement_at(QueuePosition) const override { return Placement::none; }
  [[nodiscard]] QueuePosition window_end() const override { return end_; }
};

/// Sessions on their way, each at its next access; memory is that of the sessions that overlap.
class AccessOrder {
 public:
  struct Live {
    SessionSpec session;
    std::size_t next_turn = 0;
    Tokens history;
  };

  AccessOrder(SessionSource& source, const RunConfig& config) : source_(source), fitter_(config) {
    draw();
  }

  /// The slot of the session with the next access, or nullopt at the end.
  std::optional<SessionSlot> next(SimTime& now) {
    if (has_drawn_ && (events_.empty() || drawn_.arrival <= events_.top().time)) {
      const SessionSlot slot = take_slot();
      live_[slot].session.turns.swap(drawn_.turns);
      live_[slot].session.id = drawn_.id;
      live_[slot].session.shared_prompt = drawn_.shared_prompt;
      live_[slot].next_turn = 0;
      live_[slot].history = drawn_.shared_prompt.tokens;
      now = drawn_.arrival;
      draw();
      return slot;
    }
    if (events_.empty()) {
      return std::nullopt;
    }
    const TimedEvent event = events_.pop();
    now = event.time;
    return static_cast<SessionSlot>(event.payload);
  }

  [[nodiscard]] Live& at(SessionSlot slot) { return live_[slot]; }

  /// When the session has its next access after this one; kNever if this is its last.
  [[nodiscard]] SimTime next_use(SessionSlot slot, SimTime now) const {
    const Live& live = live_[slot];
    return live.next_turn + 1 < live.session.turns.size()
               ? now + live.session.turns[live.next_turn + 1].think
               : kNever;
  }

  /// Schedules the session's next access; false if that was its last one.
  bool advance(SessionSlot slot, SimTime now) {
    Live& live = live_[slot];
    if (++live.next_turn == live.session.turns.size()) {
      free_.push_back(slot);
      return false;
    }
    events_.push(now + live.session.turns[live.next_turn].think, 0, slot);
    return true;
  }

  [[nodiscard]] const WorkloadStatistics& statistics() const { return statistics_; }
  [[nodiscard]] const TurnFitter& fitter() const { return fitter_; }

 private:
  void draw() {
    has_drawn_ = source_.next(drawn_);
    if (has_drawn_) {
      fitter_.fit_turns(drawn_, source_);
      statistics_.add(drawn_);
    }
  }
  SessionSlot take_slot() {
    if (free_.empty()) {
      live_.emplace_back();
      return static_cast<SessionSlot>(live_.size() - 1);
    }
    const SessionSlot slot = free_.back();
    free_.pop_back();
    return slot;
  }

  SessionSource& source_;
  TurnFitter fitter_;
  SessionSpec drawn_;
  bool has_drawn_ = false;
  std::vector<Live> live_;
  std::vector<SessionSlot> free_;
  EventQueue events_;
  WorkloadStatistics statistics_;
};

}  // namespace

Json simulate_untimed(const RunConfig& config, const PolicyRegistry& registry,
                      const RunOptions& options) {
  Problems problems;
  check_run_config(config, registry, problems);
  if (config.system.paging) {
    problems.add(
        "/system/paging",
        "an untimed replay has no running requests to share blocks with, expected \"none\"");
  }
  for_each_tier(config.system.tiers, [&](const char* name, const TierConfig& tier) {
    const auto* kind = find_policy(registry.eviction, tier.eviction.name);
    if (kind != nullptr && kind->knowledge == Knowledge::oracle &&
        config.system.sharing == Sharing::prompts) {
      problems.add(std::string("/system/tiers/") + name + "/eviction",
                   fmt::format("policy {} needs to know the future, which of shared prompts "
                               "(/system/sharing) is not known",
                               kind->name));
    }
  });
  problems.throw_if_any();

  const auto source =
      make_source(config.workload, static_cast<std::uint64_t>(config.seed), options.base_dir);
  InstantBackend backend;
  const EmptyQueue queue;
  TierManager tiers({.config = &config,
                     .registry = &registry,
                     .backend = &backend,
                     .queue = &queue,
                     .decisions = options.decisions,
                     .cookie_mark = 0});
  const auto drain = [&] {
    while (backend.pending()) {
      tiers.on_transfer(backend.wait().payload);
    }
  };
  const bool shares = config.system.sharing == Sharing::prompts;
  AccessOrder order(*source, config);
  TurnMetrics metrics;
  std::int64_t turns = 0;
  SimTime now;
  while (const auto slot = order.next(now)) {
    AccessOrder::Live& live = order.at(*slot);
    Turn& turn = live.session.turns[live.next_turn];
    const EntryKey key{static_cast<std::uint64_t>(live.session.id)};
    backend.set_now(now);
    RequestRecord record;
    record.session = live.session.id;
    record.turn = static_cast<std::int64_t>(live.next_turn);
    const SharedPrompt& prompt = live.session.shared_prompt;
    record.shared = prompt.tokens;
    record.shared_prompt = prompt.tokens.value > 0 ? prompt.id : -1;
    record.truncated = order.fitter().fit_history(live.history, prompt.tokens, turn);
    record.history = live.history;
    truncate_stored(tiers, *slot, config, record);
    record.input = turn.user;
    record.output = turn.assistant;
    record.arrived = record.admitted = record.first_token = record.finished = now;
    if (shares && record.turn == 0 && prompt.tokens.value > 0) {
      tiers.join_prompt(*slot, prompt_key(prompt.id), prompt.tokens);
    }
    const Tokens own = own_history(record, config.system);
    const Lookup found = tiers.admit_prompt(*slot);
    record.found = together(found, tiers.admit(*slot, key, own));
    tiers.end_load(*slot);
    tiers.end_prefill(*slot);
    drain();
    live.history += turn.user + turn.assistant;
    tiers.release_prompt(*slot);
    tiers.set_next_use(*slot, order.next_use(*slot, now));
    tiers.save(*slot, key, own + turn.user + turn.assistant);
    drain();
    record.measured = turns++ >= config.workload.warmup_turns;
    if (record.measured) {
      metrics.add(record);
    }
    if (options.observer != nullptr) {
      options.observer->on_request(record);
    }
    if (options.progress && turns % 8192 == 0) {
      options.progress(turns);
    }
    if (!order.advance(*slot, now)) {
      if (options.observer != nullptr) {
        options.observer->on_session_end(key, now);
      }
      tiers.forget(*slot);
    }
  }
  tiers.check_invariants();
  if (metrics.turns == 0) {
    throw ConfigError(
        fmt::format("/workload/warmup_turns: expected less than the workload's {} turns, got {}",
                    turns, config.workload.warmup_turns));
  }
  Json result;
  result["format"] = "kvtier.untimed/1";
  result["config"] = write_value(config);
  result["workload"] = workload_report(config, order.statistics());
  result["metrics"] = Json{{"turns", metrics.turns},
                           {"resumed_turns", metrics.resumed_turns},
                           {"hit_rate", hit_rate_report(metrics)},
                           {"lost_hits", lost_hits_report(metrics)},
                           {"truncated_turns", metrics.truncated_turns},
                           {"truncated_tokens", metrics.truncated_tokens.value}};
  if (config.system.compression) {
    result["metrics"]["compression"] = compression_report(config);
  }
  return result;
}

}  // namespace kvtier
