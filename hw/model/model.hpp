#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/core/units.hpp"

/// Decoder-only transformers: their shape, and the bytes and floating-point operations that follow
/// from it.
namespace kvtier {

/// Upper limits of config keys. Within them, no product below overflows 64 bits.
struct ModelLimits {
  static constexpr double kLayers = 1000;
  static constexpr double kWidth = 1 << 20;
  static constexpr double kHeads = 4096;
  static constexpr double kHeadDim = 4096;
  static constexpr double kIntermediate = 1 << 22;
  static constexpr double kVocabulary = 1 << 26;
  static constexpr double kElementBytes = 8;
  static constexpr double kWindow = 1 << 24;
  static constexpr double kExperts = 4096;
  static constexpr double kKvBytes = 1 << 30;
  static constexpr double kParameters = 1e15;
};

/// How a layer reads its context.
enum class AttentionKind {
  full,    // key and value of every token
  window,  // the same, of the last `window` tokens only
  latent,  // one compressed row of every token, for all heads (MLA, arXiv 2405.04434)
  state,   // a state of fixed size, no tokens (linear attention)
};
constexpr auto enum_names(AttentionKind) {
  return std::array{
      std::pair{"full", AttentionKind::full}, std::pair{"window", AttentionKind::window},
      std::pair{"latent", AttentionKind::latent}, std::pair{"state", AttentionKind::state}};
}

/// A format of numbers. The sizes include the scales of blocks.
enum class NumberFormat { fp32, bf16, fp8, int8, nvfp4, mxfp4, int4 };
constexpr auto enum_names(NumberFormat) {
  return std::array{
      std::pair{"fp32", NumberFormat::fp32},   std::pair{"bf16", NumberFormat::bf16},
      std::pair{"fp8", NumberFormat::fp8},     std::pair{"int8", NumberFormat::int8},
      std::pair{"nvfp4", NumberFormat::nvfp4}, std::pair{"mxfp4", NumberFormat::mxfp4},
      std::pair{"int4", NumberFormat::int4}};
}

/// Multi-head latent attention of DeepSeek-V2. A query or key head has head_dim elements, of which
/// rope_dim carry the position; a token's KV is one row of rank + rope_dim elements.
struct LatentConfig {
  std::int64_t rank = 0;
  std::int64_t rope_dim = 0;
  /// 0: queries are not compressed.
  std::int64_t query_rank = 0;
  std::int64_t value_dim = 0;

  friend bool operator==(const LatentConfig&, const LatentConfig&) = default;
};

template <class V>
void describe(V& v, LatentConfig& c) {
  v.field("rank", c.rank, "Width of the compressed keys and values (kv_lora_rank).",
          required(between(1, ModelLimits::kWidth)));
  v.field("rope_dim", c.rope_dim,
          "Elements of a head that carry the position (qk_rope_head_dim); the rest of head_dim "
          "does not.",
          required(between(0, ModelLimits::kHeadDim)));
  v.field("query_rank", c.query_rank,
          "Width of the compressed queries (q_lora_rank); 0: not compressed.",
          between(0, ModelLimits::kWidth));
  v.field("value_dim", c.value_dim, "Width of one value head (v_head_dim).",
          required(between(1, ModelLimits::kHeadDim)));
}

/// Linear attention: gated delta networks and their like. Each value head has a state of key_dim x
/// value_dim elements.
struct StateConfig {
  std::int64_t key_heads = 0;
  std::int64_t value_heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  /// Tokens that the convolution before it sees; 0: none.
  std::int64_t convolution = 0;
  std::int64_t bytes_per_element = 4;

  friend bool operator==(const StateConfig&, const StateConfig&) = default;
};

template <class V>
void describe(V& v, StateConfig& c) {
  v.field("key_heads", c.key_heads, "Query and key heads.",
          required(between(1, ModelLimits::kHeads)));
  v.field("value_heads", c.value_heads, "Value heads, each with a state.",
          required(between(1, ModelLimits::kHeads)));
  v.field("key_dim", c.key_dim, "Width of a key head.",
          required(between(1, ModelLimits::kHeadDim)));
  v.field("value_dim", c.value_dim, "Width of a value head.",
          required(between(1, ModelLimits::kHeadDim)));
  v.field("convolution", c.convolution, "Tokens that the short convolution sees; 0: none.",
          between(0, 64));
  v.field("bytes_per_element", c.bytes_per_element, "Bytes of one element of the state.",
          between(1, ModelLimits::kElementBytes));
}

/// Sparse attention of DeepSeek-V3.2 (DSA): an indexer reads a small key of every token, and the
/// attention reads the KV of the `top_k` tokens with the highest scores.
struct SparseConfig {
  Tokens top_k;
  std::int64_t index_heads = 0;
  std::int64_t index_dim = 0;

  friend bool operator==(const SparseConfig&, const SparseConfig&) = default;
};

template <class V>
void describe(V& v, SparseConfig& c) {
  v.field("top_k", c.top_k, "Tokens that the attention reads.",
          required({.minimum = 1, .maximum = ModelLimits::kWindow}));
  v.field("index_heads", c.index_heads, "Query heads of the indexer.",
          required(between(1, ModelLimits::kHeads)));
  v.field("index_dim", c.index_dim,
          "Width of an indexer head. Each token stores one index key: index_dim bytes and 4 bytes "
          "for every 128 of them.",
          required(between(1, ModelLimits::kHeadDim)));
}

/// Mixture of experts: a layer with experts has `shared` experts that see every token and `routed`
/// ones, of which each token sees `active`.
struct ExpertsConfig {
  std::int64_t routed = 0;
  std::int64_t active = 0;
  std::int64_t shared = 0;
  std::int64_t intermediate_size = 0;
  /// Width of one shared expert; not set: as a routed one.
  std::optional<std::int64_t> shared_intermediate_size;
  std::int64_t dense_layers = 0;
  std::int64_t every = 1;

  friend bool operator==(const ExpertsConfig&, const ExpertsConfig&) = default;
};

template <class V>
void describe(V& v, ExpertsConfig& c) {
  v.field("routed", c.routed, "Experts that the router chooses from.",
          required(between(1, ModelLimits::kExperts)));
  v.field("active", c.active, "Experts that the router chooses for a token.",
          required(between(1, ModelLimits::kExperts)));
  v.field("shared", c.shared, "Experts that see every token.", between(0, ModelLimits::kExperts));
  v.field("intermediate_size", c.intermediate_size, "Width inside one expert.",
          required(between(1, ModelLimits::kIntermediate)));
  v.field("shared_intermediate_size", c.shared_intermediate_size,
          "Width inside one shared expert; \"same\": that of a routed one.",
          or_word("same", between(1, ModelLimits::kIntermediate)));
  v.field("dense_layers", c.dense_layers,
          "Layers at the beginning that have an MLP of /model/intermediate_size instead.",
          between(0, ModelLimits::kLayers));
  v.field("every", c.every,
          "After the dense layers, the last layer of each group of this size has experts; the "
          "others have an MLP.",
          between(1, ModelLimits::kLayers));
}

/// Formats that differ from bytes_per_element and kv_bytes_per_element. Embedding, head and routers
/// always have bytes_per_element.
struct PrecisionConfig {
  std::optional<NumberFormat> attention;
  std::optional<NumberFormat> mlp;
  std::optional<NumberFormat> experts;
  std::optional<NumberFormat> kv;
  std::optional<NumberFormat> compute;

  friend bool operator==(const PrecisionConfig&, const PrecisionConfig&) = default;
};

template <class V>
void describe(V& v, PrecisionConfig& c) {
  v.field("attention", c.attention,
          "Format of the matrices of attention, with the scales of its blocks; \"none\": "
          "/model/bytes_per_element.");
  v.field("mlp", c.mlp,
          "Format of dense MLPs and shared experts; \"none\": /model/bytes_per_element.");
  v.field("experts", c.experts, "Format of routed experts; \"none\": /model/bytes_per_element.");
  v.field("kv", c.kv, "Format of KV; \"none\": /model/kv_bytes_per_element.");
  v.field("compute", c.compute,
          "Format in which quantized matrices multiply: \"auto\": fp8 and int8 in 8 bits, nvfp4 in "
          "4 bits, and mxfp4 and int4, whose activations are not quantized, in 16 bits.",
          or_word("auto"));
}

/// The architecture of one model. Sizes are numbers of elements unless the name says otherwise.
/// Shapes per layer (h = hidden_size, d = head_dim): Q is h x attention_heads*d, K and V are h x
/// kv_heads*d, the output projection is attention_heads*d x h, the MLP has three (gated) or two
/// matrices of h x intermediate_size. Norms, biases and learned positions are left out: under 1 %
/// of the weights. Layers of other kinds: layer_parameters.
struct ModelConfig {
  std::string name;
  /// Source of the shape: a paper's table or a published config file.
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
  /// The attention of the first layers, repeated for later layers.
  std::vector<AttentionKind> attention{AttentionKind::full};
  std::optional<Tokens> window;
  bool output_gate = false;
  bool norm_over_heads = false;
  std::optional<LatentConfig> latent;
  std::optional<StateConfig> state;
  std::optional<SparseConfig> sparse;
  std::optional<ExpertsConfig> experts;
  PrecisionConfig precision;
  std::optional<Tokens> resume_every;
  std::optional<Bytes> kv_bytes_per_token;
  std::optional<std::int64_t> active_parameters;
  std::optional<std::int64_t> total_parameters;

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

template <class V>
void describe(V& v, ModelConfig& c) {
  static const ModelConfig usual;
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
  v.rare("attention", c.attention, usual.attention,
         "Attention of the first layers, repeated for the layers behind: full (all tokens), window "
         "(the last /model/window ones), latent (one compressed row a token, /model/latent), state "
         "(a state of fixed size, /model/state).");
  v.rare("window", c.window, usual.window, "Tokens that a window layer reads.",
         Limits{.minimum = 1, .maximum = ModelLimits::kWindow});
  v.rare("output_gate", c.output_gate, usual.output_gate,
         "Full and window layers gate the output of attention: the query matrix is twice as wide.");
  v.rare(
      "norm_over_heads", c.norm_over_heads, usual.norm_over_heads,
      "Queries and keys are normalised over all heads, so that tensor-parallel GPUs add up their "
      "squares (MiniMax-M2).");
  v.rare("latent", c.latent, usual.latent, "Shape of latent layers.");
  v.rare("state", c.state, usual.state, "Shape of state layers.");
  v.rare("sparse", c.sparse, usual.sparse,
         "Full and latent layers read only the tokens that an indexer selects.");
  v.rare("experts", c.experts, usual.experts, "Mixture of experts.");
  v.rare("precision", c.precision, usual.precision, "Formats of quantized weights and KV.");
  v.rare("resume_every", c.resume_every, usual.resume_every,
         "Distance of the positions at which a stored context can be resumed. There, window layers "
         "keep the KV of their window and state layers their state. \"none\": window layers keep "
         "all tokens, so that a context can be resumed anywhere; a model with state layers then "
         "stores nothing.",
         Limits{.minimum = 1, .maximum = ModelLimits::kWindow});
  v.rare("kv_bytes_per_token", c.kv_bytes_per_token, usual.kv_bytes_per_token,
         "KV of one token in all layers, given by hand; \"auto\": follows from the shape.",
         or_word("auto", between(1, ModelLimits::kKvBytes)));
  v.rare("active_parameters", c.active_parameters, usual.active_parameters,
         "Weights that one token uses, embedding and head included, given by hand with "
         "total_parameters; \"auto\": follows from the shape.",
         or_word("auto", between(1, ModelLimits::kParameters)));
  v.rare("total_parameters", c.total_parameters, usual.total_parameters,
         "All weights, given by hand; \"auto\": follows from the shape.",
         or_word("auto", between(1, ModelLimits::kParameters)));
}

/// Whether all layers are alike, with full attention and one MLP, in whole bytes an element, and no
/// size is given by hand. The built-in calibration and real devices run only such models.
[[nodiscard]] bool is_dense(const ModelConfig& model);

/// Layers of one kind: how many, their attention, and whether they have experts.
struct LayerGroup {
  std::int64_t count = 0;
  AttentionKind attention = AttentionKind::full;
  bool has_experts = false;

  friend bool operator==(const LayerGroup&, const LayerGroup&) = default;
};
/// In the order of the first layer of each. A model whose parameters are given by hand has layers
/// that differ in their attention only.
[[nodiscard]] std::vector<LayerGroup> layer_groups(const ModelConfig& model);
/// The kind of layer `layer`, from 0; `count` is 1.
[[nodiscard]] LayerGroup layer_kind(const ModelConfig& model, std::int64_t layer);

/// Reports problems that no single key shows: query heads that the KV heads do not divide, kinds of
/// layers without their shape, and sizes beyond 64 bits. `pointer` is where the model stands in the
/// config, "/model" in a run's config and "" in a file of its own.
void check_model(const ModelConfig& model, const std::string& pointer, Problems& problems);

/// Bytes of elements in a format, with the scales of their blocks, rounded up. fp8: 4 bytes for
/// each 128 x 128 block (weights of DeepSeek-V3). nvfp4: 1 byte for 16 elements. mxfp4: 1 byte
/// for 32. int4: 2.5 bytes (a 16-bit scale and a 4-bit zero) for 128, as AWQ and GPTQ have.
[[nodiscard]] Bytes format_bytes(NumberFormat format, std::int64_t elements);

/// KV that one token adds to a stored context in layer `layer`, from 0. A full layer stores key and
/// value of each KV head, a latent layer one row. With resume_every, a window layer stores the
/// share window / resume_every of that, and a state layer state / resume_every; without, a window
/// layer stores all and a state layer nothing.
[[nodiscard]] Bytes kv_bytes_per_token_layer(const ModelConfig& model, std::int64_t layer);
/// The same of the layer with the most.
[[nodiscard]] Bytes kv_bytes_per_token_layer(const ModelConfig& model);

/// KV that one token adds to a stored context: the sum over layers. Dense models: 2 x layers x
/// kv_heads x head_dim x bytes per KV element. LLaMA-13B: 819,200 B.
[[nodiscard]] Bytes kv_bytes_per_token(const ModelConfig& model);

/// KV of `tokens` stored tokens of one sequence.
[[nodiscard]] Bytes kv_bytes(const ModelConfig& model, Tokens tokens);

/// Memory that each running request needs beside the KV of its tokens: states and, with
/// resume_every, the windows. 0 for dense models.
[[nodiscard]] Bytes kv_bytes_per_request(const ModelConfig& model);

/// State of one request in one state layer, with the tokens that its convolution sees.
[[nodiscard]] Bytes state_bytes(const StateConfig& state);

/// KV that a token's attention reads in layer `layer` for each token that it reads, without the
/// index. 0 in a state layer.
[[nodiscard]] Bytes kv_bytes_read_per_token_layer(const ModelConfig& model, std::int64_t layer);
/// Bytes of one token's index key in one layer.
[[nodiscard]] Bytes index_bytes_per_token(const SparseConfig& sparse);

/// Weights of one layer, in elements. Full and window layers: as ModelConfig says, and twice the
/// queries with an output gate. Latent layers: h x (query_rank + rank + rope_dim), query_rank x
/// heads*d, rank x heads*(d - rope_dim + value_dim), heads*value_dim x h. State layers: h x
/// (2 key_heads*key_dim + 3 value_heads*value_dim), the third for the gate and the output.
struct LayerParameters {
  /// With the indexer.
  std::int64_t attention = 0;
  /// The MLP, or the shared experts.
  std::int64_t mlp = 0;
  std::int64_t router = 0;
  /// All routed experts.
  std::int64_t routed = 0;

  [[nodiscard]] std::int64_t sum() const { return attention + mlp + router + routed; }
};
[[nodiscard]] LayerParameters layer_parameters(const ModelConfig& model, const LayerGroup& kind);

/// Weights of one layer, in elements.
[[nodiscard]] std::int64_t parameters_per_layer(const ModelConfig& model, std::int64_t layer = 0);

/// Weights of all layers, the embedding and (unless tied) the head, in elements.
[[nodiscard]] std::int64_t parameters(const ModelConfig& model);

/// Weights that one token uses: all but the inactive routed experts.
[[nodiscard]] std::int64_t active_parameters(const ModelConfig& model);

/// Routed experts that at least one of `tokens` tokens sees, if each token chooses k of the E at
/// random. Their number is E x (1 - (1 - k/E)^tokens).
[[nodiscard]] double touched_experts(const ExpertsConfig& experts, double tokens);

/// Bytes of weights in a format; without one, in bytes_per_element.
[[nodiscard]] Bytes weight_bytes_in(const ModelConfig& model,
                                    const std::optional<NumberFormat>& format,
                                    std::int64_t elements);
[[nodiscard]] Bytes weight_bytes_per_layer(const ModelConfig& model, const LayerGroup& kind);
[[nodiscard]] Bytes weight_bytes_per_layer(const ModelConfig& model, std::int64_t layer = 0);
[[nodiscard]] Bytes weight_bytes(const ModelConfig& model);

/// Weights of the head that gives the logits (the embedding's, where tied).
[[nodiscard]] Bytes lm_head_bytes(const ModelConfig& model);

/// Operations of the matrices of one layer of a dense model for one token; a multiply and an add
/// count as two. Pensieve (arXiv 2312.05516) Table 1: 402.65 MFLOP for 6.7B, 629.15 for 13B.
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

/// The matrices of one layer of a dense model on one of `gpus` GPUs, in the order of the work:
/// queries, keys and values together, and the gate together with the MLP's first matrix, as engines
/// fuse them. Heads and widths are split as Megatron-LM does (arXiv 1909.08053, section 3); what
/// does not divide is rounded up, and a GPU has at least one KV head.
[[nodiscard]] std::vector<MatrixShape> layer_matrices(const ModelConfig& model, std::int64_t gpus);

/// The same of one kind of layer of any model whose parameters are not given by hand, with
/// attention on `rank_gpus` GPUs and MLPs on `stage_gpus`. Names of attention's matrices begin with
/// "qkv" or "attention". Layers with experts have a router and, in place of the MLP, the shared
/// experts as one ("shared_up", "shared_down"); routed experts are left out.
[[nodiscard]] std::vector<MatrixShape> layer_matrices(const ModelConfig& model,
                                                      const LayerGroup& kind,
                                                      std::int64_t rank_gpus,
                                                      std::int64_t stage_gpus);

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

/// Reads a Hugging Face config.json; the error for an unknown type lists those that it knows. Keys
/// without influence on sizes are ignored. Keys that transformers may omit take its defaults.
/// `quantization_config` gives the formats of weights (fp8, awq, gptq, modelopt, mxfp4,
/// compressed-tensors); KV has the size of the unquantized weights unless it says otherwise. The
/// window of Mistral and Mixtral is ignored (all tokens are kept), chunks of attention are taken as
/// windows, and layers for drafts (multi-token prediction), vision and audio are left out. Throws
/// ConfigError with every missing or ill-typed key, its lines starting with `origin` (the file).
[[nodiscard]] ModelConfig model_from_hugging_face(const Json& json, const std::string& origin);

}  // namespace kvtier
