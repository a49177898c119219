// Power of two choices: two different instances are drawn, and the one with fewer requests is
// chosen; of equal ones the first drawn. Two draws shorten the longest queue nearly as much as a
// comparison of all instances, and old reports herd fewer requests. Mitzenmacher (IEEE Transactions
// on Parallel and Distributed Systems 12(10), 2001). O(1) per request.
#include "policies/routing/power_of_two.hpp"

namespace kvtier {
namespace {

class PowerOfTwoRouting final : public RoutingPolicy {
 public:
  InstanceId choose(const RoutedRequest&, const RoutingView& view) override {
    const auto count = static_cast<std::int64_t>(view.candidates.size());
    if (count == 1) {
      return view.candidates.front();
    }
    const std::int64_t first = view.random->index(count);
    const std::int64_t other = view.random->index(count - 1);
    const InstanceId a = view.candidates[static_cast<std::size_t>(first)];
    const InstanceId b =
        view.candidates[static_cast<std::size_t>(other + (other >= first ? 1 : 0))];
    return view.load(b).requests < view.load(a).requests ? b : a;
  }
};

}  // namespace

PolicyKind<RoutingPolicy> power_of_two_routing() {
  return {.name = "power_of_two",
          .summary = "of two instances drawn at random, the one with fewer requests in flight",
          .source = "Mitzenmacher, IEEE TPDS 12(10), 2001; SGLang's gateway has it",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<PowerOfTwoRouting>(); }};
}

}  // namespace kvtier
