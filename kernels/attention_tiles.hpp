#pragma once

/// Sizes of the tiles of kernels/attention_cuda.cu, and of the shared memory of a block. Heads are
/// padded to the next width that has a kernel.
namespace kvtier::kernels {

inline constexpr int kAttentionWarps = 4;
inline constexpr int kAttentionThreads = 32 * kAttentionWarps;
/// Size of the numbers in matrix products.
inline constexpr int kElementBytes = 2;

constexpr int padded_head_dim(int head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}

/// Few query rows on a long context. Each warp loads and multiplies 16 keys at a time by itself.
struct DecodeTiles {
  static constexpr int kKeys = 16;
  static constexpr int kRowsMax = 16;

  int head_dim = 64;
  /// Query rows: 8 or 16.
  int columns = 8;
  int kv_bytes = kElementBytes;

  [[nodiscard]] constexpr int stages() const {
    const int row = head_dim * kv_bytes;
    return row <= 128 ? 4 : row <= 256 ? 3 : 2;
  }
  /// K and V of a warp's keys.
  [[nodiscard]] constexpr int stage_bytes() const { return 2 * kKeys * head_dim * kv_bytes; }
  /// Room for 8-bit keys or values after conversion to 16 bits.
  [[nodiscard]] constexpr int converted_bytes() const {
    return kv_bytes == 1 ? kKeys * head_dim * kElementBytes : 0;
  }
  [[nodiscard]] constexpr int warp_bytes() const {
    return stages() * stage_bytes() + converted_bytes();
  }
  [[nodiscard]] constexpr int query_bytes() const { return columns * head_dim * kElementBytes; }
  /// With rotation, each warp has its own queries, rotated by their distance from its keys.
  [[nodiscard]] constexpr int shared_bytes(bool rotates) const {
    return kAttentionWarps * warp_bytes() + (rotates ? kAttentionWarps : 1) * query_bytes();
  }
  /// Bytes that a block has requested and not received while it computes.
  [[nodiscard]] constexpr int bytes_in_flight() const {
    return kAttentionWarps * (stages() - 1) * stage_bytes();
  }
};

/// Many query rows: a warp has 16 or 32 of them, and all warps share the keys.
struct PrefillTiles {
  int head_dim = 64;
  int kv_bytes = kElementBytes;

  [[nodiscard]] constexpr int stages() const { return kv_bytes == 1 ? 3 : 2; }

  /// Blocks of 16 rows of a warp; their sums have to fit in its registers.
  [[nodiscard]] constexpr int row_tiles() const { return head_dim <= 128 ? 2 : 1; }
  [[nodiscard]] constexpr int rows() const { return 16 * kAttentionWarps * row_tiles(); }
  [[nodiscard]] constexpr int keys() const { return head_dim <= 64 ? 64 : 32; }
  [[nodiscard]] constexpr int stage_bytes() const { return 2 * keys() * head_dim * kv_bytes; }
  [[nodiscard]] constexpr int converted_bytes() const {
    return kv_bytes == 1 ? 2 * keys() * head_dim * kElementBytes : 0;
  }
  [[nodiscard]] constexpr int query_bytes() const { return rows() * head_dim * kElementBytes; }
  [[nodiscard]] constexpr int shared_bytes() const {
    return query_bytes() + stages() * stage_bytes() + converted_bytes();
  }
  [[nodiscard]] constexpr int bytes_in_flight() const { return (stages() - 1) * stage_bytes(); }
};

/// Many query rows of heads of 128 in 16 bits, on a GPU with wgmma: the items of PrefillTiles. Each
/// of two warpgroups has 64 rows, and both share the keys. Tiles of queries, keys and values have
/// the same size.
struct WarpgroupTiles {
  static constexpr int kHeadDim = 128;
  static constexpr int kThreads = 256;
  static constexpr int kRows = 128;
  static constexpr int kKeys = 128;
  static constexpr int kTileBytes = kKeys * kHeadDim * kElementBytes;
  /// Keys are in use, rotated and on their way. Values are in use by one warpgroup, by the other
  /// one that is behind, and on their way.
  static constexpr int kKeyStages = 3;
  static constexpr int kValueStages = 3;
  static constexpr int kSharedBytes = (1 + kKeyStages + kValueStages) * kTileBytes;
  static constexpr int kBytesInFlight = 2 * kTileBytes;
};
static_assert(WarpgroupTiles::kRows == PrefillTiles{.head_dim = WarpgroupTiles::kHeadDim}.rows());

}  // namespace kvtier::kernels
