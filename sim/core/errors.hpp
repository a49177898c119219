#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvtier {

/// Bad input: every problem found, one line each. The program ends with exit code 2.
class ConfigError : public std::runtime_error {
 public:
  explicit ConfigError(std::vector<std::string> problems);
  explicit ConfigError(const std::string& problem)
      : ConfigError(std::vector<std::string>{problem}) {}

  [[nodiscard]] const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::vector<std::string> problems_;
};

/// A device or I/O failure: full disk, unreadable file, missing driver. The exit code is 3.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The entry of `known` that a misspelt or shortened `word` most likely meant, or an empty view if
/// none is near.
[[nodiscard]] std::string_view closest_match(std::string_view word,
                                             const std::vector<std::string>& known);

/// ` (did you mean "capacity"?)`, or nothing if no known word is near.
[[nodiscard]] std::string suggestion(std::string_view word, const std::vector<std::string>& known);

}  // namespace kvtier
