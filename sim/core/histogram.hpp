#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "sim/core/assert.hpp"

namespace kvtier {

__extension__ typedef __int128 Int128;

/// A distribution of non-negative whole values (nanoseconds, tokens) in bounded memory.
///
/// Log-linear buckets: values below 256 are exact. Above, each power of two has 128 equal buckets,
/// so a quantile is off by at most 1/256 = 0.39 % of its value. Count, sum, mean, minimum and
/// maximum are exact. There are at most 7,296 buckets; only those up to the largest value take
/// memory.
class Histogram {
 public:
  /// Adds `value` >= 0.
  void add(std::int64_t value) {
    if (value < minimum_ || value > maximum_) [[unlikely]] {
      widen(value);
    }
    ++counts_[bucket_of(value)];
    ++count_;
    sum_ += static_cast<std::uint64_t>(value);
  }

  /// Adds all values of `other`, as if they were added one by one.
  void merge(const Histogram& other);

  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] Int128 sum() const { return sum_; }
  /// The mean, minimum, maximum and quantiles need at least one value.
  [[nodiscard]] double mean() const;
  [[nodiscard]] std::int64_t minimum() const;
  [[nodiscard]] std::int64_t maximum() const;
  /// The nearest-rank quantile: the smallest value that at least a share `q` in [0, 1] of all
  /// values does not exceed, within the buckets' error. quantile(0) is the minimum, quantile(1) the
  /// maximum, both exact.
  [[nodiscard]] std::int64_t quantile(double q) const;
  /// Number of values in the bucket of `value` or below it.
  [[nodiscard]] std::int64_t count_up_to(std::int64_t value) const;

 private:
  static constexpr int kPartBits = 7;
  static constexpr std::size_t kParts = std::size_t{1} << kPartBits;

  [[nodiscard]] static std::size_t bucket_of(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    const int shift = static_cast<int>(std::bit_width(bits | kParts)) - (kPartBits + 1);
    return static_cast<std::size_t>(shift) * kParts + static_cast<std::size_t>(bits >> shift);
  }
  /// Extends the buckets, minimum and maximum to `value`.
  void widen(std::int64_t value);
  /// The value in the middle of a bucket.
  [[nodiscard]] static std::int64_t middle_of(std::size_t bucket);

  friend class HistogramCounts;

  /// Counts of the buckets up to that of the maximum.
  std::vector<std::int64_t> counts_;
  std::int64_t count_ = 0;
  Int128 sum_ = 0;
  std::int64_t minimum_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t maximum_ = -1;
};

/// The counts of a histogram at one moment, from the minimum's bucket to the maximum's.
class HistogramCounts {
 public:
  HistogramCounts() = default;
  explicit HistogramCounts(const Histogram& histogram);

  [[nodiscard]] std::int64_t count() const { return count_; }
  /// As Histogram::count_up_to.
  [[nodiscard]] std::int64_t count_up_to(std::int64_t value) const;

 private:
  std::size_t first_ = 0;
  std::vector<std::int64_t> counts_;
  std::int64_t count_ = 0;
};

}  // namespace kvtier
