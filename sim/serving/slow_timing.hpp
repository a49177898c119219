#pragma once

#include <unordered_map>
#include <vector>

#include "hw/timing/timing_model.hpp"

namespace kvtier {

/// Times of GPUs that take `factor` times as long as those of another model, which outlives this.
class SlowTiming final : public TimingModel {
 public:
  SlowTiming(const TimingModel& usual, double factor) : usual_(usual), factor_(factor) {}

  [[nodiscard]] const std::vector<DecodePiece>& decode(std::int64_t batch) const override;
  [[nodiscard]] WarmUp warm_up() const override { return slow(usual_.warm_up()); }
  [[nodiscard]] SimDuration idle_gap() const override { return usual_.idle_gap(); }
  [[nodiscard]] SimDuration decode_layer(std::int64_t batch, Tokens context) const override {
    return slow(usual_.decode_layer(batch, context));
  }
  [[nodiscard]] PrefillTime iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                      Tokens context) const override {
    return slow(usual_.iteration(parts, batch, context));
  }
  [[nodiscard]] std::span<const Tokens> windows() const override { return usual_.windows(); }
  [[nodiscard]] std::span<const std::int64_t> window_slopes(std::int64_t batch) const override;
  [[nodiscard]] PrefillTime iteration_of(std::span<const PrefillPart> parts,
                                         std::span<const Tokens> contexts) const override {
    return slow(usual_.iteration_of(parts, contexts));
  }

 private:
  [[nodiscard]] std::int64_t slow(std::int64_t ticks) const {
    return static_cast<std::int64_t>(static_cast<double>(ticks) * factor_);
  }
  [[nodiscard]] SimDuration slow(SimDuration time) const { return SimDuration(slow(time.ns)); }
  [[nodiscard]] WarmUp slow(const WarmUp& warm_up) const {
    return {.cold = slow(warm_up.cold), .second = slow(warm_up.second), .warm = slow(warm_up.warm)};
  }
  [[nodiscard]] PrefillTime slow(const PrefillTime& time) const {
    return {.total = slow(time.total),
            .layer = slow(time.layer),
            .warm_up = slow(time.warm_up),
            .extrapolated = time.extrapolated};
  }

  const TimingModel& usual_;
  double factor_;
  /// By batch. References to elements stay valid.
  mutable std::unordered_map<std::int64_t, std::vector<DecodePiece>> pieces_;
  mutable std::unordered_map<std::int64_t, std::vector<std::int64_t>> slopes_;
};

}  // namespace kvtier
