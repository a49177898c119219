#include "sim/serving/batch_means.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "sim/core/statistics.hpp"

namespace kvtier {

void BatchMeans::add(RunningTotals totals) {
  ends_.push_back(std::move(totals));
  if (ends_.size() == kMostBatches) {
    for (std::size_t i = 0; i < kMostBatches / 2; ++i) {
      std::swap(ends_[i], ends_[2 * i + 1]);
    }
    ends_.resize(kMostBatches / 2);
    batch_turns_ *= 2;
  }
  left_ = batch_turns_;
}

std::optional<double> BatchMeans::half_width(double RunningTotals::*part,
                                             double RunningTotals::*whole) const {
  if (!is_long_enough() || ends_.back().*whole == 0) {
    return std::nullopt;
  }
  return half_width_of(std::mem_fn(part), std::mem_fn(whole));
}

double BatchMeans::half_width_of(const Total& part, const Total& whole) const {
  // The excess of a batch's part over the ratio of all: the spread of these sums is that of the
  // ratio's numerator and denominator together (the ratio estimator of survey sampling).
  const RunningTotals& all = ends_.back();
  const double ratio = part(all) / whole(all);
  std::array<double, kCosines> coefficients{};
  double before = 0;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    const double now = part(ends_[i]) - ratio * whole(ends_[i]);
    const double middle = (static_cast<double>(i) + 0.5) / static_cast<double>(ends_.size());
    for (std::size_t j = 0; j < coefficients.size(); ++j) {
      coefficients[j] +=
          (now - before) * std::cos(std::numbers::pi * static_cast<double>(j + 1) * middle);
    }
    before = now;
  }
  double squares = 0;
  for (const double coefficient : coefficients) {
    squares += 2 * coefficient * coefficient;
  }
  return student_t(kCosines) * std::sqrt(squares / kCosines) / whole(all);
}

std::optional<BatchMeans::QuantileInterval> BatchMeans::quantile_interval(const Histogram& ttft,
                                                                          double q) const {
  if (!is_long_enough() ||
      static_cast<double>(ttft.count()) * std::min(q, 1 - q) < kLeastTurnsBeyond) {
    return std::nullopt;
  }
  const std::int64_t value = ttft.quantile(q);
  const double share = half_width_of(
      [value](const RunningTotals& totals) {
        return static_cast<double>(totals.ttft.count_up_to(value));
      },
      [](const RunningTotals& totals) { return static_cast<double>(totals.ttft.count()); });
  return QuantileInterval{ttft.quantile(std::max(0.0, q - share)),
                          ttft.quantile(std::min(1.0, q + share))};
}

}  // namespace kvtier
