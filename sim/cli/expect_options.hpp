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

  /// `about` describes the values that the file's JSON pointers select.
  void add_to(CLI::App& command, const std::string& about);
  /// The file, which no other output may replace.
  [[nodiscard]] std::vector<std::string> inputs() const {
    return file.empty() ? std::vector<std::string>() : std::vector{file};
  }
};

/// The expectations of a command. They are read before the work, so that a bad file fails early,
/// and checked before results are written. Without a file, nothing is checked.
class Expectations {
 public:
  explicit Expectations(const ExpectOptions& options);

  /// Calls `values` only if there is a file. Throws ConfigError for an expectation of a value that
  /// no result has.
  void check(const std::function<FindValue()>& values);
  /// Prints failed expectations, and rewrites the file with --update-expect. Returns the exit code.
  [[nodiscard]] int finish();

 private:
  const ExpectOptions options_;
  Json json_;
  std::vector<Expectation> expectations_;
  std::vector<std::string> failed_;
  std::optional<TextOutput> updated_;
};

}  // namespace kvtier::cli
