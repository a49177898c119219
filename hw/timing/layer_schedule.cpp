#include "hw/timing/layer_schedule.hpp"

#include <algorithm>

#include "hw/timing/layer_pipeline.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/histogram.hpp"

namespace kvtier {

SimDuration PassTime::outside_layers() const {
  return std::max(SimDuration(0), total - layer * layers);
}

SimDuration PassTime::layer_of_pass() const { return (total - outside_layers()) / layers; }

SimDuration LayerSchedule::end(const PassTime& pass, const LoadTime& load) const {
  if (whole) {
    return std::max(load.total, pass.before) + pass.total + pass.after;
  }
  return sizes.empty() ? end_of_equal_layers(pass, load) : end_of_unequal_layers(pass, load);
}

/// The extra time of a drive's first bytes is spread over all layers.
SimDuration LayerSchedule::end_of_equal_layers(const PassTime& pass, const LoadTime& load) const {
  const std::int64_t loading = std::max<std::int64_t>(1, pass.layers - ready);
  const SimDuration latency = std::min(load.latency, load.total);
  const SimDuration layer = pass.layer_of_pass();
  // The layers that are ready compute while the first awaited one arrives.
  const SimDuration first = latency + (load.total - latency) / loading - layer * ready;
  const SimDuration finish =
      pipelined_finish({.first = first - pass.before, .last = load.total - pass.before},
                       pass.total + pass.after, layer + pass.outside_layers() + pass.after);
  return std::max(load.total, pass.before + finish);
}

/// After the last layer that waits for its KV, only compute is left.
SimDuration LayerSchedule::end_of_unequal_layers(const PassTime& pass, const LoadTime& load) const {
  KVTIER_ASSERT(std::ssize(sizes) == pass.layers, "every layer has its size");
  const auto first = static_cast<std::size_t>(ready);
  const Bytes there = first > 0 ? sizes[first - 1] : Bytes(0);
  const std::int64_t all = (sizes.back() - there).value;
  const SimDuration outside = pass.outside_layers();
  const SimDuration latency = std::min(load.latency, load.total);
  const SimDuration layer = pass.layer_of_pass();
  SimDuration end = std::max(load.total, pass.before + pass.total + pass.after);
  for (std::size_t i = first; i < sizes.size(); ++i) {
    const Int128 moved = static_cast<Int128>((load.total - latency).ns) * (sizes[i] - there).value;
    const SimDuration loaded = latency + SimDuration(static_cast<std::int64_t>(moved / all));
    const std::int64_t computing = pass.layers - static_cast<std::int64_t>(i);
    end = std::max(end, std::max(pass.before, loaded) + layer * computing + outside + pass.after);
  }
  return end;
}

}  // namespace kvtier
