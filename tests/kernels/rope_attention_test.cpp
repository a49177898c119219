/// Decoupled positions in numbers (AttentionStore, section 3.4.2): after a context was cut, keys
/// that were stored without positions are those of a fresh computation; keys that were stored with
/// them are not.

#include "kernels/rope_attention.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>
#include <type_traits>

#include <gtest/gtest.h>

namespace kvtier::kernels {
namespace {

constexpr std::size_t kTokens = 96;
constexpr std::size_t kHidden = 24;

/// Four query heads on two KV heads.
constexpr AttentionShape kShape{.query_heads = 4, .kv_heads = 2, .head_dim = 8};

/// Entries of a fixed sequence; double, so that both precisions get the same.
std::vector<double> random_values(std::size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<double> values(count);
  for (double& value : values) {
    value = static_cast<double>(engine()) / 2147483648.0 - 1;
  }
  return values;
}

/// Rows of `input`, [tokens][kHidden], times a matrix [kHidden][width].
template <class Real>
std::vector<Real> project(const std::vector<double>& input, std::size_t width, unsigned seed) {
  const std::vector<double> matrix = random_values(kHidden * width, seed);
  const std::size_t tokens = input.size() / kHidden;
  std::vector<Real> output(tokens * width);
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t j = 0; j < width; ++j) {
      Real sum = 0;
      for (std::size_t i = 0; i < kHidden; ++i) {
        sum += static_cast<Real>(input[t * kHidden + i]) * static_cast<Real>(matrix[i * width + j]);
      }
      output[t * width + j] = sum;
    }
  }
  return output;
}

/// The layer's input after the tokens [kept, kept + dropped) were cut out.
std::vector<double> cut_input(std::vector<double> input, std::size_t kept, std::size_t dropped) {
  const auto begin = input.begin() + static_cast<std::ptrdiff_t>(kept * kHidden);
  input.erase(begin, begin + static_cast<std::ptrdiff_t>(dropped * kHidden));
  return input;
}

template <class Real>
struct Projected {
  std::vector<Real> queries;
  DecoupledKvCache<Real> cache;
};

/// Queries, keys and values of one layer, without positions.
template <class Real>
Projected<Real> project_all(const std::vector<double>& input) {
  const std::size_t kv = kShape.kv_heads * kShape.head_dim;
  return {.queries = project<Real>(input, kShape.query_heads * kShape.head_dim, 11),
          .cache = {.keys = project<Real>(input, kv, 12), .values = project<Real>(input, kv, 13)}};
}

template <class Real>
double largest_difference(const std::vector<Real>& a, const std::vector<Real>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return largest;
}

std::vector<std::int64_t> positions(std::size_t begin, std::size_t count) {
  std::vector<std::int64_t> result(count);
  std::iota(result.begin(), result.end(), static_cast<std::int64_t>(begin));
  return result;
}

template <class Real>
class DecoupledPositions : public testing::Test {};
using Precisions = testing::Types<float, double>;
TYPED_TEST_SUITE(DecoupledPositions, Precisions);

struct Cut {
  std::size_t kept;
  std::size_t dropped;
};
/// The earliest half; the earliest half behind four first tokens; all but the last.
constexpr Cut kCuts[] = {{0, kTokens / 2}, {4, kTokens / 2}, {0, kTokens - 1}};

TYPED_TEST(DecoupledPositions, GiveTheKeysOfAFreshComputationAfterACut) {
  const std::vector<double> input = random_values(kTokens * kHidden, 1);
  for (const Cut& c : kCuts) {
    DecoupledKvCache<TypeParam> stored = project_all<TypeParam>(input).cache;
    truncate(stored, c.kept, c.dropped, kShape);
    const auto fresh = project_all<TypeParam>(cut_input(input, c.kept, c.dropped)).cache;
    EXPECT_EQ(cached_tokens(stored, kShape), kTokens - c.dropped);
    EXPECT_EQ(keys_in_place(stored, kShape), keys_in_place(fresh, kShape)) << "to the bit";
    EXPECT_EQ(stored.values, fresh.values) << "to the bit";
  }
}

TYPED_TEST(DecoupledPositions, GiveTheAttentionOfAFreshComputationAfterACut) {
  const std::vector<double> input = random_values(kTokens * kHidden, 2);
  constexpr std::size_t kNew = 7;
  for (const Cut& c : kCuts) {
    const std::size_t fresh_tokens = kTokens - c.dropped;
    const std::size_t queried = std::min(kNew, fresh_tokens);
    DecoupledKvCache<TypeParam> stored = project_all<TypeParam>(input).cache;
    truncate(stored, c.kept, c.dropped, kShape);
    // From scratch: every key is made at its position in the shorter context.
    const auto fresh = project_all<TypeParam>(cut_input(input, c.kept, c.dropped));
    std::vector<TypeParam> keys = fresh.cache.keys;
    apply_rope<TypeParam>(keys, kShape.kv_heads, positions(0, fresh_tokens), kShape);
    const std::size_t width = kShape.query_heads * kShape.head_dim;
    std::vector<TypeParam> queries(
        fresh.queries.end() - static_cast<std::ptrdiff_t>(queried * width), fresh.queries.end());
    const std::vector<TypeParam> output = attend_decoupled<TypeParam>(queries, stored, kShape);
    apply_rope<TypeParam>(queries, kShape.query_heads, positions(fresh_tokens - queried, queried),
                          kShape);
    std::vector<TypeParam> expected(queries.size());
    attend<TypeParam>(queries, keys, fresh.cache.values, kShape, expected);
    EXPECT_EQ(output, expected) << "to the bit";
  }
}

TYPED_TEST(DecoupledPositions, AreWhatMakesACutPossible) {
  const std::vector<double> input = random_values(kTokens * kHidden, 3);
  const auto all = project_all<TypeParam>(input);
  const std::size_t kv = kShape.kv_heads * kShape.head_dim;
  // Stored with the positions of the long context, then cut.
  std::vector<TypeParam> embedded = keys_in_place(all.cache, kShape);
  const std::size_t dropped = kTokens / 2;
  embedded.erase(embedded.begin(), embedded.begin() + static_cast<std::ptrdiff_t>(dropped * kv));
  DecoupledKvCache<TypeParam> decoupled = all.cache;
  truncate(decoupled, 0, dropped, kShape);
  const std::vector<TypeParam> right = keys_in_place(decoupled, kShape);
  EXPECT_GT(largest_difference(embedded, right), 1.0);
  // The query takes its place in the shorter context, as the model's window demands.
  const std::size_t width = kShape.query_heads * kShape.head_dim;
  std::vector<TypeParam> query(all.queries.end() - static_cast<std::ptrdiff_t>(width),
                               all.queries.end());
  const std::vector<TypeParam> expected = attend_decoupled<TypeParam>(query, decoupled, kShape);
  apply_rope<TypeParam>(query, kShape.query_heads, positions(kTokens - dropped - 1, 1), kShape);
  std::vector<TypeParam> output(query.size());
  attend<TypeParam>(query, embedded, decoupled.values, kShape, output);
  EXPECT_GT(largest_difference(output, expected), 0.1);
}

TYPED_TEST(DecoupledPositions, KeepTheFirstTokensInPlace) {
  const std::vector<double> input = random_values(kTokens * kHidden, 4);
  DecoupledKvCache<TypeParam> cache = project_all<TypeParam>(input).cache;
  const std::vector<TypeParam> before = keys_in_place(cache, kShape);
  truncate(cache, 4, 20, kShape);
  const std::vector<TypeParam> after = keys_in_place(cache, kShape);
  const std::size_t kv = kShape.kv_heads * kShape.head_dim;
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 4 * kv, after.begin()));
  EXPECT_FALSE(
      std::equal(before.begin() + 24 * kv, before.begin() + 25 * kv, after.begin() + 4 * kv));
}

TEST(RotaryEmbedding, RotatesEachPairByItsAngle) {
  // Width 4, base 100: frequencies 1 and 1/10. At position 2 the pair (x0, x2) turns by 2 and
  // (x1, x3) by 0.2.
  const AttentionShape shape{.query_heads = 1, .kv_heads = 1, .head_dim = 4, .rope_base = 100};
  std::vector<double> x{1, 0, 0, 2};
  apply_rope<double>(x, 1, std::vector<std::int64_t>{2}, shape);
  EXPECT_NEAR(x[0], std::cos(2.0), 1e-15);
  EXPECT_NEAR(x[2], std::sin(2.0), 1e-15);
  EXPECT_NEAR(x[1], -2 * std::sin(0.2), 1e-15);
  EXPECT_NEAR(x[3], 2 * std::cos(0.2), 1e-15);
}

TEST(RotaryEmbedding, MakesScoresDependOnDistanceAlone) {
  const AttentionShape shape{.query_heads = 1, .kv_heads = 1, .head_dim = 8};
  const auto score = [&](std::int64_t query_at, std::int64_t key_at) {
    std::vector<double> query = random_values(8, 5);
    std::vector<double> key = random_values(8, 6);
    apply_rope<double>(query, 1, std::vector<std::int64_t>{query_at}, shape);
    apply_rope<double>(key, 1, std::vector<std::int64_t>{key_at}, shape);
    return std::inner_product(query.begin(), query.end(), key.begin(), 0.0);
  };
  EXPECT_NEAR(score(700, 650), score(50, 0), 1e-12);
  EXPECT_GT(std::abs(score(51, 0) - score(50, 0)), 1e-3);
}

TEST(Attention, IsTheWeightedMeanOfValuesSeen) {
  // One head of width 2, two tokens; scores of the second query: (0, ln 3 x sqrt 2) / sqrt 2, so
  // the weights are 1/4 and 3/4. The first query sees the first token only.
  const AttentionShape shape{};
  const std::vector<double> queries{5, 5, 1, 0};
  const std::vector<double> keys{0, 1, std::log(3.0) * std::sqrt(2.0), 1};
  const std::vector<double> values{4, 0, 8, 12};
  std::vector<double> output(4);
  attend<double>(queries, keys, values, shape, output);
  EXPECT_NEAR(output[0], 4, 1e-15);
  EXPECT_NEAR(output[1], 0, 1e-15);
  EXPECT_NEAR(output[2], 7, 1e-12);
  EXPECT_NEAR(output[3], 9, 1e-12);
}

TEST(Attention, SharesAKvHeadAmongItsQueryHeads) {
  // Two query heads on each of two KV heads; one token, so each output is its head's value.
  const AttentionShape shape{.query_heads = 4, .kv_heads = 2, .head_dim = 2};
  const std::vector<double> queries = random_values(8, 7);
  const std::vector<double> keys = random_values(4, 8);
  const std::vector<double> values{1, 2, 3, 4};
  std::vector<double> output(8);
  attend<double>(queries, keys, values, shape, output);
  EXPECT_EQ(output, (std::vector<double>{1, 2, 1, 2, 3, 4, 3, 4}));
}

TEST(Attention, FloatIsCloseToDouble) {
  const std::vector<double> input = random_values(kTokens * kHidden, 9);
  const auto exact = project_all<double>(input);
  const auto single = project_all<float>(input);
  const auto expected = attend_decoupled<double>(exact.queries, exact.cache, kShape);
  const auto output = attend_decoupled<float>(single.queries, single.cache, kShape);
  double largest = 0;
  for (std::size_t i = 0; i < output.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(output[i]) - expected[i]));
  }
  EXPECT_LT(largest, 1e-4);
  EXPECT_GT(largest, 0) << "the two are not the same code path";
}

TEST(Attention, RefusesSizesThatDoNotFit) {
  std::vector<double> eight(8);
  std::vector<double> four(4);
  const AttentionShape shape{.query_heads = 1, .kv_heads = 1, .head_dim = 4};
  EXPECT_THROW(attend<double>(eight, four, four, shape, eight), std::invalid_argument);
  EXPECT_THROW(attend<double>(four, eight, four, shape, four), std::invalid_argument);
  EXPECT_THROW(apply_rope<double>(eight, 1, std::vector<std::int64_t>{0}, shape),
               std::invalid_argument);
  DecoupledKvCache<double> cache{.keys = eight, .values = eight};
  EXPECT_THROW(truncate(cache, 1, 2, shape), std::invalid_argument);
  EXPECT_THROW(attend<double>(four, four, four, AttentionShape{.head_dim = 3}, four),
               std::invalid_argument);
  EXPECT_THROW(attend<double>(four, four, four,
                              AttentionShape{.query_heads = 3, .kv_heads = 2, .head_dim = 2}, four),
               std::invalid_argument);
}

}  // namespace
}  // namespace kvtier::kernels
