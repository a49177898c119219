#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/grow.hpp"
#include "sim/policy/ids.hpp"

namespace kvtier {

/// A heap of entries by key, the smallest on top. An entry is in it at most once, and can be
/// removed from the middle: O(log n). Equal keys are ordered by entry number.
template <class Key>
class KeyedEntryHeap {
 public:
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] std::size_t size() const { return heap_.size(); }
  [[nodiscard]] bool contains(EntryId entry) const {
    return entry.value < places_.size() && places_[entry.value] != kAbsent;
  }
  [[nodiscard]] EntryId top() const { return EntryId{heap_.front().entry}; }
  [[nodiscard]] const Key& top_key() const { return heap_.front().key; }

  void insert(EntryId entry, const Key& key) {
    if (entry.value >= places_.size()) [[unlikely]] {
      grow(places_, static_cast<std::size_t>(entry.value) + 1, kAbsent);
    }
    KVTIER_ASSERT(places_[entry.value] == kAbsent, "an entry is in a heap once");
    heap_.push_back({key, entry.value});
    sift_up(heap_.size() - 1);
  }

  void remove(EntryId entry) {
    KVTIER_ASSERT(contains(entry), "only an entry of the heap can be removed");
    const std::size_t hole = places_[entry.value];
    places_[entry.value] = kAbsent;
    const Node last = heap_.back();
    heap_.pop_back();
    if (hole == heap_.size()) {
      return;
    }
    heap_[hole] = last;
    places_[last.entry] = static_cast<std::uint32_t>(hole);
    if (hole > 0 && last.before(heap_[(hole - 1) / kArity])) {
      sift_up(hole);
    } else {
      sift_down(hole);
    }
  }

 private:
  static constexpr std::uint32_t kAbsent = UINT32_MAX;
  /// Few levels, because a new entry often rises to the top.
  static constexpr std::size_t kArity = 4;
  struct Node {
    Key key;
    std::uint32_t entry;
    [[nodiscard]] bool before(const Node& other) const {
      return key != other.key ? key < other.key : entry < other.entry;
    }
  };

  void sift_up(std::size_t hole) {
    const Node node = heap_[hole];
    while (hole > 0) {
      const std::size_t parent = (hole - 1) / kArity;
      if (!node.before(heap_[parent])) {
        break;
      }
      place(hole, heap_[parent]);
      hole = parent;
    }
    place(hole, node);
  }

  void sift_down(std::size_t hole) {
    const Node node = heap_[hole];
    while (true) {
      const std::size_t first = kArity * hole + 1;
      if (first >= heap_.size()) {
        break;
      }
      const std::size_t end = std::min(first + kArity, heap_.size());
      std::size_t best = first;
      for (std::size_t child = first + 1; child < end; ++child) {
        best = heap_[child].before(heap_[best]) ? child : best;
      }
      if (!heap_[best].before(node)) {
        break;
      }
      place(hole, heap_[best]);
      hole = best;
    }
    place(hole, node);
  }

  void place(std::size_t at, const Node& node) {
    heap_[at] = node;
    places_[node.entry] = static_cast<std::uint32_t>(at);
  }

  std::vector<Node> heap_;
  std::vector<std::uint32_t> places_;
};

using EntryHeap = KeyedEntryHeap<std::uint64_t>;

}  // namespace kvtier
