#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace kvtier::cli {

/// Accepts one of `names`. The error message suggests the nearest name.
[[nodiscard]] CLI::Validator one_of(std::vector<std::string> names);

/// Accepts a whole number in minimum .. maximum. CLI11's own conversion saturates silently.
[[nodiscard]] CLI::Validator whole_number(std::int64_t minimum, std::int64_t maximum = INT64_MAX);

/// Accepts a decimal number in minimum .. maximum.
[[nodiscard]] CLI::Validator number_between(double minimum, double maximum);

/// Prints an error of the command line as `kvtier: MESSAGE`, and the command that shows help.
void report_command_line(const CLI::App& app, const CLI::ParseError& error);

}  // namespace kvtier::cli
