#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "hw/layer_pipeline.hpp"
#include "sim/core/config.hpp"
#include "sim/engine/config.hpp"

/// One batch of equal requests on an idle server: the experiments of AttentionStore (arXiv
/// 2403.19708), figures 18 to 20. No queue and no users; times follow from the timing model of the
/// config's model and hardware and from its host link, one way at a time. Every function takes a
/// checked config, of which it uses `model`, `hardware` and, where it says so, `system`.
namespace kvtier {

/// The prefill of a batch that finds its history in host memory.
struct BatchPrefill {
  std::int64_t batch = 16;
  Tokens history;
  Tokens added;
};

/// Layers, and load and compute of one; nothing is loaded ahead.
[[nodiscard]] LayerPipeline batch_pipeline(const RunConfig& config, const BatchPrefill& prefill);

/// Figure 18: the same prompt split between history and new tokens.
struct HistoryShareRow {
  BatchPrefill prefill;
  /// The whole prompt is computed (RE).
  double recompute_seconds = 0;
  /// The history is loaded, then the new tokens are computed.
  double blocking_seconds = 0;
  /// Layer-wise pre-loading without a read buffer.
  double preloading_seconds = 0;
  /// The same with the read buffer of `/system/load/buffers` layers.
  double buffered_seconds = 0;
};
/// Prompts of `prompt` tokens with each of `added` new ones.
[[nodiscard]] std::vector<HistoryShareRow> history_share_experiment(
    const RunConfig& config, std::int64_t batch, Tokens prompt, const std::vector<Tokens>& added);
/// The figure's: 16 prompts of 1,000 tokens, of which 500, 400, ..., 100 are new.
[[nodiscard]] std::vector<HistoryShareRow> history_share_experiment(const RunConfig& config);

/// Figure 19: the same prefill with read buffers of 0, 1, 2, ... layers.
struct ReadBufferExperiment {
  /// No pre-loading at all.
  double blocking_seconds = 0;
  /// By layers in the read buffer.
  std::vector<double> seconds;

  /// Relative to no pre-loading: -0.35 is 35 % faster.
  [[nodiscard]] double change(std::int64_t buffered_layers) const;
};
[[nodiscard]] ReadBufferExperiment read_buffer_experiment(const RunConfig& config,
                                                          const BatchPrefill& prefill,
                                                          std::int64_t most_layers);
/// The figure's: 16 requests of 1,000 tokens of history and 100 new ones, 0 to 15 layers.
[[nodiscard]] ReadBufferExperiment read_buffer_experiment(const RunConfig& config);

/// Figure 20: prefill, some decode iterations, and saving all KV that they made.
struct SavingRow {
  Tokens prompt;
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

  /// Of the asynchronous run relative to the blocking one.
  [[nodiscard]] double change() const { return async_seconds / blocking_seconds - 1; }
};
[[nodiscard]] std::vector<SavingRow> saving_experiment(const RunConfig& config, std::int64_t batch,
                                                       const std::vector<Tokens>& prompts,
                                                       std::int64_t iterations);
/// The figure's: 16 prompts of 1,000, 1,200, 1,400 and 1,600 tokens, 20 iterations.
[[nodiscard]] std::vector<SavingRow> saving_experiment(const RunConfig& config);

/// What one fact of the hardware would do to figure 19 if it were another.
struct ReadBufferSensitivity {
  enum class Fact { compute_efficiency, host_to_device_bandwidth };
  Fact fact;
  /// A share of the peak, or bytes per second.
  double value = 0;
  /// Compute over load of one layer, which together with the number of layers gives the changes.
  double compute_to_load = 0;
  double change_without_buffer = 0;
  double change_with_all_buffers = 0;
};
/// Figure 19's experiment for each value of the fact, all else as in the config.
[[nodiscard]] std::vector<ReadBufferSensitivity> read_buffer_sensitivity(
    const RunConfig& config, ReadBufferSensitivity::Fact fact, const std::vector<double>& values);
/// The largest compute efficiency, to a thousandth, at which figure 19's experiment with a buffer
/// of `buffered_layers` is as fast as `change` says or faster; nullopt if there is none.
[[nodiscard]] std::optional<double> compute_efficiency_for(const RunConfig& config,
                                                           std::int64_t buffered_layers,
                                                           double change);

/// The three figures' experiments and the sensitivity of figure 19, for printing.
[[nodiscard]] Json batch_experiments_report(const RunConfig& config);

}  // namespace kvtier
