#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/grow.hpp"
#include "sim/policy/ids.hpp"
#include "sim/policy/victims.hpp"

namespace kvtier {

/// A doubly linked list of entries in an array indexed by the dense entry number: O(1) and no
/// allocation per operation. The front is the end that leaves first.
class EntryList {
 public:
  EntryList() { nodes_[kEnd].next = kEnd; }

  [[nodiscard]] bool contains(EntryId entry) const {
    return entry.valid() && is_linked(place(entry));
  }
  [[nodiscard]] EntryId front() const { return entry_at(nodes_[kEnd].next); }
  [[nodiscard]] EntryId next(EntryId entry) const { return entry_at(nodes_[place(entry)].next); }
  [[nodiscard]] std::size_t size() const { return size_; }

  void push_back(EntryId entry) { link_before(kEnd, entry); }
  /// Inserts `entry` in front of a listed entry.
  void insert_before(EntryId next, EntryId entry) {
    KVTIER_ASSERT(is_linked(place(next)), "only a listed entry has a place in front of it");
    link_before(static_cast<std::uint32_t>(place(next)), entry);
  }

  void remove(EntryId entry) {
    KVTIER_ASSERT(is_linked(place(entry)), "only a listed entry can be removed");
    Node& node = nodes_[place(entry)];
    nodes_[node.previous].next = node.next;
    nodes_[node.next].previous = node.previous;
    node.next = kUnlinked;
    --size_;
  }

  void move_to_back(EntryId entry) {
    if (nodes_[kEnd].previous != place(entry)) {
      remove(entry);
      push_back(entry);
    }
  }

 private:
  /// A sentinel node closes the list to a ring, so that no end is special.
  static constexpr std::uint32_t kEnd = 0;
  static constexpr std::uint32_t kUnlinked = UINT32_MAX;
  struct Node {
    std::uint32_t previous = kEnd;
    std::uint32_t next = kUnlinked;
  };

  void link_before(std::uint32_t next, EntryId entry) {
    const std::size_t at = place(entry);
    if (at >= nodes_.size()) [[unlikely]] {
      grow(nodes_, at + 1);
    }
    KVTIER_ASSERT(nodes_[at].next == kUnlinked, "an entry is in a list once");
    const std::uint32_t previous = nodes_[next].previous;
    nodes_[at] = {.previous = previous, .next = next};
    nodes_[previous].next = static_cast<std::uint32_t>(at);
    nodes_[next].previous = static_cast<std::uint32_t>(at);
    ++size_;
  }
  [[nodiscard]] bool is_linked(std::size_t place) const {
    return place < nodes_.size() && nodes_[place].next != kUnlinked;
  }
  [[nodiscard]] static std::size_t place(EntryId entry) {
    return static_cast<std::size_t>(entry.value) + 1;
  }
  [[nodiscard]] static EntryId entry_at(std::uint32_t place) { return EntryId{place - 1}; }

  std::vector<Node> nodes_ = std::vector<Node>(64);
  std::size_t size_ = 0;
};

/// Adds offered entries from the list's front until the set wants no more.
inline void add_front(const EntryList& list, Victims& victims) {
  for (EntryId entry = list.front(); entry.valid() && victims.wants_more();
       entry = list.next(entry)) {
    if (victims.offers(entry)) {
      victims.add(entry);
    }
  }
}

}  // namespace kvtier
