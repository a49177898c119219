/// AttentionStore's experiments on one batch (figures 18 to 20) with the hardware as it is
/// described: nothing is fitted to these figures.

#include "sim/study/papers/batch_experiments.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "hw/model/model.hpp"
#include "hw/timing/roofline.hpp"
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

constexpr BatchPrefill split(std::int64_t history, std::int64_t added) {
  return {.batch = 16, .history = Tokens(history), .added = Tokens(added)};
}

TEST(BatchPrefillTimes, OrderTheVariantsAsTheyHideMore) {
  const RunConfig config = one_gpu();
  double blocking = 0;
  for (const std::int64_t added : {100, 200, 300, 400, 500}) {
    const BatchPrefillTimes times = batch_prefill_times(config, split(1000 - added, added));
    EXPECT_EQ(times.recompute_seconds,
              batch_prefill_times(config, split(1, 999)).recompute_seconds);
    EXPECT_GT(times.recompute_seconds, times.blocking_seconds);
    EXPECT_GT(times.blocking_seconds, times.preloading_seconds[0]);
    EXPECT_GT(times.preloading_seconds[0], times.preloading_seconds[15]);
    EXPECT_GT(times.blocking_seconds, blocking) << "more is computed";
    blocking = times.blocking_seconds;
  }
}

TEST(BatchPrefillTimes, AreComputeBoundWithABufferWhileEnoughIsNew) {
  // 500 of 1,000 tokens: 6.3 ms to load a layer and more to compute it. 15 layers hide all
  // loading, so that what is left is the compute of 500 tokens.
  const RunConfig config = one_gpu();
  const RooflineTiming timing(config.model, config.hardware, 1);
  const std::vector<PrefillPart> parts(16, {.added = Tokens(500), .past = Tokens(500)});
  EXPECT_NEAR(batch_prefill_times(config, split(500, 500)).preloading_seconds[15],
              timing.prefill(parts).total.seconds(), 1e-9);
}

TEST(BatchPrefillTimes, FollowThePipeline) {
  const RunConfig config = one_gpu();
  const BatchPrefillTimes times = batch_prefill_times(config, split(1000, 100));
  const LayerPipeline p = batch_pipeline(config, split(1000, 100));
  const double outside = times.blocking_seconds - 40 * (p.load.seconds() + p.compute.seconds());
  // The fixed time of an iteration, 4 ms, and a head of 0.3 GB.
  EXPECT_NEAR(outside, 0.0042, 0.0001);
  // Loading takes longer than computing: 40 - b loads, then the last layer.
  ASSERT_GT(p.load, p.compute);
  for (const std::int64_t b : {0, 1, 7, 15}) {
    EXPECT_NEAR(times.preloading_seconds[static_cast<std::size_t>(b)],
                static_cast<double>(40 - b) * p.load.seconds() + p.compute.seconds() + outside,
                1e-9);
  }
  ASSERT_EQ(times.preloading_seconds.size(), 41U);
  for (std::size_t b = 1; b <= 40; ++b) {
    EXPECT_LE(times.preloading_seconds[b], times.preloading_seconds[b - 1]);
  }
  EXPECT_EQ(times.preloading_seconds[40], times.preloading_seconds[39]);
}

/// 40 layers, 15 of them in the buffer: at best 25 loads take as long as 39 computes. The request
/// then takes 40 computes of the 40 + 40 x 39 / 25 without pre-loading, 39 %. The 61 % less of
/// figure 19 is that limit, which the fixed time of an iteration keeps out of reach.
TEST(BatchPrefillTimes, CannotGainMoreThanFigure19Says) {
  double best = 0;
  for (int percent = 1; percent <= 100; ++percent) {
    const BatchPrefillTimes times = batch_prefill_times(
        one_gpu({"/hardware/efficiency/compute=" + std::to_string(percent / 100.0)}),
        split(1000, 100));
    best = std::min(best, times.preloading_seconds[15] / times.blocking_seconds - 1);
  }
  EXPECT_LT(best, -0.60);
  EXPECT_GT(best, -0.61);
}

TEST(BatchSaveTimes, AddUpByHand) {
  // 1,000 tokens: 16 x 1,020 tokens x 819,200 B at 26 GB/s.
  const RunConfig config = one_gpu();
  const BatchSaveTimes times = batch_save_times(config, 16, Tokens(1000), 20);
  EXPECT_NEAR(times.save_seconds, 16 * 1020 * 819200.0 / 26e9, 1e-9);
  EXPECT_NEAR(times.blocking_seconds,
              times.prefill_seconds + times.decode_seconds + times.save_seconds, 1e-12);
  EXPECT_EQ(times.async_seconds, times.prefill_seconds + times.decode_seconds);
  // 13.1 GB take 0.504 s of the 0.53 s of decode, which also leaves time for the KV of all
  // iterations but the last.
  EXPECT_EQ(times.unsaved, kv_bytes_per_token(config.model) * 16);
}

TEST(BatchSaveTimes, AreShorterIfEachGpuHasALink) {
  const auto save_seconds = [](const std::string& bandwidth) {
    return batch_save_times(one_gpu({"/hardware/gpus=2", "/hardware/links/pcie/of=gpu",
                                     "/hardware/dram/bandwidth=" + bandwidth}),
                            16, Tokens(1000), 20)
        .save_seconds;
  };
  EXPECT_NEAR(save_seconds("400GB/s"), 16 * 1020 * 819200.0 / 52e9, 1e-9);
  EXPECT_NEAR(save_seconds("40GB/s"), 16 * 1020 * 819200.0 / 40e9, 1e-9);
}

TEST(BatchSaveTimes, WithoutAWriteBufferWaitForUnsavedKv) {
  const RunConfig config = one_gpu({"/system/save/write_buffer=0B"});
  for (const std::int64_t prompt : {1000, 1600}) {
    const BatchSaveTimes times = batch_save_times(config, 16, Tokens(prompt), 20);
    EXPECT_NEAR(times.async_seconds,
                times.prefill_seconds + times.decode_seconds +
                    static_cast<double>(times.unsaved.value) / 26e9,
                1e-9);
    EXPECT_LT(times.async_seconds, times.blocking_seconds);
  }
  EXPECT_GT(batch_save_times(config, 16, Tokens(1600), 20).unsaved, Bytes(std::int64_t{4} << 30));
}

}  // namespace
}  // namespace kvtier::test
