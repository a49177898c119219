#include "sim/core/statistics.hpp"

#include <cmath>

#include <boost/math/distributions/students_t.hpp>

#include "sim/core/assert.hpp"

namespace kvtier {

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
