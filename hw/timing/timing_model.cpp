#include "hw/timing/timing_model.hpp"

#include <cmath>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {

std::int64_t ticks_from_seconds(double seconds) {
  constexpr double kDay = 86400;
  KVTIER_ASSERT(seconds >= 0, "a decode iteration takes no negative time");
  if (seconds > kDay) {
    throw ConfigError(
        "/hardware: a decode iteration takes more than a day: the rates of /hardware are too low "
        "for the model");
  }
  return static_cast<std::int64_t>(std::round(seconds * 1e9 * static_cast<double>(kTicksPerNs)));
}

}  // namespace kvtier
