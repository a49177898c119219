#include "kernels/paged_attention.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/instruction_sets.hpp"

namespace kvtier::kernels {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kWidestHead = 256;
constexpr std::int64_t kLargestGroup = 16;
/// Keys that are scored before the running maximum is updated.
constexpr std::int64_t kKeyBlock = 64;
/// Query vectors that share one read of keys and values.
constexpr std::int64_t kRowsTogether = 4;
/// Fewest query vectors for which transposing a block of keys pays.
constexpr std::int64_t kRowsWorthTransposing = 8;

/// e^x for x <= 0 in plain arithmetic, which the compiler turns into vectors; relative error under
/// 2e-7.
KVTIER_INLINE float exp_of_negative(float x) {
  constexpr float kSmallest = -87.0F;
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 x 2^23: adding it leaves a whole number
  x = x < kSmallest ? kSmallest : x;
  const float n = (x * kLog2E + kRound) - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1;
  p = p * r + 1;
  constexpr int kBias = 127;
  constexpr int kMantissa = 23;
  return p * std::bit_cast<float>((static_cast<int>(n) + kBias) << kMantissa);
}

struct Unit {
  std::int64_t rows;
  std::int64_t width;
  RotaryAngles angles;
  const float* query[kQueryTile * kLargestGroup];
  float* output[kQueryTile * kLargestGroup];
  /// Tokens that the row sees.
  std::int64_t seen[kQueryTile * kLargestGroup];
};

KVTIER_INLINE float dot(const float* a, const float* b, std::int64_t width) {
  float lanes[kLanes] = {};
  for (std::int64_t c = 0; c < width; c += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      lanes[l] += a[c + l] * b[c + l];
    }
  }
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t l = 0; l < half; ++l) {
      lanes[l] += lanes[l + half];
    }
  }
  return lanes[0];
}

/// Rotates one head by the given angles.
KVTIER_INLINE void turn(const float* __restrict from, float* __restrict to, std::int64_t half,
                        const float* __restrict cosines, const float* __restrict sines) {
  for (std::int64_t i = 0; i < half; ++i) {
    to[i] = from[i] * cosines[i] - from[i + half] * sines[i];
    to[i + half] = from[i] * sines[i] + from[i + half] * cosines[i];
  }
}

/// Prefetches a row, because the processor cannot predict random slots.
KVTIER_INLINE void fetch_row(const float* row, std::int64_t width) {
  for (std::int64_t c = 0; c < width; c += kLanes) {
    __builtin_prefetch(row + c);
  }
}

/// scores[row][t] for a block of keys that was transposed to [width][kKeyBlock].
template <int rows>
KVTIER_INLINE void score_block(const float* const* query, const float* turned, std::int64_t width,
                               float* scores) {
  for (std::int64_t half = 0; half < kKeyBlock; half += 2 * kLanes) {
    float sums[rows][2 * kLanes] = {};
    for (std::int64_t d = 0; d < width; ++d) {
      const float* const line = turned + d * kKeyBlock + half;
      for (int r = 0; r < rows; ++r) {
        const float q = query[r][d];
        for (std::int64_t l = 0; l < 2 * kLanes; ++l) {
          sums[r][l] += q * line[l];
        }
      }
    }
    for (int r = 0; r < rows; ++r) {
      std::copy_n(sums[r], 2 * kLanes, scores + r * kKeyBlock + half);
    }
  }
}

/// sums[row][:] += weights[row][t] x values[t][:].
template <int rows>
KVTIER_INLINE void add_values(const float* weights, const float* const* value, std::int64_t count,
                              std::int64_t width, float* sums) {
  for (std::int64_t c = 0; c < width; c += 2 * kLanes) {
    const std::int64_t lanes = std::min(2 * kLanes, width - c);
    float part[rows][2 * kLanes] = {};
    if (lanes == 2 * kLanes) {
      for (std::int64_t t = 0; t < count; ++t) {
        for (int r = 0; r < rows; ++r) {
          const float w = weights[r * kKeyBlock + t];
          for (std::int64_t l = 0; l < 2 * kLanes; ++l) {
            part[r][l] += w * value[t][c + l];
          }
        }
      }
    } else {
      for (std::int64_t t = 0; t < count; ++t) {
        for (int r = 0; r < rows; ++r) {
          const float w = weights[r * kKeyBlock + t];
          for (std::int64_t l = 0; l < kLanes; ++l) {
            part[r][l] += w * value[t][c + l];
          }
        }
      }
    }
    for (int r = 0; r < rows; ++r) {
      for (std::int64_t l = 0; l < lanes; ++l) {
        sums[r * kWidestHead + c + l] += part[r][l];
      }
    }
  }
}

KVTIER_CLONES void attend_unit(const Unit& unit, const std::int32_t* slots, const float* keys,
                               const float* values, std::int64_t kv_row, std::int64_t context) {
  const std::int64_t width = unit.width;
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  alignas(64) static thread_local float turned[kWidestHead * kKeyBlock];
  alignas(64) static thread_local float scores[kQueryTile * kLargestGroup * kKeyBlock];
  alignas(64) static thread_local float sums[kQueryTile * kLargestGroup * kWidestHead];
  alignas(64) static thread_local float placed_keys[kKeyBlock * kWidestHead];
  alignas(64) static thread_local float placed_queries[kQueryTile * kLargestGroup * kWidestHead];
  float largest[kQueryTile * kLargestGroup];
  float total[kQueryTile * kLargestGroup];
  for (std::int64_t r = 0; r < unit.rows; ++r) {
    largest[r] = -INFINITY;
    total[r] = 0;
    std::fill_n(sums + r * kWidestHead, width, 0.0F);
  }
  const bool transpose = unit.rows >= kRowsWorthTransposing;
  const RotaryAngles& angles = unit.angles;
  const std::int64_t half = width / 2;
  const float* query[kQueryTile * kLargestGroup];
  std::copy_n(unit.query, unit.rows, query);
  const float* key[kKeyBlock];
  const float* value[kKeyBlock];
  for (std::int64_t begin = 0; begin < context; begin += kKeyBlock) {
    const std::int64_t count = std::min(kKeyBlock, context - begin);
    for (std::int64_t t = 0; t < kKeyBlock; ++t) {
      // After the end the last key is repeated; its scores are dropped.
      const std::int64_t slot = slots[begin + std::min(t, count - 1)];
      key[t] = keys + slot * kv_row;
      value[t] = values + slot * kv_row;
      fetch_row(value[t], width);
      const std::int64_t ahead = begin + kKeyBlock + t;
      if (ahead < context) {
        fetch_row(keys + slots[ahead] * kv_row, width);
      }
    }
    if (angles.cosines != nullptr) {
      // A score depends only on the distance, so positions count from the block's first key. The
      // angles of its keys then stay in the nearest cache, however long the context is.
      for (std::int64_t t = 0; t < count; ++t) {
        float* const placed = placed_keys + t * width;
        turn(key[t], placed, half, angles.cosines + t * half, angles.sines + t * half);
        key[t] = placed;
      }
      std::fill(key + count, key + kKeyBlock, key[count - 1]);
      for (std::int64_t r = 0; r < unit.rows; ++r) {
        const std::int64_t distance = unit.seen[r] - 1 - begin;
        if (distance >= 0) {  // otherwise the row sees no key of the block
          float* const placed = placed_queries + r * width;
          turn(unit.query[r], placed, half, angles.cosines + distance * half,
               angles.sines + distance * half);
          query[r] = placed;
        }
      }
    }
    if (transpose) {
      for (std::int64_t d = 0; d < width; ++d) {
        for (std::int64_t t = 0; t < kKeyBlock; ++t) {
          turned[d * kKeyBlock + t] = key[t][d];
        }
      }
      std::int64_t r = 0;
      for (; r + kRowsTogether <= unit.rows; r += kRowsTogether) {
        score_block<kRowsTogether>(query + r, turned, width, scores + r * kKeyBlock);
      }
      for (; r < unit.rows; ++r) {
        score_block<1>(query + r, turned, width, scores + r * kKeyBlock);
      }
    } else {
      for (std::int64_t t = 0; t < count; ++t) {
        for (std::int64_t r = 0; r < unit.rows; ++r) {
          scores[r * kKeyBlock + t] = dot(query[r], key[t], width);
        }
      }
    }
    for (std::int64_t r = 0; r < unit.rows; ++r) {
      float* const row = scores + r * kKeyBlock;
      const std::int64_t visible = std::clamp<std::int64_t>(unit.seen[r] - begin, 0, count);
      float block_largest = largest[r];
      for (std::int64_t t = 0; t < visible; ++t) {
        row[t] *= scale;
        block_largest = row[t] > block_largest ? row[t] : block_largest;
      }
      if (visible > 0 && block_largest > largest[r]) {
        const float shrink = exp_of_negative(largest[r] - block_largest);
        total[r] *= shrink;
        for (std::int64_t d = 0; d < width; ++d) {
          sums[r * kWidestHead + d] *= shrink;
        }
        largest[r] = block_largest;
      }
      for (std::int64_t t = 0; t < visible; ++t) {
        row[t] = exp_of_negative(row[t] - largest[r]);
      }
      for (std::int64_t t = 0; t < visible; ++t) {
        total[r] += row[t];
      }
      std::fill(row + visible, row + count, 0.0F);
    }
    std::int64_t r = 0;
    for (; r + kRowsTogether <= unit.rows; r += kRowsTogether) {
      add_values<kRowsTogether>(scores + r * kKeyBlock, value, count, width,
                                sums + r * kWidestHead);
    }
    for (; r < unit.rows; ++r) {
      add_values<1>(scores + r * kKeyBlock, value, count, width, sums + r * kWidestHead);
    }
  }
  for (std::int64_t r = 0; r < unit.rows; ++r) {
    for (std::int64_t d = 0; d < width; ++d) {
      unit.output[r][d] = sums[r * kWidestHead + d] / total[r];
    }
  }
}

std::int64_t query_stride(const PagedAttentionShape& shape) {
  return shape.query_stride > 0 ? shape.query_stride : shape.query_heads * shape.head_dim;
}
std::int64_t kv_stride(const PagedAttentionShape& shape) {
  return shape.kv_stride > 0 ? shape.kv_stride : shape.kv_heads * shape.head_dim;
}

}  // namespace

bool is_valid(const PagedAttentionShape& shape) {
  return shape.kv_heads > 0 && shape.query_heads % shape.kv_heads == 0 &&
         shape.query_heads / shape.kv_heads <= kLargestGroup && shape.head_dim > 0 &&
         shape.head_dim % kLanes == 0 && shape.head_dim <= kWidestHead;
}

void attend_paged(const PagedAttentionShape& shape, const PagedBatch& batch, RotaryAngles angles,
                  const float* queries, const float* keys, const float* values, float* output,
                  std::int64_t request, std::int64_t kv_head, std::int64_t tile) {
  const std::int64_t group = shape.query_heads / shape.kv_heads;
  const std::int64_t query_count = batch.query_begin[request + 1] - batch.query_begin[request];
  const std::int64_t context = batch.context_begin[request + 1] - batch.context_begin[request];
  const std::int64_t first = tile * kQueryTile;
  const std::int64_t last = std::min(first + kQueryTile, query_count);
  Unit unit;
  unit.rows = 0;
  unit.width = shape.head_dim;
  unit.angles = angles;
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t row = batch.query_begin[request] + i;
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      unit.query[unit.rows] = queries + row * query_stride(shape) + head * shape.head_dim;
      unit.output[unit.rows] = output + (row * shape.query_heads + head) * shape.head_dim;
      unit.seen[unit.rows] = context - query_count + i + 1;
      ++unit.rows;
    }
  }
  if (unit.rows == 0) {
    return;
  }
  const std::int64_t offset = kv_head * shape.head_dim;
  attend_unit(unit, batch.slots + batch.context_begin[request], keys + offset, values + offset,
              kv_stride(shape), context - query_count + last);
}

ScoreCount count_small_scores(const PagedAttentionShape& shape, const PagedBatch& batch,
                              RotaryAngles angles, const float* queries, const float* keys,
                              std::int64_t request, std::int64_t kv_head, double share) {
  const std::int64_t group = shape.query_heads / shape.kv_heads;
  const std::int64_t width = shape.head_dim;
  const std::int64_t half = width / 2;
  const std::int64_t query_count = batch.query_begin[request + 1] - batch.query_begin[request];
  const std::int64_t context = batch.context_begin[request + 1] - batch.context_begin[request];
  const std::int32_t* const slots = batch.slots + batch.context_begin[request];
  std::vector<float> placed(static_cast<std::size_t>(context * width));
  for (std::int64_t t = 0; t < context; ++t) {
    const float* const key = keys + slots[t] * kv_stride(shape) + kv_head * width;
    float* const to = &placed[static_cast<std::size_t>(t * width)];
    if (angles.cosines != nullptr) {
      turn(key, to, half, angles.cosines + t * half, angles.sines + t * half);
    } else {
      std::copy_n(key, width, to);
    }
  }
  // exp(score - largest) < share
  const float below = static_cast<float>(std::log(share)) * std::sqrt(static_cast<float>(width));
  ScoreCount count;
  std::vector<float> query(static_cast<std::size_t>(width));
  std::vector<float> scores(static_cast<std::size_t>(context));
  for (std::int64_t i = 0; i < query_count; ++i) {
    const std::int64_t position = context - query_count + i;
    const std::int64_t row = batch.query_begin[request] + i;
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const float* const from = queries + row * query_stride(shape) + head * width;
      if (angles.cosines != nullptr) {
        turn(from, query.data(), half, angles.cosines + position * half,
             angles.sines + position * half);
      } else {
        std::copy_n(from, width, query.data());
      }
      for (std::int64_t t = 0; t <= position; ++t) {
        scores[static_cast<std::size_t>(t)] =
            dot(query.data(), &placed[static_cast<std::size_t>(t * width)], width);
      }
      const std::span seen(scores.data(), static_cast<std::size_t>(position + 1));
      const float limit = *std::ranges::max_element(seen) + below;
      count.small += std::ranges::count_if(seen, [limit](float score) { return score < limit; });
      count.all += position + 1;
    }
  }
  return count;
}

}  // namespace kvtier::kernels
