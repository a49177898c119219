#include "sim/core/histogram.hpp"

#include <cmath>
#include <numeric>

namespace kvtier {

void Histogram::widen(std::int64_t value) {
  KVTIER_ASSERT(value >= 0, "a histogram holds non-negative values");
  minimum_ = std::min(minimum_, value);
  maximum_ = std::max(maximum_, value);
  counts_.resize(std::max(counts_.size(), bucket_of(value) + 1), 0);
}

void Histogram::merge(const Histogram& other) {
  if (other.counts_.size() > counts_.size()) {
    counts_.resize(other.counts_.size(), 0);
  }
  for (std::size_t i = 0; i < other.counts_.size(); ++i) {
    counts_[i] += other.counts_[i];
  }
  count_ += other.count_;
  sum_ += other.sum_;
  minimum_ = std::min(minimum_, other.minimum_);
  maximum_ = std::max(maximum_, other.maximum_);
}

double Histogram::mean() const {
  KVTIER_ASSERT(count_ > 0, "the mean of an empty histogram");
  return static_cast<double>(sum_) / static_cast<double>(count_);
}

std::int64_t Histogram::minimum() const {
  KVTIER_ASSERT(count_ > 0, "the minimum of an empty histogram");
  return minimum_;
}

std::int64_t Histogram::maximum() const {
  KVTIER_ASSERT(count_ > 0, "the maximum of an empty histogram");
  return maximum_;
}

std::int64_t Histogram::middle_of(std::size_t bucket) {
  if (bucket < 2 * kParts) {
    return static_cast<std::int64_t>(bucket);
  }
  const std::size_t shift = bucket / kParts - 1;
  const auto low = static_cast<std::int64_t>(bucket - shift * kParts) << shift;
  return low + ((std::int64_t{1} << shift) - 1) / 2;
}

std::int64_t Histogram::quantile(double q) const {
  KVTIER_ASSERT(count_ > 0, "a quantile of an empty histogram");
  KVTIER_ASSERT(q >= 0 && q <= 1, "a quantile is between 0 and 1");
  // Rounding: 0.07 * 100 is slightly above 7.
  const double rank = std::ceil(q * static_cast<double>(count_) * (1 - 1e-12));
  if (rank <= 1) {
    return minimum_;
  }
  if (rank >= static_cast<double>(count_)) {
    return maximum_;
  }
  const auto wanted = static_cast<std::int64_t>(rank);
  std::int64_t seen = 0;
  for (std::size_t bucket = 0; bucket < counts_.size(); ++bucket) {
    seen += counts_[bucket];
    if (seen >= wanted) {
      return std::clamp(middle_of(bucket), minimum_, maximum_);
    }
  }
  return maximum_;
}

std::int64_t Histogram::count_up_to(std::int64_t value) const {
  const std::size_t end = value < 0 ? 0 : std::min(counts_.size(), bucket_of(value) + 1);
  return std::accumulate(counts_.begin(), counts_.begin() + static_cast<std::ptrdiff_t>(end),
                         std::int64_t{0});
}

HistogramCounts::HistogramCounts(const Histogram& histogram) : count_(histogram.count_) {
  if (count_ > 0) {
    first_ = Histogram::bucket_of(histogram.minimum_);
    counts_.assign(histogram.counts_.begin() + static_cast<std::ptrdiff_t>(first_),
                   histogram.counts_.end());
  }
}

std::int64_t HistogramCounts::count_up_to(std::int64_t value) const {
  const std::size_t end = value < 0 ? 0 : Histogram::bucket_of(value) + 1;
  const std::size_t size = std::min(counts_.size(), end - std::min(end, first_));
  return std::accumulate(counts_.begin(), counts_.begin() + static_cast<std::ptrdiff_t>(size),
                         std::int64_t{0});
}

}  // namespace kvtier
