#pragma once

#include <cstdint>

#include "sim/core/units.hpp"
#include "sim/serving/config.hpp"

namespace kvtier {

/// Predicts the length of a response before it ends. The prediction depends on the turn alone, not
/// on what was predicted before: systems that run turns in another order predict alike.
class LengthPredictor {
 public:
  LengthPredictor(const LengthPredictionConfig& config, std::uint64_t seed)
      : config_(config), seed_(seed) {}

  /// `output` is what the response will have; at least 1 is predicted.
  [[nodiscard]] Tokens predict(std::int64_t session, std::int64_t turn, Tokens output) const;

 private:
  LengthPredictionConfig config_;
  std::uint64_t seed_;
};

}  // namespace kvtier
