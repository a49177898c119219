// Longest prefix: chooses the instance that holds the most blocks of the prompt from its start on,
// in any medium; of equal ones the first. Loads do not count. So requests herd: an instance that
// holds a common prefix gets all of its requests. It is the extreme of cache-aware routing, for
// comparisons. O(b + n) per request of b blocks among n instances, beside the block index.
#include "policies/routing/longest_prefix.hpp"

#include "policies/routing/exact_index.hpp"

namespace kvtier {
namespace {

class LongestPrefixRouting final : public ExactIndexRouting {
 public:
  InstanceId choose(const RoutedRequest& request, const RoutingView& view) override {
    const std::vector<std::int64_t>& matched = match(request);
    return *std::ranges::max_element(view.candidates, {},
                                     [&](InstanceId instance) { return matched[instance.value]; });
  }
};

}  // namespace

PolicyKind<RoutingPolicy> longest_prefix_routing() {
  return {.name = "longest_prefix",
          .summary =
              "the instance that holds most of the prompt, whatever its load; of equal ones "
              "the first",
          .source = "the extreme of cache-aware routing; shown to herd",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<LongestPrefixRouting>(); }};
}

}  // namespace kvtier
