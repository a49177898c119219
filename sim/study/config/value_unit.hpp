#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace kvtier {

/// The unit in which a value is shown. Values are computed as shares, seconds and bytes.
enum class ValueUnit {
  percent,
  points,
  times,
  seconds,
  milliseconds,
  tokens_per_second,
  gpu_hours,
  gigabytes_per_second,
  gigabytes,
  tebibytes,
  dollars,
  count,
};
constexpr auto enum_names(ValueUnit) {
  return std::array{
      std::pair<std::string_view, ValueUnit>{"%", ValueUnit::percent},
      std::pair<std::string_view, ValueUnit>{"points", ValueUnit::points},
      std::pair<std::string_view, ValueUnit>{"x", ValueUnit::times},
      std::pair<std::string_view, ValueUnit>{"s", ValueUnit::seconds},
      std::pair<std::string_view, ValueUnit>{"ms", ValueUnit::milliseconds},
      std::pair<std::string_view, ValueUnit>{"tokens/s", ValueUnit::tokens_per_second},
      std::pair<std::string_view, ValueUnit>{"GPU hours", ValueUnit::gpu_hours},
      std::pair<std::string_view, ValueUnit>{"GB/s", ValueUnit::gigabytes_per_second},
      std::pair<std::string_view, ValueUnit>{"GB", ValueUnit::gigabytes},
      std::pair<std::string_view, ValueUnit>{"TiB", ValueUnit::tebibytes},
      std::pair<std::string_view, ValueUnit>{"$", ValueUnit::dollars},
      std::pair<std::string_view, ValueUnit>{"count", ValueUnit::count}};
}
/// The factor from a computed value to the unit.
[[nodiscard]] double factor_of(ValueUnit unit);
/// The unit as a suffix of a number: " %", " ms"; empty for a count.
[[nodiscard]] std::string suffix_of(ValueUnit unit);
/// Formats a number that is already in the unit, with the unit's number of digits.
[[nodiscard]] std::string format_in(ValueUnit unit, double shown);

}  // namespace kvtier
