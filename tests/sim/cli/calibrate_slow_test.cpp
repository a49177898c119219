/// A whole quick run, as a user does it.

#include <algorithm>
#include <chrono>
#include <regex>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "calibrate/check.hpp"
#include "hw/profile/profile.hpp"
#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

class QuickCalibration : public ProgramTest {};

/// Largest median error of a repeated measurement on a machine with other work. The bands of
/// `--check` itself are for a quiet machine.
constexpr double kRepeatBand = 0.5;

/// Every verdict follows from the errors and the bands of its line, and the exit code from the
/// verdicts. On a busy machine whole tables are left out; those that are judged repeat.
void expect_judged(const Outcome& check) {
  // repeat       gemm        3     1.2 %     3.4 %     2.0 %     5.0 %         0  in (5.0 %, 12.0
  // %)
  const std::regex line(
      R"((repeat|drift|held out|composition|sum|overlap)\s+\S+\s+(\d+)\s+([\d.]+) %\s+([\d.]+) %.*?  (?:-|(in|OUT) \(([\d.]+) %, ([\d.]+) %\))\n)");
  bool all_in = true;
  int repeats = 0;
  for (auto at = std::sregex_iterator(check.out.begin(), check.out.end(), line);
       at != std::sregex_iterator(); ++at) {
    const std::smatch& row = *at;
    const double p50 = std::stod(row[3]);
    const double p90 = std::stod(row[4]);
    if (row[1] == "repeat" && row[2] != "0") {
      ++repeats;
      EXPECT_LE(p50, 100 * kRepeatBand) << row[0];
    }
    if (!row[5].matched) {
      continue;
    }
    all_in = all_in && row[5] == "in";
    // Errors are shown to a tenth of a percent.
    constexpr double kShown = 0.1;
    const double over = std::max(p50 - std::stod(row[6]), p90 - std::stod(row[7]));
    EXPECT_TRUE(row[5] == "in" ? over <= kShown : over >= -kShown) << row[0];
  }
  EXPECT_GT(repeats, 0) << check.out;
  EXPECT_EQ(check.code, all_in ? 0 : 1) << check.out << check.err;
}

TEST_F(QuickCalibration, EndsInTimeWithAProfileOfEveryOperation) {
  const auto begin = std::chrono::steady_clock::now();
  Outcome outcome = kvtier({"calibrate", "--storage", ".", "--out", "p.json"});
  const bool no_drive = outcome.code == 3;
  if (no_drive) {
    outcome = kvtier({"calibrate", "--out", "p.json"});
  }
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_LT(passed.count(), 120);  // 90 s, and a third more beside other work
  EXPECT_EQ(files(), std::vector<std::string>{"p.json"});
  const Profile profile = read_profile(path("p.json"));
  std::set<OperationId> operations;
  for (const ProfileTable& table : profile.tables) {
    operations.insert(table.operation);
  }
  // Later operations, except idle_pass, are only imported from tables.
  constexpr auto kMeasured = static_cast<std::size_t>(OperationId::gemm_grid) + 1;
  EXPECT_EQ(operations.size(), kMeasured - (no_drive ? 5 : 0));
  // A busy machine adds a note on cells that are left out.
  const std::size_t notes = profile.provenance.notes.size();
  EXPECT_TRUE(notes == (no_drive ? 4U : 5U) || notes == (no_drive ? 5U : 6U)) << notes;
  // The profile contains no path of this machine.
  EXPECT_EQ(read("p.json").find(path("").string()), std::string::npos);

  // Complete cells are measured again only if other work disturbed them.
  const Outcome again = kvtier({"calibrate", "--resume", "--out", "p.json"});
  EXPECT_EQ(again.code, no_drive ? 0 : 2) << again.err;

  const Outcome check = kvtier({"calibrate", "--check", "p.json", "--cells", "1"});
  expect_judged(check);
  std::set<OperationId> judged;
  for (const ProfileTable& table : read_profile(path("p.json")).tables) {
    if (calibrate::is_interpolated(table.operation) && !table.cells.empty()) {
      judged.insert(table.operation);
    }
  }
  EXPECT_FALSE(judged.empty());
  for (const OperationId operation : judged) {
    for (const char* rung : {"repeat      ", "held out    "}) {
      EXPECT_NE(check.out.find(std::string(rung) + " " + to_string(operation)), std::string::npos)
          << rung << to_string(operation) << "\n"
          << check.out;
    }
  }
}

}  // namespace
}  // namespace kvtier::test
