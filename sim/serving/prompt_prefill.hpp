#pragma once

#include "hw/timing/timing_model.hpp"
#include "sim/serving/config.hpp"

namespace kvtier {

struct PromptPrefill {
  SimDuration time;
  /// The time of an iteration is extrapolated.
  bool extrapolated = false;
};

/// Time of computing a prompt on an idle server, from the first command to the first token: one
/// prefill, or the iterations into which the token budget and the chunk of the system split it.
[[nodiscard]] PromptPrefill prompt_prefill(const RunConfig& config, const TimingModel& timing,
                                           Tokens prompt);

}  // namespace kvtier
