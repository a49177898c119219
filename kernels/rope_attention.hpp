#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// One layer of causal attention with rotary position embedding (RoPE, Su et al., arXiv 2104.09864,
/// section 3.4.2) on the CPU, in plain loops. It is the reference for decoupled positions
/// (AttentionStore, arXiv 2403.19708, section 3.4.2): keys are stored without positions and get
/// those of their place in the context when they are used.
///
/// Arrays are row-major without padding. Keys, values and queries have the shape [tokens][heads]
/// [head_dim], `heads` being kv_heads for keys and values. `Real` is float or double.
namespace kvtier::kernels {

struct AttentionShape {
  std::size_t query_heads = 1;
  /// Divides query_heads: query head h reads KV head h / (query_heads / kv_heads).
  std::size_t kv_heads = 1;
  /// Even.
  std::size_t head_dim = 2;
  /// Base of the rotation's wavelengths.
  double rope_base = 10000;
};

/// Rotates `vectors`, [positions.size()][heads][head_dim], in place: in each head the pair (i, i +
/// head_dim / 2) by position x rope_base^(-2i / head_dim), the pairing of GPT-NeoX and Llama as
/// Hugging Face stores it. Angles are computed in double for any `Real`. Throws
/// std::invalid_argument if the sizes do not fit the shape.
template <class Real>
void apply_rope(std::span<Real> vectors, std::size_t heads, std::span<const std::int64_t> positions,
                const AttentionShape& shape);

/// Softmax attention of the last queries.size() / (query_heads x head_dim) tokens of a context to
/// all of it: query i of q, in a context of k tokens, sees the first k - q + i + 1. Keys and
/// queries have been rotated. Scores are scaled by 1 / sqrt(head_dim). Writes `output`, shaped like
/// `queries`. Throws std::invalid_argument if the sizes do not fit the shape.
template <class Real>
void attend(std::span<const Real> queries, std::span<const Real> keys, std::span<const Real> values,
            const AttentionShape& shape, std::span<Real> output);

/// Keys and values of one layer and one sequence; keys without positions.
template <class Real>
struct DecoupledKvCache {
  std::vector<Real> keys;
  std::vector<Real> values;
};

/// Tokens that the cache holds.
template <class Real>
[[nodiscard]] std::size_t cached_tokens(const DecoupledKvCache<Real>& cache,
                                        const AttentionShape& shape);

/// Drops `dropped` tokens after the first `kept` ones. The remaining KV stays valid at its new,
/// lower positions. Throws std::invalid_argument if the cache has fewer tokens.
template <class Real>
void truncate(DecoupledKvCache<Real>& cache, std::size_t kept, std::size_t dropped,
              const AttentionShape& shape);

/// Keys as attention needs them: with the positions 0, 1, 2, ... of their place in the cache.
template <class Real>
[[nodiscard]] std::vector<Real> keys_in_place(const DecoupledKvCache<Real>& cache,
                                              const AttentionShape& shape);

/// Attention of the cache's last tokens to the whole cache. Their queries come without positions,
/// too. Throws std::invalid_argument if the sizes do not fit.
template <class Real>
[[nodiscard]] std::vector<Real> attend_decoupled(std::span<const Real> queries,
                                                 const DecoupledKvCache<Real>& cache,
                                                 const AttentionShape& shape);

}  // namespace kvtier::kernels
