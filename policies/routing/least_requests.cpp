// Least requests: chooses the instance with the fewest waiting and running requests, ties at
// random. All requests count the same, whatever they cost. Old reports send a burst of requests to
// one instance. Join the shortest queue (Winston, 1977). O(n) per request among n instances.
#include "policies/routing/least_requests.hpp"

#include "sim/policy/cheapest_instances.hpp"

namespace kvtier {
namespace {

class LeastRequestsRouting final : public RoutingPolicy {
 public:
  InstanceId choose(const RoutedRequest&, const RoutingView& view) override {
    return cheapest(view, [&](InstanceId instance) { return view.load(instance).requests; });
  }
};

}  // namespace

PolicyKind<RoutingPolicy> least_requests_routing() {
  return {.name = "least_requests",
          .summary = "the instance with the fewest requests in flight, equal ones at random",
          .source = "join the shortest queue: Winston, Journal of Applied Probability 14(1), 1977",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<LeastRequestsRouting>(); }};
}

}  // namespace kvtier
