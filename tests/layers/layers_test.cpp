/// Holds the layering: every #include of the project is read and compared with the table of which
/// folder may include which.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <gtest/gtest.h>

namespace kvtier {
namespace {

namespace fs = std::filesystem;

using Layers = std::map<std::string, std::set<std::string>, std::less<>>;

constexpr std::array<std::string_view, 7> top_level_folders{
    "sim", "calibrate", "policies", "hw", "kernels", "traces", "tests"};

/// Folder to what it may include besides itself; `tests` may include all. The direct entries of a
/// row are written out; "and what those may" is computed.
Layers layers() {
  Layers table{
      {"sim/core", {}},
      {"sim/policy", {"sim/core"}},
      {"policies", {"sim/policy", "sim/core"}},
      {"hw", {"sim/core"}},
      {"traces", {"sim/core"}},
      {"sim/store", {"sim/core", "sim/policy"}},
      {"sim/engine", {"sim/core", "sim/policy", "sim/store", "hw", "traces"}},
      {"sim/replay", {"sim/engine"}},
      {"kernels", {}},
      {"hw/device", {"kernels", "sim/core"}},
      {"sim/device", {"sim/engine", "hw/device"}},
      {"calibrate", {"hw", "hw/device", "kernels", "sim/core"}},
      {"sim/study", {"sim/engine", "sim/replay", "sim/device", "policies", "calibrate"}},
      {"sim/cli", {"sim/study"}},
      {"sim/python", {"sim/study"}},
  };
  // Each of these rows follows the rows that it builds on.
  for (const std::string_view closed :
       {"sim/replay", "sim/device", "sim/study", "sim/cli", "sim/python"}) {
    std::set<std::string>& allowed = table.find(closed)->second;
    const std::set<std::string> direct = allowed;
    for (const std::string& folder : direct) {
      const std::set<std::string>& below = table.at(folder);
      allowed.insert(below.begin(), below.end());
    }
  }
  std::set<std::string> all;
  for (const auto& [folder, allowed] : table) {
    all.insert(folder);
  }
  table.emplace("tests", all);
  return table;
}

/// The row a path belongs to: the longest one that is a prefix of it, or "" if there is none.
std::string folder_of(const Layers& table, std::string_view path) {
  std::string best;
  for (const auto& [folder, allowed] : table) {
    if (path.size() > folder.size() && path.substr(0, folder.size()) == folder &&
        path[folder.size()] == '/' && folder.size() > best.size()) {
      best = folder;
    }
  }
  return best;
}

struct Report {
  std::vector<std::string> violations;
  std::size_t files = 0;
  std::size_t includes = 0;
};

void check_file(const Layers& table, const fs::path& root, const std::string& path,
                Report& report) {
  static const std::regex directive(R"re(^\s*#\s*include(?:_next)?\b\s*(.*)$)re");
  static const std::regex named(R"re(^(["<])([^">]+)[">].*$)re");

  const std::string from = folder_of(table, path);
  std::ifstream in(root / path);
  if (!in) {
    throw std::runtime_error("cannot read " + (root / path).string());
  }
  ++report.files;
  if (from.empty()) {
    report.violations.push_back(path + ":1: this file belongs to no folder of the table");
  }
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    // Only directives reach the regular expression, whose stack grows with the length of the line.
    const std::size_t first = line.find_first_not_of(" \t");
    std::smatch match;
    if (first == std::string::npos || line[first] != '#' ||
        !std::regex_match(line, match, directive)) {
      continue;
    }
    ++report.includes;
    const auto fail = [&](const std::string& what) {
      report.violations.push_back(path + ":" + std::to_string(number) + ": " + what);
    };
    const std::string operand = match[1];
    if (!std::regex_match(operand, match, named)) {
      fail("the name of the included file is not written out: " + operand);
      continue;
    }
    const bool quoted = match[1] == "\"";
    const std::string target = match[2];
    if (target.starts_with("./") || target.starts_with("../") ||
        target.find("/./") != std::string::npos || target.find("/../") != std::string::npos) {
      fail("relative include " + target);
      continue;
    }
    const std::string to = folder_of(table, target);
    if (to.empty()) {
      const std::string top = target.substr(0, target.find('/'));
      if (quoted) {
        fail(target + " is not named from the root of the repository");
      } else if (std::ranges::find(top_level_folders, top) != top_level_folders.end() &&
                 fs::exists(root / target)) {
        fail(target + " belongs to no folder of the table");
      }
      continue;
    }
    if (!from.empty() && from != to && !table.at(from).contains(to)) {
      fail(from + " may not include " + to + " (" + target + ")");
    }
  }
}

/// Reads every source and header below the project's folders in `root`; the violations are in order
/// of their paths.
Report check_tree(const fs::path& root) {
  const Layers table = layers();
  std::vector<std::string> paths;
  for (const std::string_view top : top_level_folders) {
    if (!fs::is_directory(root / top)) {
      continue;
    }
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension().string();
      if (entry.is_regular_file() && (extension == ".hpp" || extension == ".cpp" ||
                                      extension == ".cu" || extension == ".cuh")) {
        paths.push_back(entry.path().lexically_relative(root).generic_string());
      }
    }
  }
  std::ranges::sort(paths);
  Report report;
  for (const std::string& path : paths) {
    check_file(table, root, path, report);
  }
  return report;
}

/// A made-up source tree, removed at the end of the test.
class LayerChecker : public testing::Test {
 protected:
  void SetUp() override {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    std::string pattern =
        (fs::temp_directory_path() / ("kvtier-layers-" + name + "-XXXXXX")).string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr) << pattern;
    root_ = pattern;
  }

  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream out(root_ / path);
    out << text;
    ASSERT_TRUE(out.flush()) << path;
  }

  [[nodiscard]] std::vector<std::string> violations() const { return check_tree(root_).violations; }

  fs::path root_;
};

using Lines = std::vector<std::string>;

TEST_F(LayerChecker, NamesFileAndLineOfAViolation) {
  write("sim/core/bad.hpp", "#pragma once\n\n#include \"hw/model.hpp\"\n");
  EXPECT_EQ(violations(),
            (Lines{"sim/core/bad.hpp:3: sim/core may not include hw (hw/model.hpp)"}));
}

TEST_F(LayerChecker, AcceptsWhatTheTableAllows) {
  write("sim/engine/engine.cpp",
        "#include \"sim/engine/engine.hpp\"\n#include <vector>\n#include <fmt/format.h>\n"
        "#include \"sim/core/units.hpp\"\n#include \"traces/generator.hpp\"\n");
  write("policies/eviction/lru.cpp",
        "#include \"policies/eviction/lru.hpp\"\n#include \"sim/policy/eviction.hpp\"\n");
  write("tests/sim/core/units_test.cpp",
        "#include \"sim/cli/options.hpp\"\n#include \"tests/helpers.hpp\"\n");
  const Report report = check_tree(root_);
  EXPECT_EQ(report.violations, Lines{});
  EXPECT_EQ(report.files, 3U);
  EXPECT_EQ(report.includes, 9U);
}

TEST_F(LayerChecker, TakesTheMostSpecificFolder) {
  // hw/device is not hw: it may include kernels, hw may not, and sim/engine may include hw but not
  // hw/device.
  write("hw/device/cuda.cpp", "#include \"kernels/copy.hpp\"\n");
  write("hw/model.cpp", "#include \"kernels/copy.hpp\"\n");
  write("sim/engine/engine.cpp", "#include \"hw/model.hpp\"\n#include \"hw/device/cuda.hpp\"\n");
  EXPECT_EQ(
      violations(),
      (Lines{
          "hw/model.cpp:1: hw may not include kernels (kernels/copy.hpp)",
          "sim/engine/engine.cpp:2: sim/engine may not include hw/device (hw/device/cuda.hpp)"}));
}

TEST_F(LayerChecker, ClosesTheUpperRowsDownwards) {
  write("sim/device/backend.cpp",
        "#include \"sim/policy/eviction.hpp\"\n#include \"kernels/copy.hpp\"\n");
  write("sim/cli/main.cpp",
        "#include \"sim/core/units.hpp\"\n#include \"policies/registry.hpp\"\n");
  write("sim/study/run.cpp", "#include \"sim/cli/main.hpp\"\n");
  EXPECT_EQ(violations(),
            (Lines{"sim/study/run.cpp:1: sim/study may not include sim/cli (sim/cli/main.hpp)"}));
}

TEST_F(LayerChecker, RefusesRelativeIncludes) {
  write("sim/core/units.cpp",
        "#include \"../policy/eviction.hpp\"\n  #  include \"sim/core/../core/id.hpp\"\n");
  EXPECT_EQ(violations(),
            (Lines{"sim/core/units.cpp:1: relative include ../policy/eviction.hpp",
                   "sim/core/units.cpp:2: relative include sim/core/../core/id.hpp"}));
}

TEST_F(LayerChecker, RefusesNamesThatAreNotRootedOrNotWrittenOut) {
  write("sim/core/units.cpp", "#include \"id.hpp\"\n#include CONFIG_HEADER\n");
  EXPECT_EQ(violations(),
            (Lines{"sim/core/units.cpp:1: id.hpp is not named from the root of the repository",
                   "sim/core/units.cpp:2: the name of the included file is not written out: "
                   "CONFIG_HEADER"}));
}

TEST_F(LayerChecker, SeesThroughAngleBrackets) {
  write("kernels/copy.cu", "#include <sim/core/units.hpp>\n");
  EXPECT_EQ(violations(),
            (Lines{"kernels/copy.cu:1: kernels may not include sim/core (sim/core/units.hpp)"}));
}

TEST_F(LayerChecker, RefusesAFolderOutsideTheTable) {
  write("sim/other/file.cpp", "#include <vector>\n");
  EXPECT_EQ(violations(),
            (Lines{"sim/other/file.cpp:1: this file belongs to no folder of the table"}));
}

TEST_F(LayerChecker, KeepsTestsOutOfTheProgram) {
  write("sim/core/units.cpp", "#include \"tests/helpers.hpp\"\n");
  EXPECT_EQ(violations(),
            (Lines{"sim/core/units.cpp:1: sim/core may not include tests (tests/helpers.hpp)"}));
}

TEST(Layers, HoldInThisRepository) {
  const Report report = check_tree(KVTIER_SOURCE_DIR);
  for (const std::string& violation : report.violations) {
    ADD_FAILURE() << violation;
  }
  // A checker that reads nothing finds nothing.
  EXPECT_GE(report.includes, 20U) << "read in " << report.files << " files";
}

}  // namespace
}  // namespace kvtier
