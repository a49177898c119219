#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hw/model/hardware.hpp"
#include "hw/model/model.hpp"
#include "hw/timing/engine.hpp"
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
///     experts:    max(n x active experts' FLOPs / F, E (1 - (1 - k/E)^n) x bytes of one / B)
///     attention:  sum over parts of max(pairs x FLOPs per pair / F, KV bytes read and written / B)
///     all-reduce: 2 x (2 (p-1)/p x n x hidden_size x 2 B / link + 2 (p-1) x latency)
///
/// with F and B the attained rates of all p GPUs together; F is that of each matrix's format, and
/// one GPU has no all-reduce. A part that adds `a` tokens after `P` has a x P + a (a+1)/2 causal
/// pairs, reads the KV of P + a tokens and writes that of a. Outside the layers are the head, for
/// the last token of each part only, and the iteration's fixed overhead. Left out: the look-up of
/// the embedding, norms, and in decode the write of one token's KV per request.
///
/// Attention by kind. A window layer counts, for each token, the pairs and the KV within the
/// window. A latent layer in decode multiplies queries with the latent rows (absorbed); in prefill
/// it expands them to keys and values first, those of past tokens too, where that is faster. A
/// layer with an indexer counts the pairs and KV of the top_k tokens, and the index of all tokens.
/// A state layer reads and writes the state of each request once an iteration, and computes 8
/// operations for each element of the state and token.
///
/// Parallel groups (/hardware/parallel). Requests are dealt in turn to one micro-batch for each
/// pipeline stage, and within it to the ranks of attention_dp; the largest micro-batch and its
/// largest rank set the pace. An iteration takes the time of the largest micro-batch through all
/// stages; in steady state each stage works on another micro-batch. A rank multiplies the matrices
/// of attention for its own tokens. Tokens go to experts in other groups by all-to-all if
/// attention_dp and expert are above 1, otherwise by the all-reduce. Routed tokens are spread
/// evenly.
///
/// Immutable once built, so threads may share one.
class RooflineTiming final : public TimingModel {
 public:
  /// Computes the decode times of batches of 1 to `max_batch` (>= 1). Both configs must be valid;
  /// check_fits checks that the model fits. The engine's host times replace the hardware's
  /// iteration overhead. Its factors apply to profiles only.
  RooflineTiming(const ModelConfig& model, const HardwareConfig& hardware, std::int64_t max_batch,
                 const std::optional<EngineConfig>& engine = {});

  /// One piece: time is affine in the context. 1 <= batch <= max_batch.
  [[nodiscard]] const std::vector<DecodePiece>& decode(std::int64_t batch) const override;

  [[nodiscard]] std::span<const Tokens> windows() const override { return windows_; }
  [[nodiscard]] std::span<const std::int64_t> window_slopes(std::int64_t batch) const override;

  [[nodiscard]] SimDuration decode_layer(std::int64_t batch, Tokens context) const override;

  /// The matrices work on all tokens together, their weights read once; attention is that of each
  /// part and that of the running requests. `total` is exactly layers x `layer` plus the work
  /// outside of layers. `layer` is the mean if layers differ.
  [[nodiscard]] PrefillTime iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                      Tokens context) const override;
  [[nodiscard]] PrefillTime iteration_of(std::span<const PrefillPart> parts,
                                         std::span<const Tokens> contexts) const override;

  /// Seconds of parts of one layer; `kind` is an index into layer_groups. First attention of one
  /// part of a prefill, then of `requests` running requests of one rank with equal contexts of
  /// `context` tokens in all, then routed experts.
  [[nodiscard]] double attention_of(std::size_t kind, const PrefillPart& part) const;
  [[nodiscard]] double decode_attention_of(std::size_t kind, double requests, double context) const;
  [[nodiscard]] double routed_experts_of(std::size_t kind, double tokens) const;

  [[nodiscard]] std::int64_t max_batch() const { return static_cast<std::int64_t>(decode_.size()); }

 private:
  struct DecodeBatch {
    std::vector<DecodePiece> pieces;
    std::vector<std::int64_t> window_slopes;
    /// Ticks of one layer without the attention to the context.
    std::int64_t layer_base = 0;
  };

  /// Tokens that go through a layer: of all ranks, and of the largest one.
  struct LayerTokens {
    double all = 0;
    double rank = 0;
  };

  /// One kind of layer: seconds per unit of work, all GPUs of a stage or a rank together.
  struct Layer {
    double count = 0;
    AttentionKind attention = AttentionKind::full;
    // Matrices that all tokens see.
    double linear_per_token = 0;
    double attention_linear_per_token = 0;
    double mlp_linear_per_token = 0;
    double weights = 0;
    // Routed experts: for each token, and for each expert that is read.
    double routed_per_token = 0;
    double expert_weights = 0;
    // Communication.
    double link_per_token = 0;
    double rank_link_per_token = 0;
    double link_fixed = 0;
    // Attention of one rank.
    double pair = 0;
    double kv_per_token = 0;
    double prefill_pair = 0;
    double expand_per_token = 0;
    double index_pair = 0;
    double index_per_token = 0;
    double state_per_token = 0;
    double state_per_request = 0;
    /// Index in windows_, or -1: all tokens are read.
    std::int64_t window = -1;
  };

  /// The same for models of dense layers with full attention on GPUs with tensor parallelism only.
  /// Most runs need this case, once for each prompt.
  struct DenseLayer {
    /// One more than the largest batch; 0 for other models.
    std::uint64_t batches = 0;
    double linear_per_token = 0;
    double weights = 0;
    double link_per_token = 0;
    double link_fixed = 0;
    double pair = 0;
    double kv_per_token = 0;
  };

  [[nodiscard, gnu::noinline]] PrefillTime layered_iteration(std::span<const PrefillPart> parts,
                                                             std::int64_t batch,
                                                             Tokens context) const;
  [[nodiscard]] Layer make_layer(const ModelConfig& model, const HardwareConfig& hardware,
                                 const LayerGroup& group);
  /// Seconds of one layer's matrices, experts and communication.
  [[nodiscard]] double dense_seconds(const Layer& layer, const LayerTokens& tokens) const;
  [[nodiscard]] double routed_seconds(const Layer& layer, double tokens) const;
  /// Host time of an iteration.
  [[nodiscard]] SimDuration host_time(std::int64_t requests) const {
    return request_seconds_ > 0
               ? iteration_overhead_ +
                     duration_from_seconds(static_cast<double>(requests) * request_seconds_)
               : iteration_overhead_;
  }
  /// Seconds of one layer's attention of one part.
  [[nodiscard]] double attention_seconds(const Layer& layer, const PrefillPart& part) const;
  /// Seconds of one layer's attention of running requests: `requests` of a rank, which read
  /// `context` tokens, and `within` each window.
  [[nodiscard]] double decode_seconds(const Layer& layer, double requests, double context,
                                      std::span<const double> within) const;
  /// Seconds of the head for `rows` rows of logits, and of sending activations between stages.
  [[nodiscard]] double head_seconds(double rows) const;
  [[nodiscard]] double send_seconds(double tokens) const;
  /// The mean of `seconds(layer)` over the layers.
  template <class Seconds>
  [[nodiscard]] double mean_layer(Seconds seconds) const;
  [[nodiscard]] PrefillTime iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                      Tokens context, std::span<const double> within) const;
  [[nodiscard]] SimDuration dealt_layer(std::span<const PrefillPart> parts, std::int64_t batch,
                                        double context, std::span<const double> within,
                                        double& rows, double& tokens) const;
  [[nodiscard]] const DecodeBatch& decode_batch(std::int64_t batch) const;

  std::int64_t layers_;
  std::int64_t stages_;
  std::int64_t ranks_;
  std::optional<ExpertsConfig> experts_;
  SimDuration iteration_overhead_;
  double request_seconds_;
  DenseLayer dense_;
  std::vector<Layer> kinds_;
  std::vector<Tokens> windows_;
  double head_seconds_per_row_;
  double head_weight_seconds_;
  double send_per_token_ = 0;
  double send_fixed_ = 0;
  SimDuration head_of_one_row_;
  std::vector<DecodeBatch> decode_;
};

}  // namespace kvtier
