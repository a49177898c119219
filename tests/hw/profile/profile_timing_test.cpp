#include "hw/profile/profile_timing.hpp"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/hw/load.hpp"
#include "tests/hw/tiny_profile.hpp"

namespace kvtier {
namespace {

using namespace literals;
using Lines = std::vector<std::string>;
using test::cell;
using test::matrix_table;
using test::tiny_model;
using test::tiny_profile;

/// 1,000 FLOP/s, 1,000 B/s and 1 s per iteration, with a profile.
HardwareConfig hardware_with(const Profile& profile) {
  HardwareConfig hardware;
  hardware.gpu.peak = FlopsPerSecond(1000);
  hardware.hbm.bandwidth = BytesPerSecond(1000);
  hardware.efficiency.iteration_overhead = 1_s;
  hardware.profile =
      ProfileChoice{.name = profile.name, .loaded = std::make_shared<const Profile>(profile)};
  return hardware;
}

ProfileTiming timing_of(const Profile& profile, std::int64_t max_batch = 4,
                        KeyPositions positions = KeyPositions::embedded) {
  return {tiny_model(), hardware_with(profile), positions, max_batch};
}

double seconds(std::int64_t ticks) {
  return static_cast<double>(ticks) / (1e9 * static_cast<double>(kTicksPerNs));
}

double decode_seconds(const ProfileTiming& timing, std::int64_t batch, std::int64_t context) {
  return seconds(piece_at(timing.decode(batch), Tokens(context)).at(Tokens(context)));
}

constexpr double kRounding = 1e-8;

TEST(ProfilePrefill, IsTheSumOfItsOperations) {
  // 4 tokens: qkv 2 s and mlp_up, of the same shape, 2 s, the other two 1 s each: 6. Attention of 4
  // after 8: 5. A layer 11; total 2 x 11 + head 1 + 1.
  const ProfileTiming timing = timing_of(tiny_profile());
  const PrefillTime time = timing.prefill(std::vector<PrefillPart>{{4_tokens, 8_tokens}});
  EXPECT_NEAR(time.layer.seconds(), 11, kRounding);
  EXPECT_NEAR(time.total.seconds(), 24, kRounding);
  EXPECT_FALSE(time.extrapolated);
}

TEST(ProfilePrefill, JoinsTheMatricesOfAllPartsAndAddsTheirAttention) {
  // 4 tokens in the matrices: 6 s. Attention 1, 2, 5 and 1: 9. A layer 15; total 2 x 15 + 1 + 1.
  const ProfileTiming timing = timing_of(tiny_profile());
  const PrefillTime time = timing.prefill(std::vector<PrefillPart>{
      {1_tokens, 0_tokens}, {1_tokens, 8_tokens}, {1_tokens, 32_tokens}, {1_tokens, 0_tokens}});
  EXPECT_NEAR(time.layer.seconds(), 15, kRounding);
  EXPECT_NEAR(time.total.seconds(), 32, kRounding);
}

TEST(ProfileIteration, AddsTheAttentionOfRunningRequestsToThatOfThePrompts) {
  // 2 prompt tokens and 2 of running requests in the matrices: 6 s. Attention of 1 after 0 and of 1
  // after 8: 3; of 2 running requests with 8 tokens each: 2. A layer 11; total 2 x 11 + 1 + 1.
  const ProfileTiming timing = timing_of(tiny_profile());
  const std::vector<PrefillPart> parts{{1_tokens, 0_tokens}, {1_tokens, 8_tokens}};
  const PrefillTime time = timing.iteration(parts, 2, 16_tokens);
  EXPECT_NEAR(time.layer.seconds(), 11, kRounding);
  EXPECT_NEAR(time.total.seconds(), 24, kRounding);
  EXPECT_FALSE(time.extrapolated);
  EXPECT_TRUE(timing.iteration(parts, 2, 400_tokens).extrapolated);
  EXPECT_EQ(timing.iteration(parts, 0, 0_tokens).total, timing.prefill(parts).total);
}

TEST(ProfilePrefill, MarksTimesBeyondTheGrid) {
  const ProfileTiming timing = timing_of(tiny_profile());
  EXPECT_TRUE(timing.prefill(std::vector<PrefillPart>{{4_tokens, 33_tokens}}).extrapolated);
  EXPECT_TRUE(timing.prefill(std::vector<PrefillPart>{{5_tokens, 8_tokens}}).extrapolated);
}

TEST(ProfilePrefill, ChargesElementWorkThatWasMeasured) {
  Profile profile = tiny_profile();
  ProfileTable norm{.operation = OperationId::elementwise, .variant = "norm"};
  norm.shape = {{"width", 4}, {"element_bytes", 2}};
  norm.axes = {"tokens"};
  norm.cells = {test::cell({4}, 0.5)};
  profile.tables.push_back(norm);
  // Two norms of half a second in each layer.
  const ProfileTiming timing = timing_of(profile, 1);
  EXPECT_NEAR(timing.prefill(std::vector<PrefillPart>{{4_tokens, 8_tokens}}).layer.seconds(), 12,
              kRounding);
  EXPECT_EQ(timing.left_out(),
            (Lines{"elementwise residual", "elementwise activation", "elementwise kv_write",
                   "rotation rope", "elementwise embedding", "elementwise sampling"}));
}

// The profile lacks norms of one token.
TEST(ProfileDecode, IsExtrapolatedIfUnmeasuredSizesTakeMuchOfIt) {
  for (const double seconds : {0.01, 10.0}) {
    Profile profile = tiny_profile();
    ProfileTable norm{.operation = OperationId::elementwise, .variant = "norm"};
    norm.shape = {{"width", 4}, {"element_bytes", 2}};
    norm.axes = {"tokens"};
    norm.cells = {test::cell({4}, seconds)};
    profile.tables.push_back(norm);
    const ProfileTiming timing = timing_of(profile, 1);
    EXPECT_EQ(piece_at(timing.decode(1), 16_tokens).extrapolated, seconds == 10);
    const std::vector<PrefillPart> parts{{1_tokens, 8_tokens}};
    EXPECT_EQ(timing.prefill(parts).extrapolated, seconds == 10);
  }
}

TEST(ProfilePrefill, UsesRotatingAttentionForKeysWithoutPositions) {
  Profile profile = tiny_profile();
  ProfileTable rope{.operation = OperationId::rotation, .variant = "rope"};
  rope.shape = {{"heads", 3}, {"head_dim", 2}, {"element_bytes", 2}};
  rope.axes = {"tokens"};
  rope.cells = {test::cell({4}, 0.25)};
  profile.tables.push_back(rope);
  const auto rotated = [&profile](OperationId operation) {
    ProfileTable table = *find_tables(profile, operation).front();
    table.variant = kRotatedVariant;
    for (ProfileCell& cell : table.cells) {
      cell.median_seconds *= 2;
    }
    return table;
  };
  const auto layer_seconds = [&profile](KeyPositions positions) {
    return timing_of(profile, 4, positions)
        .prefill(std::vector<PrefillPart>{{4_tokens, 8_tokens}})
        .layer.seconds();
  };
  // 11 s as above and the rotation of the new tokens.
  EXPECT_NEAR(layer_seconds(KeyPositions::embedded), 11.25, kRounding);
  EXPECT_NEAR(layer_seconds(KeyPositions::decoupled), 11.25, kRounding);
  profile.tables.push_back(rotated(OperationId::prefill_attention));
  EXPECT_NEAR(layer_seconds(KeyPositions::decoupled), 11.25, kRounding) << "decode has none";
  profile.tables.push_back(rotated(OperationId::decode_attention));
  // Attention of 4 after 8 takes 10 s instead of 5, the rotation among them.
  EXPECT_NEAR(layer_seconds(KeyPositions::decoupled), 16, kRounding);
  EXPECT_NEAR(layer_seconds(KeyPositions::embedded), 11.25, kRounding);
  // Two layers of 6 s, head 1, overhead 1: 14. Attention of 4 x 8 tokens 8 s, twice.
  EXPECT_NEAR(decode_seconds(timing_of(profile, 4, KeyPositions::decoupled), 4, 32), 30, kRounding);
}

/// The tiny profile, and what one of two GPUs that serve the tiny model computes.
Profile profile_of_two() {
  Profile profile = tiny_profile();
  profile.tables.push_back(matrix_table("half", 6, 4, {{4, 1}}));  // (1 + 2 x 1) x 2 x 4
  profile.tables.push_back(matrix_table("half", 4, 2, {{4, 1}}));
  profile.tables.push_back(matrix_table("half", 4, 4, {{4, 3}}));  // mlp_up and mlp_down
  profile.tables.push_back(matrix_table("half", 5, 4, {{1, 1}, {4, 1}}));
  for (const OperationId operation :
       {OperationId::prefill_attention, OperationId::decode_attention}) {
    ProfileTable half = *find_tables(profile, operation).front();
    half.shape["attention_heads"] = 1;
    profile.tables.push_back(half);
  }
  return profile;
}

HardwareConfig two_gpus_with(const Profile& profile) {
  HardwareConfig hardware = hardware_with(profile);
  hardware.gpus = 2;
  hardware.links.gpu = {.bandwidth = BytesPerSecond(100), .latency = 500_ms};
  return hardware;
}

TEST(ProfilePrefill, UsesTheShapesOfTwoGpusAndAddsAllReduces) {
  // attention_output is 4 x 2: 1 s; mlp_up (4 x 4) is the tiny profile's own table: 1 s, as is
  // mlp_down. qkv 1. Attention 5. An all-reduce of 4 x 4 x 2 = 32 B: 2 x 1/2 x 32 / 100 = 0.32 s
  // and 2 steps of 0.5 s; two of them 2.64. A layer 11.64.
  const ProfileTiming timing(tiny_model(), two_gpus_with(profile_of_two()), KeyPositions::embedded,
                             1);
  EXPECT_NEAR(timing.prefill(std::vector<PrefillPart>{{4_tokens, 8_tokens}}).layer.seconds(), 11.64,
              kRounding);
}

TEST(ProfileDecode, HasAPieceFromEachMeasuredContextToTheNext) {
  const ProfileTiming timing = timing_of(tiny_profile());
  const std::vector<DecodePiece>& pieces = timing.decode(4);
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_EQ(pieces[0].from, 0_tokens);
  EXPECT_EQ(pieces[1].from, 32_tokens);   // 4 x 8
  EXPECT_EQ(pieces[2].from, 128_tokens);  // 4 x 32
  // Two layers of 6 s, head 1, overhead 1: 14. Attention of 4 x 8 tokens 4 s, of 4 x 32 16 s,
  // twice; half way between 10. Beyond, the bandwidth is held: 256 tokens 32 s. Below, no attention
  // is faster than the shortest measured, 1 s.
  EXPECT_NEAR(decode_seconds(timing, 4, 32), 22, kRounding);
  EXPECT_NEAR(decode_seconds(timing, 4, 128), 46, kRounding);
  EXPECT_NEAR(decode_seconds(timing, 4, 80), 34, kRounding);
  EXPECT_NEAR(decode_seconds(timing, 4, 256), 78, kRounding);
  EXPECT_NEAR(decode_seconds(timing, 4, 0), 16, kRounding);
  EXPECT_TRUE(pieces[0].extrapolated);
  EXPECT_FALSE(pieces[1].extrapolated);
  EXPECT_TRUE(pieces[2].extrapolated);
}

TEST(ProfileDecode, BeyondTheMeasuredBatchIsExtrapolatedAtAnyContext) {
  const ProfileTiming timing = timing_of(tiny_profile(), 5);
  for (const DecodePiece& part : timing.decode(5)) {
    EXPECT_TRUE(part.extrapolated);
  }
}

TEST(ProfileDecode, NeverFallsFromOneTokenToTheNext) {
  const ProfileTiming timing = timing_of(tiny_profile());
  for (std::int64_t batch = 1; batch <= 4; ++batch) {
    std::int64_t before = 0;
    for (std::int64_t context = 0; context < 400; ++context) {
      const std::int64_t ticks =
          piece_at(timing.decode(batch), Tokens(context)).at(Tokens(context));
      EXPECT_GE(ticks, before) << batch << ", " << context;
      before = ticks;
    }
  }
}

ProfileTable& add_runs(Profile& profile, std::vector<ProfileCell> cells) {
  ProfileTable runs{.operation = OperationId::model_step, .variant = kDecodeWarm};
  runs.shape = step_shape(tiny_model(), 2);
  runs.axes = {"requests", "new_tokens", "past_tokens"};
  runs.cells = std::move(cells);
  return profile.tables.emplace_back(std::move(runs));
}

// One request: two layers of 4 s, head 1, attention to 8 tokens 1 s, twice: 11 without the overhead
// of the iteration, 1 s. Four with 8 tokens or 32 each: 21 and 45, as above.
TEST(ProfileDecode, IsCorrectedByTheMedianOfMeasuredRuns) {
  Profile profile = tiny_profile();
  ProfileTable& runs =
      add_runs(profile, {cell({1, 1, 7}, 8), cell({4, 1, 7}, 15), cell({4, 1, 31}, 41)});
  const ProfileTiming timing = timing_of(profile, 5, KeyPositions::decoupled);
  EXPECT_NEAR(decode_seconds(timing, 1, 8), 11 + 1 - 3, kRounding);
  // 6 and 4 s less: 5 in the middle.
  EXPECT_NEAR(decode_seconds(timing, 4, 80), 34 - 5, kRounding);
  EXPECT_NEAR(timing.decode_layer(4, 32_tokens).seconds(), 6 + 4 - 2.5, kRounding);
  // A third of the way from one to four, and beyond.
  const ProfileTiming plain = timing_of(tiny_profile(), 5);
  const auto less = [&](std::int64_t batch) {
    return decode_seconds(plain, batch, 80) - decode_seconds(timing, batch, 80);
  };
  EXPECT_NEAR(less(2), 3 + 2.0 / 3, kRounding);
  EXPECT_NEAR(less(5), 5, kRounding);
  // A prefill is not decode.
  const std::vector<PrefillPart> part{{4_tokens, 8_tokens}};
  EXPECT_EQ(timing.prefill(part).total, plain.prefill(part).total);
  // Batches below those that were measured, and runs that took more.
  const auto seconds_with = [&](std::vector<ProfileCell> cells) {
    runs.cells = std::move(cells);
    return decode_seconds(timing_of(profile, 4, KeyPositions::decoupled), 1, 8);
  };
  EXPECT_NEAR(seconds_with({cell({4, 1, 7}, 20)}), 12 - 1, kRounding);
  EXPECT_NEAR(seconds_with({cell({1, 1, 7}, 14)}), 12 + 3, kRounding);
  // At least attention and the work outside of layers.
  EXPECT_NEAR(seconds_with({cell({1, 1, 7}, 0.5)}), 4, kRounding);
}

// Four tokens after 8 take 24 s with the overhead of an iteration (1 s), 26 after idle time.
TEST(ProfilePrefill, HasTheMeasuredWarmUp) {
  Profile profile = tiny_profile();
  const auto add = [&](const char* variant, std::vector<ProfileCell> cells) {
    add_runs(profile, std::move(cells)).variant = variant;
  };
  const std::vector<PrefillPart> part{{4_tokens, 8_tokens}};
  const auto time = [&](KeyPositions positions) {
    return timing_of(profile, 4, positions).prefill(part);
  };
  const auto less = [&](KeyPositions positions, std::int64_t passes) {
    return (time(positions).after(0) - time(positions).after(passes)).seconds();
  };
  EXPECT_EQ(less(KeyPositions::decoupled, 2), 0);
  add(kCold, {cell({1, 4, 8}, 25)});
  EXPECT_EQ(less(KeyPositions::decoupled, 2), 0);
  add(kWarm, {cell({1, 4, 8}, 20)});
  for (const KeyPositions positions : {KeyPositions::decoupled, KeyPositions::embedded}) {
    EXPECT_NEAR(time(positions).total.seconds(), 26, kRounding);
    EXPECT_NEAR(less(positions, 2), 5, kRounding);
  }
  // As a second pass 23 s with the overhead, and decode 2 s more than in a run; as a first one 5 s.
  EXPECT_NEAR(less(KeyPositions::decoupled, 1), 5, kRounding);
  add(kSecond, {cell({1, 4, 8}, 22)});
  for (const KeyPositions positions : {KeyPositions::decoupled, KeyPositions::embedded}) {
    EXPECT_NEAR(less(positions, 1), 3, kRounding);
    EXPECT_NEAR(timing_of(profile, 4, positions).decode_warm_up(1).seconds(), 2, kRounding);
    EXPECT_NEAR(timing_of(profile, 4, positions).decode_warm_up(0).seconds(), 5, kRounding);
  }
  // Between the two others.
  for (const auto& [seconds, saved] : {std::pair(30, 0), std::pair(18, 5)}) {
    profile.tables.back().cells = {cell({1, 4, 8}, seconds)};
    EXPECT_NEAR(less(KeyPositions::decoupled, 1), saved, kRounding);
  }
  profile.tables.pop_back();
  // At most the time after idle time, and at least attention and the work outside of layers. It
  // saves at most the matrices of both layers, 12 s, and the 2 s after idle time.
  profile.tables.back().cells = {cell({1, 4, 8}, 27)};
  EXPECT_EQ(less(KeyPositions::decoupled, 2), 0);
  profile.tables.back().cells = {cell({1, 4, 8}, 1)};
  EXPECT_NEAR(less(KeyPositions::decoupled, 2), 14, kRounding);
}

// Half of the additional 8 ms: 10.5 + 4 = 14.5 ms.
TEST(ProfileTiming, TakesTheIdleGapFromPassesAfterIdleTime) {
  Profile profile = tiny_profile();
  EXPECT_EQ(timing_of(profile, 4, KeyPositions::decoupled).idle_gap(), kUsualIdleGap);
  ProfileTable passes{.operation = OperationId::idle_pass, .variant = "prefill"};
  passes.shape = step_shape(tiny_model(), 2);
  passes.axes = {"idle_us"};
  passes.cells = {cell({1000}, 0.0105), cell({100000}, 0.0185), cell({3000}, 0.014),
                  cell({30000}, 0.015)};
  profile.tables.push_back(passes);
  for (const KeyPositions positions : {KeyPositions::decoupled, KeyPositions::embedded}) {
    EXPECT_EQ(timing_of(profile, 4, positions).idle_gap(), 30_ms);
  }
  // A longer idle time after which a pass is warm.
  profile.tables.back().cells[3] = cell({30000}, 0.014);
  EXPECT_EQ(timing_of(profile, 4, KeyPositions::decoupled).idle_gap(), 100_ms);
  // Idle time costs less than a tenth.
  profile.tables.back().cells[1] = cell({100000}, 0.0115);
  EXPECT_EQ(timing_of(profile, 4, KeyPositions::decoupled).idle_gap(), kUsualIdleGap);
}

TEST(ProfileDecode, IsCorrectedOnlyInTheSettingOfMeasuredRuns) {
  Profile profile = tiny_profile();
  for (const OperationId operation :
       {OperationId::prefill_attention, OperationId::decode_attention}) {
    ProfileTable rotated = *find_tables(profile, operation).front();
    rotated.variant = kRotatedVariant;
    for (ProfileCell& one : rotated.cells) {
      one.median_seconds *= 2;
    }
    profile.tables.push_back(rotated);
  }
  // Rotated attention takes 2 s in each layer: 13 s of operations, 3 less in the run.
  add_runs(profile, {cell({1, 1, 7}, 10)});
  EXPECT_NEAR(decode_seconds(timing_of(profile, 4, KeyPositions::decoupled), 1, 8), 11, kRounding);
  // Keys with positions were not measured in runs: their times differ only by their operations.
  EXPECT_NEAR(decode_seconds(timing_of(profile, 4, KeyPositions::embedded), 1, 8), 9, kRounding);
  // The time that the scheduler takes is no part of a step.
  HardwareConfig hardware = hardware_with(profile);
  hardware.efficiency.iteration_overhead = 5_s;
  EXPECT_NEAR(
      decode_seconds(ProfileTiming(tiny_model(), hardware, KeyPositions::decoupled, 4), 1, 8), 15,
      kRounding);
  // Several GPUs are not corrected.
  Profile two = profile_of_two();
  const auto of_two = [&] {
    return decode_seconds(
        ProfileTiming(tiny_model(), two_gpus_with(two), KeyPositions::decoupled, 4), 1, 8);
  };
  const double alone = of_two();
  add_runs(two, {cell({1, 1, 7}, 1)});
  EXPECT_EQ(of_two(), alone);
  // Times from the roofline are not corrected.
  std::erase_if(profile.tables,
                [](const ProfileTable& table) { return table.variant == "lm_head"; });
  hardware = hardware_with(profile);
  hardware.unmeasured = Unmeasured::roofline;
  const auto rough = [&] {
    return decode_seconds(ProfileTiming(tiny_model(), hardware, KeyPositions::decoupled, 4), 1, 8);
  };
  const double with_runs = rough();
  profile.tables.pop_back();
  hardware.profile->loaded = std::make_shared<const Profile>(profile);
  EXPECT_EQ(with_runs, rough());
}

TEST(ProfileDecode, GivesTheTimeOfOneLayer) {
  const ProfileTiming timing = timing_of(tiny_profile());
  EXPECT_NEAR(timing.decode_layer(4, 32_tokens).seconds(), 6 + 4, kRounding);
  EXPECT_NEAR(timing.decode_layer(4, 80_tokens).seconds(), 6 + 10, kRounding);
}

TEST(ProfileTimingCheck, NamesWhatIsMissingAndWhatThereIs) {
  Profile profile = tiny_profile();
  std::erase_if(profile.tables, [](const ProfileTable& table) {
    return table.operation == OperationId::decode_attention || table.variant == "lm_head";
  });
  Problems problems;
  problems.set_origin("", "run.json");
  check_profile_timing(tiny_model(), hardware_with(profile), problems);
  const std::string end =
      ": measure with --model tiny, or set /hardware/unmeasured to \"roofline\"";
  EXPECT_EQ(problems.lines(),
            (Lines{"run.json: /hardware/profile: profile tiny-profile has no decode_attention of 2 "
                   "heads, 1 KV "
                   "heads, 2 wide in 2 B, needed for tiny on 1 GPUs; it has none" +
                       end,
                   "run.json: /hardware/profile: profile tiny-profile has no gemm of 10 x 4 in 2 B "
                   "(lm_head), needed for tiny on 1 GPUs; it has 8 x 4 in 2 B; 4 x 4 in 2 B; 4 x 8 "
                   "in 2 B" +
                       end}));
}

TEST(ProfileTimingCheck, RefusesAnotherModelsShapes) {
  ModelConfig other = tiny_model();
  other.name = "other";
  other.hidden_size = 16;
  Problems problems;
  check_profile_timing(other, hardware_with(tiny_profile()), problems);
  EXPECT_EQ(problems.lines().size(), 5U);  // no matrix fits, attention does
}

TEST(ProfileTimingCheck, PassesWithoutAProfileOrWithACompleteOne) {
  Problems problems;
  check_profile_timing(tiny_model(), hardware_with(tiny_profile()), problems);
  HardwareConfig none = hardware_with(tiny_profile());
  none.profile.reset();
  check_profile_timing(tiny_model(), none, problems);
  EXPECT_EQ(problems.lines(), Lines{});
}

TEST(ProfileTimingCheck, LetsTheRooflineStandInOnRequest) {
  Profile profile = tiny_profile();
  std::erase_if(profile.tables, [](const ProfileTable& table) {
    return table.operation == OperationId::decode_attention || table.variant == "lm_head";
  });
  HardwareConfig hardware = hardware_with(profile);
  hardware.unmeasured = Unmeasured::roofline;
  Problems problems;
  check_profile_timing(tiny_model(), hardware, problems);
  EXPECT_EQ(problems.lines(), Lines{});
  const ProfileTiming timing(tiny_model(), hardware, KeyPositions::embedded, 4);
  EXPECT_EQ(timing.from_roofline(),
            (Lines{"decode_attention", "elementwise norm", "elementwise residual",
                   "elementwise activation", "elementwise kv_write", "rotation rope",
                   "gemm lm_head", "elementwise embedding", "elementwise sampling"}));
  EXPECT_EQ(timing.left_out(), Lines{});
  // Head: 4 rows x 80 FLOP over 1,000 = 0.32 s. Attention: 16 FLOP a token of context, 0.016 s,
  // twice; 14 - 1 + 0.32 + 2 x 100 x 0.016 = 16.52. Elements of 2 B of 4 rows are read and written,
  // 0.016 s for each of a row: in each layer two norms and two residuals of 4, an activation of 8,
  // KV of 4 and the rotation of 6, and outside an embedding of 4 and logits of 10: 0.016 x (2 x 34
  // + 14) = 1.312.
  EXPECT_NEAR(decode_seconds(timing, 4, 100), 17.832, 1e-6);
  EXPECT_FALSE(timing.decode(4).back().extrapolated);
}

TEST(ProfileTable, IsTakenFromColdCachesFirst) {
  Profile profile = tiny_profile();
  profile.tables.insert(profile.tables.begin(), profile.tables.front());
  profile.tables.front().cache = CacheState::hot;
  EXPECT_EQ(find_matrix_table(profile, {"qkv", 8, 4}, 2), &profile.tables[1]);
  EXPECT_EQ(find_matrix_table(profile, {"qkv", 8, 4}, 1), nullptr);
}

TEST(MakeTiming, IsTheRooflineWithoutAProfile) {
  const HardwareConfig hardware = test::load_hardware();
  const ModelConfig model = test::load_model("llama2-13b");
  EXPECT_EQ(dynamic_cast<const ProfileTiming*>(
                make_timing(model, hardware, KeyPositions::embedded, 1).get()),
            nullptr);
  EXPECT_NE(dynamic_cast<const ProfileTiming*>(
                make_timing(tiny_model(), hardware_with(tiny_profile()), KeyPositions::embedded, 1)
                    .get()),
            nullptr);
}

}  // namespace
}  // namespace kvtier
