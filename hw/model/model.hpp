#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/core/units.hpp"

/// Decoder-only transformers: their shape, and the bytes and floating-point operations that follow
/// from it.
namespace kvtier {

/// Upper ends of what a config may say; with them no product below leaves 64 bits.
struct ModelLimits {
  static constexpr double kLayers = 1000;
  static constexpr double kWidth = 1 << 20;
  static constexpr double kHeads = 4096;
  static constexpr double kHeadDim = 4096;
  static constexpr double kIntermediate = 1 << 22;
  static constexpr double kVocabulary = 1 << 26;
  static constexpr double kElementBytes = 8;
  static constexpr double kWindow = 1 << 24;
};

/// The architecture of one model. Sizes are numbers of elements unless the name says otherwise.
/// Shapes per layer (h = hidden_size, d = head_dim): Q is h x attention_heads*d, K and V are h x
/// kv_heads*d, the output projection is attention_heads*d x h, the MLP has three (gated) or two
/// matrices of h x intermediate_size. Norms, biases and learned positions are left out: under 1 %
/// of the weights.
struct ModelConfig {
  std::string name;
  /// Where the shape comes from: a paper's table or a published config file.
  std::string source;
  std::int64_t layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t attention_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t intermediate_size = 0;
  bool gated_mlp = false;
  std::int64_t vocabulary_size = 0;
  bool tied_embeddings = false;
  std::int64_t bytes_per_element = 2;
  std::int64_t kv_bytes_per_element = 2;
  Tokens context_window;

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

template <class V>
void describe(V& v, ModelConfig& c) {
  v.field("name", c.name, "The name in results and messages.", required());
  v.field("source", c.source, "Where the shape comes from.", required());
  v.field("layers", c.layers, "Transformer layers.", required(between(1, ModelLimits::kLayers)));
  v.field("hidden_size", c.hidden_size, "Width of the residual stream.",
          required(between(1, ModelLimits::kWidth)));
  v.field("attention_heads", c.attention_heads, "Query heads of a layer.",
          required(between(1, ModelLimits::kHeads)));
  v.field(
      "kv_heads", c.kv_heads,
      "Key and value heads of a layer; divides the query heads, equal to them without grouping.",
      required(between(1, ModelLimits::kHeads)));
  v.field("head_dim", c.head_dim, "Width of one head.",
          required(between(1, ModelLimits::kHeadDim)));
  v.field("intermediate_size", c.intermediate_size, "Width inside the MLP.",
          required(between(1, ModelLimits::kIntermediate)));
  v.field("gated_mlp", c.gated_mlp, "Three MLP matrices (SwiGLU and the like) rather than two.",
          required());
  v.field("vocabulary_size", c.vocabulary_size, "Rows of the embedding.",
          required(between(1, ModelLimits::kVocabulary)));
  v.field("tied_embeddings", c.tied_embeddings,
          "The embedding also serves as the head that gives the logits.", required());
  v.field("bytes_per_element", c.bytes_per_element, "Bytes of one weight.",
          between(1, ModelLimits::kElementBytes));
  v.field("kv_bytes_per_element", c.kv_bytes_per_element, "Bytes of one KV element.",
          between(1, ModelLimits::kElementBytes));
  v.field("context_window", c.context_window, "Longest context the model is made for.",
          required({.minimum = 0, .maximum = ModelLimits::kWindow, .minimum_excluded = true}));
}

/// Reports what no single key can show: query heads that the KV heads do not divide. `pointer` is
/// where the model stands in the config, "/model" in a run's config and "" in a file of its own.
void check_model(const ModelConfig& model, const std::string& pointer, Problems& problems);

/// KV of one token in one layer: key and value of each KV head.
[[nodiscard]] Bytes kv_bytes_per_token_layer(const ModelConfig& model);

/// KV of one token: 2 x layers x kv_heads x head_dim x bytes per KV element. LLaMA-13B: 819,200 B.
[[nodiscard]] Bytes kv_bytes_per_token(const ModelConfig& model);

/// KV of `tokens` tokens of one sequence.
[[nodiscard]] Bytes kv_bytes(const ModelConfig& model, Tokens tokens);

/// Weights of one layer, in elements.
[[nodiscard]] std::int64_t parameters_per_layer(const ModelConfig& model);

/// Weights of all layers, the embedding and (unless tied) the head, in elements.
[[nodiscard]] std::int64_t parameters(const ModelConfig& model);

[[nodiscard]] Bytes weight_bytes_per_layer(const ModelConfig& model);
[[nodiscard]] Bytes weight_bytes(const ModelConfig& model);

/// Weights of the head that gives the logits (the embedding's, where tied).
[[nodiscard]] Bytes lm_head_bytes(const ModelConfig& model);

/// Operations of the matrices of one layer for one token; a multiply and an add count as two.
/// Pensieve (arXiv 2312.05516) Table 1: 402.65 MFLOP for 6.7B, 629.15 for 13B.
[[nodiscard]] double linear_flops_per_token_layer(const ModelConfig& model);

/// Operations of one layer's attention for one query token and one token of its context: Q K^T and
/// the weighted sum of V. Pensieve Table 1, at 2,048 tokens of context: 33.55 MFLOP for 6.7B, 41.94
/// for 13B.
[[nodiscard]] double attention_flops_per_pair_layer(const ModelConfig& model);

/// One matrix as one GPU of a tensor-parallel group multiplies it: rows of k elements become rows
/// of n.
struct MatrixShape {
  std::string_view name;
  std::int64_t n;
  std::int64_t k;

  friend bool operator==(const MatrixShape&, const MatrixShape&) = default;
};

/// The matrices of one layer on one of `gpus` GPUs, in the order of the work: queries, keys and
/// values together, and the gate together with the MLP's first matrix, as engines fuse them. Heads
/// and widths are split as Megatron-LM does (arXiv 1909.08053, section 3); what does not divide is
/// rounded up, and a GPU has at least one KV head.
[[nodiscard]] std::vector<MatrixShape> layer_matrices(const ModelConfig& model, std::int64_t gpus);

/// The head that gives the logits, on one of `gpus` GPUs.
[[nodiscard]] MatrixShape head_matrix(const ModelConfig& model, std::int64_t gpus);

/// Heads of one GPU: of the queries, and of keys and values.
struct HeadCounts {
  std::int64_t attention;
  std::int64_t kv;
};
[[nodiscard]] HeadCounts heads_per_gpu(const ModelConfig& model, std::int64_t gpus);

/// Operations of the head for one row of logits.
[[nodiscard]] double lm_head_flops_per_token(const ModelConfig& model);

/// True for the config.json of a Hugging Face model, as opposed to a model file of this program.
[[nodiscard]] bool looks_like_hugging_face(const Json& json);

/// Reads a Hugging Face config.json of type falcon, gpt2, gpt_neox, llama, mistral or opt. Keys
/// that say nothing about sizes are ignored, and keys that transformers may leave out take its
/// defaults; a sliding window is ignored (all tokens are kept). The KV elements have the size of
/// the weights. Throws ConfigError with every missing or ill-typed key, its lines starting with
/// `origin` (the file).
[[nodiscard]] ModelConfig model_from_hugging_face(const Json& json, const std::string& origin);

}  // namespace kvtier
