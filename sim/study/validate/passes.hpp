#pragma once

#include <span>

#include "hw/timing/timing_model.hpp"
#include "sim/device/device_backend.hpp"

/// Times of the passes of a run, beside a timing model.
namespace kvtier {

/// Sums over passes, in seconds.
struct PassTimes {
  std::int64_t passes = 0;
  double measured = 0;
  /// Until the host had queued all work; it overlaps with the device's time.
  double submission = 0;
  double device = 0;
  double predicted = 0;

  /// Measured time over predicted time of the same work; 1 without work. The pace of shared
  /// processors changes from minute to minute, which is no error of a simulation.
  [[nodiscard]] double pace() const { return predicted > 0 ? measured / predicted : 1; }
};

/// Iterations with prompts, and decode iterations.
struct Passes {
  PassTimes prefill;
  PassTimes decode;
};

[[nodiscard]] Passes passes_of(std::span<const ComputedWork> work, const TimingModel& timing);

}  // namespace kvtier
