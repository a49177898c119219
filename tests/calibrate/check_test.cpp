#include "calibrate/check.hpp"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/hw/tiny_profile.hpp"

namespace kvtier::calibrate {
namespace {

using test::cell;

/// A matrix that takes 1 ms x tokens, at powers of two.
Profile straight_line(std::int64_t largest) {
  Profile profile = test::tiny_profile();
  profile.tables = {test::matrix_table("line", 8, 4, {})};
  for (std::int64_t tokens = 1; tokens <= largest; tokens *= 2) {
    profile.tables[0].cells.push_back(cell({tokens}, 1e-3 * static_cast<double>(tokens)));
  }
  return profile;
}

const CheckRow* find(const CheckReport& report, Rung rung, OperationId operation) {
  for (const CheckRow& row : report.rows) {
    if (row.rung == rung && row.operation == operation) {
      return &row;
    }
  }
  return nullptr;
}

TEST(ErrorStatistics, AreOfTheRelativeErrors) {
  // 10 %, 50 %, 0, 20 %, 30 %: sorted 0, 10, 20, 30, 50; the place of p90 is 0.9 x 4 = 3.6, so 30.
  const std::vector<Pair> pairs{{11, 10}, {1, 2}, {4, 4}, {8, 10}, {13, 10}};
  const ErrorStatistics errors = error_statistics(pairs);
  EXPECT_EQ(errors.count, 5);
  EXPECT_NEAR(errors.p50, 0.2, 1e-12);
  EXPECT_NEAR(errors.p90, 0.3, 1e-12);
  EXPECT_NEAR(errors.mean, 0.22, 1e-12);
  EXPECT_NEAR(errors.worst, 0.5, 1e-12);
  EXPECT_EQ(error_statistics({}).count, 0);
}

TEST(CrossValidation, OfAPowerLawIsExact) {
  const CheckReport report = cross_validate(straight_line(1024), 1);
  const CheckRow* row = find(report, Rung::held_out, OperationId::G1);
  ASSERT_NE(row, nullptr);
  // 11 cells; the first and the last cannot be between others.
  EXPECT_EQ(row->errors.count + row->left_out, 11);
  EXPECT_GE(row->left_out, 2);
  EXPECT_NEAR(row->errors.worst, 0, 1e-9);
  EXPECT_FALSE(row->in_band);
}

TEST(CrossValidation, SeesACellThatIsOff) {
  Profile profile = straight_line(1024);
  profile.tables[0].cells[5] = cell({32}, 0.04);  // 25 % over
  const CheckRow row = *find(cross_validate(profile, 1), Rung::held_out, OperationId::G1);
  // Predicted 32 from both sides: 20 % under.
  EXPECT_NEAR(row.errors.worst, 0.2, 1e-9);
}

TEST(CrossValidation, LeavesTablesWithoutAnInsideAlone) {
  Profile profile = straight_line(2);
  const CheckRow row = *find(cross_validate(profile, 1), Rung::held_out, OperationId::G1);
  EXPECT_EQ(row.errors.count, 0);
  EXPECT_EQ(row.left_out, 2);
}

TEST(Composition, IsTheSumOfARaggedBatchesParts) {
  Profile profile = test::tiny_profile();
  ProfileTable ragged{.operation = OperationId::A3, .variant = "mixed"};
  ragged.axes = {"case"};
  ragged.shape = find_tables(profile, OperationId::A1).front()->shape;
  // 4 new after 8: 5 s. Four of one token after 0, 16, 16 and 32, 64 in total: 64 / 8 = 8 s.
  ragged.cells = {cell({0}, 13)};
  ragged.cells[0].parts = {{4, 8}, {1, 0}, {1, 16}, {1, 16}, {1, 32}};
  // Outside of the grid.
  ragged.cells.push_back(cell({1}, 1));
  ragged.cells[1].parts = {{5, 8}};
  profile.tables.push_back(ragged);
  CheckReport report = cross_validate(profile, 1);
  const CheckRow* row = find(report, Rung::composition, OperationId::A3);
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->errors.count, 1);
  EXPECT_NEAR(row->errors.worst, 0, 1e-9);
  EXPECT_EQ(row->left_out, 1);
  EXPECT_EQ(row->in_band, true);
  EXPECT_TRUE(report.in_band());
  profile.tables.back().cells[0] = cell({0}, 26);
  profile.tables.back().cells[0].parts = {{4, 8}};
  report = cross_validate(profile, 1);
  EXPECT_EQ(find(report, Rung::composition, OperationId::A3)->in_band, false);
  EXPECT_FALSE(report.in_band());
}

TEST(CheckByMeasuring, AgreesWithAMachineThatDoesNotChange) {
  const Profile profile = straight_line(1024);
  std::vector<std::vector<std::int64_t>> asked;
  const CheckReport report =
      check_by_measuring(profile,
                         [&](const ProfileTable&, const std::vector<std::int64_t>& at) {
                           asked.push_back(at);
                           return 1e-3 * static_cast<double>(at[0]);
                         },
                         {.seed = 3, .cells = 10});
  EXPECT_EQ(asked.size(), 30U);
  EXPECT_EQ(find(report, Rung::repeat, OperationId::G1)->errors.count, 10);
  const CheckRow* held_out = find(report, Rung::held_out, OperationId::G1);
  EXPECT_EQ(held_out->errors.count, 10);
  EXPECT_NEAR(held_out->errors.worst, 0, 1e-9);
  EXPECT_EQ(held_out->in_band, true);
  EXPECT_TRUE(report.in_band());
}

TEST(CheckByMeasuring, IsOutOfBandOnAnotherMachine) {
  const CheckReport report =
      check_by_measuring(straight_line(1024),
                         [](const ProfileTable&, const std::vector<std::int64_t>& at) {
                           return 1.1e-3 * static_cast<double>(at[0]);
                         },
                         {.seed = 3, .cells = 10});
  EXPECT_EQ(find(report, Rung::held_out, OperationId::G1)->in_band, false);
  EXPECT_FALSE(report.in_band());
  EXPECT_NE(to_text(report).find("OUT (5.0 %, 12.0 %)"), std::string::npos) << to_text(report);
}

TEST(CheckByMeasuring, CountsWhatCannotBeMeasured) {
  const CheckReport report = check_by_measuring(
      straight_line(4),
      [](const ProfileTable&, const std::vector<std::int64_t>&) { return std::nullopt; },
      {.seed = 3, .cells = 4});
  EXPECT_EQ(find(report, Rung::repeat, OperationId::G1)->left_out, 4);
  EXPECT_EQ(find(report, Rung::held_out, OperationId::G1)->left_out, 4);
  EXPECT_TRUE(report.in_band());
}

}  // namespace
}  // namespace kvtier::calibrate
