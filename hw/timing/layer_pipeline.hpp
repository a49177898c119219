#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/units.hpp"

/// Layer-wise pre-loading (AttentionStore, arXiv 2403.19708, sections 3.2.1 and 3.2.2): a job's
/// stored KV comes in layer by layer while earlier layers compute.
namespace kvtier {

/// One job of `layers` >= 1 equal layers that begins at 0. Its KV is loaded in the order of the
/// layers, without a pause. What lies in the HBM read buffer when the job begins is given as the
/// time that loading it took: `loaded_ahead` is `load` times the buffered layers, or anything
/// between whole layers. More than the job has is the same as all of it.
struct LayerPipeline {
  std::int64_t layers = 1;
  /// Time of one layer.
  SimDuration load;
  /// Time of one layer.
  SimDuration compute;
  SimDuration loaded_ahead;
};

/// When one layer is loaded and when it computes, from the beginning of the job. A layer (or a part
/// of one) that was loaded ahead begins and ends its load at 0.
struct LayerInterval {
  SimDuration load_begin;
  SimDuration load_end;
  SimDuration compute_begin;
  SimDuration compute_end;
};

/// Layer i computes when layer i-1 is done and its own KV is there: the recurrence, one interval a
/// layer.
[[nodiscard]] std::vector<LayerInterval> layer_schedule(const LayerPipeline& pipeline);

/// When the KV of the first and of the last layer is loaded, from the beginning of the job. A layer
/// that is loaded earlier has a negative time or 0.
struct LoadedLayers {
  SimDuration first;
  SimDuration last;
};

/// The end of the last layer where equal layers load at a steady rate, in closed form. `compute` is
/// the time of all layers, `last_layer` that of the last one, each with the work that follows the
/// layers. If layer i is the last one to wait, the end is when its KV is loaded, and the compute of
/// n - i + 1 layers. That is linear in i: the largest is at the first or at the last layer.
[[nodiscard]] inline SimDuration pipelined_finish(LoadedLayers loaded, SimDuration compute,
                                                  SimDuration last_layer) {
  return std::max(std::max(SimDuration(0), loaded.first) + compute, loaded.last + last_layer);
}

/// The same for a job of n layers:
///
///     max(n x compute, load - loaded_ahead + n x compute, n x load - loaded_ahead + compute)
[[nodiscard]] SimDuration pipelined_finish(const LayerPipeline& pipeline);

/// The time that the GPUs wait for KV: pipelined_finish without the compute.
[[nodiscard]] SimDuration pipeline_stall(const LayerPipeline& pipeline);

/// The same job without pre-loading: each layer is loaded, then computed, n x (load + compute).
[[nodiscard]] SimDuration unpipelined_finish(const LayerPipeline& pipeline);

/// Whole layers that have to be in the read buffer when the job begins for it never to wait; 1 at
/// least (if loading takes time at all), as no layer hides the load of the first.
[[nodiscard]] std::int64_t layers_to_hide_loading(const LayerPipeline& pipeline);

/// The same for layers whose KV differs in size: `up_to_layers` is the KV up to and with each
/// layer, `bandwidth` the rate at which it is loaded, `compute` the time of one layer. 1 at least.
/// `equal_layers` says that all layers have the size of the first, so that two need be looked at.
[[nodiscard]] std::int64_t layers_to_hide_loading(std::span<const Bytes> up_to_layers,
                                                  BytesPerSecond bandwidth, SimDuration compute,
                                                  bool equal_layers = false);

/// S_buf of AttentionStore 3.2.1: B x (T_load x L_hist - T_pref x L_new), where `load` is the time
/// of loading the whole history at `bandwidth`, and `prefill` that of computing the new tokens.
/// Zero where computing takes longer. It counts the compute of all layers as time to load in, yet
/// the last layer computes only when its own KV is there: a job with this buffer still waits for
/// the compute of one layer.
[[nodiscard]] Bytes attentionstore_read_buffer(BytesPerSecond bandwidth, SimDuration load,
                                               SimDuration prefill);

/// The least that has to be in the read buffer when the job begins for it never to wait, not
/// rounded to whole layers: bandwidth x max(load, n x load - (n-1) x compute). That is
/// attentionstore_read_buffer plus what is loaded in the compute of one layer, and at least one
/// layer.
[[nodiscard]] Bytes read_buffer_to_hide_loading(BytesPerSecond bandwidth,
                                                const LayerPipeline& pipeline);

}  // namespace kvtier
