// Least frequently used: the entry with the fewest uses leaves first, ties by LRU. Uses are counted
// while the entry is in the tier or in its turn, and forgotten when it leaves ("in-cache" LFU). It
// is the optimum for independent references (Aho, Denning and Ullman, Principles of Optimal Page
// Replacement, 1971). Adapted: a use counts when its turn begins, and is recent when it ends; sizes
// and growth have no effect. O(log n) per decision.
#include "policies/eviction/lfu.hpp"

#include <algorithm>

#include "sim/policy/entry_queues.hpp"

namespace kvtier {
namespace {

class LfuEviction final : public FrontEviction<std::uint64_t> {
 public:
  void on_insert(const EntryView& entry, SimTime) override {
    queues_.arrive(entry);
    queues_.enter(entry.id, 0, next_order(entry.id));
  }
  void on_hit(EntryId entry, SimTime) override {
    queues_.hit(entry);
    std::uint64_t& uses = queues_.mark(entry);
    uses = std::min(uses + 1, kMostUses);
  }
  void on_release(const EntryView& entry, SimTime) override {
    queues_.release(entry, 0, next_order(entry.id));
  }

 private:
  static constexpr unsigned kTimeBits = 44;
  static constexpr std::uint64_t kMostUses = (std::uint64_t{1} << (64 - kTimeBits)) - 1;

  /// Order: the number of uses in the high bits, the time of the last use in the low bits.
  [[nodiscard]] std::uint64_t next_order(EntryId entry) {
    return queues_.mark(entry) << kTimeBits | ++clock_;
  }

  std::uint64_t clock_ = 0;
};

}  // namespace

PolicyKind<EvictionPolicy> lfu_eviction() {
  return {.name = "lfu",
          .summary = "the entry that was used least often leaves first, ties by LRU",
          .source = "Aho, Denning, Ullman (Journal of the ACM, 1971); counts end with eviction",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<LfuEviction>(); }};
}

}  // namespace kvtier
