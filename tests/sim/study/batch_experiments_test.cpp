/// AttentionStore's experiments on one batch (figures 18 to 20) with the hardware as it is
/// described: nothing is fitted to these figures.

#include "sim/study/batch_experiments.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "hw/model.hpp"
#include "hw/roofline.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

/// LLaMA-13B on one A100.
RunConfig one_gpu(const std::vector<std::string>& more = {}) {
  std::vector<std::string> settings{"/hardware/gpus=1"};
  settings.insert(settings.end(), more.begin(), more.end());
  return resolved("papers/attentionstore/llama2-13b.json", settings);
}

TEST(BatchPipeline, LoadsTheHistoryOfAllRequestsLayerByLayer) {
  const RunConfig config = one_gpu();
  const LayerPipeline p =
      batch_pipeline(config, {.batch = 16, .history = Tokens(1000), .added = Tokens(100)});
  EXPECT_EQ(p.layers, 40);
  // 16 x 1,000 tokens x 2 x 40 heads x 128 x 2 B = 327.68 MB at 26 GB/s.
  EXPECT_NEAR(p.load.seconds(), 0.32768 / 26, 1e-9);
  const RooflineTiming timing(config.model, config.hardware, 1);
  const std::vector<PrefillPart> parts(16, {.added = Tokens(100), .past = Tokens(1000)});
  EXPECT_EQ(p.compute, timing.prefill(parts).layer);
}

TEST(HistoryShare, OrdersTheVariantsAsTheyHideMore) {
  const auto rows = history_share_experiment(one_gpu());
  ASSERT_EQ(rows.size(), 5U);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const HistoryShareRow& row = rows[i];
    EXPECT_EQ((row.prefill.history + row.prefill.added).value, 1000);
    EXPECT_EQ(row.recompute_seconds, rows[0].recompute_seconds);
    EXPECT_GT(row.recompute_seconds, row.blocking_seconds);
    EXPECT_GT(row.blocking_seconds, row.preloading_seconds);
    EXPECT_GT(row.preloading_seconds, row.buffered_seconds);
    if (i > 0) {
      EXPECT_LT(row.blocking_seconds, rows[i - 1].blocking_seconds) << "less is computed";
    }
  }
}

TEST(HistoryShare, WithABufferIsComputeBoundWhileEnoughIsNew) {
  // 500 of 1,000 tokens: 6.3 ms to load a layer and 24 ms to compute it. 15 layers hide all
  // loading, so that what is left is the compute of 500 tokens.
  const RunConfig config = one_gpu();
  const HistoryShareRow row = history_share_experiment(config).front();
  const RooflineTiming timing(config.model, config.hardware, 1);
  const std::vector<PrefillPart> parts(16, {.added = Tokens(500), .past = Tokens(500)});
  EXPECT_NEAR(row.buffered_seconds, timing.prefill(parts).total.seconds(), 1e-9);
}

TEST(ReadBufferExperiment, FollowsThePipeline) {
  const RunConfig config = one_gpu();
  const ReadBufferExperiment experiment = read_buffer_experiment(config);
  const LayerPipeline p =
      batch_pipeline(config, {.batch = 16, .history = Tokens(1000), .added = Tokens(100)});
  const double outside =
      experiment.blocking_seconds - 40 * (p.load.seconds() + p.compute.seconds());
  // The fixed time of an iteration, 4 ms, and a head of 0.3 GB.
  EXPECT_NEAR(outside, 0.0042, 0.0001);
  // Loading takes longer than computing: 40 - b loads, then the last layer.
  ASSERT_GT(p.load, p.compute);
  for (const std::int64_t b : {0, 1, 7, 15}) {
    EXPECT_NEAR(experiment.seconds[static_cast<std::size_t>(b)],
                static_cast<double>(40 - b) * p.load.seconds() + p.compute.seconds() + outside,
                1e-9);
  }
}

TEST(ReadBufferExperiment, GainsWithEachLayerUntilNothingIsLeftToHide) {
  const ReadBufferExperiment experiment = read_buffer_experiment(
      one_gpu(), {.batch = 16, .history = Tokens(1000), .added = Tokens(100)}, 40);
  for (std::size_t b = 1; b < experiment.seconds.size(); ++b) {
    EXPECT_LE(experiment.seconds[b], experiment.seconds[b - 1]);
  }
  EXPECT_LT(experiment.seconds[15], experiment.seconds[0]);
  EXPECT_EQ(experiment.seconds[40], experiment.seconds[39]);
}

/// Figure 19, in percent of the time without pre-loading: -35 without a buffer, -61 with 15 layers.
/// Compute at 68 % of peak is too fast for a band of 6 points, by 1.4 and 0.8 points.
TEST(ReadBufferExperiment, IsAtTheEdgeOfThePapersBand) {
  const ReadBufferExperiment experiment = read_buffer_experiment(one_gpu());
  EXPECT_NEAR(100 * experiment.change(0), -27.6, 0.1);
  EXPECT_NEAR(100 * experiment.change(15), -54.2, 0.1);
}

/// With the share of peak that LLaMA-65B's published prefill attains over all, 59 %, figure 19 is
/// within 6 points; so it is from 0.37 to 0.63.
TEST(ReadBufferExperiment, IsWithinThePapersBandAtTheShareOfPeakOverAll) {
  for (const char* share : {"0.37", "0.59", "0.63"}) {
    const ReadBufferExperiment experiment =
        read_buffer_experiment(one_gpu({std::string("/hardware/efficiency/compute=") + share}));
    EXPECT_NEAR(100 * experiment.change(0), -35, 6) << share;
    EXPECT_NEAR(100 * experiment.change(15), -61, 6) << share;
  }
}

/// Of 40 layers, 15 in the buffer: at best 25 loads take as long as 39 computes, and then the job
/// takes 40 computes of the 40 + 40 x 39 / 25 without pre-loading, 39 %. The paper's 61 % off is
/// that limit, which the fixed time of an iteration keeps out of reach.
TEST(ReadBufferExperiment, CannotGainMoreThanThePaperReports) {
  const RunConfig config = one_gpu();
  EXPECT_TRUE(compute_efficiency_for(config, 15, -0.605));
  EXPECT_FALSE(compute_efficiency_for(config, 15, -0.61));
}

/// Figure 20: saving in the background takes 13 to 15 % off, within 4 points.
TEST(SavingExperiment, IsNearThePaper) {
  const auto rows = saving_experiment(one_gpu());
  ASSERT_EQ(rows.size(), 4U);
  for (const SavingRow& row : rows) {
    EXPECT_GE(100 * row.change(), -15 - 4) << row.prompt.value;
    EXPECT_LE(100 * row.change(), -13 + 4) << row.prompt.value;
  }
}

TEST(SavingExperiment, AddsUpByHand) {
  // 1,000 tokens: 16 x 1,020 tokens x 819,200 B at 26 GB/s.
  const SavingRow row = saving_experiment(one_gpu()).front();
  EXPECT_NEAR(row.save_seconds, 16 * 1020 * 819200.0 / 26e9, 1e-9);
  EXPECT_NEAR(row.blocking_seconds, row.prefill_seconds + row.decode_seconds + row.save_seconds,
              1e-12);
  EXPECT_EQ(row.async_seconds, row.prefill_seconds + row.decode_seconds);
  // 13.1 GB take 0.504 s of the 0.53 s of decode, which also leaves time for the KV of all
  // iterations but the last.
  EXPECT_EQ(row.unsaved, kv_bytes_per_token(one_gpu().model) * 16);
}

TEST(SavingExperiment, WithoutAWriteBufferWaitsForWhatIsNotSaved) {
  const RunConfig config = one_gpu({"/system/save/write_buffer=0B"});
  for (const SavingRow& row : saving_experiment(config)) {
    EXPECT_NEAR(
        row.async_seconds,
        row.prefill_seconds + row.decode_seconds + static_cast<double>(row.unsaved.value) / 26e9,
        1e-9);
    EXPECT_LT(row.async_seconds, row.blocking_seconds);
  }
  EXPECT_GT(saving_experiment(config).back().unsaved, Bytes(std::int64_t{4} << 30));
}

TEST(Sensitivity, IsTheExperimentWithOneFactChanged) {
  using Fact = ReadBufferSensitivity::Fact;
  const RunConfig config = one_gpu();
  const auto same = read_buffer_sensitivity(config, Fact::compute_efficiency, {0.68});
  const auto slower = read_buffer_sensitivity(config, Fact::compute_efficiency, {0.34});
  EXPECT_EQ(same[0].change_without_buffer, read_buffer_experiment(config).change(0));
  EXPECT_EQ(same[0].change_with_all_buffers, read_buffer_experiment(config).change(15));
  EXPECT_GT(slower[0].compute_to_load, 1.9 * same[0].compute_to_load);
  // Both ways of raising compute over load do the same, but for what is outside of the layers.
  const auto wider = read_buffer_sensitivity(config, Fact::host_to_device_bandwidth, {52e9});
  EXPECT_NEAR(wider[0].compute_to_load, 2 * same[0].compute_to_load, 1e-6);
  EXPECT_NEAR(wider[0].change_without_buffer, slower[0].change_without_buffer, 0.02);
}

TEST(Sensitivity, FindsTheEfficiencyOfAChange) {
  const RunConfig config = one_gpu();
  for (const std::int64_t layers : {0, 15}) {
    const double change = layers == 0 ? -0.35 : -0.60;
    const std::optional<double> found = compute_efficiency_for(config, layers, change);
    ASSERT_TRUE(found);
    RunConfig at = config;
    at.hardware.efficiency.compute = *found;
    EXPECT_NEAR(read_buffer_experiment(at).change(layers), change, 0.001);
    at.hardware.efficiency.compute = *found + 0.001;
    EXPECT_GT(read_buffer_experiment(at).change(layers), change);
  }
  EXPECT_FALSE(compute_efficiency_for(config, 0, -0.6)) << "loading and computing are half at most";
}

TEST(BatchExperimentsReport, HasEveryRow) {
  const Json report = batch_experiments_report(one_gpu());
  EXPECT_EQ(report["history_share"].size(), 5U);
  EXPECT_EQ(report["read_buffer"]["by_buffered_layers"].size(), 16U);
  EXPECT_EQ(report["saving"].size(), 4U);
  EXPECT_EQ(report["read_buffer_sensitivity"].size(), 11U);
}

}  // namespace
}  // namespace kvtier::test
