#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "calibrate/check.hpp"
#include "hw/profile/profile.hpp"
#include "tests/hw/load.hpp"

namespace kvtier::calibrate {
namespace {

Profile shipped(const std::string& name) {
  return read_profile(test::config_folder("profiles") / (name + ".json"));
}

/// Gaps are twice as wide as the grid's (cross_validate). configs/profiles/README.md has the table.
TEST(GpuProfiles, PredictHeldOutCellsBetterThanTheRoofline) {
  for (const char* name :
       {"h100-vllm", "h200-vllm", "b200-vllm", "gb200-vllm", "b300-vllm", "a100-vllm", "l40s-vllm",
        "rtxpro6000-server-vllm", "h100-sglang", "h200-sglang", "b200-sglang", "gb200-sglang",
        "h100-tensorrt-llm", "h200-tensorrt-llm", "b200-tensorrt-llm", "gb200-tensorrt-llm"}) {
    SCOPED_TRACE(name);
    int judged = 0;
    for (const CheckRow& row : cross_validate(shipped(name), 1).rows) {
      if (row.roofline.count < 100) {
        continue;
      }
      SCOPED_TRACE(std::string(to_string(row.operation)) + " " + row.kind);
      ++judged;
      EXPECT_LE(row.errors.p50, 0.09);
      EXPECT_LE(row.errors.p90, 0.5);
      EXPECT_LT(row.errors.p50, row.roofline.p50);
      if (row.kind.ends_with("heads")) {
        EXPECT_LE(row.errors.p50, 0.08);
        // TensorRT-LLM changes kernels with the number of heads.
        EXPECT_LE(row.errors.p90, std::string(name).ends_with("tensorrt-llm") ? 0.46 : 0.3);
      }
    }
    EXPECT_GE(judged, 5);
  }
}

TEST(GpuProfiles, PredictCachedPrefixesByTheLaw) {
  const CheckReport report = cross_validate(shipped("rtxpro6000-vllm"), 1);
  int found = 0;
  for (const CheckRow& row : report.rows) {
    if (row.kind.ends_with("past by law")) {
      ++found;
      EXPECT_LE(row.errors.p50, 0.05);
      EXPECT_LE(row.errors.p90, 0.25);
      EXPECT_GT(row.roofline.p50, 0.3);
    }
  }
  EXPECT_EQ(found, 1);
}

/// Without the factor the median error is 24 %.
TEST(GpuProfiles, PredictIterationsThatMixPromptsAndDecodes) {
  for (const CheckRow& row : cross_validate(shipped("rtxpro6000-vllm"), 1).rows) {
    if (row.operation == OperationId::mixed_attention) {
      EXPECT_LE(row.errors.p50, row.rung == Rung::held_out ? 0.06 : 0.3);
      EXPECT_GE(row.errors.p50, row.rung == Rung::held_out ? 0.0 : 0.15);
    }
  }
}

TEST(GpuProfiles, ComparedWithThemselvesHaveNothingToPredict) {
  const Profile profile = shipped("a100-vllm");
  for (const CheckRow& row : compare_with(profile, profile).rows) {
    EXPECT_EQ(row.errors.count, 0) << to_string(row.operation);
  }
}

}  // namespace
}  // namespace kvtier::calibrate
