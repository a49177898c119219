// SIEVE: entries are in the order of insertion, and a hand moves from the oldest to the newest and
// begins again. It spares entries used since it last passed, and evicts the first unused one.
// Entries never change places. Zhang, Yang, Yue, Vigfusson and Rashmi, SIEVE is Simpler than LRU,
// 2024. Adapted: an entry keeps its place and its mark while its turn runs and when it grows,
// whatever its size. O(1) per victim, amortised, because each spared entry needs a use; plus one
// step per entry that is not offered.
#include "policies/eviction/sieve.hpp"

#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/entry_list.hpp"

namespace kvtier {
namespace {

class SieveEviction final : public EvictionPolicy {
 public:
  void on_insert(const EntryView& entry, SimTime) override {
    set_used(entry.id, 0);
    list_.push_back(entry.id);
  }
  void on_split(const EntryView& head, const EntryView& tail, SimTime) override {
    set_used(tail.id, used_[head.id.value]);
    list_.insert_before(head.id, tail.id);
  }
  void on_hit(EntryId entry, SimTime) override { used_[entry.value] = 1; }
  void on_remove(EntryId entry, SimTime) override {
    if (entry == hand_) {
      hand_ = list_.next(entry);
    }
    list_.remove(entry);
  }

  void choose(const RoomRequest&, Victims& victims) override {
    // Two rounds without a victim: no entry may leave.
    std::size_t passed = 0;
    while (victims.wants_more() && passed < 2 * list_.size()) {
      // After the newest entry, the hand begins again at the oldest.
      hand_ = hand_.valid() ? hand_ : list_.front();
      ++passed;
      if (victims.offers(hand_)) {
        if (used_[hand_.value] == 0) {
          victims.add(hand_);
          passed = 0;
          if (victims.refused()) {
            return;
          }
        }
        used_[hand_.value] = 0;
      }
      hand_ = list_.next(hand_);
    }
  }

  void check_invariants(const TierView& tier) const override {
    std::size_t residents = 0;
    tier.for_each_resident([&](const EntryView& entry, bool) {
      ++residents;
      KVTIER_ASSERT(list_.contains(entry.id), "sieve lists every resident entry");
    });
    KVTIER_ASSERT(residents == list_.size(), "sieve lists nothing but resident entries");
    KVTIER_ASSERT(!hand_.valid() || list_.contains(hand_), "sieve's hand is at a listed entry");
  }

 private:
  void set_used(EntryId entry, char used) {
    if (entry.value >= used_.size()) {
      used_.resize(static_cast<std::size_t>(entry.value) + 1);
    }
    used_[entry.value] = used;
  }

  /// The oldest in front.
  EntryList list_;
  /// The next entry to check; kNoEntry: the oldest.
  EntryId hand_ = kNoEntry;
  /// By entry: whether it was used since the hand passed.
  std::vector<char> used_;
};

}  // namespace

PolicyKind<EvictionPolicy> sieve_eviction() {
  return {
      .name = "sieve",
      .summary =
          "a hand over the entries in order of insertion evicts the first not used since it passed",
      .source = "Zhang, Yang, Yue, Vigfusson, Rashmi (NSDI 2024)",
      .knowledge = Knowledge::online,
      .parameters = {},
      .make = [](const PolicyParameters&) { return std::make_unique<SieveEviction>(); }};
}

}  // namespace kvtier
