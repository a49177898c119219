#include "sim/study/bound.hpp"

#include <algorithm>

#include "sim/core/assert.hpp"

namespace kvtier {

Json bound_of(const RunConfig& config, const Json& result, const PolicyRegistry& registry,
              const RunOptions& options) {
  const auto oracle =
      std::find_if(registry.eviction.begin(), registry.eviction.end(),
                   [](const auto& kind) { return kind.knowledge == Knowledge::oracle; });
  KVTIER_ASSERT(oracle != registry.eviction.end(), "the registry has an oracle");
  RunConfig best = config;
  const auto set = [&](auto& tier) {
    if (tier) {
      tier->eviction = {.name = oracle->name, .parameters = {}};
      tier->admission = {.name = kAlwaysAdmitted, .parameters = {}};
    }
  };
  set(best.system.tiers.hbm);
  set(best.system.tiers.dram);
  set(best.system.tiers.cxl);
  set(best.system.tiers.ssd);
  RunOptions silent = options;
  silent.observer = nullptr;
  silent.decisions = nullptr;
  const Json bound = simulate_untimed(best, registry, silent);
  const Json& most = bound["metrics"]["hit_rate"];
  const Json& reached = result["metrics"]["hit_rate"];
  Json shares;
  for (const char* among : {"all_turns", "resumed_turns", "tokens"}) {
    const Json& whole = most[among]["total"];
    shares[among] = !whole.is_number() || whole.get<double>() == 0
                        ? Json()
                        : Json(reached[among]["total"].get<double>() / whole.get<double>());
  }
  return {{"policy", oracle->name}, {"hit_rate", most}, {"share_reached", shares}};
}

Json untimed_bound(const RunConfig& config, const PolicyRegistry& registry,
                   const RunOptions& options) {
  if (config.system.paging || config.system.sharing == Sharing::prompts ||
      config.replicas.count > 1 || config.system.tiers.count() == 0) {
    return nullptr;
  }
  RunOptions silent = options;
  silent.observer = nullptr;
  silent.decisions = nullptr;
  const Json untimed = simulate_untimed(config, registry, silent);
  Json bound = bound_of(config, untimed, registry, silent);
  bound["untimed_hit_rate"] = untimed["metrics"]["hit_rate"];
  return bound;
}

}  // namespace kvtier
