// Least tokens: chooses the instance with the fewest prompt tokens to prefill, ties by the fewest
// requests, then at random. Long prompts count by their length. Cached tokens count, too. O(n) per
// request among n instances.
#include "policies/routing/least_tokens.hpp"

#include <utility>

#include "sim/policy/cheapest_instances.hpp"

namespace kvtier {
namespace {

class LeastTokensRouting final : public RoutingPolicy {
 public:
  InstanceId choose(const RoutedRequest&, const RoutingView& view) override {
    return cheapest(view, [&](InstanceId instance) {
      const InstanceLoad& load = view.load(instance);
      return std::pair(load.prefill_tokens, load.requests);
    });
  }
};

}  // namespace

PolicyKind<RoutingPolicy> least_tokens_routing() {
  return {.name = "least_tokens",
          .summary =
              "the instance with the fewest prompt tokens to prefill, of equal ones that with the "
              "fewest requests",
          .source = "least work by the length of prompts",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<LeastTokensRouting>(); }};
}

}  // namespace kvtier
