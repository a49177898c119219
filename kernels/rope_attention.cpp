#include "kernels/rope_attention.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace kvtier::kernels {
namespace {

void require(bool condition, const char* what) {
  if (!condition) {
    throw std::invalid_argument(what);
  }
}

void check(const AttentionShape& shape) {
  require(shape.kv_heads > 0 && shape.query_heads % shape.kv_heads == 0,
          "the KV heads divide the query heads");
  require(shape.head_dim > 0 && shape.head_dim % 2 == 0, "a head has an even width");
}

/// Positions begin, begin + 1, ...
std::vector<std::int64_t> positions_from(std::size_t begin, std::size_t count) {
  std::vector<std::int64_t> positions(count);
  std::iota(positions.begin(), positions.end(), static_cast<std::int64_t>(begin));
  return positions;
}

}  // namespace

template <class Real>
void apply_rope(std::span<Real> vectors, std::size_t heads, std::span<const std::int64_t> positions,
                const AttentionShape& shape) {
  check(shape);
  const std::size_t width = shape.head_dim;
  require(vectors.size() == positions.size() * heads * width, "a position for each token");
  for (std::size_t pair = 0; pair < width / 2; ++pair) {
    const double frequency =
        std::pow(shape.rope_base, -2 * static_cast<double>(pair) / static_cast<double>(width));
    for (std::size_t token = 0; token < positions.size(); ++token) {
      const double angle = static_cast<double>(positions[token]) * frequency;
      const Real cosine = static_cast<Real>(std::cos(angle));
      const Real sine = static_cast<Real>(std::sin(angle));
      for (std::size_t head = 0; head < heads; ++head) {
        Real* const x = &vectors[(token * heads + head) * width];
        const Real first = x[pair];
        const Real second = x[pair + width / 2];
        x[pair] = first * cosine - second * sine;
        x[pair + width / 2] = first * sine + second * cosine;
      }
    }
  }
}

template <class Real>
void attend(std::span<const Real> queries, std::span<const Real> keys, std::span<const Real> values,
            const AttentionShape& shape, std::span<Real> output) {
  check(shape);
  const std::size_t width = shape.head_dim;
  const std::size_t query_size = shape.query_heads * width;
  const std::size_t kv_size = shape.kv_heads * width;
  require(queries.size() % query_size == 0 && keys.size() % kv_size == 0, "whole tokens");
  require(keys.size() == values.size() && queries.size() == output.size(),
          "a value for each key and an output for each query");
  const std::size_t count = queries.size() / query_size;
  const std::size_t context = keys.size() / kv_size;
  require(count <= context, "each query is a token of the context");

  const std::size_t group = shape.query_heads / shape.kv_heads;
  const Real scale = Real(1) / std::sqrt(static_cast<Real>(width));
  std::vector<Real> weights(context);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t seen = context - count + i + 1;
    for (std::size_t head = 0; head < shape.query_heads; ++head) {
      const std::size_t offset = head / group * width;
      const Real* const query = &queries[i * query_size + head * width];
      for (std::size_t t = 0; t < seen; ++t) {
        const Real* const key = &keys[t * kv_size + offset];
        weights[t] = scale * std::inner_product(query, query + width, key, Real(0));
      }
      const auto end = weights.begin() + static_cast<std::ptrdiff_t>(seen);
      const Real largest = *std::max_element(weights.begin(), end);
      Real sum = 0;
      for (auto weight = weights.begin(); weight != end; ++weight) {
        *weight = std::exp(*weight - largest);
        sum += *weight;
      }
      Real* const out = &output[i * query_size + head * width];
      std::fill(out, out + width, Real(0));
      for (std::size_t t = 0; t < seen; ++t) {
        const Real weight = weights[t] / sum;
        const Real* const value = &values[t * kv_size + offset];
        for (std::size_t d = 0; d < width; ++d) {
          out[d] += weight * value[d];
        }
      }
    }
  }
}

template <class Real>
std::size_t cached_tokens(const DecoupledKvCache<Real>& cache, const AttentionShape& shape) {
  check(shape);
  const std::size_t size = shape.kv_heads * shape.head_dim;
  require(cache.keys.size() == cache.values.size() && cache.keys.size() % size == 0,
          "whole tokens with a value for each key");
  return cache.keys.size() / size;
}

template <class Real>
void truncate(DecoupledKvCache<Real>& cache, std::size_t kept, std::size_t dropped,
              const AttentionShape& shape) {
  require(kept + dropped <= cached_tokens(cache, shape), "only tokens that are there are dropped");
  const std::size_t size = shape.kv_heads * shape.head_dim;
  for (std::vector<Real>* stored : {&cache.keys, &cache.values}) {
    const auto begin = stored->begin() + static_cast<std::ptrdiff_t>(kept * size);
    stored->erase(begin, begin + static_cast<std::ptrdiff_t>(dropped * size));
  }
}

template <class Real>
std::vector<Real> keys_in_place(const DecoupledKvCache<Real>& cache, const AttentionShape& shape) {
  std::vector<Real> keys = cache.keys;
  apply_rope<Real>(keys, shape.kv_heads, positions_from(0, cached_tokens(cache, shape)), shape);
  return keys;
}

template <class Real>
std::vector<Real> attend_decoupled(std::span<const Real> queries,
                                   const DecoupledKvCache<Real>& cache,
                                   const AttentionShape& shape) {
  const std::size_t context = cached_tokens(cache, shape);
  const std::size_t count = queries.size() / (shape.query_heads * shape.head_dim);
  require(count <= context, "each query is a token of the context");
  std::vector<Real> rotated(queries.begin(), queries.end());
  apply_rope<Real>(rotated, shape.query_heads, positions_from(context - count, count), shape);
  std::vector<Real> output(queries.size());
  attend<Real>(rotated, keys_in_place(cache, shape), cache.values, shape, output);
  return output;
}

#define KVTIER_INSTANTIATE(Real)                                                                  \
  template void apply_rope<Real>(std::span<Real>, std::size_t, std::span<const std::int64_t>,     \
                                 const AttentionShape&);                                          \
  template void attend<Real>(std::span<const Real>, std::span<const Real>, std::span<const Real>, \
                             const AttentionShape&, std::span<Real>);                             \
  template std::size_t cached_tokens(const DecoupledKvCache<Real>&, const AttentionShape&);       \
  template void truncate(DecoupledKvCache<Real>&, std::size_t, std::size_t,                       \
                         const AttentionShape&);                                                  \
  template std::vector<Real> keys_in_place(const DecoupledKvCache<Real>&, const AttentionShape&); \
  template std::vector<Real> attend_decoupled(                                                    \
      std::span<const Real>, const DecoupledKvCache<Real>&, const AttentionShape&)
KVTIER_INSTANTIATE(float);
KVTIER_INSTANTIATE(double);
#undef KVTIER_INSTANTIATE

}  // namespace kvtier::kernels
