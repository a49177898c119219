#include "hw/timing/roofline.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"
#include "tests/hw/load.hpp"
#include "tests/hw/tiny_model.hpp"

namespace kvtier {
namespace {

using namespace literals;
using test::load_hardware;
using test::load_model;
using test::tiny_model;
using test::with_gpus;

/// 1,000 FLOP/s, 1,000 B/s, 1 s per iteration, and between GPUs 100 B/s and 0.5 s per step.
HardwareConfig tiny_hardware() {
  HardwareConfig hardware;
  hardware.gpu.peak = FlopsPerSecond(1000);
  hardware.hbm.bandwidth = BytesPerSecond(1000);
  hardware.links.gpu.bandwidth = BytesPerSecond(100);
  hardware.links.gpu.latency = 500_ms;
  hardware.efficiency.iteration_overhead = 1_s;
  return hardware;
}

PrefillTime prefill(const RooflineTiming& timing, const std::vector<PrefillPart>& parts) {
  return timing.prefill(parts);
}

PrefillTime prefill(const RooflineTiming& timing, std::int64_t added, std::int64_t past = 0) {
  return prefill(timing, std::vector<PrefillPart>{{Tokens(added), Tokens(past)}});
}

double decode_seconds(const RooflineTiming& timing, std::int64_t batch, std::int64_t context) {
  return static_cast<double>(timing.decode_ticks(batch, Tokens(context))) /
         (1e9 * static_cast<double>(kTicksPerNs));
}

// Whole nanoseconds are rounded up, once per layer.
constexpr double kRounding = 1e-8;

TEST(RooflinePrefill, IsBoundByComputeOnManyTokens) {
  const RooflineTiming timing(tiny_model(), tiny_hardware(), 1);
  // Dense max(3 x 224, 224) = 672; attention 3 x 5 + 3 x 4 / 2 = 21 pairs x 16 = 336 FLOP, over
  // (5 + 2 x 3) x 8 = 88 B: 1.008 s a layer. Total 2 x 1.008 + head 0.08 + 1.
  const PrefillTime time = prefill(timing, 3, 5);
  EXPECT_NEAR(time.layer.seconds(), 1.008, kRounding);
  EXPECT_NEAR(time.total.seconds(), 3.096, kRounding);
}

TEST(RooflinePrefill, IsBoundByMemoryOnOneTokenWithALongPast) {
  HardwareConfig hardware = tiny_hardware();
  hardware.hbm.bandwidth = BytesPerSecond(100);
  const RooflineTiming timing(tiny_model(), hardware, 1);
  // Dense max(0.224, 2.24); attention 101 pairs 1.616 s, under (100 + 2) x 8 B = 8.16 s: 10.4 s a
  // layer. Total 2 x 10.4 + head 0.8 + 1.
  const PrefillTime time = prefill(timing, 1, 100);
  EXPECT_NEAR(time.layer.seconds(), 10.4, kRounding);
  EXPECT_NEAR(time.total.seconds(), 22.6, kRounding);
}

TEST(RooflinePrefill, HalvesTheWorkOnTwoGpusAndAddsAllReduces) {
  const RooflineTiming timing(tiny_model(), with_gpus(tiny_hardware(), 2), 1);
  // Work 1.008 / 2 = 0.504. An all-reduce of 3 x 4 x 2 = 24 B: 2 x 1/2 x 24 / 100 = 0.24 s and 2
  // steps of 0.5 s; two of them 2.48. A layer 2.984; total 2 x 2.984 + head 0.04 + 1.
  const PrefillTime time = prefill(timing, 3, 5);
  EXPECT_NEAR(time.layer.seconds(), 2.984, kRounding);
  EXPECT_NEAR(time.total.seconds(), 7.008, kRounding);
}

TEST(RooflinePrefill, CountsTheAllReduceOfARingOfFour) {
  HardwareConfig hardware = with_gpus(tiny_hardware(), 4);
  hardware.efficiency.gpu_link = 0.5;
  const RooflineTiming timing(tiny_model(), hardware, 1);
  // Work 1.008 / 4 = 0.252, of which 21 pairs take 0.084. Two KV heads on four GPUs are read twice,
  // which takes 0.088: (5 + 2 x 3) x 8 B x 2 over 4 x 500 B/s. Each all-reduce takes
  // 2 x 3/4 x 24 / 50 = 0.72 and 6 steps of 0.5: 3.72.
  EXPECT_NEAR(prefill(timing, 3, 5).layer.seconds(), 0.256 + 2 * 3.72, kRounding);
}

TEST(RooflinePrefill, AttainsOnlyItsShareOfThePeaks) {
  HardwareConfig hardware = tiny_hardware();
  hardware.efficiency.compute = 0.5;
  EXPECT_NEAR(prefill(RooflineTiming(tiny_model(), hardware, 1), 3, 5).layer.seconds(), 2.016,
              kRounding);
  hardware = tiny_hardware();
  hardware.hbm.bandwidth = BytesPerSecond(200);
  hardware.efficiency.memory = 0.5;
  EXPECT_NEAR(prefill(RooflineTiming(tiny_model(), hardware, 1), 1, 100).layer.seconds(), 10.4,
              kRounding);
}

TEST(RooflinePrefill, JoinsTheMatricesOfAllPartsAndAddsTheirAttention) {
  const RooflineTiming timing(tiny_model(), tiny_hardware(), 1);
  // Dense 4 tokens 0.896; attention 21 pairs 0.336 and 1 x 100 + 1 = 101 pairs 1.616: 2.848 a
  // layer. Head: two rows, max(160, 80) = 0.16. Total 2 x 2.848 + 0.16 + 1.
  const PrefillTime time = prefill(timing, {{Tokens(3), Tokens(5)}, {Tokens(1), Tokens(100)}});
  EXPECT_NEAR(time.layer.seconds(), 2.848, kRounding);
  EXPECT_NEAR(time.total.seconds(), 6.856, kRounding);
}

TEST(RooflineIteration, ReadsTheWeightsOnceForPromptsAndRunningRequests) {
  const RooflineTiming timing(tiny_model(), tiny_hardware(), 2);
  // Dense 3 + 2 tokens 1.12; attention 21 pairs 0.336, and 50 tokens x max(16 FLOP, 8 B) 0.8: 2.256
  // a layer. Head: three rows, max(240, 80) = 0.24. Total 2 x 2.256 + 0.24 + 1.
  const std::vector<PrefillPart> parts{{Tokens(3), Tokens(5)}};
  const PrefillTime time = timing.iteration(parts, 2, Tokens(50));
  EXPECT_NEAR(time.layer.seconds(), 2.256, kRounding);
  EXPECT_NEAR(time.total.seconds(), 5.752, kRounding);
}

TEST(RooflineIteration, WithoutRunningRequestsIsAPrefill) {
  const RooflineTiming timing(load_model("llama2-13b"), load_hardware(), 1);
  const std::vector<PrefillPart> parts{{Tokens(300), Tokens(50)}, {Tokens(7), Tokens(0)}};
  EXPECT_EQ(timing.iteration(parts, 0, Tokens(0)).total, timing.prefill(parts).total);
}

TEST(RooflineIteration, TakesNoLongerThanItsWorkOneAfterTheOtherAndNoLessThanEither) {
  const RooflineTiming timing(load_model("gpt3-13b"), load_hardware(), 64);
  for (const std::int64_t added : {1, 30, 500}) {
    for (const std::int64_t batch : {1, 64}) {
      const std::vector<PrefillPart> parts{{Tokens(added), Tokens(1000)}};
      const Tokens context(900 * batch);
      const SimDuration together = timing.iteration(parts, batch, context).total;
      const SimDuration decode = timing.decode_duration(batch, context);
      EXPECT_LE(together, timing.prefill(parts).total + decode) << added << " beside " << batch;
      EXPECT_GT(together, timing.prefill(parts).total);
      EXPECT_GT(together, decode);
    }
  }
}

TEST(RooflinePrefill, IsNeverSlowerForTwoPartsTogetherThanOneAfterTheOther) {
  const RooflineTiming timing(load_model("llama2-13b"), load_hardware(), 1);
  for (const std::int64_t added : {1, 16, 100, 1000}) {
    for (const std::int64_t past : {0, 10, 3000}) {
      const PrefillPart part{Tokens(added), Tokens(past)};
      EXPECT_LT(prefill(timing, {part, part}).total, prefill(timing, {part}).total * 2)
          << added << " after " << past;
    }
  }
}

TEST(RooflinePrefill, TakesAsLongAsAttentionStoreSaysForLlama65b) {
  // 2,048 tokens on 4 x A100. Matrices: 80 layers x 1.619 GFLOP x 2048 = 265.25 TFLOP; attention:
  // 80 x 32768 x 2048 x 2049 / 2 = 5.50 TFLOP; at 4 x 312 x 0.68 = 848.6 TFLOP/s 319.1 ms.
  // All-reduces: 160 x (1.5 x 33.55 MB / 240 GB/s = 209.7 us, and 6 x 2.8 us) = 36.2 ms. Head 0.1
  // ms, overhead 4 ms: 359.4 ms; the paper has 360.
  const RooflineTiming timing(load_model("llama-65b"), load_hardware(), 1);
  const double seconds = prefill(timing, 2048).total.seconds();
  EXPECT_NEAR(seconds, 0.3594, 0.0002);
  EXPECT_NEAR(seconds / 0.360, 1, 0.06);
  // 59 % of the peak of 1,248 TFLOP/s, matrices only.
  EXPECT_NEAR(265.25 / seconds / 1248, 0.59, 0.01);
}

TEST(RooflineDecode, IsAffineInTheContext) {
  const RooflineTiming timing(tiny_model(), tiny_hardware(), 3);
  // Three tokens: dense 0.672 a layer, head 0.24: base 2 x 0.672 + 0.24 + 1 = 2.584. A token of
  // context: the longer of 8 B and 16 FLOP, 0.016 a layer. Ten of them: 2.904.
  ASSERT_EQ(timing.decode(3).size(), 1U);
  EXPECT_EQ(timing.decode(3).front().from, 0_tokens);
  EXPECT_NEAR(decode_seconds(timing, 3, 0), 2.584, 1e-9);
  EXPECT_NEAR(decode_seconds(timing, 3, 10), 2.904, 1e-9);
  EXPECT_NEAR(timing.decode_layer(3, 10_tokens).seconds(), 0.672 + 0.16, 1e-9);
}

TEST(RooflineDecode, ReadsTheWeightsOnceWhateverTheBatch) {
  HardwareConfig hardware = tiny_hardware();
  hardware.hbm.bandwidth = BytesPerSecond(100);
  const RooflineTiming timing(tiny_model(), hardware, 4);
  // Weights 2.24 s a layer cover up to 10 tokens of 0.224 s; head 0.8 s; KV 8 B, 0.08 s a layer and
  // token.
  EXPECT_NEAR(decode_seconds(timing, 1, 0), 2 * 2.24 + 0.8 + 1, 1e-9);
  EXPECT_EQ(decode_seconds(timing, 4, 0), decode_seconds(timing, 1, 0));
  EXPECT_NEAR(decode_seconds(timing, 1, 5) - decode_seconds(timing, 1, 0), 2 * 5 * 0.08, 1e-9);
}

TEST(RooflineDecode, Of13bOnTwoGpusIsAboveThePeakBandwidthBound) {
  // Batch 24 at 1,000 tokens each. Layers 40 x 634.4 MB = 25.376 GB and head 0.328 GB at 2 x 2039 x
  // 0.85 = 3466.3 GB/s: 7.415 ms. KV 24000 x 819200 B = 19.66 GB: 5.672 ms. All-reduces 80 x (24 x
  // 5120 x 2 B / 240 GB/s = 1.02 us, and 2 x 2.8 us) = 0.530 ms. Overhead 4 ms. Sum 17.617 ms.
  const RooflineTiming timing(load_model("llama2-13b"), with_gpus(load_hardware(), 2), 24);
  const double seconds = decode_seconds(timing, 24, 24000);
  EXPECT_NEAR(seconds, 17.617e-3, 0.002e-3);
  EXPECT_GT(seconds, (25.376e9 + 0.328e9 + 19.66e9) / (2 * 2039e9));
}

TEST(RooflineDecode, HasASlopeWithoutVisibleRounding) {
  for (const std::string& name : test::config_names("models")) {
    for (const std::int64_t gpus : {1, 2, 4, 8}) {
      const ModelConfig model = load_model(name);
      if (!is_dense(model)) {
        continue;
      }
      const HardwareConfig hardware = with_gpus(load_hardware(), gpus);
      const double rate =
          static_cast<double>(gpus) * hardware.hbm.bandwidth.value * hardware.efficiency.memory;
      const double flops =
          static_cast<double>(gpus) * hardware.gpu.peak.value * hardware.efficiency.compute;
      const std::int64_t copies = kv_copies(model, hardware, AttentionKind::full);
      const double exact =
          std::max(
              static_cast<double>(kv_bytes_per_token(model).value * copies) / rate,
              static_cast<double>(model.layers) * attention_flops_per_pair_layer(model) / flops) *
          1e9 * static_cast<double>(kTicksPerNs);
      const RooflineTiming timing(model, hardware, 1);
      // A slope is whole ticks: of the smallest models, on many GPUs, it has hundreds.
      EXPECT_NEAR(static_cast<double>(timing.decode(1).front().slope), exact,
                  std::max(1.0, 1e-3 * exact))
          << name << " on " << gpus;
    }
  }
}

TEST(RooflineDecode, KeepsItsReferencesValid) {
  const RooflineTiming timing(load_model("llama2-7b"), load_hardware(), 64);
  const std::vector<DecodePiece>* first = &timing.decode(1);
  static_cast<void>(timing.decode(64));
  EXPECT_EQ(first, &timing.decode(1));
}

TEST(RooflineDecode, CostsAboutAsMuchForOneTokenAsAPrefill) {
  const RooflineTiming timing(load_model("llama2-13b"), with_gpus(load_hardware(), 1), 1);
  const double as_prefill = prefill(timing, 1, 2000).total.seconds();
  EXPECT_NEAR(decode_seconds(timing, 1, 2000) / as_prefill, 1, 0.001);
}

class RooflineRelations : public testing::TestWithParam<std::string> {
 protected:
  RooflineTiming timing_{load_model(GetParam()), load_hardware(), 64};
};

TEST_P(RooflineRelations, PrefillGrowsWithNewTokensAndWithPastOnes) {
  const std::int64_t steps[] = {0, 1, 7, 64, 500, 2000, 16000};
  for (std::size_t i = 1; i < std::size(steps); ++i) {
    for (const std::int64_t other : {1, 50, 3000}) {
      EXPECT_LE(prefill(timing_, std::max<std::int64_t>(1, steps[i - 1]), other).total,
                prefill(timing_, steps[i], other).total);
      EXPECT_LE(prefill(timing_, other, steps[i - 1]).total,
                prefill(timing_, other, steps[i]).total);
    }
  }
  // One more token of the past may cost less than a nanosecond; many more do not.
  EXPECT_LT(prefill(timing_, 1, 0).total, prefill(timing_, 1, 16000).total);
  EXPECT_LT(prefill(timing_, 1, 0).total, prefill(timing_, 16000, 0).total);
}

TEST_P(RooflineRelations, ReusingAPastIsCheaperThanComputingIt) {
  for (const std::int64_t added : {1, 100, 1000}) {
    for (const std::int64_t past : {64, 1000, 20000}) {
      EXPECT_LT(prefill(timing_, added, past).total, prefill(timing_, added + past).total)
          << added << " after " << past;
    }
  }
}

TEST_P(RooflineRelations, PrefillInTwoChunksCostsAtLeastAsMuchAsInOne) {
  for (const std::int64_t added : {2, 128, 4096}) {
    EXPECT_GE(prefill(timing_, added / 2).total + prefill(timing_, added / 2, added / 2).total,
              prefill(timing_, added).total);
  }
}

TEST_P(RooflineRelations, PrefillTotalIsTheLayersAndAConstantForOnePart) {
  const std::int64_t layers = load_model(GetParam()).layers;
  const PrefillTime a = prefill(timing_, 10);
  const PrefillTime b = prefill(timing_, 1000, 2000);
  EXPECT_EQ(a.total - a.layer * layers, b.total - b.layer * layers);
  EXPECT_GT(a.total - a.layer * layers, load_hardware().efficiency.iteration_overhead);
}

TEST_P(RooflineRelations, DecodeGrowsWithBatchAndContext) {
  for (std::int64_t batch = 1; batch <= timing_.max_batch(); ++batch) {
    const DecodePiece& piece = timing_.decode(batch).front();
    EXPECT_GT(piece.slope, 0);
    EXPECT_LT(piece.at(1000_tokens), piece.at(1001_tokens));
    if (batch > 1) {
      EXPECT_LE(timing_.decode(batch - 1).front().base, piece.base);
      EXPECT_LE(timing_.decode_layer(batch - 1, 100_tokens),
                timing_.decode_layer(batch, 100_tokens));
    }
  }
}

TEST_P(RooflineRelations, DecodeLayersAreWhatTheOverheadAndTheHeadLeave) {
  const ModelConfig model = load_model(GetParam());
  const HardwareConfig hardware = load_hardware();
  const double head = static_cast<double>(lm_head_bytes(model).value) /
                      (4 * hardware.hbm.bandwidth.value * hardware.efficiency.memory);
  const double layers =
      static_cast<double>(model.layers) * timing_.decode_layer(8, 9000_tokens).seconds();
  EXPECT_NEAR(decode_seconds(timing_, 8, 9000),
              layers + head + hardware.efficiency.iteration_overhead.seconds(), 1e-7);
}

TEST_P(RooflineRelations, OneDecodeIterationOfABatchBeatsOneOfEachRequest) {
  EXPECT_LT(decode_seconds(timing_, 32, 32 * 500), 32 * decode_seconds(timing_, 1, 500));
}

INSTANTIATE_TEST_SUITE_P(ModelFiles, RooflineRelations,
                         testing::ValuesIn(test::config_names("models")),
                         [](const testing::TestParamInfo<std::string>& param) {
                           std::string name = param.param;
                           std::ranges::replace_if(
                               name, [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

TEST(Roofline, RefusesWhatNoCallerMayAsk) {
  EXPECT_THROW(RooflineTiming(tiny_model(), tiny_hardware(), 0), InvariantError);
  const RooflineTiming timing(tiny_model(), tiny_hardware(), 2);
  EXPECT_THROW(static_cast<void>(timing.decode(0)), InvariantError);
  EXPECT_THROW(static_cast<void>(timing.decode(3)), InvariantError);
  EXPECT_THROW(static_cast<void>(timing.decode_layer(3, 1_tokens)), InvariantError);
  EXPECT_THROW(static_cast<void>(prefill(timing, std::vector<PrefillPart>{})), InvariantError);
  EXPECT_THROW(static_cast<void>(prefill(timing, 0, 5)), InvariantError);
  EXPECT_THROW(static_cast<void>(prefill(timing, 1, -1)), InvariantError);
}

}  // namespace
}  // namespace kvtier
