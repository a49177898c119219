#pragma once

#include <cstdint>

namespace kvtier {

/// `whole` / `parts` rounded up; whole >= 0, parts > 0.
[[nodiscard]] constexpr std::int64_t divide_up(std::int64_t whole, std::int64_t parts) {
  return (whole + parts - 1) / parts;
}

}  // namespace kvtier
