// Adaptive replacement cache: two LRU lists of entries used once (T1) and more often (T2), and the
// keys that left each list lately (B1, B2). If a key of B1 comes back, T1 was too small; if a key
// of B2 comes back, T2 was. The target size of T1 moves accordingly. Megiddo and Modha, ARC: A
// Self-Tuning, Low Overhead Replacement Cache, 2003. O(log n) per decision.
//
// Adapted: all sizes are in bytes, and the cache's size is the bytes that the tier and its turns
// hold now. An entry goes to T2 when its turn ends. A key of B1 or B2 moves the target by its
// entry's bytes (times the ratio of the lists, as in the paper). Room is made before the policy
// knows the newcomer, so the target moves after the choice. A T1 of exactly its target size is
// spared.
#include "policies/eviction/arc.hpp"

#include <algorithm>

#include "sim/policy/entry_queues.hpp"
#include "sim/policy/ghost_list.hpp"

namespace kvtier {
namespace {

class ArcEviction final : public QueuedEviction<NoMark> {
 public:
  ArcEviction() : QueuedEviction(2) {}

  void on_insert(const EntryView& entry, SimTime) override {
    queues_.arrive(entry);
    queues_.enter(entry.id, was_here(entry) ? kOften : kOnce, ++clock_);
    trim();
  }
  void on_release(const EntryView& entry, SimTime) override {
    queues_.release(entry, kOften, ++clock_);
  }
  void on_remove(EntryId entry, SimTime) override {
    const auto& row = queues_.row(entry);
    if (queues_.remove(entry)) {
      left_[row.queue].push(row.key, row.bytes);
    }
  }

  void choose(const RoomRequest&, Victims& victims) override {
    Choice choice(queues_, victims);
    while (choice.wants_more()) {
      const bool once = static_cast<double>(queues_.bytes(kOnce).value) > target_;
      EntryId victim = choice.front(once ? kOnce : kOften);
      if (!victim.valid()) {
        victim = choice.front(once ? kOften : kOnce);
      }
      if (!victim.valid()) {
        return;
      }
      choice.add(victim);
    }
  }

 private:
  static constexpr std::size_t kOnce = 0;
  static constexpr std::size_t kOften = 1;

  [[nodiscard]] static double ratio(Bytes a, Bytes b) {
    return static_cast<double>(a.value) / static_cast<double>(std::max<std::int64_t>(1, b.value));
  }
  bool was_here(const EntryView& entry) {
    const Bytes once = left_[kOnce].bytes();
    const Bytes often = left_[kOften].bytes();
    const auto step = static_cast<double>(entry.bytes.value);
    const bool in_often = left_[kOften].remove(entry.key);
    if (left_[kOnce].remove(entry.key)) {
      const auto most = static_cast<double>((queues_.bytes() + entry.bytes).value);
      target_ = std::min(most, target_ + step * std::max(1.0, ratio(often, once)));
      return true;
    }
    if (in_often) {
      target_ = std::max(0.0, target_ - step * std::max(1.0, ratio(once, often)));
    }
    return in_often;
  }
  /// T1 and B1 together are no larger than the cache, all four no larger than twice that.
  void trim() {
    left_[kOnce].trim(queues_.bytes(kOften));
    left_[kOften].trim(queues_.bytes() - left_[kOnce].bytes());
  }

  GhostList left_[2];
  /// Target bytes of T1.
  double target_ = 0;
  std::uint64_t clock_ = 0;
};

}  // namespace

PolicyKind<EvictionPolicy> arc_eviction() {
  return {
      .name = "arc",
      .summary =
          "two LRU lists, used once and more often, balanced by the evicted keys that come back",
      .source = "Megiddo, Modha (FAST 2003); lists in bytes",
      .knowledge = Knowledge::online,
      .parameters = {},
      .make = [](const PolicyParameters&) { return std::make_unique<ArcEviction>(); }};
}

}  // namespace kvtier
