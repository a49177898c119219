#include "hw/timing/scaled_timing.hpp"

#include <cmath>

namespace kvtier {
namespace {

std::int64_t times(std::int64_t count, double factor) {
  const double scaled = static_cast<double>(count) * factor;
  constexpr double kMost = 9.2e18;
  if (std::abs(scaled) > kMost) {
    detail::simulated_time_overflows();
  }
  return std::llround(scaled);
}

SimDuration times(SimDuration time, double factor) { return SimDuration(times(time.ns, factor)); }

WarmUp times(const WarmUp& warm_up, double factor) {
  return {.cold = times(warm_up.cold, factor),
          .second = times(warm_up.second, factor),
          .warm = times(warm_up.warm, factor)};
}

}  // namespace

const std::vector<DecodePiece>& ScaledTiming::decode(std::int64_t batch) const {
  const auto [found, is_new] = pieces_.try_emplace(batch);
  if (is_new) {
    for (DecodePiece piece : usual_.decode(batch)) {
      piece.base = times(piece.base, decode_);
      piece.slope = times(piece.slope, decode_);
      found->second.push_back(piece);
    }
  }
  return found->second;
}

WarmUp ScaledTiming::warm_up() const { return times(usual_.warm_up(), decode_); }

SimDuration ScaledTiming::decode_layer(std::int64_t batch, Tokens context) const {
  return times(usual_.decode_layer(batch, context), decode_);
}

PrefillTime ScaledTiming::scaled(const PrefillTime& time) const {
  return {.total = times(time.total, prefill_),
          .layer = times(time.layer, prefill_),
          .warm_up = times(time.warm_up, prefill_),
          .extrapolated = time.extrapolated,
          .shares = time.shares};
}

PrefillTime ScaledTiming::iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                    Tokens context) const {
  return scaled(usual_.iteration(parts, batch, context));
}

PrefillTime ScaledTiming::iteration_of(std::span<const PrefillPart> parts,
                                       std::span<const Tokens> contexts) const {
  return scaled(usual_.iteration_of(parts, contexts));
}

std::span<const std::int64_t> ScaledTiming::window_slopes(std::int64_t batch) const {
  const auto [found, is_new] = slopes_.try_emplace(batch);
  if (is_new) {
    for (const std::int64_t slope : usual_.window_slopes(batch)) {
      found->second.push_back(times(slope, decode_));
    }
  }
  return found->second;
}

}  // namespace kvtier
