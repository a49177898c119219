// Recompute-cost-aware: worth = base + seconds saved by a hit / bytes, and the lowest worth leaves
// first. A hit saves the time to compute the tokens, behind the tokens before them, minus the time
// to load them from this tier. As in Greedy-Dual-Size (Cao and Irani, Cost-Aware WWW Proxy Caching
// Algorithms, 1997), the worth of a victim is the base of later uses, so that unused entries age.
// The number of uses has no effect. O(log n) per decision.
//
// Adapted: the cost of a miss is the seconds saved on an idle machine. The time to compute grows
// faster than the tokens, and the time to load in proportion to them. So long entries are worth
// more per byte. If loading takes at least as long as computing, a hit counts as one nanosecond,
// and the order is nearly LRU.
#include "policies/eviction/seconds_saved.hpp"

#include <algorithm>

#include "sim/policy/greedy_dual.hpp"

namespace kvtier {
namespace {

class SecondsSavedEviction final : public GreedyDual {
 public:
  SecondsSavedEviction() : GreedyDual(false) {}

 private:
  [[nodiscard]] double use_value(const EntryView& entry) const override {
    const SimDuration load = facts().load(entry.tokens);
    return std::max(recompute(entry) - load, SimDuration(1)).seconds();
  }
};

}  // namespace

PolicyKind<EvictionPolicy> seconds_saved_eviction() {
  return {
      .name = "seconds_saved",
      .summary = "the entry whose hit saves the fewest seconds per byte leaves first, with ageing",
      .source = "Greedy-Dual-Size (Cao, Irani, USITS 1997), of seconds that a hit saves",
      .knowledge = Knowledge::online,
      .parameters = {},
      .make = [](const PolicyParameters&) { return std::make_unique<SecondsSavedEviction>(); }};
}

}  // namespace kvtier
