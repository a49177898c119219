#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/cli/output.hpp"
#include "sim/study/runs/expect.hpp"

namespace CLI {
class App;
}

namespace kvtier::cli {

/// --expect and --update-expect.
struct ExpectOptions {
  std::string file;
  bool update = false;

  /// `about` says what the JSON pointers of the file point into.
  void add_to(CLI::App& command, const std::string& about);
};

/// The expectations of a command: read before the work, so that a bad file costs nothing, and
/// checked before results are written. Nothing is checked without a file.
class Expectations {
 public:
  explicit Expectations(const ExpectOptions& options);

  /// `values` is asked only if there are expectations. Throws ConfigError for values that no result
  /// has.
  void check(const std::function<FindValue()>& values);
  /// Prints what does not hold, and writes the file anew if told to. Returns the exit code.
  [[nodiscard]] int finish();

 private:
  const ExpectOptions options_;
  Json json_;
  std::vector<Expectation> expectations_;
  std::vector<std::string> failed_;
  std::optional<TextOutput> updated_;
};

}  // namespace kvtier::cli
