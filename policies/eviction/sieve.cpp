// SIEVE: entries in the order in which they came, and a hand that moves from the oldest to the
// newest and begins again. It spares what was used since it last passed and takes the first that
// was not; nobody changes places. Zhang, Yang, Yue, Vigfusson and Rashmi, SIEVE is Simpler than
// LRU, 2024. Adapted: an entry keeps its place while its turn runs and when it grows, whatever its
// size. O(log n) per decision, amortised: each entry spared is paid by a use.
#include "policies/eviction/sieve.hpp"

#include "sim/policy/entry_queues.hpp"

namespace kvtier {
namespace {

class SieveEviction final : public QueuedEviction<char> {
 public:
  SieveEviction() : QueuedEviction(2) {}

  void on_insert(const EntryView& entry, SimTime) override {
    if (queues_.arrive(entry) == Arrival::fresh) {
      queues_.enter(entry.id, ahead_, ++clock_);
      return;
    }
    queues_.mark(entry.id) = true;
    queues_.enter(entry.id, side(entry.id), queues_.row(entry.id).order);
  }
  void on_hit(EntryId entry, SimTime) override {
    queues_.hit(entry);
    queues_.mark(entry) = true;
  }
  void on_unpin(EntryId entry) override { queues_.unpin(entry, side(entry)); }

  std::optional<Victim> select_victim(const EvictionContext&) override {
    while (true) {
      const EntryId next = queues_.front(ahead_);
      if (!next.valid()) {
        if (!queues_.front(1 - ahead_).valid()) {
          return std::nullopt;
        }
        ahead_ = 1 - ahead_;
        hand_ = 0;
        continue;
      }
      if (!queues_.mark(next)) {
        return queues_.choose(next);
      }
      queues_.mark(next) = false;
      hand_ = queues_.row(next).order;
      queues_.move(next, 1 - ahead_, hand_);
    }
  }

 private:
  [[nodiscard]] std::size_t side(EntryId entry) const {
    return queues_.row(entry).order > hand_ ? ahead_ : 1 - ahead_;
  }

  /// Ahead of the hand and behind it, in turn. Marked: used since the hand passed.
  std::size_t ahead_ = 0;
  /// The place of the last entry spared.
  std::uint64_t hand_ = 0;
  std::uint64_t clock_ = 0;
};

}  // namespace

PolicyKind<EvictionPolicy> sieve_eviction() {
  return {
      .name = "sieve",
      .summary = "a hand over the entries as they came takes the first not used since it passed",
      .source = "Zhang, Yang, Yue, Vigfusson, Rashmi (NSDI 2024)",
      .knowledge = Knowledge::online,
      .parameters = {},
      .make = [](const PolicyParameters&) { return std::make_unique<SieveEviction>(); }};
}

}  // namespace kvtier
