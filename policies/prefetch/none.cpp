// No prefetch: an entry is loaded when its request is admitted, and the request waits for it. O(1).
#include "policies/prefetch/none.hpp"

namespace kvtier {
namespace {

class NoPrefetch final : public PrefetchPolicy {
 public:
  std::optional<Fetch> next_fetch(const PrefetchContext&) override { return std::nullopt; }
};

}  // namespace

PolicyKind<PrefetchPolicy> no_prefetch() {
  return {.name = "none",
          .summary = "entries are loaded on demand",
          .source = "baseline",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<NoPrefetch>(); }};
}

}  // namespace kvtier
