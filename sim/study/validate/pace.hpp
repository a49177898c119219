#pragma once

#include <span>

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

}  // namespace kvtier
