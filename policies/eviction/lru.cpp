// Least recently used: what was not asked for longest is asked for last, so it leaves first. A list
// from the least to the most recently used entry; the end of a use moves an entry to the far end.
// The baseline LRU of AttentionStore (arXiv 2403.19708, section 4.3.3). O(1) per decision, plus one
// step per pinned entry at the list's front.
#include "policies/eviction/lru.hpp"

#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/entry_list.hpp"

namespace kvtier {
namespace {

class LruEviction final : public EvictionPolicy {
 public:
  void on_insert(const EntryView& entry, SimTime) override {
    list_.push_back(entry.id);
    if (entry.id.value >= pinned_.size()) {
      pinned_.resize(static_cast<std::size_t>(entry.id.value) + 1, 0);
    }
    pinned_[entry.id.value] = 0;
  }
  void on_hit(EntryId, SimTime) override {}
  void on_release(const EntryView& entry, SimTime) override { list_.move_to_back(entry.id); }
  void on_remove(EntryId entry, SimTime) override { list_.remove(entry); }
  void on_pin(EntryId entry) override { pinned_[entry.value] = 1; }
  void on_unpin(EntryId entry) override { pinned_[entry.value] = 0; }

  std::optional<Victim> select_victim(const EvictionContext&) override {
    for (EntryId entry = list_.front(); entry.valid(); entry = list_.next(entry)) {
      if (pinned_[entry.value] == 0) {
        return Victim{entry, Tokens(0)};
      }
    }
    return std::nullopt;
  }

  void check_invariants(const TierView& tier) const override {
    std::size_t residents = 0;
    tier.for_each_resident([&](const EntryView& entry, bool pinned) {
      ++residents;
      KVTIER_ASSERT(list_.contains(entry.id), "lru lists every resident entry");
      KVTIER_ASSERT((pinned_[entry.id.value] != 0) == pinned, "lru knows what is pinned");
    });
    KVTIER_ASSERT(residents == list_.size(), "lru lists nothing but resident entries");
  }

 private:
  EntryList list_;
  std::vector<char> pinned_;
};

}  // namespace

PolicyKind<EvictionPolicy> lru_eviction() {
  return {.name = "lru",
          .summary = "the entry that was used least recently leaves first",
          .source = "AttentionStore (arXiv 2403.19708), section 4.3.3, baseline",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<LruEviction>(); }};
}

}  // namespace kvtier
