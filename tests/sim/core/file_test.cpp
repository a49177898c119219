#include "sim/core/file.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

/// A folder of its own for each test.
class Files : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "kvtier_file_test_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    std::error_code ignored;
    fs::permissions(folder_, fs::perms::owner_all, ignored);
    fs::remove_all(folder_, ignored);
  }

  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      found.push_back(entry.path().filename().string());
    }
    return found;
  }

  fs::path folder_;
};
using AtomicFiles = Files;
using ReadTextFile = Files;
using WriteTextOutput = Files;

template <class Error>
std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

using Names = std::vector<std::string>;

TEST_F(AtomicFiles, AppearUnderTheirNameOnCommit) {
  const fs::path path = folder_ / "result.json";
  AtomicFile file(path);
  file.write("{\"a\": ");
  file.write("1}\n");
  EXPECT_FALSE(fs::exists(path));
  file.commit();
  EXPECT_EQ(names(), Names{"result.json"});
  EXPECT_EQ(read_text_file(path), "{\"a\": 1}\n");
}

TEST_F(AtomicFiles, ChangeLinesThatWereWritten) {
  const fs::path path = folder_ / "rows.csv";
  AtomicFile file(path);
  file.write("a,1\n\nb,1\n");
  std::vector<std::string> seen;
  file.change_lines([&](std::string& line) {
    seen.push_back(line);
    if (line == "b,1") {
      line = "b,0";
    }
  });
  file.write("c,1\n");
  file.commit();
  EXPECT_EQ(seen, (std::vector<std::string>{"a,1", "", "b,1"}));
  EXPECT_EQ(read_text_file(path), "a,1\n\nb,0\nc,1\n");
}

TEST_F(AtomicFiles, LeaveNothingBehindWithoutCommit) {
  {
    AtomicFile file(folder_ / "result.json");
    file.write(std::string(1 << 20, 'x'));
  }
  EXPECT_EQ(names(), Names{});
}

TEST_F(AtomicFiles, KeepTheOldFileUntilCommit) {
  const fs::path path = folder_ / "result.json";
  write_text_output(path.string(), "old");
  {
    AtomicFile file(path);
    file.write("new");
  }
  EXPECT_EQ(read_text_file(path), "old");
  write_text_output(path.string(), "new");
  EXPECT_EQ(read_text_file(path), "new");
  EXPECT_EQ(names(), Names{"result.json"});
}

TEST_F(AtomicFiles, MayBeEmpty) {
  AtomicFile(folder_ / "empty").commit();
  EXPECT_EQ(read_text_file(folder_ / "empty"), "");
}

TEST_F(AtomicFiles, RefuseAFolderThatDoesNotExist) {
  const fs::path path = folder_ / "missing" / "result.json";
  EXPECT_EQ(message_of<DeviceError>([&] { AtomicFile file(path); }),
            path.string() + ": cannot write: No such file or directory");
}

TEST_F(AtomicFiles, RefuseAFolderThatIsAFile) {
  write_text_output((folder_ / "file").string(), "");
  const fs::path path = folder_ / "file" / "result.json";
  EXPECT_EQ(message_of<DeviceError>([&] { AtomicFile file(path); }),
            path.string() + ": cannot write: Not a directory");
}

TEST_F(AtomicFiles, RefuseAFolderWithoutPermission) {
  if (::geteuid() == 0) {
    GTEST_SKIP() << "permissions do not bind root";
  }
  fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec);
  const fs::path path = folder_ / "result.json";
  EXPECT_EQ(message_of<DeviceError>([&] { AtomicFile file(path); }),
            path.string() + ": cannot write: Permission denied");
}

TEST_F(AtomicFiles, DoNotReplaceAFolder) {
  const fs::path path = folder_ / "result.json";
  fs::create_directory(path);
  AtomicFile file(path);
  file.write("text");
  EXPECT_EQ(message_of<DeviceError>([&] { file.commit(); }),
            path.string() + ": cannot rename into place: Is a directory");
  EXPECT_EQ(names(), Names{"result.json"});
  EXPECT_TRUE(fs::is_directory(path));
}

TEST_F(AtomicFiles, TwoWritersDoNotMix) {
  const fs::path path = folder_ / "result.json";
  AtomicFile first(path);
  AtomicFile second(path);  // such as one in another container, with the same process id
  first.write(std::string(200'000, 'a'));
  second.write(std::string(100'000, 'b'));
  first.write(std::string(200'000, 'a'));
  second.commit();
  EXPECT_EQ(read_text_file(path), std::string(100'000, 'b'));
  first.commit();
  EXPECT_EQ(read_text_file(path), std::string(400'000, 'a'));
  EXPECT_EQ(names(), Names{"result.json"});
}

TEST_F(AtomicFiles, DoNotFollowALinkThatWasLaidUnderAGuessedName) {
  const fs::path path = folder_ / "result.json";
  write_text_output((folder_ / "victim").string(), "precious");
  fs::create_symlink("victim", path.string() + ".tmp" + std::to_string(::getpid()));
  write_text_output(path.string(), "new");
  EXPECT_EQ(read_text_file(folder_ / "victim"), "precious");
  EXPECT_EQ(read_text_file(path), "new");
  EXPECT_FALSE(fs::is_symlink(path));
}

fs::perms mode_of(const fs::path& path) { return fs::status(path).permissions(); }

TEST_F(AtomicFiles, KeepTheModeOfTheFileThatTheyReplace) {
  const fs::path path = folder_ / "result.json";
  for (const unsigned mode : {0600U, 0640U, 0666U, 0755U}) {
    write_text_output(path.string(), "old");
    fs::permissions(path, fs::perms(mode));
    write_text_output(path.string(), "new");
    EXPECT_EQ(mode_of(path), fs::perms(mode));
    fs::remove(path);
  }
}

TEST_F(AtomicFiles, GetTheModeOfAnyNewFile) {
  for (const mode_t mask : {mode_t{022}, mode_t{077}, mode_t{0}}) {
    const mode_t before = ::umask(mask);
    write_text_output((folder_ / std::to_string(mask)).string(), "");
    ::umask(before);
    EXPECT_EQ(mode_of(folder_ / std::to_string(mask)), fs::perms(0666U & ~mask));
  }
}

TEST_F(AtomicFiles, AreWrittenThroughLinks) {
  fs::create_directory(folder_ / "real");
  write_text_output((folder_ / "real" / "file").string(), "old");
  fs::create_symlink("real/link", folder_ / "first");
  fs::create_symlink("file", folder_ / "real" / "link");
  write_text_output((folder_ / "first").string(), "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "first"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "real" / "link"));
  EXPECT_FALSE(fs::is_symlink(folder_ / "real" / "file"));
  EXPECT_EQ(read_text_file(folder_ / "real" / "file"), "new");
}

TEST_F(AtomicFiles, MakeTheFileThatALinkLeadsTo) {
  fs::create_symlink("target", folder_ / "link");
  write_text_output((folder_ / "link").string(), "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_text_file(folder_ / "target"), "new");
}

TEST_F(AtomicFiles, RefuseALinkThatLeadsToItself) {
  const fs::path path = folder_ / "loop";
  fs::create_symlink("loop", path);
  EXPECT_EQ(message_of<DeviceError>([&] { AtomicFile file(path); }),
            path.string() + ": cannot write: Too many levels of symbolic links");
}

TEST_F(AtomicFiles, DoNotReplaceADevice) {
  const fs::path path = folder_ / "link";
  fs::create_symlink("/dev/null", path);
  EXPECT_EQ(message_of<DeviceError>([&] { AtomicFile file(path); }),
            path.string() + ": cannot write: not a regular file");
}

TEST_F(AtomicFiles, RemoveTemporaryFilesOfKilledProcesses) {
  const std::string path = (folder_ / "a.json").string();
  const auto leave = [](const std::string& name) {
    return ::open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  };
  ::close(leave(path + ".kvtier-tmp-killed"));
  ::close(leave(path + ".kvtier-tmp-too_long"));
  ::close(leave((folder_ / "b.json.kvtier-tmp-others").string()));
  fs::create_symlink("nowhere", path + ".kvtier-tmp-linked");
  const int running = leave(path + ".kvtier-tmp-locked");
  ASSERT_EQ(::flock(running, LOCK_EX | LOCK_NB), 0);
  write_text_output(path, "new");
  ::close(running);
  Names found = names();
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, (Names{"a.json", "a.json.kvtier-tmp-linked", "a.json.kvtier-tmp-locked",
                          "a.json.kvtier-tmp-too_long", "b.json.kvtier-tmp-others"}));
}

TEST_F(AtomicFiles, HoldTheirLockForAsLongAsTheirTemporaryNameIsThere) {
  AtomicFile file(folder_ / "a.json");
  ASSERT_EQ(names().size(), 1U);
  const std::string temporary = names().front();
  EXPECT_TRUE(temporary.starts_with("a.json.kvtier-tmp-")) << temporary;
  remove_leftovers(folder_ / "a.json");
  EXPECT_EQ(names(), Names{temporary});
  file.write("text");
  file.commit();
  EXPECT_EQ(read_text_file(folder_ / "a.json"), "text");
}

/// No file may become larger than a few bytes, as on a disk that is full.
class FullDisk : public Files {
 protected:
  void SetUp() override {
    Files::SetUp();
    signal_ = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit small{10, before_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  void TearDown() override {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_);
    Files::TearDown();
  }
  [[nodiscard]] fs::path path() const { return folder_ / "result.json"; }

 private:
  rlimit before_{};
  void (*signal_)(int) = SIG_DFL;
};

TEST_F(FullDisk, IsReportedByCommitAndLeavesNothingBehind) {
  EXPECT_EQ(message_of<DeviceError>([&] {
              AtomicFile file(path());
              file.write("little enough to be buffered");
              file.commit();
            }),
            path().string() + ": cannot write: File too large");
  EXPECT_EQ(names(), Names{});
}

TEST_F(FullDisk, IsReportedByALargeWriteAndLeavesNothingBehind) {
  EXPECT_EQ(message_of<DeviceError>(
                [&] { write_text_output(path().string(), std::string(1 << 22, 'x')); }),
            path().string() + ": cannot write: File too large");
  EXPECT_EQ(names(), Names{});
}

TEST_F(Files, AreLookedUpByTheirType) {
  write_text_output((folder_ / "file").string(), "x");
  fs::create_directory(folder_ / "folder");
  EXPECT_TRUE(is_file(folder_ / "file") && path_exists(folder_ / "file"));
  EXPECT_FALSE(is_folder(folder_ / "file"));
  EXPECT_TRUE(is_folder(folder_ / "folder") && path_exists(folder_ / "folder"));
  EXPECT_FALSE(is_file(folder_ / "folder"));
  for (const char* missing : {"missing", "file/below"}) {
    EXPECT_FALSE(is_file(folder_ / missing) || is_folder(folder_ / missing) ||
                 path_exists(folder_ / missing));
  }
  EXPECT_EQ(folder_entries(folder_), (std::vector<fs::path>{folder_ / "file", folder_ / "folder"}));
  EXPECT_TRUE(folder_entries(folder_ / "missing").empty());
}

TEST_F(Files, ThatCannotBeLookedUpAreNotMissing) {
  const fs::path path = folder_ / "loop";
  fs::create_symlink(path, path);
  const std::string expected = path.string() + ": cannot open: Too many levels of symbolic links";
  EXPECT_EQ(message_of<DeviceError>([&] { static_cast<void>(is_file(path)); }), expected);
  EXPECT_EQ(message_of<DeviceError>([&] { static_cast<void>(is_folder(path)); }), expected);
  EXPECT_EQ(message_of<DeviceError>([&] { static_cast<void>(path_exists(path)); }), expected);
  EXPECT_EQ(message_of<DeviceError>([&] { static_cast<void>(folder_entries(path)); }),
            path.string() + ": cannot read: Too many levels of symbolic links");
}

TEST_F(ReadTextFile, ReadsEveryByte) {
  // More than one buffer of 64 KiB, with zero bytes and both line ends.
  std::string text;
  for (int i = 0; i < 200'000; ++i) {
    text += static_cast<char>(i % 251);
  }
  text += "\r\n";
  write_text_output((folder_ / "bytes").string(), text);
  EXPECT_TRUE(read_text_file(folder_ / "bytes") == text);
}

TEST_F(ReadTextFile, RefusesAMissingFile) {
  const fs::path path = folder_ / "missing.json";
  EXPECT_EQ(message_of<ConfigError>([&] { static_cast<void>(read_text_file(path)); }),
            path.string() + ": no such file");
  const fs::path below = folder_ / "missing" / "a.json";
  EXPECT_EQ(message_of<ConfigError>([&] { static_cast<void>(read_text_file(below)); }),
            below.string() + ": no such file");
}

TEST_F(ReadTextFile, RefusesAPathBelowAFile) {
  write_text_output((folder_ / "file").string(), "");
  const fs::path path = folder_ / "file" / "a.json";
  EXPECT_EQ(message_of<ConfigError>([&] { static_cast<void>(read_text_file(path)); }),
            path.string() + ": no such file");
}

TEST_F(ReadTextFile, RefusesAFolder) {
  EXPECT_EQ(message_of<ConfigError>([&] { static_cast<void>(read_text_file(folder_)); }),
            folder_.string() + ": expected a file, got a folder");
}

TEST_F(ReadTextFile, RefusesANameThatNoFileCanHave) {
  const fs::path path = folder_ / std::string(5'000, 'x');
  EXPECT_EQ(message_of<ConfigError>([&] { static_cast<void>(read_text_file(path)); }),
            path.string() + ": no such file");
}

TEST_F(ReadTextFile, ReportsALinkThatLeadsToItself) {
  const fs::path path = folder_ / "loop";
  fs::create_symlink(path, path);
  EXPECT_EQ(message_of<DeviceError>([&] { static_cast<void>(read_text_file(path)); }),
            path.string() + ": cannot open: Too many levels of symbolic links");
}

TEST_F(ReadTextFile, ReportsMissingPermission) {
  if (::geteuid() == 0) {
    GTEST_SKIP() << "permissions do not bind root";
  }
  const fs::path path = folder_ / "secret";
  write_text_output(path.string(), "x");
  fs::permissions(path, fs::perms::none);
  EXPECT_EQ(message_of<DeviceError>([&] { static_cast<void>(read_text_file(path)); }),
            path.string() + ": cannot open: Permission denied");
}

TEST_F(ReadTextFile, ReportsAFailingRead) {
  // The memory of a process starts with a page that cannot be read.
  const fs::path path = "/proc/self/mem";
  if (!fs::exists(path)) {
    GTEST_SKIP() << "there is no /proc/self/mem";
  }
  EXPECT_EQ(message_of<DeviceError>([&] { static_cast<void>(read_text_file(path)); }),
            "/proc/self/mem: cannot read: Input/output error");
}

TEST_F(WriteTextOutput, WritesAFile) {
  write_text_output((folder_ / "a.txt").string(), "text\n");
  EXPECT_EQ(read_text_file(folder_ / "a.txt"), "text\n");
}

TEST_F(WriteTextOutput, WritesStandardOutputForADash) {
  testing::internal::CaptureStdout();
  write_text_output("-", "to the terminal\n");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "to the terminal\n");
  EXPECT_EQ(names(), Names{});
}

TEST_F(WriteTextOutput, ReportsAFullStandardOutput) {
  if (!fs::is_character_file("/dev/full")) {
    GTEST_SKIP() << "there is no /dev/full";
  }
  // In a process of its own, since standard output is lost.
  EXPECT_EXIT(
      {
        ::dup2(::open("/dev/full", O_WRONLY), STDOUT_FILENO);
        std::fputs(message_of<DeviceError>([] { write_text_output("-", "text"); }).c_str(), stderr);
        std::_Exit(3);
      },
      testing::ExitedWithCode(3), "^standard output: No space left on device$");
}

}  // namespace
}  // namespace kvtier
