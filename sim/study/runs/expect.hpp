#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/config.hpp"

namespace kvtier {

/// The expectation of one value of a result: a number between limits, or a value with a tolerance
/// for numbers.
struct Expectation {
  /// Into the results.
  std::string pointer;
  std::optional<double> minimum;
  std::optional<double> maximum;
  std::optional<Json> value;
  /// How far a number may be from `value`; of a relative tolerance, its share of it.
  double tolerance = 0;
};

/// Reads `{"/metrics/hit_rate/all_turns/total": {"min": 0.8, "max": 0.9}}`, or `{"value": 0.86,
/// "tolerance": 0.06}`, or `{"value": 0.86, "relative": 0.05}` (of both, the wider counts; without,
/// any JSON value must be equal). In place of `{"value": 3}` there may be 3, or any other value
/// that is not an object. Throws ConfigError with every problem, naming `origin`.
[[nodiscard]] std::vector<Expectation> read_expectations(const Json& json,
                                                         const std::string& origin);

/// The value at a JSON pointer of some results; nullopt if they have none.
using FindValue = std::function<std::optional<Json>(const std::string& pointer)>;
[[nodiscard]] FindValue values_of(Json result);
/// Values of results by name, each of one or more replications: `/NAME` and a pointer into a result
/// of that name. A number is the mean over the replications; other values that differ are a list of
/// them.
using NamedResults = std::map<std::string, std::vector<Json>>;
[[nodiscard]] FindValue values_of(NamedResults results);

/// A line for each expectation that does not hold. Throws ConfigError for those of values that the
/// results do not have, naming `origin`.
[[nodiscard]] std::vector<std::string> failed_expectations(
    const FindValue& find, const std::vector<Expectation>& expectations, const std::string& origin);

/// The file that `expectations` were read from, with the values found in place of those expected.
/// Tolerances and limits stay. Every value is found.
[[nodiscard]] Json updated_expectations(Json file, const FindValue& find,
                                        const std::vector<Expectation>& expectations);

}  // namespace kvtier
