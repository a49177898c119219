#pragma once

#include <cstdint>
#include <vector>

namespace kvtier {

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
  /// 0 lies outside: what the mean is of differs from nothing.
  [[nodiscard]] bool excludes_zero() const { return low() > 0 || high() < 0; }
};
/// Of independent values of about normal distribution; two at least.
[[nodiscard]] MeanInterval mean_interval(const std::vector<double>& values);

}  // namespace kvtier
