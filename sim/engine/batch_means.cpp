#include "sim/engine/batch_means.hpp"

#include <cmath>

#include "sim/core/statistics.hpp"

namespace kvtier {
namespace {

/// From here on Student's t of that many batches is near its limit, and their means near normal.
constexpr std::int64_t kLeastBatches = 16;
constexpr std::int64_t kLeastTurnsPerBatch = 32;
/// Correlations of independent batches are above this many standard errors once in 20 times.
constexpr double kOneSided = 1.645;

double sum_of_squares(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) {
    sum += value * value;
  }
  return sum;
}

/// Of values whose mean is about 0.
double lag_1(const std::vector<double>& values) {
  double sum = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    sum += values[i - 1] * values[i];
  }
  const double squares = sum_of_squares(values);
  return squares > 0 ? sum / squares : 0;
}

}  // namespace

void BatchMeans::add(const RunningTotals& totals) {
  ends_.push_back(totals);
  if (ends_.size() == kMostHalves) {
    for (std::size_t i = 0; i < kMostHalves / 2; ++i) {
      ends_[i] = ends_[2 * i + 1];
    }
    ends_.resize(kMostHalves / 2);
    half_turns_ *= 2;
  }
  left_ = half_turns_;
}

std::optional<BatchMeans::Interval> BatchMeans::interval(double RunningTotals::*part,
                                                         double RunningTotals::*whole) const {
  const auto batch_count = static_cast<std::size_t>(batches());
  if (batch_count < 2 || ends_[2 * batch_count - 1].*whole == 0) {
    return std::nullopt;
  }
  // What a half's part has beyond the ratio of all: the spread of these sums is that of the ratio's
  // numerator and denominator together (the ratio estimator of survey sampling).
  const RunningTotals& all = ends_[2 * batch_count - 1];
  const double ratio = all.*part / (all.*whole);
  std::vector<double> halves;
  std::vector<double> full;
  RunningTotals before;
  for (std::size_t i = 0; i < 2 * batch_count; ++i) {
    const RunningTotals& end = ends_[i];
    halves.push_back((end.*part - before.*part) - ratio * (end.*whole - before.*whole));
    if (i % 2 == 1) {
      full.push_back(halves[i - 1] + halves[i]);
    }
    before = end;
  }
  const auto count = static_cast<double>(batch_count);
  const double error = std::sqrt(sum_of_squares(full) / (count - 1) / count) / (all.*whole / count);
  Interval interval{student_t(batches() - 1) * error, lag_1(halves), nullptr};
  if (batches() < kLeastBatches || turns_per_batch() < kLeastTurnsPerBatch) {
    interval.doubt = "too few turns";
  } else if (interval.lag_1 * std::sqrt(static_cast<double>(halves.size())) > kOneSided) {
    interval.doubt = "batches correlate";
  }
  return interval;
}

}  // namespace kvtier
