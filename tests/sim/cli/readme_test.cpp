/// README.md and the pages of docs: every command runs, every config resolves, and every output is
/// the program's.

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
  /// Commands start in the test's folder and write there. It links to the folders that they read.
  Page() {
    for (const char* folder : {"configs", "sim"}) {
      fs::create_directory_symlink(fs::path(KVTIER_SOURCE_DIR) / folder, path(folder));
    }
  }

  /// Writes the file of a block, if it has one.
  void write_file_of(const Block& block) {
    if (!block.file.empty()) {
      write(block.file, block.text);
    }
  }

  /// Runs a line that compiles a library of policies.
  void compile(const std::string& line) {
    const std::string in_folder = "cd '" + path("").string() + "' && " + line;
    EXPECT_EQ(std::system(in_folder.c_str()), 0) << line;
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

/// The source file in the command line of a compiler, or "".
std::string source_of(const std::string& line) {
  for (const std::string& word : split_words(line)) {
    if (word.ends_with(".cpp")) {
      return word;
    }
  }
  return "";
}

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
    write_file_of(block);
    commands += block.output_of.empty() ? 0 : 1;
    for (const std::string& line : commands_of(block)) {
      const std::vector<std::string> arguments = arguments_of(line);
      if (line.starts_with("g++ ")) {
        compile(line);
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

TEST_P(Page, OutputsEqualThoseOfTheProgram) {
  std::string page = read_file(page_);
  for (const Block& block : fenced_blocks(page)) {
    write_file_of(block);
    for (const std::string& line : commands_of(block)) {
      if (line.starts_with("g++ ") && fs::exists(path(source_of(line)))) {
        compile(line);
      }
    }
  }
  const int outputs =
      replace_outputs(page, [this](const std::string& command, std::string& output) {
        const std::vector<std::string> arguments = arguments_of(command);
        ASSERT_FALSE(arguments.empty()) << command;
        const Outcome outcome = kvtier(arguments);
        // A failed check is a result to show, too.
        const int expected = outcome.out.find("OUT\n") == std::string::npos ? 0 : 1;
        ASSERT_EQ(outcome.code, expected) << command << "\n" << outcome.err;
        output = outcome.out;
        // --help shows the path by which the program was called.
        const std::string program = KVTIER_PROGRAM;
        for (std::size_t at = 0; (at = output.find(program, at)) != std::string::npos;) {
          output.replace(at, program.size(), "kvtier");
        }
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
                                         "docs/commands.md", "docs/configs.md", "docs/engines.md",
                                         "docs/planning-70b.md", "docs/planning.md",
                                         "docs/policies.md", "docs/questions.md",
                                         "docs/reference/commands.md", "docs/reference/presets.md",
                                         "docs/speed.md", "docs/traces.md"),
                         [](const auto& page) {
                           std::string name = page.param;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == '/' || c == '.' || c == '-'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace kvtier::test
