#include "tests/hw/device/decoder_reference.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <string>

#include "kernels/rope_attention.hpp"
#include "tests/hw/device/device_checks.hpp"

namespace kvtier {
namespace {

using Rows = std::vector<double>;

Rows read(const Decoder& decoder, const Buffer& matrix) {
  Device& device = decoder.device();
  const std::vector<float> values = elements_from(
      device, matrix.data(), static_cast<std::size_t>(matrix.size() / device.info().element));
  return {values.begin(), values.end()};
}

/// Rows of `input` times a matrix [outputs][width].
Rows multiply(const Rows& input, const Rows& matrix, std::size_t width) {
  const std::size_t outputs = matrix.size() / width;
  Rows output(input.size() / width * outputs);
  for (std::size_t i = 0; i < output.size(); ++i) {
    const auto row = input.begin() + static_cast<std::ptrdiff_t>(i / outputs * width);
    output[i] =
        std::inner_product(row, row + static_cast<std::ptrdiff_t>(width),
                           matrix.begin() + static_cast<std::ptrdiff_t>(i % outputs * width), 0.0);
  }
  return output;
}

Rows norm(Rows rows, std::size_t width) {
  for (std::size_t begin = 0; begin < rows.size(); begin += width) {
    const std::span row(&rows[begin], width);
    const double squares = std::inner_product(row.begin(), row.end(), row.begin(), 0.0);
    for (double& x : row) {
      x /= std::sqrt(squares / static_cast<double>(width) + 1e-5);
    }
  }
  return rows;
}

void add(Rows& rows, const Rows& other) {
  std::ranges::transform(rows, other, rows.begin(), std::plus());
}

/// Columns begin .. begin + count of rows of `width`.
Rows columns(const Rows& rows, std::size_t width, std::size_t begin, std::size_t count) {
  Rows part;
  for (std::size_t at = begin; at < rows.size(); at += width) {
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(at);
    part.insert(part.end(), first, first + static_cast<std::ptrdiff_t>(count));
  }
  return part;
}

double small_share(const Rows& queries, const Rows& keys, const kernels::AttentionShape& shape) {
  const std::size_t query_row = shape.query_heads * shape.head_dim;
  const std::size_t kv_row = shape.kv_heads * shape.head_dim;
  const std::size_t count = queries.size() / query_row;
  const std::size_t context = keys.size() / kv_row;
  double small = 0;
  double all = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t head = 0; head < shape.query_heads; ++head) {
      const double* const query = &queries[i * query_row + head * shape.head_dim];
      Rows weights;
      for (std::size_t t = 0; t < context - count + i + 1; ++t) {
        const double* const key =
            &keys[t * kv_row + head / (shape.query_heads / shape.kv_heads) * shape.head_dim];
        weights.push_back(std::exp(std::inner_product(query, query + shape.head_dim, key, 0.0) /
                                   std::sqrt(static_cast<double>(shape.head_dim))));
      }
      const double largest = *std::ranges::max_element(weights);
      small += static_cast<double>(
          std::ranges::count_if(weights, [&](double w) { return w < 0.01 * largest; }));
      all += static_cast<double>(weights.size());
    }
  }
  return small / all;
}

}  // namespace

void ReferenceKv::append(std::int64_t layer, const std::vector<float>& row) {
  layers.resize(std::max(layers.size(), static_cast<std::size_t>(layer) + 1));
  Layer& kv = layers[static_cast<std::size_t>(layer)];
  const auto half = row.begin() + static_cast<std::ptrdiff_t>(row.size() / 2);
  kv.keys.insert(kv.keys.end(), row.begin(), half);
  kv.values.insert(kv.values.end(), half, row.end());
}

ReferenceDecoder::ReferenceDecoder(const Decoder& decoder)
    : shape_(decoder.shape()),
      embedding_(read(decoder, decoder.weights().embedding)),
      head_(read(decoder, decoder.weights().head)) {
  for (const DecoderWeights::Layer& layer : decoder.weights().layers) {
    layers_.push_back({.qkv = read(decoder, layer.qkv),
                       .output = read(decoder, layer.output),
                       .up = read(decoder, layer.up),
                       .down = read(decoder, layer.down)});
  }
}

std::vector<double> ReferenceDecoder::logits(const std::vector<std::int32_t>& tokens,
                                             ReferenceKv& kv, std::vector<double>* sparsity) const {
  const auto hidden = static_cast<std::size_t>(shape_.hidden);
  const auto intermediate = static_cast<std::size_t>(shape_.intermediate);
  const kernels::AttentionShape attention{
      .query_heads = static_cast<std::size_t>(shape_.query_heads),
      .kv_heads = static_cast<std::size_t>(shape_.kv_heads),
      .head_dim = static_cast<std::size_t>(shape_.head_dim),
      .rope_base = shape_.rope_base};
  const std::size_t query_row = attention.query_heads * attention.head_dim;
  const std::size_t kv_row = attention.kv_heads * attention.head_dim;
  kv.layers.resize(layers_.size());
  Rows x;
  for (const std::int32_t token : tokens) {
    const auto row = embedding_.begin() + token * static_cast<std::ptrdiff_t>(hidden);
    x.insert(x.end(), row, row + static_cast<std::ptrdiff_t>(hidden));
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    ReferenceKv::Layer& stored = kv.layers[i];
    const Rows qkv = multiply(norm(x, hidden), layer.qkv, hidden);
    const std::size_t qkv_row = query_row + 2 * kv_row;
    Rows queries = columns(qkv, qkv_row, 0, query_row);
    const Rows keys = columns(qkv, qkv_row, query_row, kv_row);
    const Rows values = columns(qkv, qkv_row, query_row + kv_row, kv_row);
    stored.keys.insert(stored.keys.end(), keys.begin(), keys.end());
    stored.values.insert(stored.values.end(), values.begin(), values.end());

    std::vector<std::int64_t> positions(stored.keys.size() / kv_row);
    std::iota(positions.begin(), positions.end(), 0);
    Rows placed = stored.keys;
    kernels::apply_rope<double>(placed, attention.kv_heads, positions, attention);
    positions.erase(positions.begin(),
                    positions.end() - static_cast<std::ptrdiff_t>(tokens.size()));
    kernels::apply_rope<double>(queries, attention.query_heads, positions, attention);
    Rows attended(queries.size());
    kernels::attend<double>(queries, placed, stored.values, attention, attended);
    if (sparsity != nullptr) {
      sparsity->push_back(small_share(queries, placed, attention));
    }
    add(x, multiply(attended, layer.output, query_row));

    Rows up = multiply(norm(x, hidden), layer.up, hidden);
    if (shape_.gated) {
      const Rows gate = columns(up, 2 * intermediate, 0, intermediate);
      up = columns(up, 2 * intermediate, intermediate, intermediate);
      std::ranges::transform(gate, up, up.begin(),
                             [](double g, double u) { return g / (1 + std::exp(-g)) * u; });
    } else {
      std::ranges::transform(up, up.begin(),
                             [](double u) { return u * 0.5 * (1 + std::erf(u / std::sqrt(2.0))); });
    }
    add(x, multiply(up, layer.down, intermediate));
  }
  const Rows last(x.end() - static_cast<std::ptrdiff_t>(hidden), x.end());
  return multiply(norm(last, hidden), head_, hidden);
}

std::vector<std::pair<std::string, double>> decoder_errors(Device& device) {
  std::vector<std::pair<std::string, double>> errors;
  for (const DecoderShape& shape : {DecoderShape{.layers = 2,
                                   .hidden = 64,
                                   .query_heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 64,
                                   .intermediate = 96,
                                   .gated = true,
                                   .vocabulary = 120},
                                    DecoderShape{.layers = 3,
                                    .hidden = 48,
                                    .query_heads = 1,
                                    .kv_heads = 1,
                                    .head_dim = 128,
                                    .intermediate = 64,
                                    .gated = false,
                                    .vocabulary = 72}}) {
    for (const KeyPositions positions : {KeyPositions::decoupled, KeyPositions::embedded}) {
      constexpr std::int32_t kPrompt = 24;
      constexpr std::int32_t kDropped = 10;
      Decoder decoder(device, shape, positions,
                      {.requests = 1, .tokens = 32, .context = 64, .longest_context = 64}, 3);
      const ReferenceDecoder reference(decoder);
      const KvPool pool(device, shape, 64);
      const auto stream = device.make_stream();
      // 41 has no divisor in common with 64, so that all slots differ.
      std::vector<std::int32_t> slots;
      std::vector<std::int32_t> tokens;
      for (std::int32_t i = 0; i < kPrompt + 1; ++i) {
        slots.push_back(i * 41 % 64);
        tokens.push_back(i * 7 % 70);
      }
      const std::vector<std::int32_t> prompt(tokens.begin(), tokens.begin() + kPrompt);
      const std::vector<std::int32_t> next(tokens.begin() + kPrompt, tokens.end());
      // Two layers or three with about eight roundings each, one after another, each a share u of
      // numbers near 1 and independent of the others: their root mean square is below sqrt(28) u,
      // and twice that for the odd one. Sums in float add a millionth.
      const auto check = [&](const char* name, const std::vector<std::int32_t>& added,
                             const std::vector<std::int32_t>& context, ReferenceKv& kv) {
        DecoderBatch batch;
        batch.add(added, context);
        decoder.forward(batch, pool, *stream);
        stream->synchronize();
        const std::vector<double> expected = reference.logits(added, kv);
        const std::vector<float> found = elements_from(device, decoder.logits(), expected.size());
        double squares = 0;
        double all = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          const double error = static_cast<double>(found[i]) - expected[i];
          squares += error * error;
          all += expected[i] * expected[i];
        }
        const double error = std::sqrt(squares / all) / (11 * rounding(device) + 1e-6);
        errors.emplace_back(name, std::isnan(error) ? INFINITY : error);
      };
      ReferenceKv kv;
      check("prefill", prompt, {slots.begin(), slots.begin() + kPrompt}, kv);
      check("decode", next, slots, kv);
      if (positions == KeyPositions::decoupled) {
        ReferenceKv kept;
        for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
          for (std::int32_t t = kDropped; t < kPrompt; ++t) {
            const auto count = static_cast<std::size_t>(pool.row_bytes() / device.info().element);
            kept.append(
                layer,
                elements_from(device, pool.row(layer, slots[static_cast<std::size_t>(t)]), count));
          }
        }
        check("after a cut", next, {slots.begin() + kDropped, slots.end()}, kept);
      }
    }
  }
  return errors;
}

std::string captured_steps_differ(Device& device) {
  static constexpr DecoderShape kShape{.layers = 2,
                                       .hidden = 32,
                                       .query_heads = 2,
                                       .kv_heads = 1,
                                       .head_dim = 16,
                                       .intermediate = 48,
                                       .gated = true,
                                       .vocabulary = 40};
  constexpr std::array<std::int64_t, 3> kPrompts{7, 253, 30};
  static constexpr std::int64_t kRoom = 272;
  constexpr int kSteps = 6;
  struct Server {
    Server(Device& device, Stream& on)
        : decoder(device, kShape, KeyPositions::decoupled,
                  {.requests = 4, .tokens = 272, .context = 4 * kRoom, .longest_context = kRoom},
                  5),
          pool(device, kShape, 3 * kRoom),
          stream(on) {}
    std::vector<float> logits(const DecoderBatch& batch, const Decoder::Hooks& hooks) {
      decoder.forward(batch, pool, stream, hooks);
      stream.synchronize();
      return elements_from(decoder.device(), decoder.logits(),
                           static_cast<std::size_t>(batch.requests() * kShape.vocabulary));
    }
    Decoder decoder;
    KvPool pool;
    Stream& stream;
  };
  const auto stream = device.make_stream();
  Server captured(device, *stream);
  Server plain(device, *stream);
  const auto batch_of = [&](std::size_t requests, std::int64_t more, std::int64_t added) {
    DecoderBatch batch;
    for (std::size_t r = 0; r < requests; ++r) {
      const std::int64_t length = kPrompts[r] + more;
      std::vector<std::int32_t> slots(static_cast<std::size_t>(length));
      std::iota(slots.begin(), slots.end(), static_cast<std::int32_t>(r) * kRoom);
      const std::vector<std::int32_t> tokens(static_cast<std::size_t>(added > 0 ? added : length),
                                             static_cast<std::int32_t>(r + 3));
      batch.add(tokens, slots);
    }
    return batch;
  };
  const Decoder::Hooks each_operation{.before_layer = [](std::int64_t) {}, .after_layer = {}};
  for (std::size_t r = 0; r < kPrompts.size(); ++r) {
    const DecoderBatch prompts = batch_of(kPrompts.size(), 0, 0);
    DecoderBatch one;
    const auto part = [&](const auto& list, const auto& begin) {
      return std::span(list).subspan(static_cast<std::size_t>(begin[r]),
                                     static_cast<std::size_t>(begin[r + 1] - begin[r]));
    };
    one.add(part(prompts.tokens, prompts.query_begin), part(prompts.slots, prompts.context_begin));
    static_cast<void>(captured.logits(one, {}));
    static_cast<void>(plain.logits(one, each_operation));
  }
  for (int step = 1; step <= kSteps; ++step) {
    // Batches of two sizes in turns: each has its own graph.
    for (const std::size_t requests : {3, 2}) {
      const DecoderBatch batch = batch_of(requests, step, 1);
      if (captured.logits(batch, {}) != plain.logits(batch, each_operation)) {
        return "step " + std::to_string(step) + " of " + std::to_string(requests) + " requests";
      }
    }
  }
  return "";
}

}  // namespace kvtier
