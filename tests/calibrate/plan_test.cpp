#include "calibrate/plan.hpp"

#include <stdexcept>

#include <gtest/gtest.h>

namespace kvtier::calibrate {
namespace {

using At = std::vector<std::int64_t>;

struct FakeClock final : Clock {
  [[nodiscard]] std::int64_t now_ns() override { return ns; }
  std::int64_t ns = 0;
};

class RunPlan : public testing::Test {
 protected:
  PlannedTable table(OperationId operation, const char* variant) {
    PlannedTable planned{
        .rules = {
            .warm_up = 1, .samples_min = 3, .samples_max = 3, .budget_seconds = 10, .patience = 2}};
    planned.table = {
        .operation = operation, .variant = variant, .axes = profile_operation(operation).axes};
    if (operation == OperationId::gemm) {
      planned.table.shape = {{"n", 1}, {"k", 1}, {"element_bytes", 4}};
    }
    return planned;
  }
  /// A cell whose samples take these seconds, one after another; the last value repeats.
  PlannedCell cell(At at, std::vector<double> seconds, std::int64_t bytes = 0) {
    return {.at = std::move(at),
            .memory = Bytes(bytes),
            .prepare = [this, seconds = std::move(seconds)]() -> Sample {
              ++prepared_;
              return [this, seconds, i = std::size_t{0}]() mutable {
                const double value = seconds[std::min(i++, seconds.size() - 1)];
                clock_.ns += static_cast<std::int64_t>(value * 1e9);
                return value;
              };
            }};
  }
  void run(const std::vector<PlannedTable>& plan) {
    RunOptions options;
    options.memory = Bytes(1 << 20);
    options.seconds = seconds_;
    options.visits = visits_;
    options.progress = [this](const Progress& progress) { progress_.push_back(progress); };
    options.check = [this] {
      if (checks_++ == stop_at_) {
        throw std::runtime_error("stop");
      }
    };
    options.keep = [this](const Profile& profile) { kept_.push_back(profile); };
    run_plan(plan, options, clock_, monitor_, profile_);
  }

  FakeClock clock_;
  NoMonitor monitor_;
  Profile profile_;
  std::vector<Progress> progress_;
  std::vector<Profile> kept_;
  double seconds_ = 1000;
  int visits_ = 1;
  int prepared_ = 0;
  int checks_ = 0;
  int stop_at_ = -1;
};

TEST_F(RunPlan, MeasuresEveryCellInOrder) {
  PlannedTable planned = table(OperationId::control_step, "lookup");
  planned.cells = {cell({8}, {1}), cell({64}, {2})};
  run({planned});
  ASSERT_EQ(profile_.tables.size(), 1U);
  ASSERT_EQ(profile_.tables[0].cells.size(), 2U);
  EXPECT_EQ(profile_.tables[0].cells[1].at, At{64});
  EXPECT_DOUBLE_EQ(profile_.tables[0].cells[1].median_seconds, 2);
  EXPECT_EQ(profile_.tables[0].cells[1].n, 3);
  // The first cell took 4 samples of 1 s, and one cell is left: 4 s.
  ASSERT_EQ(progress_.size(), 2U);
  EXPECT_EQ(progress_[0].cell, "control_step lookup [8]");
  EXPECT_EQ(progress_[1].done, 1U);
  EXPECT_EQ(progress_[1].all, 2U);
  EXPECT_DOUBLE_EQ(progress_[1].seconds_left, 4);
  EXPECT_EQ(kept_.size(), 2U);
}

// A cell takes 4 s, so the time ends in the second cell of the first table.
TEST_F(RunPlan, MeasuresSomeCellsOfEveryTableIfTimeIsShort) {
  seconds_ = 10;
  PlannedTable planned = table(OperationId::control_step, "lookup");
  PlannedTable other = table(OperationId::control_step, "allocation");
  for (const std::int64_t at : {8, 64, 512}) {
    planned.cells.push_back(cell({at}, {1}));
    other.cells.push_back(cell({at}, {1}));
  }
  run({planned, other});
  ASSERT_EQ(profile_.tables.size(), 2U);
  EXPECT_EQ(profile_.tables[0].cells.size(), 2U);
  EXPECT_EQ(profile_.tables[0].left_out.size(), 1U);
  EXPECT_EQ(profile_.tables[1].cells.size(), 1U);
  EXPECT_EQ(profile_.tables[1].left_out.size(), 2U);
}

TEST_F(RunPlan, MeasuresOnlyCellsThatTheProfileLacks) {
  PlannedTable planned = table(OperationId::control_step, "lookup");
  planned.cells = {cell({8}, {1})};
  run({planned});
  planned.cells.push_back(cell({64}, {2}));
  PlannedTable other = table(OperationId::control_step, "allocation");
  other.cells = {cell({8}, {3})};
  run({planned, other});
  EXPECT_EQ(prepared_, 3);
  ASSERT_EQ(profile_.tables.size(), 2U);
  EXPECT_EQ(profile_.tables[0].cells.size(), 2U);
  EXPECT_EQ(profile_.tables[1].cells.size(), 1U);
}

// At most 3 samples in 3 visits: one each. The machine is slow in the second visit only, so the
// median of 1 s, 2 s, 1 s is 1 s for every cell.
TEST_F(RunPlan, VisitsEveryCellSeveralTimes) {
  visits_ = 3;
  PlannedTable planned = table(OperationId::control_step, "lookup");
  for (const std::int64_t at : {8, 64, 512}) {
    planned.cells.push_back(cell({at}, {1}));
    planned.cells.back().prepare = [this]() -> Sample {
      const double seconds = prepared_++ / 3 == 1 ? 2 : 1;
      return [this, seconds] {
        clock_.ns += static_cast<std::int64_t>(seconds * 1e9);
        return seconds;
      };
    };
  }
  run({planned});
  EXPECT_EQ(prepared_, 9);
  ASSERT_EQ(profile_.tables[0].cells.size(), 3U);
  for (const ProfileCell& measured : profile_.tables[0].cells) {
    EXPECT_EQ(measured.n, 3);
    EXPECT_DOUBLE_EQ(measured.median_seconds, 1);
    EXPECT_DOUBLE_EQ(measured.p75_seconds, 1.5);
  }
  EXPECT_EQ(profile_.tables[0].cells[2].at, At{512});
  EXPECT_EQ(progress_.back().done, 8U);
  EXPECT_EQ(progress_.back().all, 9U);
  EXPECT_EQ(kept_.size(), 5U);  // each cell of the first visit, and the two other visits
}

// Two cells, one visit each in the first round, and five more in the second: three of the one table
// and one of each of the other's two.
TEST_F(RunPlan, VisitsSomeTablesOftenInARound) {
  visits_ = 2;
  PlannedTable often = table(OperationId::control_step, "lookup");
  often.cells = {cell({8}, {1})};
  often.visits_in_round = 3;
  PlannedTable once = table(OperationId::control_step, "allocation");
  once.cells = {cell({8}, {1}), cell({64}, {1})};
  run({often, once});
  EXPECT_EQ(prepared_, 3 + 5);
  // Two samples at most in a visit.
  EXPECT_EQ(profile_.tables[0].cells[0].n, 4 * 2);
  EXPECT_EQ(profile_.tables[1].cells[1].n, 2 * 2);
  EXPECT_EQ(progress_.back().done, 7U);
  EXPECT_EQ(progress_.back().all, 8U);
}

// The first visits take 3 x 2 s (a warm-up and a sample), the time is up in the second: what was
// measured stays.
TEST_F(RunPlan, KeepsTheFirstVisitWhenTimeIsUp) {
  visits_ = 3;
  seconds_ = 7;
  PlannedTable planned = table(OperationId::control_step, "lookup");
  planned.cells = {cell({8}, {1}), cell({64}, {1}), cell({512}, {1})};
  run({planned});
  EXPECT_EQ(prepared_, 4);
  EXPECT_EQ(profile_.tables[0].cells.size(), 3U);
  EXPECT_TRUE(profile_.tables[0].left_out.empty());
}

// Disturbed in the first visit, measured in the second.
TEST_F(RunPlan, TriesACellAgainInEveryVisit) {
  struct Once final : DisturbanceMonitor {
    void begin() override {}
    [[nodiscard]] bool disturbed() override { return left-- > 0; }
    int left = 1;
  } once;
  PlannedTable planned = table(OperationId::control_step, "lookup");
  planned.rules = {.warm_up = 0, .samples_min = 1, .samples_max = 2, .budget_seconds = 0.5};
  planned.cells = {cell({8}, {5})};
  run_plan({planned}, {.memory = Bytes(1), .seconds = 1000, .visits = 2}, clock_, once, profile_);
  ASSERT_EQ(profile_.tables[0].cells.size(), 1U);
  EXPECT_EQ(profile_.tables[0].cells[0].n, 1);
  EXPECT_EQ(profile_.tables[0].cells[0].disturbed, 1);
  EXPECT_TRUE(profile_.tables[0].left_out.empty());
}

// Kept profiles can be read again: they have no table without a cell.
TEST_F(RunPlan, KeepsNoEmptyTable) {
  struct Always final : DisturbanceMonitor {
    void begin() override {}
    [[nodiscard]] bool disturbed() override { return true; }
  } always;
  PlannedTable planned = table(OperationId::control_step, "lookup");
  planned.cells = {cell({8}, {5})};
  std::vector<std::size_t> tables;
  run_plan({planned},
           {.memory = Bytes(1),
            .seconds = 1000,
            .visits = 2,
            .keep = [&](const Profile& profile) { tables.push_back(profile.tables.size()); }},
           clock_, always, profile_);
  EXPECT_EQ(tables, std::vector<std::size_t>{1});  // at the end, with the cell that is left out
}

TEST_F(RunPlan, LeavesOutCellsThatNeedTooMuchMemory) {
  PlannedTable planned = table(OperationId::control_step, "lookup");
  planned.cells = {cell({8}, {1}, 3 << 20)};
  run({planned});
  EXPECT_EQ(prepared_, 0);
  ASSERT_EQ(profile_.tables[0].left_out.size(), 1U);
  EXPECT_EQ(profile_.tables[0].left_out[0].why, "needs 3 MiB, 1 MiB may be used");
}

TEST_F(RunPlan, TakesATablesOwnLimitOfMemory) {
  PlannedTable planned = table(OperationId::control_step, "lookup");
  planned.memory = Bytes(4 << 20);
  planned.cells = {cell({8}, {1}, 3 << 20), cell({64}, {1}, 5 << 20)};
  run({planned});
  EXPECT_EQ(prepared_, 1);
  ASSERT_EQ(profile_.tables[0].left_out.size(), 1U);
  EXPECT_EQ(profile_.tables[0].left_out[0].why, "needs 5 MiB, 4 MiB may be used");
}

TEST_F(RunPlan, LeavesOutAFailedCellAndContinues) {
  PlannedTable planned = table(OperationId::control_step, "lookup");
  planned.cells = {cell({8}, {1}), cell({64}, {2})};
  planned.cells[0].prepare = []() -> Sample {
    return []() -> double { throw CannotMeasure("nothing ran beside it"); };
  };
  run({planned});
  ASSERT_EQ(profile_.tables[0].left_out.size(), 1U);
  EXPECT_EQ(profile_.tables[0].left_out[0].at, At{8});
  EXPECT_EQ(profile_.tables[0].left_out[0].why, "nothing ran beside it");
  // Larger cells are still measured.
  ASSERT_EQ(profile_.tables[0].cells.size(), 1U);
  EXPECT_EQ(profile_.tables[0].cells[0].at, At{64});
}

// 4 samples of 1 s, and the second cell comes after the 3 s that the run may take.
TEST_F(RunPlan, LeavesOutCellsAfterItsTime) {
  seconds_ = 3;
  PlannedTable planned = table(OperationId::control_step, "lookup");
  planned.cells = {cell({8}, {1}), cell({64}, {1})};
  run({planned});
  EXPECT_EQ(profile_.tables[0].cells.size(), 1U);
  ASSERT_EQ(profile_.tables[0].left_out.size(), 1U);
  EXPECT_EQ(profile_.tables[0].left_out[0].why, "the time of the whole run was used up");
}

// A run of 21 s is over twice the budget of 10 s; [4, 2] is not as large along both axes.
TEST_F(RunPlan, SkipsCellsLargerThanOneThatTakesTooLong) {
  PlannedTable planned = table(OperationId::drive_read, "random");
  planned.cells = {cell({8, 4}, {21}), cell({8, 8}, {21}), cell({4, 8}, {1})};
  run({planned});
  EXPECT_EQ(prepared_, 2);
  ASSERT_EQ(profile_.tables[0].left_out.size(), 2U);
  EXPECT_EQ(profile_.tables[0].left_out[0].why, "one run takes 21.0 s, a cell may take 10 s");
  EXPECT_EQ(profile_.tables[0].left_out[1].why, "larger than [8, 4], which takes too long");
  EXPECT_EQ(profile_.tables[0].cells.size(), 1U);
}

// 16 tokens take a quarter of the time of 8. The cell of 8 was wrong: measured again, it takes 0.2
// s.
TEST_F(RunPlan, MeasuresAgainACellThatALaterOneContradicts) {
  PlannedTable planned = table(OperationId::gemm, "qkv");
  planned.cells = {cell({8}, {1}), cell({16}, {0.25})};
  planned.cells[0].prepare = [this]() -> Sample {
    const double seconds = ++prepared_ == 1 ? 1 : 0.2;
    return [this, seconds] {
      clock_.ns += static_cast<std::int64_t>(seconds * 1e9);
      return seconds;
    };
  };
  run({planned});
  EXPECT_EQ(prepared_, 3);
  ASSERT_EQ(profile_.tables[0].cells.size(), 2U);
  EXPECT_EQ(profile_.tables[0].cells[1].at, At{8});
  EXPECT_DOUBLE_EQ(profile_.tables[0].cells[1].median_seconds, 0.2);
  EXPECT_EQ(progress_.back().all, 3U);
}

TEST_F(RunPlan, LeavesOutACellThatContradictsItsNeighboursTwice) {
  PlannedTable planned = table(OperationId::gemm, "qkv");
  planned.cells = {cell({8}, {1}), cell({16}, {0.25}), cell({32}, {0.5})};
  run({planned});
  EXPECT_EQ(profile_.tables[0].cells.size(), 2U);
  ASSERT_EQ(profile_.tables[0].left_out.size(), 1U);
  EXPECT_EQ(profile_.tables[0].left_out[0].at, At{8});
  EXPECT_EQ(profile_.tables[0].left_out[0].why, "contradicts its neighbours, twice");
}

TEST_F(RunPlan, LeavesOutCellsBelowTheLimit) {
  PlannedTable planned = table(OperationId::control_step, "lookup");
  planned.cells = {cell({8}, {0.5})};
  planned.cells[0].limit_seconds = 0.75;
  run({planned});
  ASSERT_EQ(profile_.tables[0].left_out.size(), 1U);
  EXPECT_EQ(profile_.tables[0].left_out[0].why,
            "every sample was shorter than 0.75 s, which nothing is");
}

// Four checks for the first cell, and the second stops at once.
TEST_F(RunPlan, KeepsMeasuredCellsWhenItEndsEarly) {
  stop_at_ = 4;
  PlannedTable planned = table(OperationId::control_step, "lookup");
  planned.cells = {cell({8}, {1}), cell({64}, {1})};
  PlannedTable other = table(OperationId::control_step, "allocation");
  other.cells = {cell({8}, {1})};
  EXPECT_THROW(run({planned, other}), std::runtime_error);
  ASSERT_EQ(kept_.size(), 1U);
  ASSERT_EQ(kept_[0].tables.size(), 1U);  // a table without a cell would be no valid profile
  EXPECT_EQ(kept_[0].tables[0].cells.size(), 1U);
  stop_at_ = -1;
  run({planned, other});
  ASSERT_EQ(profile_.tables.size(), 2U);
  EXPECT_EQ(profile_.tables[0].cells.size(), 2U);
}

// A profile with both cells could not be read, and so not be resumed.
TEST_F(RunPlan, KeepsNoContradictions) {
  PlannedTable planned = table(OperationId::gemm, "qkv");
  planned.cells = {cell({8}, {1}), cell({16}, {0.25}), cell({32}, {0.5})};
  PlannedTable other = table(OperationId::control_step, "lookup");
  other.cells = {cell({8}, {1})};
  const auto expect_valid = [](const Profile& profile) {
    ASSERT_FALSE(profile.tables.empty());
    std::vector<At> places;
    for (const ProfileCell& kept : profile.tables[0].cells) {
      places.push_back(kept.at);
    }
    EXPECT_EQ(places, (std::vector<At>{{16}, {32}}));
  };
  stop_at_ = 16;  // four checks for each cell: the contradicted one begins once more
  EXPECT_THROW(run({planned, other}), std::runtime_error);
  ASSERT_EQ(kept_.size(), 4U);
  expect_valid(kept_[2]);
  expect_valid(kept_[3]);
  expect_valid(profile_);
}

TEST_F(RunPlan, MeasuresACellAtAnyPlaceOfATable) {
  PlannedTable planned = table(OperationId::gemm, "qkv");
  planned.cell_at = [this](const Place& place) {
    const std::int64_t tokens = place.at[0];
    return cell(place.at, {static_cast<double>(tokens)}, tokens == 7 ? 3 << 20 : 0);
  };
  const RunOptions options{.memory = Bytes(1 << 20)};
  const auto measured = [&](const ProfileTable& setting, std::int64_t tokens) {
    return measure_cell({planned}, setting, {{tokens}}, options, clock_, monitor_);
  };
  EXPECT_EQ(measured(planned.table, 3), 3.0);
  EXPECT_EQ(measured(planned.table, 7), std::nullopt);   // memory
  EXPECT_EQ(measured(planned.table, 50), std::nullopt);  // time
  ProfileTable other = planned.table;
  other.method = "another";
  EXPECT_EQ(measured(other, 3), std::nullopt);
}

TEST(ForgetLeftOut, KeepsCellsThatASecondTryWouldNotChange) {
  Profile profile;
  profile.tables.resize(2);
  profile.tables[0].left_out = {{{1}, "the time of the whole run was used up"},
                                {{2}, "larger than [1], which takes too long"},
                                {{3}, "every sample was disturbed"},
                                {{4}, "contradicts its neighbours, twice"},
                                {{5}, "needs 3 MiB, 1 MiB may be used"}};
  profile.tables[1].left_out = {{{1}, "every sample was disturbed"}};
  forget_left_out(profile);
  ASSERT_EQ(profile.tables.size(), 1U);
  ASSERT_EQ(profile.tables[0].left_out.size(), 1U);
  EXPECT_EQ(profile.tables[0].left_out[0].at, At{2});
}

}  // namespace
}  // namespace kvtier::calibrate
