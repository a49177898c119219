#include "sim/serving/length_predictor.hpp"

#include <algorithm>
#include <cmath>

#include "sim/core/rng.hpp"

namespace kvtier {

Tokens LengthPredictor::predict(std::int64_t session, std::int64_t turn, Tokens output) const {
  switch (config_.kind) {
    case LengthPrediction::exact:
      break;
    case LengthPrediction::noise: {
      // A stream for each turn: odd factors spread neighbours over all of the seeds.
      const std::uint64_t turn_seed = seed_ +
                                      static_cast<std::uint64_t>(session) * 0x9e3779b97f4a7c15 +
                                      static_cast<std::uint64_t>(turn) * 0xd1342543de82ef95;
      RandomStream stream(turn_seed, "system/length_prediction");
      // Beyond any context window, and times of it still fit a clock.
      constexpr double kMostTokens = 1e9;
      const double predicted =
          static_cast<double>(output.value) * stream.lognormal(0, config_.sigma);
      return Tokens(std::llround(std::clamp(predicted, 1.0, kMostTokens)));
    }
    case LengthPrediction::constant:
      return config_.tokens;
  }
  return output;
}

}  // namespace kvtier
