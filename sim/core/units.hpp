#pragma once

#include <compare>
#include <cstdint>
#include <limits>

#include "sim/core/assert.hpp"

/// Quantities are types: adding bytes to tokens does not compile.
namespace kvtier {

namespace detail {

/// Throws ConfigError: a time of the run exceeds 64 bits, in nanoseconds or in a decode's finer
/// ticks.
[[noreturn]] void simulated_time_overflows();

[[nodiscard]] constexpr std::int64_t time_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) [[unlikely]] {
    simulated_time_overflows();
  }
  return sum;
}

[[nodiscard]] constexpr std::int64_t time_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) [[unlikely]] {
    simulated_time_overflows();
  }
  return product;
}

}  // namespace detail

/// A whole number of items; `Tag` names the item.
template <class Tag>
struct Count {
  std::int64_t value = 0;

  constexpr Count() = default;
  constexpr explicit Count(std::int64_t v) : value(v) {}

  friend constexpr auto operator<=>(Count, Count) = default;
  friend constexpr Count operator+(Count a, Count b) { return Count(a.value + b.value); }
  friend constexpr Count operator-(Count a, Count b) { return Count(a.value - b.value); }
  friend constexpr Count operator-(Count a) { return Count(-a.value); }
  friend constexpr Count operator*(Count a, std::int64_t factor) { return Count(a.value * factor); }
  friend constexpr Count operator*(std::int64_t factor, Count a) { return Count(a.value * factor); }
  friend constexpr Count operator/(Count a, std::int64_t divisor) {
    return Count(a.value / divisor);
  }
  friend constexpr std::int64_t operator/(Count a, Count b) { return a.value / b.value; }
  constexpr Count& operator+=(Count other) {
    value += other.value;
    return *this;
  }
  constexpr Count& operator-=(Count other) {
    value -= other.value;
    return *this;
  }
};

/// A real amount; `Tag` names the quantity.
template <class Tag>
struct Real {
  double value = 0;

  constexpr Real() = default;
  constexpr explicit Real(double v) : value(v) {}

  friend constexpr auto operator<=>(Real, Real) = default;
  friend constexpr Real operator+(Real a, Real b) { return Real(a.value + b.value); }
  friend constexpr Real operator-(Real a, Real b) { return Real(a.value - b.value); }
  friend constexpr Real operator*(Real a, double factor) { return Real(a.value * factor); }
  friend constexpr Real operator*(double factor, Real a) { return Real(a.value * factor); }
  friend constexpr Real operator/(Real a, double divisor) { return Real(a.value / divisor); }
  friend constexpr double operator/(Real a, Real b) { return a.value / b.value; }
};

using Bytes = Count<struct BytesTag>;
using Tokens = Count<struct TokensTag>;

using BytesPerSecond = Real<struct BytesPerSecondTag>;
using FlopsPerSecond = Real<struct FlopsPerSecondTag>;
using PerSecond = Real<struct PerSecondTag>;

/// A price by the hour, of hardware that is rented or written off evenly over its years of service.
template <class Tag>
struct Price {
  static constexpr double kHoursPerYear = 8766;  // 365.25 days

  /// Dollars per hour.
  double value = 0;
  /// The purchase price and the years of service; both are 0 if rented.
  double bought = 0;
  double years = 0;

  constexpr Price() = default;
  constexpr explicit Price(double per_hour) : value(per_hour) {}
  [[nodiscard]] static constexpr Price bought_for(double dollars, double years) {
    Price price(dollars / (years * kHoursPerYear));
    price.bought = dollars;
    price.years = years;
    return price;
  }

  friend constexpr auto operator<=>(Price, Price) = default;
};

using DollarsPerHour = Price<struct DollarsPerHourTag>;
/// Price of holding one GiB for an hour (AttentionStore prices storage this way).
using DollarsPerGibHour = Price<struct DollarsPerGibHourTag>;

/// A span of simulated time in whole nanoseconds. Sums and products that leave 64 bits throw.
struct SimDuration {
  std::int64_t ns = 0;

  constexpr SimDuration() = default;
  constexpr explicit SimDuration(std::int64_t nanoseconds) : ns(nanoseconds) {}

  friend constexpr auto operator<=>(SimDuration, SimDuration) = default;
  friend constexpr SimDuration operator+(SimDuration a, SimDuration b) {
    return SimDuration(detail::time_sum(a.ns, b.ns));
  }
  friend constexpr SimDuration operator-(SimDuration a, SimDuration b) {
    return SimDuration(a.ns - b.ns);
  }
  friend constexpr SimDuration operator*(SimDuration a, std::int64_t factor) {
    return SimDuration(detail::time_product(a.ns, factor));
  }
  friend constexpr SimDuration operator*(std::int64_t factor, SimDuration a) { return a * factor; }
  friend constexpr SimDuration operator/(SimDuration a, std::int64_t divisor) {
    return SimDuration(a.ns / divisor);
  }
  constexpr SimDuration& operator+=(SimDuration other) {
    ns = detail::time_sum(ns, other.ns);
    return *this;
  }
  constexpr SimDuration& operator-=(SimDuration other) {
    ns -= other.ns;
    return *this;
  }
  [[nodiscard]] constexpr double seconds() const { return static_cast<double>(ns) * 1e-9; }
};

/// A point in simulated time: whole nanoseconds since the start of the run.
struct SimTime {
  std::int64_t ns = 0;

  constexpr SimTime() = default;
  constexpr explicit SimTime(std::int64_t nanoseconds) : ns(nanoseconds) {}

  friend constexpr auto operator<=>(SimTime, SimTime) = default;
  friend constexpr SimTime operator+(SimTime t, SimDuration d) {
    return SimTime(detail::time_sum(t.ns, d.ns));
  }
  friend constexpr SimTime operator-(SimTime t, SimDuration d) { return SimTime(t.ns - d.ns); }
  friend constexpr SimDuration operator-(SimTime a, SimTime b) { return SimDuration(a.ns - b.ns); }
  [[nodiscard]] constexpr double seconds() const { return static_cast<double>(ns) * 1e-9; }
};

inline constexpr SimTime kNever{INT64_MAX};

/// Rounds up to a whole nanosecond, so that no work ends early.
[[nodiscard]] inline SimDuration ceil_ns(double ns) {
  constexpr double kLongest = 9.2e18;
  if (!(ns >= 0 && ns <= kLongest)) [[unlikely]] {
    KVTIER_ASSERT(ns >= 0 && ns <= std::numeric_limits<double>::max(),
                  "a duration is a number >= 0");
    detail::simulated_time_overflows();
  }
  const auto whole = static_cast<std::int64_t>(ns);
  return SimDuration(whole + (static_cast<double>(whole) < ns ? 1 : 0));
}
[[nodiscard]] inline SimDuration duration_from_seconds(double seconds) {
  return ceil_ns(seconds * 1e9);
}

/// Duration of a transfer of `bytes` at a constant rate, rounded up.
[[nodiscard]] SimDuration transfer_duration(Bytes bytes, BytesPerSecond rate);

namespace literals {
constexpr Bytes operator""_B(unsigned long long v) { return Bytes(static_cast<std::int64_t>(v)); }
constexpr Bytes operator""_KiB(unsigned long long v) {
  return Bytes(static_cast<std::int64_t>(v) << 10);
}
constexpr Bytes operator""_MiB(unsigned long long v) {
  return Bytes(static_cast<std::int64_t>(v) << 20);
}
constexpr Bytes operator""_GiB(unsigned long long v) {
  return Bytes(static_cast<std::int64_t>(v) << 30);
}
constexpr Bytes operator""_TiB(unsigned long long v) {
  return Bytes(static_cast<std::int64_t>(v) << 40);
}
constexpr Tokens operator""_tokens(unsigned long long v) {
  return Tokens(static_cast<std::int64_t>(v));
}
constexpr SimDuration operator""_ns(unsigned long long v) {
  return SimDuration(static_cast<std::int64_t>(v));
}
constexpr SimDuration operator""_us(unsigned long long v) {
  return SimDuration(static_cast<std::int64_t>(v) * 1000);
}
constexpr SimDuration operator""_ms(unsigned long long v) {
  return SimDuration(static_cast<std::int64_t>(v) * 1000000);
}
constexpr SimDuration operator""_s(unsigned long long v) {
  return SimDuration(static_cast<std::int64_t>(v) * 1000000000);
}
}  // namespace literals

}  // namespace kvtier
