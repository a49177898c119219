#pragma once

#include <cstdint>

namespace kvtier::testing {

/// Allocations of the whole program with `new`. The sum of all sizes bounds what it can hold at any
/// moment.
struct Allocations {
  std::int64_t count = 0;
  std::int64_t bytes = 0;
};

[[nodiscard]] Allocations allocations_so_far();

}  // namespace kvtier::testing
