#include "sim/engine/simulate.hpp"

#include <array>
#include <optional>

#include <fmt/format.h>

#include "hw/profile_timing.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "sim/engine/observed_backend.hpp"
#include "sim/engine/result.hpp"

namespace kvtier {
namespace {

constexpr const char* kLinkNames[] = {"pcie", "ssd", "cxl", "dram"};

bool has_link(const HardwareConfig& hardware, std::size_t link) {
  switch (link) {
    case LinkNames::ssd:
      return hardware.ssd.has_value();
    case LinkNames::cxl:
      return hardware.cxl.has_value();
    case LinkNames::dram:
      return hardware.dram && hardware.dram->bandwidth;
    default:
      return true;
  }
}

void read_links(const SimulatedBackend& backend, std::vector<LinkCounters>& counters) {
  for (std::size_t i = 0; i < LinkNames::count; ++i) {
    counters[i] = backend.link_counters(i);
  }
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

void check(const RunConfig& config, const PolicyRegistry& registry) {
  Problems problems;
  check_run_config(config, registry, problems);
  const SystemConfig& system = config.system;
  check_no_oracle(system.order, registry.order, "/system/order", problems);
  check_no_oracle(system.prefetch, registry.prefetch, "/system/prefetch", problems);
  for_each_tier(system.tiers, [&](const char* name, const TierConfig& tier) {
    check_no_oracle(tier.eviction, registry.eviction,
                    std::string("/system/tiers/") + name + "/eviction", problems);
  });
  problems.throw_if_any();
}

Json report(Instance& instance, const RunConfig& config, const std::vector<LinkReport>& links,
            const std::optional<Json>& timing) {
  Json result;
  result["format"] = "kvtier.result/1";
  result["config"] = write_value(config);
  result["workload"] = workload_report(config, instance.workload());
  result["load"] = load_report(instance);
  if (timing) {
    result["timing"] = *timing;
  }
  result["metrics"] = metrics_report(instance, config, links);
  return result;
}

/// Runs it all, and throws if that measured nothing.
void run(Instance& instance, const RunConfig& config) {
  instance.run();
  check_counts(instance.turns());
  if (instance.turns().turns == 0) {
    throw ConfigError(
        fmt::format("/workload/warmup_turns: expected less than the workload's {} turns, got {}",
                    instance.finished_turns(), config.workload.warmup_turns));
  }
}

/// The sessions and the observers of a run on a backend.
struct Parts {
  std::unique_ptr<SessionSource> source;
  std::optional<ObservedBackend> observed;
  Instance instance;

  Parts(Backend& backend, const RunConfig& config, const PolicyRegistry& registry,
        const RunOptions& options)
      : source(make_source(config.workload, static_cast<std::uint64_t>(config.seed),
                           options.base_dir)),
        observed(options.observer != nullptr
                     ? std::optional<ObservedBackend>(std::in_place, backend, *options.observer)
                     : std::nullopt),
        instance({.config = &config,
                  .registry = &registry,
                  .backend = observed ? static_cast<Backend*>(&*observed) : &backend,
                  .sessions = source.get(),
                  .observer = options.observer,
                  .decisions = options.decisions,
                  .progress = options.progress}) {}
};

}  // namespace

Json run_on(Backend& backend, const RunConfig& config, const PolicyRegistry& registry,
            const RunOptions& options) {
  check(config, registry);
  Parts parts(backend, config, registry, options);
  run(parts.instance, config);
  return report(parts.instance, config, {}, std::nullopt);
}

Json simulate(const RunConfig& config, const PolicyRegistry& registry, const RunOptions& options) {
  check(config, registry);
  const auto timing =
      make_timing(config.model, config.hardware, config.system.positions, config.serving.slots);
  SimulatedBackend backend(config.hardware, config.model.layers, *timing, options.stepping);
  Parts parts(backend, config, registry, options);
  Instance& instance = parts.instance;
  std::vector<LinkCounters> before(LinkNames::count);
  std::vector<LinkCounters> after(LinkNames::count);
  instance.on_measurement_begin = [&] { read_links(backend, before); };
  instance.on_measurement_end = [&] { read_links(backend, after); };
  run(instance, config);
  backend.check_drained();
  check_bytes(instance, backend);
  std::vector<LinkReport> links;
  for (std::size_t i = 0; i < LinkNames::count; ++i) {
    if (!has_link(config.hardware, i)) {
      continue;
    }
    const LinkCounters& now = after[i];
    links.push_back({kLinkNames[i],
                     {.forward = now.forward - before[i].forward,
                      .backward = now.backward - before[i].backward,
                      .busy = now.busy - before[i].busy}});
  }
  std::optional<Json> used;
  if (const auto* profile = dynamic_cast<const ProfileTiming*>(timing.get())) {
    used = timing_report(config, *profile, backend.timing_use());
  }
  return report(instance, config, links, used);
}

}  // namespace kvtier
