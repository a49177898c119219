#include "calibrate/check.hpp"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "hw/profile/profile_timing.hpp"
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

TEST(CrossValidation, PredictsAPowerLawExactly) {
  const CheckReport report = cross_validate(straight_line(1024), 1);
  const CheckRow* row = find(report, Rung::held_out, OperationId::gemm);
  ASSERT_NE(row, nullptr);
  // 11 cells; the first and the last cannot be between others.
  EXPECT_EQ(row->errors.count + row->left_out, 11);
  EXPECT_GE(row->left_out, 2);
  EXPECT_NEAR(row->errors.worst, 0, 1e-9);
  EXPECT_FALSE(row->in_band);
}

TEST(CrossValidation, DetectsACellThatIsOff) {
  Profile profile = straight_line(1024);
  profile.tables[0].cells[5] = cell({32}, 0.04);  // 25 % over
  const CheckRow row = *find(cross_validate(profile, 1), Rung::held_out, OperationId::gemm);
  // Predicted 32 from both sides: 20 % under.
  EXPECT_NEAR(row.errors.worst, 0.2, 1e-9);
}

TEST(CrossValidation, LeavesOutTablesWithoutInnerCells) {
  Profile profile = straight_line(2);
  const CheckRow row = *find(cross_validate(profile, 1), Rung::held_out, OperationId::gemm);
  EXPECT_EQ(row.errors.count, 0);
  EXPECT_EQ(row.left_out, 2);
}

/// 4 new after 8, and four of one token after 0, 16, 16 and 32, 64 in total.
Profile with_ragged_batch() {
  Profile profile = test::tiny_profile();
  ProfileTable ragged{.operation = OperationId::ragged_attention, .variant = "mixed"};
  ragged.axes = {"case"};
  ragged.shape = find_tables(profile, OperationId::prefill_attention).front()->shape;
  // By the tables of the profile 5 s and 64 / 8 = 8 s.
  ragged.cells = {cell({0}, 13)};
  ragged.cells[0].parts = {{4, 8}, {1, 0}, {1, 16}, {1, 16}, {1, 32}};
  profile.tables.push_back(ragged);
  return profile;
}

TEST(Composition, IsTheSumOfARaggedBatchesParts) {
  Profile profile = with_ragged_batch();
  ProfileTable& ragged = profile.tables.back();
  // Outside of the grid.
  ragged.cells.push_back(cell({1}, 1));
  ragged.cells[1].parts = {{5, 8}};
  CheckReport report = cross_validate(profile, 1);
  const CheckRow* row = find(report, Rung::composition, OperationId::ragged_attention);
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->errors.count, 1);
  EXPECT_NEAR(row->errors.worst, 0, 1e-9);
  EXPECT_EQ(row->left_out, 1);
  EXPECT_EQ(row->in_band, true);
  EXPECT_TRUE(report.in_band());
  profile.tables.back().cells[0] = cell({0}, 26);
  profile.tables.back().cells[0].parts = {{4, 8}};
  report = cross_validate(profile, 1);
  EXPECT_EQ(find(report, Rung::composition, OperationId::ragged_attention)->in_band, false);
  EXPECT_FALSE(report.in_band());
}

TEST(Overlap, IsThePipelineOfItsCopiesAndMatrices) {
  Profile profile = test::tiny_profile();
  std::erase_if(profile.tables,
                [](const auto& table) { return table.operation == OperationId::layer_pipeline; });
  const auto add = [&profile](const char* variant, double first, double second) {
    ProfileTable table{.operation = OperationId::layer_pipeline, .variant = variant};
    table.axes = {"layers", "bytes", "tokens"};
    table.cells = {cell({4, 1000, 1}, first), cell({4, 9000, 1}, second)};
    profile.tables.push_back(table);
  };
  // Computing hides the rest: 1 + 4 x 2 = 9 s. Loading does: 4 x 3 + 2 = 14 s, measured 28 s.
  add("pipeline", 9, 28);
  add("copies", 4, 12);
  add("compute", 8, 8);
  CheckReport report = cross_validate(profile, 1);
  const CheckRow* row = find(report, Rung::overlap, OperationId::layer_pipeline);
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->errors.count, 2);
  EXPECT_NEAR(row->errors.p50, 0, 1e-9);
  EXPECT_NEAR(row->errors.worst, 0.5, 1e-9);
  EXPECT_EQ(row->in_band, true);
  profile.tables.back().cells.pop_back();
  report = cross_validate(profile, 1);
  EXPECT_EQ(find(report, Rung::overlap, OperationId::layer_pipeline)->errors.count, 1);
  EXPECT_EQ(find(report, Rung::overlap, OperationId::layer_pipeline)->left_out, 1);
}

TEST(Steps, AreTheOperationsOfTheTimingModelAndAnOverheadOfPrefills) {
  Profile profile = test::tiny_profile();
  ProfileTable steps{.operation = OperationId::model_step, .variant = kCold};
  steps.shape = step_shape(test::tiny_model(), 2);
  steps.axes = {"requests", "new_tokens", "past_tokens"};
  // A layer takes 6 s and its attention 1, 2 or 5 s; two layers and the head, 1 s.
  steps.cells = {cell({1, 4, 8}, 23), cell({1, 4, 0}, 22), cell({1, 4, 32}, 32)};
  profile.tables.push_back(steps);
  const auto composition = [&profile] {
    const CheckReport report = cross_validate(profile, 1);
    const CheckRow* row = find(report, Rung::composition, OperationId::model_step);
    EXPECT_NE(row, nullptr);
    return *row;
  };
  // 4 new tokens after 8: 2 x (6 + 5) + 1 = 23; after 0: 2 x (6 + 4) + 1 = 21; after 32:
  // 2 x (6 + 8) + 1 = 29. They took 0, 1 and 3 s more, in the median 1: 24 of 23, 22, 30 of 32.
  CheckRow row = composition();
  EXPECT_EQ(row.errors.count, 3);
  EXPECT_NEAR(row.errors.p50, 1.0 / 23, 1e-9);
  EXPECT_NEAR(row.errors.worst, 2.0 / 32, 1e-9);
  EXPECT_EQ(row.in_band, true);
  // Without what was fitted: 23, 21 and 29.
  const CheckReport report = cross_validate(profile, 1);
  const CheckRow* sum = find(report, Rung::sum, OperationId::model_step);
  ASSERT_NE(sum, nullptr);
  EXPECT_NEAR(sum->errors.worst, 3.0 / 32, 1e-9);
  EXPECT_EQ(sum->in_band, std::nullopt);
  // A cold iteration of one request: four matrices of 1 s, attention to 8 tokens 1 s, twice, and
  // the head, 11 s. Without measured runs it is no slower than others.
  profile.tables.back().cells.push_back(cell({1, 1, 7}, 11));
  row = composition();
  EXPECT_EQ(row.errors.count, 4);
  EXPECT_EQ(row.left_out, 0);
  EXPECT_NEAR(row.errors.worst, 2.0 / 32, 1e-9);
  // In a run such iterations took 8, and to 32 tokens 10 instead of 17: 5 less in the middle.
  const auto with_runs = [&](const char* variant, std::vector<ProfileCell> cells) {
    ProfileTable runs = profile.tables.back();
    runs.variant = variant;
    runs.cells = std::move(cells);
    profile.tables.push_back(std::move(runs));
    return composition();
  };
  row = with_runs(kDecodeWarm, {cell({1, 1, 7}, 8), cell({1, 1, 31}, 10)});
  EXPECT_EQ(row.errors.count, 6);
  EXPECT_NEAR(row.errors.worst, 5.0 / 11, 1e-9);
  // In a run two of the prefills took 19 of 24 and 16 of 22: 5.5 s less in the middle. A cold
  // iteration takes 5.5 s more than the 6 of a warm one.
  row = with_runs(kWarm, {cell({1, 4, 8}, 19), cell({1, 4, 0}, 16)});
  EXPECT_EQ(row.errors.count, 8);
  EXPECT_NEAR(row.errors.worst, 2.0 / 8, 1e-9);
  // As a second pass one took 15 of 24: no less than in a run, 18.5.
  row = with_runs(kSecond, {cell({1, 4, 8}, 15)});
  EXPECT_EQ(row.errors.count, 9);
  EXPECT_NEAR(row.errors.worst, 2.0 / 8, 1e-9);
  profile.tables.back().cells = {cell({1, 4, 8}, 10)};
  EXPECT_NEAR(composition().errors.worst, 8.5 / 10, 1e-9);
  profile.tables.pop_back();
  profile.tables.pop_back();
  profile.tables.back().shape["hidden_size"] = 8;  // no matrix of that model was measured
  row = composition();
  EXPECT_EQ(row.errors.count, 4);
  EXPECT_EQ(row.left_out, 2);
}

TEST(CheckByMeasuring, AgreesWithAMachineThatDoesNotChange) {
  const Profile profile = straight_line(1024);
  std::vector<std::vector<std::int64_t>> asked;
  const CheckOptions options{.seed = 3, .cells = 10};
  const CheckReport report = check_by_measuring(
      profile,
      [&](const ProfileTable&, const Place& place) {
        asked.push_back(place.at);
        return 1e-3 * static_cast<double>(place.at[0]);
      },
      options);
  // Each time a cell twice, and a place between its two neighbours.
  EXPECT_EQ(asked.size(), 50U);
  EXPECT_EQ(measurements(profile, options), 50);
  for (std::size_t i = 0; i < asked.size(); i += 5) {
    EXPECT_EQ(asked[i], asked[i + 1]);
    EXPECT_EQ(2 * asked[i + 2][0], asked[i + 4][0]);
    EXPECT_LE(asked[i + 2], asked[i + 3]);
    EXPECT_LE(asked[i + 3], asked[i + 4]);
  }
  for (const Rung rung : {Rung::repeat, Rung::drift, Rung::held_out}) {
    const CheckRow* row = find(report, rung, OperationId::gemm);
    ASSERT_NE(row, nullptr) << to_string(rung);
    EXPECT_EQ(row->errors.count, 10);
    EXPECT_NEAR(row->errors.worst, 0, 1e-9);
    EXPECT_EQ(row->in_band, rung == Rung::repeat ? std::nullopt : std::optional(true));
  }
  EXPECT_TRUE(report.in_band());
}

TEST(CheckByMeasuring, TellsASlowerMachineFromACoarseGrid) {
  // All is 10 % slower than the profile says: 0.1 / 1.1 = 9.1 % off, but as straight as ever.
  const CheckReport report = check_by_measuring(straight_line(1024),
                                                [](const ProfileTable&, const Place& place) {
                                                  return 1.1e-3 * static_cast<double>(place.at[0]);
                                                },
                                                {.seed = 3, .cells = 10});
  EXPECT_NEAR(find(report, Rung::drift, OperationId::gemm)->errors.p50, 0.1 / 1.1, 1e-9);
  EXPECT_EQ(find(report, Rung::drift, OperationId::gemm)->in_band, false);
  EXPECT_NEAR(find(report, Rung::held_out, OperationId::gemm)->errors.worst, 0, 1e-9);
  EXPECT_EQ(find(report, Rung::held_out, OperationId::gemm)->in_band, true);
  EXPECT_FALSE(report.in_band());
  EXPECT_NE(to_text(report).find("OUT (5.0 %, 12.0 %)"), std::string::npos) << to_text(report);
}

TEST(CheckByMeasuring, MeasuresPlacesBetweenCells) {
  // Powers of two, the grid's cells, take half of the time.
  const CheckReport report =
      check_by_measuring(straight_line(1024),
                         [](const ProfileTable&, const Place& place) {
                           const std::int64_t tokens = place.at[0];
                           const bool power = (tokens & (tokens - 1)) == 0;
                           return (power ? 1e-3 : 2e-3) * static_cast<double>(tokens);
                         },
                         {.seed = 3, .cells = 20});
  EXPECT_EQ(find(report, Rung::drift, OperationId::gemm)->in_band, true);
  const CheckRow* held_out = find(report, Rung::held_out, OperationId::gemm);
  EXPECT_NEAR(held_out->errors.worst, 0.5, 1e-9);
  EXPECT_EQ(held_out->in_band, false);
}

TEST(CheckByMeasuring, DrawsPlacesWhereAllNeighboursAreMeasured) {
  // batch x context with a hole at (4, 32): fields are left at (1, 16) and (2, 16) alone.
  Profile profile = test::tiny_profile();
  ProfileTable table = *find_tables(profile, OperationId::decode_attention).front();
  table.cells.clear();
  for (const std::int64_t batch : {1, 2, 4}) {
    for (const std::int64_t context : {16, 32, 64}) {
      if (context == 16 || (batch == 1 && context == 32) || (batch == 2 && context == 32)) {
        table.cells.push_back(cell({batch, context}, 1e-4 * static_cast<double>(batch * context)));
      }
    }
  }
  profile.tables = {table};
  std::vector<std::vector<std::int64_t>> between;
  std::int64_t asked = 0;
  const CheckReport report =
      check_by_measuring(profile,
                         [&](const ProfileTable&, const Place& place) {
                           // Cell, cell; two corners, the place, two more.
                           if (asked++ % 7 == 4) {
                             between.push_back(place.at);
                           }
                           return 1e-4 * static_cast<double>(place.at[0] * place.at[1]);
                         },
                         {.seed = 1, .cells = 10});
  EXPECT_EQ(asked, 70);
  ASSERT_EQ(between.size(), 10U);
  for (const std::vector<std::int64_t>& place : between) {
    EXPECT_LE(place[0], 2);
    EXPECT_GE(place[1], 16);
    EXPECT_LE(place[1], 32);
  }
  EXPECT_NEAR(find(report, Rung::held_out, OperationId::decode_attention)->errors.worst, 0, 1e-9);
}

TEST(CheckByMeasuring, MeasuresARaggedBatchBesideItsParts) {
  Profile profile = with_ragged_batch();
  const MeasureCell measure = [](const ProfileTable& table, const Place& place) {
    switch (table.operation) {
      case OperationId::ragged_attention:
        EXPECT_EQ(place.parts.size(), 5U);
        return std::optional(12.5);
      case OperationId::prefill_attention:
        EXPECT_EQ(place.at, (std::vector<std::int64_t>{4, 8}));
        return std::optional(6.0);
      default:
        // Four requests of 64 tokens in total.
        EXPECT_EQ(place.at, (std::vector<std::int64_t>{4, 16}));
        return std::optional(4.0);
    }
  };
  std::erase_if(profile.tables, [](const ProfileTable& table) {
    return table.operation != OperationId::ragged_attention &&
           table.operation != OperationId::prefill_attention &&
           table.operation != OperationId::decode_attention;
  });
  // One cell each, which is what is asked for.
  for (ProfileTable& table : profile.tables) {
    if (table.operation != OperationId::ragged_attention) {
      table.cells.resize(1);
      table.cells[0].at = table.operation == OperationId::prefill_attention
                              ? std::vector<std::int64_t>{4, 8}
                              : std::vector<std::int64_t>{4, 16};
    }
  }
  const CheckRow row = *find(check_by_measuring(profile, measure, {.seed = 1, .cells = 1}),
                             Rung::composition, OperationId::ragged_attention);
  EXPECT_EQ(row.errors.count, 1);
  EXPECT_NEAR(row.errors.worst, 0.2, 1e-9);  // 10 s of parts against 12.5 s
  EXPECT_EQ(row.in_band, false);
}

TEST(CheckByMeasuring, CountsCellsThatCannotBeMeasured) {
  const CheckReport report = check_by_measuring(
      straight_line(4), [](const ProfileTable&, const Place&) { return std::nullopt; },
      {.seed = 3, .cells = 4});
  EXPECT_EQ(find(report, Rung::repeat, OperationId::gemm)->left_out, 4);
  EXPECT_EQ(find(report, Rung::held_out, OperationId::gemm)->left_out, 4);
  EXPECT_TRUE(report.in_band());
}

}  // namespace
}  // namespace kvtier::calibrate
