#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hw/model/hardware.hpp"
#include "hw/model/model.hpp"
#include "hw/timing/timing_model.hpp"

namespace kvtier {

/// Analytic times: each piece of work takes the longer of its operations over the attained FLOP/s
/// and its bytes over the attained bandwidth (Williams, Waterman and Patterson, CACM 52(4), 2009).
/// Prefill is split into dense and attention work as in Pensieve (arXiv 2312.05516), Table 1; the
/// all-reduces are those of Megatron-LM (arXiv 1909.08053, section 3): two per layer, in a ring.
///
/// Weights, KV and work are spread evenly over the GPUs. For n new tokens, one layer takes
///
///     dense:      max(n x linear FLOPs / F, layer's weight bytes / B)
///     attention:  sum over parts of max(pairs x FLOPs per pair / F, KV bytes read and written / B)
///     all-reduce: 2 x (2 (p-1)/p x n x hidden_size x 2 B / link + 2 (p-1) x latency)
///
/// with F and B the attained rates of all p GPUs together; one GPU has no all-reduce. A part that
/// adds `a` tokens after `P` has a x P + a (a+1)/2 causal pairs, reads the KV of P + a tokens and
/// writes that of a. Outside the layers are the head, for the last token of each part only, and the
/// iteration's fixed overhead. Left out: the look-up of the embedding, norms, and in decode the
/// write of one token's KV per request.
///
/// Immutable once built, so threads may share one.
class RooflineTiming final : public TimingModel {
 public:
  /// Works out decode for batches of 1 to `max_batch` (>= 1). Both configs must be valid; whether
  /// the model fits is for check_fits to say.
  RooflineTiming(const ModelConfig& model, const HardwareConfig& hardware, std::int64_t max_batch);

  /// One piece: time is affine in the context. 1 <= batch <= max_batch.
  [[nodiscard]] const std::vector<DecodePiece>& decode(std::int64_t batch) const override;

  [[nodiscard]] SimDuration decode_layer(std::int64_t batch, Tokens context) const override;

  /// The matrices work on all tokens together, their weights read once; attention is that of each
  /// part and that of the running requests. `total` is exactly layers x `layer` plus what is
  /// outside of them.
  [[nodiscard]] PrefillTime iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                      Tokens context) const override;

  [[nodiscard]] std::int64_t max_batch() const { return static_cast<std::int64_t>(decode_.size()); }

 private:
  struct DecodeBatch {
    std::vector<DecodePiece> pieces;
    /// Ticks of one layer without the attention to the context.
    std::int64_t layer_base = 0;
  };

  /// Seconds of one layer's matrices and all-reduces for `tokens` tokens.
  [[nodiscard]] double dense_seconds(double tokens) const;
  /// Seconds of one layer's attention of one part.
  [[nodiscard]] double attention_seconds(const PrefillPart& part) const;
  /// Seconds of the head for `rows` rows of logits.
  [[nodiscard]] double head_seconds(double rows) const;
  [[nodiscard]] const DecodeBatch& decode_batch(std::int64_t batch) const;

  std::int64_t layers_;
  SimDuration iteration_overhead_;
  // Seconds per unit of work, all GPUs together; each for one layer unless it says otherwise.
  double linear_seconds_per_token_;
  double weight_seconds_;
  double attention_seconds_per_pair_;
  double kv_seconds_per_token_;
  double all_reduce_seconds_per_token_;
  double all_reduce_fixed_seconds_;
  double head_seconds_per_row_;
  double head_weight_seconds_;
  SimDuration head_of_one_row_;
  std::vector<DecodeBatch> decode_;
};

}  // namespace kvtier
