#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hw/timing/timing_model.hpp"
#include "sim/serving/config.hpp"

namespace kvtier {

/// The HBM read buffer: the first layers of the next request's stored KV, loaded ahead of its turn
/// (AttentionStore, arXiv 2403.19708, section 3.2.1). `/system/load/buffers` is its size: a fixed
/// number of layers, or, with "auto", what the turn at hand needs for the rest to arrive while it
/// computes: S_buf = B (T_load L_hist - T_pref L_new) in whole layers. B is the bandwidth that a
/// load keeps while the GPUs compute and other KV is saved. T_pref counts the layers before the
/// last one: that needs its own KV, and the rest of a prefill hides no load (hw/layer_pipeline).
/// All times are those of the config's timing model and links, so that a simulation and a run on
/// devices load the same layers ahead.
class ReadBuffer {
 public:
  /// `config` has been checked.
  explicit ReadBuffer(const RunConfig& config);

  /// The most layers that any turn loads ahead; 0: none does. With "auto" these are the layers of
  /// the longest history that the context window allows, with one new token.
  [[nodiscard]] std::int64_t most_layers() const { return most_layers_; }

  /// HBM that is set aside for it as long as the run lasts: `most_layers` of a whole context
  /// window. Running requests never take this room, so loading ahead never waits for them, also
  /// where HBM is what limits the batch.
  [[nodiscard]] Bytes capacity() const { return capacity_; }

  /// Layers to load ahead of a turn with this prefill: 1 to `most_layers`, or 0 if that is 0. The
  /// KV of `past` is loaded.
  [[nodiscard]] std::int64_t layers(const PrefillPart& prefill) const;

 private:
  [[nodiscard]] std::int64_t layers_to_hide(const PrefillPart& prefill) const;

  std::int64_t most_layers_ = 0;
  Bytes capacity_;
  /// With "auto" only.
  std::unique_ptr<TimingModel> timing_;
  /// Bytes of one token's stored KV.
  std::vector<Bytes> layer_sizes_;
  bool equal_layers_ = true;
  /// Bandwidth of a load from the fastest tier outside of HBM, while the GPUs compute and save KV.
  BytesPerSecond bandwidth_;
  /// The layers of a prefill compute while others are on their way.
  bool layers_overlap_ = false;
};

}  // namespace kvtier
