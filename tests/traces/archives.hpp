#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/traces/support.hpp"

/// Archives for tests.
namespace kvtier::testing {

using Files = std::vector<std::pair<std::string, std::string>>;

/// One file, folder ('5') or symbolic link ('2') in the format of POSIX 1003.1 (ustar).
inline std::string tar_entry(const std::string& name, const std::string& text, char type = '0') {
  std::string header(512, '\0');
  const auto put = [&](std::size_t at, const std::string& field) {
    header.replace(at, field.size(), field);
  };
  put(0, name);
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, fmt::format("{:011o}", text.size()));
  put(136, "00000000000");
  put(148, "        ");
  put(156, std::string(1, type));
  put(257, std::string("ustar\0"
                       "00",
                       8));
  unsigned sum = 0;
  for (const char c : header) {
    sum += static_cast<unsigned char>(c);
  }
  put(148, fmt::format("{:06o}", sum) + '\0');
  return header + text + std::string((512 - text.size() % 512) % 512, '\0');
}

inline const std::string kTarEnd(1024, '\0');

inline std::string tar_of(const Files& files) {
  std::string bytes;
  for (const auto& [name, text] : files) {
    bytes += tar_entry(name, text);
  }
  return bytes + kTarEnd;
}

inline std::filesystem::path write_zip(const TempDir& dir, const std::string& name,
                                       const Files& files) {
  const std::filesystem::path path = dir.path() / name;
  archive* const zip = archive_write_new();
  archive_write_set_format_zip(zip);
  EXPECT_EQ(archive_write_open_filename(zip, path.c_str()), ARCHIVE_OK);
  for (const auto& [file, text] : files) {
    archive_entry* const entry = archive_entry_new();
    archive_entry_set_pathname(entry, file.c_str());
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, static_cast<la_int64_t>(text.size()));
    EXPECT_EQ(archive_write_header(zip, entry), ARCHIVE_OK);
    EXPECT_EQ(archive_write_data(zip, text.data(), text.size()),
              static_cast<la_ssize_t>(text.size()));
    archive_entry_free(entry);
  }
  archive_write_free(zip);
  return path;
}

}  // namespace kvtier::testing
