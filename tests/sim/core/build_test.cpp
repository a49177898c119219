#include "sim/core/build.hpp"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "sim/core/file.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

TEST(Results, BeginWithTheirFormatAndTheirBuild) {
  const Json result = new_result("kvtier.test/1");
  EXPECT_EQ(json_text(result),
            json_text(Json{{"format", "kvtier.test/1"},
                           {"build", {{"version", build_version()}, {"commit", build_commit()}}}}));
  EXPECT_STRNE(build_version(), "");
  EXPECT_STRNE(build_commit(), "");
}

/// A folder of sources, of which each build looks up the commit.
class Commits : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("git --version >/dev/null 2>&1") != 0) {
      GTEST_SKIP() << "there is no git";
    }
    std::string name = (fs::temp_directory_path() / "kvtier_build_test_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    fs::create_directory(folder_ / "sources");
    write_text_output((folder_ / "sources" / "file").string(), "1");
  }
  void TearDown() override { fs::remove_all(folder_); }

  void git(const std::string& arguments) const {
    const std::string command = "cd '" + (folder_ / "sources").string() +
                                "' && git -c user.name=n -c user.email=e -c commit.gpgsign=false "
                                "-c init.defaultBranch=main " +
                                arguments + " >/dev/null 2>&1";
    ASSERT_EQ(std::system(command.c_str()), 0) << arguments;
  }
  [[nodiscard]] std::string source() const {
    const std::string command =
        std::string(KVTIER_CMAKE) + " '-DSOURCE=" + (folder_ / "sources").string() +
        "' '-DOUTPUT=" + (folder_ / "commit.cpp").string() +
        "' -P '" KVTIER_SOURCE_DIR "/sim/core/commit.cmake' >/dev/null 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0);
    return read_text_file(folder_ / "commit.cpp");
  }
  [[nodiscard]] std::string commit() const {
    std::string text = read_text_file(folder_ / "sources" / ".git" / "refs" / "heads" / "main");
    text.pop_back();
    return text;
  }
  static std::string line(const std::string& commit) {
    return "namespace kvtier {\nconst char* build_commit();\nconst char* build_commit() { return "
           "\"" +
           commit + "\"; }\n}  // namespace kvtier\n";
  }

  fs::path folder_;
};

TEST_F(Commits, AreUnknownOutsideOfARepository) { EXPECT_EQ(source(), line("unknown")); }

TEST_F(Commits, AreNotTakenFromARepositoryAround) {
  git("init");
  git("add file");
  git("commit -m one");
  fs::rename(folder_ / "sources" / ".git", folder_ / ".git");
  EXPECT_EQ(source(), line("unknown"));
}

TEST_F(Commits, AreThoseOfTheSources) {
  git("init");
  git("add file");
  git("commit -m one");
  const std::string first = commit();
  EXPECT_EQ(source(), line(first));
  write_text_output((folder_ / "sources" / "file").string(), "changed");
  EXPECT_EQ(source(), line(first + "-dirty"));
  git("commit -a -m two");
  EXPECT_NE(commit(), first);
  EXPECT_EQ(source(), line(commit()));
}

TEST_F(Commits, LeaveAnUnchangedFileAlone) {
  git("init");
  git("add file");
  git("commit -m one");
  static_cast<void>(source());
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(folder_ / "commit.cpp", long_ago);
  static_cast<void>(source());
  EXPECT_EQ(fs::last_write_time(folder_ / "commit.cpp"), long_ago);
}

}  // namespace
}  // namespace kvtier
