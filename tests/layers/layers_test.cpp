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

/// Folder to what it may include besides itself; `tests` may include all. Each row names the
/// highest folders; what those may include is added.
Layers layers() {
  Layers table{
      {"sim/core", {}},
      {"sim/policy", {"sim/core"}},
      {"policies", {"sim/policy"}},
      {"hw/model", {"sim/core"}},
      {"hw/timing", {"hw/model"}},
      {"hw/profile", {"hw/timing"}},
      {"traces", {"sim/core"}},
      {"sim/backend", {"sim/policy", "hw/profile"}},
      {"sim/store", {"sim/backend"}},
      {"sim/store/curves", {"sim/store"}},
      {"sim/store/entries", {"sim/store"}},
      {"sim/store/reference", {"sim/store/entries"}},
      {"sim/store/blocks", {"sim/store/reference"}},
      {"sim/store/sessions", {"sim/store"}},
      {"sim/serving", {"sim/store/blocks", "sim/store/curves", "sim/store/sessions", "traces"}},
      {"sim/replay", {"sim/serving"}},
      {"kernels", {}},
      {"hw/device", {"kernels", "sim/core"}},
      {"sim/device", {"sim/serving", "hw/device"}},
      {"calibrate", {"hw/profile", "hw/device"}},
      {"sim/study/config", {"sim/serving", "policies"}},
      {"sim/study/runs", {"sim/study/config", "sim/replay"}},
      {"sim/study/sweep", {"sim/study/runs"}},
      {"sim/study/plan", {"sim/study/sweep"}},
      {"sim/study/papers", {"sim/study/runs"}},
      {"sim/study/engines", {"sim/study/runs"}},
      {"sim/study/report", {"sim/study/runs"}},
      {"sim/study/validate", {"sim/study/sweep", "sim/device", "calibrate"}},
      {"sim/cli",
       {"sim/study/plan", "sim/study/papers", "sim/study/engines", "sim/study/report",
        "sim/study/validate"}},
      {"sim/python", {"sim/study/plan"}},
  };
  for (bool grows = true; grows;) {
    grows = false;
    for (auto& [folder, allowed] : table) {
      const std::set<std::string> direct = allowed;
      for (const std::string& below : direct) {
        allowed.insert(table.at(below).begin(), table.at(below).end());
      }
      grows = grows || allowed.size() > direct.size();
    }
  }
  std::set<std::string> all;
  for (const auto& [folder, allowed] : table) {
    all.insert(folder);
  }
  table.emplace("tests", all);
  return table;
}

/// The row of the deepest folder that a path belongs to, or "" if there is none.
std::string folder_of(const Layers& table, std::string_view path) {
  std::string deepest;
  for (const auto& [folder, allowed] : table) {
    if (path.starts_with(folder + "/") && folder.size() > deepest.size()) {
      deepest = folder;
    }
  }
  return deepest;
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
  write("sim/core/bad.hpp", "#pragma once\n\n#include \"hw/model/model.hpp\"\n");
  EXPECT_EQ(violations(),
            (Lines{"sim/core/bad.hpp:3: sim/core may not include hw/model (hw/model/model.hpp)"}));
}

TEST_F(LayerChecker, AcceptsWhatTheTableAllows) {
  write("sim/serving/instance.cpp",
        "#include \"sim/serving/instance.hpp\"\n#include <vector>\n#include <fmt/format.h>\n"
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

TEST_F(LayerChecker, TellsFoldersOfOneFolderApart) {
  write("hw/device/cuda.cpp", "#include \"kernels/copy.hpp\"\n");
  write("hw/model/model.cpp",
        "#include \"kernels/copy.hpp\"\n#include \"hw/timing/roofline.hpp\"\n");
  write("sim/serving/instance.cpp",
        "#include \"hw/model/model.hpp\"\n#include \"hw/device/cuda.hpp\"\n");
  write("sim/study/papers/paper.cpp",
        "#include \"sim/study/runs/summary.hpp\"\n#include \"sim/study/plan/plan.hpp\"\n");
  write("sim/study/sweep.cpp", "#include \"sim/study/runs/summary.hpp\"\n");
  EXPECT_EQ(
      violations(),
      (Lines{"hw/model/model.cpp:1: hw/model may not include kernels (kernels/copy.hpp)",
             "hw/model/model.cpp:2: hw/model may not include hw/timing (hw/timing/roofline.hpp)",
             "sim/serving/instance.cpp:2: sim/serving may not include hw/device "
             "(hw/device/cuda.hpp)",
             "sim/study/papers/paper.cpp:2: sim/study/papers may not include sim/study/plan "
             "(sim/study/plan/plan.hpp)",
             "sim/study/sweep.cpp:1: this file belongs to no folder of the table"}));
}

TEST_F(LayerChecker, HoldsTheOrderOfTheRooms) {
  write("sim/backend/backend.cpp",
        "#include \"hw/model/hardware.hpp\"\n#include \"sim/store/pool.hpp\"\n"
        "#include \"sim/serving/config.hpp\"\n");
  write("sim/store/pool.cpp",
        "#include \"sim/backend/backend.hpp\"\n#include \"sim/serving/config.hpp\"\n"
        "#include \"traces/workload.hpp\"\n");
  write("sim/serving/requests.cpp",
        "#include \"sim/backend/backend.hpp\"\n#include \"sim/store/pool.hpp\"\n"
        "#include \"sim/replay/untimed.hpp\"\n");
  EXPECT_EQ(
      violations(),
      (Lines{"sim/backend/backend.cpp:2: sim/backend may not include sim/store "
             "(sim/store/pool.hpp)",
             "sim/backend/backend.cpp:3: sim/backend may not include sim/serving "
             "(sim/serving/config.hpp)",
             "sim/serving/requests.cpp:3: sim/serving may not include sim/replay "
             "(sim/replay/untimed.hpp)",
             "sim/store/pool.cpp:2: sim/store may not include sim/serving (sim/serving/config.hpp)",
             "sim/store/pool.cpp:3: sim/store may not include traces (traces/workload.hpp)"}));
}

TEST_F(LayerChecker, ClosesTheUpperRowsDownwards) {
  write("sim/device/backend.cpp",
        "#include \"sim/policy/eviction.hpp\"\n#include \"kernels/copy.hpp\"\n");
  write("sim/cli/main.cpp",
        "#include \"sim/core/units.hpp\"\n#include \"policies/registry.hpp\"\n");
  write("sim/study/runs/run.cpp", "#include \"sim/cli/main.hpp\"\n");
  EXPECT_EQ(violations(), (Lines{"sim/study/runs/run.cpp:1: sim/study/runs may not include sim/cli "
                                 "(sim/cli/main.hpp)"}));
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
