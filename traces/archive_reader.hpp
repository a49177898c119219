#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "sim/core/compressed_stream.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {

/// The files of an archive in the archive's order: tar (plain, gzip or zstd) or zip. Nothing is
/// extracted, and memory does not grow with the archive. The content shows the format.
///
/// ByteReader decompresses gzip and zstd, because libarchive 3.6 ignores gzip's checksums, and ends
/// without an error at damage after the first gzip member.
class ArchiveReader {
 public:
  struct Member {
    /// Name in the archive, without a leading "./". Never write to it: it may be absolute or
    /// contain "..".
    std::string name;
    /// Its path, for errors, is the archive's path followed by the name.
    ByteReader bytes;
  };

  /// Throws ConfigError if there is no such file or it is a folder, DeviceError if it cannot be
  /// read.
  explicit ArchiveReader(std::filesystem::path path);
  ArchiveReader(const ArchiveReader&) = delete;
  ArchiveReader& operator=(const ArchiveReader&) = delete;
  ~ArchiveReader();

  /// The next file, to be read before the next call; nullopt at the end. Folders are skipped.
  /// Throws ConfigError if the file is no archive, if the archive is damaged, and at links and
  /// devices; DeviceError if reading fails.
  [[nodiscard]] std::optional<Member> next();

 private:
  class Archive;
  class MemberSource;

  [[nodiscard]] ConfigError error(std::string_view message) const;

  std::filesystem::path path_;
  std::unique_ptr<Archive> archive_;
};

/// Whether the file is an archive, by its name (.tar, .tar.gz, .tgz, .tar.zst, .zip) or else by its
/// first bytes. Throws like ByteReader.
[[nodiscard]] bool is_archive(const std::filesystem::path& path);

/// Reads the rest of a member. Throws ConfigError that names archive and member if its data are
/// damaged, DeviceError if reading fails.
[[nodiscard]] std::string read_all(ByteReader& member);

}  // namespace kvtier
