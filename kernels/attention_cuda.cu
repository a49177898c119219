#include <cmath>
#include <type_traits>

#include "kernels/attention_cuda.hpp"
#include "kernels/attention_tiles.hpp"
#include "kernels/instructions.cuh"

namespace kvtier::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = kAttentionWarps;
constexpr int kThreads = kAttentionThreads;
constexpr unsigned kAllLanes = 0xffffffffU;
constexpr float kLog2E = 1.44269504F;

// ---- Numbers ----

template <class Element>
__device__ float2 unpack(unsigned pair) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U)};
  } else {
    __half2 both;
    memcpy(&both, &pair, sizeof both);
    return __half22float2(both);
  }
}

template <class Element>
__device__ unsigned pack(float low, float high) {
  std::conditional_t<std::is_same_v<Element, __nv_bfloat16>, __nv_bfloat162, __half2> both;
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    both = __floats2bfloat162_rn(low, high);
  } else {
    both = __floats2half2_rn(low, high);
  }
  unsigned pair;
  memcpy(&pair, &both, sizeof pair);
  return pair;
}

template <class Element>
__device__ Element to_element(float x) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    return __float2bfloat16(x);
  } else {
    return __float2half(x);
  }
}

/// Eight neighbouring numbers of a head: 16 bytes of elements.
struct Eight {
  float x[8];
};

template <class Element>
__device__ Eight unpack(const uint4& bits) {
  const float2 a = unpack<Element>(bits.x);
  const float2 b = unpack<Element>(bits.y);
  const float2 c = unpack<Element>(bits.z);
  const float2 d = unpack<Element>(bits.w);
  return {{a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y}};
}

// Inline, because GCC's thread sanitizer does not see a call whose result goes to memory.
template <class Element>
__device__ __forceinline__ uint4 pack(const Eight& eight) {
  const float(&x)[8] = eight.x;
  return {pack<Element>(x[0], x[1]), pack<Element>(x[2], x[3]), pack<Element>(x[4], x[5]),
          pack<Element>(x[6], x[7])};
}

/// The bits of e4m3 are those of a float whose exponent is smaller by 120.
__device__ float float_of(unsigned bits) {
  constexpr float kUp = 0x1p120F;
  return __uint_as_float((bits & 0x80U) << 24 | (bits & 0x7fU) << 20) * kUp;
}

__device__ Eight unpack(const uint2& bits) {
  Eight eight;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    eight.x[i] = float_of(bits.x >> 8 * i);
    eight.x[4 + i] = float_of(bits.y >> 8 * i);
  }
  return eight;
}

/// Rotates the pairs (low, high) by the eight angles at `angle`.
__device__ void turn(Eight& low, Eight& high, const RotaryAngles& angles, std::int64_t angle) {
  const auto* const cosines = reinterpret_cast<const float4*>(angles.cosines + angle);
  const auto* const sines = reinterpret_cast<const float4*>(angles.sines + angle);
#pragma unroll
  for (int four = 0; four < 2; ++four) {
    const float4 cosine = cosines[four];
    const float4 sine = sines[four];
    const float c[4] = {cosine.x, cosine.y, cosine.z, cosine.w};
    const float s[4] = {sine.x, sine.y, sine.z, sine.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float a = low.x[4 * four + i];
      const float b = high.x[4 * four + i];
      low.x[4 * four + i] = a * c[i] - b * s[i];
      high.x[4 * four + i] = a * s[i] + b * c[i];
    }
  }
}

// ---- Tiles in shared memory ----

/// The address of 8 numbers of a row. The eight rows of a matrix that one ldmatrix reads lie in
/// different banks.
template <int head_dim>
__device__ unsigned char* chunk_at(unsigned char* tile, int row, int chunk) {
  return tile + row * (head_dim * kElementBytes) + (chunk ^ (row & 7)) * 16;
}

/// A tile of rows for ldmatrix.
template <int head_dim>
struct RowTile {
  unsigned char* begin;
  __device__ unsigned char* at(int row, int chunk) const {
    return chunk_at<head_dim>(begin, row, chunk);
  }
};

/// 8 numbers of a stored tile. ldmatrix never reads 8-bit numbers, so they are stored in order.
template <class Element, class Kv, int head_dim>
__device__ Eight stored_eight(unsigned char* tile, int row, int chunk) {
  if constexpr (std::is_same_v<Kv, Float8>) {
    return unpack(*reinterpret_cast<const uint2*>(tile + row * head_dim + chunk * 8));
  } else {
    return unpack<Element>(*reinterpret_cast<const uint4*>(chunk_at<head_dim>(tile, row, chunk)));
  }
}

template <class Element, int head_dim>
__device__ void put_eight(unsigned char* tile, int row, int chunk, const Eight& eight) {
  *reinterpret_cast<uint4*>(chunk_at<head_dim>(tile, row, chunk)) = pack<Element>(eight);
}

/// Rotates the keys of a tile, key i to position min(first + i, last). `to` may be `from`, unless
/// the numbers become longer.
template <class Element, class Kv, int head_dim>
__device__ void turn_keys(unsigned char* from, unsigned char* to, int keys, int thread, int threads,
                          int width, const RotaryAngles& angles, std::int64_t first,
                          std::int64_t last) {
  constexpr int kPairs = head_dim / 16;
  const int pairs = width / 16;
  for (int i = thread; i < keys * kPairs; i += threads) {
    const int key = i / kPairs;
    const int chunk = i % kPairs;
    if (chunk < pairs) {
      Eight low = stored_eight<Element, Kv, head_dim>(from, key, chunk);
      Eight high = stored_eight<Element, Kv, head_dim>(from, key, chunk + pairs);
      const std::int64_t position = first + key < last ? first + key : last;
      turn(low, high, angles, position * (width / 2) + chunk * 8);
      put_eight<Element, head_dim>(to, key, chunk, low);
      put_eight<Element, head_dim>(to, key, chunk + pairs, high);
    }
  }
}

/// Converts 8-bit numbers to elements.
template <class Element, int head_dim>
__device__ void convert_rows(unsigned char* from, unsigned char* to, int keys, int thread,
                             int threads, int width) {
  constexpr int kChunks = head_dim / 8;
  for (int i = thread; i < keys * kChunks; i += threads) {
    const int key = i / kChunks;
    const int chunk = i % kChunks;
    if (chunk < width / 8) {
      put_eight<Element, head_dim>(to, key, chunk,
                                   stored_eight<Element, Float8, head_dim>(from, key, chunk));
    }
  }
}

// ---- A block's part of the batch ----

template <class Element, class Kv>
struct Place {
  const std::int32_t* slots;
  const Kv* keys;
  const Kv* values;
  std::int64_t query_begin;
  /// Tokens before the first new one.
  int past;
  int group;
  int kv_head;
  int width;
};

template <class Element, class Kv>
__device__ Place<Element, Kv> place_of(const AttentionCall<Element, Kv>& call,
                                       const AttentionItem& item) {
  const PagedBatch& batch = call.batch;
  const std::int64_t context_begin = batch.context_begin[item.request];
  const std::int64_t query_begin = batch.query_begin[item.request];
  const std::int64_t context = batch.context_begin[item.request + 1] - context_begin;
  const std::int64_t added = batch.query_begin[item.request + 1] - query_begin;
  const int kv_head = static_cast<int>(blockIdx.x % call.shape.kv_heads);
  return {.slots = batch.slots + context_begin,
          .keys = call.keys + kv_head * call.shape.head_dim,
          .values = call.values + kv_head * call.shape.head_dim,
          .query_begin = query_begin,
          .past = static_cast<int>(context - added),
          .group = static_cast<int>(call.shape.query_heads / call.shape.kv_heads),
          .kv_head = kv_head,
          .width = static_cast<int>(call.shape.head_dim)};
}

/// Tokens of the context that a row sees.
template <class Element, class Kv>
__device__ int seen_by(const Place<Element, Kv>& place, int row) {
  return place.past + row / place.group + 1;
}

/// The offset of a row's head among queries or outputs with distance `stride`.
template <class Element, class Kv>
__device__ std::int64_t head_at(const Place<Element, Kv>& place, int row, std::int64_t stride) {
  return (place.query_begin + row / place.group) * stride +
         (place.kv_head * place.group + row % place.group) * place.width;
}

/// Loads the query rows of an item into a tile of `rows` rows, rotated to position turning(row).
/// Rows with a negative position and rows after the last become zeros.
template <class Element, class Kv, int head_dim, class Tile, class Turning>
__device__ void load_queries(const AttentionCall<Element, Kv>& call,
                             const Place<Element, Kv>& place, const AttentionItem& item,
                             const Tile& tile, int rows, int thread, int threads,
                             const Turning& turning) {
  constexpr int kPairs = head_dim / 16;
  const int pairs = place.width / 16;
  const bool turns = call.angles.cosines != nullptr;
  for (int i = thread; i < rows * kPairs; i += threads) {
    const int row = i / kPairs;
    const int chunk = i % kPairs;
    if (chunk >= pairs) {
      continue;
    }
    uint4 low{};
    uint4 high{};
    const std::int64_t position = row < item.rows ? turning(row) : -1;
    if (position >= 0) {
      const auto* const head = reinterpret_cast<const uint4*>(
          call.queries + head_at(place, item.first_row + row, call.shape.query_stride));
      low = head[chunk];
      high = head[chunk + pairs];
      if (turns) {
        Eight first = unpack<Element>(low);
        Eight second = unpack<Element>(high);
        turn(first, second, call.angles, position * (place.width / 2) + chunk * 8);
        low = pack<Element>(first);
        high = pack<Element>(second);
      }
    }
    *reinterpret_cast<uint4*>(tile.at(row, chunk)) = low;
    *reinterpret_cast<uint4*>(tile.at(row, chunk + pairs)) = high;
  }
}

/// Queues copies of 16 bytes of a key and of its value; zeros for a negative slot.
template <class Element, class Kv, int head_dim>
__device__ void load_chunk(const AttentionCall<Element, Kv>& call, const Place<Element, Kv>& place,
                           unsigned char* keys, unsigned char* values, int row, int chunk,
                           int slot) {
  constexpr int kNumbers = 16 / static_cast<int>(sizeof(Kv));
  if (chunk * kNumbers >= place.width) {
    return;
  }
  const bool reads = slot >= 0;
  const std::int64_t at =
      reads ? slot * call.shape.kv_stride + static_cast<std::int64_t>(chunk) * kNumbers : 0;
  if constexpr (std::is_same_v<Kv, Float8>) {
    copy_async(keys + row * head_dim + chunk * 16, place.keys + at, reads);
    copy_async(values + row * head_dim + chunk * 16, place.values + at, reads);
  } else {
    copy_async(chunk_at<head_dim>(keys, row, chunk), place.keys + at, reads);
    copy_async(chunk_at<head_dim>(values, row, chunk), place.values + at, reads);
  }
}

/// A part's row: `width` sums, the largest score, the total weight.
template <class Element, class Kv>
__device__ float* part_at(const AttentionCall<Element, Kv>& call, std::int64_t row, int kv_head) {
  return call.lists.parts + (row * call.shape.kv_heads + kv_head) * (call.shape.head_dim + 2);
}

/// The largest score, or 0 if no key was seen, so that weights stay finite.
__device__ float finite(float largest) { return largest == -INFINITY ? 0.0F : largest; }

// ---- Decode ----

/// Constants of the decode kernel, because a kernel cannot call host functions.
template <class Kv, int head_dim, int columns>
struct DecodeSizes {
  static constexpr DecodeTiles kTiles{
      .head_dim = head_dim, .columns = columns, .kv_bytes = sizeof(Kv)};
  static constexpr int kStages = kTiles.stages();
  static constexpr int kStage = kTiles.stage_bytes();
  static constexpr int kWarpBytes = kTiles.warp_bytes();
  static constexpr int kQueryBytes = kTiles.query_bytes();
};

/// One block for one item and KV head. Keys are the rows of a product and query rows its columns,
/// so a group of eight query heads wastes no work. Each warp has every fourth tile of 16 keys, its
/// own stages of asynchronous copies and its own softmax. From the load of the queries to the merge
/// of the sums, warps do not wait for each other.
template <class Element, class Kv, int head_dim, int columns>
__global__ void __launch_bounds__(kThreads) decode_kernel(AttentionCall<Element, Kv> call) {
  using Sizes = DecodeSizes<Kv, head_dim, columns>;
  constexpr int kKeys = DecodeTiles::kKeys;
  constexpr int kStages = Sizes::kStages;
  constexpr int kStage = Sizes::kStage;
  constexpr int kWarpBytes = Sizes::kWarpBytes;
  constexpr int kQueryBytes = Sizes::kQueryBytes;
  constexpr int kSteps = head_dim / 16;
  constexpr int kColumnTiles = columns / 8;
  constexpr bool kConverts = std::is_same_v<Kv, Float8>;
  constexpr int kChunks = head_dim * static_cast<int>(sizeof(Kv)) / 16;

  const AttentionItem item = call.lists.decode[blockIdx.x / call.shape.kv_heads];
  if (item.rows == 0) {
    return;  // padding
  }
  const Place<Element, Kv> place = place_of(call, item);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int steps = place.width / 16;
  const bool turns = call.angles.cosines != nullptr;
  unsigned char* const stages = dynamic_shared() + warp * kWarpBytes;
  unsigned char* const converted = stages + kStages * kStage;
  unsigned char* const queries =
      dynamic_shared() + kWarps * kWarpBytes + (turns ? warp * kQueryBytes : 0);

  const int tiles = (item.key_end - item.key_begin + kKeys - 1) / kKeys;
  // The slot of the lane's key in the tile, -1 after the last.
  const auto slot_of = [&](int tile) {
    const int key = item.key_begin + tile * kKeys + lane % kKeys;
    return key < item.key_end ? place.slots[key] : -1;
  };
  int next = warp;
  int next_slot = slot_of(next);
  const auto load_next = [&](int stage) {
    if (next < tiles) {
      unsigned char* const keys = stages + stage * kStage;
      unsigned char* const values = keys + kStage / 2;
#pragma unroll 4
      for (int i = 0; i < kKeys * kChunks / kWarp; ++i) {
        const int at = lane + i * kWarp;
        const int slot = __shfl_sync(kAllLanes, next_slot, at / kChunks);
        load_chunk<Element, Kv, head_dim>(call, place, keys, values, at / kChunks, at % kChunks,
                                          slot);
      }
      next += kWarps;
      next_slot = slot_of(next);
    }
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    load_next(stage);
  }
  if (!turns) {
    load_queries<Element, Kv, head_dim>(call, place, item, RowTile<head_dim>{queries}, columns,
                                        static_cast<int>(threadIdx.x), kThreads,
                                        [](int) { return 0; });
    __syncthreads();
  }

  /// For the lane's two columns in each eight: the keys that they see, and their softmax so far, in
  /// units of log2.
  int seen[kColumnTiles][2];
  float largest[kColumnTiles][2];
  float total[kColumnTiles][2];
  float sums[kSteps][kColumnTiles][4];
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = n * 8 + 2 * (lane % 4) + i;
      const int sees = row < item.rows ? seen_by(place, item.first_row + row) : 0;
      seen[n][i] = sees < item.key_end ? sees : item.key_end;
      seen[n][i] = row < item.rows ? seen[n][i] : 0;
      largest[n][i] = -INFINITY;
      total[n][i] = 0;
    }
#pragma unroll
    for (int d = 0; d < kSteps; ++d) {
      sums[d][n][0] = sums[d][n][1] = sums[d][n][2] = sums[d][n][3] = 0;
    }
  }
  const float scale = call.key_scale * rsqrtf(static_cast<float>(place.width)) * kLog2E;

  int stage = 0;
  for (int tile = warp; tile < tiles; tile += kWarps) {
    wait_for_copies<kStages - 1>();
    __syncwarp();
    unsigned char* keys = stages + stage * kStage;
    unsigned char* values = keys + kStage / 2;
    const int first_key = item.key_begin + tile * kKeys;
    if (turns) {
      // A score depends only on the distance, so positions count from the tile's first key. The
      // angles then stay in the nearest cache.
      turn_keys<Element, Kv, head_dim>(keys, kConverts ? converted : keys, kKeys, lane, kWarp,
                                       place.width, call.angles, 0, kKeys - 1);
      load_queries<Element, Kv, head_dim>(
          call, place, item, RowTile<head_dim>{queries}, columns, lane, kWarp, [&](int row) {
            return static_cast<std::int64_t>(seen_by(place, item.first_row + row)) - 1 - first_key;
          });
      __syncwarp();
    } else if constexpr (kConverts) {
      convert_rows<Element, head_dim>(keys, converted, kKeys, lane, kWarp, place.width);
      __syncwarp();
    }
    if constexpr (kConverts) {
      keys = converted;
    }

    float scores[kColumnTiles][4] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (s < steps) {
        unsigned a[4];
        load_matrices(a, chunk_at<head_dim>(keys, lane % 16, 2 * s + lane / 16));
        unsigned b[2 * kColumnTiles];
        load_matrices(b, chunk_at<head_dim>(queries, lane % 8 + (lane / 16 * 8) % columns,
                                            2 * s + lane / 8 % 2));
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          const unsigned pair[2] = {b[2 * n], b[2 * n + 1]};
          multiply_add<Element>(scores[n], a, pair);
        }
      }
    }

    const int key = first_key + lane / 4;
    unsigned weights[kColumnTiles][2];
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& low = scores[n][i];
        float& high = scores[n][2 + i];
        low = key < seen[n][i] ? low * scale : -INFINITY;
        high = key + 8 < seen[n][i] ? high * scale : -INFINITY;
        float top = fmaxf(largest[n][i], fmaxf(low, high));
#pragma unroll
        for (int offset = 4; offset < kWarp; offset *= 2) {
          top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, offset));
        }
        const float from = finite(top);
        const float shrink = fast_exp2(largest[n][i] - from);
        largest[n][i] = top;
        low = fast_exp2(low - from);
        high = fast_exp2(high - from);
        total[n][i] = total[n][i] * shrink + (low + high);
#pragma unroll
        for (int d = 0; d < kSteps; ++d) {
          sums[d][n][i] *= shrink;
          sums[d][n][2 + i] *= shrink;
        }
      }
      // Keys are the rows of the sums and have to become the rows of the next product's right side.
      weights[n][0] = transpose_matrix(pack<Element>(scores[n][0], scores[n][1]));
      weights[n][1] = transpose_matrix(pack<Element>(scores[n][2], scores[n][3]));
    }

    if constexpr (kConverts) {
      __syncwarp();
      convert_rows<Element, head_dim>(values, converted, kKeys, lane, kWarp, place.width);
      __syncwarp();
      values = converted;
    }
#pragma unroll
    for (int d = 0; d < kSteps; ++d) {
      if (d < steps) {
        unsigned a[4];
        load_matrices_transposed(
            a, chunk_at<head_dim>(values, lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          multiply_add<Element>(sums[d][n], a, weights[n]);
        }
      }
    }
    __syncwarp();
    load_next(stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }

  __shared__ float warp_largest[kWarps][columns];
  __shared__ float warp_total[kWarps][columns];
  auto* const warp_sums = reinterpret_cast<float*>(stages);
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = n * 8 + 2 * (lane % 4) + i;
      float sum = total[n][i];
#pragma unroll
      for (int offset = 4; offset < kWarp; offset *= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, offset);
      }
      if (lane < 4) {
        warp_largest[warp][column] = largest[n][i];
        warp_total[warp][column] = sum;
      }
#pragma unroll
      for (int d = 0; d < kSteps; ++d) {
        if (d < steps) {
          float* const to = warp_sums + column * head_dim + d * 16 + lane / 4;
          to[0] = sums[d][n][i];
          to[8] = sums[d][n][2 + i];
        }
      }
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < item.rows * place.width; i += kThreads) {
    const int row = i / place.width;
    const int d = i % place.width;
    float top = -INFINITY;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      top = fmaxf(top, warp_largest[w][row]);
    }
    float sum = 0;
    float weight = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float share = fast_exp2(warp_largest[w][row] - finite(top));
      sum += share *
             reinterpret_cast<const float*>(dynamic_shared() + w * kWarpBytes)[row * head_dim + d];
      weight += share * warp_total[w][row];
    }
    if (item.part_row < 0) {
      call.output[head_at(place, item.first_row + row, call.shape.query_heads * place.width) + d] =
          to_element<Element>(sum / weight * call.value_scale);
    } else {
      float* const part = part_at(call, item.part_row + row, place.kv_head);
      part[d] = sum;
      if (d == 0) {
        part[place.width] = top;
        part[place.width + 1] = weight;
      }
    }
  }
}

// ---- Prefill ----

template <class Kv, int head_dim>
struct PrefillSizes {
  static constexpr PrefillTiles kTiles{.head_dim = head_dim, .kv_bytes = sizeof(Kv)};
  static constexpr int kKeys = kTiles.keys();
  static constexpr int kStages = kTiles.stages();
  static constexpr int kStage = kTiles.stage_bytes();
  static constexpr int kQueryBytes = kTiles.query_bytes();
  static constexpr int kRows = kTiles.rows();
  static constexpr int kRowTiles = kTiles.row_tiles();
};

/// One block for one item and KV head, after FlashAttention-2: a warp has 16 or 32 query rows,
/// whose scores and sums stay in its registers, and all warps share tiles of keys in two or three
/// stages.
template <class Element, class Kv, int head_dim>
__global__ void __launch_bounds__(kThreads) prefill_kernel(AttentionCall<Element, Kv> call) {
  using Sizes = PrefillSizes<Kv, head_dim>;
  constexpr int kKeys = Sizes::kKeys;
  constexpr int kStages = Sizes::kStages;
  constexpr int kStage = Sizes::kStage;
  constexpr int kQueryBytes = Sizes::kQueryBytes;
  constexpr int kRows = Sizes::kRows;
  constexpr int kSteps = head_dim / 16;
  constexpr int kRowTiles = Sizes::kRowTiles;
  constexpr bool kConverts = std::is_same_v<Kv, Float8>;
  constexpr int kChunks = head_dim * static_cast<int>(sizeof(Kv)) / 16;
  constexpr int kLoads = kKeys * kChunks / kThreads;
  constexpr int kRowsOfLoad = kThreads / kChunks;
  constexpr int kTileBytes = kKeys * head_dim * kElementBytes;

  const AttentionItem item = call.lists.prefill[blockIdx.x / call.shape.kv_heads];
  const Place<Element, Kv> place = place_of(call, item);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const int steps = place.width / 16;
  const bool turns = call.angles.cosines != nullptr;
  unsigned char* const queries = dynamic_shared();
  unsigned char* const stages = queries + kQueryBytes;
  unsigned char* const converted = stages + kStages * kStage;

  const int tiles = (item.key_end - item.key_begin + kKeys - 1) / kKeys;
  // The slots of the next tile to load, -1 after the last key. Each thread reads a slot of the tile
  // after it early, because copies wait for slots.
  __shared__ int slots[kKeys];
  const auto slot_of = [&](int tile) {
    const int key = item.key_begin + tile * kKeys + thread;
    return thread < kKeys && key < item.key_end ? place.slots[key] : -1;
  };
  int next_slot = slot_of(0);
  const auto put_slots = [&] {
    if (thread < kKeys) {
      slots[thread] = next_slot;
    }
  };
  const auto load = [&](int tile) {
    if (tile < tiles) {
      unsigned char* const keys = stages + tile % kStages * kStage;
#pragma unroll 2
      for (int i = 0; i < kLoads; ++i) {
        const int row = thread / kChunks + i * kRowsOfLoad;
        load_chunk<Element, Kv, head_dim>(call, place, keys, keys + kStage / 2, row,
                                          thread % kChunks, slots[row]);
      }
    }
    next_slot = slot_of(tile + 1);
    commit_copies();
  };
  for (int tile = 0; tile < kStages; ++tile) {
    put_slots();
    __syncthreads();
    load(tile);
    __syncthreads();
  }
  load_queries<Element, Kv, head_dim>(
      call, place, item, RowTile<head_dim>{queries}, kRows, thread, kThreads,
      [&](int row) { return static_cast<std::int64_t>(seen_by(place, item.first_row + row)) - 1; });

  /// For the lane's two rows in each 16.
  int seen[kRowTiles][2];
  float largest[kRowTiles][2];
  float total[kRowTiles][2];
  float sums[kRowTiles][2 * kSteps][4];
  const int warp_row = warp * kRowTiles * 16;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp_row + m * 16 + lane / 4 + 8 * i;
      const int sees = seen_by(place, item.first_row + row);
      seen[m][i] = row < item.rows ? (sees < item.key_end ? sees : item.key_end) : 0;
      largest[m][i] = -INFINITY;
      total[m][i] = 0;
    }
#pragma unroll
    for (int d = 0; d < 2 * kSteps; ++d) {
      sums[m][d][0] = sums[m][d][1] = sums[m][d][2] = sums[m][d][3] = 0;
    }
  }
  // The keys that the warp's last row sees, and those that its first row sees: masks are needed
  // only in between.
  const int last_row =
      (warp_row + kRowTiles * 16 < item.rows ? warp_row + kRowTiles * 16 : item.rows) - 1;
  const int sees_most = last_row >= warp_row ? seen_by(place, item.first_row + last_row) : 0;
  const int sees_least =
      last_row >= warp_row && seen_by(place, item.first_row + warp_row) < item.key_end
          ? seen_by(place, item.first_row + warp_row)
          : item.key_end;
  const float scale = call.key_scale * rsqrtf(static_cast<float>(place.width)) * kLog2E;

  for (int tile = 0; tile < tiles; ++tile) {
    wait_for_copies<kStages - 1>();
    __syncthreads();
    unsigned char* keys = stages + tile % kStages * kStage;
    unsigned char* values = keys + kStage / 2;
    const int first_key = item.key_begin + tile * kKeys;
    if (turns) {
      turn_keys<Element, Kv, head_dim>(keys, kConverts ? converted : keys, kKeys, thread, kThreads,
                                       place.width, call.angles, first_key, item.key_end - 1);
    } else if constexpr (kConverts) {
      convert_rows<Element, head_dim>(keys, converted, kKeys, thread, kThreads, place.width);
    }
    if constexpr (kConverts) {
      convert_rows<Element, head_dim>(values, converted + kTileBytes, kKeys, thread, kThreads,
                                      place.width);
      keys = converted;
      values = converted + kTileBytes;
    }
    if (turns || kConverts) {
      __syncthreads();
    }

    if (first_key < sees_most) {
      float scores[kRowTiles][kKeys / 8][4] = {};
#pragma unroll 4
      for (int s = 0; s < kSteps; ++s) {
        if (s < steps) {
          unsigned a[kRowTiles][4];
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            load_matrices(a[m], chunk_at<head_dim>(queries, warp_row + m * 16 + lane % 16,
                                                   2 * s + lane / 16));
          }
#pragma unroll
          for (int j = 0; j < kKeys / 16; ++j) {
            unsigned b[4];
            load_matrices(b, chunk_at<head_dim>(keys, j * 16 + lane % 8 + lane / 16 * 8,
                                                2 * s + lane / 8 % 2));
            const unsigned left[2] = {b[0], b[1]};
            const unsigned right[2] = {b[2], b[3]};
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m) {
              multiply_add<Element>(scores[m][2 * j], a[m], left);
              multiply_add<Element>(scores[m][2 * j + 1], a[m], right);
            }
          }
        }
      }

      unsigned weights[kRowTiles][kKeys / 16][4];
      const bool hides = first_key + kKeys > sees_least;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float top = largest[m][i];
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              float& score = scores[m][n][2 * i + c];
              score *= scale;
              if (hides && first_key + n * 8 + 2 * (lane % 4) + c >= seen[m][i]) {
                score = -INFINITY;
              }
              top = fmaxf(top, score);
            }
          }
          top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
          top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
          const float from = finite(top);
          const float shrink = fast_exp2(largest[m][i] - from);
          largest[m][i] = top;
          float sum = 0;
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              float& score = scores[m][n][2 * i + c];
              score = fast_exp2(score - from);
              sum += score;
            }
          }
          total[m][i] = total[m][i] * shrink + sum;
#pragma unroll
          for (int d = 0; d < 2 * kSteps; ++d) {
            sums[m][d][2 * i] *= shrink;
            sums[m][d][2 * i + 1] *= shrink;
          }
        }
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j) {
          const float(&left)[4] = scores[m][2 * j];
          const float(&right)[4] = scores[m][2 * j + 1];
          weights[m][j][0] = pack<Element>(left[0], left[1]);
          weights[m][j][1] = pack<Element>(left[2], left[3]);
          weights[m][j][2] = pack<Element>(right[0], right[1]);
          weights[m][j][3] = pack<Element>(right[2], right[3]);
        }
      }

#pragma unroll
      for (int d = 0; d < kSteps; ++d) {
        if (d < steps) {
#pragma unroll
          for (int j = 0; j < kKeys / 16; ++j) {
            unsigned b[4];
            load_matrices_transposed(
                b, chunk_at<head_dim>(values, j * 16 + lane % 16, 2 * d + lane / 16));
            const unsigned left[2] = {b[0], b[1]};
            const unsigned right[2] = {b[2], b[3]};
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m) {
              multiply_add<Element>(sums[m][2 * d], weights[m][j], left);
              multiply_add<Element>(sums[m][2 * d + 1], weights[m][j], right);
            }
          }
        }
      }
    }
    put_slots();
    __syncthreads();
    load(tile + kStages);
  }

#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp_row + m * 16 + lane / 4 + 8 * i;
      float weight = total[m][i];
      weight += __shfl_xor_sync(kAllLanes, weight, 1);
      weight += __shfl_xor_sync(kAllLanes, weight, 2);
      if (row >= item.rows) {
        continue;
      }
      if (item.part_row < 0) {
        auto* const head = reinterpret_cast<unsigned*>(
            call.output +
            head_at(place, item.first_row + row, call.shape.query_heads * place.width));
        const float share = call.value_scale / weight;
#pragma unroll
        for (int d = 0; d < 2 * kSteps; ++d) {
          if (d < 2 * steps) {
            head[d * 4 + lane % 4] =
                pack<Element>(sums[m][d][2 * i] * share, sums[m][d][2 * i + 1] * share);
          }
        }
      } else {
        float* const part = part_at(call, item.part_row + row, place.kv_head);
#pragma unroll
        for (int d = 0; d < 2 * kSteps; ++d) {
          if (d < 2 * steps) {
            part[d * 8 + 2 * (lane % 4)] = sums[m][d][2 * i];
            part[d * 8 + 2 * (lane % 4) + 1] = sums[m][d][2 * i + 1];
          }
        }
        if (lane % 4 == 0) {
          part[place.width] = largest[m][i];
          part[place.width + 1] = weight;
        }
      }
    }
  }
}

// ---- Prefill with wgmma ----

/// Whether GPUs with wgmma use it. If not, they run prefill_kernel, as other GPUs do.
constexpr bool kUsesWarpgroups = true;

/// A tile of 128 rows of 128 numbers for wgmma: the first 64 numbers of all rows, then the last 64.
struct HalvedTile {
  static constexpr unsigned kHalf = WarpgroupTiles::kTileBytes / 2;
  static constexpr unsigned kRow = 128;
  static constexpr unsigned kEightRows = 8 * kRow;
  /// Between numbers k and k + 16 of a row, within its half.
  static constexpr unsigned kStep = 16 * kElementBytes;

  unsigned char* begin;
  __device__ unsigned char* at(int row, int chunk) const {
    return begin + chunk / 8 * kHalf + row * kRow + ((chunk ^ row) & 7) * 16;
  }
};

/// One block for one item and KV head, after FlashAttention-3 without its producers. Each of two
/// warpgroups has 64 query rows. The scores of the next tile of keys and the sums of this one are
/// products in flight while threads copy, rotate and compute the softmax.
template <class Element>
__device__ void prefill_by_warpgroups(const AttentionCall<Element, Element>& call) {
  using Tiles = WarpgroupTiles;
  constexpr int kKeys = Tiles::kKeys;
  constexpr int kSteps = kKeys / 16;
  static_assert(kSteps == Tiles::kHeadDim / 16);
  constexpr int kChunks = 8;  // of a half
  constexpr int kRowsOfCopy = Tiles::kThreads / kChunks;
  constexpr int kCopies = kKeys / kRowsOfCopy;

  const AttentionItem item = call.lists.prefill[blockIdx.x / call.shape.kv_heads];
  const Place<Element, Element> place = place_of(call, item);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const bool turns = call.angles.cosines != nullptr;
  const int tiles = (item.key_end - item.key_begin + kKeys - 1) / kKeys;
  unsigned char* const shared = dynamic_shared_swizzled();
  const HalvedTile queries{shared};
  const auto keys_of = [&](int tile) {
    return HalvedTile{shared + (1 + tile % Tiles::kKeyStages) * Tiles::kTileBytes};
  };
  const auto values_of = [&](int tile) {
    return HalvedTile{shared +
                      (1 + Tiles::kKeyStages + tile % Tiles::kValueStages) * Tiles::kTileBytes};
  };

  // A thread copies the same chunk of both halves of its rows. They hold pairs of a rotation, which
  // it can therefore rotate before any barrier.
  const int own_row = thread / kChunks;
  const int own_chunk = thread % kChunks;
  const auto own_of = [&](const HalvedTile& tile, int i) {
    return tile.at(own_row, own_chunk) + i * kRowsOfCopy * HalvedTile::kRow;
  };
  // The slots of the next tile to copy, -1 after the last key. They are read early, because copies
  // wait for them.
  struct Slots {
    int of[kCopies];
  };
  Slots key_slots;
  Slots value_slots;
  const auto read_slots = [&](Slots& slots, int tile) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int key = item.key_begin + tile * kKeys + own_row + i * kRowsOfCopy;
      slots.of[i] = key < item.key_end ? place.slots[key] : -1;
    }
  };
  const auto copy = [&](const Element* from, const HalvedTile& to, Slots& slots, int tile) {
    if (tile < tiles) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const bool reads = slots.of[i] >= 0;
        const Element* const head =
            from + (reads ? slots.of[i] * call.shape.kv_stride : 0) + own_chunk * 8;
        unsigned char* const own = own_of(to, i);
        copy_async(own, head, reads);
        copy_async(own + HalvedTile::kHalf, head + Tiles::kHeadDim / 2, reads);
      }
      read_slots(slots, tile + 1);
    }
    commit_copies();
  };
  const auto copy_keys = [&](int tile) { copy(place.keys, keys_of(tile), key_slots, tile); };
  const auto copy_values = [&](int tile) {
    copy(place.values, values_of(tile), value_slots, tile);
  };
  // Four pairs at a time take few registers beside the sums and scores in flight. The angles of a
  // later row are those of the first one, turned by the rows between. Rows after the last key are
  // zeros, so their angles do not matter.
  const auto turn_own_keys = [&](int tile) {
    if (tile < tiles) {
      const int first_key = item.key_begin + tile * kKeys + own_row;
      const int last_key = item.key_end - 1;
      const std::int64_t first = first_key < last_key ? first_key : last_key;
      const std::int64_t between = kRowsOfCopy < last_key ? kRowsOfCopy : last_key;
#pragma unroll 1
      for (int four = 0; four < 2; ++four) {
        const auto read = [&](const float* of, std::int64_t position, float(&to)[4]) {
          const float4 found = *reinterpret_cast<const float4*>(
              of + position * (Tiles::kHeadDim / 2) + own_chunk * 8 + four * 4);
          to[0] = found.x;
          to[1] = found.y;
          to[2] = found.z;
          to[3] = found.w;
        };
        float cosines[4];
        float sines[4];
        float cosines_between[4];
        float sines_between[4];
        read(call.angles.cosines, first, cosines);
        read(call.angles.sines, first, sines);
        read(call.angles.cosines, between, cosines_between);
        read(call.angles.sines, between, sines_between);
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
          auto* const low = reinterpret_cast<uint2*>(own_of(keys_of(tile), i)) + four;
          auto* const high = low + HalvedTile::kHalf / sizeof(uint2);
          const uint2 lows = *low;
          const uint2 highs = *high;
          const float2 pairs[4] = {unpack<Element>(lows.x), unpack<Element>(lows.y),
                                   unpack<Element>(highs.x), unpack<Element>(highs.y)};
          const float x[4] = {pairs[0].x, pairs[0].y, pairs[1].x, pairs[1].y};
          const float y[4] = {pairs[2].x, pairs[2].y, pairs[3].x, pairs[3].y};
          float turned_x[4];
          float turned_y[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            turned_x[j] = x[j] * cosines[j] - y[j] * sines[j];
            turned_y[j] = x[j] * sines[j] + y[j] * cosines[j];
            const float cosine = cosines[j];
            cosines[j] = cosine * cosines_between[j] - sines[j] * sines_between[j];
            sines[j] = cosine * sines_between[j] + sines[j] * cosines_between[j];
          }
          *low = {pack<Element>(turned_x[0], turned_x[1]), pack<Element>(turned_x[2], turned_x[3])};
          *high = {pack<Element>(turned_y[0], turned_y[1]),
                   pack<Element>(turned_y[2], turned_y[3])};
        }
      }
    }
  };
  read_slots(key_slots, 0);
  read_slots(value_slots, 0);
  copy_keys(0);
  copy_keys(1);
  copy_values(0);
  copy_keys(2);
  load_queries<Element, Element, Tiles::kHeadDim>(
      call, place, item, queries, Tiles::kRows, thread, Tiles::kThreads,
      [&](int row) { return static_cast<std::int64_t>(seen_by(place, item.first_row + row)) - 1; });

  /// For the lane's two rows.
  const int warp_row = warp * 16;
  int seen[2];
  float largest[2];
  float total[2];
  float shrink[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = warp_row + lane / 4 + 8 * i;
    const int sees = seen_by(place, item.first_row + row);
    seen[i] = row < item.rows ? (sees < item.key_end ? sees : item.key_end) : 0;
    largest[i] = -INFINITY;
    total[i] = 0;
  }
  // The keys that all rows of the warp see: masks are needed only after them.
  const int first_sees = seen_by(place, item.first_row + warp_row);
  const int sees_least = first_sees < item.key_end ? first_sees : item.key_end;
  const float scale = call.key_scale * rsqrtf(static_cast<float>(Tiles::kHeadDim)) * kLog2E;

  float sums[64];
  float scores[64];
  unsigned weights[kSteps][4];
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    sums[i] = 0;
  }
  const unsigned group_rows =
      shared_address(queries.begin) + warp / 4 * (Tiles::kRows / 2) * HalvedTile::kRow;
  const auto multiply_keys = [&](int tile) {
    const unsigned keys = shared_address(keys_of(tile).begin);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const unsigned at = s / 4 * HalvedTile::kHalf + s % 4 * HalvedTile::kStep;
      multiply_shared<Element>(
          scores, matrix_descriptor(group_rows + at, 16, HalvedTile::kEightRows),
          matrix_descriptor(keys + at, 16, HalvedTile::kEightRows), /*adds=*/s > 0);
    }
    commit_products();
  };
  const auto multiply_values = [&](int tile) {
    const unsigned values = shared_address(values_of(tile).begin);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      multiply_registers<Element>(sums, weights[s],
                                  matrix_descriptor(values + s * 16 * HalvedTile::kRow,
                                                    HalvedTile::kHalf, HalvedTile::kEightRows));
    }
    commit_products();
  };
  /// Turns scores into weights, relative to the largest score so far.
  const auto soften = [&](int tile) {
    const int first_key = item.key_begin + tile * kKeys;
    if (first_key + kKeys > sees_least) {
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        if (first_key + i / 4 * 8 + 2 * (lane % 4) + i % 2 >= seen[i / 2 % 2]) {
          scores[i] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = -INFINITY;
#pragma unroll
      for (int i = 2 * r; i < 64; i += 4) {
        top = fmaxf(top, fmaxf(scores[i], scores[i + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      top = fmaxf(largest[r], top * scale);
      const float from = finite(top);
      shrink[r] = fast_exp2(largest[r] - from);
      largest[r] = top;
      float even = 0;
      float odd = 0;
#pragma unroll
      for (int i = 2 * r; i < 64; i += 4) {
        scores[i] = fast_exp2(scores[i] * scale - from);
        scores[i + 1] = fast_exp2(scores[i + 1] * scale - from);
        even += scores[i];
        odd += scores[i + 1];
      }
      total[r] = total[r] * shrink[r] + (even + odd);
    }
  };
  const auto pack_weights = [&] {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[s][i] = pack<Element>(scores[8 * s + 2 * i], scores[8 * s + 2 * i + 1]);
      }
    }
  };

  wait_for_copies<3>();
  if (turns) {
    turn_own_keys(0);
  }
  fence_async_proxy();
  __syncthreads();
  fence_products(scores);
  multiply_keys(0);
  if (turns) {
    wait_for_copies<2>();
    turn_own_keys(1);
  }
  wait_for_products<0>(scores);
  soften(0);
  pack_weights();
  wait_for_copies<1>();
  fence_async_proxy();
  __syncthreads();
  for (int tile = 0; tile + 1 < tiles; ++tile) {
    // The next keys and these values have arrived, and the keys after them are on their way.
    // No product reads older tiles, except that of the last values in the other warpgroup.
    fence_products(scores, sums, weights);
    multiply_keys(tile + 1);
    multiply_values(tile);
    copy_values(tile + 1);
    copy_keys(tile + 3);
    if (turns) {
      wait_for_copies<2>();
      turn_own_keys(tile + 2);
    }
    wait_for_products<1>(scores);
    soften(tile + 1);
    compute_before_barrier(total[0] + total[1], shared);
    wait_for_copies<1>();
    fence_async_proxy();
    __syncthreads();
    wait_for_products<0>(sums);
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      sums[i] *= shrink[i / 2 % 2];
    }
    pack_weights();
  }
  fence_products(sums, weights);
  multiply_values(tiles - 1);
  wait_for_products<0>(sums);
  wait_for_copies<0>();

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp_row + lane / 4 + 8 * r;
    float weight = total[r];
    weight += __shfl_xor_sync(kAllLanes, weight, 1);
    weight += __shfl_xor_sync(kAllLanes, weight, 2);
    if (item.part_row < 0) {
      // Through the warp's query rows, so that it writes whole rows.
      const float share = call.value_scale / weight;
#pragma unroll
      for (int i = 2 * r; i < 64; i += 4) {
        *reinterpret_cast<unsigned*>(queries.at(row, i / 4) + lane % 4 * 4) =
            pack<Element>(sums[i] * share, sums[i + 1] * share);
      }
    } else if (row < item.rows) {
      float* const part = part_at(call, item.part_row + row, place.kv_head);
#pragma unroll
      for (int i = 2 * r; i < 64; i += 4) {
        *reinterpret_cast<float2*>(part + i / 4 * 8 + lane % 4 * 2) = {sums[i], sums[i + 1]};
      }
      if (lane % 4 == 0) {
        part[Tiles::kHeadDim] = largest[r];
        part[Tiles::kHeadDim + 1] = weight;
      }
    }
  }
  if (item.part_row < 0) {
    __syncwarp();
#pragma unroll 2
    for (int i = lane; i < 16 * 16; i += kWarp) {
      const int row = warp_row + i / 16;
      if (row < item.rows) {
        reinterpret_cast<uint4*>(call.output +
                                 head_at(place, item.first_row + row,
                                         call.shape.query_heads * Tiles::kHeadDim))[i % 16] =
            *reinterpret_cast<const uint4*>(queries.at(row, i % 16));
      }
    }
  }
}

/// Without code for the GPU, its launch bounds are those of one warp, which tells the launch.
template <class Element>
__global__ void __launch_bounds__(kHasWarpgroupProducts ? WarpgroupTiles::kThreads : kWarp, 1)
    warpgroup_prefill_kernel(AttentionCall<Element, Element> call) {
  if constexpr (kHasWarpgroupProducts) {
    prefill_by_warpgroups(call);
  }
}

// ---- Parts ----

/// One block for each row of a split context and KV head. The loads of a row depend on each other,
/// so several rows in one block would wait one after another.
template <class Element, class Kv>
__global__ void __launch_bounds__(kThreads) merge_kernel(AttentionCall<Element, Kv> call) {
  const AttentionMerge merge = call.lists.merges[blockIdx.x / call.shape.kv_heads];
  const AttentionItem item{.request = merge.request};
  const Place<Element, Kv> place = place_of(call, item);
  const int row = static_cast<int>(blockIdx.y);
  if (row >= merge.rows) {
    return;
  }
  const auto part = [&](int p) {
    return part_at(call, merge.part_row + p * merge.rows + row, place.kv_head);
  };
  for (int d = static_cast<int>(threadIdx.x); d < place.width; d += kThreads) {
    float top = -INFINITY;
    for (int p = 0; p < merge.parts; ++p) {
      top = fmaxf(top, part(p)[place.width]);
    }
    float sum = 0;
    float weight = 0;
    for (int p = 0; p < merge.parts; ++p) {
      const float share = fast_exp2(part(p)[place.width] - top);
      sum += share * part(p)[d];
      weight += share * part(p)[place.width + 1];
    }
    call.output[head_at(place, merge.first_row + row, call.shape.query_heads * place.width) + d] =
        to_element<Element>(sum / weight * call.value_scale);
  }
}

// ---- Launches ----

cudaError_t allow_shared(const void* kernel, std::size_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

template <class Element, class Kv, int head_dim, int columns>
cudaError_t decode(const AttentionCall<Element, Kv>& call, const dim3& grid, cudaStream_t stream) {
  const std::size_t bytes =
      DecodeSizes<Kv, head_dim, columns>::kTiles.shared_bytes(call.angles.cosines != nullptr);
  const cudaError_t error = allow_shared(
      reinterpret_cast<const void*>(&decode_kernel<Element, Kv, head_dim, columns>), bytes);
  if (error != cudaSuccess) {
    return error;
  }
  decode_kernel<Element, Kv, head_dim, columns><<<grid, kThreads, bytes, stream>>>(call);
  return cudaGetLastError();
}

/// Whether the current GPU has code of warpgroup_prefill_kernel.
template <class Element>
bool has_warpgroup_prefill() {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(
      &attributes, reinterpret_cast<const void*>(&warpgroup_prefill_kernel<Element>));
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // the next launch would report it as its own
  }
  return error == cudaSuccess && attributes.maxThreadsPerBlock >= WarpgroupTiles::kThreads;
}

template <class Element, class Kv, int head_dim>
cudaError_t prefill(const AttentionCall<Element, Kv>& call, const dim3& grid, cudaStream_t stream) {
  if constexpr (kUsesWarpgroups && std::is_same_v<Element, Kv> &&
                head_dim == WarpgroupTiles::kHeadDim) {
    if (call.shape.head_dim == head_dim && has_warpgroup_prefill<Element>()) {
      const cudaError_t error =
          allow_shared(reinterpret_cast<const void*>(&warpgroup_prefill_kernel<Element>),
                       WarpgroupTiles::kSharedBytes);
      if (error != cudaSuccess) {
        return error;
      }
      warpgroup_prefill_kernel<Element>
          <<<grid, WarpgroupTiles::kThreads, WarpgroupTiles::kSharedBytes, stream>>>(call);
      return cudaGetLastError();
    }
  }
  const std::size_t bytes = PrefillSizes<Kv, head_dim>::kTiles.shared_bytes();
  const cudaError_t error =
      allow_shared(reinterpret_cast<const void*>(&prefill_kernel<Element, Kv, head_dim>), bytes);
  if (error != cudaSuccess) {
    return error;
  }
  prefill_kernel<Element, Kv, head_dim><<<grid, kThreads, bytes, stream>>>(call);
  return cudaGetLastError();
}

template <class Element, class Kv, int head_dim>
cudaError_t attend(const AttentionCall<Element, Kv>& call, cudaStream_t stream) {
  // Blocks of one item are neighbours in the grid, because the KV heads of a slot are neighbours in
  // memory.
  const auto grid = [&](std::int64_t items) {
    return dim3(static_cast<unsigned>(items * call.shape.kv_heads));
  };
  const AttentionLists& lists = call.lists;
  cudaError_t error = cudaSuccess;
  if (lists.prefill_items > 0) {
    error = prefill<Element, Kv, head_dim>(call, grid(lists.prefill_items), stream);
  }
  if (error == cudaSuccess && lists.decode_items > 0) {
    error = lists.decode_rows <= 8
                ? decode<Element, Kv, head_dim, 8>(call, grid(lists.decode_items), stream)
                : decode<Element, Kv, head_dim, 16>(call, grid(lists.decode_items), stream);
  }
  if (error == cudaSuccess && lists.merge_items > 0) {
    dim3 rows = grid(lists.merge_items);
    rows.y = static_cast<unsigned>(lists.merge_rows);
    merge_kernel<Element, Kv><<<rows, kThreads, 0, stream>>>(call);
    error = cudaGetLastError();
  }
  return error;
}

}  // namespace

template <class Element, class Kv>
cudaError_t attend_paged(const AttentionCall<Element, Kv>& call, cudaStream_t stream) {
  AttentionCall<Element, Kv> whole = call;
  PagedAttentionShape& shape = whole.shape;
  if (shape.query_stride == 0) {
    shape.query_stride = shape.query_heads * shape.head_dim;
  }
  if (shape.kv_stride == 0) {
    shape.kv_stride = shape.kv_heads * shape.head_dim;
  }
  switch (padded_head_dim(static_cast<int>(shape.head_dim))) {
    case 64:
      return attend<Element, Kv, 64>(whole, stream);
    case 128:
      return attend<Element, Kv, 128>(whole, stream);
    default:
      return attend<Element, Kv, 256>(whole, stream);
  }
}

template cudaError_t attend_paged(const AttentionCall<__nv_bfloat16, __nv_bfloat16>&, cudaStream_t);
template cudaError_t attend_paged(const AttentionCall<__nv_bfloat16, Float8>&, cudaStream_t);
template cudaError_t attend_paged(const AttentionCall<__half, __half>&, cudaStream_t);
template cudaError_t attend_paged(const AttentionCall<__half, Float8>&, cudaStream_t);

}  // namespace kvtier::kernels::cuda
