#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/ids.hpp"

namespace kvtier {

/// A doubly linked list of entries in arrays indexed by the dense entry number: O(1) and no
/// allocation per operation. The front is the end that leaves first.
class EntryList {
 public:
  [[nodiscard]] bool contains(EntryId entry) const {
    return entry.value < nodes_.size() && nodes_[entry.value].linked;
  }
  [[nodiscard]] EntryId front() const { return EntryId{head_}; }
  [[nodiscard]] EntryId next(EntryId entry) const { return EntryId{nodes_[entry.value].next}; }
  [[nodiscard]] std::size_t size() const { return size_; }

  void push_back(EntryId entry) {
    if (entry.value >= nodes_.size()) {
      nodes_.resize(static_cast<std::size_t>(entry.value) + 1);
    }
    Node& node = nodes_[entry.value];
    KVTIER_ASSERT(!node.linked, "an entry is in a list once");
    node = {tail_, kNil, true};
    (tail_ == kNil ? head_ : nodes_[tail_].next) = entry.value;
    tail_ = entry.value;
    ++size_;
  }

  void remove(EntryId entry) {
    KVTIER_ASSERT(contains(entry), "only a listed entry can be removed");
    Node& node = nodes_[entry.value];
    (node.previous == kNil ? head_ : nodes_[node.previous].next) = node.next;
    (node.next == kNil ? tail_ : nodes_[node.next].previous) = node.previous;
    node.linked = false;
    --size_;
  }

  void move_to_back(EntryId entry) {
    if (tail_ != entry.value) {
      remove(entry);
      push_back(entry);
    }
  }

 private:
  static constexpr std::uint32_t kNil = UINT32_MAX;
  struct Node {
    std::uint32_t previous = kNil;
    std::uint32_t next = kNil;
    bool linked = false;
  };

  std::vector<Node> nodes_;
  std::uint32_t head_ = kNil;
  std::uint32_t tail_ = kNil;
  std::size_t size_ = 0;
};

}  // namespace kvtier
