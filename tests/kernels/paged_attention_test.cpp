#include "kernels/paged_attention.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/rope_attention.hpp"
#include "kernels/row_functions.hpp"

namespace kvtier::kernels {
namespace {

std::vector<float> random_values(std::size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(engine()) / 2147483648.0F - 1;
  }
  return values;
}

struct Case {
  PagedAttentionShape shape;
  /// Query tokens and context tokens of each request.
  std::vector<std::pair<std::int64_t, std::int64_t>> requests;
  /// 0: keys and queries carry their positions.
  double rope_base = 0;
};

/// Puts each request's tokens into random slots and holds the result to plain attention in double.
void expect_as_reference(const Case& c) {
  const auto kv_row = static_cast<std::size_t>(c.shape.kv_heads * c.shape.head_dim);
  const auto query_row = static_cast<std::size_t>(c.shape.query_heads * c.shape.head_dim);
  std::vector<std::int64_t> context_begin{0};
  std::vector<std::int64_t> query_begin{0};
  for (const auto& [queries, context] : c.requests) {
    query_begin.push_back(query_begin.back() + queries);
    context_begin.push_back(context_begin.back() + context);
  }
  const auto tokens = static_cast<std::size_t>(context_begin.back());
  std::vector<std::int32_t> slots(tokens * 2);
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), std::mt19937(7));
  const std::vector<float> keys = random_values(tokens * 2 * kv_row, 1);
  const std::vector<float> values = random_values(tokens * 2 * kv_row, 2);
  const std::vector<float> queries =
      random_values(static_cast<std::size_t>(query_begin.back()) * query_row, 3);
  std::vector<float> output(queries.size(), NAN);
  const PagedBatch batch{.requests = static_cast<std::int64_t>(c.requests.size()),
                         .slots = slots.data(),
                         .context_begin = context_begin.data(),
                         .query_begin = query_begin.data()};
  ASSERT_TRUE(is_valid(c.shape));
  std::int64_t longest = 0;
  for (const auto& request : c.requests) {
    longest = std::max(longest, request.second);
  }
  const RotaryTable table(c.shape.head_dim, c.rope_base, longest);
  const RotaryAngles angles = c.rope_base > 0 ? table.angles() : RotaryAngles{};
  for (std::int64_t r = 0; r < batch.requests; ++r) {
    const std::int64_t count = c.requests[static_cast<std::size_t>(r)].first;
    for (std::int64_t head = 0; head < c.shape.kv_heads; ++head) {
      for (std::int64_t tile = 0; tile * kQueryTile < count; ++tile) {
        attend_paged(c.shape, batch, angles, queries.data(), keys.data(), values.data(),
                     output.data(), r, head, tile);
      }
    }
  }
  const AttentionShape reference{.query_heads = static_cast<std::size_t>(c.shape.query_heads),
                                 .kv_heads = static_cast<std::size_t>(c.shape.kv_heads),
                                 .head_dim = static_cast<std::size_t>(c.shape.head_dim),
                                 .rope_base = c.rope_base};
  for (std::size_t r = 0; r < c.requests.size(); ++r) {
    std::vector<double> k;
    std::vector<double> v;
    for (std::int64_t t = context_begin[r]; t < context_begin[r + 1]; ++t) {
      const auto row = static_cast<std::size_t>(slots[static_cast<std::size_t>(t)]) * kv_row;
      k.insert(k.end(), &keys[row], &keys[row] + kv_row);
      v.insert(v.end(), &values[row], &values[row] + kv_row);
    }
    const auto first = static_cast<std::size_t>(query_begin[r]) * query_row;
    const auto last = static_cast<std::size_t>(query_begin[r + 1]) * query_row;
    std::vector<double> q(queries.data() + first, queries.data() + last);
    if (c.rope_base > 0) {
      std::vector<std::int64_t> positions(k.size() / kv_row);
      std::iota(positions.begin(), positions.end(), 0);
      apply_rope<double>(k, reference.kv_heads, positions, reference);
      positions.erase(positions.begin(), positions.end() - c.requests[r].first);
      apply_rope<double>(q, reference.query_heads, positions, reference);
    }
    std::vector<double> expected(q.size());
    attend<double>(q, k, v, reference, expected);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(output[first + i], expected[i], 2e-5) << "request " << r << ", number " << i;
    }
  }
}

TEST(PagedAttention, AgreesWithPlainAttentionInDecode) {
  expect_as_reference({{.query_heads = 8, .kv_heads = 4, .head_dim = 64},
                       {{1, 1}, {1, 63}, {1, 64}, {1, 65}, {1, 1000}}});
}

TEST(PagedAttention, AgreesWithPlainAttentionInPrefill) {
  expect_as_reference({{.query_heads = 8, .kv_heads = 4, .head_dim = 64},
                       {{1, 1}, {16, 16}, {17, 17}, {100, 100}, {70, 300}, {5, 5}}});
}

TEST(PagedAttention, AgreesWithPlainAttentionInEveryShape) {
  for (const PagedAttentionShape shape :
       {PagedAttentionShape{.query_heads = 1, .kv_heads = 1, .head_dim = 16},
        PagedAttentionShape{.query_heads = 2, .kv_heads = 2, .head_dim = 80},
        PagedAttentionShape{.query_heads = 16, .kv_heads = 1, .head_dim = 128},
        PagedAttentionShape{.query_heads = 6, .kv_heads = 2, .head_dim = 256}}) {
    expect_as_reference({shape, {{1, 130}, {20, 90}}});
  }
}

TEST(PagedAttention, PlacesKeysThatWereStoredWithoutPositions) {
  expect_as_reference({{.query_heads = 8, .kv_heads = 4, .head_dim = 64},
                       {{1, 1}, {1, 64}, {1, 65}, {1, 1000}, {16, 16}, {17, 130}, {70, 300}},
                       10000});
}

// Half of a head's width has no effect at position 0; a quarter turn a position takes key and query
// (1, 0) one apart to a score of cos(-90 degrees) = 0.
TEST(PagedAttention, TurnsKeysAndQueriesByTheirPlaceInTheContext) {
  constexpr std::int64_t kWidth = 16;
  std::vector<float> rows(2 * kWidth);
  rows[0] = rows[kWidth] = 12;
  std::vector<float> values(2 * kWidth);
  std::fill_n(values.begin() + kWidth, kWidth, 1.0F);
  std::vector<float> output(kWidth);
  const std::vector<std::int32_t> slots{0, 1};
  const std::vector<std::int64_t> context{0, 2};
  const std::vector<std::int64_t> query{0, 1};
  const PagedBatch batch{.requests = 1,
                         .slots = slots.data(),
                         .context_begin = context.data(),
                         .query_begin = query.data()};
  // cos and sin of 0 and of 90 degrees for the first pair, of 0 for the others.
  std::vector<float> cosines(kWidth, 1.0F);
  std::vector<float> sines(kWidth);
  cosines[kWidth / 2] = 0;
  sines[kWidth / 2] = 1;
  attend_paged({}, batch, {cosines.data(), sines.data()}, rows.data(), rows.data(), values.data(),
               output.data(), 0, 0, 0);
  // Scores 144 x 0 / 4 = 0 and 144 / 4 = 36: the weight of the second is 1 - e^-36.
  EXPECT_NEAR(output[0], 1, 1e-6);
  // Without positions both scores are 36.
  attend_paged({}, batch, {}, rows.data(), rows.data(), values.data(), output.data(), 0, 0, 0);
  EXPECT_NEAR(output[0], 0.5, 1e-6);
}

// ln 0.01 = -4.605. One head of width 16: scores are query x key / 4. The first query, 4, sees keys
// 0, -4.7, -4.5, of which the second is small; the other, 8, sees 0, -9.4, -9 and -4, of which two
// are.
TEST(PagedAttention, CountsScoresThatAreSmallBesideTheLargestOfTheirRow) {
  constexpr std::int64_t kWidth = 16;
  std::vector<float> keys(4 * kWidth);
  keys[0] = 0;
  keys[kWidth] = -4.7F;
  keys[2 * kWidth] = -4.5F;
  keys[3 * kWidth] = -2;
  std::vector<float> queries(2 * kWidth);
  queries[0] = 4;
  queries[kWidth] = 8;
  const std::vector<std::int32_t> slots{0, 1, 2, 3};
  const std::vector<std::int64_t> context{0, 4};
  const std::vector<std::int64_t> query{0, 2};
  const PagedBatch batch{.requests = 1,
                         .slots = slots.data(),
                         .context_begin = context.data(),
                         .query_begin = query.data()};
  const ScoreCount count =
      count_small_scores({}, batch, {}, queries.data(), keys.data(), 0, 0, 0.01);
  EXPECT_EQ(count.small, 3);
  EXPECT_EQ(count.all, 7);
}

TEST(PagedAttention, CountsScoresAtTheirPositions) {
  constexpr std::int64_t kTokens = 60;
  const PagedAttentionShape shape{.query_heads = 4, .kv_heads = 2, .head_dim = 32};
  const AttentionShape reference{.query_heads = 4, .kv_heads = 2, .head_dim = 32};
  std::vector<float> keys = random_values(kTokens * 64, 1);
  std::vector<float> queries = random_values(kTokens * 128, 2);
  for (std::vector<float>* rows : {&keys, &queries}) {
    std::ranges::transform(*rows, rows->begin(), [](float x) { return 3 * x; });
  }
  std::vector<std::int32_t> slots(kTokens);
  std::iota(slots.begin(), slots.end(), 0);
  const std::vector<std::int64_t> whole{0, kTokens};
  const PagedBatch batch{.requests = 1,
                         .slots = slots.data(),
                         .context_begin = whole.data(),
                         .query_begin = whole.data()};
  const RotaryTable table(32, 10000, kTokens);
  const auto count = [&](RotaryAngles angles) {
    std::int64_t small = 0;
    for (const std::int64_t head : {0, 1}) {
      const ScoreCount part =
          count_small_scores(shape, batch, angles, queries.data(), keys.data(), 0, head, 0.01);
      EXPECT_EQ(part.all, 2 * kTokens * (kTokens + 1) / 2);
      small += part.small;
    }
    return small;
  };
  const std::int64_t placed = count(table.angles());
  const std::int64_t without = count({});
  std::vector<std::int64_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), 0);
  apply_rope<float>(keys, 2, positions, reference);
  apply_rope<float>(queries, 4, positions, reference);
  EXPECT_EQ(count({}), placed);
  EXPECT_NE(without, placed);
}

TEST(PagedAttention, SaysWhichShapesItTakes) {
  EXPECT_TRUE(is_valid({.query_heads = 64, .kv_heads = 8, .head_dim = 128}));
  EXPECT_FALSE(is_valid({.query_heads = 6, .kv_heads = 4, .head_dim = 64}));
  EXPECT_FALSE(is_valid({.query_heads = 4, .kv_heads = 4, .head_dim = 72}));
  EXPECT_FALSE(is_valid({.query_heads = 4, .kv_heads = 4, .head_dim = 272}));
  EXPECT_FALSE(is_valid({.query_heads = 17, .kv_heads = 1, .head_dim = 64}));
  EXPECT_FALSE(is_valid({.query_heads = 1, .kv_heads = 0, .head_dim = 64}));
}

// Squares of 3 and 4: mean 12.5, root 3.5355 (the 1e-5 changes the sixth digit).
TEST(RowFunctions, NormDividesByTheRootOfTheMeanSquare) {
  const float row[] = {3, -4};
  float out[2];
  rms_norm(row, out, 2);
  EXPECT_NEAR(out[0], 0.848528, 1e-5);
  EXPECT_NEAR(out[1], -1.131371, 1e-5);
}

// silu(1) = 1 / (1 + e^-1) = 0.731059; times 2. silu(-2) = -2 / (1 + e^2) = -0.238406; times 10.
TEST(RowFunctions, ActivationGatesTheSecondHalf) {
  const float row[] = {1, -2, 2, 10};
  float out[2];
  gated_activation(row, out, 2);
  EXPECT_NEAR(out[0], 1.462117, 1e-5);
  EXPECT_NEAR(out[1], -2.384058, 1e-5);
}

// gelu(1) = 0.841345, the share of a normal distribution below 1; gelu(-1) = -0.158655.
TEST(RowFunctions, PlainActivationIsGelu) {
  const float row[] = {1, -1, 0};
  float out[3];
  activation(row, out, 3);
  EXPECT_NEAR(out[0], 0.841345, 1e-6);
  EXPECT_NEAR(out[1], -0.158655, 1e-6);
  EXPECT_EQ(out[2], 0);
}

TEST(RowFunctions, AddsInPlace) {
  float row[] = {1, 2};
  const float other[] = {10, -2};
  add(row, other, row, 2);
  EXPECT_EQ(row[0], 11);
  EXPECT_EQ(row[1], 0);
}

TEST(RowFunctions, FoldsARowIntoOneWord) {
  const std::uint32_t row[] = {0b0011, 0b0101, 0b1000};
  EXPECT_EQ(fold_row(row, 3), 0b1110U);
}

TEST(RowFunctions, LargestIsTheFirstOfEquals) {
  const float row[] = {1, 7, -3, 7};
  EXPECT_EQ(index_of_largest(row, 4), 1);
}

// A quarter turn takes (1, 2) to (-2, 1); the second pair is not turned.
TEST(RowFunctions, RotationPairsTheHalvesOfAHead) {
  const float row[] = {1, 5, 2, 6};
  const float cosines[] = {0, 1};
  const float sines[] = {1, 0};
  float out[4];
  rotate(row, out, 1, 4, cosines, sines);
  EXPECT_EQ((std::vector<float>{out, out + 4}), (std::vector<float>{-2, 5, 1, 6}));
}

// Chains start at 1/2, 3/2, ..., 23/2 in each of 16 lanes; x/2 + 1 once gives 5/4, 7/4, ..., 27/4,
// whose sum is 12 x 16/4 = 48, in 16 lanes 768.
TEST(RowFunctions, RegisterLoopDoesEveryOperation) {
  EXPECT_EQ(multiply_add_in_registers(1, 0.5F), 768);
}

}  // namespace
}  // namespace kvtier::kernels
