#include "sim/core/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <boost/math/distributions/students_t.hpp>

#include "sim/core/assert.hpp"

namespace kvtier {

namespace {

void check(std::span<const double> sorted, double share) {
  KVTIER_ASSERT(!sorted.empty(), "a quantile of no values");
  KVTIER_ASSERT(share >= 0 && share <= 1, "a quantile is between 0 and 1");
}

}  // namespace

double quantile(std::span<const double> sorted, double share) {
  check(sorted, share);
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const double beyond = place - static_cast<double>(below);
  if (beyond == 0) {
    return sorted[below];
  }
  return (1 - beyond) * sorted[below] + beyond * sorted[below + 1];
}

double lower_quantile(std::span<const double> sorted, double share) {
  check(sorted, share);
  return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return quantile(values, 0.5);
}

double student_t(std::int64_t degrees) {
  KVTIER_ASSERT(degrees >= 1, "a spread was estimated");
  const boost::math::students_t distribution(static_cast<double>(degrees));
  return boost::math::quantile(distribution, (1 + kConfidence) / 2);
}

MeanInterval mean_interval(const std::vector<double>& values) {
  KVTIER_ASSERT(values.size() >= 2, "one value has no spread");
  const auto count = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) {
    sum += value;
  }
  const double mean = sum / count;
  double squares = 0;
  for (const double value : values) {
    squares += (value - mean) * (value - mean);
  }
  const double error = std::sqrt(squares / (count - 1) / count);
  return {mean, student_t(static_cast<std::int64_t>(values.size()) - 1) * error};
}

}  // namespace kvtier
