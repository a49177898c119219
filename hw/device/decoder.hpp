#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "hw/device/device.hpp"
#include "sim/core/key_positions.hpp"

/// A decoder-only transformer with random weights on a device. It does the work of serving, but its
/// output has no meaning. One layer is norm, QKV matrix, append to the KV, paged attention, output
/// matrix, residual sum, norm, MLP, residual sum. After the last layer come norm, logits and the
/// most likely token. Norms have no weights, matrices no bias.
namespace kvtier {

struct DecoderShape {
  std::int64_t layers = 1;
  std::int64_t hidden = 16;
  /// As PagedAttentionShape: one to 16 query heads share a KV head, 16 divides the width.
  std::int64_t query_heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 16;
  std::int64_t intermediate = 16;
  /// silu(gate) x up, or gelu.
  bool gated = true;
  std::int64_t vocabulary = 16;
  double rope_base = 10000;
};

/// The shape of a described model (hw/model/model.hpp).
template <class Model>
[[nodiscard]] DecoderShape decoder_shape(const Model& model) {
  return {.layers = model.layers,
          .hidden = model.hidden_size,
          .query_heads = model.attention_heads,
          .kv_heads = model.kv_heads,
          .head_dim = model.head_dim,
          .intermediate = model.intermediate_size,
          .gated = model.gated_mlp,
          .vocabulary = model.vocabulary_size};
}

/// Bytes of K and V of one slot in one layer.
[[nodiscard]] Bytes kv_row_bytes(const DecoderShape& shape, Bytes element);
/// 2 x layers x kv_heads x head_dim x element.
[[nodiscard]] Bytes kv_bytes_per_token(const DecoderShape& shape, Bytes element);

/// The KV of all layers in one buffer, [layers][slots][K, V][kv_heads][head_dim]: a slot is one
/// contiguous row in each layer, and slots that follow each other are contiguous rows, so that a
/// page is copied in one piece for each layer.
class KvPool {
 public:
  KvPool(Device& device, const DecoderShape& shape, std::int64_t slots);

  [[nodiscard]] std::int64_t slots() const { return slots_; }
  [[nodiscard]] Bytes row_bytes() const { return row_; }
  [[nodiscard]] Bytes layer_bytes() const { return slots_ * row_; }
  [[nodiscard]] std::byte* layer(std::int64_t layer) const {
    return memory_.data() + (layer * layer_bytes()).value;
  }
  [[nodiscard]] std::byte* row(std::int64_t layer, std::int64_t slot) const {
    return this->layer(layer) + (slot * row_).value;
  }

 private:
  std::int64_t slots_;
  Bytes row_;
  Buffer memory_;
};

/// New tokens of several requests: the last tokens of their contexts. A request may have none.
/// Contexts may share slots, and may end among new tokens of another request, because all new KV of
/// a layer is stored before it is read. Tokens that a cache dropped at the start of a context are
/// therefore recomputed as a separate request (Pensieve).
struct DecoderBatch {
  /// All requests' new tokens, one after another; request r has query_begin[r] .. query_begin[r+1].
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> query_begin{0};
  /// The slots of all contexts, including those of new tokens; request r has context_begin[r] ..
  /// context_begin[r+1], in order of position.
  std::vector<std::int32_t> slots;
  std::vector<std::int64_t> context_begin{0};

  [[nodiscard]] std::int64_t requests() const {
    return static_cast<std::int64_t>(query_begin.size()) - 1;
  }
  /// Whether each request has one new token.
  [[nodiscard]] bool decodes() const {
    for (std::size_t r = 1; r < query_begin.size(); ++r) {
      if (query_begin[r] != static_cast<std::int64_t>(r)) {
        return false;
      }
    }
    return requests() > 0;
  }
  /// Adds a request whose context has these slots.
  void add(std::span<const std::int32_t> new_tokens, std::span<const std::int32_t> context);
};

/// Sizes that a decoder allocates for: requests, new tokens and contexts of one batch, and the
/// longest context of one request.
struct DecoderLimits {
  std::int64_t requests = 1;
  std::int64_t tokens = 1;
  std::int64_t context = 1;
  std::int64_t longest_context = 1;
};

/// Matrices, row-major, [outputs][inputs]. The QKV matrix holds queries, then keys, then values.
/// `up` of a gated MLP holds the gates, then the values that they gate.
struct DecoderWeights {
  struct Layer {
    Buffer qkv;
    Buffer output;
    Buffer up;
    Buffer down;
  };
  /// [vocabulary][hidden], as is the head.
  Buffer embedding;
  std::vector<Layer> layers;
  Buffer head;
};

/// A decoder queues its work on the caller's stream. It takes one batch at a time, and all its
/// calls use the same stream. Weights are uniform with a variance of 1 / inputs, so a matrix keeps
/// a mean square of 1. The two matrices of a layer that feed the residual sum have 1 / (2 x layers)
/// of that variance. Activations therefore stay near 1 at any depth.
class Decoder {
 public:
  /// Throws DeviceError for heads that the kernels do not take, and when memory is short.
  Decoder(Device& device, const DecoderShape& shape, KeyPositions positions,
          const DecoderLimits& limits, std::uint64_t seed);

  /// Takes the next batch and looks up its tokens' embeddings. Throws DeviceError if it is larger
  /// than the limits. `batch` is read before the call returns. The call may wait for the upload of
  /// the previous batch, but not for its layers.
  void begin(const DecoderBatch& batch, Stream& stream);
  /// Runs a layer on its KV in `kv`, with rows as in KvPool::layer: writes the KV of new tokens,
  /// reads the KV of contexts. Before the call, a caller makes the stream wait for a load. After
  /// the call, it records an event for a save.
  void forward_layer(std::int64_t layer, std::byte* kv, Stream& stream);
  /// Logits and the most likely next token of each request that has new tokens.
  void finish(Stream& stream);

  struct Hooks {
    std::function<void(std::int64_t layer)> before_layer;
    std::function<void(std::int64_t layer)> after_layer;
  };
  /// Runs all layers. A hook is called when the work before it is queued, not done. A device with
  /// graphs captures a decode step of as many requests in the same pool when it runs for the second
  /// time, and later ones are one launch.
  void forward(const DecoderBatch& batch, const KvPool& pool, Stream& stream,
               const Hooks& hooks = {});

  /// Outputs in device memory. Row i belongs to the i-th request that has new tokens.
  [[nodiscard]] std::int64_t output_rows() const { return output_rows_; }
  [[nodiscard]] const std::byte* logits() const { return logits_.data(); }
  [[nodiscard]] const std::int32_t* next_tokens() const { return next_tokens_.as<std::int32_t>(); }

  [[nodiscard]] const DecoderShape& shape() const { return shape_; }
  [[nodiscard]] const DecoderLimits& limits() const { return limits_; }
  [[nodiscard]] const DecoderWeights& weights() const { return weights_; }
  [[nodiscard]] Device& device() const { return device_; }
  /// The attention that the last call of forward_layer queued, until the next one.
  [[nodiscard]] const AttentionWork& attention() const { return attention_; }

 private:
  [[nodiscard]] Buffer elements(std::int64_t count);
  [[nodiscard]] Buffer random_matrix(std::int64_t outputs, std::int64_t inputs, double variance,
                                     std::uint64_t seed, std::string_view name, Stream& stream);
  void multiply(const Buffer& input, const Buffer& weights, const Buffer& output,
                std::int64_t outputs, std::int64_t inputs, Stream& stream);
  /// Copies the numbers of a batch to the device, and plans its attention.
  void upload(const DecoderBatch& batch, Stream& stream);
  /// Looks up the embeddings.
  void embed(Stream& stream);
  void apply(RowFunction function, const Buffer& input, const Buffer& output, std::int64_t width,
             Stream& stream);
  void add_to_hidden(Stream& stream);

  Device& device_;
  DecoderShape shape_;
  KeyPositions positions_;
  DecoderLimits limits_;
  Bytes element_;
  std::int64_t qkv_width_;

  DecoderWeights weights_;

  Buffer hidden_;
  Buffer normed_;
  Buffer qkv_;
  Buffer attended_;
  Buffer projected_;
  Buffer up_;
  Buffer active_;
  Buffer logits_;
  Buffer next_tokens_;

  /// The batch's lists of numbers, on the host and on the device.
  Buffer staging_;
  Buffer numbers_;
  std::unique_ptr<Event> uploaded_;
  std::int64_t tokens_ = 0;
  std::int64_t output_rows_ = 0;
  const std::int32_t* token_ids_ = nullptr;
  const std::int32_t* new_slots_ = nullptr;
  const std::int32_t* new_positions_ = nullptr;
  const std::int32_t* last_rows_ = nullptr;
  AttentionWork attention_;
  std::unique_ptr<AttentionPlan> plan_;
  std::unique_ptr<AttentionPlan> decode_plan_;

  /// A decode step of a number of requests in a pool.
  struct DecodeStep {
    bool has_run = false;
    std::unique_ptr<Graph> graph;
  };
  /// By requests, and the slots and address of the pool.
  std::map<std::tuple<std::int64_t, std::int64_t, const std::byte*>, DecodeStep> decode_steps_;
};

/// For each layer, the share of causal attention scores below 1 % of the largest score of their
/// row, over the batch's new tokens. CaR sets its compression by these shares. Runs the batch.
/// Throws DeviceError if the decoder's device is not the host.
[[nodiscard]] std::vector<double> measure_score_sparsity(Decoder& decoder,
                                                         const DecoderBatch& batch,
                                                         const KvPool& pool, Stream& stream);

}  // namespace kvtier
