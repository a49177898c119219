#pragma once

#include <cstdint>

#include "hw/model/hardware.hpp"
#include "hw/model/model.hpp"

/// The time of one operation on one device at given rates: the longer of its operations and of the
/// bytes that it cannot avoid. At the device's upper limits this is the speed of light, below which
/// no measurement can be; at attained rates it is the roofline's estimate.
namespace kvtier {

struct Rates {
  double flops_per_second = 0;
  double bytes_per_second = 0;
};

/// Peaks times efficiencies of one GPU.
[[nodiscard]] Rates attained_rates(const HardwareConfig& hardware);

/// Sizes of one device's attention in one layer.
struct AttentionShape {
  std::int64_t attention_heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  std::int64_t element_bytes = 2;

  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};
[[nodiscard]] AttentionShape attention_shape(const ModelConfig& model, std::int64_t gpus);

/// One matrix times `tokens` rows. Its weights are read once; rows may be in a cache.
[[nodiscard]] double matrix_seconds(const MatrixShape& matrix, std::int64_t element_bytes,
                                    double tokens, const Rates& rates);

/// Causal attention of `added` tokens after `past`: added x past + added (added + 1) / 2 pairs of 4
/// x heads x width operations, and the KV of past + added tokens.
[[nodiscard]] double extend_attention_seconds(const AttentionShape& shape, double added,
                                              double past, const Rates& rates);

/// One token of each request against `context` tokens in total.
[[nodiscard]] double decode_attention_seconds(const AttentionShape& shape, double context,
                                              const Rates& rates);

/// Reading rows of `width` elements once.
[[nodiscard]] double rows_seconds(std::int64_t width, std::int64_t element_bytes, double rows,
                                  const Rates& rates);

/// The two all-reduces of a layer in a ring (Megatron-LM, arXiv 1909.08053, section 3): per token,
/// and whatever their size. Zero on one GPU.
struct AllReduceTime {
  double seconds_per_token = 0;
  double fixed_seconds = 0;
};
[[nodiscard]] AllReduceTime layer_all_reduces(const ModelConfig& model,
                                              const HardwareConfig& hardware);

}  // namespace kvtier
