// Longest prefix: the instance that holds most of the prompt's blocks from the start on goes first,
// in any medium; of equal ones the first. Loads are not seen. So requests herd: an instance that
// holds what prompts have in common gets them all. The extreme of cache-aware routing, to compare
// with. O(b + n) per request of b blocks among n instances, beside the block index.
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
