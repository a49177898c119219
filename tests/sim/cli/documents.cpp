#include "tests/sim/cli/documents.hpp"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include <gtest/gtest.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

constexpr const char* kHint =
    " does not hold the program's output: look at the difference, and if it is right, run the test "
    "with KVTIER_UPDATE_DOCS=1 in the environment";

/// X of a line `<!-- kind: X -->`, or "".
std::string comment(const std::string& line, const std::string& kind) {
  const std::string begin = "<!-- " + kind + ": ";
  const std::string end = " -->";
  return line.starts_with(begin) && line.ends_with(end)
             ? line.substr(begin.size(), line.size() - begin.size() - end.size())
             : "";
}

}  // namespace

bool updating_documents() {
  const char* value = std::getenv("KVTIER_UPDATE_DOCS");
  return value != nullptr && std::string(value) == "1";
}

void expect_file_holds(const std::filesystem::path& path, const std::string& text) {
  if (updating_documents()) {
    write_file(path, text);
    return;
  }
  EXPECT_EQ(read_file(path), text) << path << kHint;
}

std::vector<Block> fenced_blocks(const std::string& markdown) {
  const std::string fence = "```";
  std::vector<Block> blocks;
  std::string previous;
  bool inside = false;
  std::size_t at = 0;
  while (at < markdown.size()) {
    const std::size_t end = std::min(markdown.find('\n', at), markdown.size());
    const std::string line = markdown.substr(at, end - at);
    if (line.starts_with(fence) && !inside) {
      Block block;
      block.language = line.substr(fence.size());
      block.begin = end + 1;
      block.output_of = comment(previous, "output");
      block.file = comment(previous, "file");
      blocks.push_back(block);
      inside = true;
    } else if (line == fence && inside) {
      inside = false;
    } else if (inside) {
      blocks.back().text += line + "\n";
    }
    previous = line;
    at = end + 1;
  }
  if (inside) {
    throw std::runtime_error("a fenced block does not end");
  }
  return blocks;
}

int replace_outputs(std::string& markdown,
                    const std::function<void(const std::string&, std::string&)>& run) {
  const std::vector<Block> blocks = fenced_blocks(markdown);
  int outputs = 0;
  // From the last to the first, so that a rewritten block moves none that is still to come.
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    if (block->output_of.empty()) {
      continue;
    }
    ++outputs;
    std::string output;
    run(block->output_of, output);
    if (testing::Test::HasFatalFailure()) {
      break;
    }
    markdown.replace(block->begin, block->text.size(), output);
  }
  return outputs;
}

std::vector<std::string> split_words(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool open = false;
  char quote = '\0';
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != '\0') {
      if (c == quote) {
        quote = '\0';
      } else {
        word += c;
      }
    } else if (c == '"' || c == '\'') {
      quote = c;
      open = true;
    } else if (c == '\\' && i + 1 < line.size() && line[i + 1] == '\n') {
      ++i;
    } else if (c == ' ' || c == '\n') {
      if (open) {
        words.push_back(std::exchange(word, ""));
      }
      open = false;
    } else {
      word += c;
      open = true;
    }
  }
  if (open) {
    words.push_back(word);
  }
  return words;
}

Part marked_part(const std::string& markdown, const std::string& name) {
  const std::string begin = "<!-- begin: " + name + " -->\n";
  const std::string end = "<!-- end: " + name + " -->\n";
  const std::size_t from = markdown.find(begin);
  const std::size_t to = markdown.find(end);
  if (from == std::string::npos || to == std::string::npos) {
    throw std::runtime_error("no part \"" + name + "\" is marked");
  }
  return {markdown.substr(from + begin.size(), to - from - begin.size()), from + begin.size()};
}

}  // namespace kvtier::test
