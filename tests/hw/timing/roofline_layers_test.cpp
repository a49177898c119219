/// The roofline of models whose layers differ, and of GPUs in parallel groups.

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "hw/timing/roofline.hpp"
#include "tests/hw/load.hpp"
#include "tests/hw/tiny_model.hpp"

namespace kvtier {
namespace {

using namespace literals;
using test::load_model;
using test::tiny_model;

/// 1,000 FLOP/s and 1,000 B/s, no overhead.
HardwareConfig tiny_hardware(double flops = 1000, double bytes = 1000) {
  HardwareConfig hardware;
  hardware.gpu.peak = FlopsPerSecond(flops);
  hardware.hbm.bandwidth = BytesPerSecond(bytes);
  hardware.links.gpu.bandwidth = BytesPerSecond(100);
  hardware.links.gpu.latency = 500_ms;
  return hardware;
}

/// Fast compute or fast memory, so that the other decides.
HardwareConfig memory_bound() { return tiny_hardware(1e12, 1000); }
HardwareConfig compute_bound() { return tiny_hardware(1000, 1e12); }

double seconds(const RooflineTiming& timing, std::int64_t batch, std::int64_t context) {
  return static_cast<double>(timing.decode_ticks(batch, Tokens(context))) /
         (1e9 * static_cast<double>(kTicksPerNs));
}

double layer_seconds(const RooflineTiming& timing, std::int64_t added, std::int64_t past = 0) {
  const PrefillPart part{.added = Tokens(added), .past = Tokens(past)};
  return timing.prefill({&part, 1}).layer.seconds();
}

constexpr double kRounding = 1e-6;

TEST(RooflineWindows, ReadTheWindowAtMost) {
  ModelConfig model = tiny_model();
  model.attention = {AttentionKind::window, AttentionKind::full};
  model.window = Tokens(10);
  const RooflineTiming timing(model, memory_bound(), 2);
  ASSERT_EQ(timing.windows().size(), 1U);
  // KV 8 B a token and layer: 0.008 s.
  const double base = seconds(timing, 1, 0);
  EXPECT_NEAR(seconds(timing, 1, 4) - base, 2 * 4 * 0.008, kRounding);
  EXPECT_NEAR(seconds(timing, 1, 30) - base, (30 + 10) * 0.008, kRounding);
  // 12 and 13 tokens of two requests.
  EXPECT_NEAR(seconds(timing, 2, 25) - seconds(timing, 2, 0), (25 + 20) * 0.008, kRounding);
}

TEST(RooflineWindows, CountThePairsOfAPrefill) {
  ModelConfig model = tiny_model();
  model.attention = {AttentionKind::window};
  model.window = Tokens(4);
  const RooflineTiming timing(model, compute_bound(), 1);
  // Linear 0.224 s a token. 3 tokens after 2: min(3, 4) + min(4, 4) + min(5, 4) = 11 pairs of 0.016
  // s.
  EXPECT_NEAR(layer_seconds(timing, 3, 2), 3 * 0.224 + 11 * 0.016, kRounding);
  // 2 after 9: 4 + 4.
  EXPECT_NEAR(layer_seconds(timing, 2, 9), 2 * 0.224 + 8 * 0.016, kRounding);
}

TEST(RooflineWindows, AsWideAsTheContextAreFullAttention) {
  ModelConfig full = load_model("llama2-13b");
  ModelConfig windows = full;
  windows.attention = {AttentionKind::window};
  windows.window = full.context_window;
  const HardwareConfig hardware = test::load_hardware();
  const RooflineTiming a(full, hardware, 8);
  const RooflineTiming b(windows, hardware, 8);
  for (const std::int64_t context : {100, 4000, 20000}) {
    EXPECT_EQ(a.decode_ticks(8, Tokens(context)), b.decode_ticks(8, Tokens(context)));
  }
  EXPECT_EQ(layer_seconds(a, 500, 700), layer_seconds(b, 500, 700));
}

TEST(RooflineExperts, AreReadAsTokensTouchThem) {
  ModelConfig model = tiny_model();
  // An expert has 2 x 4 x 3 = 24 weights, 48 B: 0.048 s. Router 16 weights.
  model.experts = ExpertsConfig{.routed = 4, .active = 1, .intermediate_size = 3};
  const RooflineTiming timing(model, memory_bound(), 4);
  // Attention 4 x (2 x 4 + 2 x 2) = 48 weights, router 16: 128 B. Head 80 B.
  const auto expected = [](double touched) { return 2 * (0.128 + touched * 0.048) + 0.08; };
  EXPECT_NEAR(seconds(timing, 1, 0), expected(1), kRounding);
  // 4 x (1 - 0.75^3) = 2.3125
  EXPECT_NEAR(seconds(timing, 3, 0), expected(2.3125), kRounding);
}

TEST(RooflineExperts, ComputeTheActiveOnes) {
  ModelConfig model = tiny_model();
  model.experts = ExpertsConfig{.routed = 4, .active = 2, .shared = 1, .intermediate_size = 3};
  const RooflineTiming timing(model, compute_bound(), 1);
  // 48 + 16 + 24 + 2 x 24 = 136 weights a token, 272 FLOP. Attention 55 pairs of 0.016 s.
  EXPECT_NEAR(layer_seconds(timing, 10), 10 * 0.272 + 55 * 0.016, kRounding);
}

TEST(RooflineLatent, ReadsOneRowInDecodeAndExpandsItInPrefill) {
  ModelConfig model = tiny_model();
  model.head_dim = 3;
  model.attention = {AttentionKind::latent};
  model.latent = LatentConfig{.rank = 5, .rope_dim = 1, .query_rank = 0, .value_dim = 2};
  {
    const RooflineTiming timing(model, memory_bound(), 1);
    // (5 + 1) x 2 B = 12 B a token and layer.
    EXPECT_NEAR(seconds(timing, 1, 100) - seconds(timing, 1, 0), 2 * 100 * 0.012, kRounding);
  }
  const RooflineTiming timing(model, compute_bound(), 1);
  // Absorbed: 2 heads x 2 x (5 + 1 + 5) = 44 FLOP a pair.
  EXPECT_NEAR(seconds(timing, 1, 100) - seconds(timing, 1, 0), 2 * 100 * 0.044, kRounding);
  // Weights: Q 4 x 6 = 24, latent 4 x 6 = 24, K and V from it 5 x 2 x (2 + 2) = 40, output 4 x 4 =
  // 16, MLP 64: 168. Expanded: 2 x 2 x (3 + 2) = 20 FLOP a pair, and 2 x 40 FLOP for each past
  // token.
  EXPECT_NEAR(layer_seconds(timing, 10), 10 * 0.336 + 55 * 0.020, kRounding);
  EXPECT_NEAR(layer_seconds(timing, 10, 3), 10 * 0.336 + (30 + 55) * 0.020 + 3 * 0.080, kRounding);
  // One token after 100: absorbed is faster, 101 x 0.044 < 101 x 0.02 + 100 x 0.08.
  EXPECT_NEAR(layer_seconds(timing, 1, 100), 0.336 + 101 * 0.044, kRounding);
}

TEST(RooflineSparse, ReadsTheTopTokensAndTheIndexOfAll) {
  ModelConfig model = tiny_model();
  model.sparse = SparseConfig{.top_k = Tokens(10), .index_heads = 1, .index_dim = 4};
  const RooflineTiming timing(model, memory_bound(), 1);
  // KV 8 B, index 4 B + 4 B.
  const double base = seconds(timing, 1, 0);
  EXPECT_NEAR(seconds(timing, 1, 6) - base, 2 * 6 * 0.016, kRounding);
  EXPECT_NEAR(seconds(timing, 1, 100) - base, 2 * (10 * 0.008 + 100 * 0.008), kRounding);
}

TEST(RooflineStates, CostTheSameAtAnyContext) {
  ModelConfig model = tiny_model();
  model.attention = {AttentionKind::state};
  model.state = StateConfig{.key_heads = 1, .value_heads = 2, .key_dim = 3, .value_dim = 4};
  const RooflineTiming timing(model, memory_bound(), 3);
  EXPECT_EQ(seconds(timing, 3, 0), seconds(timing, 3, 1000));
  // A state of 2 x 3 x 4 x 4 B = 96 B, read and written.
  EXPECT_NEAR(seconds(timing, 3, 0) - seconds(timing, 1, 0), 2 * 2 * 0.192, kRounding);
}

TEST(RooflineFormats, MultiplyAtTheirOwnPeak) {
  ModelConfig model = tiny_model();
  model.precision = {.attention = NumberFormat::fp8, .mlp = NumberFormat::fp8};
  HardwareConfig hardware = compute_bound();
  const double pairs = 5050 * 0.016;
  const double in_16_bits = 100 * 0.224;
  // Twice the peak by default, of which 0.65 of the share in 16 bits is attained.
  EXPECT_NEAR(layer_seconds({model, hardware, 1}, 100), in_16_bits / 1.3 + pairs, kRounding);
  hardware.gpu.peaks.eight_bits = FlopsPerSecond(3000);
  EXPECT_NEAR(layer_seconds({model, hardware, 1}, 100), in_16_bits / 1.95 + pairs, kRounding);
  // A GPU without such units.
  hardware.gpu.peaks.eight_bits = hardware.gpu.peak;
  EXPECT_NEAR(layer_seconds({model, hardware, 1}, 100), in_16_bits + pairs, kRounding);
  model.precision.attention = model.precision.mlp = NumberFormat::nvfp4;
  hardware.gpu.peaks.four_bits = FlopsPerSecond(4000);
  EXPECT_NEAR(layer_seconds({model, hardware, 1}, 100), in_16_bits / 2.6 + pairs, kRounding);
  model.precision.attention = model.precision.mlp = NumberFormat::int4;
  EXPECT_NEAR(layer_seconds({model, hardware, 1}, 100), in_16_bits + pairs, kRounding);
}

TEST(RooflineFormats, Fp8MatricesTakeTheMeasuredShareOfBf16) {
  ModelConfig model = load_model("llama-3.1-70b");
  const HardwareConfig hardware = test::with_gpus(test::load_hardware(), 1);
  const double bf16 = layer_seconds({model, hardware, 1}, 1);
  const double bf16_many = layer_seconds({model, hardware, 1}, 2048);
  model.precision = {.attention = NumberFormat::fp8, .mlp = NumberFormat::fp8};
  EXPECT_NEAR(layer_seconds({model, hardware, 1}, 1) / bf16, 0.5, 0.01);
  const double share = layer_seconds({model, hardware, 1}, 2048) / bf16_many;
  EXPECT_GT(share, 0.66);
  EXPECT_LT(share, 0.88);
}

TEST(RooflineParallel, PipelineStagesWorkOnMicroBatches) {
  HardwareConfig hardware = memory_bound();
  hardware.gpus = 2;
  hardware.parallel.pipeline = 2;
  const RooflineTiming timing(tiny_model(), hardware, 4);
  // A layer's weights 224 B on one GPU, 2 layers; head 80 B; one send of 2 tokens x 8 B at 100 B/s
  // and 0.5 s. Each micro-batch reads half of 100 tokens of KV.
  EXPECT_NEAR(seconds(timing, 4, 0), 2 * 0.224 + 0.08 + 2 * 0.08 + 0.5, kRounding);
  EXPECT_NEAR(seconds(timing, 4, 100) - seconds(timing, 4, 0), 2 * 50 * 0.008, kRounding);
}

TEST(RooflineParallel, RanksOfAttentionServeTheirOwnRequests) {
  HardwareConfig hardware = memory_bound();
  hardware.gpus = 2;
  hardware.parallel.attention_dp = 2;
  const RooflineTiming timing(tiny_model(), hardware, 4);
  const double base = seconds(timing, 4, 0);
  // 2 of 4 requests on one GPU read half of the context.
  EXPECT_NEAR(seconds(timing, 4, 100) - base, 2 * 50 * 0.008, kRounding);
  // The larger rank has 2 of 3 requests.
  EXPECT_NEAR(seconds(timing, 3, 90) - seconds(timing, 3, 0), 2 * 60 * 0.008, kRounding);
  // Both ranks read the attention's 96 B, each half of the MLP's 128 B; a layer's tokens are
  // gathered and scattered once: 4 x 8 B x 2 x 1/2 at 100 B/s and 2 x 0.5 s. Head 40 B.
  EXPECT_NEAR(base, 2 * (0.096 + 0.064 + 0.32 + 1.0) + 0.04, kRounding);
}

TEST(RooflineParallel, DealsPromptsInTurn) {
  HardwareConfig hardware = compute_bound();
  hardware.gpus = 2;
  hardware.links.gpu.bandwidth = BytesPerSecond(1e12);
  hardware.links.gpu.latency = SimDuration(0);
  hardware.parallel.attention_dp = 2;
  const RooflineTiming timing(tiny_model(), hardware, 4);
  const std::vector<PrefillPart> parts{
      {Tokens(4), Tokens(0)}, {Tokens(10), Tokens(0)}, {Tokens(2), Tokens(0)}};
  // Ranks: 4 + 2 tokens with 10 + 3 pairs, and 10 tokens with 55. Attention's matrices 0.096 s a
  // token on one GPU; the MLP's 0.128 s a token on two.
  EXPECT_NEAR(timing.prefill(parts).layer.seconds(), 10 * 0.096 + 16 * 0.064 + 55 * 0.016,
              kRounding);
}

TEST(RooflineParallel, LatentRowsAreReadByAllGpusOfARank) {
  const ModelConfig model = load_model("deepseek-v3");
  HardwareConfig hardware = test::with_gpus(test::load_hardware(), 8);
  const auto slope = [&] { return RooflineTiming(model, hardware, 64).decode(64).front().slope; };
  const std::int64_t together = slope();
  hardware.parallel.attention_dp = 8;
  hardware.parallel.expert = 8;
  EXPECT_LT(slope() * 7, together * 2);
}

}  // namespace
}  // namespace kvtier
