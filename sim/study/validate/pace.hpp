#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "hw/timing/timing_model.hpp"
#include "sim/device/device_backend.hpp"

/// Pace: the compute times of a machine during a run, relative to a timing model. The pace of
/// shared processors changes from minute to minute, which is no error of a simulation.
namespace kvtier {

/// Measured time over predicted time of the same work.
struct Pace {
  double prefill = 1;
  double decode = 1;
};

/// Pace of all computed work; 1 if there was none.
[[nodiscard]] Pace pace_of(std::span<const ComputedWork> work, const TimingModel& timing);

/// A timing model with the times of another one, multiplied by the pace. Iterations with prompts
/// have the pace of prefills.
class PacedTiming final : public TimingModel {
 public:
  /// Keeps a reference to `timing`.
  PacedTiming(const TimingModel& timing, const Pace& pace) : timing_(timing), pace_(pace) {}

  [[nodiscard]] const std::vector<DecodePiece>& decode(std::int64_t batch) const override;
  [[nodiscard]] WarmUp warm_up() const override;
  [[nodiscard]] SimDuration idle_gap() const override { return timing_.idle_gap(); }
  [[nodiscard]] SimDuration decode_layer(std::int64_t batch, Tokens context) const override;
  [[nodiscard]] std::span<const Tokens> windows() const override { return timing_.windows(); }
  [[nodiscard]] std::span<const std::int64_t> window_slopes(std::int64_t batch) const override;
  [[nodiscard]] PrefillTime iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                      Tokens context) const override;

 private:
  const TimingModel& timing_;
  Pace pace_;
  mutable std::map<std::int64_t, std::vector<DecodePiece>> decode_;
  mutable std::map<std::int64_t, std::vector<std::int64_t>> window_slopes_;
};

}  // namespace kvtier
