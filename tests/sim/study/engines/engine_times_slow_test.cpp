/// Published runs of engines beside their prediction.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sim/study/engines/engine_times.hpp"
#include "sim/study/engines/error_ranges.hpp"
#include "sim/study/engines/served_run.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

ConfigDirectory presets() { return ConfigDirectory(fs::path(KVTIER_SOURCE_DIR) / "configs"); }

/// Runs of the sample that the program comes with.
TEST(EngineTimesSlow, PredictsRunsThatNothingWasFittedTo) {
  const EngineTimes times =
      predict_measured_runs(presets().path() / "engines" / "measured.csv", presets(), {.jobs = 2});
  const std::vector<Wanted> wanted = wanted_of(times);
  ASSERT_EQ(wanted.size(), 9U);
  for (const Wanted& one : wanted) {
    EXPECT_TRUE(one.is_met()) << one.what << ": " << one.percent;
  }
  double rows = 0;
  double within = 0;
  for (const ClassRange& one : ranges_of(times)) {
    rows += static_cast<double>(one.rows);
    within += static_cast<double>(one.rows) * one.coverage;
  }
  EXPECT_GT(rows, 200);
  EXPECT_GT(within / rows, 0.7);
  EXPECT_LT(within / rows, 0.9);
  std::vector<double> errors;
  for (const PredictedRun& one : times.runs) {
    if (one.run.model == "Llama-3.1-70B" && one.run.gpu == "h100_sxm") {
      ASSERT_TRUE(one.not_expressed.empty()) << one.not_expressed;
      errors.push_back(std::abs(one.error()));
    }
  }
  ASSERT_GE(errors.size(), 3U);
  std::ranges::sort(errors);
  EXPECT_LT(errors[errors.size() / 2], 0.04);
  EXPECT_LT(errors.back(), 0.12);
}

/// All published runs, which KVTIER_TEST_DATA has. The sample has too few runs of a class.
TEST(EngineTimesSlow, RangesHoldFourFifthsOfTheRunsThatTheyWereNotFittedTo) {
  const char* const data = std::getenv("KVTIER_TEST_DATA");
  if (data == nullptr) {
    GTEST_SKIP() << "KVTIER_TEST_DATA does not name the folder of the runs";
  }
  const EngineTimes times = predict_measured_runs(
      fs::path(data) / "kernels" / "measured_h100_b200.csv.gz", presets(), {.jobs = 2});
  const std::vector<ClassRange> ranges = ranges_of(times);
  EXPECT_EQ(ranges.size(), 8U);
  for (const ClassRange& one : ranges) {
    EXPECT_GT(one.coverage, 0.7) << one.source << (one.has_experts ? ", experts" : "");
    EXPECT_LT(one.coverage, 0.9) << one.source << (one.has_experts ? ", experts" : "");
    EXPECT_GT(one.median_width, 0);
  }
}

/// Whole runs, which KVTIER_TEST_DATA has.
TEST(EngineTimesSlow, PredictsServedRunsWithinTheWantedErrors) {
  const char* const data = std::getenv("KVTIER_TEST_DATA");
  if (data == nullptr) {
    GTEST_SKIP() << "KVTIER_TEST_DATA does not name the folder of the runs";
  }
  const fs::path runs = fs::path(data) / "kernels" / "llmservingsim_rtxpro6000";
  for (const auto& [name, profile] :
       {std::pair{"Llama-3.1-8B", ""}, std::pair{"Llama-3.1-8B", "rtxpro6000-vllm"},
        std::pair{"Qwen3-30B-A3B-Instruct-2507", "rtxpro6000-qwen3-30b-a3b-vllm"}}) {
    const ServedRun run = predict_served_run(runs / name, "rtxpro6000-8x", profile, presets());
    EXPECT_EQ(run.measured.size(), 300U);
    for (const Wanted& one : wanted_of(run)) {
      EXPECT_TRUE(one.is_met()) << name << ", " << one.what << ": " << one.percent;
    }
  }
}

}  // namespace
}  // namespace kvtier
