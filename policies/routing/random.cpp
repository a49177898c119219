// Random: every instance is as likely as any other. Loads stay uneven, and a turn reaches an
// instance with its session's KV by chance alone. It is the baseline of comparisons of routers.
// O(1) per request.
#include "policies/routing/random.hpp"

namespace kvtier {
namespace {

class RandomRouting final : public RoutingPolicy {
 public:
  InstanceId choose(const RoutedRequest&, const RoutingView& view) override {
    const auto count = static_cast<std::int64_t>(view.candidates.size());
    return view.candidates[static_cast<std::size_t>(view.random->index(count))];
  }
};

}  // namespace

PolicyKind<RoutingPolicy> random_routing() {
  return {.name = "random",
          .summary = "any instance, each as likely as the others",
          .source = "the baseline; Dynamo and SGLang have it",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<RandomRouting>(); }};
}

}  // namespace kvtier
