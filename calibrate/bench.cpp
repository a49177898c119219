#include "calibrate/bench.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvtier::calibrate {

std::vector<std::int64_t> geometric(std::int64_t smallest, std::int64_t largest,
                                    std::int64_t factor) {
  std::vector<std::int64_t> values;
  for (std::int64_t value = smallest; value < largest; value *= factor) {
    values.push_back(value);
  }
  values.push_back(largest);
  return values;
}

StopRules rules_of(const Target& target) {
  if (target.full) {
    return {.warm_up = 3,
            .samples_min = 11,
            .samples_max = 500,
            .relative_error = 0.005,
            .budget_seconds = 1.5};
  }
  return {.warm_up = 1,
          .samples_min = 5,
          .samples_max = 50,
          .relative_error = 0.02,
          .budget_seconds = 0.15};
}

StopRules rules_with_pauses(const Target& target) {
  StopRules rules = rules_of(target);
  constexpr double kPauses = 6;
  rules.budget_seconds += kPauses * std::chrono::duration<double>(kLongPause).count();
  return rules;
}

void fill_random(Device& device, const Buffer& buffer, RandomStream& random) {
  const std::unique_ptr<Stream> stream = device.make_stream();
  const std::int64_t seed = random.index(std::numeric_limits<std::int64_t>::max());
  device.fill_uniform(buffer.data(), buffer.size() / device.info().element, 1,
                      static_cast<std::uint64_t>(seed), *stream);
  stream->synchronize();
}

std::vector<std::int32_t> shuffled(std::int64_t count, RandomStream& random) {
  std::vector<std::int32_t> places(static_cast<std::size_t>(count));
  std::iota(places.begin(), places.end(), 0);
  for (std::size_t i = places.size(); i > 1; --i) {
    std::swap(places[i - 1],
              places[static_cast<std::size_t>(random.index(static_cast<std::int64_t>(i)))]);
  }
  return places;
}

StreamTimer::StreamTimer(Device& device)
    : device_(device),
      stream_(device.make_stream()),
      begin_(device.make_event()),
      end_(device.make_event()) {}

double StreamTimer::seconds(const Queue& queue) {
  // A sample wakes threads a few times, which takes a tenth of a millisecond on some machines.
  constexpr double kLongEnough = 2e-3;
  constexpr std::int64_t kMostRepeats = 512;
  constexpr double kQueueing = 2e-5;
  constexpr double kQueueingOne = 3e-6;
  if (repeats_ > 1) {
    device_.busy(kQueueing + kQueueingOne * static_cast<double>(repeats_), *stream_);
  }
  device_.record(*begin_, *stream_);
  for (std::int64_t i = 0; i < repeats_; ++i) {
    queue(*stream_, done_ + i);
  }
  device_.record(*end_, *stream_);
  end_->synchronize();
  stream_->synchronize();
  done_ += repeats_;
  const double one = device_.seconds_between(*begin_, *end_) / static_cast<double>(repeats_);
  if (done_ == repeats_) {  // the first sample, a part of the warm-up, sets the repeats
    repeats_ = one > 0 ? std::clamp(static_cast<std::int64_t>(std::ceil(kLongEnough / one)),
                                    std::int64_t{1}, kMostRepeats)
                       : kMostRepeats;
  }
  return one;
}

}  // namespace kvtier::calibrate
