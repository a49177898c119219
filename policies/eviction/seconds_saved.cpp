// Recompute-cost-aware: an entry is worth the seconds that finding it saves, which is computing its
// tokens less loading them from this tier, for each byte that it takes; the lowest worth leaves
// first. As in Greedy-Dual-Size (Cao and Irani, Cost-Aware WWW Proxy Caching Algorithms, 1997) the
// worth of a victim is the base of later uses, so that what is not used ages; how often an entry
// was used means nothing. O(log n) per decision.
//
// Adapted: the cost of a miss is the seconds saved, by the clock of an idle machine. Computing
// grows faster than the tokens and loading with them, so long entries are worth more for each byte.
// Where loading takes as long as computing an entry is worth a nanosecond, and the order is nearly
// LRU.
#include "policies/eviction/seconds_saved.hpp"

#include <algorithm>
#include <bit>

#include "sim/policy/entry_queues.hpp"

namespace kvtier {
namespace {

class SecondsSavedEviction final : public EvictionPolicy {
 public:
  void on_start(const TierFacts& facts) override { facts_ = facts; }
  void on_insert(const EntryView& entry, SimTime) override {
    queues_.arrive(entry);
    queues_.mark(entry.id) = {base_, value(entry)};
    queues_.enter(entry.id, 0, order(entry.id));
  }
  void on_hit(EntryId entry, SimTime) override {
    queues_.hit(entry);
    queues_.mark(entry).base = base_;
    queues_.move(entry, 0, order(entry));
  }
  void on_resize(const EntryView& entry, SimTime) override {
    queues_.resize(entry);
    queues_.mark(entry.id).value = value(entry);
    queues_.move(entry.id, 0, order(entry.id));
  }
  void on_remove(EntryId entry, SimTime) override {
    if (queues_.remove(entry)) {
      base_ = std::max(base_, worth(entry));
    }
  }
  void on_pin(EntryId entry) override { queues_.pin(entry); }
  void on_unpin(EntryId entry) override { queues_.unpin(entry); }

  std::optional<Victim> select_victim(const EvictionContext&) override {
    return queues_.choose(queues_.front(0));
  }
  void check_invariants(const TierView& tier) const override { queues_.check(tier); }

 private:
  struct Worth {
    double base = 0;
    /// Seconds saved for each byte.
    double value = 0;
  };

  [[nodiscard]] double value(const EntryView& entry) const {
    const SimDuration saved = facts_.recompute(entry.tokens) - facts_.load(entry.tokens);
    return std::max(saved, SimDuration(1)).seconds() /
           static_cast<double>(std::max<std::int64_t>(1, entry.bytes.value));
  }
  [[nodiscard]] double worth(EntryId entry) const {
    return queues_.row(entry).mark.base + queues_.row(entry).mark.value;
  }
  /// Of numbers that are not negative the bits are in the same order.
  [[nodiscard]] std::uint64_t order(EntryId entry) const {
    return std::bit_cast<std::uint64_t>(worth(entry));
  }

  TierFacts facts_;
  EntryQueues<Worth> queues_{1};
  /// The highest worth of a victim so far.
  double base_ = 0;
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
