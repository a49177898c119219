#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/core/config.hpp"

namespace kvtier {

/// A bound of an error, and the error.
struct Wanted {
  std::string what;
  double limit_percent = 0;
  double percent = 0;

  [[nodiscard]] bool is_met() const { return percent <= limit_percent; }
};
[[nodiscard]] bool all_met(const std::vector<Wanted>& wanted);
[[nodiscard]] Json to_json(const std::vector<Wanted>& wanted);
/// A line each.
[[nodiscard]] std::string to_text(const std::vector<Wanted>& wanted);

/// The last part of a model's name on Hugging Face to the preset; empty: none.
[[nodiscard]] std::string_view model_preset(std::string_view published);

}  // namespace kvtier
