#include "sim/serving/waits.hpp"

#include "sim/core/assert.hpp"
#include "sim/core/histogram.hpp"

namespace kvtier {

SimDuration WaitTimes::total() const {
  SimDuration sum;
  for (const SimDuration duration : by_cause) {
    sum += duration;
  }
  return sum;
}

WaitTimes& WaitTimes::operator+=(const WaitTimes& other) {
  for (std::size_t i = 0; i < kWaitCauses; ++i) {
    by_cause[i] += other.by_cause[i];
  }
  return *this;
}

WaitTimes operator-(WaitTimes a, const WaitTimes& b) {
  for (std::size_t i = 0; i < kWaitCauses; ++i) {
    a.by_cause[i] -= b.by_cause[i];
  }
  return a;
}

void WaitClock::end_command(SimDuration elapsed, SimDuration waited, WaitCause way, SimTime now) {
  KVTIER_ASSERT(waited.ns >= 0 && waited <= elapsed, "a command waits for a part of its time");
  advance(now);
  if (waited.ns > 0) {
    const SimDuration share(
        static_cast<std::int64_t>(static_cast<Int128>(in_command_.ns) * waited.ns / elapsed.ns));
    requests_[way] += share;
    in_command_ -= share;
  }
  requests_[WaitCause::gpu_compute] += in_command_;
  in_command_ = SimDuration();
}

}  // namespace kvtier
