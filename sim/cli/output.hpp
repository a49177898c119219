#pragma once

#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/file.hpp"

namespace kvtier::cli {

/// An option and its path; empty if it was not given.
using OutputOption = std::pair<const char*, const std::string&>;

/// The lists, one after another.
[[nodiscard]] std::vector<std::string> joined(
    std::initializer_list<std::vector<std::string>> lists);

/// Throws ConfigError for an output that is a folder, one of the files `inputs` (or in one of their
/// folders) by any name, or the path of another output. Only `--json` may name a device, a pipe or
/// standard output (-), because the other options replace a file when it is complete.
void check_outputs(const std::vector<OutputOption>& outputs,
                   const std::vector<std::string>& inputs);

/// The destination of a text that a command writes at its end. The constructor opens it, so that an
/// unwritable output stops the command before the work. A file appears only when complete.
class TextOutput {
 public:
  /// `path` "-" means standard output, an empty `path` no output.
  explicit TextOutput(const std::string& path);
  TextOutput(const TextOutput&) = delete;
  TextOutput& operator=(const TextOutput&) = delete;
  ~TextOutput();

  void write(std::string_view text);

 private:
  std::string path_;
  std::optional<AtomicFile> file_;
  /// A device or a pipe.
  std::FILE* stream_ = nullptr;
};

}  // namespace kvtier::cli
