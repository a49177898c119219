#pragma once

#include <vector>

#include "sim/policy/routing.hpp"

namespace kvtier {

/// Collects the offered instances with the lowest cost. O(1) per offer.
template <class Cost>
class CheapestInstances {
 public:
  void offer(InstanceId instance, const Cost& cost) {
    if (instances_.empty() || cost < cost_) {
      instances_.clear();
      cost_ = cost;
    }
    if (!(cost_ < cost)) {
      instances_.push_back(instance);
    }
  }
  [[nodiscard]] const std::vector<InstanceId>& all() const { return instances_; }
  /// Any of the cheapest; draws a random number only if there are several.
  [[nodiscard]] InstanceId any(RandomSource& random) const {
    const auto count = static_cast<std::int64_t>(instances_.size());
    return instances_[count == 1 ? 0 : static_cast<std::size_t>(random.index(count))];
  }

 private:
  std::vector<InstanceId> instances_;
  Cost cost_{};
};

/// The candidate with the lowest cost, ties at random. O(candidates).
template <class CostOf>
[[nodiscard]] InstanceId cheapest(const RoutingView& view, const CostOf& cost_of) {
  CheapestInstances<decltype(cost_of(view.candidates.front()))> found;
  for (const InstanceId candidate : view.candidates) {
    found.offer(candidate, cost_of(candidate));
  }
  return found.any(*view.random);
}

}  // namespace kvtier
