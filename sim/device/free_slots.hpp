#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace kvtier {

/// The free slots of a memory, in runs of neighbours, because neighbours move in one copy. Taking
/// or freeing a run is O(log(free runs)).
class FreeSlots {
 public:
  static constexpr std::int32_t kNone = -1;

  FreeSlots() = default;
  FreeSlots(std::int64_t first, std::int64_t count) { give_back(first, first + count); }

  [[nodiscard]] std::int64_t count() const { return count_; }
  /// Takes `count` of the free slots. The first choice is right behind slot `behind`. The second is
  /// the middle of the longest run, so that the entry before and this one both have room to grow.
  [[nodiscard]] std::vector<std::int32_t> take(std::int64_t count, std::int32_t behind = kNone);
  /// Slots `first` .. `end` - 1 become free.
  void give_back(std::int64_t first, std::int64_t end);

 private:
  /// First slot, and the one behind the last.
  using Runs = std::map<std::int64_t, std::int64_t>;

  void add(std::int64_t first, std::int64_t end);
  void remove(Runs::iterator run);

  /// Free runs; no two are neighbours.
  Runs runs_;
  /// Size and first slot of each run.
  std::set<std::pair<std::int64_t, std::int64_t>> by_size_;
  std::int64_t count_ = 0;
};

}  // namespace kvtier
