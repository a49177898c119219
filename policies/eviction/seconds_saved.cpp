// Recompute-cost-aware: an entry is worth the seconds that finding it saves, which is computing its
// tokens less loading them from this tier, for each byte that it takes; the lowest worth leaves
// first. As in Greedy-Dual-Size (Cao and Irani, Cost-Aware WWW Proxy Caching Algorithms, 1997) the
// worth of a victim is the base of later uses, so that unused entries age; how often an entry was
// used means nothing. O(log n) per decision.
//
// Adapted: the cost of a miss is the seconds saved, by the clock of an idle machine. Computing
// grows faster than the tokens and loading with them, so long entries are worth more for each byte.
// If loading takes as long as computing, an entry is worth a nanosecond, and the order is nearly
// LRU.
#include "policies/eviction/seconds_saved.hpp"

#include <algorithm>

#include "sim/policy/greedy_dual.hpp"

namespace kvtier {
namespace {

class SecondsSavedEviction final : public GreedyDual {
 public:
  SecondsSavedEviction() : GreedyDual(false) {}

 private:
  [[nodiscard]] double use_value(Tokens tokens) const override {
    const SimDuration saved = facts().recompute(tokens) - facts().load(tokens);
    return std::max(saved, SimDuration(1)).seconds();
  }
};

}  // namespace

PolicyKind<EvictionPolicy> seconds_saved_eviction() {
  return {.name = "seconds_saved",
          .summary = "the entry whose bytes save the fewest seconds of computing leaves first",
          .source = "Greedy-Dual-Size (Cao, Irani, USITS 1997), of seconds that a hit saves",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<SecondsSavedEviction>(); }};
}

}  // namespace kvtier
