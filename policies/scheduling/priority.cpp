// Priority: the waiting request with the smallest priority number is admitted next, and of equal
// ones the one that arrived first. In systems of blocks the running request with the largest number
// is preempted first. vLLM v1, --scheduling-policy priority. O(log n) per request that waits.
#include "policies/scheduling/priority.hpp"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

class PriorityOrder final : public OrderPolicy {
 public:
  QueuePosition next(const QueueView& queue) override {
    KVTIER_ASSERT(queue.first() < queue.end(), "the first position of a queue is never empty");
    for (seen_ = std::max(seen_, queue.first()); seen_ < queue.end(); ++seen_.value) {
      if (queue.waiting_at(seen_)) {
        waiting_.insert({queue.priority_at(seen_), seen_});
      }
    }
    const auto waits = [&](QueuePosition at) {
      return at >= queue.first() && queue.waiting_at(at);
    };
    while (!waits(waiting_.begin()->second)) {
      waiting_.erase(waiting_.begin());
    }
    return waiting_.begin()->second;
  }
  [[nodiscard]] bool preempts_by_priority() const override { return true; }

 private:
  /// Positions before this one are known.
  QueuePosition seen_{0};
  /// By priority and arrival. Requests that have left are dropped when they are first.
  std::set<std::pair<std::int64_t, QueuePosition>> waiting_;
};

}  // namespace

PolicyKind<OrderPolicy> priority_order() {
  return {.name = "priority",
          .summary = "the smallest priority number first, and equal ones in the order of arrival",
          .source = "vLLM 0.33.0 (v1), scheduling policy priority",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<PriorityOrder>(); }};
}

}  // namespace kvtier
