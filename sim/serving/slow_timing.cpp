#include "sim/serving/slow_timing.hpp"

namespace kvtier {

const std::vector<DecodePiece>& SlowTiming::decode(std::int64_t batch) const {
  const auto [found, is_new] = pieces_.try_emplace(batch);
  if (is_new) {
    for (DecodePiece piece : usual_.decode(batch)) {
      piece.base = slow(piece.base);
      piece.slope = slow(piece.slope);
      found->second.push_back(piece);
    }
  }
  return found->second;
}

std::span<const std::int64_t> SlowTiming::window_slopes(std::int64_t batch) const {
  const auto [found, is_new] = slopes_.try_emplace(batch);
  if (is_new) {
    for (const std::int64_t slope : usual_.window_slopes(batch)) {
      found->second.push_back(slow(slope));
    }
  }
  return found->second;
}

}  // namespace kvtier
