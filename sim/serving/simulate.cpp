#include "sim/serving/simulate.hpp"

#include <algorithm>
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
#include "sim/serving/cluster.hpp"
#include "sim/serving/model_error.hpp"
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

/// Bytes moved between the media equal those that the tiers took and gave.
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
  refuse(config.serving.hold_requests > 0, "/serving/hold_requests",
         "0: an untimed replay holds requests");
  const bool nodes = system.blocks->unit == EvictionUnit::node;
  const bool several = nodes && system.tiers.count() > 1;
  refuse(several && system.batching != Batching::separate, "/system/batching",
         "separate for nodes in several tiers");
  const bool plans_batches = nodes && system.batching == Batching::separate;
  refuse(system.batching != Batching::unified && !plans_batches && !system.blocks->whole_prompts,
         "/system/blocks/whole_prompts",
         "true with batching separate or prefill_first, but for nodes with separate");
  refuse(several && system.save.mode == SaveMode::blocking, "/system/save/mode", "async for nodes");
  refuse(several && system.load.buffers != 0, "/system/load/buffers", "0 for nodes");
  refuse(several && load_wait(system) == LoadWait::request, "/system/load/wait",
         "batch for nodes in several tiers");
  if (plans_batches && system.tiers.hbm) {
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
    const Bytes free = running_kv_capacity(config);
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
  for (std::size_t g = 0; g < config.cluster.groups.size() && problems.empty(); ++g) {
    Problems of_group;
    check_timed_blocks(group_config(config, g), of_group);
    add_of_group(of_group, g, problems);
  }
  if (config.cluster.shared && config.cluster.shared->tier != SharedTier::dram) {
    problems.add("/cluster/shared/tier", fmt::format("in a timed run expected dram, got \"{}\"",
                                                     to_string(config.cluster.shared->tier)));
  }
  for_each_tier(system.tiers, [&](const char* name, const TierConfig& tier) {
    check_no_oracle(tier.eviction, registry.eviction,
                    std::string("/system/tiers/") + name + "/eviction", problems);
  });
  problems.throw_if_any();
}

Json report(Requests& users, Instances instances, const ClassMetrics* classes,
            const RunConfig& config, const std::vector<LinkReport>& links,
            const std::optional<Json>& timing) {
  Json result = new_result("kvtier.result/1");
  result["config"] = write_value(config);
  result["workload"] = workload_report(config, users.workload());
  result["load"] = load_report(users, instances, config);
  if (timing) {
    result["timing"] = *timing;
  }
  result["metrics"] = metrics_report(users, instances, config, links);
  result["metrics"]["confidence"] = confidence_report(users.turns(), result["load"]);
  if (classes != nullptr) {
    result["metrics"]["classes"] = classes_report(*classes, config);
  }
  return result;
}

/// Checks that something was counted.
void check_measured(const Requests& users, const RunConfig& config) {
  check_counts(users.turns());
  if (users.turns().turns == 0) {
    throw ConfigError(
        fmt::format("/workload/warmup_turns: expected less than the workload's {} turns, got {}",
                    users.finished_turns(), config.workload.warmup_turns));
  }
}

/// The sessions of a run and what observes it. `config` outlives it.
struct Users {
  std::unique_ptr<SessionSource> all;
  /// In a mix of workloads.
  std::optional<ClassMetrics> classes;
  SessionSource* sessions;
  RunObserver* observer;

  Users(const RunConfig& config, const RunOptions& options)
      : all(make_source(config.workload, static_cast<std::uint64_t>(config.seed),
                        options.base_dir)),
        sessions(all.get()),
        observer(options.observer) {
    refuse_named_tokens(config.system, *all);
    if (!config.workload.mix.empty()) {
      sessions = &classes.emplace(config.workload.mix.size(), *all, observer);
      observer = &*classes;
    }
  }
  [[nodiscard]] const ClassMetrics* counts() const { return classes ? &*classes : nullptr; }
};

/// One instance on a backend. `config` outlives it.
struct Single {
  Users users;
  std::optional<ObservedBackend> observed;
  Instance instance;

  Single(Backend& backend, const RunConfig& config, const PolicyRegistry& registry,
         const RunOptions& options)
      : users(config, options),
        observed(options.observer != nullptr
                     ? std::optional<ObservedBackend>(std::in_place, backend, *options.observer)
                     : std::nullopt),
        instance({.config = &config,
                  .registry = &registry,
                  .backend = observed ? static_cast<Backend*>(&*observed) : &backend,
                  .sessions = users.sessions,
                  .observer = users.observer,
                  .decisions = options.decisions,
                  .plain_store = options.stepping == DecodeStepping::per_iteration,
                  .progress = options.progress}) {}

  void run(const RunConfig& config, const RunOptions& options) {
    if (options.on_start) {
      options.on_start(instance);
    }
    instance.run();
    check_measured(instance.requests(), config);
  }
};

std::vector<LinkReport> link_reports(std::span<const Cluster::Served> served) {
  std::vector<LinkReport> links;
  for (const Cluster::Served& one : served) {
    const std::vector<Link>& all = one.backend->topology().links;
    for (std::size_t i = 0; i < all.size(); ++i) {
      auto link = std::find_if(links.begin(), links.end(),
                               [&](const LinkReport& other) { return other.name == all[i].name; });
      if (link == links.end()) {
        link = links.insert(link, {all[i].name, {}, 0});
      }
      if (!one.before.empty() && !one.after.empty()) {
        link->counters.forward += one.after[i].forward - one.before[i].forward;
        link->counters.backward += one.after[i].backward - one.before[i].backward;
        link->counters.busy += one.after[i].busy - one.before[i].busy;
        link->seconds += one.instance->measured().span().seconds();
      }
    }
  }
  return links;
}

/// Adds up the times that the instances with this config used.
TimingUse timing_use(std::span<const Cluster::Served> served, const RunConfig& config) {
  TimingUse all;
  for (const Cluster::Served& served_by : served) {
    if (&served_by.instance->config() != &config) {
      continue;
    }
    all += served_by.backend->timing_use();
  }
  return all;
}

void add_model_error(Json& result, const RunConfig& config,
                     std::span<const Cluster::Served> served) {
  std::vector<SourceUse> use;
  for (const Cluster::Served& one : served) {
    use.push_back(
        {.hardware = &one.instance->config().hardware, .timing = one.backend->timing_use()});
  }
  const Json& metrics = result["metrics"];
  result["model_error"] = model_error_report(model_error(config, metrics, use), metrics);
}

std::optional<Json> report_timing(const RunConfig& config, const TimingModel* timing,
                                  std::span<const Cluster::Served> served) {
  const bool is_used = std::any_of(served.begin(), served.end(), [&](const Cluster::Served& one) {
    return &one.instance->config() == &config;
  });
  return config.hardware.profile && is_used
             ? std::optional(timing_report(config, dynamic_cast<const ProfileTiming*>(timing),
                                           timing_use(served, config)))
             : std::nullopt;
}

}  // namespace

Json run_on(Backend& backend, const RunConfig& config, const PolicyRegistry& registry,
            const RunOptions& options) {
  check(config, registry);
  Problems problems;
  check_one_instance(config, "a backend", problems);
  problems.throw_if_any();
  Single single(backend, config, registry, options);
  single.run(config, options);
  return report(single.instance.requests(), std::array{&single.instance}, single.users.counts(),
                config, {}, std::nullopt);
}

Json simulate(const RunConfig& config, const PolicyRegistry& registry, const RunOptions& options) {
  if (is_cluster(config)) {
    return simulate_cluster(config, registry, options);
  }
  check(config, registry);
  const auto timing = make_timing(config.model, config.hardware, config.system.positions,
                                  config.serving.slots, config.system.engine);
  SimulatedBackend backend(config.hardware, config.model.layers, *timing, options.stepping);
  Single single(backend, config, registry, options);
  Instance& instance = single.instance;
  std::vector<LinkCounters> before = read_links(backend);
  std::vector<LinkCounters> after = before;
  instance.on_measurement_begin = [&] { before = read_links(backend); };
  instance.on_measurement_end = [&] { after = read_links(backend); };
  single.run(config, options);
  backend.check_drained();
  check_bytes(instance, backend);
  const Cluster::Served served{.number = 0,
                               .instance = &instance,
                               .backend = &backend,
                               .before = before,
                               .after = after,
                               .lost = false};
  Json result =
      report(instance.requests(), std::array{&instance}, single.users.counts(), config,
             link_reports({&served, 1}), report_timing(config, timing.get(), {&served, 1}));
  add_model_error(result, config, {&served, 1});
  return result;
}

namespace {

/// The work of each instance of a cluster in the measured part, lost ones included.
Json instances_report(Cluster& cluster, std::span<const Cluster::Served> served,
                      const RunConfig& config) {
  const SimDuration span = cluster.users().measured().span();
  const auto share = [](double part, double whole) { return whole > 0 ? part / whole : 0.0; };
  Json all = Json::array();
  for (std::int64_t number = 0; number < config.cluster.instances; ++number) {
    std::int64_t finished = 0;
    std::int64_t preemptions = 0;
    double queue = 0;
    ServedTurns turns;
    GpuTime gpu;
    std::int64_t gpus = 0;
    for (const Cluster::Served& one : served) {
      if (one.number == number) {
        Instance& instance = *one.instance;
        gpus = instance.config().hardware.gpus;
        finished += instance.finished_turns();
        const MeasuredPart& part = cluster.users().measured();
        if (instance.measured().to <= part.from) {
          continue;  // it was lost before
        }
        preemptions += instance.preemptions();
        queue += instance.queue_trend().mean(part.from, part.to);
        const ServedTurns& own = instance.requests().served();
        turns.turns += own.turns;
        turns.prompt_tokens += own.prompt_tokens;
        turns.looked_up_tokens += own.looked_up_tokens;
        turns.found_tokens += own.found_tokens;
        turns.output_tokens += own.output_tokens;
        turns.ttft_ns.merge(own.ttft_ns);
        gpu += instance.measured_gpu_time();
      }
    }
    Json json{{"instance", number},
              {"requests", finished},
              {"measured_requests", turns.turns},
              {"prompt_tokens", turns.prompt_tokens.value},
              {"output_tokens", turns.output_tokens.value},
              {"prompt_hit_rate", share(static_cast<double>(turns.found_tokens.value),
                                        static_cast<double>(turns.looked_up_tokens.value))},
              {"ttft_seconds", seconds_report(turns.ttft_ns)},
              {"queue_length_mean", queue},
              {"gpu_busy_fraction", share(gpu.busy().seconds(), span.seconds())},
              {"prefill_gpu_seconds", gpu.prefill.seconds() * static_cast<double>(gpus)},
              {"preemptions", preemptions},
              {"series", cluster.series(number).report(cluster.users().last_finish())}};
    all.push_back(std::move(json));
  }
  return all;
}

/// The largest value of the instances over their mean; 0 if that is 0.
double imbalance(const Json& instances, const char* key) {
  double sum = 0;
  double most = 0;
  for (const Json& one : instances) {
    sum += one[key].get<double>();
    most = std::max(most, one[key].get<double>());
  }
  return sum > 0 ? most * static_cast<double>(instances.size()) / sum : 0.0;
}

}  // namespace

Json simulate_cluster(const RunConfig& config, const PolicyRegistry& registry,
                      const RunOptions& options) {
  check(config, registry);
  Problems problems;
  if (options.decisions != nullptr) {
    check_one_instance(config, "a log of decisions", problems);
  }
  problems.throw_if_any();
  const auto timing = make_timing(config.model, config.hardware, config.system.positions,
                                  config.serving.slots, config.system.engine);
  // Addresses stay.
  std::vector<RunConfig> group_configs;
  group_configs.reserve(config.cluster.groups.size());
  std::vector<std::unique_ptr<TimingModel>> group_timings;
  std::vector<Cluster::Kind> kinds;
  for (std::size_t g = 0; g < config.cluster.groups.size(); ++g) {
    const RunConfig& own = group_configs.emplace_back(group_config(config, g));
    group_timings.push_back(make_timing(own.model, own.hardware, own.system.positions,
                                        own.serving.slots, own.system.engine));
    kinds.push_back({&own, group_timings.back().get()});
  }
  const Users users(config, options);
  Cluster cluster({.config = &config,
                   .groups = kinds,
                   .registry = &registry,
                   .timing = timing.get(),
                   .sessions = users.sessions,
                   .observer = users.observer,
                   .stepping = options.stepping,
                   .progress = options.progress});
  cluster.run();
  check_measured(cluster.users(), config);
  std::vector<Cluster::Served> served = cluster.served();
  std::vector<Instance*> instances;
  for (Cluster::Served& one : served) {
    if (!one.lost) {
      one.backend->check_drained();
      check_bytes(*one.instance, *one.backend);
    }
    // The measured part may have begun again after an instance was lost.
    const MeasuredPart& own = one.instance->measured();
    if (own.to > own.from && own.to > cluster.users().measured().from) {
      instances.push_back(one.instance);
    } else {
      one.before.clear();
      one.after.clear();
    }
  }
  Json result = report(cluster.users(), instances, users.counts(), config, link_reports(served),
                       report_timing(config, timing.get(), served));
  add_model_error(result, config, served);
  for (const Cluster::Kind& kind : kinds) {
    if (auto of_group = report_timing(*kind.config, kind.timing, served)) {
      result["timing_of_groups"].push_back(std::move(*of_group));
    }
  }
  Json& metrics = result["metrics"];
  Json of_instances = instances_report(cluster, served, config);
  metrics["cluster"] =
      Json{{"instances", config.cluster.instances},
           {"router", config.cluster.router.name},
           {"router_ignores_tiers",
            cluster.router().knows_sent_blocks_only() && config.system.tiers.count() > 1},
           {"requests_sent_again", cluster.sent_again()},
           {"imbalance",
            {{"requests", imbalance(of_instances, "measured_requests")},
             {"prompt_tokens", imbalance(of_instances, "prompt_tokens")},
             {"prefill_gpu_seconds", imbalance(of_instances, "prefill_gpu_seconds")}}}};
  if (config.cluster.disaggregation) {
    const Cluster::Transfers& transfers = cluster.transfers();
    metrics["cluster"]["prefill"] =
        Json{{"apart", transfers.apart},
             {"on_decode_instances", transfers.local},
             {"transferred_bytes", transfers.bytes.value},
             {"wait_for_decode_memory_seconds", seconds_report(transfers.room_ns)},
             {"transfer_seconds", seconds_report(transfers.transfer_ns)}};
  }
  if (config.cluster.shared) {
    const Cluster::SharedUse& use = cluster.shared_use();
    const std::string tier(to_string(config.cluster.shared->tier));
    const auto span = static_cast<double>(cluster.users().measured().span().ns);
    metrics["tiers"][tier]["occupancy_bytes"] =
        Json{{"mean", span > 0 ? static_cast<double>(use.byte_ns) / span : 0.0},
             {"max", use.peak.value}};
    metrics["tiers"][tier]["filling"] =
        is_filling(metrics["tiers"][tier]["evictions"], use.peak_before, use.peak);
    metrics["cluster"]["shared"] = Json{{"tier", tier},
                                        {"read_bytes", use.read.value},
                                        {"written_bytes", use.written.value},
                                        {"network_bytes", use.carried.value},
                                        {"read_seconds", seconds_report(use.read_ns)},
                                        {"write_seconds", seconds_report(use.write_ns)}};
  }
  metrics["instances"] = std::move(of_instances);
  return result;
}

}  // namespace kvtier
