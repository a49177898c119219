/// README.md and other pages: every command in them runs, every config resolves, and every output
/// is what the program prints.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/study/report/report.hpp"
#include "tests/sim/cli/documents.hpp"
#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;

class Page : public ProgramTest, public testing::WithParamInterface<const char*> {
 protected:
  /// The commands of README start in the repository's root and write beside it: here they start in
  /// the test's folder, which has a link to what they read.
  Page() {
    for (const char* folder : {"configs", "sim"}) {
      fs::create_directory_symlink(fs::path(KVTIER_SOURCE_DIR) / folder, path(folder));
    }
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
  const fs::path page_ = fs::path(KVTIER_SOURCE_DIR) / GetParam();
};

/// The commands of a block, each on its line: of a shell, or of the steps of a workflow.
std::vector<std::string> commands_of(const Block& block) {
  std::string text = block.text;
  for (std::size_t at = 0; (at = text.find("\\\n", at)) != std::string::npos;) {
    text.replace(at, 2, " ");
  }
  std::vector<std::string> commands;
  const std::string step = "- run: ";
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    const std::string line = text.substr(begin, end - begin);
    const std::size_t at = line.find(step);
    if (block.language == "sh") {
      commands.push_back(line);
    } else if (block.language == "yaml" && at != std::string::npos) {
      commands.push_back(line.substr(at + step.size()));
    }
  }
  return commands;
}

TEST_P(Page, CommandsRun) {
  int commands = 0;
  for (const Block& block : fenced_blocks(read_file(page_))) {
    if (!block.file.empty()) {
      write(block.file, block.text);
    }
    for (const std::string& line : commands_of(block)) {
      const std::vector<std::string> arguments = arguments_of(line);
      if (line.starts_with("g++ ")) {
        const std::string in_folder = "cd '" + path("").string() + "' && " + line;
        EXPECT_EQ(std::system(in_folder.c_str()), 0) << line;
        continue;
      }
      if (arguments.empty()) {
        const std::vector<std::string> words = split_words(line);
        EXPECT_TRUE(words.empty() || words.front() == "make" || words.front() == "apt-get")
            << page_ << " has a command that no test runs: " << line;
        continue;
      }
      ++commands;
      if (arguments.front() == "report" && page_parts().chart_library.empty()) {
        continue;  // a program that was built without Chart.js
      }
      const Outcome outcome = kvtier(arguments);
      EXPECT_EQ(outcome.code, 0) << line << "\n" << outcome.err;
    }
  }
  EXPECT_GT(commands, 0);
}

TEST_P(Page, ConfigsResolve) {
  for (const Block& block : fenced_blocks(read_file(page_))) {
    if (block.text.find("\"model\"") == std::string::npos || block.language != "json") {
      continue;
    }
    write("config.json", block.text);
    const Outcome outcome = kvtier({"simulate", "config.json", "--print-config"});
    EXPECT_EQ(outcome.code, 0) << block.text << outcome.err;
  }
}

TEST_P(Page, OutputsAreWhatTheProgramPrints) {
  std::string page = read_file(page_);
  const int outputs =
      replace_outputs(page, [this](const std::string& command, std::string& output) {
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
  int marks = 0;
  const std::string mark = "<!-- output: ";
  for (std::size_t at = 0; (at = page.find(mark, at)) != std::string::npos; ++at) {
    ++marks;
  }
  EXPECT_EQ(outputs, marks);
  expect_file_holds(page_, page);
}

INSTANTIATE_TEST_SUITE_P(Documents, Page,
                         testing::Values("README.md", "configs/examples/README.md",
                                         "configs/plans/README.md", "docs/engines.md"),
                         [](const auto& page) {
                           std::string name = page.param;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == '/' || c == '.'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace kvtier::test
