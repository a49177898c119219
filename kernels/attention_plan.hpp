#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/paged_attention.hpp"

/// How a GPU divides attention over one batch (PagedBatch). A row is a query head of a query token:
/// row r of a request is its new token r / group, head r % group of each KV head. Every item is
/// done once for each KV head.
namespace kvtier::kernels {

/// Query rows of one request on a range of its context.
struct AttentionItem {
  std::int32_t request = 0;
  std::int32_t first_row = 0;
  std::int32_t rows = 0;
  std::int32_t key_begin = 0;
  std::int32_t key_end = 0;
  /// Its first row among the parts, or -1 if the item has all keys that its rows see.
  std::int32_t part_row = -1;

  bool operator==(const AttentionItem&) const = default;
};

/// Rows whose context was split. Part p begins at row part_row + p x rows.
struct AttentionMerge {
  std::int32_t request = 0;
  std::int32_t first_row = 0;
  std::int32_t rows = 0;
  std::int32_t part_row = 0;
  std::int32_t parts = 0;

  bool operator==(const AttentionMerge&) const = default;
};

struct AttentionPlan {
  /// Requests of at most DecodeTiles::kRowsMax rows, and tiles of longer ones; the longest first.
  std::vector<AttentionItem> decode;
  std::vector<AttentionItem> prefill;
  std::vector<AttentionMerge> merges;
  /// Largest number of rows of a merge.
  std::int64_t merge_rows = 0;
  std::int64_t part_rows = 0;
  /// Largest number of rows of an item in `decode`.
  std::int64_t decode_rows = 0;
};

/// Splits contexts so that no item is longer than an even share of the work on all multiprocessors,
/// except that a part has at least 256 keys. Throws std::invalid_argument for a request with more
/// new tokens than context and for shapes that the kernels do not take.
[[nodiscard]] AttentionPlan plan_attention(const PagedAttentionShape& shape,
                                           std::span<const std::int64_t> context_begin,
                                           std::span<const std::int64_t> query_begin,
                                           std::int64_t multiprocessors);

/// Adds items and merges without rows to the plan of a batch whose requests have one new token
/// each. All sizes of the plan then depend only on the number of requests.
void pad_decode(AttentionPlan& plan, const PagedAttentionShape& shape, std::int64_t requests,
                std::int64_t multiprocessors);

}  // namespace kvtier::kernels
