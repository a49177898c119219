// First come, first served: the request that has waited longest is admitted next. AttentionStore,
// Pensieve and vLLM use this order. O(1) while requests leave from the front.
#include "policies/scheduling/fcfs.hpp"

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

class FcfsOrder final : public OrderPolicy {
 public:
  QueuePosition next(const QueueView& queue) override {
    KVTIER_ASSERT(queue.first() < queue.end(), "the first position of a queue is never empty");
    return queue.first();
  }
};

}  // namespace

PolicyKind<OrderPolicy> fcfs_order() {
  return {.name = "fcfs",
          .summary = "requests are admitted in the order of their arrival",
          .source = "AttentionStore (arXiv 2403.19708), section 4.1",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<FcfsOrder>(); }};
}

}  // namespace kvtier
