/// README.md: every command in it runs, every config in it resolves, and every output in it is what
/// the program prints.

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/documents.hpp"
#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;

const fs::path kReadme = fs::path(KVTIER_SOURCE_DIR) / "README.md";

class Readme : public ProgramTest {
 protected:
  /// The commands of README start in the repository's root and write beside it: here they start in
  /// the test's folder, which has a link to what they read.
  Readme() {
    fs::create_directory_symlink(fs::path(KVTIER_SOURCE_DIR) / "configs", path("configs"));
  }

  /// Arguments of a line that calls kvtier; empty for another command.
  static std::vector<std::string> arguments_of(const std::string& line) {
    std::vector<std::string> words = split_words(line);
    if (words.empty() || (words.front() != "kvtier" && words.front() != kProgram)) {
      return {};
    }
    words.erase(words.begin());
    return words;
  }

  static constexpr const char* kProgram = "build/release/bin/kvtier";
};

TEST_F(Readme, CommandsRun) {
  int commands = 0;
  for (const Block& block : fenced_blocks(read_file(kReadme))) {
    if (!block.file.empty()) {
      write(block.file, block.text);
    }
    if (block.language != "sh") {
      continue;
    }
    std::string text = block.text;
    for (std::size_t at = 0; (at = text.find("\\\n", at)) != std::string::npos;) {
      text.replace(at, 2, " ");
    }
    std::size_t begin = 0;
    while (begin < text.size()) {
      const std::size_t end = text.find('\n', begin);
      const std::string line = text.substr(begin, end - begin);
      begin = end + 1;
      const std::vector<std::string> arguments = arguments_of(line);
      if (arguments.empty()) {
        const std::vector<std::string> words = split_words(line);
        EXPECT_TRUE(words.empty() || words.front() == "make")
            << "README.md has a command that no test runs: " << line;
        continue;
      }
      ++commands;
      const Outcome outcome = kvtier(arguments);
      EXPECT_EQ(outcome.code, 0) << line << "\n" << outcome.err;
    }
  }
  EXPECT_GT(commands, 8);
}

TEST_F(Readme, ConfigsResolve) {
  int resolved = 0;
  for (const Block& block : fenced_blocks(read_file(kReadme))) {
    if (block.text.find("\"model\"") == std::string::npos || block.language != "json") {
      continue;
    }
    ++resolved;
    write("config.json", block.text);
    const Outcome outcome = kvtier({"simulate", "config.json", "--print-config"});
    EXPECT_EQ(outcome.code, 0) << block.text << outcome.err;
  }
  EXPECT_GT(resolved, 0);
}

TEST_F(Readme, OutputsAreWhatTheProgramPrints) {
  std::string readme = read_file(kReadme);
  const int outputs =
      replace_outputs(readme, [this](const std::string& command, std::string& output) {
        const std::vector<std::string> arguments = arguments_of(command);
        ASSERT_FALSE(arguments.empty()) << command;
        const Outcome outcome = kvtier(arguments);
        // A failed check is a result to show, too.
        const int expected = outcome.out.find("OUT\n") == std::string::npos ? 0 : 1;
        ASSERT_EQ(outcome.code, expected) << command << "\n" << outcome.err;
        output = outcome.out;
      });
  if (HasFatalFailure()) {
    return;
  }
  EXPECT_GT(outputs, 0);
  expect_file_holds(kReadme, readme);
}

}  // namespace
}  // namespace kvtier::test
