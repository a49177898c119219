// vLLM production-stack, routing logic kvaware: chooses the instance that holds most of the prompt
// according to the LMCache controller, of equal ones the first. If it lacks more tokens than a
// threshold, a consistent hash of the session decides. Without a session, the fewest requests
// decide (the real router uses requests per second). O(b + log n) per request of b blocks among n
// instances, beside the block index; O(n) without a session.
#include "policies/routing/vllm_kvaware.hpp"

#include <algorithm>
#include <optional>

#include "policies/routing/exact_index.hpp"
#include "sim/policy/cheapest_instances.hpp"
#include "sim/policy/parameters.hpp"
#include "sim/policy/session_ring.hpp"

namespace kvtier {
namespace {

constexpr const char* kThreshold = "threshold";
constexpr double kDefaultThreshold = 2'000;
/// Points of an instance on the ring, as in routing policy session.
constexpr std::int64_t kRingPoints = 160;

class VllmKvawareRouting final : public ExactIndexRouting {
 public:
  explicit VllmKvawareRouting(std::int64_t threshold) : threshold_(threshold) {}

  void on_start(const RoutingFacts& start) override {
    ExactIndexRouting::on_start(start);
    ring_.emplace(start.instances, kRingPoints);
  }
  InstanceId choose(const RoutedRequest& request, const RoutingView& view) override {
    const std::vector<std::int64_t>& matched = match(request);
    const InstanceId best = *std::ranges::max_element(
        view.candidates, {}, [&](InstanceId instance) { return matched[instance.value]; });
    const Tokens found = facts().block_tokens * matched[best.value];
    if (found > Tokens(0) && found >= request.prompt - threshold_) {
      return best;
    }
    if (request.session != kNoSession) {
      return ring_->find(request.session, view.candidates);
    }
    return cheapest(view, [&](InstanceId instance) { return view.load(instance).requests; });
  }

 private:
  Tokens threshold_;
  std::optional<SessionRing> ring_;
};

}  // namespace

PolicyKind<RoutingPolicy> vllm_kvaware_routing() {
  return {.name = "vllm_kvaware",
          .summary =
              "the instance that holds most of the prompt if it lacks little, else the "
              "session's",
          .source = "vLLM production-stack (kvaware), August 2026",
          .knowledge = Knowledge::online,
          .parameters = {{.name = kThreshold,
                          .documentation = "tokens of the prompt that the holder may lack",
                          .unit = "tokens",
                          .minimum = 0,
                          .maximum = 1e9,
                          .default_value = kDefaultThreshold}},
          .make = [](const PolicyParameters& parameters) -> std::unique_ptr<RoutingPolicy> {
            return std::make_unique<VllmKvawareRouting>(
                static_cast<std::int64_t>(parameter_or(parameters, kThreshold, kDefaultThreshold)));
          }};
}

}  // namespace kvtier
