#include "sim/core/units.hpp"

#include "sim/core/assert.hpp"

namespace kvtier {

SimDuration transfer_duration(Bytes bytes, BytesPerSecond rate) {
  KVTIER_ASSERT(rate.value > 0, "a transfer needs a positive rate");
  return duration_from_seconds(static_cast<double>(bytes.value) / rate.value);
}

}  // namespace kvtier
