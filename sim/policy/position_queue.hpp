#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/entry_heap.hpp"
#include "sim/policy/grow.hpp"
#include "sim/policy/ids.hpp"

namespace kvtier {

/// Entries by the queue position of their request, the last position on top. An entry is in it at
/// most once, and can be removed from the middle. Most entries come with the largest position so
/// far, because requests join at the end. An array keeps those in O(1) amortised, and a heap the
/// others in O(log n).
class PositionQueue {
 public:
  [[nodiscard]] bool empty() const { return run_.empty() && rest_.empty(); }
  [[nodiscard]] std::size_t size() const { return in_run_ + rest_.size(); }
  [[nodiscard]] bool contains(EntryId entry) const {
    return is_in_run(entry) || rest_.contains(entry);
  }
  [[nodiscard]] EntryId top() const {
    const bool run_is_later =
        !run_.empty() && (rest_.empty() || run_.back().position > from_key(rest_.top_key()));
    return run_is_later ? run_.back().entry : rest_.top();
  }

  void insert(EntryId entry, QueuePosition position) {
    if (entry.value >= place_in_run_.size()) [[unlikely]] {
      grow(place_in_run_, static_cast<std::size_t>(entry.value) + 1, kNotQueued);
    }
    KVTIER_ASSERT(place_in_run_[entry.value] == kNotQueued, "an entry waits at one position");
    if (!run_.empty() && position <= run_.back().position) {
      return insert_apart(entry, position);
    }
    place_in_run_[entry.value] = position;
    run_.push_back({position, entry});
    ++in_run_;
  }

  void remove(EntryId entry) {
    if (!is_in_run(entry)) {
      return remove_apart(entry);
    }
    place_in_run_[entry.value] = kNotQueued;
    --in_run_;
    while (!run_.empty() && !is_live(run_.back())) {
      run_.pop_back();
    }
    // A position removed before the last one leaves a hole, until most of the array is holes.
    if (run_.size() > 2 * in_run_ + kHolesKept) [[unlikely]] {
      drop_holes();
    }
  }

 private:
  static constexpr std::size_t kHolesKept = 64;
  struct Waiting {
    QueuePosition position;
    EntryId entry;
  };

  [[nodiscard]] static std::uint64_t to_key(QueuePosition p) { return UINT64_MAX - p.value; }
  [[nodiscard]] static QueuePosition from_key(std::uint64_t key) { return {UINT64_MAX - key}; }
  [[nodiscard]] bool is_in_run(EntryId entry) const {
    return entry.value < place_in_run_.size() && place_in_run_[entry.value] != kNotQueued;
  }
  [[nodiscard]] bool is_live(const Waiting& w) const {
    return place_in_run_[w.entry.value] == w.position;
  }

  [[gnu::noinline]] void insert_apart(EntryId entry, QueuePosition position) {
    rest_.insert(entry, to_key(position));
  }
  [[gnu::noinline]] void remove_apart(EntryId entry) { rest_.remove(entry); }
  [[gnu::noinline]] void drop_holes() {
    std::erase_if(run_, [this](const Waiting& w) { return !is_live(w); });
  }

  /// In order of position; the last element is not a hole.
  std::vector<Waiting> run_;
  std::size_t in_run_ = 0;
  /// By entry number: its position if it is in the array.
  std::vector<QueuePosition> place_in_run_;
  EntryHeap rest_;
};

}  // namespace kvtier
