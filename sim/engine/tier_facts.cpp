#include "sim/engine/tier_facts.hpp"

#include <memory>

#include "hw/profile_timing.hpp"
#include "sim/engine/topology.hpp"

namespace kvtier {

TierFacts tier_facts(const RunConfig& config, Medium medium) {
  const auto recompute = [&config, timing = std::shared_ptr<TimingModel>()](Tokens tokens) mutable {
    if (timing == nullptr) {
      timing =
          make_timing(config.model, config.hardware, config.system.positions, config.serving.slots);
    }
    const PrefillPart all{.added = tokens, .past = Tokens(0)};
    return tokens.value == 0 ? SimDuration(0) : timing->prefill({&all, 1}).total;
  };
  if (medium == Medium::hbm) {
    return {.recompute = recompute, .load = [](Tokens) { return SimDuration(0); }};
  }
  const Bytes bytes_per_token = stored_kv_bytes_per_token(config);
  return {.recompute = recompute,
          .load = [topology = server_topology(config.hardware), medium,
                   bytes_per_token](Tokens tokens) {
            return topology.idle_time(medium, Medium::hbm, bytes_per_token * tokens.value);
          }};
}

}  // namespace kvtier
