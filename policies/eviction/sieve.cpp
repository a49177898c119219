// SIEVE: entries in the order in which they came, and a hand that moves from the oldest to the
// newest and begins again. It spares what was used since it last passed and takes the first that
// was not; nobody changes places. Zhang, Yang, Yue, Vigfusson and Rashmi, SIEVE is Simpler than
// LRU, 2024. Adapted: an entry keeps its place and its mark while its turn runs and when it grows,
// whatever its size. O(1) per decision, amortised: each entry spared is paid by a use; plus one
// step per pinned entry that the hand passes.
#include "policies/eviction/sieve.hpp"

#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/entry_list.hpp"

namespace kvtier {
namespace {

class SieveEviction final : public EvictionPolicy {
 public:
  void on_insert(const EntryView& entry, SimTime) override {
    if (entry.id.value >= states_.size()) {
      states_.resize(static_cast<std::size_t>(entry.id.value) + 1);
    }
    states_[entry.id.value] = State{};
    list_.push_back(entry.id);
  }
  void on_hit(EntryId entry, SimTime) override { states_[entry.value].used = true; }
  void on_remove(EntryId entry, SimTime) override {
    if (entry == hand_) {
      hand_ = list_.next(entry);
    }
    list_.remove(entry);
    pinned_ -= states_[entry.value].pinned ? 1 : 0;
  }
  void on_pin(EntryId entry) override {
    states_[entry.value].pinned = true;
    ++pinned_;
  }
  void on_unpin(EntryId entry) override {
    states_[entry.value].pinned = false;
    --pinned_;
  }

  std::optional<Victim> select_victim(const EvictionContext&) override {
    if (pinned_ == list_.size()) {
      return std::nullopt;
    }
    while (true) {
      // Past the newest the hand begins again at the oldest.
      hand_ = hand_.valid() ? hand_ : list_.front();
      State& state = states_[hand_.value];
      if (!state.pinned && !state.used) {
        return Victim{hand_, Tokens(0)};
      }
      state.used = state.used && state.pinned;
      hand_ = list_.next(hand_);
    }
  }

  void check_invariants(const TierView& tier) const override {
    std::size_t residents = 0;
    std::size_t pins = 0;
    tier.for_each_resident([&](const EntryView& entry, bool pinned) {
      ++residents;
      pins += pinned ? 1 : 0;
      KVTIER_ASSERT(list_.contains(entry.id), "sieve lists every resident entry");
      KVTIER_ASSERT(states_[entry.id.value].pinned == pinned, "sieve knows what is pinned");
    });
    KVTIER_ASSERT(residents == list_.size(), "sieve lists nothing but resident entries");
    KVTIER_ASSERT(pins == pinned_, "sieve counts what is pinned");
    KVTIER_ASSERT(!hand_.valid() || list_.contains(hand_), "sieve's hand is at a listed entry");
  }

 private:
  struct State {
    /// Since the hand passed.
    bool used = false;
    bool pinned = false;
  };

  /// The oldest in front.
  EntryList list_;
  /// The entry that is looked at next; kNoEntry: the oldest.
  EntryId hand_ = kNoEntry;
  std::vector<State> states_;
  std::size_t pinned_ = 0;
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
