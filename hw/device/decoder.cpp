#include "hw/device/decoder.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

/// Places arrays one after another in host memory, and returns their addresses on the device.
class Packer {
 public:
  Packer(const Buffer& host, const Buffer& device) : host_(host), device_(device) {}
  template <class T>
  const T* put(const std::vector<T>& values) {
    const std::int64_t at = used_.value;
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
    std::copy_n(reinterpret_cast<const std::byte*>(values.data()), bytes, host_.data() + at);
    used_ += Bytes(bytes);
    return reinterpret_cast<const T*>(device_.data() + at);
  }
  [[nodiscard]] Bytes used() const { return used_; }

 private:
  const Buffer& host_;
  const Buffer& device_;
  Bytes used_;
};

}  // namespace

Bytes kv_row_bytes(const DecoderShape& shape, Bytes element) {
  return 2 * shape.kv_heads * shape.head_dim * element;
}

Bytes kv_bytes_per_token(const DecoderShape& shape, Bytes element) {
  return shape.layers * kv_row_bytes(shape, element);
}

KvPool::KvPool(Device& device, const DecoderShape& shape, std::int64_t slots)
    : slots_(slots),
      row_(kv_row_bytes(shape, device.info().element)),
      memory_(device, MemoryKind::device,
              slots * kv_bytes_per_token(shape, device.info().element)) {}

void DecoderBatch::add(std::span<const std::int32_t> new_tokens,
                       std::span<const std::int32_t> context) {
  tokens.insert(tokens.end(), new_tokens.begin(), new_tokens.end());
  query_begin.push_back(static_cast<std::int64_t>(tokens.size()));
  slots.insert(slots.end(), context.begin(), context.end());
  context_begin.push_back(static_cast<std::int64_t>(slots.size()));
}

Decoder::Decoder(Device& device, const DecoderShape& shape, KeyPositions positions,
                 const DecoderLimits& limits, std::uint64_t seed)
    : device_(device),
      shape_(shape),
      positions_(positions),
      limits_(limits),
      element_(device.info().element),
      qkv_width_((shape.query_heads + 2 * shape.kv_heads) * shape.head_dim) {
  const std::int64_t query_width = shape.query_heads * shape.head_dim;
  attention_.shape = {.query_heads = shape.query_heads,
                      .kv_heads = shape.kv_heads,
                      .head_dim = shape.head_dim,
                      .query_stride = qkv_width_,
                      .kv_stride = 2 * shape.kv_heads * shape.head_dim};
  attention_.rope_base = positions == KeyPositions::decoupled ? shape.rope_base : 0;
  if (!kernels::is_valid(attention_.shape)) {
    throw DeviceError(fmt::format(
        "decoder: {} query heads on {} KV heads of width {} are not what the kernels take",
        shape.query_heads, shape.kv_heads, shape.head_dim));
  }
  const auto variance = [](std::int64_t inputs) { return 1 / static_cast<double>(inputs); };
  const double residual = 1 / (2 * static_cast<double>(shape.layers));
  const std::unique_ptr<Stream> stream = device.make_stream();
  weights_.embedding = random_matrix(shape.vocabulary, shape.hidden, 1, seed, "embedding", *stream);
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    const auto matrix = [&](std::string_view name, std::int64_t outputs, std::int64_t inputs,
                            double factor) {
      return random_matrix(outputs, inputs, factor * variance(inputs), seed,
                           fmt::format("{}/{}", i, name), *stream);
    };
    weights_.layers.push_back(
        {.qkv = matrix("qkv", qkv_width_, shape.hidden, 1),
         .output = matrix("output", shape.hidden, query_width, residual),
         .up = matrix("up", (shape.gated ? 2 : 1) * shape.intermediate, shape.hidden, 1),
         .down = matrix("down", shape.hidden, shape.intermediate, residual)});
  }
  weights_.head =
      random_matrix(shape.vocabulary, shape.hidden, variance(shape.hidden), seed, "head", *stream);

  hidden_ = elements(limits.tokens * shape.hidden);
  normed_ = elements(std::max(limits.tokens, limits.requests) * shape.hidden);
  qkv_ = elements(limits.tokens * qkv_width_);
  attended_ = elements(limits.tokens * query_width);
  projected_ = elements(std::max(limits.tokens, limits.requests) * shape.hidden);
  up_ = elements(limits.tokens * (shape.gated ? 2 : 1) * shape.intermediate);
  active_ = elements(limits.tokens * shape.intermediate);
  logits_ = elements(limits.requests * shape.vocabulary);
  constexpr auto kLong = static_cast<std::int64_t>(sizeof(std::int64_t));
  constexpr auto kShort = static_cast<std::int64_t>(sizeof(std::int32_t));
  next_tokens_ = Buffer(device, MemoryKind::device, Bytes(limits.requests * kShort));
  const Bytes numbers(2 * (limits.requests + 1) * kLong +
                      (limits.context + 3 * limits.tokens + limits.requests) * kShort);
  staging_ = Buffer(device, MemoryKind::pinned, numbers);
  numbers_ = Buffer(device, MemoryKind::device, numbers);
  uploaded_ = device.make_event();
  // The first plan of decode steps is of the largest batch.
  std::vector<std::int64_t> numbers_to_limit(static_cast<std::size_t>(limits.requests) + 1);
  std::iota(numbers_to_limit.begin(), numbers_to_limit.end(), 0);
  device.plan_attention(decode_plan_, AttentionLibrary::own, attention_.shape, numbers_to_limit,
                        numbers_to_limit, *stream);
  // A rotation of no rows makes the device build its table of angles now, not when a context grows.
  device.rope({.rows = {.from = qkv_.data(), .to = qkv_.data(), .row = qkv_width_ * element_},
               .heads = shape.query_heads + shape.kv_heads,
               .head_dim = shape.head_dim,
               .base = shape.rope_base,
               .first_position = limits.longest_context},
              *stream);
  stream->synchronize();
}

Buffer Decoder::elements(std::int64_t count) {
  return {device_, MemoryKind::device, count * element_};
}

Buffer Decoder::random_matrix(std::int64_t outputs, std::int64_t inputs, double variance,
                              std::uint64_t seed, std::string_view name, Stream& stream) {
  // A number that is uniform in [-a, a) has a variance of a^2 / 3.
  const auto a = static_cast<float>(std::sqrt(3 * variance));
  const std::int64_t count = outputs * inputs;
  Buffer matrix = elements(count);
  device_.fill_uniform(matrix.data(), count, a,
                       stream_seed(seed, fmt::format("hw/device/decoder/{}", name)), stream);
  // Allocation of the next matrix may fail and destroy this one, so its work has to end first.
  stream.synchronize();
  return matrix;
}

void Decoder::upload(const DecoderBatch& batch, Stream& stream) {
  const auto tokens = static_cast<std::int64_t>(batch.tokens.size());
  const auto context = static_cast<std::int64_t>(batch.slots.size());
  std::int64_t longest = 0;
  for (std::size_t r = 0; r + 1 < batch.context_begin.size(); ++r) {
    longest = std::max(longest, batch.context_begin[r + 1] - batch.context_begin[r]);
  }
  if (batch.requests() > limits_.requests || tokens > limits_.tokens || context > limits_.context ||
      longest > limits_.longest_context) {
    throw DeviceError(
        fmt::format("decoder: a batch of {} requests, {} new tokens and {} tokens of context, {} "
                    "of them in one "
                    "request, does not fit in what was allocated for {}, {}, {} and {}",
                    batch.requests(), tokens, context, longest, limits_.requests, limits_.tokens,
                    limits_.context, limits_.longest_context));
  }
  KVTIER_ASSERT(batch.query_begin.size() == batch.context_begin.size() &&
                    batch.query_begin.back() == tokens && batch.context_begin.back() == context,
                "a batch has tokens and a context for each of its requests");
  std::vector<std::int32_t> new_slots;
  std::vector<std::int32_t> new_positions;
  std::vector<std::int32_t> last_rows;
  attention_.context_max = longest;
  for (std::size_t r = 0; r + 1 < batch.query_begin.size(); ++r) {
    const std::int64_t added = batch.query_begin[r + 1] - batch.query_begin[r];
    const std::int64_t length = batch.context_begin[r + 1] - batch.context_begin[r];
    KVTIER_ASSERT(added >= 0 && added <= length, "new tokens are part of their context");
    for (std::int64_t position = length - added; position < length; ++position) {
      new_slots.push_back(batch.slots[static_cast<std::size_t>(batch.context_begin[r] + position)]);
      new_positions.push_back(static_cast<std::int32_t>(position));
    }
    if (added > 0) {
      last_rows.push_back(static_cast<std::int32_t>(batch.query_begin[r + 1] - 1));
    }
  }
  uploaded_->synchronize();
  // The wider types come first, so that all arrays are aligned. The slots come last, so that the
  // addresses of all arrays depend only on the numbers of requests and new tokens.
  Packer packer(staging_, numbers_);
  attention_.batch = {.requests = batch.requests(),
                      .slots = nullptr,
                      .context_begin = packer.put(batch.context_begin),
                      .query_begin = packer.put(batch.query_begin)};
  std::unique_ptr<AttentionPlan>& plan = batch.decodes() ? decode_plan_ : plan_;
  device_.plan_attention(plan, AttentionLibrary::own, attention_.shape, batch.context_begin,
                         batch.query_begin, stream);
  attention_.plan = plan.get();
  token_ids_ = packer.put(batch.tokens);
  new_slots_ = packer.put(new_slots);
  new_positions_ = packer.put(new_positions);
  last_rows_ = packer.put(last_rows);
  attention_.batch.slots = packer.put(batch.slots);
  device_.upload(numbers_.data(), staging_.data(), packer.used(), stream);
  device_.record(*uploaded_, stream);
  tokens_ = tokens;
  output_rows_ = static_cast<std::int64_t>(last_rows.size());
}

void Decoder::begin(const DecoderBatch& batch, Stream& stream) {
  upload(batch, stream);
  embed(stream);
}

void Decoder::embed(Stream& stream) {
  device_.gather({.from = weights_.embedding.data(),
                  .to = hidden_.data(),
                  .slots = token_ids_,
                  .rows = tokens_,
                  .row = shape_.hidden * element_},
                 stream);
}

void Decoder::multiply(const Buffer& input, const Buffer& weights, const Buffer& output,
                       std::int64_t outputs, std::int64_t inputs, Stream& stream) {
  device_.gemm({.input = input.data(),
                .weights = weights.data(),
                .output = output.data(),
                .m = tokens_,
                .n = outputs,
                .k = inputs},
               stream);
}

void Decoder::apply(RowFunction function, const Buffer& input, const Buffer& output,
                    std::int64_t width, Stream& stream) {
  device_.row_function({.function = function,
                        .input = input.data(),
                        .output = output.data(),
                        .rows = tokens_,
                        .width = width},
                       stream);
}

void Decoder::add_to_hidden(Stream& stream) {
  device_.row_function({.function = RowFunction::add,
                        .input = hidden_.data(),
                        .other = projected_.data(),
                        .output = hidden_.data(),
                        .rows = tokens_,
                        .width = shape_.hidden},
                       stream);
}

void Decoder::forward_layer(std::int64_t layer, std::byte* kv, Stream& stream) {
  KVTIER_ASSERT(layer >= 0 && layer < shape_.layers, "a layer of the decoder");
  const std::int64_t query_width = shape_.query_heads * shape_.head_dim;
  const Bytes kv_row = kv_row_bytes(shape_, element_);
  attention_.queries = qkv_.data();
  attention_.keys = kv;
  attention_.values = kv + kv_row.value / 2;
  attention_.output = attended_.data();
  if (tokens_ == 0) {
    return;
  }
  const DecoderWeights::Layer& weights = weights_.layers[static_cast<std::size_t>(layer)];
  apply(RowFunction::norm, hidden_, normed_, shape_.hidden, stream);
  multiply(normed_, weights.qkv, qkv_, qkv_width_, shape_.hidden, stream);
  if (positions_ == KeyPositions::embedded) {
    // Query heads and key heads are neighbours in a row.
    device_.rope({.rows = {.from = qkv_.data(),
                           .to = qkv_.data(),
                           .rows = tokens_,
                           .row = qkv_width_ * element_},
                  .heads = shape_.query_heads + shape_.kv_heads,
                  .head_dim = shape_.head_dim,
                  .base = shape_.rope_base,
                  .positions = new_positions_,
                  .positions_end = attention_.context_max},
                 stream);
  }
  device_.scatter({.from = qkv_.data() + (query_width * element_).value,
                   .to = kv,
                   .slots = new_slots_,
                   .rows = tokens_,
                   .row = kv_row,
                   .packed_stride = qkv_width_ * element_},
                  stream);
  device_.attention(attention_, stream);
  multiply(attended_, weights.output, projected_, shape_.hidden, query_width, stream);
  add_to_hidden(stream);
  apply(RowFunction::norm, hidden_, normed_, shape_.hidden, stream);
  multiply(normed_, weights.up, up_, (shape_.gated ? 2 : 1) * shape_.intermediate, shape_.hidden,
           stream);
  apply(shape_.gated ? RowFunction::gated_activation : RowFunction::activation, up_, active_,
        shape_.intermediate, stream);
  multiply(active_, weights.down, projected_, shape_.hidden, shape_.intermediate, stream);
  add_to_hidden(stream);
}

void Decoder::finish(Stream& stream) {
  if (output_rows_ == 0) {
    return;
  }
  device_.gather({.from = hidden_.data(),
                  .to = projected_.data(),
                  .slots = last_rows_,
                  .rows = output_rows_,
                  .row = shape_.hidden * element_},
                 stream);
  device_.row_function({.function = RowFunction::norm,
                        .input = projected_.data(),
                        .output = normed_.data(),
                        .rows = output_rows_,
                        .width = shape_.hidden},
                       stream);
  device_.gemm({.input = normed_.data(),
                .weights = weights_.head.data(),
                .output = logits_.data(),
                .m = output_rows_,
                .n = shape_.vocabulary,
                .k = shape_.hidden},
               stream);
  device_.row_function({.function = RowFunction::sample,
                        .input = logits_.data(),
                        .output = next_tokens_.data(),
                        .rows = output_rows_,
                        .width = shape_.vocabulary},
                       stream);
}

void Decoder::forward(const DecoderBatch& batch, const KvPool& pool, Stream& stream,
                      const Hooks& hooks) {
  upload(batch, stream);
  const auto queue = [&] {
    embed(stream);
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      if (hooks.before_layer) {
        hooks.before_layer(layer);
      }
      forward_layer(layer, pool.layer(layer), stream);
      if (hooks.after_layer) {
        hooks.after_layer(layer);
      }
    }
    finish(stream);
  };
  if (!batch.decodes() || hooks.before_layer || hooks.after_layer) {
    queue();
    return;
  }
  DecodeStep& step = decode_steps_[{batch.requests(), pool.slots(), pool.layer(0)}];
  if (step.graph == nullptr && step.has_run) {
    step.graph = device_.capture(stream, queue);
  }
  if (step.graph != nullptr) {
    device_.launch(*step.graph, stream);
  } else {
    queue();
  }
  step.has_run = true;
}

std::vector<double> measure_score_sparsity(Decoder& decoder, const DecoderBatch& batch,
                                           const KvPool& pool, Stream& stream) {
  if (decoder.device().info().kind != "cpu") {
    throw DeviceError("score sparsity is measured on the host (cpu)");
  }
  constexpr double kSmall = 0.01;
  std::vector<double> sparsity;
  const auto count = [&](std::int64_t) {
    stream.synchronize();
    const AttentionWork& work = decoder.attention();
    const kernels::RotaryTable table(work.shape.head_dim, decoder.shape().rope_base,
                                     work.rope_base > 0 ? work.context_max : 0);
    kernels::ScoreCount sum;
    for (std::int64_t r = 0; r < work.batch.requests; ++r) {
      for (std::int64_t head = 0; head < work.shape.kv_heads; ++head) {
        const kernels::ScoreCount part = kernels::count_small_scores(
            work.shape, work.batch, work.rope_base > 0 ? table.angles() : kernels::RotaryAngles{},
            static_cast<const float*>(work.queries), static_cast<const float*>(work.keys), r, head,
            kSmall);
        sum.small += part.small;
        sum.all += part.all;
      }
    }
    sparsity.push_back(sum.all > 0 ? static_cast<double>(sum.small) / static_cast<double>(sum.all)
                                   : 0);
  };
  decoder.forward(batch, pool, stream, {.before_layer = {}, .after_layer = count});
  stream.synchronize();
  return sparsity;
}

}  // namespace kvtier
