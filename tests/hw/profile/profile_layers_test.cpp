#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "hw/profile/profile_timing.hpp"
#include "hw/timing/roofline.hpp"
#include "sim/core/errors.hpp"
#include "tests/hw/load.hpp"
#include "tests/hw/tiny_profile.hpp"

/// Profiles and models whose layers differ, have experts, or run on ranks.
namespace kvtier {
namespace {

using test::cell;

constexpr double kMatrix = 1e-5;

/// Every matrix takes 10 us, and attention as a test says.
Profile profile_of(std::vector<ProfileTable> tables) {
  Profile profile;
  profile.name = "layers";
  profile.device.peak = FlopsPerSecond(1e18);
  profile.device.memory_bandwidth = BytesPerSecond(1e16);
  ProfileTable matrices{.operation = OperationId::gemm_grid,
                        .variant = "matrix",
                        .method = "test",
                        .dtype = DataType::bf16,
                        .axes = {"tokens", "n", "k"}};
  for (const std::int64_t tokens : {1, 16384}) {
    for (const std::int64_t side : {1, 1 << 20}) {
      for (const std::int64_t other : {1, 1 << 20}) {
        matrices.cells.push_back(cell({tokens, side, other}, kMatrix));
      }
    }
  }
  profile.tables.push_back(std::move(matrices));
  for (ProfileTable& table : tables) {
    profile.tables.push_back(std::move(table));
  }
  return profile;
}

ProfileTable attention(OperationId operation, const AttentionShape& shape, std::int64_t window,
                       std::vector<ProfileCell> cells) {
  ProfileTable table{.operation = operation,
                     .variant = "test",
                     .method = "test",
                     .shape = shape_of(shape),
                     .axes = profile_operation(operation).axes,
                     .cells = std::move(cells)};
  if (window > 0) {
    table.shape["window"] = window;
  }
  return table;
}

HardwareConfig hardware_of(Profile profile, std::int64_t gpus = 1) {
  HardwareConfig hardware = test::load_hardware("h100-80g");
  hardware.gpus = gpus;
  hardware.links.gpu = {.bandwidth = BytesPerSecond(450e9), .latency = SimDuration(3000)};
  hardware.profile = ProfileChoice{.name = profile.name,
                                   .loaded = std::make_shared<const Profile>(std::move(profile))};
  hardware.unmeasured = Unmeasured::roofline;
  return hardware;
}

double decode_seconds(const TimingModel& timing, std::int64_t batch, std::int64_t context) {
  const Tokens all(context * batch);
  return static_cast<double>(piece_at(timing.decode(batch), all).at(all)) / (1e9 * kTicksPerNs);
}

ModelConfig with_windows() {
  ModelConfig model = test::load_model("gpt-oss-20b");
  model.precision.experts.reset();
  model.precision.kv.reset();
  return model;
}

TEST(ProfileLayers, WindowsTakeNoLongerBehindTheirTokens) {
  const ModelConfig model = with_windows();
  const AttentionShape shape = measured_attention(model, 1);
  const auto flat = attention(OperationId::decode_attention, shape, 128,
                              {cell({1, 1}, 1e-6), cell({1, 128}, 2e-6), cell({1, 65536}, 2e-6)});
  const auto full = attention(OperationId::decode_attention, shape, 0,
                              {cell({1, 1}, 1e-6), cell({1, 65536}, 1e-6 + 65535e-9)});
  const HardwareConfig hardware = hardware_of(profile_of({flat, full}));
  const ProfileTiming timing(model, hardware, KeyPositions::embedded, 1);
  const double layers = static_cast<double>(model.layers) / 2;
  // Full layers grow by 1 ns a token, windows from 1 to 128 tokens alone.
  EXPECT_NEAR(decode_seconds(timing, 1, 128) - decode_seconds(timing, 1, 1),
              layers * (1e-6 + 127e-9), 1e-9);
  EXPECT_NEAR(decode_seconds(timing, 1, 60128) - decode_seconds(timing, 1, 128), layers * 6e-5,
              1e-8);
}

TEST(ProfileLayers, WindowsAloneNeedNoTable) {
  ModelConfig model = test::load_model("llama-3.1-8b");
  model.attention = {AttentionKind::window};
  model.window = Tokens(4096);
  const ProfileTiming timing(model, hardware_of(profile_of({})), KeyPositions::embedded, 4);
  EXPECT_GE(decode_seconds(timing, 4, 8192), decode_seconds(timing, 4, 4096));
  EXPECT_NEAR(decode_seconds(timing, 4, 200'000), decode_seconds(timing, 4, 8192), 1e-6);
  const AttentionShape shape = measured_attention(model, 1);
  const auto table = attention(OperationId::decode_attention, shape, 4096,
                               {cell({1, 1}, 1e-5), cell({1, 65536}, 2e-5)});
  const ProfileTiming measured(model, hardware_of(profile_of({table})), KeyPositions::embedded, 1);
  EXPECT_NEAR(decode_seconds(measured, 1, 400'000), decode_seconds(measured, 1, 70'000), 1e-4);
}

TEST(ProfileLayers, DecodeAndIterationsAgreeWhereTheRooflineHasAFloor) {
  const ModelConfig model = test::load_model("glm-5");
  const ProfileTiming timing(model, hardware_of(profile_of({}), 8), KeyPositions::embedded, 64);
  const std::vector<PrefillPart> one{{.added = Tokens(1), .past = Tokens(0)}};
  for (const std::int64_t context : {100, 5'000, 20'000, 90'000}) {
    const double alone = timing.iteration(one, 0, Tokens(0)).total.seconds();
    const double beside = timing.iteration(one, 63, Tokens(63 * context)).total.seconds();
    // Matrices are flat here: both differ in attention and in rows of elements alone.
    EXPECT_NEAR(beside - alone, decode_seconds(timing, 63, context) - alone + 1e-3, 2.5e-3)
        << context;
  }
}

TEST(ProfileLayers, LatentAttentionOfOtherWidthsTakesTheRoofline) {
  ModelConfig model = test::load_model("deepseek-v3");
  const auto module = [](OperationId operation) {
    return ProfileTable{
        .operation = operation,
        .variant = kModuleVariant,
        .method = "test",
        .dtype = DataType::bf16,
        .shape = {{"attention_heads", 128}},
        .axes = profile_operation(operation).axes,
        .cells = {cell({1, operation == OperationId::mla_decode ? 1 : 0}, 5e-5),
                  cell({1024, operation == OperationId::mla_decode ? 1 : 0}, 1e-3)}};
  };
  const Profile profile =
      profile_of({module(OperationId::mla_decode), module(OperationId::mla_prefill)});
  const auto decode = OperationId::mla_decode;
  EXPECT_TRUE(table_of_latent_attention(profile, decode, model, 1));
  model.hidden_size = 5120;
  EXPECT_FALSE(table_of_latent_attention(profile, decode, model, 1));
}

ProfileTable experts_of(const ModelConfig& model, DataType type) {
  return {.operation = OperationId::moe,
          .variant = "test",
          .method = "test",
          .dtype = type,
          .shape = {{"hidden_size", model.hidden_size},
                    {"intermediate_size", model.experts->intermediate_size},
                    {"experts", model.experts->routed},
                    {"top_k", model.experts->active},
                    {"expert_gpus", 1}},
          .axes = {"tokens"},
          .cells = {cell({1}, 1e-4), cell({16384}, 1e-2)}};
}

TEST(ProfileLayers, ExpertsTakeTheTimeOfTheirTableTimesTheFactor) {
  const ModelConfig model = test::load_model("qwen3-30b-a3b");
  const HardwareConfig hardware = hardware_of(profile_of({experts_of(model, DataType::bf16)}));
  EngineConfig engine;
  engine.expert_factor = 1;
  const ProfileTiming once(model, hardware, KeyPositions::embedded, 1, engine);
  engine.expert_factor = 2;
  const ProfileTiming twice(model, hardware, KeyPositions::embedded, 1, engine);
  EXPECT_NEAR(decode_seconds(twice, 1, 100) - decode_seconds(once, 1, 100),
              static_cast<double>(model.layers) * 1e-4, 1e-8);
  for (const std::string& name : once.from_roofline()) {
    EXPECT_NE(name, "experts");
  }
  // Without the table the roofline has the experts.
  const ProfileTiming none(model, hardware_of(profile_of({})), KeyPositions::embedded, 1);
  EXPECT_NE(std::ranges::find(none.from_roofline(), "experts"), none.from_roofline().end());
}

/// Latent attention with its projections, in the format of DeepSeek-V3's matrices.
ProfileTable latent_module(OperationId operation, std::vector<ProfileCell> cells) {
  return {.operation = operation,
          .variant = kModuleVariant,
          .method = "test",
          .dtype = DataType::fp8_block,
          .shape = {{"attention_heads", 128}},
          .axes = profile_operation(operation).axes,
          .cells = std::move(cells)};
}

Profile latent_profile(std::int64_t longest_prompt, double seconds) {
  using enum OperationId;
  return profile_of(
      {latent_module(mla_decode, {cell({1, 1}, 5e-5), cell({1, 1001}, 6e-5)}),
       latent_module(mla_prefill, {cell({1, 0}, 5e-5), cell({longest_prompt, 0}, seconds)})});
}

TEST(ProfileLayers, LatentAttentionHasItsProjections) {
  const ModelConfig model = test::load_model("deepseek-v3");
  const ProfileTiming timing(model, hardware_of(latent_profile(1024, 1e-3)), KeyPositions::embedded,
                             1);
  const double layers = static_cast<double>(model.layers);
  EXPECT_NEAR(decode_seconds(timing, 1, 1001) - decode_seconds(timing, 1, 1), layers * 1e-5, 1e-8);
  for (const std::string& name : timing.from_roofline()) {
    EXPECT_FALSE(name.starts_with("gemm attention")) << name;
    EXPECT_FALSE(name.starts_with("mla")) << name;
  }
}

// 4,096 tokens are four measured prompts, and the roofline has the pairs of tokens of different
// ones, as if the four were computed one after the other.
TEST(ProfileLayers, LatentAttentionOfLongPromptsAddsThePairsBeyondTheTable) {
  const ModelConfig model = test::load_model("deepseek-v3");
  const auto whole = [&](const Profile& profile) {
    const PrefillPart part{.added = Tokens(4096), .past = Tokens(0)};
    return ProfileTiming(model, hardware_of(profile), KeyPositions::embedded, 1)
        .prefill({&part, 1})
        .layer.seconds();
  };
  const RooflineTiming roofline(model, hardware_of(latent_profile(1024, 1e-3)), 1);
  const auto attention_of = [&](std::int64_t added) {
    return roofline.attention_of(0, {.added = Tokens(added), .past = Tokens(0)});
  };
  const double pairs = attention_of(4096) - 4 * attention_of(1024);
  EXPECT_GT(pairs, 1e-4);
  EXPECT_NEAR(whole(latent_profile(1024, 1e-3)), whole(latent_profile(4096, 4e-3 + pairs)), 1e-8);
}

TEST(ProfileLayers, RanksAttendToTheirOwnRequests) {
  const ModelConfig model = test::load_model("llama-3.1-8b");
  const AttentionShape shape = measured_attention(model, 1);
  const auto table = attention(
      OperationId::decode_attention, shape, 0,
      {cell({1, 1}, 1e-5), cell({1, 1000}, 1e-5), cell({64, 1}, 64e-5), cell({64, 1000}, 64e-5)});
  HardwareConfig hardware = hardware_of(profile_of({table}), 4);
  hardware.parallel.attention_dp = 4;
  const ProfileTiming ranks(model, hardware, KeyPositions::embedded, 64);
  const ProfileTiming alone(model, hardware_of(profile_of({table})), KeyPositions::embedded, 64);
  const double layers = static_cast<double>(model.layers);
  // 64 requests on four ranks are 16 each.
  const auto attention_of = [&](const ProfileTiming& timing, std::int64_t more, std::int64_t less) {
    return decode_seconds(timing, more, 100) - decode_seconds(timing, less, 100);
  };
  EXPECT_NEAR(attention_of(alone, 16, 4), layers * 12e-5, layers * 1e-5);
  EXPECT_NEAR(attention_of(ranks, 64, 16), layers * 12e-5, layers * 1e-5);
}

TEST(ProfileLayers, EnginesAddHostTimesAndSlowIterationsWithPrompts) {
  const ModelConfig model = test::load_model("llama-3.1-8b");
  const HardwareConfig hardware = hardware_of(profile_of({}));
  EngineConfig engine;
  engine.step_time = SimDuration(2'000'000);
  engine.request_time = SimDuration(10'000);
  EngineConfig none;
  const ProfileTiming with(model, hardware, KeyPositions::embedded, 8, engine);
  const ProfileTiming without(model, hardware, KeyPositions::embedded, 8, none);
  EXPECT_NEAR(decode_seconds(with, 8, 100) - decode_seconds(without, 8, 100), 2e-3 + 8e-5, 1e-8);
  const RooflineTiming slow(model, hardware, 8, engine);
  const RooflineTiming fast(model, hardware, 8, none);
  EXPECT_NEAR(decode_seconds(slow, 8, 100) - decode_seconds(fast, 8, 100), 2e-3 + 8e-5, 1e-8);
  const std::vector<PrefillPart> parts{{.added = Tokens(512), .past = Tokens(0)}};
  EXPECT_EQ(
      (with.iteration(parts, 7, Tokens(700)).total - without.iteration(parts, 7, Tokens(700)).total)
          .ns,
      2'080'000);
  none.prompt_factor = 1.5;
  const ProfileTiming factor(model, hardware, KeyPositions::embedded, 8, none);
  const double once = without.iteration(parts, 0, Tokens(0)).total.seconds();
  EXPECT_NEAR(factor.iteration(parts, 0, Tokens(0)).total.seconds(), 1.5 * once, 1e-6);
  const std::vector<PrefillPart> half{{.added = Tokens(256), .past = Tokens(0)}};
  EXPECT_NEAR(factor.iteration(half, 0, Tokens(0)).total.seconds(),
              1.25 * without.iteration(half, 0, Tokens(0)).total.seconds(), 1e-6);
  EXPECT_EQ(decode_seconds(factor, 8, 100), decode_seconds(without, 8, 100));
}

TEST(ProfileLayers, TakesTheAllReducesThatTheEngineStarts) {
  const ModelConfig model = test::load_model("llama-3.1-8b");
  const auto reduce = [](const char* variant, double seconds) {
    return ProfileTable{.operation = OperationId::all_reduce,
                        .variant = variant,
                        .method = "test",
                        .axes = {"gpus", "bytes"},
                        .cells = {cell({2, 256}, seconds), cell({2, 1 << 24}, seconds)}};
  };
  const HardwareConfig hardware = hardware_of(
      profile_of({reduce("graph", 1e-5), reduce("eager", 3e-5), reduce("nccl", 5e-5)}), 2);
  EngineConfig engine;
  const ProfileTiming graph(model, hardware, KeyPositions::embedded, 1, engine);
  engine.all_reduce = AllReduceLaunch::eager;
  const ProfileTiming eager(model, hardware, KeyPositions::embedded, 1, engine);
  EXPECT_NEAR(decode_seconds(eager, 1, 100) - decode_seconds(graph, 1, 100),
              static_cast<double>(model.layers) * 2 * 2e-5, 1e-8);
  // Norms over the heads of both GPUs add one exchange and two kernels of 2.5 us.
  ModelConfig normed = model;
  normed.norm_over_heads = true;
  const ProfileTiming with(normed, hardware, KeyPositions::embedded, 1);
  const ProfileTiming without(model, hardware, KeyPositions::embedded, 1);
  EXPECT_NEAR(decode_seconds(with, 1, 100) - decode_seconds(without, 1, 100),
              static_cast<double>(model.layers) * (1e-5 + 2 * 2.5e-6), 1e-7);
}

TEST(ProfileLayers, FusedAllReducesHaveTheNormsAndQuantization) {
  ModelConfig model = test::load_model("llama-3.1-8b");
  model.precision.attention = model.precision.mlp = NumberFormat::fp8;
  const auto reduce = [](const char* variant) {
    return ProfileTable{.operation = OperationId::all_reduce,
                        .variant = variant,
                        .method = "test",
                        .axes = {"gpus", "bytes"},
                        .cells = {cell({2, 256}, 1e-5), cell({2, 1 << 24}, 1e-5)}};
  };
  EngineConfig engine;
  engine.all_reduce = AllReduceLaunch::fused;
  const HardwareConfig both = hardware_of(profile_of({reduce("graph"), reduce("fused")}), 2);
  const HardwareConfig graph_alone = hardware_of(profile_of({reduce("graph")}), 2);
  const ProfileTiming fused(model, both, KeyPositions::embedded, 1, engine);
  const ProfileTiming apart(model, graph_alone, KeyPositions::embedded, 1, engine);
  // Two norms and two kernels that quantize, of 2.5 us each.
  EXPECT_NEAR(decode_seconds(apart, 1, 100) - decode_seconds(fused, 1, 100),
              static_cast<double>(model.layers) * 4 * 2.5e-6, 1e-8);
  // Attention that rotates keys and writes KV saves two more.
  engine.fused = {FusedWork::rope, FusedWork::kv_write};
  const ProfileTiming more(model, both, KeyPositions::embedded, 1, engine);
  EXPECT_NEAR(decode_seconds(fused, 1, 100) - decode_seconds(more, 1, 100),
              static_cast<double>(model.layers) * 2 * 2.5e-6, 1e-8);
}

TEST(ProfileLayers, ASlowHostTakesLonger) {
  const ModelConfig model = test::load_model("llama-3.1-8b");
  HardwareConfig hardware = hardware_of(profile_of({}));
  EngineConfig engine;
  engine.step_time = SimDuration(2'000'000);
  engine.request_time = SimDuration(10'000);
  const ProfileTiming fast(model, hardware, KeyPositions::embedded, 8, engine);
  const RooflineTiming fast_roofline(model, hardware, 8, engine);
  hardware.host_speed = 0.5;
  const ProfileTiming slow(model, hardware, KeyPositions::embedded, 8, engine);
  const RooflineTiming slow_roofline(model, hardware, 8, engine);
  EXPECT_NEAR(decode_seconds(slow, 8, 100) - decode_seconds(fast, 8, 100), 2.08e-3, 1e-8);
  EXPECT_NEAR(decode_seconds(slow_roofline, 8, 100) - decode_seconds(fast_roofline, 8, 100),
              2.08e-3, 1e-8);
}

TEST(ProfileLayers, StateLayersTakeTheTimesOfTheirTables) {
  ModelConfig model = test::load_model("qwen3.5-397b-a17b");
  const auto state = [&](OperationId operation, double seconds) {
    return ProfileTable{
        .operation = operation,
        .variant = "test",
        .method = "test",
        .shape = {{"key_heads", 16}, {"value_heads", 64}, {"key_dim", 128}, {"value_dim", 128}},
        .axes = profile_operation(operation).axes,
        .cells = {cell({1}, seconds), cell({1024}, seconds)}};
  };
  const auto timing = [&](double prefill, double decode) {
    return ProfileTiming(model,
                         hardware_of(profile_of({state(OperationId::state_prefill, prefill),
                                                 state(OperationId::state_decode, decode)})),
                         KeyPositions::embedded, 2);
  };
  const double layers = 45;  // three of four
  EXPECT_NEAR(
      decode_seconds(timing(1e-4, 3e-5), 2, 9000) - decode_seconds(timing(1e-4, 1e-5), 2, 9000),
      layers * 2e-5, 1e-7);
  const std::vector<PrefillPart> part{{.added = Tokens(512), .past = Tokens(0)}};
  EXPECT_NEAR(timing(5e-4, 1e-5).iteration(part, 0, Tokens(0)).total.seconds() -
                  timing(1e-4, 1e-5).iteration(part, 0, Tokens(0)).total.seconds(),
              layers * 4e-4, 1e-6);
}

TEST(ProfileLayers, ExpertsWithActivationsOfMxfp8HaveATableOfTheirOwn) {
  ModelConfig model = test::load_model("gpt-oss-120b");
  const Profile both =
      profile_of({experts_of(model, DataType::mxfp4), experts_of(model, DataType::mxfp4_mxfp8)});
  EXPECT_EQ(table_of_experts(both, model, 1, 1)->table.dtype, DataType::mxfp4);
  model.precision.compute = NumberFormat::fp8;
  EXPECT_EQ(table_of_experts(both, model, 1, 1)->table.dtype, DataType::mxfp4_mxfp8);
  EXPECT_FALSE(table_of_experts(profile_of({experts_of(model, DataType::mxfp4)}), model, 1, 1));
}

TEST(ProfileLayers, MatricesOfModelsWithExpertsHaveBlockScales) {
  ModelConfig model = test::load_model("qwen3-235b-a22b");
  model.precision.attention = NumberFormat::fp8;
  Profile profile = profile_of({});
  ProfileTable table = profile.tables.front();
  for (const DataType type : {DataType::fp8, DataType::fp8_block}) {
    table.dtype = type;
    profile.tables.push_back(table);
  }
  const MatrixShape matrix = layer_matrices(model, 1).front();
  EXPECT_EQ(table_of_matrix(profile, model, matrix)->table.dtype, DataType::fp8_block);
  model.experts.reset();
  EXPECT_EQ(table_of_matrix(profile, model, matrix)->table.dtype, DataType::fp8);
}

TEST(ProfileLayers, SparseLatentAttentionIsThatOfPublishedModels) {
  EXPECT_STREQ(latent_variant(test::load_model("deepseek-v3")), kModuleVariant);
  ModelConfig model = test::load_model("glm-5");
  EXPECT_STREQ(latent_variant(model), "sparse_module_glm");
  model.sparse->index_heads = 16;
  EXPECT_EQ(latent_variant(model), nullptr);
}

TEST(ProfileLayers, RefusesWorkThatTheProfileLacks) {
  HardwareConfig hardware = hardware_of(profile_of({}));
  hardware.unmeasured = Unmeasured::refuse;
  Problems problems;
  check_profile_timing(test::load_model("deepseek-v3"), hardware, problems);
  std::string text;
  for (const std::string& line : problems.lines()) {
    text += line + "\n";
  }
  EXPECT_NE(text.find("no mla_prefill and mla_decode"), std::string::npos) << text;
  EXPECT_NE(text.find("no moe of 256 experts, 8 of them active, 2048 wide"), std::string::npos)
      << text;
  hardware.parallel.pipeline = 2;
  Problems stages;
  check_profile_timing(test::load_model("llama-3.1-8b"), hardware, stages);
  ASSERT_EQ(stages.lines().size(), 1U);
  EXPECT_NE(stages.lines()[0].find("in several pipeline stages"), std::string::npos);
}

TEST(ProfileLayers, AMatrixTakesNoLongerThanALargerOne) {
  ProfileTable table{.operation = OperationId::gemm_grid,
                     .variant = "matrix",
                     .method = "test",
                     .dtype = DataType::bf16,
                     .axes = {"tokens", "n", "k"}};
  for (const std::int64_t tokens : {1, 2}) {
    for (const std::int64_t n : {1024, 2048}) {
      // The smallest one took too long.
      const double seconds =
          tokens == 1 && n == 1024 ? 9e-5 : 1e-5 * static_cast<double>(tokens * n) / 1024;
      table.cells.push_back(cell({tokens, n, 1024}, seconds));
    }
  }
  Profile profile = profile_of({});
  profile.tables = {table};
  const auto shaped = interpolate_matrix(profile, 1024, 1024, DataType::bf16);
  ASSERT_TRUE(shaped);
  EXPECT_NEAR(shaped->table.cells[0].median_seconds, 2e-5, 1e-12);
  EXPECT_NEAR(shaped->table.cells[1].median_seconds, 2e-5, 1e-12);
}

}  // namespace
}  // namespace kvtier
