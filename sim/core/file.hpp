#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace kvtier {

/// The whole file as text; throws ConfigError if it is missing, DeviceError if reading fails.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path);

/// A file that appears under its name only when complete. It is written under a temporary name of
/// its own beside its target, `NAME.kvtier-tmp-XXXXXX`, and renamed by `commit`. Without `commit`
/// nothing is left behind. A link is written through: the file that it leads to is replaced. An
/// existing file keeps its mode. Throws DeviceError (full disk, no permission).
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
  void create();
  void flush();
  void close();

  std::filesystem::path path_;
  /// The target of the links of `path_`.
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  /// Not yet given to the system.
  std::string buffer_;
  /// Locked (flock) as long as it is open, so that no other process takes the file for a leftover.
  int descriptor_ = -1;
};

/// Removes the temporary files that killed processes left beside `target`. Those of processes that
/// still run are locked and stay.
void remove_leftovers(const std::filesystem::path& target);

/// Writes `text` through AtomicFile, or to standard output if `path` is "-".
void write_text_output(const std::string& path, std::string_view text);

/// Text reaches standard output when it is flushed. Both functions throw DeviceError.
void write_standard_output(std::string_view text);
void flush_standard_output();

}  // namespace kvtier
