#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "hw/timing/timing_model.hpp"

namespace kvtier {

/// Times of another timing model, which outlives this one, multiplied by a factor: an instance that
/// is slow, or the pace of a machine. Iterations with prompts take the factor of prefills.
class ScaledTiming final : public TimingModel {
 public:
  /// Factors are > 0.
  ScaledTiming(const TimingModel& usual, double prefill, double decode)
      : usual_(usual), prefill_(prefill), decode_(decode) {}

  /// Throws ConfigError, as all times here, if a scaled time exceeds 64 bits.
  [[nodiscard]] const std::vector<DecodePiece>& decode(std::int64_t batch) const override;
  [[nodiscard]] WarmUp warm_up() const override;
  [[nodiscard]] SimDuration idle_gap() const override { return usual_.idle_gap(); }
  [[nodiscard]] SimDuration decode_layer(std::int64_t batch, Tokens context) const override;
  [[nodiscard]] PrefillTime iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                      Tokens context) const override;
  [[nodiscard]] std::span<const Tokens> windows() const override { return usual_.windows(); }
  [[nodiscard]] std::span<const std::int64_t> window_slopes(std::int64_t batch) const override;
  [[nodiscard]] PrefillTime iteration_of(std::span<const PrefillPart> parts,
                                         std::span<const Tokens> contexts) const override;

 private:
  [[nodiscard]] PrefillTime scaled(const PrefillTime& time) const;

  const TimingModel& usual_;
  double prefill_;
  double decode_;
  /// By batch. References to elements stay valid.
  mutable std::unordered_map<std::int64_t, std::vector<DecodePiece>> pieces_;
  mutable std::unordered_map<std::int64_t, std::vector<std::int64_t>> slopes_;
};

}  // namespace kvtier
