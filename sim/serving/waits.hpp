#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "sim/backend/topology.hpp"
#include "sim/core/units.hpp"

namespace kvtier {

/// Durations by cause.
struct WaitTimes {
  std::array<SimDuration, kWaitCauses> by_cause{};

  [[nodiscard]] SimDuration operator[](WaitCause cause) const {
    return by_cause[static_cast<std::size_t>(cause)];
  }
  [[nodiscard]] SimDuration& operator[](WaitCause cause) {
    return by_cause[static_cast<std::size_t>(cause)];
  }
  [[nodiscard]] SimDuration total() const;
  WaitTimes& operator+=(const WaitTimes& other);
  friend WaitTimes operator-(WaitTimes a, const WaitTimes& b);
};

/// Divides the time in which at least one request waits among what keeps the next one from being
/// admitted: no free slot, else no room in HBM, else what the GPUs do. A command of the GPUs that
/// waits for KV in parts, layer by layer, counts in the proportion of its waiting to its length.
class WaitClock {
 public:
  /// From now on no request waits.
  void set_none(SimTime now) { set(kNothing, now); }
  /// From now on the next request waits for this.
  void set(WaitCause cause, SimTime now) {
    if (cause != cause_) {
      advance(now);
      cause_ = cause;
    }
  }
  /// A command of the GPUs took `elapsed`, of which it waited for KV for `waited`, because of
  /// `way`.
  void end_command(SimDuration elapsed, SimDuration waited, WaitCause way, SimTime now);
  /// Counts up to now. The command that runs has computed so far, whatever follows.
  void settle(SimTime now) {
    advance(now);
    requests_[WaitCause::gpu_compute] += in_command_;
    in_command_ = SimDuration();
  }

  /// In which requests waited.
  [[nodiscard]] const WaitTimes& requests() const { return requests_; }

 private:
  /// No request waits.
  static constexpr WaitCause kNothing{kWaitCauses};

  void advance(SimTime now) {
    if (cause_ != kNothing) {
      (cause_ == WaitCause::gpu_compute ? in_command_ : requests_[cause_]) += now - since_;
    }
    since_ = now;
  }

  WaitTimes requests_;
  /// In which requests waited for the command that runs.
  SimDuration in_command_;
  WaitCause cause_ = kNothing;
  SimTime since_;
};

}  // namespace kvtier
