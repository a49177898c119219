// Shuffled window: among the requests at the head of the queue, those whose stored KV is in the
// fastest tier (HBM in the paper) go first, then those that have none, then those whose KV has to
// be loaded, each kind in the order of arrival. The window takes so many requests and is drained
// before it takes the next ones, so that no request is passed by more than the rest of its window.
// CaR (University of Connecticut); that the window is drained and does not slide is our choice: one
// that is refilled at once starves the third kind. O(window) per decision.
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

  /// End of a drained window if it were filled now.
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
                          .documentation = "requests that the window takes; drained before it is "
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
