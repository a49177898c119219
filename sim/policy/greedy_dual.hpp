#pragma once

#include <algorithm>
#include <bit>

#include "sim/policy/entry_queues.hpp"

namespace kvtier {

/// Base class of the Greedy-Dual policies: worth = base + uses x value, and the lowest worth leaves
/// first. The base is the highest worth of a victim at the entry's last use, so unused entries age.
/// O(log n) per decision.
struct GreedyDualWorth {
  double uses = 0;
  double base = 0;
  /// Value of one use, for each byte.
  double value = 0;

  [[nodiscard]] double worth() const { return base + uses * value; }
};

class GreedyDual : public FrontEviction<GreedyDualWorth> {
 public:
  void on_start(const TierFacts& facts) final { facts_ = facts; }
  void on_insert(const EntryView& entry, SimTime) final {
    queues_.arrive(entry);
    GreedyDualWorth& worth = queues_.mark(entry.id);
    worth.uses = 1;
    worth.base = base_;
    set_value(entry);
    queues_.enter(entry.id, 0, order(entry.id));
  }
  void on_hit(EntryId entry, SimTime) final {
    queues_.hit(entry);
    queues_.mark(entry).uses += counts_uses_ ? 1 : 0;
  }
  void on_release(const EntryView& entry, SimTime) final {
    queues_.mark(entry.id).base = base_;
    set_value(entry);
    queues_.release(entry, 0, order(entry.id));
  }
  void on_resize(const EntryView& entry, SimTime) final {
    queues_.resize(entry);
    set_value(entry);
    queues_.move(entry.id, 0, order(entry.id));
  }
  void on_split(const EntryView& head, const EntryView& tail, SimTime) final {
    queues_.split(head, tail);
    for (const EntryView* part : {&head, &tail}) {
      set_value(*part);
      queues_.move(part->id, 0, order(part->id));
    }
  }
  void on_remove(EntryId entry, SimTime) final {
    if (queues_.remove(entry)) {
      base_ = std::max(base_, queues_.mark(entry).worth());
    }
  }

 protected:
  /// If `counts_uses` is false, an entry has one use, its last.
  explicit GreedyDual(bool counts_uses) : counts_uses_(counts_uses) {}

  /// Value of a use of the entry, before division by its bytes.
  [[nodiscard]] virtual double use_value(const EntryView& entry) const = 0;
  [[nodiscard]] const TierFacts& facts() const { return facts_; }
  /// Time to compute the entry's tokens behind the tokens before them.
  [[nodiscard]] SimDuration recompute(const EntryView& entry) const {
    const SimDuration whole = facts_.recompute(entry.depth + entry.tokens);
    return entry.depth.value == 0 ? whole
                                  : std::max(whole - facts_.recompute(entry.depth), SimDuration(0));
  }

 private:
  void set_value(const EntryView& entry) {
    queues_.mark(entry.id).value =
        use_value(entry) / static_cast<double>(std::max<std::int64_t>(1, entry.bytes.value));
  }
  /// The bits of non-negative doubles have the same order as their values.
  [[nodiscard]] std::uint64_t order(EntryId entry) {
    return std::bit_cast<std::uint64_t>(queues_.mark(entry).worth());
  }

  bool counts_uses_;
  TierFacts facts_;
  /// The highest worth of a victim so far.
  double base_ = 0;
};

}  // namespace kvtier
