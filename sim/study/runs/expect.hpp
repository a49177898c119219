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
  /// JSON pointer into the results.
  std::string pointer;
  std::optional<double> minimum;
  std::optional<double> maximum;
  std::optional<Json> value;
  /// Largest distance of a number to `value`. A relative tolerance is already multiplied by it.
  double tolerance = 0;
};

/// Reads an object from JSON pointers to expectations. An expectation is one of
///
///     {"min": 0.8, "max": 0.9}
///     {"value": 0.86, "tolerance": 0.06}
///     {"value": 0.86, "relative": 0.05}
///     {"value": 3}, or 3, or another value that is no object
///
/// The wider of "tolerance" and "relative" counts. Without both, values must be equal. Throws
/// ConfigError with all problems, which name `origin`.
[[nodiscard]] std::vector<Expectation> read_expectations(const Json& json,
                                                         const std::string& origin);

/// The pointer of today for one of another version; empty if it has none.
[[nodiscard]] std::string renamed_pointer(const std::string& pointer);

/// Finds the value at a JSON pointer of results; nullopt if there is none.
using FindValue = std::function<std::optional<Json>(const std::string& pointer)>;
[[nodiscard]] FindValue values_of(Json result);
/// Results by name, each with one or more replications. A pointer is `/NAME` and a pointer into the
/// results of that name. A number is the mean over the replications. Other values that differ are
/// given as a list.
using NamedResults = std::map<std::string, std::vector<Json>>;
[[nodiscard]] FindValue values_of(NamedResults results);

/// A line for each failed expectation. Throws ConfigError, which names `origin`, for values that
/// the results do not have.
[[nodiscard]] std::vector<std::string> failed_expectations(
    const FindValue& find, const std::vector<Expectation>& expectations, const std::string& origin);

/// The file of `expectations` with the found values in place of the expected ones. Tolerances and
/// limits stay. `find` must find every value.
[[nodiscard]] Json updated_expectations(Json file, const FindValue& find,
                                        const std::vector<Expectation>& expectations);

}  // namespace kvtier
