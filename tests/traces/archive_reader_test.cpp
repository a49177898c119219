#include "traces/archive_reader.hpp"

#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/traces/archives.hpp"
#include "tests/traces/support.hpp"

namespace kvtier {
namespace {

using testing::bytes_of;
using testing::config_error_of;
using testing::Files;
using testing::kTarEnd;
using testing::tar_entry;
using testing::tar_of;
using testing::TempDir;
using testing::write_zip;

Files files_of(const std::filesystem::path& path) {
  ArchiveReader archive(path);
  Files files;
  while (std::optional<ArchiveReader::Member> member = archive.next()) {
    std::string text;
    LineReader lines(std::move(member->bytes));
    std::string_view line;
    while (lines.next(line)) {
      text += std::string(line) + "\n";
    }
    files.emplace_back(member->name, text);
  }
  return files;
}

std::string error_of(const TempDir& dir, const std::filesystem::path& path) {
  return config_error_of(dir, [&] { static_cast<void>(files_of(path)); });
}

/// Longer than any buffer.
std::string long_text() {
  std::string text;
  unsigned state = 1;
  for (int i = 0; i < 30000; ++i) {
    state = state * 1664525U + 1013904223U;
    text += std::to_string(state) + "\n";
  }
  return text;
}

const Files kFiles{{"b.json", "{}\n"}, {"a/long.json", long_text()}, {"a/0.json", "1\n2\n"}};

TEST(ArchiveReader, GivesTheFilesInTheOrderOfTheArchive) {
  const TempDir dir;
  for (const char* name : {"t.tar", "t.tar.gz", "t.tar.zst"}) {
    EXPECT_TRUE(files_of(dir.compressed(name, tar_of(kFiles))) == kFiles) << name;
  }
  EXPECT_TRUE(files_of(write_zip(dir, "t.zip", kFiles)) == kFiles);
}

TEST(ArchiveReader, TextsOfMembersTakeTheirSizeInMemory) {
  const TempDir dir;
  ArchiveReader archive(dir.compressed("t.tar.gz", tar_of(kFiles)));
  for (const auto& [name, text] : kFiles) {
    const std::string read = read_all(archive.next()->bytes);
    EXPECT_TRUE(read == text) << name;
    EXPECT_LE(read.capacity(), text.size() + 16) << name;
  }
}

TEST(ArchiveReader, SkipsWhatIsNotReadOfAMember) {
  const TempDir dir;
  ArchiveReader archive(dir.compressed("t.tar.gz", tar_of(kFiles)));
  for (const auto& [name, text] : kFiles) {
    std::optional<ArchiveReader::Member> member = archive.next();
    ASSERT_TRUE(member);
    EXPECT_EQ(member->name, name);
    std::array<char, 1> first{};
    EXPECT_EQ(member->bytes.read(first), 1U);
    EXPECT_EQ(first[0], text[0]);
  }
  EXPECT_FALSE(archive.next());
  EXPECT_FALSE(archive.next());
}

TEST(ArchiveReader, AnEmptyArchiveHasNoFiles) {
  const TempDir dir;
  EXPECT_TRUE(files_of(dir.file("t.tar", kTarEnd)).empty());
  EXPECT_TRUE(files_of(dir.compressed("t.tar.gz", kTarEnd)).empty());
  EXPECT_TRUE(files_of(write_zip(dir, "t.zip", {})).empty());
}

TEST(ArchiveReader, GivesNamesAsTheArchiveHasThem) {
  const TempDir dir;
  const std::vector<std::string> names{"/etc/x.json", "../up.json", "a b/\xc3\xa4.json",
                                       "latin/\xe4.json"};
  Files files;
  for (const std::string& name : names) {
    files.emplace_back(name, "1\n");
  }
  EXPECT_EQ(files_of(dir.file("t.tar", tar_of(files))), files);
  EXPECT_EQ(files_of(dir.file("dot.tar", tar_of({{"./x.json", "1\n"}}))),
            (Files{{"x.json", "1\n"}}));
}

TEST(ArchiveReader, SkipsFoldersAndRefusesLinks) {
  const TempDir dir;
  const std::string folder = tar_entry("a/", "", '5');
  EXPECT_EQ(files_of(dir.file("t.tar", folder + tar_of({{"a/x.json", "1\n"}}))),
            (Files{{"a/x.json", "1\n"}}));
  EXPECT_EQ(error_of(dir, dir.file("l.tar", tar_entry("a/x.json", "", '2') + kTarEnd)),
            "l.tar/a/x.json: expected a file, got a link or a device");
}

TEST(ArchiveReader, ReadsArchivesThatWereJoined) {
  const TempDir dir;
  const std::string joined = tar_of({{"a", "1\n"}}) + tar_of({{"b", "2\n"}});
  EXPECT_EQ(files_of(dir.file("t.tar", joined)), (Files{{"a", "1\n"}, {"b", "2\n"}}));
}

TEST(ArchiveReader, ReportsATruncatedArchive) {
  const TempDir dir;
  const std::string one = tar_entry("a.json", "1\n");
  const std::string two = tar_entry("b.json", "1\n2\n3\n");
  // Inside a member, whose file and line are named; inside a header; and between two members.
  EXPECT_EQ(error_of(dir, dir.file("t.tar", (one + two).substr(0, one.size() + 512 + 3))),
            "t.tar/b.json:1: the archive is damaged (Truncated tar archive)");
  EXPECT_EQ(error_of(dir, dir.file("t.tar", (one + two).substr(0, one.size() + 100))),
            "t.tar: the archive is damaged (Truncated tar archive)");
  EXPECT_EQ(error_of(dir, dir.file("t.tar", one)), "t.tar: the archive is truncated");
  EXPECT_EQ(error_of(dir, dir.file("t.tar", "")), "t.tar: the file is empty");
  const std::string zip = bytes_of(write_zip(dir, "whole.zip", kFiles));
  EXPECT_EQ(error_of(dir, dir.file("t.zip", zip.substr(0, zip.size() - 30))),
            "t.zip: expected a tar or zip archive");
}

TEST(ArchiveReader, ReportsDamageOfTheCompressedData) {
  const TempDir dir;
  for (const std::string suffix : {"gz", "zst"}) {
    const std::string packed = bytes_of(dir.compressed("whole.tar." + suffix, tar_of(kFiles)));
    const std::string format = suffix == "gz" ? "gzip" : "zstd";
    EXPECT_EQ(error_of(dir, dir.file("t.tar", packed.substr(0, packed.size() - 3))),
              "t.tar: the " + format + " data are truncated");
    std::string wrong = packed;
    wrong[wrong.size() - 1] = static_cast<char>(wrong[wrong.size() - 1] ^ 0x55);
    EXPECT_NE(error_of(dir, dir.file("t.tar", wrong)).find("data are corrupt ("),
              std::string::npos);
  }
}

TEST(ArchiveReader, ReportsDamageOfAFileInAZipArchive) {
  const TempDir dir;
  std::string zip = bytes_of(write_zip(dir, "whole.zip", kFiles));
  zip[3000] = static_cast<char>(zip[3000] ^ 0x55);
  EXPECT_NE(error_of(dir, dir.file("t.zip", zip)).find("t.zip/a/long.json:"), std::string::npos);
}

TEST(ArchiveReader, RefusesOtherFiles) {
  const TempDir dir;
  EXPECT_EQ(error_of(dir, dir.file("t.tar", "{\"a\": 1}\n")),
            "t.tar: expected a tar or zip archive");
  EXPECT_EQ(error_of(dir, dir.compressed("t.tar.gz", "{\"a\": 1}\n")),
            "t.tar.gz: expected a tar or zip archive");
  EXPECT_EQ(error_of(dir, dir.path() / "absent.tar"), "absent.tar: no such file");
}

}  // namespace
}  // namespace kvtier
