#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvtier {

/// The value at place share x (n - 1) of n ascending values, counted from 0; between two values in
/// proportion. This is NumPy's default and type 7 of Hyndman and Fan. One value at least, `share`
/// in [0, 1]. (Histogram::quantile is the nearest rank, since a histogram keeps no single values.)
[[nodiscard]] double quantile(std::span<const double> sorted, double share);

/// The same place, rounded down: always one of the values (NumPy's method "lower"). Used for the
/// errors of `calibrate --check`, whose bands allow a few outliers, for imported tables and for
/// shares of links.
[[nodiscard]] double lower_quantile(std::span<const double> sorted, double share);

/// The quantile 0.5 of values in any order.
[[nodiscard]] double median(std::vector<double> values);

/// Two-sided intervals that hold a mean with this confidence.
inline constexpr double kConfidence = 0.95;

/// Half the width of such an interval, in standard errors of a mean that were estimated with
/// `degrees` >= 1 degrees of freedom: Student's t.
[[nodiscard]] double student_t(std::int64_t degrees);

/// The interval mean - half_width .. mean + half_width.
struct MeanInterval {
  double mean = 0;
  double half_width = 0;

  [[nodiscard]] double low() const { return mean - half_width; }
  [[nodiscard]] double high() const { return mean + half_width; }
  /// Whether 0 lies outside: the quantity differs from 0.
  [[nodiscard]] bool excludes_zero() const { return low() > 0 || high() < 0; }
};
/// The interval of independent, about normally distributed values; at least two.
[[nodiscard]] MeanInterval mean_interval(const std::vector<double>& values);

}  // namespace kvtier
