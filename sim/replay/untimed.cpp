#include "sim/replay/untimed.hpp"

#include <vector>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/build.hpp"
#include "sim/core/errors.hpp"
#include "sim/engine/history.hpp"
#include "sim/engine/result.hpp"
#include "sim/engine/tier_manager.hpp"
#include "sim/replay/access_order.hpp"
#include "sim/replay/block_replay.hpp"

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
  void start_iteration(const IterationCommand&) override {}
  [[nodiscard]] IterationTime iteration_time() const override { return {}; }
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

}  // namespace

Json simulate_untimed(const RunConfig& config, const PolicyRegistry& registry,
                      const RunOptions& options) {
  Problems problems;
  check_run_config(config, registry, problems);
  check_one_replica(config, "an untimed replay", problems);
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
  if (config.system.blocks) {
    return replay_blocks(config, *source, registry, options);
  }
  refuse_named_tokens(*source);
  InstantBackend backend;
  const EmptyQueue queue;
  TierManager tiers({.config = &config,
                     .registry = &registry,
                     .backend = &backend,
                     .queue = &queue,
                     .decisions = options.decisions});
  const auto drain = [&] {
    while (backend.pending()) {
      tiers.on_transfer(MoveId{static_cast<std::uint32_t>(backend.wait().payload)});
    }
  };
  const bool shares = config.system.sharing == Sharing::prompts;
  const TurnFitter fitter(config);
  AccessOrder order(*source, &fitter);
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
    record.truncated = order.fit_history(live);
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
  Json result = new_result("kvtier.untimed/1");
  result["config"] = write_value(config);
  result["workload"] = workload_report(config, order.statistics());
  result["metrics"] =
      Json{{"turns", metrics.turns},
           {"resumed_turns", metrics.resumed_turns},
           {"hit_rate", hit_rate_report(metrics)},
           {"lost_hits", lost_hits_report(metrics, filters_admission(config.system))},
           {"truncated_turns", metrics.truncated_turns},
           {"truncated_tokens", metrics.truncated_tokens.value}};
  if (config.system.compression) {
    result["metrics"]["compression"] = compression_report(config);
  }
  return result;
}

}  // namespace kvtier
