#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvtier {
namespace detail {

/// How many of `count` equal steps of `step` surely stay on this side of `bound`, at a distance of
/// `room`.
[[nodiscard]] inline std::int64_t steps_within(double room, double step, std::int64_t count) {
  const double most = room / step - 2;  // two less, for the rounding of the quotient
  return most <= 0                           ? 0
         : most < static_cast<double>(count) ? static_cast<std::int64_t>(most)
                                             : count;
}

/// Whether adding a step whose rounded size is `taken` rounds a tie, so that the next one may be
/// rounded the other way. `value` and its neighbours are `unit` apart.
[[nodiscard]] inline bool is_tie(double step, double taken, double unit) {
  return 2 * std::abs(step - taken) == unit;
}

}  // namespace detail

/// The result of `value = std::min(value + step, limit)` done `count` times, with the same
/// rounding. 0 <= value, 0 < step. Costs depend on the logarithm of `count`: between two powers of
/// two each step is rounded by the same amount.
[[nodiscard]] inline double add_repeatedly(double value, double step, double limit,
                                           std::int64_t count) {
  while (count > 0 && value < limit) {
    const double next = std::min(value + step, limit);
    const double taken = next - value;
    int exponent = 0;
    std::frexp(value, &exponent);
    const double bound = std::min(std::ldexp(1.0, exponent), limit);
    const double unit = std::ldexp(1.0, exponent - 53);
    --count;
    if (value > 0 && next < bound && taken > 0 && !detail::is_tie(step, taken, unit)) {
      const std::int64_t more = detail::steps_within(bound - next, taken, count);
      value = next + static_cast<double>(more) * taken;
      count -= more;
    } else {
      value = next;
    }
  }
  return count > 0 ? std::min(value, limit) : value;
}

/// The same for `value = std::max(value - step, 0.0)`.
[[nodiscard]] inline double subtract_repeatedly(double value, double step, std::int64_t count) {
  while (count > 0 && value > 0) {
    const double next = std::max(value - step, 0.0);
    const double taken = value - next;
    int exponent = 0;
    std::frexp(value, &exponent);
    const double bound = std::ldexp(1.0, exponent - 1);
    const double unit = std::ldexp(1.0, exponent - 53);
    --count;
    if (next > bound && taken > 0 && !detail::is_tie(step, taken, unit)) {
      const std::int64_t more = detail::steps_within(next - bound, taken, count);
      value = next - static_cast<double>(more) * taken;
      count -= more;
    } else {
      value = next;
    }
  }
  return value;
}

}  // namespace kvtier
