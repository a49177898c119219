#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvtier {

/// The value at index share x (n - 1) of n >= 1 ascending values, interpolated between two values.
/// This is NumPy's default, and type 7 of Hyndman and Fan. `share` is in [0, 1].
/// (Histogram::quantile is the nearest rank, because a histogram keeps no single values.)
[[nodiscard]] double quantile(std::span<const double> sorted, double share);

/// The value at the same index rounded down: always one of the values (NumPy's method "lower").
/// Used for errors of `calibrate --check`, imported tables and shares of links.
[[nodiscard]] double lower_quantile(std::span<const double> sorted, double share);

/// The quantile 0.5 of values in any order.
[[nodiscard]] double median(std::vector<double> values);

/// Confidence of the two-sided intervals of means.
inline constexpr double kConfidence = 0.95;

/// Student's t: half the width of such an interval in standard errors of the mean, for `degrees` >=
/// 1 degrees of freedom.
[[nodiscard]] double student_t(std::int64_t degrees);

/// The interval mean - half_width .. mean + half_width.
struct MeanInterval {
  double mean = 0;
  double half_width = 0;

  [[nodiscard]] double low() const { return mean - half_width; }
  [[nodiscard]] double high() const { return mean + half_width; }
  /// Whether 0 lies outside, so that the mean differs from 0 significantly.
  [[nodiscard]] bool excludes_zero() const { return low() > 0 || high() < 0; }
};
/// The interval of the mean of at least two independent values, which are about normally
/// distributed.
[[nodiscard]] MeanInterval mean_interval(const std::vector<double>& values);

}  // namespace kvtier
