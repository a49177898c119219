#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/entry_heap.hpp"
#include "sim/policy/policy.hpp"

namespace kvtier {

/// The entries of a tier in a few queues, each by a key, the smallest in front: the bookkeeping of
/// policies that remember of an entry more than its place. Pinned entries belong to a queue and are
/// never in front of it. O(log n).
template <class Mark>
class EntryQueues {
 public:
  explicit EntryQueues(std::size_t queues) : queues_(queues) {}

  struct Row {
    EntryKey key;
    Bytes bytes;
    std::uint64_t order = 0;
    std::uint8_t queue = 0;
    bool resident = false;
    bool pinned = false;
    /// Given as a victim, and not used since.
    bool chosen = false;
    /// What the policy remembers.
    Mark mark{};
  };

  [[nodiscard]] const Row& row(EntryId entry) const { return rows_[entry.value]; }
  [[nodiscard]] Mark& mark(EntryId entry) { return rows_[entry.value].mark; }

  /// The entry is new here: its mark is, too, and `enter` has to follow.
  void arrive(const EntryView& entry) {
    if (entry.id.value >= rows_.size()) {
      rows_.resize(static_cast<std::size_t>(entry.id.value) + 1);
    }
    Row& row = rows_[entry.id.value];
    KVTIER_ASSERT(!row.resident, "an entry is inserted once");
    row = Row{.key = entry.key, .bytes = entry.bytes, .resident = true};
    ++residents_;
  }
  void enter(EntryId entry, std::size_t queue, std::uint64_t order) {
    Row& row = rows_[entry.value];
    row.queue = static_cast<std::uint8_t>(queue);
    row.order = order;
    queues_[queue].bytes += row.bytes;
    if (!row.pinned) {
      queues_[queue].heap.insert(entry, order);
    }
  }
  /// To another place, pinned or not.
  void move(EntryId entry, std::size_t queue, std::uint64_t order) {
    leave(entry);
    enter(entry, queue, order);
  }
  void hit(EntryId entry) { rows_[entry.value].chosen = false; }
  void resize(const EntryView& entry) {
    Row& row = rows_[entry.id.value];
    queues_[row.queue].bytes += entry.bytes - row.bytes;
    row.bytes = entry.bytes;
  }
  /// Whether it leaves as a victim.
  bool remove(EntryId entry) {
    leave(entry);
    Row& row = rows_[entry.value];
    row.resident = false;
    --residents_;
    return row.chosen;
  }
  void pin(EntryId entry) {
    Row& row = rows_[entry.value];
    row.pinned = true;
    queues_[row.queue].heap.remove(entry);
  }
  void unpin(EntryId entry) {
    Row& row = rows_[entry.value];
    row.pinned = false;
    queues_[row.queue].heap.insert(entry, row.order);
  }

  /// kNoEntry if none in the queue can leave.
  [[nodiscard]] EntryId front(std::size_t queue) const {
    return queues_[queue].heap.empty() ? kNoEntry : queues_[queue].heap.top();
  }
  /// Of a queue, or of all, pinned entries too.
  [[nodiscard]] Bytes bytes(std::size_t queue) const { return queues_[queue].bytes; }
  [[nodiscard]] Bytes bytes() const {
    Bytes sum;
    for (const Queue& queue : queues_) {
      sum += queue.bytes;
    }
    return sum;
  }
  [[nodiscard]] std::optional<Victim> choose(EntryId entry) {
    if (!entry.valid()) {
      return std::nullopt;
    }
    rows_[entry.value].chosen = true;
    return Victim{entry, Tokens(0)};
  }

  /// Throws InvariantError if this is not what the tier holds.
  void check(const TierView& tier) const {
    std::size_t residents = 0;
    std::vector<Bytes> bytes(queues_.size());
    std::vector<std::size_t> choosable(queues_.size());
    tier.for_each_resident([&](const EntryView& entry, bool pinned) {
      ++residents;
      KVTIER_ASSERT(entry.id.value < rows_.size() && rows_[entry.id.value].resident,
                    "the policy knows every resident entry");
      const Row& row = rows_[entry.id.value];
      // The account of a pinned entry changes before the policy hears of it.
      KVTIER_ASSERT(row.key == entry.key && (pinned || row.bytes == entry.bytes),
                    "the policy knows keys and sizes");
      KVTIER_ASSERT(row.pinned == pinned && queues_[row.queue].heap.contains(entry.id) != pinned,
                    "the policy may choose every unpinned entry and no other");
      bytes[row.queue] += row.bytes;
      choosable[row.queue] += pinned ? 0 : 1;
    });
    KVTIER_ASSERT(residents == residents_, "the policy knows nothing but resident entries");
    for (std::size_t i = 0; i < queues_.size(); ++i) {
      KVTIER_ASSERT(bytes[i] == queues_[i].bytes && choosable[i] == queues_[i].heap.size(),
                    "queues hold nothing but resident entries");
    }
  }

 private:
  struct Queue {
    EntryHeap heap;
    Bytes bytes;
  };

  void leave(EntryId entry) {
    const Row& row = rows_[entry.value];
    Queue& queue = queues_[row.queue];
    queue.bytes -= row.bytes;
    if (!row.pinned) {
      queue.heap.remove(entry);
    }
  }

  std::vector<Queue> queues_;
  std::vector<Row> rows_;
  std::size_t residents_ = 0;
};

/// Of policies that remember nothing more.
struct NoMark {};

/// A policy that tells its queues all that it hears and wants nothing else of it, unless it says
/// so.
template <class Mark>
class QueuedEviction : public EvictionPolicy {
 public:
  void on_hit(EntryId entry, SimTime) override { queues_.hit(entry); }
  void on_resize(const EntryView& entry, SimTime) override { queues_.resize(entry); }
  void on_remove(EntryId entry, SimTime) override { queues_.remove(entry); }
  void on_pin(EntryId entry) override { queues_.pin(entry); }
  void on_unpin(EntryId entry) override { queues_.unpin(entry); }
  void check_invariants(const TierView& tier) const override { queues_.check(tier); }

 protected:
  explicit QueuedEviction(std::size_t queues) : queues_(queues) {}

  EntryQueues<Mark> queues_;
};

}  // namespace kvtier
