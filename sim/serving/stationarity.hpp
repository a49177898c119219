#pragma once

#include <cstdint>
#include <vector>

namespace kvtier {

/// Tells from the number of live sessions when a run that started empty has become stationary.
///
/// Rule: MSER (White, Simulation 69(6), 1997) on means of five and more observations (MSER-5:
/// White, Cobb and Spratt, Winter Simulation Conference 2000). MSER drops the first observations
/// such that the standard error of the mean of the others is least. The series counts as stationary
/// when MSER would drop at most its first half.
///
/// The series is judged while the run goes on, so a run is stationary from the moment of the
/// judgement, not from the end of the part that MSER would drop.
class Stationarity {
 public:
  /// Adds one observation: the sessions that live when another one arrives. Says whether the series
  /// is stationary; true at most once.
  [[nodiscard]] bool add(std::int64_t live_sessions);

  /// Observations that MSER drops of a series of equally long batches, in batches.
  [[nodiscard]] static std::size_t dropped_batches(const std::vector<double>& means);

 private:
  static constexpr std::int64_t kFirstJudgement = 100;
  static constexpr std::size_t kMostBatches = 512;

  std::vector<double> means_;
  double batch_sum_ = 0;
  std::int64_t batch_length_ = 5;
  std::int64_t in_batch_ = 0;
  std::int64_t observations_ = 0;
  std::int64_t next_judgement_ = kFirstJudgement;
  bool found_ = false;
};

}  // namespace kvtier
