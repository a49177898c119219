#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/core/config.hpp"

namespace kvtier {

/// The expectation of one value of a result: a number between limits, or a value with a tolerance
/// for numbers.
struct Expectation {
  /// Into the result.
  std::string pointer;
  std::optional<double> minimum;
  std::optional<double> maximum;
  std::optional<Json> value;
  /// How far a number may be from `value`; of a relative tolerance, its share of it.
  double tolerance = 0;
};

/// Reads `{"/metrics/hit_rate/all_turns/total": {"min": 0.8, "max": 0.9}}`, or `{"value": 0.86,
/// "tolerance": 0.06}`, or `{"value": 0.86, "relative": 0.05}` (of both, the wider counts; without,
/// any JSON value must be equal). Throws ConfigError with every problem, naming `origin`.
[[nodiscard]] std::vector<Expectation> read_expectations(const Json& json,
                                                         const std::string& origin);

/// A line for each expectation that does not hold. Throws ConfigError for those of values that the
/// result does not have, naming `origin`.
[[nodiscard]] std::vector<std::string> failed_expectations(
    const Json& result, const std::vector<Expectation>& expectations, const std::string& origin);

}  // namespace kvtier
