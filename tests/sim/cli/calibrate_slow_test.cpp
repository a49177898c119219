/// A whole quick run, as a user does it.

#include <chrono>
#include <set>

#include <gtest/gtest.h>

#include "calibrate/check.hpp"
#include "hw/profile.hpp"
#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

class QuickCalibration : public ProgramTest {};

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
  EXPECT_EQ(operations.size(), profile_operations().size() - (no_drive ? 5 : 0));
  EXPECT_EQ(profile.provenance.notes.size(), no_drive ? 4U : 5U);
  // No path of the machine that measured.
  EXPECT_EQ(read("p.json").find(path("").string()), std::string::npos);

  // What is complete is measured again only where something else disturbed it.
  const Outcome again = kvtier({"calibrate", "--resume", "--out", "p.json"});
  EXPECT_EQ(again.code, no_drive ? 0 : 2) << again.err;

  // Out of band or not is for a quiet machine to say, and on a busy one whole tables are left out.
  const Outcome check = kvtier({"calibrate", "--check", "p.json", "--cells", "1"});
  EXPECT_TRUE(check.code == 0 || check.code == 1) << check.err;
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
