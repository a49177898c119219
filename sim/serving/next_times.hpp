#pragma once

#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

#include "sim/core/units.hpp"

namespace kvtier {

/// The next times of several clocks, of which the earliest is asked for: a tournament. Of equal
/// times that with the lowest number comes first. A change costs O(log n).
class NextTimes {
 public:
  explicit NextTimes(std::size_t clocks)
      : leaves_(std::bit_ceil(clocks)), times_(leaves_, kNever), winners_(leaves_) {
    for (std::size_t node = leaves_; node-- > 1;) {
      winners_[node] = winner(node);
    }
  }

  void set(std::size_t clock, SimTime time) {
    times_[clock] = time;
    for (std::size_t node = (leaves_ + clock) / 2; node > 0; node /= 2) {
      winners_[node] = winner(node);
    }
  }
  [[nodiscard]] std::size_t first() const { return leaves_ == 1 ? 0 : winners_[1]; }
  [[nodiscard]] SimTime first_time() const { return times_[first()]; }

 private:
  [[nodiscard]] std::size_t at(std::size_t node) const {
    return node >= leaves_ ? node - leaves_ : winners_[node];
  }
  [[nodiscard]] std::size_t winner(std::size_t node) const {
    const std::size_t left = at(2 * node);
    const std::size_t right = at(2 * node + 1);
    return times_[right] < times_[left] ? right : left;
  }

  std::size_t leaves_;
  std::vector<SimTime> times_;
  /// By node of the tree, the root at 1.
  std::vector<std::size_t> winners_;
};

}  // namespace kvtier
