#pragma once

#include <cstdint>

namespace kvtier {

/// Inline std::llround for values from 0 to 2^63, which are rounded several times per turn.
[[nodiscard]] inline std::int64_t round_non_negative(double value) {
  const auto whole = static_cast<std::int64_t>(value);
  return whole + (value - static_cast<double>(whole) >= 0.5 ? 1 : 0);
}

}  // namespace kvtier
