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

/// 95 % intervals of the means of one run, whose turns are correlated over the lifetime of a
/// session and longer.
///
/// The run is cut into 32 to 63 batches of equal numbers of turns. The variance of a mean is that
/// of the slowest changes: the mean square of the batches' first kCosines cosine coefficients. The
/// interval has kCosines degrees of freedom (equal-weighted cosine estimator: Müller, Journal of
/// Econometrics 141(2), 2007; Lazarus, Lewis, Stock and Watson, Journal of Business & Economic
/// Statistics 36(4), 2018). The fastest of these cosines has a period of 2/5 of the run, which
/// must be several lifetimes of sessions long (kSessionDurations).
///
/// Batches double in length as the run goes on, so their number is bounded. Only the totals at
/// their ends are kept, which costs a turn one count.
class BatchMeans {
 public:
  static constexpr std::int64_t kCosines = 5;
  /// Turns of a run that has intervals.
  static constexpr std::int64_t kLeastTurns = 512;
  /// Turns of such a run that are beyond a quantile with an interval.
  static constexpr double kLeastTurnsBeyond = 80;

  /// Counts a turn; whether it ends a batch, so that `add` has to be called.
  [[nodiscard]] bool ends_batch() { return --left_ == 0; }
  void add(RunningTotals totals);

  /// Half of the interval of the ratio of two sums, such as waiting time to turns. nullopt for less
  /// than kLeastTurns, or where the second sum is 0.
  [[nodiscard]] std::optional<double> half_width(double RunningTotals::*part,
                                                 double RunningTotals::*whole) const;

  struct QuantileInterval {
    std::int64_t low = 0;
    std::int64_t high = 0;
  };
  /// Interval of quantile `q` of `ttft`, which is that of the whole run: the quantiles of the ends
  /// of the interval that the share of turns up to it has (Woodruff, Journal of the American
  /// Statistical Association 47, 1952). nullopt for less than kLeastTurns, or with less than
  /// kLeastTurnsBeyond on either side.
  [[nodiscard]] std::optional<QuantileInterval> quantile_interval(const Histogram& ttft,
                                                                  double q) const;

  [[nodiscard]] std::int64_t batches() const { return static_cast<std::int64_t>(ends_.size()); }
  [[nodiscard]] std::int64_t turns_per_batch() const { return batch_turns_; }

 private:
  static constexpr std::size_t kMostBatches = 64;

  using Total = std::function<double(const RunningTotals&)>;
  [[nodiscard]] bool is_long_enough() const { return batches() * batch_turns_ >= kLeastTurns; }
  /// Half of the interval of the ratio of two totals, the second of which is above 0.
  [[nodiscard]] double half_width_of(const Total& part, const Total& whole) const;

  /// Totals at the ends of batches.
  std::vector<RunningTotals> ends_;
  std::int64_t batch_turns_ = 1;
  std::int64_t left_ = 1;
};

}  // namespace kvtier
