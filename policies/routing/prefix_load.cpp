// Prefix and load: chooses the instance that would have the fewest uncached tokens to prefill, of
// its requests without a first token and of this request. Ties go by the fewest requests, then at
// random. It sees uncached_prefill_tokens and requests of an instance's last report (InstanceLoad,
// sim/policy/routing.hpp), and the blocks of the prompt that the instance stores by block events
// (match in exact_index.hpp). TTFT is mostly this work, so a hit is worth as much as the queue that
// it saves. O(b + n) per request of b blocks among n instances, beside the block index.
#include "policies/routing/prefix_load.hpp"

#include <utility>

#include "policies/routing/exact_index.hpp"
#include "sim/policy/cheapest_instances.hpp"

namespace kvtier {
namespace {

class PrefixLoadRouting final : public ExactIndexRouting {
 public:
  InstanceId choose(const RoutedRequest& request, const RoutingView& view) override {
    const std::vector<std::int64_t>& matched = match(request);
    return cheapest(view, [&](InstanceId instance) {
      const InstanceLoad& load = view.load(instance);
      const Tokens own = request.prompt - facts().block_tokens * matched[instance.value];
      return std::pair(load.uncached_prefill_tokens + own, load.requests);
    });
  }
};

}  // namespace

PolicyKind<RoutingPolicy> prefix_load_routing() {
  return {.name = "prefix_load",
          .summary =
              "the instance with the fewest tokens to prefill, this request's included, "
              "without those that its caches hold",
          .source = "least work by uncached tokens",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<PrefixLoadRouting>(); }};
}

}  // namespace kvtier
