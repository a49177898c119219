// Least frequently used: the entry with the fewest uses leaves first, of equal ones the least
// recently used. Uses are counted while the entry is in the tier or in its turn, and forgotten when
// it leaves as a victim ("in-cache" LFU; Aho, Denning and Ullman, Principles of Optimal Page
// Replacement, 1971, have it as the optimum for independent references). Adapted: a session is used
// when its turn finds it; sizes and growth mean nothing. O(log n) per decision.
#include "policies/eviction/lfu.hpp"

#include <algorithm>

#include "sim/policy/entry_queues.hpp"

namespace kvtier {
namespace {

class LfuEviction final : public QueuedEviction<std::uint64_t> {
 public:
  LfuEviction() : QueuedEviction(1) {}

  void on_insert(const EntryView& entry, SimTime) override {
    const bool used = queues_.arrive(entry) == Arrival::back_untold;
    queues_.enter(entry.id, 0, next_order(entry.id, used));
  }
  void on_hit(EntryId entry, SimTime) override {
    queues_.hit(entry);
    queues_.move(entry, 0, next_order(entry, true));
  }

  std::optional<Victim> select_victim(const EvictionContext&) override {
    return queues_.choose(queues_.front(0));
  }

 private:
  /// The number of uses before the time of the last one.
  [[nodiscard]] std::uint64_t next_order(EntryId entry, bool used) {
    constexpr unsigned kTimeBits = 44;
    constexpr std::uint64_t kMostUses = (std::uint64_t{1} << (64 - kTimeBits)) - 1;
    std::uint64_t& uses = queues_.mark(entry);
    uses = std::min(uses + (used ? 1 : 0), kMostUses);
    return uses << kTimeBits | ++clock_;
  }

  std::uint64_t clock_ = 0;
};

}  // namespace

PolicyKind<EvictionPolicy> lfu_eviction() {
  return {.name = "lfu",
          .summary = "the entry that was used least often leaves first, of equal ones LRU",
          .source = "Aho, Denning, Ullman (Journal of the ACM, 1971); counts end with eviction",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<LfuEviction>(); }};
}

}  // namespace kvtier
