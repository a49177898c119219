// The offline optimum, which knows the next use of each entry. The entry whose next use is furthest
// away leaves first; a newcomer whose next use is further still stays out. Belady, A Study of
// Replacement Algorithms for a Virtual-Storage Computer, 1966. With entries of one size, no policy
// has more hits in one tier, so it is an upper bound.
//
// If sizes differ, finding the optimum is NP-hard. This is "Belady, greedy": the largest product of
// bytes and time until the next use leaves first. A policy may exceed it;
// sim/study/runs/upper_bound.hpp has a bound that none exceeds. Entries are in classes of sizes
// within a factor of two, each ordered by next use, and the furthest entry of each class competes.
// Growth moves an entry between classes. O(log n) per change, O(classes) per decision.
#include "policies/eviction/belady.hpp"

#include <bit>

#include "sim/core/histogram.hpp"
#include "sim/policy/entry_queues.hpp"

namespace kvtier {
namespace {

class BeladyEviction final : public QueuedEviction<NoMark> {
 public:
  BeladyEviction() : QueuedEviction(kClasses) {}

  void on_insert(const EntryView& entry, SimTime) override {
    queues_.arrive(entry);
    queues_.enter(entry.id, size_class(entry.bytes), order(entry.next_use));
  }
  void on_release(const EntryView& entry, SimTime) override {
    queues_.release(entry, size_class(entry.bytes), queues_.row(entry.id).order);
  }
  void on_resize(const EntryView& entry, SimTime) override {
    queues_.resize(entry);
    queues_.move(entry.id, size_class(entry.bytes), queues_.row(entry.id).order);
  }
  void on_split(const EntryView& head, const EntryView& tail, SimTime now) override {
    on_resize(head, now);
    on_insert(tail, now);
  }
  void on_next_use(EntryId entry, SimTime next_use) override {
    queues_.move(entry, queues_.row(entry).queue, order(next_use));
  }

  void choose(const RoomRequest& request, Victims& victims) override {
    Choice choice(queues_, victims);
    const EntryView* const newcomer = request.newcomer;
    while (choice.wants_more()) {
      EntryId furthest = kNoEntry;
      for (std::size_t i = 0; i < kClasses; ++i) {
        const EntryId entry = choice.front(i);
        if (entry.valid() &&
            (!furthest.valid() || product(entry, request.now) > product(furthest, request.now))) {
          furthest = entry;
        }
      }
      const bool newcomer_stays_out = furthest.valid() && newcomer != nullptr &&
                                      product(newcomer->bytes, newcomer->next_use, request.now) >=
                                          product(furthest, request.now);
      if (!furthest.valid() || newcomer_stays_out) {
        return;
      }
      choice.add(furthest);
    }
  }
  void check_invariants(const TierView& tier) const override {
    queues_.check(tier);
    tier.for_each_resident([&](const EntryView& entry, bool) {
      const auto& row = queues_.row(entry.id);
      KVTIER_ASSERT(row.order == order(entry.next_use) && row.queue == size_class(row.bytes),
                    "belady knows the future");
    });
  }

 private:
  static constexpr std::size_t kClasses = 64;

  [[nodiscard]] static std::size_t size_class(Bytes bytes) {
    return std::bit_width(static_cast<std::uint64_t>(bytes.value)) % kClasses;
  }
  /// Order within a class: the furthest next use in front.
  [[nodiscard]] static std::uint64_t order(SimTime next_use) {
    return static_cast<std::uint64_t>(kNever.ns - next_use.ns);
  }
  [[nodiscard]] static Int128 product(Bytes bytes, SimTime next_use, SimTime now) {
    return static_cast<Int128>(bytes.value) * (next_use - now).ns;
  }
  [[nodiscard]] Int128 product(EntryId entry, SimTime now) const {
    const auto& row = queues_.row(entry);
    const SimTime next_use(kNever.ns - static_cast<std::int64_t>(row.order));
    return product(row.bytes, next_use, now);
  }
};

}  // namespace

PolicyKind<EvictionPolicy> belady_eviction() {
  return {.name = "belady",
          .summary =
              "for untimed replays: the entry with the furthest next use, times bytes if sizes "
              "differ, leaves first",
          .source = "Belady (IBM Systems Journal, 1966); by bytes x time if sizes differ",
          .knowledge = Knowledge::oracle,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<BeladyEviction>(); }};
}

}  // namespace kvtier
