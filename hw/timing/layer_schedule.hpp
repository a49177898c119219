#pragma once

#include <cstdint>
#include <span>

#include "sim/core/units.hpp"

namespace kvtier {

/// One pass over the model, without waiting for KV. Times follow its command.
struct PassTime {
  std::int64_t layers = 1;
  /// From the command to the work.
  SimDuration before;
  /// All layers, and the work outside of layers.
  SimDuration total;
  /// One layer, without what warm caches save.
  SimDuration layer;
  /// From the end of the work to its report.
  SimDuration after;

  /// Time outside of the layers. It is not negative: passes that follow others are faster in their
  /// layers only.
  [[nodiscard]] SimDuration outside_layers() const;
  /// One layer as this pass computes it.
  [[nodiscard]] SimDuration layer_of_pass() const;
};

/// One load of a pass that has ended: its time since the command, and the part of it in which no
/// bytes moved.
struct LoadTime {
  SimDuration total;
  SimDuration latency;
};

/// How a pass waits for the KV that it loads: layer by layer, or for all of it. A layer computes
/// when the layer before it is done and its own KV has arrived from all media.
struct LayerSchedule {
  /// Layers whose KV is in HBM when the pass starts.
  std::int64_t ready = 0;
  /// Relative bytes of the loaded KV up to and including each layer; empty if all layers are equal.
  /// The owner keeps them until the loads are complete.
  std::span<const Bytes> sizes{};
  /// No layer computes before all KV has arrived.
  bool whole = false;

  /// The end of the pass since its command, if this is its only load. Of several loads, the latest
  /// end counts. A load moves its layers in order at a steady rate, after its latency.
  [[nodiscard]] SimDuration end(const PassTime& pass, const LoadTime& load) const;

 private:
  [[nodiscard]] SimDuration end_of_equal_layers(const PassTime& pass, const LoadTime& load) const;
  [[nodiscard]] SimDuration end_of_unequal_layers(const PassTime& pass, const LoadTime& load) const;
};

}  // namespace kvtier
