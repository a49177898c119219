#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/core/rng.hpp"
#include "sim/policy/routing.hpp"

namespace kvtier {

/// Consistent hashing (Karger et al., STOC 1997): instances have points on a ring, and a session
/// belongs to the instance of the first point at or behind its own. If an instance leaves or
/// returns, only its own sessions move. A lookup is O(log(n points)).
class SessionRing {
 public:
  /// Makes `points` points for each of the instances 0 .. instances-1.
  SessionRing(std::int64_t instances, std::int64_t points) {
    points_.reserve(static_cast<std::size_t>(instances * points));
    for (std::int64_t instance = 0; instance < instances; ++instance) {
      const std::uint64_t seed = random_bits_at(kSalt, static_cast<std::uint64_t>(instance));
      for (std::int64_t point = 0; point < points; ++point) {
        points_.push_back({random_bits_at(seed, static_cast<std::uint64_t>(point)),
                           InstanceId{static_cast<std::uint32_t>(instance)}});
      }
    }
    std::ranges::sort(points_);
  }

  /// The session's instance. Skips points of instances that are not candidates.
  [[nodiscard]] InstanceId find(std::uint64_t session,
                                std::span<const InstanceId> candidates) const {
    const Point wanted{random_bits_at(session, 0), InstanceId{0}};
    const auto first = std::ranges::lower_bound(points_, wanted) - points_.begin();
    for (std::size_t i = 0; i < points_.size(); ++i) {
      const Point& point = points_[(static_cast<std::size_t>(first) + i) % points_.size()];
      if (std::ranges::binary_search(candidates, point.instance)) {
        return point.instance;
      }
    }
    KVTIER_ASSERT(false, "every candidate is on the ring");
  }

 private:
  static constexpr std::uint64_t kSalt = 0x72696e67;
  struct Point {
    std::uint64_t at = 0;
    InstanceId instance;

    friend constexpr auto operator<=>(const Point&, const Point&) = default;
  };
  std::vector<Point> points_;
};

}  // namespace kvtier
