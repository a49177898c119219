#include "sim/serving/batch_means.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/core/statistics.hpp"

namespace kvtier {
namespace {

/// From here on Student's t of that many batches is near its limit, and their means near normal.
constexpr std::int64_t kLeastBatches = 16;
constexpr std::int64_t kLeastTurnsPerBatch = 32;
/// On either side of a quantile, for the share up to it to be near normal: the usual rule.
constexpr double kLeastTurnsBeyond = 5;
constexpr const char* kTooFewTurns = "too few turns";
/// Correlations of independent batches are above this many standard errors once in 20 times.
constexpr double kOneSided = 1.645;

double sum_of_squares(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) {
    sum += value * value;
  }
  return sum;
}

/// Correlation of neighbours, of values whose mean is about 0.
double lag_1(const std::vector<double>& values) {
  double sum = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    sum += values[i - 1] * values[i];
  }
  const double squares = sum_of_squares(values);
  return squares > 0 ? sum / squares : 0;
}

/// Correlation of the means of neighbouring batches that are `length` times as long as the distance
/// over which the correlation of turns falls to 1 / e.
double lag_of_means(double length) {
  const double rest = std::exp(-length);
  return (1 - rest) * (1 - rest) / (2 * (length - 1 + rest));
}

/// The length at which neighbouring means have the correlation; in (0, 1).
double length_with_lag(double lag) {
  double low = 1e-3;
  double high = 1e6;
  while (high > low * 1.0001) {
    const double middle = std::sqrt(low * high);
    (lag_of_means(middle) > lag ? low : high) = middle;
  }
  return low;
}

}  // namespace

void BatchMeans::add(RunningTotals totals) {
  ends_.push_back(std::move(totals));
  if (ends_.size() == kMostHalves) {
    for (std::size_t i = 0; i < kMostHalves / 2; ++i) {
      std::swap(ends_[i], ends_[2 * i + 1]);
    }
    ends_.resize(kMostHalves / 2);
    half_turns_ *= 2;
  }
  left_ = half_turns_;
}

std::optional<BatchMeans::Interval> BatchMeans::interval(double RunningTotals::*part,
                                                         double RunningTotals::*whole) const {
  if (batches() < 2 || ends_[static_cast<std::size_t>(2 * batches() - 1)].*whole == 0) {
    return std::nullopt;
  }
  return interval_of(std::mem_fn(part), std::mem_fn(whole));
}

BatchMeans::Interval BatchMeans::interval_of(const Total& part, const Total& whole) const {
  const auto batch_count = static_cast<std::size_t>(batches());
  // The excess of a half's part over the ratio of all: the spread of these sums is that of the
  // ratio's numerator and denominator together (the ratio estimator of survey sampling).
  const RunningTotals& all = ends_[2 * batch_count - 1];
  const double ratio = part(all) / whole(all);
  std::vector<double> halves;
  std::vector<double> full;
  double part_before = 0;
  double whole_before = 0;
  for (std::size_t i = 0; i < 2 * batch_count; ++i) {
    const double part_now = part(ends_[i]);
    const double whole_now = whole(ends_[i]);
    halves.push_back((part_now - part_before) - ratio * (whole_now - whole_before));
    if (i % 2 == 1) {
      full.push_back(halves[i - 1] + halves[i]);
    }
    part_before = part_now;
    whole_before = whole_now;
  }
  const auto count = static_cast<double>(batch_count);
  const double error = std::sqrt(sum_of_squares(full) / (count - 1) / count) / (whole(all) / count);
  Interval interval{student_t(batches() - 1) * error, {.lag_1 = lag_1(halves)}};
  if (batches() < kLeastBatches || turns_per_batch() < kLeastTurnsPerBatch) {
    interval.trust.doubt = kTooFewTurns;
    interval.trust.turns_needed = kLeastBatches * kLeastTurnsPerBatch;
  } else if (const double most = kOneSided / std::sqrt(static_cast<double>(halves.size()));
             interval.trust.lag_1 > most) {
    interval.trust.doubt = "batches correlate";
    interval.trust.turns_needed = static_cast<std::int64_t>(
        count * static_cast<double>(turns_per_batch()) * length_with_lag(most / 2) /
        length_with_lag(interval.trust.lag_1));
  }
  return interval;
}

std::optional<BatchMeans::QuantileInterval> BatchMeans::quantile_interval(const Histogram& ttft,
                                                                          double q) const {
  if (batches() < 2) {
    return std::nullopt;
  }
  const std::int64_t value = ttft.quantile(q);
  const Interval share = interval_of(
      [value](const RunningTotals& totals) {
        return static_cast<double>(totals.ttft.count_up_to(value));
      },
      [](const RunningTotals& totals) { return static_cast<double>(totals.ttft.count()); });
  QuantileInterval interval{ttft.quantile(std::max(0.0, q - share.half_width)),
                            ttft.quantile(std::min(1.0, q + share.half_width)), share.trust};
  if (static_cast<double>(turns_per_batch()) * std::min(q, 1 - q) < kLeastTurnsBeyond) {
    interval.trust.doubt = kTooFewTurns;
    interval.trust.turns_needed =
        std::max(interval.trust.turns_needed,
                 static_cast<std::int64_t>(static_cast<double>(kLeastBatches) * kLeastTurnsBeyond /
                                           std::min(q, 1 - q)));
  }
  return interval;
}

}  // namespace kvtier
