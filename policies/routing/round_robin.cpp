// Round robin: the instances take turns in the order of their numbers. Every instance gets the same
// number of requests, whatever they cost. An instance that is not a candidate is skipped and loses
// its turn. O(log n) per request among n instances.
#include "policies/routing/round_robin.hpp"

#include <algorithm>

namespace kvtier {
namespace {

class RoundRobinRouting final : public RoutingPolicy {
 public:
  InstanceId choose(const RoutedRequest&, const RoutingView& view) override {
    const auto next = std::ranges::lower_bound(view.candidates, next_);
    const InstanceId chosen = next == view.candidates.end() ? view.candidates.front() : *next;
    next_ = InstanceId{chosen.value + 1};
    return chosen;
  }

 private:
  InstanceId next_{0};
};

}  // namespace

PolicyKind<RoutingPolicy> round_robin_routing() {
  return {.name = "round_robin",
          .summary = "the instances take turns",
          .source = "the baseline; vLLM production-stack, Dynamo and SGLang have it",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<RoundRobinRouting>(); }};
}

}  // namespace kvtier
