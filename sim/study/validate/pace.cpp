#include "sim/study/validate/pace.hpp"

#include <cmath>

namespace kvtier {
namespace {

SimDuration times(SimDuration duration, double factor) {
  return duration_from_seconds(duration.seconds() * factor);
}

std::int64_t times(std::int64_t ticks, double factor) {
  const double paced = static_cast<double>(ticks) * factor;
  constexpr double kMost = 9.2e18;
  if (std::abs(paced) > kMost) {
    detail::simulated_time_overflows();
  }
  return std::llround(paced);
}

/// Overheads may be negative.
WarmUp times(const WarmUp& warm_up, double factor) {
  const auto overhead = [factor](SimDuration time) { return SimDuration(times(time.ns, factor)); };
  return {.cold = overhead(warm_up.cold),
          .second = overhead(warm_up.second),
          .warm = overhead(warm_up.warm)};
}

}  // namespace

Pace pace_of(std::span<const ComputedWork> work, const TimingModel& timing) {
  double measured_prefill = 0;
  double measured_decode = 0;
  double predicted_prefill = 0;
  double predicted_decode = 0;
  for (const ComputedWork& w : work) {
    if (!w.parts.empty()) {
      measured_prefill += w.seconds;
      predicted_prefill +=
          timing.iteration(w.parts, w.batch, w.context).after(w.passes_before).seconds();
      continue;
    }
    measured_decode += w.seconds;
    predicted_decode += timing.decode_warm_up(w.passes_before).seconds();
    for (std::int64_t i = 0; i < w.iterations; ++i) {
      predicted_decode +=
          timing.decode_duration(w.batch, w.context + Tokens(w.batch * i)).seconds();
    }
  }
  return {.prefill = predicted_prefill > 0 ? measured_prefill / predicted_prefill : 1,
          .decode = predicted_decode > 0 ? measured_decode / predicted_decode : 1};
}

const std::vector<DecodePiece>& PacedTiming::decode(std::int64_t batch) const {
  const auto [found, added] = decode_.try_emplace(batch);
  if (added) {
    for (DecodePiece piece : timing_.decode(batch)) {
      piece.base = times(piece.base, pace_.decode);
      piece.slope = times(piece.slope, pace_.decode);
      found->second.push_back(piece);
    }
  }
  return found->second;
}

std::span<const std::int64_t> PacedTiming::window_slopes(std::int64_t batch) const {
  const auto [found, added] = window_slopes_.try_emplace(batch);
  if (added) {
    for (const std::int64_t slope : timing_.window_slopes(batch)) {
      found->second.push_back(times(slope, pace_.decode));
    }
  }
  return found->second;
}

WarmUp PacedTiming::warm_up() const { return times(timing_.warm_up(), pace_.decode); }

SimDuration PacedTiming::decode_layer(std::int64_t batch, Tokens context) const {
  return times(timing_.decode_layer(batch, context), pace_.decode);
}

PrefillTime PacedTiming::iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                   Tokens context) const {
  PrefillTime time = timing_.iteration(parts, batch, context);
  time.total = times(time.total, pace_.prefill);
  time.layer = times(time.layer, pace_.prefill);
  time.warm_up = times(time.warm_up, pace_.prefill);
  return time;
}

}  // namespace kvtier
