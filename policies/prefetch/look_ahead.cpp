// Look-ahead prefetch: entries of the requests in a window at the queue's head are fetched from the
// slow tier in queue order, before admission. The window has as many requests as fit in the memory
// available for prefetching: C_mem / S_kv. AttentionStore (arXiv 2403.19708), section 3.3.1. O(1)
// amortised per decision: a cursor passes each position once, and again only after a demotion.
#include "policies/prefetch/look_ahead.hpp"

#include <algorithm>

namespace kvtier {
namespace {

constexpr const char* kWindow = "window";

class LookAheadPrefetch final : public PrefetchPolicy {
 public:
  explicit LookAheadPrefetch(std::optional<std::uint64_t> window) : window_(window) {}

  void on_demoted(EntryId, QueuePosition position) override {
    cursor_ = std::min(cursor_, position);
  }

  std::optional<Fetch> next_fetch(const PrefetchContext& context) override {
    const QueueView& queue = *context.queue;
    const std::uint64_t window = window_ ? *window_ : automatic_window(context);
    const std::uint64_t end = std::min(queue.end().value, queue.first().value + window);
    cursor_ = std::max(cursor_, queue.first());
    for (; cursor_.value < end; ++cursor_.value) {
      const EntryId entry = queue.entry_at(cursor_);
      if (entry.valid() && (*context.needs_fetch)(entry)) {
        return Fetch{entry};
      }
    }
    return std::nullopt;
  }

 private:
  [[nodiscard]] static std::uint64_t automatic_window(const PrefetchContext& context) {
    return context.mean_entry.value <= 0
               ? 0
               : static_cast<std::uint64_t>(context.memory / context.mean_entry);
  }

  std::optional<std::uint64_t> window_;
  /// No position before the cursor needs a fetch.
  QueuePosition cursor_{0};
};

}  // namespace

PolicyKind<PrefetchPolicy> look_ahead_prefetch() {
  return {.name = "look_ahead",
          .summary = "fetches the KV of the requests at the head of the queue, in queue order",
          .source = "AttentionStore (arXiv 2403.19708), section 3.3.1",
          .knowledge = Knowledge::look_ahead,
          .parameters = {{.name = kWindow,
                          .documentation =
                              "requests in the window at the head of the queue; auto: C_mem / S_kv",
                          .unit = "requests",
                          .minimum = 0,
                          .maximum = 1e12,
                          .default_value = std::nullopt}},
          .make = [](const PolicyParameters& parameters) -> std::unique_ptr<PrefetchPolicy> {
            const auto window = parameters.find(kWindow);
            return std::make_unique<LookAheadPrefetch>(
                window == parameters.end()
                    ? std::nullopt
                    : std::optional(static_cast<std::uint64_t>(window->second)));
          }};
}

}  // namespace kvtier
