#pragma once

#include <cstdint>
#include <optional>

#include "hw/model/hardware.hpp"
#include "hw/model/model.hpp"

/// The time of one operation on one device at given rates: the longer of computing its operations
/// and moving its unavoidable bytes. At the device's upper limits this is the speed of light, and
/// no measurement can be shorter. At attained rates it is the roofline's estimate.
namespace kvtier {

struct Rates {
  double flops_per_second = 0;
  double bytes_per_second = 0;
};

/// The rates that kernels usually attain at such peaks: the shares of the hardware presets.
[[nodiscard]] Rates usual_rates(const Rates& peaks);

/// The operations of one call, and the bytes that it cannot avoid to move.
struct Work {
  double operations = 0;
  double bytes = 0;
};
[[nodiscard]] double seconds_of(const Work& work, const Rates& rates);

/// Peaks times efficiencies of one GPU.
[[nodiscard]] Rates attained_rates(const HardwareConfig& hardware);

/// Attained FLOP/s of `gpus` GPUs for matrices with weights in a format (none: 16 bits), or in the
/// format of /model/precision/compute. Below 16 bits, the attained share of the datasheet peak is
/// kLowPrecisionShare of that in 16 bits: FP8 matrices take 0.66 to 0.88 of BF16's time at n, k >=
/// 4096, in the middle 0.77. The peaks suggest 0.5.
inline constexpr double kLowPrecisionShare = 0.65;
[[nodiscard]] double attained_flops(const ModelConfig& model, const HardwareConfig& hardware,
                                    const std::optional<NumberFormat>& format, double gpus);

/// Sizes of one device's attention in one layer.
struct AttentionShape {
  std::int64_t attention_heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  std::int64_t element_bytes = 2;

  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};
[[nodiscard]] AttentionShape attention_shape(const ModelConfig& model, std::int64_t gpus);

/// One matrix times `tokens` rows. Its weights, `element_bytes` each, are read once; rows may be in
/// a cache.
[[nodiscard]] Work matrix_work(const MatrixShape& matrix, double element_bytes, double tokens);
[[nodiscard]] double matrix_seconds(const MatrixShape& matrix, double element_bytes, double tokens,
                                    const Rates& rates);

/// Pairs of new and earlier tokens in causal attention of `added` tokens after `past`, each of
/// which sees at most the last `window` tokens, itself included; 0: all of them.
[[nodiscard]] double attention_pairs(double added, double past, std::int64_t window);

/// Causal attention of `added` tokens after `past`: attention_pairs of 4 x heads x width
/// operations, and the KV that they see.
[[nodiscard]] Work extend_attention_work(const AttentionShape& shape, double added, double past,
                                         std::int64_t window = 0);
[[nodiscard]] double extend_attention_seconds(const AttentionShape& shape, double added,
                                              double past, const Rates& rates);

/// Attention of one token of each request to `context` tokens in total.
[[nodiscard]] Work decode_attention_work(const AttentionShape& shape, double context);
[[nodiscard]] double decode_attention_seconds(const AttentionShape& shape, double context,
                                              const Rates& rates);

/// Operations on one element of a state for one token: decay, read, correct and write.
inline constexpr double kStateOperations = 8;

/// Reads rows of `width` elements once.
[[nodiscard]] Work rows_work(std::int64_t width, std::int64_t element_bytes, double rows);
[[nodiscard]] double rows_seconds(std::int64_t width, std::int64_t element_bytes, double rows,
                                  const Rates& rates);

/// Activations travel between GPUs in 16 bits, whatever the format of the weights.
inline constexpr double kActivationBytes = 2;
/// One after attention, one after the MLP.
inline constexpr double kAllReducesPerLayer = 2;

/// Communication time of a layer: a part for each token, and a fixed part.
struct AllReduceTime {
  double seconds_per_token = 0;
  double fixed_seconds = 0;
};
/// One all-reduce in a ring of `gpus` GPUs (Megatron-LM, arXiv 1909.08053, section 3). Zero on one
/// GPU.
[[nodiscard]] AllReduceTime all_reduce(const ModelConfig& model, const HardwareConfig& hardware,
                                       std::int64_t gpus);
/// Sends tokens to the GPUs of their experts and back, within a pipeline stage. Each GPU sends a
/// token once to each group of /hardware/parallel/expert that has one of the token's experts.
[[nodiscard]] AllReduceTime expert_all_to_all(const ModelConfig& model,
                                              const HardwareConfig& hardware);
/// Sends activations from one pipeline stage to the next.
[[nodiscard]] AllReduceTime stage_send(const ModelConfig& model, const HardwareConfig& hardware);

}  // namespace kvtier
