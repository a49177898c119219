// Least recently used: the entry that was unused for longest leaves first. A list holds the entries
// from the least to the most recently used; the end of a use moves an entry to its end. The
// baseline LRU of AttentionStore (arXiv 2403.19708, section 4.3.3). O(1) per victim, plus one step
// per entry at the list's front that may not leave.
#include "policies/eviction/lru.hpp"

#include "sim/core/assert.hpp"
#include "sim/policy/entry_list.hpp"

namespace kvtier {
namespace {

class LruEviction final : public EvictionPolicy {
 public:
  void on_insert(const EntryView& entry, SimTime) override { list_.push_back(entry.id); }
  void on_hit(EntryId entry, SimTime) override { leave(entry); }
  void on_release(const EntryView& entry, SimTime) override {
    if (list_.contains(entry.id)) {
      list_.move_to_back(entry.id);
    } else {
      list_.push_back(entry.id);
      --in_use_;
    }
  }
  void on_split(const EntryView& head, const EntryView& tail, SimTime) override {
    if (list_.contains(head.id)) {
      list_.insert_before(head.id, tail.id);
    } else {
      ++in_use_;
    }
  }
  void on_remove(EntryId entry, SimTime) override {
    leave(entry);
    --in_use_;
  }

  void choose(const RoomRequest&, Victims& victims) override { add_front(list_, victims); }

  void check_invariants(const TierView& tier) const override {
    std::size_t residents = 0;
    tier.for_each_resident([&](const EntryView& entry, bool offered) {
      ++residents;
      KVTIER_ASSERT(!offered || list_.contains(entry.id), "lru lists every offered entry");
    });
    KVTIER_ASSERT(residents == list_.size() + in_use_, "lru lists nothing but resident entries");
  }

 private:
  /// An entry in use is not in the list, so that a choice need not skip it.
  void leave(EntryId entry) {
    if (list_.contains(entry)) {
      list_.remove(entry);
      ++in_use_;
    }
  }

  EntryList list_;
  std::size_t in_use_ = 0;
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
