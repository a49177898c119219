#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sim/core/histogram.hpp"

namespace kvtier {

/// Sums over the turns so far.
struct RunningTotals {
  double turns = 0;
  double full_hits = 0;
  double reused_tokens = 0;
  double history_tokens = 0;
  double ttft_ns = 0;
  double queueing_ns = 0;
  /// How the TTFTs are distributed, in nanoseconds.
  HistogramCounts ttft;
};

/// How far a mean over one run is to be trusted although its turns depend on each other: the run is
/// cut into batches of equal length, whose means hardly do (Law, Simulation Modeling and Analysis,
/// section 9.5.3). There are few batches (Schmeiser, Operations Research 30(3), 1982, finds 10
/// to 30 to be enough), and whether they are long enough is seen in the correlation of
/// neighbours of half their length.
///
/// Batches double in length as the run goes on, so their number is bounded. Only the totals at
/// their ends are kept, which costs a turn one count.
class BatchMeans {
 public:
  /// Counts a turn; whether it ends a batch, so that `add` has to be called.
  [[nodiscard]] bool ends_batch() { return --left_ == 0; }
  void add(RunningTotals totals);

  struct Trust {
    /// Correlation of neighbouring halves of batches.
    double lag_1 = 0;
    /// Why the interval is not to be trusted; nullptr if nothing speaks against it.
    const char* doubt = nullptr;
    /// Turns of a run that would be long enough, about; 0 without doubt. Where batches correlate:
    /// as if the correlation of turns fell exponentially with the distance between them.
    std::int64_t turns_needed = 0;
  };
  struct Interval {
    double half_width = 0;
    Trust trust;
  };
  /// Interval of the ratio of two sums, such as waiting time to turns; nullopt for less than two
  /// batches or where the second sum is 0.
  [[nodiscard]] std::optional<Interval> interval(double RunningTotals::*part,
                                                 double RunningTotals::*whole) const;

  struct QuantileInterval {
    std::int64_t low = 0;
    std::int64_t high = 0;
    Trust trust;
  };
  /// Interval of quantile `q` of `ttft`, which is that of the whole run: the quantiles of the ends
  /// of the interval that the share of turns up to it has (Woodruff, Journal of the American
  /// Statistical Association 47, 1952). nullopt for less than two batches.
  [[nodiscard]] std::optional<QuantileInterval> quantile_interval(const Histogram& ttft,
                                                                  double q) const;

  [[nodiscard]] std::int64_t batches() const { return static_cast<std::int64_t>(ends_.size() / 2); }
  [[nodiscard]] std::int64_t turns_per_batch() const { return half_turns_ * 2; }

 private:
  static constexpr std::size_t kMostHalves = 64;

  using Total = std::function<double(const RunningTotals&)>;
  /// Interval of the ratio of two totals, the second of which is above 0. There are at least two
  /// batches.
  [[nodiscard]] Interval interval_of(const Total& part, const Total& whole) const;

  /// Totals at the ends of halves of batches.
  std::vector<RunningTotals> ends_;
  std::int64_t half_turns_ = 1;
  std::int64_t left_ = 1;
};

}  // namespace kvtier
