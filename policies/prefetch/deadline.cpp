// Timed prefetch: the next waiting request is admitted when a running one ends. Its KV should be in
// the fastest tier at that time, and not earlier, because it takes room there. The fetch begins at
// the time t at which
//   min over running requests i of { TPOT x predicted length_i - (t - start_i) } <= size /
//   bandwidth
// that is, when the first of them is expected to end before the fetch does. CaR (University of
// Connecticut). We read "the next request" as the first of the order policy's window whose KV needs
// a fetch. O(running requests + window) per decision.
#include "policies/prefetch/deadline.hpp"

#include <algorithm>

namespace kvtier {
namespace {

class DeadlinePrefetch final : public PrefetchPolicy {
 public:
  std::optional<Fetch> next_fetch(const PrefetchContext& context) override {
    const std::optional<EntryId> entry = first_to_fetch(context);
    if (!entry) {
      return std::nullopt;
    }
    const std::optional<SimTime> end = first_end(*context.running);
    if (!end) {
      return std::nullopt;
    }
    return Fetch{*entry, *end - (*context.fetch_duration)(*entry)};
  }

 private:
  [[nodiscard]] static std::optional<EntryId> first_to_fetch(const PrefetchContext& context) {
    const QueueView& queue = *context.queue;
    const QueuePosition end = std::min(queue.window_end(), queue.end());
    for (QueuePosition at = queue.first(); at < end; ++at.value) {
      const EntryId entry = queue.entry_at(at);
      if (entry.valid() && (*context.needs_fetch)(entry)) {
        return entry;
      }
    }
    return std::nullopt;
  }

  /// When the first running request is expected to end.
  [[nodiscard]] static std::optional<SimTime> first_end(const RunningView& running) {
    const std::optional<SimDuration> tpot = running.tpot();
    std::optional<SimTime> first;
    if (tpot) {
      running.for_each_running([&](SimTime first_token, Tokens predicted) {
        const SimTime end = first_token + *tpot * predicted.value;
        first = first ? std::min(*first, end) : end;
      });
    }
    return first;
  }
};

}  // namespace

PolicyKind<PrefetchPolicy> deadline_prefetch() {
  return {.name = "deadline",
          .summary =
              "fetches the next waiting request's KV to arrive when a running one is "
              "expected to end",
          .source = "CaR (University of Connecticut)",
          .knowledge = Knowledge::look_ahead,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<DeadlinePrefetch>(); }};
}

}  // namespace kvtier
