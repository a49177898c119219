#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hw/model/hardware.hpp"
#include "hw/model/model.hpp"
#include "hw/timing/timing_model.hpp"

/// How much KV loading prefills hide, computed from the figures of a machine.
namespace kvtier::calibrate {

/// A memory from which the GPUs load stored KV.
struct KvSource {
  std::string name;
  /// Rate, and time of a load without other transfers.
  BytesPerSecond bandwidth;
  std::function<SimDuration(Bytes)> load;
};

/// The most past tokens, at most `limit`, whose load takes no longer than the prefill of `added`
/// tokens after them. Layer-wise loading can hide such a load, except for the first layer.
[[nodiscard]] Tokens hidden_past(const ModelConfig& model, const TimingModel& timing,
                                 const KvSource& source, Tokens added, Tokens limit);

/// The HBM read buffer for `prompt` new tokens after `history`.
struct ReadBuffer {
  SimDuration load;
  SimDuration prefill;
  /// S_buf of AttentionStore 3.2.1.
  Bytes attentionstore;
  /// Smallest size with which the request never waits, not rounded to layers.
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
