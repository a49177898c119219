#pragma once

#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace kvtier {

/// The whole file as text; throws ConfigError if it is missing, DeviceError if reading fails.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path);

/// A file that appears under its name only when complete: it is written beside it under a temporary
/// name and renamed by `commit`. Without `commit` nothing is left behind. Throws DeviceError (full
/// disk, no permission).
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::string_view text);
  /// Overwrites lines that were written: `change` gets each without its end, in order, and may
  /// change characters but not their number.
  void change_lines(const std::function<void(std::string&)>& change);
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::FILE* file_ = nullptr;
};

/// Writes `text` through AtomicFile, or to standard output if `path` is "-".
void write_text_output(const std::string& path, std::string_view text);

}  // namespace kvtier
