#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/rng.hpp"

namespace kvtier {

/// Zipf's law: of `count` items, the item of rank k (from 1) is drawn with a probability
/// proportional to k^-exponent. Holds 8 bytes per item.
class Popularity {
 public:
  /// `count` > 0 and `exponent` >= 0.
  Popularity(std::int64_t count, double exponent);

  /// Draws an item. Returns its rank minus one; 0 is the most popular.
  [[nodiscard]] std::int64_t draw(RandomStream& stream) const;

 private:
  /// Sums of the weights up to each rank.
  std::vector<double> sums_;
};

}  // namespace kvtier
