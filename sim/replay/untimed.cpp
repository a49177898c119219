#include "sim/replay/untimed.hpp"

#include <optional>
#include <vector>

#include <fmt/format.h>

#include "hw/model/model.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/build.hpp"
#include "sim/core/errors.hpp"
#include "sim/replay/access_order.hpp"
#include "sim/replay/block_replay.hpp"
#include "sim/serving/history.hpp"
#include "sim/serving/result.hpp"
#include "sim/serving/store_rules.hpp"
#include "sim/store/curves/unlimited_cache.hpp"
#include "sim/store/sessions/session_store.hpp"

namespace kvtier {
namespace {

/// A backend whose moves take no time: they complete in the order of their start, before the next
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
  [[nodiscard]] bool extend_transfer(TransferId, Bytes, Tokens, Tokens) override { return false; }
  void start_prefill(const PrefillCommand&) override {}
  void start_iteration(const IterationCommand&) override {}
  [[nodiscard]] IterationTime iteration_time() const override { return {}; }
  void start_decode(const DecodeCommand&) override {}
  void stop_decode() override {}

 private:
  std::vector<std::uint64_t> transfers_;
  std::size_t next_ = 0;
};

/// A queue in which no request waits.
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
  if (!config.system.blocks) {
    check_one_instance(config, "an untimed replay of sessions", problems);
  } else if (is_cluster(config)) {
    if (options.decisions != nullptr) {
      check_one_instance(config, "a log of decisions", problems);
    }
    const ClusterConfig& cluster = config.cluster;
    if (!cluster.lost.empty() || !cluster.slow.empty()) {
      problems.add("/cluster",
                   "expected no lost and no slow instance, an untimed replay has no clock");
    }
    if (!cluster.groups.empty()) {
      problems.add("/cluster/groups", "expected none: in an untimed replay instances are alike");
    }
    if (cluster.disaggregation) {
      problems.add("/cluster/disaggregation", "expected \"none\", an untimed replay has no clock");
      if (cluster.network) {
        problems.add("/cluster/network", "expected \"none\", an untimed replay has no clock");
      }
    }
    if (cluster.report_interval.ns > 0) {
      problems.add("/cluster/report_interval",
                   fmt::format("expected 0s, an untimed replay has no clock, got {}",
                               format_quantity(cluster.report_interval)));
    }
  }
  for_each_tier(config.system.tiers, [&](const char* name, const TierConfig& tier) {
    const auto* kind = find_policy(registry.eviction, tier.eviction.name);
    if (kind != nullptr && kind->knowledge == Knowledge::oracle &&
        config.system.sharing == Sharing::prompts) {
      problems.add(std::string("/system/tiers/") + name + "/eviction",
                   fmt::format("policy {} needs to know the future, but that of shared prompts "
                               "(/system/sharing) is unknown",
                               kind->name));
    }
  });
  problems.throw_if_any();
  const auto source =
      make_source(config.workload, static_cast<std::uint64_t>(config.seed), options.base_dir);
  if (config.system.blocks) {
    return replay_blocks(config, *source, registry, options);
  }
  refuse_named_tokens(config.system, *source);
  InstantBackend backend;
  const EmptyQueue queue;
  SessionStore tiers({.facts = store_facts(config),
                      .registry = &registry,
                      .backend = &backend,
                      .queue = &queue,
                      .decisions = options.decisions});
  const auto complete_moves = [&] {
    while (backend.pending()) {
      tiers.on_transfer(MoveId{static_cast<std::uint32_t>(backend.wait().payload)});
    }
  };
  const bool shares = config.system.sharing == Sharing::prompts;
  const TurnFitter fitter(config);
  AccessOrder order(*source, &fitter, true);
  HitCounts hits;
  std::vector<HitCounts> of_classes(config.workload.mix.size());
  std::optional<UnlimitedCache> without_limit;
  BlockHits ideal;
  if (source->streams() != nullptr) {
    without_limit.emplace(*source->streams(), Tokens(1));
  }
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
    record.found = combine(found, tiers.admit(*slot, key, own));
    tiers.end_load(*slot);
    tiers.end_prefill(*slot);
    complete_moves();
    live.history += turn.user + turn.assistant;
    tiers.release_prompt(*slot);
    tiers.set_next_use(*slot, order.next_use(*slot, now));
    tiers.save(*slot, key, own + turn.user + turn.assistant);
    complete_moves();
    record.measured = turns++ >= config.workload.warmup_turns;
    if (without_limit) {
      const TurnContent& content = live.session.contents[live.next_turn];
      const Tokens found_there = without_limit->serve(content.prompt, content.whole);
      if (record.measured) {
        ideal.add(content.prompt.tokens, {found_there}, Tokens(0));
      }
    }
    if (record.measured) {
      hits.add(record);
      if (!of_classes.empty()) {
        of_classes[static_cast<std::size_t>(live.session.workload_class)].add(record);
      }
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
  if (hits.turns == 0) {
    throw ConfigError(
        fmt::format("/workload/warmup_turns: expected less than the workload's {} turns, got {}",
                    turns, config.workload.warmup_turns));
  }
  Json result = new_result("kvtier.untimed/1");
  result["config"] = write_value(config);
  result["workload"] = workload_report(config, order.statistics());
  result["metrics"] =
      hits_report(hits, config.system, without_limit ? std::optional(ideal) : std::nullopt);
  for (std::size_t i = 0; i < of_classes.size(); ++i) {
    result["metrics"]["classes"][config.workload.mix[i].name] =
        hits_report(of_classes[i], config.system, {});
  }
  if (config.system.compression) {
    result["metrics"]["compression"] = compression_report(config);
  }
  return result;
}

}  // namespace kvtier
