#include "sim/core/quantity.hpp"

#include <charconv>
#include <cmath>
#include <span>
#include <utility>

#include <fmt/format.h>

namespace kvtier {
namespace {

/// A unit, and its size in the quantity's own unit.
struct Unit {
  std::string_view name;
  double factor;
};

constexpr double kKi = 1024.0;

// Each table runs from the smallest unit to the largest.
constexpr Unit kByteUnits[] = {{"B", 1},
                               {"kB", 1e3},
                               {"KiB", kKi},
                               {"MB", 1e6},
                               {"MiB", kKi* kKi},
                               {"GB", 1e9},
                               {"GiB", kKi* kKi* kKi},
                               {"TB", 1e12},
                               {"TiB", kKi* kKi* kKi* kKi},
                               {"PB", 1e15},
                               {"PiB", kKi* kKi* kKi* kKi* kKi}};
constexpr Unit kTokenUnits[] = {{"tokens", 1}, {"token", 1}};
constexpr Unit kDurationUnits[] = {{"ns", 1},     {"us", 1e3},   {"ms", 1e6},   {"s", 1e9},
                                   {"min", 60e9}, {"h", 3600e9}, {"d", 86400e9}};
constexpr Unit kBandwidthUnits[] = {{"B/s", 1},
                                    {"kB/s", 1e3},
                                    {"KiB/s", kKi},
                                    {"MB/s", 1e6},
                                    {"MiB/s", kKi* kKi},
                                    {"GB/s", 1e9},
                                    {"GiB/s", kKi* kKi* kKi},
                                    {"TB/s", 1e12},
                                    {"TiB/s", kKi* kKi* kKi* kKi}};
constexpr Unit kFlopUnits[] = {
    {"FLOP/s", 1}, {"MFLOP/s", 1e6}, {"GFLOP/s", 1e9}, {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}};
constexpr Unit kRateUnits[] = {
    {"/d", 1.0 / 86400}, {"/h", 1.0 / 3600}, {"/min", 1.0 / 60}, {"/s", 1}};

/// Units of a price that is paid by the hour, and of one that is paid once.
struct PriceUnits {
  Unit rented[1];
  Unit bought[1];
};
constexpr PriceUnits kHourPrice{{{"$/h", 1}}, {{"$", 1}}};
constexpr PriceUnits kStoragePrice{{{"$/h/GiB", 1}}, {{"$/GiB", 1}}};
constexpr Unit kYears[] = {{"y", 1}};
constexpr double kYearsMin = 1;
constexpr double kYearsMax = 20;
constexpr std::string_view kOver = " over ";

struct NumberAndUnit {
  double number;
  const char* number_end;
  double factor;
};

std::optional<NumberAndUnit> split(std::string_view text, std::span<const Unit> units) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number)) {
    return std::nullopt;
  }
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (!unit.empty() && unit.front() == ' ') {
    unit.remove_prefix(1);
  }
  for (const Unit& known : units) {
    if (known.name == unit) {
      return NumberAndUnit{number, end, known.factor};
    }
  }
  return std::nullopt;
}

std::optional<std::int64_t> parse_whole(std::string_view text, std::span<const Unit> units) {
  const auto parts = split(text, units);
  if (!parts) {
    return std::nullopt;
  }
  const double value = parts->number * parts->factor;
  constexpr double kLargest = 9.0e18;
  if (std::abs(value) > kLargest) {
    return std::nullopt;
  }
  // Whole numbers are parsed apart: a double is not exact beyond 2^53.
  std::int64_t digits = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), digits);
  if (error == std::errc() && end == parts->number_end) {
    return digits * static_cast<std::int64_t>(parts->factor);
  }
  // A decimal fraction of a unit ("0.1s") is rarely exact in binary, so the value may be whole
  // within rounding.
  const double whole = std::round(value);
  if (std::abs(value - whole) > 1e-6 * std::max(1.0, std::abs(value) * 1e-9)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(whole);
}

std::string format_whole(std::int64_t value, std::span<const Unit> units) {
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    const auto factor = static_cast<std::int64_t>(unit->factor);
    if (value != 0 && value % factor == 0 && factor > 1) {
      return fmt::format("{}{}", value / factor, unit->name);
    }
  }
  return fmt::format("{}{}", value, units.front().name);
}

std::optional<double> parse_real(std::string_view text, std::span<const Unit> units) {
  const auto parts = split(text, units);
  if (!parts || !std::isfinite(parts->number * parts->factor)) {
    return std::nullopt;
  }
  return parts->number * parts->factor;
}

std::string format_real(double value, std::span<const Unit> units) {
  // Several units may write the value exactly. The shortest text is the natural one: 26 GB/s, not
  // 24.21438694000244 GiB/s.
  std::string shortest;
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    const double number = value / unit->factor;
    if (number >= 1 && number * unit->factor == value) {
      std::string text = fmt::format("{}{}", number, unit->name);
      if (shortest.empty() || text.size() < shortest.size()) {
        shortest = std::move(text);
      }
    }
  }
  if (!shortest.empty()) {
    return shortest;
  }
  for (const Unit& unit : units) {
    if (unit.factor == 1) {
      return fmt::format("{}{}", value, unit.name);
    }
  }
  return fmt::format("{}{}", value / units.front().factor, units.front().name);
}

/// Parses a price by the hour, or "PRICE over YEARS".
template <class P>
std::optional<P> parse_price(std::string_view text, const PriceUnits& units) {
  const std::size_t over = text.find(kOver);
  if (over == std::string_view::npos) {
    const auto per_hour = parse_real(text, units.rented);
    return per_hour ? std::optional(P(*per_hour)) : std::nullopt;
  }
  const auto dollars = parse_real(text.substr(0, over), units.bought);
  const auto years = parse_real(text.substr(over + kOver.size()), kYears);
  if (!dollars || !years || *years < kYearsMin || *years > kYearsMax) {
    return std::nullopt;
  }
  return P::bought_for(*dollars, *years);
}

template <class Q, class T>
std::optional<Q> as(const std::optional<T>& value) {
  return value ? std::optional(Q(*value)) : std::nullopt;
}

template <class P>
std::string format_price(P price, const PriceUnits& units) {
  return price.years == 0 ? format_real(price.value, units.rented)
                          : format_real(price.bought, units.bought) + std::string(kOver) +
                                format_real(price.years, kYears);
}

}  // namespace

/// PARSED is an optional Q parsed from `text`; WRITTEN is the text of `quantity`.
#define KVTIER_DEFINE_QUANTITY(Q, PARSED, WRITTEN, NOUN, EXAMPLE, PATTERN) \
  template <>                                                              \
  const QuantityFormat& quantity_format<Q>() {                             \
    static const QuantityFormat kFormat{NOUN, EXAMPLE, PATTERN};           \
    return kFormat;                                                        \
  }                                                                        \
  template <>                                                              \
  std::optional<Q> parse_quantity<Q>(std::string_view text) {              \
    return PARSED;                                                         \
  }                                                                        \
  template <>                                                              \
  std::string format_quantity<Q>(Q quantity) {                             \
    return WRITTEN;                                                        \
  }
#define KVTIER_DEFINE_WHOLE(Q, UNITS, MEMBER, NOUN, EXAMPLE, PATTERN)                              \
  KVTIER_DEFINE_QUANTITY(Q, as<Q>(parse_whole(text, UNITS)), format_whole(quantity.MEMBER, UNITS), \
                         NOUN, EXAMPLE, PATTERN)
#define KVTIER_DEFINE_REAL(Q, UNITS, NOUN, EXAMPLE, PATTERN)                                    \
  KVTIER_DEFINE_QUANTITY(Q, as<Q>(parse_real(text, UNITS)), format_real(quantity.value, UNITS), \
                         NOUN, EXAMPLE, PATTERN)
#define KVTIER_DEFINE_PRICE(Q, UNITS, NOUN, EXAMPLE, PATTERN)                                 \
  KVTIER_DEFINE_QUANTITY(Q, parse_price<Q>(text, UNITS), format_price(quantity, UNITS), NOUN, \
                         EXAMPLE, PATTERN)

#define KVTIER_NUMBER "^-?[0-9.]+([eE][+-]?[0-9]+)? ?"
KVTIER_DEFINE_WHOLE(Bytes, kByteUnits, value, "a size", "128GiB",
                    KVTIER_NUMBER "([kMGTP]B|[KMGTP]iB|B)$")
KVTIER_DEFINE_WHOLE(Tokens, kTokenUnits, value, "a number of tokens", "4096tokens",
                    KVTIER_NUMBER "tokens?$")
KVTIER_DEFINE_WHOLE(SimDuration, kDurationUnits, ns, "a duration", "360ms",
                    KVTIER_NUMBER "(ns|us|ms|s|min|h|d)$")
KVTIER_DEFINE_REAL(BytesPerSecond, kBandwidthUnits, "a bandwidth", "26GB/s",
                   KVTIER_NUMBER "([kMGT]B|[KMGT]iB|B)/s$")
KVTIER_DEFINE_REAL(FlopsPerSecond, kFlopUnits, "a compute rate", "312TFLOP/s",
                   KVTIER_NUMBER "[MGTP]?FLOP/s$")
KVTIER_DEFINE_REAL(PerSecond, kRateUnits, "a rate", "1/s", KVTIER_NUMBER "/(s|min|h|d)$")
#define KVTIER_YEARS " over [0-9.]+([eE][+-]?[0-9]+)? ?y$"
KVTIER_DEFINE_PRICE(DollarsPerHour, kHourPrice,
                    "a price (by the hour, or bought for 1 to 20 years as \"30000$ over 4y\")",
                    "5$/h", KVTIER_NUMBER "\\$(/h$|" KVTIER_YEARS ")")
KVTIER_DEFINE_PRICE(DollarsPerGibHour, kStoragePrice,
                    "a price (by the hour, or bought for 1 to 20 years as \"10$/GiB over 4y\")",
                    "0.0088$/h/GiB", KVTIER_NUMBER "\\$(/h/GiB$|/GiB" KVTIER_YEARS ")")

}  // namespace kvtier
