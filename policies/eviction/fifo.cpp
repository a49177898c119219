// First in, first out: the entry that came into the store first leaves first, however often it was
// used since. Entries re-enter a tier after every turn with the time of their first insertion, so
// they are kept in a heap by that time. The baseline FIFO of AttentionStore (arXiv 2403.19708,
// section 4.3.3). O(log n) per decision.
#include "policies/eviction/fifo.hpp"

#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/entry_heap.hpp"

namespace kvtier {
namespace {

class FifoEviction final : public EvictionPolicy {
 public:
  void on_insert(const EntryView& entry, SimTime) override {
    if (entry.id.value >= inserted_.size()) {
      inserted_.resize(static_cast<std::size_t>(entry.id.value) + 1);
    }
    inserted_[entry.id.value] = static_cast<std::uint64_t>(entry.first_inserted.ns);
    heap_.insert(entry.id, inserted_[entry.id.value]);
  }
  void on_hit(EntryId, SimTime) override {}
  void on_remove(EntryId entry, SimTime) override {
    if (heap_.contains(entry)) {
      heap_.remove(entry);
    }
  }
  void on_pin(EntryId entry) override { heap_.remove(entry); }
  void on_unpin(EntryId entry) override { heap_.insert(entry, inserted_[entry.value]); }

  std::optional<Victim> select_victim(const EvictionContext&) override {
    if (heap_.empty()) {
      return std::nullopt;
    }
    return Victim{heap_.top(), Tokens(0)};
  }

  void check_invariants(const TierView& tier) const override {
    std::size_t unpinned = 0;
    tier.for_each_resident([&](const EntryView& entry, bool pinned) {
      unpinned += pinned ? 0 : 1;
      KVTIER_ASSERT(heap_.contains(entry.id) != pinned,
                    "fifo may choose every unpinned entry and no other");
    });
    KVTIER_ASSERT(unpinned == heap_.size(), "fifo holds nothing but resident entries");
  }

 private:
  EntryHeap heap_;
  std::vector<std::uint64_t> inserted_;
};

}  // namespace

PolicyKind<EvictionPolicy> fifo_eviction() {
  return {.name = "fifo",
          .summary = "the entry that was first inserted first leaves first",
          .source = "AttentionStore (arXiv 2403.19708), section 4.3.3, baseline",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<FifoEviction>(); }};
}

}  // namespace kvtier
