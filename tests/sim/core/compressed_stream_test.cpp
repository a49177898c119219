#include "sim/core/compressed_stream.hpp"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tests/traces/support.hpp"

namespace kvtier {
namespace {

using testing::bytes_of;
using testing::config_error_of;
using testing::TempDir;

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  LineReader reader(path);
  std::vector<std::string> lines;
  std::string_view line;
  while (reader.next(line)) {
    lines.emplace_back(line);
  }
  return lines;
}

/// Text that compresses badly enough to fill many buffers.
std::string long_text() {
  std::string text;
  unsigned state = 1;
  for (int i = 0; i < 60000; ++i) {
    state = state * 1664525U + 1013904223U;
    text += std::to_string(state) + "\n";
  }
  return text;
}

class EverySuffix : public ::testing::TestWithParam<const char*> {};

TEST_P(EverySuffix, ReadsBackItsOutput) {
  const TempDir dir;
  const std::string text = long_text();
  const auto path = dir.compressed(std::string("text") + GetParam(), text);
  std::string read;
  for (const std::string& line : lines_of(path)) {
    read += line + "\n";
  }
  EXPECT_TRUE(read == text);
}

TEST_P(EverySuffix, WritesTheSameBytesForTheSameText) {
  const TempDir dir;
  const auto first = dir.compressed(std::string("first") + GetParam(), "some text\n");
  const auto second = dir.compressed(std::string("second") + GetParam(), "some text\n");
  EXPECT_EQ(bytes_of(first), bytes_of(second));
}

TEST_P(EverySuffix, LeavesNothingBehindWithoutCommit) {
  const TempDir dir;
  {
    CompressedWriter writer(dir.path() / (std::string("text") + GetParam()));
    writer.write("some text\n");
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST_P(EverySuffix, ReadsConcatenatedFiles) {
  const TempDir dir;
  const std::string suffix = GetParam();
  const std::string joined = bytes_of(dir.compressed("a" + suffix, "1\n2\n")) +
                             bytes_of(dir.compressed("b" + suffix, "3\n"));
  EXPECT_EQ(lines_of(dir.file("joined", joined)), (std::vector<std::string>{"1", "2", "3"}));
}

TEST_P(EverySuffix, AnEmptyTextHasNoLines) {
  const TempDir dir;
  EXPECT_TRUE(lines_of(dir.compressed(std::string("text") + GetParam(), "")).empty());
}

INSTANTIATE_TEST_SUITE_P(Compressions, EverySuffix, ::testing::Values(".txt", ".gz", ".zst"));

TEST(LineReader, TellsCompressionByContentNotByName) {
  const TempDir dir;
  const std::string packed = bytes_of(dir.compressed("text.gz", "one\n"));
  EXPECT_EQ(lines_of(dir.file("text.csv", packed)), (std::vector<std::string>{"one"}));
  EXPECT_EQ(lines_of(dir.file("plain.gz", "one\n")), (std::vector<std::string>{"one"}));
}

TEST(LineReader, AcceptsEveryLineEndAndAByteOrderMark) {
  const TempDir dir;
  EXPECT_EQ(lines_of(dir.file("text", "\xef\xbb\xbfone\r\n\ntwo\nthree")),
            (std::vector<std::string>{"one", "", "two", "three"}));
}

TEST(LineReader, SkipsAZstdSkippableFrame) {
  const TempDir dir;
  const std::string skippable("\x50\x2a\x4d\x18\x02\x00\x00\x00xy", 10);
  EXPECT_EQ(
      lines_of(dir.file("text.zst", skippable + bytes_of(dir.compressed("packed.zst", "one\n")))),
      (std::vector<std::string>{"one"}));
}

TEST(LineReader, GivesTheWholeLinesBeforeATruncationThenFails) {
  const TempDir dir;
  for (const std::string suffix : {".gz", ".zst"}) {
    const std::string packed = bytes_of(dir.compressed("whole" + suffix, long_text()));
    const auto cut = dir.file("cut" + suffix, packed.substr(0, packed.size() - 3));
    LineReader reader(cut);
    std::string_view line;
    const std::string error = config_error_of(dir, [&] {
      while (reader.next(line)) {
      }
    });
    EXPECT_FALSE(reader.next(line)) << suffix;
    EXPECT_GT(reader.line_number(), 1) << suffix;
    EXPECT_EQ(error, "cut" + suffix + ":" + std::to_string(reader.line_number()) + ": the " +
                         (suffix == ".gz" ? "gzip" : "zstd") + " data are truncated");
  }
}

TEST(LineReader, ReportsCorruptData) {
  const TempDir dir;
  for (const std::string suffix : {".gz", ".zst"}) {
    std::string packed = bytes_of(dir.compressed("whole" + suffix, long_text()));
    packed[packed.size() - 6] = static_cast<char>(packed[packed.size() - 6] ^ 0x55);
    const auto bad = dir.file("bad" + suffix, packed);
    const std::string error = config_error_of(dir, [&] { static_cast<void>(lines_of(bad)); });
    EXPECT_NE(error.find("data are corrupt ("), std::string::npos) << error;
  }
}

TEST(LineReader, ReportsBytesAfterTheCompressedData) {
  const TempDir dir;
  const auto bad = dir.file("bad.gz", bytes_of(dir.compressed("whole.gz", "one\n")) + "rubbish");
  EXPECT_EQ(config_error_of(dir, [&] { static_cast<void>(lines_of(bad)); }),
            "bad.gz:2: the gzip data are corrupt (incorrect header check)");
}

TEST(LineReader, RefusesMissingFilesAndFolders) {
  const TempDir dir;
  EXPECT_EQ(config_error_of(dir, [&] { LineReader reader(dir.path() / "absent.csv"); }),
            "absent.csv: no such file");
  std::filesystem::create_directory(dir.path() / "folder");
  EXPECT_EQ(config_error_of(dir, [&] { LineReader reader(dir.path() / "folder"); }),
            "folder: expected a file, got a folder");
}

TEST(LineReader, RefusesALineWithoutEnd) {
  const TempDir dir;
  CompressedWriter writer(dir.path() / "endless.zst");
  const std::string piece(std::size_t{1} << 20, 'x');
  writer.write("one\n");
  for (std::size_t written = 0; written <= LineReader::kLineBytesMax; written += piece.size()) {
    writer.write(piece);
  }
  writer.commit();
  EXPECT_EQ(config_error_of(dir, [&] { static_cast<void>(lines_of(dir.path() / "endless.zst")); }),
            "endless.zst:2: a line is longer than 64 MiB");
}

TEST(CompressedWriter, ReportsAMissingFolder) {
  const TempDir dir;
  EXPECT_THROW(CompressedWriter(dir.path() / "absent" / "text.gz"), DeviceError);
}

}  // namespace
}  // namespace kvtier
