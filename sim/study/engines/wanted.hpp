#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/core/config.hpp"

namespace kvtier {

/// An error and the largest error that is allowed.
struct Wanted {
  std::string what;
  double limit_percent = 0;
  double percent = 0;

  [[nodiscard]] bool is_met() const { return percent <= limit_percent; }
};
[[nodiscard]] bool all_met(const std::vector<Wanted>& wanted);
[[nodiscard]] Json to_json(const std::vector<Wanted>& wanted);
/// A line for each error.
[[nodiscard]] std::string to_text(const std::vector<Wanted>& wanted);

/// The preset of a model, by the last part of its name on Hugging Face; empty if there is none.
[[nodiscard]] std::string_view model_preset(std::string_view published);

}  // namespace kvtier
