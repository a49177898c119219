#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "sim/core/units.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// How a table counts the input tokens of a request.
enum class InputTokens {
  automatic,   // as new_tokens, but an error if they look like whole prompts
  new_tokens,  // without the history of the session
  total,       // the whole prompt, as the APIs of LLM servers count it
};
constexpr auto enum_names(InputTokens) {
  return std::array{std::pair<std::string_view, InputTokens>{"auto", InputTokens::automatic},
                    std::pair<std::string_view, InputTokens>{"new", InputTokens::new_tokens},
                    std::pair<std::string_view, InputTokens>{"total", InputTokens::total}};
}

struct InputTokensSetting {
  InputTokens value = InputTokens::automatic;
  /// The option or config key of the value, for errors.
  std::string option = "--input-tokens";
};

/// Compares the prompts of later turns with the turns before them. A whole prompt repeats the
/// history, so it has at least the tokens of the turn before and its response.
class PromptGrowth {
 public:
  /// `before`: input and output tokens of the turn before.
  void add(Tokens before, Tokens input) {
    ++later_turns_;
    at_least_ += input >= before ? 1 : 0;
    longer_ += input > before ? 1 : 0;
  }
  [[nodiscard]] std::int64_t later_turns() const { return later_turns_; }
  /// Throws ConfigError if the meaning is not given and most later turns are longer than the turn
  /// before and its response, or if whole prompts are given and most later turns are shorter.
  void check(const InputTokensSetting& setting, const std::string& file) const;

 private:
  std::int64_t later_turns_ = 0;
  std::int64_t at_least_ = 0;
  std::int64_t longer_ = 0;
};

}  // namespace kvtier
