#include "sim/study/config/value_unit.hpp"

#include <fmt/format.h>

namespace kvtier {

double factor_of(ValueUnit unit) {
  constexpr double kGiga = 1e-9;
  constexpr double kTebi = 1.0 / (1LL << 40);
  switch (unit) {
    case ValueUnit::percent:
    case ValueUnit::points:
      return 100;
    case ValueUnit::milliseconds:
      return 1000;
    case ValueUnit::gpu_hours:
      return 1.0 / 3600;
    case ValueUnit::gigabytes:
    case ValueUnit::gigabytes_per_second:
      return kGiga;
    case ValueUnit::tebibytes:
      return kTebi;
    default:
      return 1;
  }
}

std::string suffix_of(ValueUnit unit) {
  if (unit == ValueUnit::count) {
    return "";
  }
  for (const auto& [name, value] : enum_names(ValueUnit{})) {
    if (value == unit) {
      return " " + std::string(name);
    }
  }
  return "";
}

std::string format_in(ValueUnit unit, double shown) {
  switch (unit) {
    case ValueUnit::times:
    case ValueUnit::dollars:
      return fmt::format("{:.2f}", shown);
    case ValueUnit::tokens_per_second:
    case ValueUnit::count:
      return fmt::format("{:.0f}", shown);
    default:
      return fmt::format("{:.1f}", shown);
  }
}

}  // namespace kvtier
