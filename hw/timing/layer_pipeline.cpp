#include "hw/timing/layer_pipeline.hpp"

#include <algorithm>
#include <cmath>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

void check(const LayerPipeline& p) {
  KVTIER_ASSERT(p.layers >= 1, "a request has a layer");
  KVTIER_ASSERT(p.load.ns >= 0 && p.compute.ns >= 0 && p.loaded_ahead.ns >= 0,
                "durations are not negative");
}

Bytes loaded_in(SimDuration duration, BytesPerSecond bandwidth) {
  return Bytes(static_cast<std::int64_t>(
      std::ceil(static_cast<double>(duration.ns) * bandwidth.value / 1e9)));
}

/// Load time before the beginning of the request with which it never waits.
SimDuration ahead_to_hide_loading(const LayerPipeline& p) {
  return std::max(p.load, p.load * p.layers - p.compute * (p.layers - 1));
}

}  // namespace

SimDuration pipelined_finish(const LayerPipeline& p) {
  check(p);
  return pipelined_finish(
      {.first = p.load - p.loaded_ahead, .last = p.load * p.layers - p.loaded_ahead},
      p.compute * p.layers, p.compute);
}

SimDuration pipeline_stall(const LayerPipeline& p) {
  return pipelined_finish(p) - p.compute * p.layers;
}

SimDuration unpipelined_finish(const LayerPipeline& p) {
  check(p);
  return (p.load + p.compute) * p.layers;
}

std::int64_t layers_to_hide_loading(const LayerPipeline& p) {
  check(p);
  if (p.load.ns == 0) {
    return 0;
  }
  return (ahead_to_hide_loading(p).ns + p.load.ns - 1) / p.load.ns;
}

std::int64_t layers_to_hide_loading(std::span<const Bytes> sizes, BytesPerSecond bandwidth,
                                    SimDuration compute, bool equal_layers) {
  KVTIER_ASSERT(!sizes.empty(), "a request has a layer");
  // Layer i has to be loaded once the i layers before it have computed.
  const double hidden_by_layer = bandwidth.value * static_cast<double>(compute.ns) / 1e9;
  const auto needed_ahead = [&](std::size_t layer) {
    return static_cast<double>(sizes[layer].value) - static_cast<double>(layer) * hidden_by_layer;
  };
  const auto first = static_cast<double>(sizes.front().value);
  const std::size_t last = sizes.size() - 1;
  double ahead = std::max(needed_ahead(0), needed_ahead(last));
  // With equal layers the need rises or falls from layer to layer, so the first or the last layer
  // needs most. If it does neither, rounding decides.
  if (!equal_layers || std::abs(hidden_by_layer - first) <= 1e-9 * first) {
    for (std::size_t layer = 1; layer < last; ++layer) {
      ahead = std::max(ahead, needed_ahead(layer));
    }
  }
  const auto holds = [&](std::size_t layer) {
    return static_cast<double>(sizes[layer].value) >= ahead;
  };
  if (equal_layers && first > 0) {
    // Rounding may put the quotient next to the right layer.
    auto layer =
        static_cast<std::size_t>(std::clamp(ahead / first, 0.0, static_cast<double>(last)));
    while (layer > 0 && holds(layer - 1)) {
      --layer;
    }
    while (layer <= last && !holds(layer)) {
      ++layer;
    }
    return static_cast<std::int64_t>(layer) + 1;
  }
  const auto holds_enough = std::ranges::lower_bound(
      sizes, ahead, {}, [](Bytes up_to) { return static_cast<double>(up_to.value); });
  return holds_enough - sizes.begin() + 1;
}

Bytes attentionstore_read_buffer(BytesPerSecond bandwidth, SimDuration load, SimDuration prefill) {
  return loaded_in(std::max(SimDuration(0), load - prefill), bandwidth);
}

Bytes read_buffer_to_hide_loading(BytesPerSecond bandwidth, const LayerPipeline& p) {
  check(p);
  return loaded_in(ahead_to_hide_loading(p), bandwidth);
}

}  // namespace kvtier
