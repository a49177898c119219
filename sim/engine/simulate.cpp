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

constexpr const char* kLinkNames[] = {"pcie", "ssd"};

void read_links(const SimulatedBackend& backend, std::vector<LinkCounters>& counters) {
  for (std::size_t i = 0; i < LinkNames::count; ++i) {
    counters[i] = backend.link_counters(i);
  }
}

/// What the links carried is what the tiers took and gave, to the byte.
void check_bytes(Instance& instance, const SimulatedBackend& backend) {
  const LinkCounters pcie = backend.link_counters(LinkNames::pcie);
  const LinkCounters ssd = backend.link_counters(LinkNames::ssd);
  const Bytes from_dram = instance.loaded_bytes(Medium::dram);
  const Bytes from_ssd = instance.loaded_bytes(Medium::ssd);
  TierManager& tiers = instance.tiers();
  std::array<std::optional<TierCounters>, kMedia> used;
  for (std::size_t i = 0; i < tiers.tier_count(); ++i) {
    used[static_cast<std::size_t>(tiers.medium(i))] = tiers.counters(i);
  }
  const auto& [hbm, dram, drives] = used;
  const Bytes fetched_to_hbm = hbm ? hbm->written : Bytes(0);
  KVTIER_ASSERT(pcie.forward == from_dram + from_ssd + fetched_to_hbm,
                "PCIe carries to the GPUs what is loaded and fetched");
  KVTIER_ASSERT(!hbm || hbm->read == pcie.backward, "what leaves HBM crosses PCIe");
  if (dram) {
    // The drives are read for HBM, by loads and by fetches to a tier there, or else for DRAM.
    const Bytes past_dram = hbm ? ssd.forward : from_ssd;
    KVTIER_ASSERT(dram->read == pcie.forward - past_dram + ssd.backward,
                  "DRAM gives what goes to the GPUs and to the drives");
    KVTIER_ASSERT(dram->written == pcie.backward + (ssd.forward - past_dram),
                  "DRAM takes what comes from the GPUs and from the drives");
  } else {
    KVTIER_ASSERT(!drives || pcie.backward == ssd.backward,
                  "without DRAM what leaves HBM goes to the drives");
  }
  if (drives) {
    KVTIER_ASSERT(drives->read == ssd.forward, "the drives give what their link carries");
    KVTIER_ASSERT(drives->written == ssd.backward, "the drives take what their link carries");
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

}  // namespace

Json simulate(const RunConfig& config, const PolicyRegistry& registry, const RunOptions& options) {
  Problems problems;
  check_run_config(config, registry, problems);
  problems.throw_if_any();

  const auto timing = make_timing(config.model, config.hardware, config.serving.slots);
  SimulatedBackend backend(config.hardware, config.model.layers, *timing, options.stepping);
  std::optional<ObservedBackend> observed;
  if (options.observer != nullptr) {
    observed.emplace(backend, *options.observer);
  }
  const auto source =
      make_source(config.workload, static_cast<std::uint64_t>(config.seed), options.base_dir);
  Instance instance({.config = &config,
                     .registry = &registry,
                     .backend = observed ? static_cast<Backend*>(&*observed) : &backend,
                     .sessions = source.get(),
                     .observer = options.observer,
                     .decisions = options.decisions,
                     .progress = options.progress});
  std::vector<LinkReport> links;
  std::vector<LinkCounters> before(LinkNames::count);
  std::vector<LinkCounters> after(LinkNames::count);
  instance.on_measurement_begin = [&] { read_links(backend, before); };
  instance.on_measurement_end = [&] { read_links(backend, after); };
  instance.run();
  backend.check_drained();
  check_bytes(instance, backend);
  check_counts(instance.turns());
  if (instance.turns().turns == 0) {
    throw ConfigError(
        fmt::format("/workload/warmup_turns: expected less than the workload's {} turns, got {}",
                    instance.finished_turns(), config.workload.warmup_turns));
  }
  for (std::size_t i = 0; i < LinkNames::count; ++i) {
    if (i == LinkNames::ssd && !config.hardware.ssd) {
      continue;
    }
    const LinkCounters& now = after[i];
    links.push_back({kLinkNames[i],
                     {.forward = now.forward - before[i].forward,
                      .backward = now.backward - before[i].backward,
                      .busy = now.busy - before[i].busy}});
  }
  Json result;
  result["format"] = "kvtier.result/1";
  result["config"] = write_value(config);
  result["workload"] = to_json(instance.workload());
  result["load"] = load_report(instance);
  if (const auto* profile = dynamic_cast<const ProfileTiming*>(timing.get())) {
    result["timing"] = timing_report(config, *profile, backend.timing_use());
  }
  result["metrics"] = metrics_report(instance, config, links);
  return result;
}

}  // namespace kvtier
