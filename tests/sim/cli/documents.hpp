#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

/// Documents that contain the program's output. With KVTIER_UPDATE_DOCS=1 in the environment the
/// tests rewrite them instead of comparing.
namespace kvtier::test {

[[nodiscard]] bool updating_documents();

/// Expects the file to hold `text`, or rewrites it.
void expect_file_holds(const std::filesystem::path& path, const std::string& text);

/// A fenced block of a Markdown file.
struct Block {
  std::string language;
  std::string text;
  /// X if the line before the block is `<!-- output: X -->`, else empty.
  std::string output_of;
  /// X if that line is `<!-- file: X -->`, else empty.
  std::string file;
  /// Offset of its text in the file.
  std::size_t begin = 0;
};
[[nodiscard]] std::vector<Block> fenced_blocks(const std::string& markdown);

/// Replaces the text of each output block by the output of `run`, and returns their number. Ends at
/// the first fatal failure of `run`.
int replace_outputs(
    std::string& markdown,
    const std::function<void(const std::string& command, std::string& output)>& run);

/// Splits a command line at blanks; "..." and '...' keep a word together, \ at a line's end joins.
[[nodiscard]] std::vector<std::string> split_words(const std::string& line);

/// The text between `<!-- begin: NAME -->` and `<!-- end: NAME -->`, and its offset.
struct Part {
  std::string text;
  std::size_t begin = 0;
};
[[nodiscard]] Part marked_part(const std::string& markdown, const std::string& name);

}  // namespace kvtier::test
