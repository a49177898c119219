// First in, first out: the entry that entered the store first leaves first, however often it was
// used since. An entry keeps its time between tiers and while its turn runs. After its last copy is
// evicted, it starts anew. `session_fifo` orders by the admission of the session's first turn, so
// an entry stored again after its eviction leaves early again. We read the figures of
// AttentionStore's baseline FIFO this way (arXiv 2403.19708, section 4.3.3). O(log n) per decision.
#include "policies/eviction/fifo.hpp"

#include <cstdint>

#include "sim/policy/entry_queues.hpp"

namespace kvtier {
namespace {

struct FifoKey {
  SimTime time;
  /// Ties: the entry that entered this tier first leaves first.
  std::uint64_t arrival = 0;
  friend auto operator<=>(const FifoKey&, const FifoKey&) = default;
};

class FifoEviction final : public FrontEviction<NoMark, FifoKey> {
 public:
  explicit FifoEviction(bool by_session) : by_session_(by_session) {}

  void on_insert(const EntryView& entry, SimTime) override {
    queues_.arrive(entry);
    queues_.enter(entry.id, 0,
                  by_session_ ? FifoKey{.time = entry.session_began}
                              : FifoKey{.time = entry.first_inserted, .arrival = ++arrivals_});
  }

 private:
  bool by_session_;
  std::uint64_t arrivals_ = 0;
};

}  // namespace

PolicyKind<EvictionPolicy> fifo_eviction() {
  return {.name = "fifo",
          .summary = "the entry that entered the store first leaves first",
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
