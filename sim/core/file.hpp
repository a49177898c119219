#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvtier {

/// Whether there is a regular file (a folder) at `path`, after links. Throws DeviceError if that
/// cannot be found out: no permission, an I/O error, a cycle of links.
[[nodiscard]] bool is_file(const std::filesystem::path& path);
[[nodiscard]] bool is_folder(const std::filesystem::path& path);
/// The same for a path of any type.
[[nodiscard]] bool path_exists(const std::filesystem::path& path);

/// Sorted paths of the files and folders in a folder; none if there is no such folder. Throws
/// DeviceError if it cannot be read.
[[nodiscard]] std::vector<std::filesystem::path> folder_entries(
    const std::filesystem::path& folder);

/// Throws ConfigError if there is nothing or a folder at `path`, DeviceError as is_file() does.
void check_is_no_folder(const std::filesystem::path& path);

/// The whole file as text; throws ConfigError if it is missing, DeviceError if reading fails.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path);

/// A file that appears under its name only when complete. It is written as `NAME.kvtier-tmp-XXXXXX`
/// beside its target, and `commit` renames it. Without `commit` no file is left. If `path` is a
/// symbolic link, its target is replaced. An existing file keeps its mode. After `commit` the file
/// and its name are on the disk. Throws DeviceError (full disk, no permission).
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::string_view text);
  /// Rewrites the lines written so far, in order. `change` gets each line without its end, and must
  /// keep its length.
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
  /// Text not yet written to the file.
  std::string buffer_;
  /// Locked (flock) while it is open, so that no other process removes the file as a leftover.
  int descriptor_ = -1;
};

/// Removes the temporary files that killed processes left beside `target`. Those of processes that
/// still run are locked and stay.
void remove_leftovers(const std::filesystem::path& target);

/// Writes `text` through AtomicFile, or to standard output if `path` is "-".
void write_text_output(const std::string& path, std::string_view text);

/// Standard output is buffered until it is flushed. Both functions throw DeviceError.
void write_standard_output(std::string_view text);
void flush_standard_output();

}  // namespace kvtier
