#include "kernels/attention_plan.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>

#include <gtest/gtest.h>

#include "kernels/attention_tiles.hpp"

namespace kvtier::kernels {
namespace {

constexpr std::int64_t kMultiprocessors = 132;

/// New tokens and context of each request.
using Requests = std::vector<std::pair<std::int64_t, std::int64_t>>;

AttentionPlan plan_of(const Requests& requests, const PagedAttentionShape& shape,
                      std::int64_t multiprocessors = kMultiprocessors) {
  std::vector<std::int64_t> context_begin{0};
  std::vector<std::int64_t> query_begin{0};
  for (const auto& [added, context] : requests) {
    query_begin.push_back(query_begin.back() + added);
    context_begin.push_back(context_begin.back() + context);
  }
  return plan_attention(shape, context_begin, query_begin, multiprocessors);
}

PagedAttentionShape shape_of(std::int64_t query_heads, std::int64_t kv_heads,
                             std::int64_t head_dim) {
  return {.query_heads = query_heads, .kv_heads = kv_heads, .head_dim = head_dim};
}

// 131,072 keys on 8 KV heads for 132 x 2 blocks of 4 items: 131,072 x 8 / 1,056 = 993 keys an item,
// in whole rounds of 64 keys 1,024. So 128 parts, 1,024 blocks.
TEST(AttentionPlan, SplitsOneLongRequestOverAllMultiprocessors) {
  const AttentionPlan plan = plan_of({{1, 131072}}, shape_of(32, 8, 128));
  ASSERT_EQ(plan.decode.size(), 128U);
  EXPECT_EQ(plan.decode_rows, 4);
  EXPECT_EQ(plan.merge_rows, 4);
  EXPECT_EQ(plan.part_rows, 128 * 4);
  EXPECT_EQ(plan.merges,
            (std::vector<AttentionMerge>{
                {.request = 0, .first_row = 0, .rows = 4, .part_row = 0, .parts = 128}}));
  EXPECT_EQ(plan.decode[1], (AttentionItem{.request = 0,
                                           .first_row = 0,
                                           .rows = 4,
                                           .key_begin = 1024,
                                           .key_end = 2048,
                                           .part_row = 4}));
  EXPECT_TRUE(plan.prefill.empty());
}

// 512 requests of 1,000 keys on 8 heads: 1,000 x 512 x 8 / 1,056 = 3,879 keys a share.
TEST(AttentionPlan, LeavesManyShortRequestsWhole) {
  const AttentionPlan plan = plan_of(Requests(512, {1, 1000}), shape_of(8, 8, 128));
  EXPECT_EQ(plan.decode.size(), 512U);
  EXPECT_EQ(plan.part_rows, 0);
  EXPECT_TRUE(plan.merges.empty());
}

TEST(AttentionPlan, PutsTheLongestItemsFirst) {
  const AttentionPlan plan = plan_of({{1, 20}, {1, 200}, {1, 100}}, shape_of(2, 2, 64));
  ASSERT_EQ(plan.decode.size(), 3U);
  EXPECT_EQ(plan.decode[0].request, 1);
  EXPECT_EQ(plan.decode[1].request, 2);
  EXPECT_EQ(plan.decode[2].request, 0);
}

// A group of 4: 4 new tokens are 16 rows, 5 are 20. Tiles of 128 rows: 100 new tokens are 400 rows,
// the last tile of which has 16.
TEST(AttentionPlan, GivesFewRowsToTheDecodeKernelAndTilesOfMoreToThePrefillKernel) {
  const AttentionPlan plan = plan_of({{4, 50}, {5, 50}, {100, 120}}, shape_of(8, 2, 128));
  ASSERT_EQ(plan.decode.size(), 1U);
  EXPECT_EQ(plan.decode[0].rows, 16);
  ASSERT_EQ(plan.prefill.size(), 5U);
  // Past 20, rows up to 399 of token 99: 120 keys; up to 383 of token 95: 116 keys.
  EXPECT_EQ(plan.prefill[0],
            (AttentionItem{.request = 2, .first_row = 384, .rows = 16, .key_end = 120}));
  EXPECT_EQ(plan.prefill[1],
            (AttentionItem{.request = 2, .first_row = 256, .rows = 128, .key_end = 116}));
}

TEST(AttentionPlan, HasNoItemsWithoutNewTokens) {
  EXPECT_TRUE(plan_of({}, shape_of(2, 2, 64)).decode.empty());
  const AttentionPlan plan = plan_of({{0, 10}, {0, 0}}, shape_of(2, 2, 64));
  EXPECT_TRUE(plan.decode.empty());
  EXPECT_TRUE(plan.prefill.empty());
}

TEST(AttentionPlan, RefusesMoreNewTokensThanContext) {
  EXPECT_THROW((void)plan_of({{3, 2}}, shape_of(2, 2, 64)), std::invalid_argument);
  EXPECT_THROW((void)plan_of({{1, 2}}, shape_of(3, 2, 64)), std::invalid_argument);
}

// Random batches: every row meets every key that it sees in exactly one item, parts of a merge are
// items, and no item is longer than its share.
TEST(AttentionPlan, CoversEveryRowAndKeyOnce) {
  std::mt19937 engine(1);
  const auto draw = [&](std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(engine() % static_cast<unsigned>(most - least + 1));
  };
  for (int number = 0; number < 200; ++number) {
    const std::int64_t group = draw(1, 16);
    const std::int64_t kv_heads = draw(1, 8);
    const PagedAttentionShape shape = shape_of(group * kv_heads, kv_heads, 16 * draw(1, 16));
    Requests requests;
    for (std::int64_t i = draw(1, 12); i > 0; --i) {
      const std::int64_t added = draw(0, 2) == 0 ? draw(0, 40) : 1;
      requests.emplace_back(added, added + draw(0, draw(0, 3) == 0 ? 5000 : 300));
    }
    const std::int64_t multiprocessors = draw(1, 200);
    const AttentionPlan plan = plan_of(requests, shape, multiprocessors);
    // Ranges of keys by their begin, for each request and row.
    std::map<std::pair<std::int32_t, std::int32_t>, std::map<std::int32_t, std::int32_t>> covered;
    std::map<std::int32_t, AttentionItem> parts;
    std::int64_t part_rows = 0;
    const auto take = [&](const AttentionItem& item) {
      for (std::int32_t row = item.first_row; row < item.first_row + item.rows; ++row) {
        ASSERT_TRUE((covered[{item.request, row}].emplace(item.key_begin, item.key_end).second));
      }
      if (item.part_row >= 0) {
        ASSERT_TRUE(parts.emplace(item.part_row, item).second);
        part_rows += item.rows;
      }
    };
    std::ranges::for_each(plan.decode, take);
    std::ranges::for_each(plan.prefill, take);
    ASSERT_EQ(part_rows, plan.part_rows);
    for (std::size_t r = 0; r < requests.size(); ++r) {
      const auto& [added, context] = requests[r];
      for (std::int64_t row = 0; row < added * group; ++row) {
        const std::int64_t sees = context - added + row / group + 1;
        std::int32_t at = 0;
        for (const auto& [begin, end] :
             covered.at({static_cast<std::int32_t>(r), static_cast<std::int32_t>(row)})) {
          ASSERT_EQ(begin, at);
          at = end;
        }
        ASSERT_GE(at, sees);
        covered.erase({static_cast<std::int32_t>(r), static_cast<std::int32_t>(row)});
      }
    }
    ASSERT_TRUE(covered.empty());
    for (const AttentionMerge& merge : plan.merges) {
      ASSERT_GT(merge.parts, 1);
      for (std::int32_t p = 0; p < merge.parts; ++p) {
        const auto found = parts.find(merge.part_row + p * merge.rows);
        ASSERT_NE(found, parts.end());
        ASSERT_EQ(found->second.request, merge.request);
        ASSERT_EQ(found->second.first_row, merge.first_row);
        ASSERT_EQ(found->second.rows, merge.rows);
        parts.erase(found);
      }
    }
    ASSERT_TRUE(parts.empty());
    const auto longest_is_fair = [&](const std::vector<AttentionItem>& items, std::int64_t blocks,
                                     std::int64_t unit) {
      std::int64_t keys = 0;
      for (const AttentionItem& item : items) {
        keys += item.key_end - item.key_begin;
      }
      const std::int64_t share = keys * kv_heads / blocks;
      ASSERT_TRUE(items.empty() || items.front().key_end - items.front().key_begin <=
                                       std::max<std::int64_t>(256, share + unit));
    };
    longest_is_fair(plan.decode, multiprocessors * 8, 64);
    longest_is_fair(plan.prefill, multiprocessors * 2, 128);
  }
}

// 163 KiB is what a block of sm_80 may have, and 227 KiB one of sm_90; two blocks of sm_90 share
// 228 KiB less 1 KiB each.
TEST(AttentionTiles, FitInSharedMemory) {
  for (const int head_dim : {64, 128, 256}) {
    for (const int kv_bytes : {1, 2}) {
      for (const int columns : {8, 16}) {
        const DecodeTiles decode{.head_dim = head_dim, .columns = columns, .kv_bytes = kv_bytes};
        EXPECT_LE(decode.shared_bytes(true), 163 << 10) << head_dim << " " << kv_bytes;
        EXPECT_GE(decode.bytes_in_flight(), 20 << 10) << head_dim << " " << kv_bytes;
        // The sums of a warp go where its stages were.
        EXPECT_GE(decode.warp_bytes(), columns * head_dim * 4);
        if (head_dim <= 128) {
          EXPECT_LE(decode.shared_bytes(false), 113 << 10) << head_dim << " " << kv_bytes;
        }
      }
      const PrefillTiles prefill{.head_dim = head_dim, .kv_bytes = kv_bytes};
      EXPECT_LE(prefill.shared_bytes(), 113 << 10) << head_dim << " " << kv_bytes;
    }
  }
  EXPECT_LE(WarpgroupTiles::kSharedBytes, 227 << 10);
}

}  // namespace
}  // namespace kvtier::kernels
