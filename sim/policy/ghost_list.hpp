#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "sim/policy/views.hpp"

namespace kvtier {

/// Keys of entries that have left, with their bytes. The oldest key is forgotten first. O(1)
/// amortised.
class GhostList {
 public:
  [[nodiscard]] Bytes bytes() const { return bytes_; }
  [[nodiscard]] bool contains(EntryKey key) const { return ghosts_.contains(key.value); }

  void push(EntryKey key, Bytes bytes) {
    remove(key);
    ghosts_[key.value] = {++pushed_, bytes};
    order_.push_back({key, pushed_});
    bytes_ += bytes;
  }
  /// Forgets the key. Returns whether it was there.
  bool remove(EntryKey key) {
    const auto found = ghosts_.find(key.value);
    if (found == ghosts_.end()) {
      return false;
    }
    bytes_ -= found->second.bytes;
    ghosts_.erase(found);
    // A key removed out of order leaves a hole, until most of the order is holes.
    if (order_.size() > 2 * ghosts_.size() + kHolesKept) {
      std::erase_if(order_, [this](const Place& place) { return !is_live(place); });
    }
    return true;
  }
  /// Forgets the oldest keys until at most `limit` bytes are left.
  void trim(Bytes limit) {
    while (bytes_ > limit) {
      const Place oldest = order_.front();
      order_.pop_front();
      if (is_live(oldest)) {
        remove(oldest.key);
      }
    }
  }

 private:
  static constexpr std::size_t kHolesKept = 64;
  struct Ghost {
    std::uint64_t pushed = 0;
    Bytes bytes;
  };
  struct Place {
    EntryKey key;
    std::uint64_t pushed = 0;
  };
  [[nodiscard]] bool is_live(const Place& place) const {
    const auto found = ghosts_.find(place.key.value);
    return found != ghosts_.end() && found->second.pushed == place.pushed;
  }

  std::unordered_map<std::uint64_t, Ghost> ghosts_;  // never iterated: its order means nothing
  std::deque<Place> order_;
  std::uint64_t pushed_ = 0;
  Bytes bytes_;
};

}  // namespace kvtier
