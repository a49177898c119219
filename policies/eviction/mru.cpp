// Most recently used: the entry that was used last leaves first. It suits cyclic scans, and does
// badly with most sessions. Chou and DeWitt, An Evaluation of Buffer Management Strategies for
// Relational Database Systems, 1985. Adapted: the end of a turn is the use; sizes and growth have
// no effect. O(log n) per decision.
#include "policies/eviction/mru.hpp"

#include "sim/policy/entry_queues.hpp"

namespace kvtier {
namespace {

class MruEviction final : public FrontEviction<NoMark> {
 public:
  void on_insert(const EntryView& entry, SimTime) override {
    queues_.arrive(entry);
    queues_.enter(entry.id, 0, --order_);
  }
  void on_release(const EntryView& entry, SimTime) override { queues_.release(entry, 0, --order_); }

 private:
  /// A smaller number is a later use.
  std::uint64_t order_ = UINT64_MAX;
};

}  // namespace

PolicyKind<EvictionPolicy> mru_eviction() {
  return {.name = "mru",
          .summary = "the entry that was used most recently leaves first",
          .source = "Chou, DeWitt (VLDB 1985)",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<MruEviction>(); }};
}

}  // namespace kvtier
