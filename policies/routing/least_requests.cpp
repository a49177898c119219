// Least requests: the instance with the fewest requests goes first, waiting and running ones alike;
// of equal ones, any. Requests count the same, whatever they cost. Reports that are old send a
// burst of requests to one instance. Join the shortest queue (Winston, 1977). O(n) per request
// among n instances.
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
