#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"

/// Files that may be compressed, read and written in a bounded amount of memory.
namespace kvtier {

namespace detail {
class Encoder;
}  // namespace detail

/// The source of the bytes of a ByteReader.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills the beginning of `target` and returns the number of bytes. Returns 0 at the end, with
  /// `damage` set if the data are truncated or corrupt.
  virtual std::size_t read(std::span<char> target, std::string& damage) = 0;
};

/// The bytes of a plain, gzip (several members too) or zstd (several frames too) file. The first
/// bytes tell the format; the name does not matter.
class ByteReader {
 public:
  /// Throws ConfigError if there is no such file or it is a folder, DeviceError if it cannot be
  /// read.
  explicit ByteReader(std::filesystem::path path);
  /// Reads `source` instead; errors name `path`.
  ByteReader(std::filesystem::path path, std::unique_ptr<ByteSource> source)
      : path_(std::move(path)), source_(std::move(source)) {}

  /// Fills the beginning of `target` (not empty) and returns the number of bytes. Returns 0 at the
  /// end of the data and at damage. Throws DeviceError if reading fails.
  [[nodiscard]] std::size_t read(std::span<char> target);

  /// The damage at the end of the data ("the gzip data are truncated"), or empty.
  [[nodiscard]] const std::string& damage() const { return damage_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::string damage_;
  std::unique_ptr<ByteSource> source_;
};

/// The lines of a plain, gzip or zstd file.
class LineReader {
 public:
  /// The longest line. The limit keeps a binary file from taking all memory.
  static constexpr std::size_t kLineBytesMax = std::size_t{64} << 20;

  /// Throws like ByteReader.
  explicit LineReader(std::filesystem::path path) : LineReader(ByteReader(std::move(path))) {}
  explicit LineReader(ByteReader bytes);

  /// Sets `line` to the next line without its end ("\n" or "\r\n") and, in line 1, without a byte
  /// order mark; it stays valid until the next call. False at the end. Throws DeviceError if
  /// reading fails. Throws ConfigError that names file and line if a line is not UTF-8, is too long
  /// or is damaged. After the last two, returns false.
  [[nodiscard]] bool next(std::string_view& line);

  /// Number of the last line that `next` returned, from 1.
  [[nodiscard]] std::int64_t line_number() const { return line_number_; }
  [[nodiscard]] const std::filesystem::path& path() const { return bytes_.path(); }
  /// `file:line: message`, to be thrown.
  [[nodiscard]] ConfigError error(std::string_view message) const;

 private:
  ByteReader bytes_;
  std::string buffer_;
  std::size_t begin_ = 0;    // start of the current line
  std::size_t scanned_ = 0;  // no line end before here
  std::size_t end_ = 0;
  std::int64_t line_number_ = 0;
  bool ended_ = false;
};

/// Writes a file that appears under its name only when complete: gzip if the name ends in ".gz",
/// zstd if it ends in ".zst", plain otherwise. The bytes depend on the written text alone (gzip's
/// time stamp is zero).
class CompressedWriter {
 public:
  /// Throws DeviceError if the file cannot be made.
  explicit CompressedWriter(const std::filesystem::path& path);
  ~CompressedWriter();

  /// Throws DeviceError if writing fails.
  void write(std::string_view text);
  /// Puts the file in place. Without this call, no file is left. Throws DeviceError.
  void commit();

 private:
  AtomicFile file_;
  std::unique_ptr<detail::Encoder> encoder_;
};

}  // namespace kvtier
