/// The table of README.md that puts hit rates beside those of the paper.

#include <cmath>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/sim/cli/documents.hpp"
#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::vector<std::string> cells(const std::string& row) {
  std::vector<std::string> result;
  std::istringstream stream(row.substr(1));
  std::string cell;
  while (std::getline(stream, cell, '|')) {
    const std::size_t begin = cell.find_first_not_of(' ');
    result.push_back(begin == std::string::npos
                         ? ""
                         : cell.substr(begin, cell.find_last_not_of(' ') - begin + 1));
  }
  return result;
}

/// Points; the last column of the table says which band holds, or "no" where none does.
constexpr double kBandOfBaselines = 8;

class ReadmeTable : public ProgramTest {
 protected:
  /// Mean over five seeds, in percent, and the largest minus the smallest.
  [[nodiscard]] std::string hit_rate(const std::string& model, const std::string& ssd,
                                     const std::string& system) const {
    const fs::path config = configs() / "papers" / "attentionstore" / (model + ".json");
    const Outcome outcome =
        kvtier({"compare", config.string(), "--systems", system, "--replications", "5", "--set",
                "/hardware/ssd/capacity=" + ssd, "--json", "-"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const json summary =
        json::parse(outcome.out)["systems"][system]["summary"]["/metrics/hit_rate/all_turns/total"];
    return fmt::format("{:.1f} ({:.1f})", summary["mean"].get<double>() * 100,
                       summary["spread"].get<double>() * 100);
  }
};

TEST_F(ReadmeTable, IsWhatTheProgramGivesAndSaysHowNearThePaperIs) {
  const fs::path path = fs::path(KVTIER_SOURCE_DIR) / "README.md";
  std::string readme = read_file(path);
  const Part part = marked_part(readme, "hit rates");
  std::istringstream lines(part.text);
  std::string line;
  std::string table;
  int row = 0;
  while (std::getline(lines, line)) {
    if (row++ >= 2) {  // after the heading and the rule
      const std::vector<std::string> cell = cells(line);
      ASSERT_EQ(cell.size(), 6U) << line;
      const std::string found = hit_rate(cell[0], cell[1], cell[2]);
      const double distance = std::abs(std::stod(found) - std::stod(cell[3]));
      if (cell[5] == "no") {
        EXPECT_GT(distance, kBandOfBaselines) << line;
      } else {
        EXPECT_LE(distance, std::stod(cell[5])) << line;
      }
      line = fmt::format("| {} | {} | {} | {} | {} | {} |", cell[0], cell[1], cell[2], cell[3],
                         found, cell[5]);
    }
    table += line + "\n";
  }
  EXPECT_GT(row, 10);
  readme.replace(part.begin, part.text.size(), table);
  expect_file_holds(path, readme);
}

}  // namespace
}  // namespace kvtier::test
