#include "sim/serving/stationarity.hpp"

#include <cstddef>

namespace kvtier {

std::size_t Stationarity::dropped_batches(const std::vector<double>& means) {
  // A short rest has a small standard error by chance: at least a quarter of the series is kept.
  const std::size_t most = means.size() - means.size() / 4;
  double sum = 0;
  double squares = 0;
  double least = 0;
  std::size_t dropped = 0;
  for (std::size_t i = means.size(); i-- > 0;) {
    sum += means[i];
    squares += means[i] * means[i];
    const auto kept = static_cast<double>(means.size() - i);
    const double statistic = (squares - sum * sum / kept) / (kept * kept);
    if (i <= most && (i == most || statistic <= least)) {
      least = statistic;
      dropped = i;
    }
  }
  return dropped;
}

bool Stationarity::add(std::int64_t live_sessions) {
  if (found_) {
    return false;
  }
  ++observations_;
  batch_sum_ += static_cast<double>(live_sessions);
  if (++in_batch_ < batch_length_) {
    return false;
  }
  means_.push_back(batch_sum_ / static_cast<double>(batch_length_));
  batch_sum_ = 0;
  in_batch_ = 0;
  if (observations_ < next_judgement_) {
    return false;
  }
  constexpr std::int64_t kPart = 16;
  next_judgement_ = observations_ + observations_ / kPart;
  found_ = dropped_batches(means_) <= means_.size() / 2;
  if (means_.size() >= kMostBatches) {
    for (std::size_t i = 0; i < means_.size() / 2; ++i) {
      means_[i] = (means_[2 * i] + means_[2 * i + 1]) / 2;
    }
    means_.resize(means_.size() / 2);
    batch_length_ *= 2;
  }
  return found_;
}

}  // namespace kvtier
