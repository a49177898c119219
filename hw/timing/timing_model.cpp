#include "hw/timing/timing_model.hpp"

#include <algorithm>
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

Tokens tokens_within(std::span<const Tokens> contexts, Tokens window) {
  Tokens sum;
  for (const Tokens context : contexts) {
    sum += std::min(context, window);
  }
  return sum;
}

Tokens equal_tokens_within(std::int64_t batch, Tokens context, Tokens window) {
  if (batch == 0) {
    return Tokens(0);
  }
  const std::int64_t least = context.value / batch;
  const std::int64_t longer = context.value % batch;
  return std::min(Tokens(least), window) * (batch - longer) +
         std::min(Tokens(least + 1), window) * longer;
}

std::int64_t TimingModel::equal_window_ticks(std::int64_t batch, Tokens context) const {
  const std::span<const Tokens> all = windows();
  const std::span<const std::int64_t> slopes = window_slopes(batch);
  std::int64_t ticks = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Tokens within = equal_tokens_within(batch, context, all[i]);
    ticks = detail::time_sum(ticks, detail::time_product(slopes[i], within.value));
  }
  return ticks;
}

}  // namespace kvtier
