#pragma once

#include <cstdint>

#include "kernels/rotary_table.hpp"

/// Attention over KV in slots of one token each, in any order. A row of keys or values is
/// [kv_heads][head_dim], a row of queries or output [query_heads][head_dim].
namespace kvtier::kernels {

struct PagedAttentionShape {
  std::int64_t query_heads = 1;
  /// Divides query_heads: query head h reads KV head h / (query_heads / kv_heads). At most 16
  /// query heads share one.
  std::int64_t kv_heads = 1;
  /// A multiple of 16, at most 256.
  std::int64_t head_dim = 16;
  /// Numbers from one row of queries to the next, and from one slot's keys (values) to the next
  /// slot's. 0: the rows follow each other. Output is always without gaps.
  std::int64_t query_stride = 0;
  std::int64_t kv_stride = 0;
};

/// The requests of one call. The context of request r is slots[context_begin[r]] up to
/// slots[context_begin[r+1]], in order of position. Its query rows, query_begin[r] up to
/// query_begin[r+1], are the last tokens of its context. Attention is causal: each token sees
/// itself and all tokens before it. A request may have no query rows, or no past; contexts may
/// share slots.
struct PagedBatch {
  std::int64_t requests = 0;
  const std::int32_t* slots = nullptr;
  const std::int64_t* context_begin = nullptr;
  const std::int64_t* query_begin = nullptr;
};

/// Query rows that one unit of work covers.
inline constexpr std::int64_t kQueryTile = 16;

/// Whether the kernels take these sizes.
[[nodiscard]] bool is_valid(const PagedAttentionShape& shape);

/// Computes kQueryTile query rows from query_begin[request] + tile x kQueryTile on, of the query
/// heads of one KV head. Units are independent of each other, so any number of threads can share a
/// call. With `angles`, for all positions of the longest context, keys and queries come without
/// positions and get those of their place in the context. KV that lost its oldest tokens therefore
/// stays valid (AttentionStore, section 3.4.2). Without `angles`, keys and queries carry their
/// positions.
void attend_paged(const PagedAttentionShape& shape, const PagedBatch& batch, RotaryAngles angles,
                  const float* queries, const float* keys, const float* values, float* output,
                  std::int64_t request, std::int64_t kv_head, std::int64_t tile);

/// Number of scores of causal softmax attention, and of those below a share of the largest score of
/// their row.
struct ScoreCount {
  std::int64_t small = 0;
  std::int64_t all = 0;
};

/// Counts small scores of the query rows of one request and the query heads of one KV head. A cache
/// compressed by attention could drop their tokens. CaR profiles a model with a share of 0.01.
[[nodiscard]] ScoreCount count_small_scores(const PagedAttentionShape& shape,
                                            const PagedBatch& batch, RotaryAngles angles,
                                            const float* queries, const float* keys,
                                            std::int64_t request, std::int64_t kv_head,
                                            double share);

}  // namespace kvtier::kernels
