#include "sim/store/sessions/store_facts.hpp"

namespace kvtier {

TierFacts tier_facts(const StoreFacts& facts, Medium medium) {
  if (medium == Medium::hbm) {
    return {.recompute = facts.recompute, .load = [](Tokens) { return SimDuration(0); }};
  }
  return {.recompute = facts.recompute,
          .load = [topology = facts.topology, medium,
                   bytes_per_token = facts.bytes_per_token](Tokens tokens) {
            return topology.idle_time(medium, Medium::hbm, bytes_per_token * tokens.value);
          }};
}

}  // namespace kvtier
