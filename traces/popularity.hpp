#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/rng.hpp"

namespace kvtier {

/// Zipf's law: of `count` things, the one of rank k (from 1) is drawn with a probability in
/// proportion to k^-exponent. Holds 8 bytes each.
class Popularity {
 public:
  /// `count` > 0 and `exponent` >= 0.
  Popularity(std::int64_t count, double exponent);

  /// The rank less one, 0 the most popular.
  [[nodiscard]] std::int64_t draw(RandomStream& stream) const;

 private:
  /// Sums of the weights up to each rank.
  std::vector<double> sums_;
};

}  // namespace kvtier
