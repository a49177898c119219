#include "sim/core/units.hpp"

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {

namespace detail {

void simulated_time_overflows() {
  throw ConfigError(
      "/: the run needs more simulated time than the clock holds (292 years, or 104 days for one "
      "response): the rates of /hardware are too low for its work, or the times of /workload too "
      "long");
}

}  // namespace detail

SimDuration transfer_duration(Bytes bytes, BytesPerSecond rate) {
  KVTIER_ASSERT(rate.value > 0, "a transfer needs a positive rate");
  return duration_from_seconds(static_cast<double>(bytes.value) / rate.value);
}

}  // namespace kvtier
