// Session: all requests of a session go to one instance, by a consistent hash of the session's
// number. If an instance is lost, only its own sessions move, evenly to the others; they return
// with it. A request without a session goes to an instance with the fewest requests. Karger et al.
// (STOC 1997); vLLM production-stack, routing logic session. O(log n) per request of a session,
// O(n) per other one, among n instances.
#include "policies/routing/session.hpp"

#include <optional>

#include "sim/policy/cheapest_instances.hpp"
#include "sim/policy/parameters.hpp"
#include "sim/policy/session_ring.hpp"

namespace kvtier {
namespace {

constexpr const char* kPoints = "points";
constexpr double kDefaultPoints = 160;

class SessionRouting final : public RoutingPolicy {
 public:
  explicit SessionRouting(std::int64_t points) : points_(points) {}

  void on_start(const RoutingFacts& facts) override { ring_.emplace(facts.instances, points_); }
  InstanceId choose(const RoutedRequest& request, const RoutingView& view) override {
    if (request.session == kNoSession) {
      return cheapest(view, [&](InstanceId instance) { return view.load(instance).requests; });
    }
    return ring_->find(request.session, view.candidates);
  }

 private:
  std::int64_t points_;
  std::optional<SessionRing> ring_;
};

}  // namespace

PolicyKind<RoutingPolicy> session_routing() {
  return {
      .name = "session",
      .summary = "all requests of a session go to one instance, by a consistent hash",
      .source = "Karger et al., STOC 1997; vLLM production-stack (session)",
      .knowledge = Knowledge::online,
      .parameters = {{.name = kPoints,
                      .documentation = "points of an instance on the ring; more spread sessions "
                                       "more evenly",
                      .unit = "points",
                      .minimum = 1,
                      .maximum = 1'000,
                      .default_value = kDefaultPoints}},
      .make = [](const PolicyParameters& parameters) -> std::unique_ptr<RoutingPolicy> {
        return std::make_unique<SessionRouting>(
            static_cast<std::int64_t>(parameter_or(parameters, kPoints, kDefaultPoints)));
      }};
}

}  // namespace kvtier
