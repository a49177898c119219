/// The pages of the repository: links lead to files and headings, and the front page is short.

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/documents.hpp"
#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = KVTIER_SOURCE_DIR;

/// All Markdown files outside of build folders and hidden ones.
std::vector<fs::path> pages() {
  std::vector<fs::path> found;
  for (auto file = fs::recursive_directory_iterator(kRoot); file != end(file); ++file) {
    const std::string name = file->path().filename().string();
    if (file->is_directory() && (name == "build" || name.starts_with("."))) {
      file.disable_recursion_pending();
    } else if (file->path().extension() == ".md") {
      found.push_back(file->path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

/// The lines outside of fenced blocks, without code in backquotes.
std::vector<std::string> prose_of(const std::string& markdown) {
  std::vector<std::string> prose;
  bool fenced = false;
  for (const std::string& line : lines_of(markdown)) {
    if (line.find_first_not_of(' ') != std::string::npos &&
        line.compare(line.find_first_not_of(' '), 3, "```") == 0) {
      fenced = !fenced;
    } else if (!fenced) {
      prose.emplace_back();
      bool code = false;
      for (const char c : line) {
        code = c == '`' ? !code : code;
        if (!code && c != '`') {
          prose.back() += c;
        }
      }
    }
  }
  return prose;
}

/// The targets of `[text](target)` in a line.
std::vector<std::string> targets_of(const std::string& line) {
  std::vector<std::string> targets;
  for (std::size_t at = 0; (at = line.find("](", at)) != std::string::npos;) {
    at += 2;
    const std::size_t end = line.find(')', at);
    if (end != std::string::npos) {
      targets.push_back(line.substr(at, end - at));
    }
  }
  return targets;
}

/// The anchors of a page's headings: lower case, blanks as hyphens, no punctuation.
std::set<std::string> anchors_of(const fs::path& page) {
  std::set<std::string> anchors;
  bool fenced = false;
  for (const std::string& line : lines_of(read_file(page))) {
    fenced = line.starts_with("```") ? !fenced : fenced;
    if (fenced || !line.starts_with("#")) {
      continue;
    }
    std::string anchor;
    for (const char c : line.substr(line.find_first_not_of("# "))) {
      if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_') {
        anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      } else if (c == ' ') {
        anchor += '-';
      }
    }
    anchors.insert(anchor);
  }
  return anchors;
}

/// The reason why a link of the page is dead, or "".
std::string problem_of(const fs::path& page, const std::string& target) {
  if (target.find("://") != std::string::npos) {
    return "";
  }
  const std::size_t hash = target.find('#');
  const fs::path file =
      hash == 0 ? page : (page.parent_path() / target.substr(0, hash)).lexically_normal();
  if (!fs::exists(file)) {
    return "no such file";
  }
  const fs::path docs = kRoot / "docs";
  const auto inside = [&](const fs::path& path) {
    return path.string().starts_with(docs.string() + "/");
  };
  if (inside(page) && !inside(file)) {
    return "the site has no files outside of docs";
  }
  if (hash != std::string::npos && !anchors_of(file).contains(target.substr(hash + 1))) {
    return "no such heading";
  }
  return "";
}

TEST(Links, LeadToFilesAndHeadings) {
  int links = 0;
  for (const fs::path& page : pages()) {
    for (const std::string& line : prose_of(read_file(page))) {
      for (const std::string& target : targets_of(line)) {
        ++links;
        EXPECT_EQ(problem_of(page, target), "") << page << ": " << target;
      }
    }
  }
  EXPECT_GT(links, 100);
}

TEST(Links, AreReportedIfDead) {
  const fs::path page = kRoot / "docs/index.md";
  EXPECT_EQ(problem_of(page, "nowhere.md"), "no such file");
  EXPECT_EQ(problem_of(page, "concepts.md#nothing"), "no such heading");
  EXPECT_EQ(problem_of(page, "../README.md"), "the site has no files outside of docs");
  EXPECT_EQ(problem_of(page, "concepts.md#hit-rates"), "");
  EXPECT_EQ(targets_of("[a](b.md), `code`, [c](d.md#e)"),
            (std::vector<std::string>{"b.md", "d.md#e"}));
  EXPECT_EQ(prose_of("a `[b](c)`\n```sh\n[d](e)\n```\nf\n"), (std::vector<std::string>{"a ", "f"}));
}

TEST(FrontPage, HasAtMost250Lines) {
  EXPECT_LE(lines_of(read_file(kRoot / "README.md")).size(), 250U);
}

TEST(Site, ListsEveryPage) {
  const std::string site = read_file(kRoot / "mkdocs.yml");
  for (const fs::path& page : pages()) {
    const std::string name = fs::relative(page, kRoot / "docs").generic_string();
    if (!name.starts_with("..")) {
      EXPECT_NE(site.find(" " + name + "\n"), std::string::npos) << name << " is not in mkdocs.yml";
    }
  }
}

}  // namespace
}  // namespace kvtier::test
