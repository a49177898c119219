#include "sim/serving/prompt_prefill.hpp"

#include <algorithm>

#include "sim/core/rounding.hpp"

namespace kvtier {
namespace {

/// Tokens of the first iteration, and of each later one but the last.
struct PromptSteps {
  Tokens first;
  Tokens later;
};

PromptSteps steps_of(const RunConfig& config, Tokens prompt) {
  const SystemConfig& system = config.system;
  if (!system.blocks || system.blocks->whole_prompts) {
    return {.first = prompt, .later = prompt};
  }
  const Tokens budget = token_budget(config);
  const Tokens most = std::min(budget, system.blocks->chunk.value_or(budget));
  if (system.batching == Batching::separate && system.tiers.hbm) {
    // The first iteration of a prompt that is split computes whole blocks, one at least.
    const Tokens block = system.tiers.hbm->block_size;
    if (block * divide_up(prompt.value, block.value) > most) {
      return {.first = block * std::max<std::int64_t>(1, most / block), .later = most};
    }
  }
  return {.first = std::min(prompt, most), .later = most};
}

}  // namespace

PromptPrefill prompt_prefill(const RunConfig& config, const TimingModel& timing, Tokens prompt) {
  const auto [first, later] = steps_of(config, prompt);
  PromptPrefill result;
  Tokens computed;
  for (std::int64_t passes = 0; computed < prompt; ++passes) {
    const PrefillPart part{.added = std::min(passes == 0 ? first : later, prompt - computed),
                           .past = computed};
    const PrefillTime time = timing.prefill({&part, 1});
    result.time += time.after(passes) + config.hardware.efficiency.command_overhead;
    result.extrapolated = result.extrapolated || time.extrapolated;
    computed += part.added;
  }
  return result;
}

}  // namespace kvtier
