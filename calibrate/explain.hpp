#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hw/model/hardware.hpp"
#include "hw/model/model.hpp"
#include "hw/timing/timing_model.hpp"

/// Loading of KV behind prefills, worked out from the figures of a machine.
namespace kvtier::calibrate {

/// A memory from which the GPUs load stored KV.
struct KvSource {
  std::string name;
  /// The rate and the time of a load when nothing else moves.
  BytesPerSecond bandwidth;
  std::function<SimDuration(Bytes)> load;
};

/// The most past tokens whose load is no longer than the prefill of `added` tokens after them, so
/// that layer-wise loading can hide it (but for the first layer). At most `limit`.
[[nodiscard]] Tokens hidden_past(const ModelConfig& model, const TimingModel& timing,
                                 const KvSource& source, Tokens added, Tokens limit);

/// The HBM read buffer for `prompt` new tokens after `history`.
struct ReadBuffer {
  SimDuration load;
  SimDuration prefill;
  /// S_buf of AttentionStore 3.2.1.
  Bytes attentionstore;
  /// Size at which the request never waits, not rounded to layers.
  Bytes hides_loading;
  std::int64_t layers = 0;
};
[[nodiscard]] ReadBuffer read_buffer(const ModelConfig& model, const TimingModel& timing,
                                     const KvSource& source, Tokens history, Tokens prompt);

struct ExplainOptions {
  Tokens history{2048};
  Tokens prompt{128};
};

/// All break-evens as tables, over powers of two up to the context window.
[[nodiscard]] std::string explain(const ModelConfig& model, const HardwareConfig& hardware,
                                  const TimingModel& timing, const std::vector<KvSource>& sources,
                                  const ExplainOptions& options);

}  // namespace kvtier::calibrate
