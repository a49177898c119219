#include "sim/core/units.hpp"

#include <cmath>

#include "sim/core/assert.hpp"

namespace kvtier {

SimDuration duration_from_seconds(double seconds) {
  const double ns = std::ceil(seconds * 1e9);
  KVTIER_ASSERT(ns >= 0 && ns < 9.2e18, "a duration is between zero and 292 years");
  return SimDuration(static_cast<std::int64_t>(ns));
}

SimDuration transfer_duration(Bytes bytes, BytesPerSecond rate) {
  KVTIER_ASSERT(rate.value > 0, "a transfer needs a positive rate");
  return duration_from_seconds(static_cast<double>(bytes.value) / rate.value);
}

}  // namespace kvtier
