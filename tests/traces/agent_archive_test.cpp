#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/traces/archives.hpp"
#include "tests/traces/support.hpp"
#include "traces/archive_reader.hpp"
#include "traces/block_trace.hpp"

/// Agent sessions from an archive.
namespace kvtier {
namespace {

using testing::config_error_of;
using testing::Files;
using testing::tar_of;
using testing::TempDir;
using testing::write_zip;

std::string session_file(int input) {
  std::vector<int> ids(static_cast<std::size_t>(input) / 4);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int>(i);
  }
  return fmt::format(
      R"({{"block_size": 4, "requests": [{{"t": 0, "in": {}, "out": 1, "hash_ids": [{}]}}]}})",
      input, fmt::join(ids, ", "));
}

const Files kFiles{{"s/b.json", session_file(8)},
                   {"s/notes.txt", "not read"},
                   {"s/._b.json", "not read"},
                   {"c.json", session_file(5)},
                   {"s/a.json", session_file(12)}};

/// The prompts of the sessions, in their order.
std::string prompts_of(const std::filesystem::path& path) {
  const auto source = open_trace(path, {});
  std::string text;
  for (const SessionSpec& session : testing::read_all(*source)) {
    text += fmt::format("{} ", session.contents.at(0).prompt.tokens.value);
  }
  return text;
}

TEST(AgentArchive, SessionsComeInTheOrderOfTheirNames) {
  const TempDir dir;
  for (const char* name : {"t.tar", "t.tar.gz", "t.tar.zst", "another.zst"}) {
    const auto path = dir.compressed(name, tar_of(kFiles));
    EXPECT_TRUE(is_archive(path));
    EXPECT_EQ(detect_format(path), TraceFormat::agent_sessions);
    EXPECT_EQ(prompts_of(path), "5 12 8 ") << name;
  }
  for (const char* name : {"t.zip", "another"}) {
    const auto path = write_zip(dir, name, kFiles);
    EXPECT_EQ(detect_format(path), TraceFormat::agent_sessions);
    EXPECT_EQ(prompts_of(path), "5 12 8 ") << name;
  }
  EXPECT_FALSE(is_archive(dir.file("t.jsonl", "{}")));
  EXPECT_FALSE(is_archive(dir.file("empty.jsonl", "")));
}

// "c.json" is before "s/a.json" and "s.json" before "s/...", as '.' is before '/'.
TEST(AgentArchive, AFolderIsReadLikeAnArchiveOfIt) {
  Files files = kFiles;
  files.push_back({"s.json", session_file(16)});
  files.push_back({"s/deep/er/a.json", session_file(20)});
  files.push_back({".hidden/a.json", "not read"});
  files.push_back({"s/.hidden/a.json.gz", "not read"});
  const TempDir dir;
  const std::filesystem::path folder = dir.path() / "folder";
  Files prefixed;
  for (const auto& [name, text] : files) {
    std::filesystem::create_directories((folder / name).parent_path());
    static_cast<void>(dir.file("folder/" + name, text));
    prefixed.emplace_back("./folder/" + name, text);
  }
  const std::string expected = "5 16 12 8 20 ";
  EXPECT_EQ(prompts_of(folder), expected);
  EXPECT_EQ(prompts_of(folder.string() + "/"), expected);
  EXPECT_EQ(prompts_of(dir.compressed("t.tar.gz", tar_of(files))), expected);
  EXPECT_EQ(prompts_of(dir.compressed("u.tar", tar_of(prefixed))), expected);
  EXPECT_EQ(prompts_of(write_zip(dir, "t.zip", files)), expected);
}

TEST(AgentArchive, RefusesCompressedMembersAndFiles) {
  const TempDir dir;
  std::filesystem::create_directories(dir.path() / "folder/s");
  static_cast<void>(dir.compressed("folder/s/a.json.gz", session_file(4)));
  const auto error = [&](const std::filesystem::path& path) {
    return config_error_of(dir, [&] { AgentTraceReader reader(path); });
  };
  const std::string expected =
      ": expected plain .json files of sessions; an archive may be compressed as a whole";
  EXPECT_EQ(error(dir.path() / "folder"), "folder/s/a.json.gz" + expected);
  EXPECT_EQ(error(dir.compressed("t.tar", tar_of({{"s/a.json.zst", ""}}))),
            "t.tar/s/a.json.zst" + expected);
  EXPECT_EQ(prompts_of(dir.path() / "folder/s/a.json.gz"), "4 ") << "one file may be compressed";
  std::filesystem::remove(dir.path() / "folder/s/a.json.gz");
  std::filesystem::create_directory_symlink("s", dir.path() / "folder/link");
  EXPECT_EQ(error(dir.path() / "folder"),
            "folder/link: expected a file or a folder, got a link to a folder");
}

TEST(AgentArchive, NamesTheMemberThatIsWrong) {
  const TempDir dir;
  const auto error = [&](const std::filesystem::path& path) {
    return config_error_of(dir, [&] { AgentTraceReader reader(path); });
  };
  EXPECT_EQ(error(dir.compressed("t.tar.gz", tar_of({{"s/a.json", "[]"}}))),
            "t.tar.gz/s/a.json: /requests: expected a list of requests");
  EXPECT_EQ(error(dir.compressed("t.tar", tar_of({{"a.json", "{}"}, {"a.json", "{}"}}))),
            "t.tar/a.json: the archive has this file twice");
  EXPECT_EQ(error(dir.compressed("t.tar", tar_of({{"notes.txt", ""}}))),
            "t.tar: the trace has no requests");
  EXPECT_EQ(
      error(dir.file("t.tar", "no archive, and long enough to be one" + std::string(1024, 'x'))),
      "t.tar: expected a tar or zip archive");
  EXPECT_EQ(error(dir.path() / "none.zip"), "none.zip: no such file");
}

TEST(AgentArchive, SaysThatItIsTruncated) {
  const TempDir dir;
  const Files files{{"s/a.json", session_file(400'000)}, {"s/b.json", session_file(40'000)}};
  const std::string tar = tar_of(files);
  const auto error_of = [&](const std::filesystem::path& path) {
    return config_error_of(dir, [&] { AgentTraceReader reader(path); });
  };
  const auto cut = [&](const std::string& name, const std::string& bytes, std::size_t size) {
    return error_of(dir.file(name, bytes.substr(0, size)));
  };
  // In a member, behind one, and without the archive's end.
  EXPECT_EQ(cut("t.tar", tar, 20'000).substr(0, 16), "t.tar/s/a.json: ");
  EXPECT_EQ(cut("t.tar", tar, tar.size() - 30'000).substr(0, 16), "t.tar/s/b.json: ");
  EXPECT_EQ(cut("t.tar", tar, tar.size() - 1024), "t.tar: the archive is truncated");
  for (const auto& [name, data] : {std::pair("t.tar.gz", "gzip"), std::pair("t.tar.zst", "zstd")}) {
    const std::string packed = testing::bytes_of(dir.compressed(name, tar));
    const std::string error = cut(name, packed, packed.size() / 3);
    EXPECT_EQ(error.find(std::string(name) + "/s/a.json: "), 0U) << error;
    EXPECT_NE(error.find(fmt::format("the {} data are truncated", data)), std::string::npos)
        << error;
  }
  const std::string zip = testing::bytes_of(write_zip(dir, "t.zip", files));
  EXPECT_EQ(cut("t.zip", zip, zip.size() / 2).substr(0, 7), "t.zip: ");
}

}  // namespace
}  // namespace kvtier
