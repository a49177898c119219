// First in, first out: the entry that came into the store first leaves first, however often it was
// used since. An entry keeps its time when it moves between tiers and while its turn runs; once its
// last copy is evicted it starts anew. `session_fifo` never forgets: it goes by the admission of
// the session's first turn, so a session that was evicted is the first to go again when it is
// stored again. That is the baseline FIFO of AttentionStore (arXiv 2403.19708, section 4.3.3) as we
// read its figures. O(log n) per decision.
#include "policies/eviction/fifo.hpp"

#include <cstdint>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/entry_heap.hpp"

namespace kvtier {
namespace {

class FifoEviction final : public EvictionPolicy {
 public:
  explicit FifoEviction(bool by_session) : by_session_(by_session) {}

  void on_insert(const EntryView& entry, SimTime) override {
    if (entry.id.value >= keys_.size()) {
      keys_.resize(static_cast<std::size_t>(entry.id.value) + 1);
    }
    keys_[entry.id.value] = by_session_ ? Key{.time = entry.session_began}
                                        : Key{.time = entry.first_inserted, .arrival = ++arrivals_};
    heap_.insert(entry.id, keys_[entry.id.value]);
  }
  void on_hit(EntryId, SimTime) override {}
  void on_remove(EntryId entry, SimTime) override {
    if (heap_.contains(entry)) {
      heap_.remove(entry);
    }
  }
  void on_pin(EntryId entry) override { heap_.remove(entry); }
  void on_unpin(EntryId entry) override { heap_.insert(entry, keys_[entry.value]); }

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
  struct Key {
    SimTime time;
    /// Of equal times, what came into this tier first leaves first.
    std::uint64_t arrival = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  bool by_session_;
  KeyedEntryHeap<Key> heap_;
  std::vector<Key> keys_;
  std::uint64_t arrivals_ = 0;
};

}  // namespace

PolicyKind<EvictionPolicy> fifo_eviction() {
  return {.name = "fifo",
          .summary = "the entry that came into the store first leaves first",
          .source = "textbook FIFO: a hit changes nothing, an evicted entry starts anew",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<FifoEviction>(false); }};
}

PolicyKind<EvictionPolicy> session_fifo_eviction() {
  return {.name = "session_fifo",
          .summary = "the entry whose session began first leaves first, whatever was evicted since",
          .source = "AttentionStore (arXiv 2403.19708), section 4.3.3, baseline FIFO",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<FifoEviction>(true); }};
}

}  // namespace kvtier
