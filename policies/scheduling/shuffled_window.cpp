// Shuffled window: among a number of requests at the queue's head, requests with KV in the fastest
// tier (HBM in the paper) go first. Then come requests without stored KV, then those whose KV must
// be loaded, each kind in order of arrival. CaR (University of Connecticut). The window is drained
// before it is refilled, so only requests of its window can pass a request. This is our choice: a
// sliding window starves the third kind. O(window) per decision.
#include "policies/scheduling/shuffled_window.hpp"

#include "sim/core/assert.hpp"
#include "sim/policy/parameters.hpp"

namespace kvtier {
namespace {

constexpr const char* kRequests = "requests";
constexpr double kDefaultRequests = 32;

class ShuffledWindowOrder final : public OrderPolicy {
 public:
  explicit ShuffledWindowOrder(std::int64_t requests) : requests_(requests) {}

  QueuePosition next(const QueueView& queue) override {
    KVTIER_ASSERT(queue.first() < queue.end(), "the first position of a queue is never empty");
    end_ = window_end(queue);
    QueuePosition best = queue.first();
    Placement best_placement = queue.placement_at(best);
    for (QueuePosition at = best; at < end_ && best_placement != Placement::fastest; ++at.value) {
      if (queue.waiting_at(at)) {
        const Placement placement = queue.placement_at(at);
        if (placement < best_placement) {
          best = at;
          best_placement = placement;
        }
      }
    }
    return best;
  }

  /// End of the current window, or of a new one if the current one is drained.
  [[nodiscard]] QueuePosition window_end(const QueueView& queue) const override {
    if (queue.first() < end_) {
      return end_;
    }
    QueuePosition end = queue.first();
    for (std::int64_t taken = 0; taken < requests_ && end < queue.end(); ++end.value) {
      taken += queue.waiting_at(end) ? 1 : 0;
    }
    return end;
  }

 private:
  std::int64_t requests_;
  QueuePosition end_{0};
};

}  // namespace

PolicyKind<OrderPolicy> shuffled_window_order() {
  return {.name = "shuffled_window",
          .summary =
              "in a window at the head of the queue: first those whose KV is in the fastest tier, "
              "then those that have none, then those that must load",
          .source = "CaR (University of Connecticut)",
          .knowledge = Knowledge::look_ahead,
          .parameters = {{.name = kRequests,
                          .documentation = "requests of a window, which is drained before it is "
                                           "refilled",
                          .unit = "requests",
                          .minimum = 1,
                          .maximum = 1e6,
                          .default_value = kDefaultRequests}},
          .make = [](const PolicyParameters& parameters) -> std::unique_ptr<OrderPolicy> {
            return std::make_unique<ShuffledWindowOrder>(
                static_cast<std::int64_t>(parameter_or(parameters, kRequests, kDefaultRequests)));
          }};
}

}  // namespace kvtier
