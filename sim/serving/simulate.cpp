#include "sim/serving/simulate.hpp"

#include <array>
#include <optional>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "hw/profile/profile_timing.hpp"
#include "sim/backend/observed_backend.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/build.hpp"
#include "sim/core/errors.hpp"
#include "sim/serving/class_metrics.hpp"
#include "sim/serving/replica_source.hpp"
#include "sim/serving/result.hpp"
#include "sim/serving/store_rules.hpp"

namespace kvtier {
namespace {

std::vector<LinkCounters> read_links(const SimulatedBackend& backend) {
  std::vector<LinkCounters> counters;
  for (std::size_t i = 0; i < backend.topology().links.size(); ++i) {
    counters.push_back(backend.link_counters(i));
  }
  return counters;
}

/// What was moved between the media is what the tiers took and gave, to the byte.
void check_bytes(Instance& instance, const SimulatedBackend& backend) {
  const Batcher& batcher = instance.batcher();
  std::array<std::optional<TierCounters>, kMedia> used;
  for (std::size_t i = 0; i < batcher.tier_count(); ++i) {
    used[static_cast<std::size_t>(batcher.medium(i))] = batcher.counters(i);
  }
  Bytes loaded;
  for (std::size_t m = 0; m < kMedia; ++m) {
    loaded += batcher.loaded_bytes(static_cast<Medium>(m));
  }
  for (std::size_t m = 0; m < kMedia; ++m) {
    const auto medium = static_cast<Medium>(m);
    Bytes in;
    Bytes out;
    for (std::size_t other = 0; other < kMedia; ++other) {
      in += backend.moved(static_cast<Medium>(other), medium);
      out += backend.moved(medium, static_cast<Medium>(other));
    }
    const std::optional<TierCounters>& tier = used[m];
    if (medium == Medium::hbm) {  // loads for turns go past its tier, and saves come from no tier
      in -= loaded;
      out = tier ? out : Bytes(0);
    }
    KVTIER_ASSERT(in == (tier ? tier->written : Bytes(0)), "a tier takes what moves to its medium");
    KVTIER_ASSERT(out == (tier ? tier->read : Bytes(0)), "a tier gives what moves from its medium");
  }
}

/// Every hit is somewhere, every miss has a cause, and every turn is one or the other.
void check_counts(const TurnMetrics& turns) {
  std::int64_t full = 0;
  for (const std::int64_t count : turns.full_hits) {
    full += count;
  }
  std::int64_t lost = 0;
  for (std::size_t i = 1; i < kLossCauses; ++i) {
    lost += turns.lost_hits[i];
  }
  KVTIER_ASSERT(turns.lost_hits[0] == 0, "every lost hit has a cause");
  KVTIER_ASSERT(full + lost >= turns.resumed_turns && full <= turns.resumed_turns,
                "hits and misses are all turns");
  std::int64_t reused = 0;
  for (const Tokens tokens : turns.reused_tokens) {
    reused += tokens.value;
  }
  KVTIER_ASSERT(reused <= turns.history_tokens.value, "no more is reused than is needed");
}

template <class Interface>
void check_no_oracle(const PolicyChoice& choice, const std::vector<PolicyKind<Interface>>& kinds,
                     const std::string& pointer, Problems& problems) {
  const PolicyKind<Interface>* kind = find_policy(kinds, choice.name);
  if (kind != nullptr && kind->knowledge == Knowledge::oracle) {
    problems.add(pointer, fmt::format("policy {} needs to know the future, which a timed run does "
                                      "not: only an untimed replay has it",
                                      choice.name));
  }
}

/// Requests run in blocks of HBM.
void check_timed_blocks(const RunConfig& config, Problems& problems) {
  const SystemConfig& system = config.system;
  if (!system.blocks) {
    return;
  }
  const auto refuse = [&](bool wrong, const char* pointer, const char* expected) {
    if (wrong) {
      problems.add(pointer, fmt::format("in a timed run of blocks expected {}", expected));
    }
  };
  refuse(!system.tiers.hbm, "/system/tiers/hbm", "a tier: requests run in its blocks");
  refuse(has_entries(system.blocks->unit) && system.tiers.count() > 2, "/system/tiers",
         "at most one tier behind hbm for extents and sequences");
  refuse(config.serving.hold_requests > 0, "/serving/hold_requests",
         "0: an untimed replay holds requests");
  const bool nodes = system.blocks->unit == EvictionUnit::node;
  const bool several = nodes && system.tiers.count() > 1;
  refuse(system.batching == Batching::prefill_first ||
             (system.batching == Batching::separate && !nodes) ||
             (several && system.batching != Batching::separate),
         "/system/batching",
         several ? "separate for nodes in several tiers"
         : nodes ? "unified or separate"
                 : "unified");
  refuse(several && system.save.mode == SaveMode::blocking, "/system/save/mode", "async for nodes");
  refuse(several && system.load.buffers != 0, "/system/load/buffers", "0 for nodes");
  refuse(several && load_wait(system) == LoadWait::request, "/system/load/wait",
         "batch for nodes in several tiers");
  if (system.batching == Batching::separate && system.tiers.hbm) {
    // Prompts are cut into whole blocks.
    const Tokens block = system.tiers.hbm->block_size;
    refuse(system.blocks->chunk.value_or(block) < block, "/system/blocks/chunk",
           "a block of hbm at least");
    refuse(token_budget(config) < block, "/serving/token_budget", "a block of hbm at least");
  }
  refuse(!system.blocks->responses, "/system/blocks/responses",
         "true: the KV of responses takes memory");
  if (problems.lines().empty()) {
    const StoreRules rules = store_rules(config);
    const Bytes wanted = kv_bytes_per_token(config.model) * rules.pools.front().block.value *
                         rules.pools.front().capacity;
    const Bytes free = hbm_shares(config).capacity;
    if (wanted > free) {
      problems.add("/system/tiers/hbm/blocks/capacity",
                   fmt::format("in a timed run expected at most the {:.2f}GiB that are free for "
                               "KV, got {:.2f}GiB",
                               static_cast<double>(free.value) / (1 << 30),
                               static_cast<double>(wanted.value) / (1 << 30)));
    }
  }
}

void check(const RunConfig& config, const PolicyRegistry& registry) {
  Problems problems;
  check_run_config(config, registry, problems);
  const SystemConfig& system = config.system;
  check_timed_blocks(config, problems);
  check_no_oracle(system.order, registry.order, "/system/order", problems);
  check_no_oracle(system.prefetch, registry.prefetch, "/system/prefetch", problems);
  for_each_tier(system.tiers, [&](const char* name, const TierConfig& tier) {
    check_no_oracle(tier.eviction, registry.eviction,
                    std::string("/system/tiers/") + name + "/eviction", problems);
  });
  problems.throw_if_any();
}

Json report(Instances instances, std::span<const ClassMetrics* const> classes,
            const RunConfig& config, const std::vector<LinkReport>& links,
            const std::optional<Json>& timing) {
  Json result = new_result("kvtier.result/1");
  result["config"] = write_value(config);
  WorkloadStatistics workload = instances.front()->workload();
  for (const Instance* instance : instances.subspan(1)) {
    workload.merge(instance->workload());
  }
  result["workload"] = workload_report(config, workload);
  result["load"] = load_report(instances, config, workload);
  if (timing) {
    result["timing"] = *timing;
  }
  result["metrics"] = metrics_report(instances, config, links);
  if (!classes.empty()) {
    result["metrics"]["classes"] = classes_report(classes, config, instances.front()->batcher());
  }
  return result;
}

/// Runs it all, and throws if that measured nothing.
void run(Instance& instance, const RunConfig& config, const RunOptions& options) {
  if (options.on_start) {
    options.on_start(instance);
  }
  instance.run();
  check_counts(instance.turns());
  if (instance.turns().turns == 0) {
    throw ConfigError(
        config.replicas.count > 1
            ? fmt::format("/replicas/count: a replica has {} turns and {} of them as warm-up, "
                          "expected fewer replicas, more sessions or less warm-up",
                          instance.finished_turns(), config.workload.warmup_turns)
            : fmt::format(
                  "/workload/warmup_turns: expected less than the workload's {} turns, got {}",
                  instance.finished_turns(), config.workload.warmup_turns));
  }
}

/// The config of one of the replicas, which have equal shares of the warm-up.
RunConfig config_of_replica(const RunConfig& config, std::int64_t replica) {
  RunConfig own = config;
  const std::int64_t count = config.replicas.count;
  own.workload.warmup_turns = (config.workload.warmup_turns + count - 1 - replica) / count;
  return own;
}

/// The sessions and the observers of a run on a backend. `config` outlives it.
struct Parts {
  std::unique_ptr<SessionSource> all;
  std::optional<ReplicaSource> share;
  /// In a mix of workloads.
  std::optional<ClassMetrics> classes;
  std::optional<ObservedBackend> observed;
  Instance instance;

  Parts(Backend& backend, const RunConfig& config, const PolicyRegistry& registry,
        const RunOptions& options, std::int64_t replica = 0)
      : all(make_source(config.workload, static_cast<std::uint64_t>(config.seed),
                        options.base_dir)),
        observed(options.observer != nullptr
                     ? std::optional<ObservedBackend>(std::in_place, backend, *options.observer)
                     : std::nullopt),
        instance({.config = &config,
                  .registry = &registry,
                  .backend = observed ? static_cast<Backend*>(&*observed) : &backend,
                  .sessions = sessions(config, replica, options.observer),
                  .observer = classes ? &*classes : options.observer,
                  .decisions = options.decisions,
                  .plain_store = options.stepping == DecodeStepping::per_iteration,
                  .progress = options.progress}) {}

 private:
  SessionSource* sessions(const RunConfig& config, std::int64_t replica, RunObserver* observer) {
    if (!config.system.blocks) {
      refuse_named_tokens(*all);
    }
    SessionSource* own = all.get();
    if (config.replicas.count > 1) {
      own = &share.emplace(*all, replica, config.replicas.count,
                           static_cast<std::uint64_t>(config.seed));
    }
    if (!config.workload.mix.empty()) {
      const auto& hbm = config.system.tiers.hbm;
      own = &classes.emplace(config.workload.mix.size(), *own, observer,
                             hbm ? hbm->block_size : Tokens(1));
    }
    return own;
  }
};

/// One of the replicas of a simulated run.
struct Replica {
  RunConfig config;
  SimulatedBackend backend;
  Parts parts;
  std::vector<LinkCounters> before = read_links(backend);
  std::vector<LinkCounters> after = before;

  Replica(const RunConfig& whole, std::int64_t replica, const TimingModel& timing,
          const PolicyRegistry& registry, const RunOptions& options)
      : config(config_of_replica(whole, replica)),
        backend(config.hardware, config.model.layers, timing, options.stepping),
        parts(backend, config, registry, options, replica) {
    parts.instance.on_measurement_begin = [this] { before = read_links(backend); };
    parts.instance.on_measurement_end = [this] { after = read_links(backend); };
  }
};

std::vector<LinkReport> link_reports(const std::vector<std::unique_ptr<Replica>>& replicas) {
  std::vector<LinkReport> links;
  const std::vector<Link>& all = replicas.front()->backend.topology().links;
  for (std::size_t i = 0; i < all.size(); ++i) {
    LinkReport link{all[i].name, {}};
    for (const auto& replica : replicas) {
      link.counters.forward += replica->after[i].forward - replica->before[i].forward;
      link.counters.backward += replica->after[i].backward - replica->before[i].backward;
      link.counters.busy += replica->after[i].busy - replica->before[i].busy;
    }
    links.push_back(link);
  }
  return links;
}

TimingUse timing_use(const std::vector<std::unique_ptr<Replica>>& replicas) {
  TimingUse all;
  for (const auto& replica : replicas) {
    const TimingUse& one = replica->backend.timing_use();
    all.prefills += one.prefills;
    all.extrapolated_prefills += one.extrapolated_prefills;
    all.decode_iterations += one.decode_iterations;
    all.extrapolated_decode_iterations += one.extrapolated_decode_iterations;
  }
  return all;
}

}  // namespace

Json run_on(Backend& backend, const RunConfig& config, const PolicyRegistry& registry,
            const RunOptions& options) {
  check(config, registry);
  Problems problems;
  check_one_replica(config, "a backend", problems);
  if (config.system.blocks) {
    problems.add("/system/blocks", "a backend other than the simulated one keeps no blocks yet");
  }
  problems.throw_if_any();
  Parts parts(backend, config, registry, options);
  run(parts.instance, config, options);
  std::vector<const ClassMetrics*> classes;
  if (parts.classes) {
    classes.push_back(&*parts.classes);
  }
  return report(std::array{&parts.instance}, classes, config, {}, std::nullopt);
}

Json simulate(const RunConfig& config, const PolicyRegistry& registry, const RunOptions& options) {
  check(config, registry);
  if (options.observer != nullptr || options.decisions != nullptr) {
    Problems problems;
    check_one_replica(config, "what is recorded during a run", problems);
    problems.throw_if_any();
  }
  const auto timing = make_timing(config.model, config.hardware, config.system.positions,
                                  config.serving.slots, config.system.engine);
  std::vector<std::unique_ptr<Replica>> replicas;
  std::vector<Instance*> instances;
  std::vector<const ClassMetrics*> classes;
  std::int64_t finished = 0;
  RunOptions own = options;
  if (options.progress) {
    own.progress = [&](std::int64_t turns) { options.progress(finished + turns); };
  }
  for (std::int64_t i = 0; i < config.replicas.count; ++i) {
    replicas.push_back(std::make_unique<Replica>(config, i, *timing, registry, own));
    Instance& instance = replicas.back()->parts.instance;
    run(instance, replicas.back()->config, options);
    replicas.back()->backend.check_drained();
    check_bytes(instance, replicas.back()->backend);
    instances.push_back(&instance);
    if (replicas.back()->parts.classes) {
      classes.push_back(&*replicas.back()->parts.classes);
    }
    finished += instance.finished_turns();
  }
  std::optional<Json> used;
  if (config.hardware.profile) {
    used = timing_report(config, dynamic_cast<const ProfileTiming*>(timing.get()),
                         timing_use(replicas));
  }
  return report(instances, classes, config, link_reports(replicas), used);
}

}  // namespace kvtier
