#pragma once

#include <cstdint>
#include <vector>

#include "hw/timing/layer_pipeline.hpp"
#include "sim/backend/backend.hpp"
#include "sim/serving/config.hpp"

/// Experiments on one batch of equal requests on an idle server: figures 18 to 20 of AttentionStore
/// (arXiv 2403.19708), and figures 1 and 5 of CaR (University of Connecticut). Times follow from
/// the timing model and from the links, without a queue. Every function takes a checked config and
/// uses its `model`, `hardware` and `system`.
namespace kvtier {

/// The prefill of a batch whose history is stored in `source`.
struct BatchPrefill {
  std::int64_t batch = 1;
  /// History of each request.
  Tokens history;
  Tokens added;
  Medium source = Medium::dram;
};

/// The number of layers, and a layer's load and compute times. Nothing is loaded ahead.
[[nodiscard]] LayerPipeline batch_pipeline(const RunConfig& config, const BatchPrefill& prefill);

/// Figures 18 and 19: times of ways to prefill the same batch.
struct BatchPrefillTimes {
  /// The whole prompt is computed (RE).
  double recompute_seconds = 0;
  /// The history is loaded, then the new tokens are computed.
  double blocking_seconds = 0;
  /// Layer-wise pre-loading, for 0, 1, ... all layers in the read buffer.
  std::vector<double> preloading_seconds;
};
[[nodiscard]] BatchPrefillTimes batch_prefill_times(const RunConfig& config,
                                                    const BatchPrefill& prefill);

/// CaR's figures 1 and 5: times of requests whose KV is reused or computed again.
struct ReuseTimes {
  /// Times to the first token: the whole prompt is computed; the history is loaded before the rest
  /// is computed; load and compute overlap layer by layer.
  double recompute_seconds = 0;
  double reload_seconds = 0;
  double overlapped_seconds = 0;
  /// Time of the later tokens. Added to a time above, it gives the time to the last token.
  double decode_seconds = 0;
  /// Bandwidth from the medium of the history to HBM, and the loaded bytes.
  BytesPerSecond bandwidth;
  Bytes loaded;
};
[[nodiscard]] ReuseTimes reuse_times(const RunConfig& config, const BatchPrefill& request,
                                     Tokens response);

/// Figure 20: times of prefill, decode iterations, and saving their KV.
struct BatchSaveTimes {
  double prefill_seconds = 0;
  double decode_seconds = 0;
  /// Time of saving all KV to the host.
  double save_seconds = 0;
  /// KV that is not saved when the last iteration of an asynchronous run ends.
  Bytes unsaved;
  /// Total time if all KV is saved after the last iteration while the GPUs wait.
  double blocking_seconds = 0;
  /// Total time if KV is saved during later iterations. At the end the GPUs wait only for the KV
  /// that the write buffer (`/system/save/write_buffer`) cannot hold.
  double async_seconds = 0;
};
[[nodiscard]] BatchSaveTimes batch_save_times(const RunConfig& config, std::int64_t batch,
                                              Tokens prompt, std::int64_t iterations);

}  // namespace kvtier
