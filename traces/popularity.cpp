#include "traces/popularity.hpp"

#include <algorithm>
#include <cmath>

#include "sim/core/assert.hpp"

namespace kvtier {

Popularity::Popularity(std::int64_t count, double exponent) {
  KVTIER_ASSERT(count > 0 && exponent >= 0, "things to draw from");
  sums_.reserve(static_cast<std::size_t>(count));
  double sum = 0;
  for (std::int64_t rank = 1; rank <= count; ++rank) {
    sum += std::pow(static_cast<double>(rank), -exponent);
    sums_.push_back(sum);
  }
}

std::int64_t Popularity::draw(RandomStream& stream) const {
  const double drawn = stream.uniform() * sums_.back();
  const auto found = std::upper_bound(sums_.begin(), sums_.end(), drawn);
  // The product may round up to the sum.
  return std::min(found - sums_.begin(), std::ssize(sums_) - 1);
}

}  // namespace kvtier
