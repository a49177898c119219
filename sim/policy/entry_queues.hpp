#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/entry_heap.hpp"
#include "sim/policy/policy.hpp"

namespace kvtier {

/// The entries of a tier in several queues, each ordered by a key, the smallest in front. It is the
/// bookkeeping of policies that keep a mark for each entry. An entry in use belongs to a queue, but
/// is never its front. O(log n).
template <class Mark, class Order = std::uint64_t>
class EntryQueues {
 public:
  explicit EntryQueues(std::size_t queues) : queues_(queues) {}

  struct Row {
    EntryKey key;
    Bytes bytes;
    Order order{};
    std::uint8_t queue = 0;
    bool resident = false;
    /// Between on_hit and on_release.
    bool in_use = false;
    /// The entry is in a set that leaves.
    bool chosen = false;
    /// The policy's data of the entry.
    Mark mark{};
  };

  [[nodiscard]] const Row& row(EntryId entry) const { return rows_[entry.value]; }
  [[nodiscard]] Mark& mark(EntryId entry) { return rows_[entry.value].mark; }

  /// Adds a new entry with a new mark. `enter` must follow.
  void arrive(const EntryView& entry) {
    if (entry.id.value >= rows_.size()) {
      rows_.resize(static_cast<std::size_t>(entry.id.value) + 1);
    }
    Row& row = rows_[entry.id.value];
    KVTIER_ASSERT(!row.resident, "an entry is inserted once");
    row = Row{.key = entry.key, .bytes = entry.bytes, .resident = true};
    ++residents_;
  }
  void enter(EntryId entry, std::size_t queue, const Order& order) {
    Row& row = rows_[entry.value];
    row.queue = static_cast<std::uint8_t>(queue);
    row.order = order;
    queues_[queue].bytes += row.bytes;
    if (!row.in_use) {
      queues_[queue].heap.insert(entry, order);
    }
  }
  /// Moves the entry to another place, in use or not.
  void move(EntryId entry, std::size_t queue, const Order& order) {
    leave(entry);
    enter(entry, queue, order);
  }
  void hit(EntryId entry) {
    Row& row = rows_[entry.value];
    if (!row.in_use) {
      row.in_use = true;
      queues_[row.queue].heap.remove(entry);
    }
  }
  /// Ends the use and moves the entry to another place.
  void release(const EntryView& entry, std::size_t queue, const Order& order) {
    leave(entry.id);
    Row& row = rows_[entry.id.value];
    row.bytes = entry.bytes;
    row.in_use = false;
    enter(entry.id, queue, order);
  }
  /// Ends the use; the entry keeps its place.
  void release(const EntryView& entry) {
    const Row& row = rows_[entry.id.value];
    release(entry, row.queue, Order(row.order));
  }
  void resize(const EntryView& entry) {
    Row& row = rows_[entry.id.value];
    queues_[row.queue].bytes += entry.bytes - row.bytes;
    row.bytes = entry.bytes;
  }
  /// Adds the tail to the queue of its head, with the same order and mark.
  void split(const EntryView& head, const EntryView& tail) {
    resize(head);
    arrive(tail);
    const Row& whole = rows_[head.id.value];
    Row& row = rows_[tail.id.value];
    row.mark = whole.mark;
    row.in_use = whole.in_use;
    enter(tail.id, whole.queue, whole.order);
  }
  /// Removes the entry. Returns whether it leaves as a victim.
  bool remove(EntryId entry) {
    Row& row = rows_[entry.value];
    if (row.chosen) {
      queues_[row.queue].bytes -= row.bytes;
    } else {
      leave(entry);
    }
    row.resident = false;
    --residents_;
    return row.chosen;
  }

  /// Bytes in a queue, or in all queues. Entries in use count; entries of the current set do not.
  [[nodiscard]] Bytes bytes(std::size_t queue) const { return queues_[queue].bytes; }
  [[nodiscard]] Bytes bytes() const {
    Bytes sum;
    for (const Queue& queue : queues_) {
      sum += queue.bytes;
    }
    return sum;
  }

  /// One call of `choose`. Its end puts back all entries that do not leave.
  class Choice {
   public:
    Choice(EntryQueues& queues, Victims& victims) : queues_(queues), victims_(victims) {}
    Choice(const Choice&) = delete;
    Choice& operator=(const Choice&) = delete;
    ~Choice() { queues_.bring_back(victims_.complete()); }

    [[nodiscard]] bool wants_more() const { return victims_.wants_more(); }
    /// The first offered entry of a queue; kNoEntry if there is none.
    [[nodiscard]] EntryId front(std::size_t queue) {
      KeyedEntryHeap<Order>& heap = queues_.queues_[queue].heap;
      while (!heap.empty() && !victims_.offers(heap.top())) {
        queues_.passed_.push_back(heap.top());
        heap.remove(heap.top());
      }
      return heap.empty() ? kNoEntry : heap.top();
    }
    /// Adds the entry to the set.
    void add(EntryId entry) {
      if (victims_.add(entry).value > 0) {
        return;  // the entry keeps a part, and its place
      }
      queues_.leave(entry);
      queues_.rows_[entry.value].chosen = true;
      queues_.chosen_.push_back(entry);
    }

   private:
    EntryQueues& queues_;
    Victims& victims_;
  };

  /// Throws InvariantError if the queues do not match the tier.
  void check(const TierView& tier) const {
    std::size_t residents = 0;
    std::vector<Bytes> bytes(queues_.size());
    std::vector<std::size_t> choosable(queues_.size());
    tier.for_each_resident([&](const EntryView& entry, bool offered) {
      ++residents;
      KVTIER_ASSERT(entry.id.value < rows_.size() && rows_[entry.id.value].resident,
                    "the policy knows every resident entry");
      const Row& row = rows_[entry.id.value];
      KVTIER_ASSERT(row.key == entry.key && (!offered || row.bytes == entry.bytes),
                    "the policy knows keys and sizes");
      KVTIER_ASSERT(!row.chosen && !(offered && row.in_use) &&
                        queues_[row.queue].heap.contains(entry.id) != row.in_use,
                    "the policy may choose every offered entry");
      bytes[row.queue] += row.bytes;
      choosable[row.queue] += row.in_use ? 0 : 1;
    });
    KVTIER_ASSERT(residents == residents_, "the policy knows nothing but resident entries");
    for (std::size_t i = 0; i < queues_.size(); ++i) {
      KVTIER_ASSERT(bytes[i] == queues_[i].bytes && choosable[i] == queues_[i].heap.size(),
                    "queues hold nothing but resident entries");
    }
  }

 private:
  struct Queue {
    KeyedEntryHeap<Order> heap;
    Bytes bytes;
  };

  void leave(EntryId entry) {
    const Row& row = rows_[entry.value];
    Queue& queue = queues_[row.queue];
    queue.bytes -= row.bytes;
    if (!row.in_use) {
      queue.heap.remove(entry);
    }
  }

  void bring_back(bool set_leaves) {
    for (const EntryId entry : passed_) {
      queues_[rows_[entry.value].queue].heap.insert(entry, rows_[entry.value].order);
    }
    passed_.clear();
    for (const EntryId entry : chosen_) {
      Row& row = rows_[entry.value];
      row.chosen = set_leaves;
      queues_[row.queue].bytes += row.bytes;
      if (!set_leaves) {
        queues_[row.queue].heap.insert(entry, row.order);
      }
    }
    chosen_.clear();
  }

  std::vector<Queue> queues_;
  std::vector<Row> rows_;
  std::size_t residents_ = 0;
  /// Scratch of a choice: entries that are not offered, and the victims.
  std::vector<EntryId> passed_;
  std::vector<EntryId> chosen_;
};

/// Mark of policies that keep no data for an entry.
struct NoMark {};

/// Base class of policies with queues: by default, each call updates the queues.
template <class Mark, class Order = std::uint64_t>
class QueuedEviction : public EvictionPolicy {
 public:
  void on_hit(EntryId entry, SimTime) override { queues_.hit(entry); }
  void on_release(const EntryView& entry, SimTime) override { queues_.release(entry); }
  void on_resize(const EntryView& entry, SimTime) override { queues_.resize(entry); }
  void on_split(const EntryView& head, const EntryView& tail, SimTime) override {
    queues_.split(head, tail);
  }
  void on_remove(EntryId entry, SimTime) override { queues_.remove(entry); }
  void check_invariants(const TierView& tier) const override { queues_.check(tier); }

 protected:
  using Choice = typename EntryQueues<Mark, Order>::Choice;

  explicit QueuedEviction(std::size_t queues) : queues_(queues) {}

  EntryQueues<Mark, Order> queues_;
};

/// Base class of policies with one queue, whose front leaves first.
template <class Mark, class Order = std::uint64_t>
class FrontEviction : public QueuedEviction<Mark, Order> {
 public:
  void choose(const RoomRequest&, Victims& victims) override {
    typename QueuedEviction<Mark, Order>::Choice choice(this->queues_, victims);
    while (choice.wants_more()) {
      const EntryId entry = choice.front(0);
      if (!entry.valid()) {
        return;
      }
      choice.add(entry);
    }
  }

 protected:
  FrontEviction() : QueuedEviction<Mark, Order>(1) {}
};

}  // namespace kvtier
