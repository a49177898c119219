#pragma once

#include <cstdint>
#include <vector>

#include "hw/timing/layer_pipeline.hpp"
#include "sim/backend/backend.hpp"
#include "sim/serving/config.hpp"

/// One batch of equal requests on an idle server: the experiments of AttentionStore (arXiv
/// 2403.19708), figures 18 to 20, and of CaR (University of Connecticut), figures 1 and 5. No queue
/// and no users; times follow from the timing model of the config's model and hardware and from its
/// links, one way at a time. Every function takes a checked config, of which it uses `model`,
/// `hardware` and, where it says so, `system`.
namespace kvtier {

/// The prefill of a batch that finds its history in `source`, host memory unless it is said.
struct BatchPrefill {
  std::int64_t batch = 1;
  /// History of each request.
  Tokens history;
  Tokens added;
  Medium source = Medium::dram;
};

/// Layers, and load and compute of one; nothing is loaded ahead.
[[nodiscard]] LayerPipeline batch_pipeline(const RunConfig& config, const BatchPrefill& prefill);

/// Figures 18 and 19: ways to prefill the same batch.
struct BatchPrefillTimes {
  /// The whole prompt is computed (RE).
  double recompute_seconds = 0;
  /// The history is loaded, then the new tokens are computed.
  double blocking_seconds = 0;
  /// Layer-wise pre-loading, by the layers in the read buffer, from none to all.
  std::vector<double> preloading_seconds;
};
[[nodiscard]] BatchPrefillTimes batch_prefill_times(const RunConfig& config,
                                                    const BatchPrefill& prefill);

/// CaR's figures 1 and 5: one request whose KV is reused or computed again.
struct ReuseTimes {
  /// Time to the first token: the whole prompt is computed; its history is loaded, then the rest is
  /// computed; the same with the layers of load and compute overlapped.
  double recompute_seconds = 0;
  double reload_seconds = 0;
  double overlapped_seconds = 0;
  /// Time that the later tokens add to each of these. The time to the last token is the sum.
  double decode_seconds = 0;
  /// Bandwidth to HBM of the medium that holds the history, and the KV that is loaded.
  BytesPerSecond bandwidth;
  Bytes loaded;
};
[[nodiscard]] ReuseTimes reuse_times(const RunConfig& config, const BatchPrefill& request,
                                     Tokens response);

/// Figure 20: prefill, some decode iterations, and saving all KV that they made.
struct BatchSaveTimes {
  double prefill_seconds = 0;
  double decode_seconds = 0;
  /// Moving all KV to the host.
  double save_seconds = 0;
  /// KV that is not yet saved when the last iteration of an asynchronous run ends.
  Bytes unsaved;
  /// Everything is saved after the last iteration, while the GPUs wait.
  double blocking_seconds = 0;
  /// KV moves while later iterations run; the GPUs wait only for what the write buffer
  /// (`/system/save/write_buffer`) cannot hold at the end.
  double async_seconds = 0;
};
[[nodiscard]] BatchSaveTimes batch_save_times(const RunConfig& config, std::int64_t batch,
                                              Tokens prompt, std::int64_t iterations);

}  // namespace kvtier
