#include "traces/input_tokens.hpp"

#include <fmt/format.h>

#include "sim/core/errors.hpp"

namespace kvtier {

void PromptGrowth::check(const InputTokensSetting& setting, const std::string& file) const {
  if (setting.value == InputTokens::automatic && 2 * longer_ > later_turns_) {
    throw ConfigError(fmt::format(
        "{}: the input tokens look like whole prompts: {} of {} later turns have more of them than "
        "the turn before and its response together; expected the meaning at {}: \"total\" (whole "
        "prompts) or \"new\" (new tokens of the turn)",
        file, longer_, later_turns_, setting.option));
  }
  if (setting.value == InputTokens::total && 2 * at_least_ < later_turns_) {
    throw ConfigError(fmt::format(
        "{}: the input tokens do not look like whole prompts: only {} of {} later turns have as "
        "many of them as the turn before and its response together; expected \"new\" at {}, or "
        "output tokens without the reasoning that later prompts leave out",
        file, at_least_, later_turns_, setting.option));
  }
}

}  // namespace kvtier
