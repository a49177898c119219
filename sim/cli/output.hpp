#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/file.hpp"

namespace kvtier::cli {

/// An option and its path; empty if it was not given.
using OutputOption = std::pair<const char*, const std::string&>;

/// Throws ConfigError for outputs that are folders, or that share one path. A device or a pipe
/// cannot be replaced by a finished file: only `--json` may name one, or standard output (-).
/// No output may be one of `inputs`, which are files.
void check_outputs(const std::vector<OutputOption>& outputs,
                   const std::vector<std::string>& inputs = {});

/// One text that a command writes at its end. It is opened at once, so that an unwritable output
/// stops the command before the work. A file appears only when complete.
class TextOutput {
 public:
  /// Standard output if `path` is "-"; nothing is written if it is empty.
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
