#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "sim/core/units.hpp"

/// Layer-wise pre-loading (AttentionStore, arXiv 2403.19708, sections 3.2.1 and 3.2.2): a request's
/// stored KV is loaded layer by layer while earlier layers compute.
namespace kvtier {

/// One request of `layers` >= 1 equal layers that begins at 0. Its KV is loaded in the order of the
/// layers, without a pause. `loaded_ahead` is the load time of the KV that is in the HBM read
/// buffer at the beginning: `load` times the buffered layers, which may be a fraction. More than
/// all layers counts as all of them.
struct LayerPipeline {
  std::int64_t layers = 1;
  /// Time of one layer.
  SimDuration load;
  /// Time of one layer.
  SimDuration compute;
  SimDuration loaded_ahead;
};

/// Times at which the KV of the first and last layer is loaded, from the beginning of the request.
/// A layer that is loaded earlier has a negative time or 0.
struct LoadedLayers {
  SimDuration first;
  SimDuration last;
};

/// The end of the last layer if equal layers load at a steady rate, in closed form. `compute` is
/// the time of all layers, `last_layer` that of the last one, each with the work that follows the
/// layers. If layer i is the last one to wait, the end is when its KV is loaded, and the compute of
/// n - i + 1 layers. That is linear in i: the largest is at the first or at the last layer.
[[nodiscard]] inline SimDuration pipelined_finish(LoadedLayers loaded, SimDuration compute,
                                                  SimDuration last_layer) {
  return std::max(std::max(SimDuration(0), loaded.first) + compute, loaded.last + last_layer);
}

/// The same for a request of n layers:
///
///     max(n x compute, load - loaded_ahead + n x compute, n x load - loaded_ahead + compute)
[[nodiscard]] SimDuration pipelined_finish(const LayerPipeline& pipeline);

/// The time that the GPUs wait for KV: pipelined_finish without the compute.
[[nodiscard]] SimDuration pipeline_stall(const LayerPipeline& pipeline);

/// The same request without pre-loading: each layer is loaded, then computed, n x (load + compute).
[[nodiscard]] SimDuration unpipelined_finish(const LayerPipeline& pipeline);

/// The fewest whole layers in the read buffer at the beginning with which the request never waits.
/// At least 1 if loading takes time, because no compute hides the load of the first layer.
[[nodiscard]] std::int64_t layers_to_hide_loading(const LayerPipeline& pipeline);

/// The same for layers whose KV differs in size. `sizes` is the KV up to and including each
/// layer, `bandwidth` the load rate, `compute` the time of one layer. With `equal_layers`, all
/// layers have the size of the first, and only the first and last are checked. At least 1.
[[nodiscard]] std::int64_t layers_to_hide_loading(std::span<const Bytes> sizes,
                                                  BytesPerSecond bandwidth, SimDuration compute,
                                                  bool equal_layers = false);

/// S_buf of AttentionStore 3.2.1: B x (T_load x L_hist - T_pref x L_new), where `load` is the time
/// of loading the whole history at `bandwidth`, and `prefill` that of computing the new tokens.
/// Zero if computing takes longer. The formula counts the compute of all layers as time for
/// loading, but the last layer computes only after its own KV is loaded. A request with this buffer
/// still waits for the compute time of one layer.
[[nodiscard]] Bytes attentionstore_read_buffer(BytesPerSecond bandwidth, SimDuration load,
                                               SimDuration prefill);

/// The smallest read buffer with which the request never waits, not rounded to whole layers:
/// bandwidth x max(load, n x load - (n-1) x compute). That is attentionstore_read_buffer plus the
/// KV loaded during the compute of one layer, and at least one layer.
[[nodiscard]] Bytes read_buffer_to_hide_loading(BytesPerSecond bandwidth,
                                                const LayerPipeline& pipeline);

}  // namespace kvtier
