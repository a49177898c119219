#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "sim/core/units.hpp"
#include "sim/engine/backend.hpp"

namespace kvtier {

/// What keeps the next waiting request from being admitted, or GPUs from computing.
enum class WaitCause : std::uint8_t {
  batch_slots,   // as many requests run as there are slots
  hbm_for_kv,    // its KV has no room in HBM
  gpu_compute,   // the GPUs compute
  host_link,     // they wait for KV that comes over the link to the host
  host_memory,   // the same, where the memory's own bandwidth is the least of the way
  cxl_memory,    // the same
  drive,         // the same
  write_buffer,  // they wait for KV that leaves HBM
};
inline constexpr std::size_t kWaitCauses = 8;
[[nodiscard]] const char* to_string(WaitCause cause);

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
  void set_none(SimTime now) {
    if (waits_) {
      advance(now);
      waits_ = false;
    }
  }
  /// From now on the next request waits for this.
  void set(WaitCause cause, SimTime now) {
    advance(now);
    waits_ = true;
    cause_ = cause;
  }
  /// A command of the GPUs took `elapsed`, of which it waited for KV for `waited`, because of
  /// `way`.
  void end_command(SimDuration elapsed, SimDuration waited, WaitCause way, SimTime now);
  /// Counts up to now.
  void advance(SimTime now) {
    if (waits_) {
      (cause_ == WaitCause::gpu_compute ? in_command_ : requests_[cause_]) += now - since_;
    }
    since_ = now;
  }

  /// In which requests waited.
  [[nodiscard]] const WaitTimes& requests() const { return requests_; }
  /// In which GPUs waited for KV to come, whether requests did or not.
  [[nodiscard]] const WaitTimes& loads() const { return loads_; }

 private:
  WaitTimes requests_;
  WaitTimes loads_;
  /// In which requests waited for the command that runs.
  SimDuration in_command_;
  bool waits_ = false;
  WaitCause cause_ = WaitCause::gpu_compute;
  SimTime since_;
};

}  // namespace kvtier
