#include "hw/profile/profile_shapes.hpp"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "hw/profile/factor_grid.hpp"
#include "hw/profile/profile_timing.hpp"
#include "sim/core/errors.hpp"
#include "tests/hw/load.hpp"
#include "tests/hw/tiny_profile.hpp"

namespace kvtier {
namespace {

using test::cell;

Profile profile_of(std::vector<ProfileTable> tables) {
  Profile profile;
  profile.name = "shapes";
  profile.device.peak = FlopsPerSecond(1e15);
  profile.device.memory_bandwidth = BytesPerSecond(1e13);
  profile.tables = std::move(tables);
  return profile;
}

/// Time is n x k x tokens in nanoseconds: a power law, which interpolation keeps.
ProfileTable matrices(const std::vector<std::int64_t>& sides) {
  ProfileTable table{.operation = OperationId::gemm_grid,
                     .variant = "matrix",
                     .method = "test",
                     .dtype = DataType::bf16,
                     .axes = {"tokens", "n", "k"}};
  for (const std::int64_t tokens : {1, 64}) {
    for (const std::int64_t n : sides) {
      for (const std::int64_t k : sides) {
        table.cells.push_back(cell({tokens, n, k}, 1e-9 * static_cast<double>(tokens * n * k)));
      }
    }
  }
  return table;
}

TEST(MatrixShapes, BetweenMeasuredOnesAreInterpolatedInLogarithms) {
  const Profile profile = profile_of({matrices({256, 512, 1024})});
  const auto shaped = interpolate_matrix(profile, 300, 700, DataType::bf16);
  ASSERT_TRUE(shaped);
  EXPECT_FALSE(shaped->extrapolated);
  ASSERT_EQ(shaped->table.cells.size(), 2U);
  EXPECT_NEAR(shaped->table.cells[0].median_seconds, 1e-9 * 300 * 700, 1e-12);
  EXPECT_NEAR(shaped->table.cells[1].median_seconds, 64e-9 * 300 * 700, 1e-10);
  EXPECT_EQ(shaped->table.operation, OperationId::gemm);
}

TEST(MatrixShapes, BeyondTheGridHoldTheShareOfTheLimit) {
  const Profile profile = profile_of({matrices({256, 512})});
  const auto shaped = interpolate_matrix(profile, 1024, 512, DataType::bf16);
  ASSERT_TRUE(shaped);
  EXPECT_TRUE(shaped->extrapolated);
  // Twice the weights and operations of 512 x 512.
  EXPECT_NEAR(shaped->table.cells[0].median_seconds, 2e-9 * 512 * 512, 1e-12);
}

TEST(MatrixShapes, AGapIsFilledFromItsNeighbours) {
  ProfileTable table = matrices({256, 512, 1024});
  std::erase_if(table.cells,
                [](const ProfileCell& one) { return one.at[1] == 512 && one.at[2] == 512; });
  const auto shaped = interpolate_matrix(profile_of({table}), 512, 512, DataType::bf16);
  ASSERT_TRUE(shaped);
  EXPECT_NEAR(shaped->table.cells[0].median_seconds, 1e-9 * 512 * 512, 1e-12);
}

TEST(MatrixShapes, AreUnknownForAFormatWithoutATable) {
  const Profile profile = profile_of({matrices({256, 512})});
  EXPECT_FALSE(interpolate_matrix(profile, 256, 256, DataType::fp8));
}

ProfileTable prefills(std::int64_t heads, double seconds) {
  ProfileTable table{.operation = OperationId::prefill_attention,
                     .variant = "imported",
                     .method = "test",
                     .shape = {{"attention_heads", heads},
                               {"kv_heads", 2},
                               {"head_dim", 64},
                               {"element_bytes", 2}},
                     .axes = {"new_tokens", "past_tokens"}};
  table.cells = {cell({64, 0}, seconds), cell({1024, 0}, 16 * seconds)};
  return table;
}

TEST(AttentionHeads, BetweenMeasuredOnesAreInterpolated) {
  const Profile profile = profile_of({prefills(4, 1e-5), prefills(16, 4e-5)});
  const AttentionShape shape{
      .attention_heads = 8, .kv_heads = 2, .head_dim = 64, .element_bytes = 2};
  const auto shaped =
      interpolate_attention(profile, OperationId::prefill_attention, shape, 0, DataType::bf16);
  ASSERT_TRUE(shaped);
  EXPECT_FALSE(shaped->extrapolated);
  EXPECT_NEAR(shaped->table.cells[0].median_seconds, 2e-5, 1e-12);
  AttentionShape other = shape;
  other.kv_heads = 4;
  EXPECT_FALSE(
      interpolate_attention(profile, OperationId::prefill_attention, other, 0, DataType::bf16));
  EXPECT_FALSE(
      interpolate_attention(profile, OperationId::prefill_attention, shape, 128, DataType::bf16));
}

// 1,024 new tokens have 1,024 x 1,025 / 2 pairs: 4 x 4 x 64 x 524,800 = 5.37e8 FLOP in 1.6e-4 s are
// 3.36e12 FLOP/s. 64 tokens after 2,048 have 131,072 pairs more: 1.34e8 FLOP in 4.0e-5 s. Walking
// 2,048 x 256 B of a head at 24 GB/s takes 2.2e-5 s, which is less.
TEST(PastLaw, AddsThePairsAtTheRateOfTheLongestPrefill) {
  ProfileTable table = prefills(4, 1e-5);
  ASSERT_TRUE(add_past_by_law(table));
  for (const ProfileCell& one : table.cells) {
    if (one.at == std::vector<std::int64_t>{64, 2048}) {
      EXPECT_NEAR(one.median_seconds, 1e-5 + 4.0e-5, 0.01e-5);
    }
  }
  EXPECT_FALSE(add_past_by_law(table));
}

TEST(PastLaw, WalksAHeadWhereNewTokensAreFew) {
  ProfileTable table = prefills(4, 1e-5);
  // One new token after 2,048: 2,048 x 256 B at 24 GB/s.
  EXPECT_NEAR(past_law_seconds(table, attained_flops(table), 1, 2048), 2048 * 256 / 24e9, 1e-9);
}

TEST(Windows, BoundThePairsOfCausalAttention) {
  EXPECT_EQ(attention_pairs(4, 0, 0), 10);
  EXPECT_EQ(attention_pairs(4, 10, 0), 50);
  EXPECT_EQ(attention_pairs(4, 0, 2), 7);   // 1 + 2 + 2 + 2
  EXPECT_EQ(attention_pairs(4, 10, 2), 8);  // 2 each
  EXPECT_EQ(attention_pairs(4, 1, 3), 11);  // 2 + 3 + 3 + 3
}

TEST(MixedFactors, AreLinearInLogarithmsAndHeldBeyondTheGrid) {
  const FactorGrid grid({{.at = {1, 0, 1, 1}, .factor = 1}, {.at = {7, 0, 1, 1}, .factor = 2}});
  EXPECT_DOUBLE_EQ(grid.at({3, 0, 1, 1}), 1.5);  // log 4 is in the middle of log 2 and log 8
  EXPECT_DOUBLE_EQ(grid.at({100, 5, 9, 9}), 2);
}

TEST(CellGrids, KeepTheCellsOfATable) {
  Profile profile = profile_of({matrices({256, 512})});
  profile.provenance = {.date = "2026-01-01", .command = "test"};
  profile.device.name = "device";
  profile.device.driver = "none";
  profile.device.memory = Bytes(1);
  profile.device.limits_source = "test";
  profile.tables[0].cells.pop_back();
  const std::string text = profile_text(profile, CellLayout::grids);
  EXPECT_NE(text.find("\"microseconds\""), std::string::npos);
  const Profile read = profile_from_json(parse_json_strictly(text, "p"), "p");
  ASSERT_EQ(read.tables[0].cells.size(), profile.tables[0].cells.size());
  for (std::size_t i = 0; i < read.tables[0].cells.size(); ++i) {
    EXPECT_EQ(read.tables[0].cells[i].at, profile.tables[0].cells[i].at);
    EXPECT_NEAR(read.tables[0].cells[i].median_seconds / profile.tables[0].cells[i].median_seconds,
                1, 1e-8);
  }
}

TEST(CellGrids, AreRefusedIfTheirSizeIsWrong) {
  const auto problem = [](const char* grid) {
    const std::string text = std::string(R"({"format": "kvtier.profile/3", "name": "p",
      "provenance": {"date": "d", "command": "c", "libraries": {}},
      "device": {"name": "d", "driver": "d", "memory": "1GiB", "peak": "1TFLOP/s",
                 "memory_bandwidth": "1TB/s", "limits_source": "s"},
      "tables": [{"operation": "elementwise", "variant": "norm", "cache": "cold",
                  "shape": {"width": 4, "element_bytes": 2}, "axes": ["tokens"], "grid": )") +
                             grid + "}]}";
    try {
      static_cast<void>(profile_from_json(parse_json_strictly(text, "p"), "p"));
    } catch (const ConfigError& error) {
      return error.problems().front();
    }
    return std::string();
  };
  EXPECT_EQ(problem(R"({"at": [[1, 2]], "microseconds": [1, 2]})"), "");
  EXPECT_EQ(problem(R"({"at": [[1, 2]], "microseconds": [1]})"),
            "p: /tables/0/grid/microseconds: expected a time for each of 2 places, got 1");
  EXPECT_EQ(problem(R"({"at": [[2, 1]], "microseconds": [1, 2]})"),
            "p: /tables/0/grid/at/0: expected ascending values");
  EXPECT_EQ(problem(R"({"at": [[1], [2]], "microseconds": [1]})"),
            "p: /tables/0/grid/at: expected values for each of 1 axes, got 2");
}

/// A model whose matrices the profile has between its own, on 2 GPUs.
TEST(ShapedTiming, UsesGridsAndMeasuredAllReduces) {
  const ModelConfig model = test::load_model("llama3-8b");
  HardwareConfig hardware = test::load_hardware("h100-8x");
  hardware.gpus = 2;
  hardware.unmeasured = Unmeasured::roofline;
  ProfileTable reduce{.operation = OperationId::all_reduce,
                      .variant = "graph",
                      .method = "test",
                      .axes = {"gpus", "bytes"}};
  reduce.cells = {cell({2, 256}, 1.0), cell({2, 1 << 24}, 1.0)};
  auto profile =
      std::make_shared<Profile>(profile_of({matrices({256, 4096, 65536}), std::move(reduce)}));
  profile->device.peak = hardware.gpu.peak;
  hardware.profile = ProfileChoice{.name = "p", .loaded = profile};
  const ProfileTiming timing(model, hardware, KeyPositions::embedded, 4);
  EXPECT_EQ(std::vector(timing.from_roofline().begin(), timing.from_roofline().begin() + 2),
            (std::vector<std::string>{"prefill_attention", "decode_attention"}));
  // Two all-reduces of a second in each layer, which nothing else comes near.
  const PrefillPart part{.added = Tokens(1), .past = Tokens(0)};
  EXPECT_GT(timing.prefill(std::span(&part, 1)).layer, duration_from_seconds(2.0));
  EXPECT_LT(timing.prefill(std::span(&part, 1)).layer, duration_from_seconds(2.5));
}

/// The profile has matrices in bf16 only.
TEST(ShapedTiming, NamesTheFormatsThatTheRooflineStandsInFor) {
  ModelConfig model = test::load_model("llama3-8b");
  model.precision.mlp = NumberFormat::fp8;
  HardwareConfig hardware = test::load_hardware("h100-8x");
  hardware.gpus = 1;
  hardware.unmeasured = Unmeasured::roofline;
  auto profile = std::make_shared<Profile>(profile_of({matrices({256, 4096, 65536})}));
  hardware.profile = ProfileChoice{.name = "p", .loaded = profile};
  const ProfileTiming timing(model, hardware, KeyPositions::embedded, 1);
  ASSERT_GE(timing.from_roofline().size(), 4U);
  EXPECT_EQ(std::vector(timing.from_roofline().begin() + 2, timing.from_roofline().begin() + 4),
            (std::vector<std::string>{"gemm mlp_up in fp8", "gemm mlp_down in fp8"}));
  hardware.unmeasured = Unmeasured::refuse;
  Problems problems;
  check_profile_timing(model, hardware, problems);
  ASSERT_FALSE(problems.empty());
  EXPECT_NE(problems.lines()[0].find("has no gemm of 28672 x 4096 in fp8 (mlp_up)"),
            std::string::npos)
      << problems.lines()[0];
}

}  // namespace
}  // namespace kvtier
