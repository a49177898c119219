#include "kernels/attention_plan.hpp"

#include <algorithm>
#include <stdexcept>

#include "kernels/attention_tiles.hpp"

namespace kvtier::kernels {
namespace {

constexpr std::int64_t kBlocksPerProcessor = 2;
/// Target number of items for each block. Several decode items balance uneven contexts. Prefill has
/// many tiles, and its parts need more memory.
constexpr std::int64_t kDecodeRounds = 4;
constexpr std::int64_t kPrefillRounds = 1;
constexpr std::int64_t kPartKeysMin = 256;
/// Keys that a block takes at a time: all warps in decode, the largest tile in prefill.
constexpr std::int64_t kDecodeKeyUnit = 64;
constexpr std::int64_t kPrefillKeyUnit = WarpgroupTiles::kKeys;

std::int64_t ceiling(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Splits `tiles`, which have all their keys, into items, and appends their merges.
void split(const std::vector<AttentionItem>& tiles, std::int64_t kv_heads, std::int64_t blocks,
           std::int64_t key_unit, std::vector<AttentionItem>& items, AttentionPlan& plan) {
  std::int64_t keys = 0;
  for (const AttentionItem& tile : tiles) {
    keys += tile.key_end;
  }
  const std::int64_t share =
      std::max(kPartKeysMin, ceiling(ceiling(keys * kv_heads, blocks), key_unit) * key_unit);
  for (const AttentionItem& tile : tiles) {
    const std::int64_t wanted = ceiling(tile.key_end, share);
    const std::int64_t each = ceiling(ceiling(tile.key_end, wanted), key_unit) * key_unit;
    const std::int64_t parts = ceiling(tile.key_end, each);
    if (parts == 1) {
      items.push_back(tile);
      continue;
    }
    plan.merges.push_back({.request = tile.request,
                           .first_row = tile.first_row,
                           .rows = tile.rows,
                           .part_row = static_cast<std::int32_t>(plan.part_rows),
                           .parts = static_cast<std::int32_t>(parts)});
    plan.merge_rows = std::max<std::int64_t>(plan.merge_rows, tile.rows);
    for (std::int64_t begin = 0; begin < tile.key_end; begin += each) {
      AttentionItem part = tile;
      part.key_begin = static_cast<std::int32_t>(begin);
      part.key_end = static_cast<std::int32_t>(std::min<std::int64_t>(begin + each, tile.key_end));
      part.part_row = static_cast<std::int32_t>(plan.part_rows);
      items.push_back(part);
      plan.part_rows += tile.rows;
    }
  }
  std::ranges::stable_sort(items, std::ranges::greater(),
                           [](const AttentionItem& item) { return item.key_end - item.key_begin; });
}

}  // namespace

AttentionPlan plan_attention(const PagedAttentionShape& shape,
                             std::span<const std::int64_t> context_begin,
                             std::span<const std::int64_t> query_begin,
                             std::int64_t multiprocessors) {
  if (!is_valid(shape) || context_begin.size() != query_begin.size() || multiprocessors < 1) {
    throw std::invalid_argument("plan_attention: a shape or a batch that the kernels do not take");
  }
  const std::int64_t group = shape.query_heads / shape.kv_heads;
  const std::int64_t tile_rows =
      PrefillTiles{.head_dim = padded_head_dim(static_cast<int>(shape.head_dim))}.rows();
  AttentionPlan plan;
  std::vector<AttentionItem> decode;
  std::vector<AttentionItem> prefill;
  for (std::size_t r = 0; r + 1 < query_begin.size(); ++r) {
    const std::int64_t queries = query_begin[r + 1] - query_begin[r];
    const std::int64_t past = context_begin[r + 1] - context_begin[r] - queries;
    if (queries < 0 || past < 0) {
      throw std::invalid_argument("plan_attention: new tokens are part of their context");
    }
    const std::int64_t all = queries * group;
    const bool few = all <= DecodeTiles::kRowsMax;
    for (std::int64_t first = 0; first < all; first += tile_rows) {
      const std::int64_t rows = std::min(tile_rows, all - first);
      (few ? decode : prefill)
          .push_back({.request = static_cast<std::int32_t>(r),
                      .first_row = static_cast<std::int32_t>(first),
                      .rows = static_cast<std::int32_t>(rows),
                      .key_begin = 0,
                      .key_end = static_cast<std::int32_t>(past + (first + rows - 1) / group + 1)});
      plan.decode_rows = few ? std::max(plan.decode_rows, rows) : plan.decode_rows;
    }
  }
  const std::int64_t blocks = multiprocessors * kBlocksPerProcessor;
  split(decode, shape.kv_heads, blocks * kDecodeRounds, kDecodeKeyUnit, plan.decode, plan);
  split(prefill, shape.kv_heads, blocks * kPrefillRounds, kPrefillKeyUnit, plan.prefill, plan);
  return plan;
}

void pad_decode(AttentionPlan& plan, const PagedAttentionShape& shape, std::int64_t requests,
                std::int64_t multiprocessors) {
  // A request of k keys has fewer than k / share + 1 parts, with the shares of split().
  const std::int64_t shares =
      multiprocessors * kBlocksPerProcessor * kDecodeRounds / shape.kv_heads;
  const std::int64_t group = shape.query_heads / shape.kv_heads;
  plan.decode.resize(static_cast<std::size_t>(shares + requests));
  plan.merges.resize(static_cast<std::size_t>(requests));
  plan.merge_rows = group;
  plan.decode_rows = group;
  plan.part_rows = std::ssize(plan.decode) * group;
}

}  // namespace kvtier::kernels
