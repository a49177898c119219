#include "hw/timing/roofline.hpp"

#include <algorithm>
#include <cmath>

#include "hw/timing/operation_time.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/rounding.hpp"

namespace kvtier {
namespace {

double as_double(Bytes bytes) { return static_cast<double>(bytes.value); }
double as_double(std::int64_t value) { return static_cast<double>(value); }

constexpr TimeShares kAllRoofline{.roofline = 1};

/// Tokens that a layer of this kind reads; none: all.
std::optional<Tokens> window_of(const ModelConfig& model, AttentionKind kind) {
  if (kind == AttentionKind::window) {
    return model.window;
  }
  return model.sparse && kind != AttentionKind::state ? std::optional(model.sparse->top_k)
                                                      : std::nullopt;
}

}  // namespace

RooflineTiming::RooflineTiming(const ModelConfig& model, const HardwareConfig& hardware,
                               std::int64_t max_batch, const std::optional<EngineConfig>& engine)
    : layers_(model.layers),
      stages_(hardware.parallel.pipeline),
      ranks_(hardware.parallel.attention_dp),
      experts_(model.experts),
      iteration_overhead_(engine_step_time(engine, hardware)),
      request_seconds_(engine_request_seconds(engine, hardware)) {
  KVTIER_ASSERT(max_batch >= 1, "a timing model serves at least one request");
  const std::vector<LayerGroup> groups = layer_groups(model);
  for (const LayerGroup& group : groups) {
    if (const std::optional<Tokens> window = window_of(model, group.attention)) {
      windows_.push_back(*window);
    }
  }
  std::ranges::sort(windows_);
  windows_.erase(std::unique(windows_.begin(), windows_.end()), windows_.end());
  for (const LayerGroup& group : groups) {
    kinds_.push_back(make_layer(model, hardware, group));
  }
  const Layer& first = kinds_.front();
  const bool is_dense_alone = kinds_.size() == 1 && stages_ == 1 && ranks_ == 1 && !experts_ &&
                              first.attention == AttentionKind::full && first.window < 0;
  dense_ = {.batches = is_dense_alone ? static_cast<std::uint64_t>(max_batch) + 1 : 0,
            .linear_per_token = first.linear_per_token,
            .weights = first.weights,
            .link_per_token = first.link_per_token,
            .link_fixed = first.link_fixed,
            .pair = first.pair,
            .kv_per_token = first.kv_per_token};
  const double gpus = as_double(gpus_of_stage(hardware));
  const double flops_per_second = gpus * hardware.gpu.peak.value * hardware.efficiency.compute;
  const double bytes_per_second = gpus * hardware.hbm.bandwidth.value * hardware.efficiency.memory;
  head_seconds_per_row_ = lm_head_flops_per_token(model) / flops_per_second;
  head_weight_seconds_ = as_double(lm_head_bytes(model)) / bytes_per_second;
  if (stages_ > 1) {
    const AllReduceTime send = stage_send(model, hardware);
    send_per_token_ = as_double(stages_ - 1) * send.seconds_per_token;
    send_fixed_ = as_double(stages_ - 1) * send.fixed_seconds;
  }

  const double overhead = iteration_overhead_.seconds();
  decode_.reserve(static_cast<std::size_t>(max_batch));
  for (std::int64_t batch = 1; batch <= max_batch; ++batch) {
    const std::int64_t micro = divide_up(batch, stages_);
    const LayerTokens tokens{.all = as_double(micro), .rank = as_double(divide_up(micro, ranks_))};
    // The share of the context that the largest rank reads.
    const double share = tokens.rank / as_double(batch);
    DecodeBatch entry;
    std::vector<double> slopes(windows_.size());
    double slope = 0;
    double all_layers = 0;
    for (const Layer& kind : kinds_) {
      all_layers +=
          kind.count * (dense_seconds(kind, tokens) + decode_seconds(kind, tokens.rank, 0, {}));
      // Reading the KV and computing with it are both proportional to the context. The slower one
      // is the slope.
      const double read = kind.count * std::max(kind.kv_per_token, kind.pair) * share;
      slope += kind.count * std::max(kind.index_per_token, kind.index_pair) * share;
      (kind.window < 0 ? slope : slopes[static_cast<std::size_t>(kind.window)]) += read;
    }
    const double base = all_layers + head_seconds(tokens.all) + send_seconds(tokens.all) +
                        overhead + as_double(batch) * request_seconds_;
    entry.layer_base = ticks_from_seconds(
        kinds_.size() == 1 ? dense_seconds(kinds_.front(), tokens) +
                                 decode_seconds(kinds_.front(), tokens.rank, 0, {})
                           : all_layers / as_double(layers_));
    entry.pieces.push_back({.from = Tokens(0),
                            .base = ticks_from_seconds(base),
                            .slope = ticks_from_seconds(slope),
                            .shares = kAllRoofline});
    for (const double seconds : slopes) {
      entry.window_slopes.push_back(ticks_from_seconds(seconds));
    }
    decode_.push_back(std::move(entry));
  }
  head_of_one_row_ = duration_from_seconds(head_seconds(1));
}

RooflineTiming::Layer RooflineTiming::make_layer(const ModelConfig& model,
                                                 const HardwareConfig& hardware,
                                                 const LayerGroup& group) {
  const std::int64_t stage = gpus_of_stage(hardware);
  const double gpus = as_double(stage);
  const double ranks = as_double(ranks_);
  const double bytes_per_second = gpus * hardware.hbm.bandwidth.value * hardware.efficiency.memory;
  const auto flops_of = [&](const std::optional<NumberFormat>& format) {
    return attained_flops(model, hardware, format, gpus);
  };
  const double flops_per_second = gpus * hardware.gpu.peak.value * hardware.efficiency.compute;
  KVTIER_ASSERT(flops_per_second > 0 && bytes_per_second > 0, "rates are positive");

  Layer layer;
  layer.count = as_double(group.count);
  layer.attention = group.attention;
  const LayerParameters parameters = layer_parameters(model, group);
  const PrecisionConfig& precision = model.precision;
  const double attention_flops = flops_of(precision.attention);
  const double mlp_flops = flops_of(precision.mlp);
  layer.attention_linear_per_token =
      2.0 * as_double(parameters.attention + parameters.router) / attention_flops * ranks;
  layer.mlp_linear_per_token = 2.0 * as_double(parameters.mlp) / mlp_flops;
  layer.linear_per_token =
      attention_flops == mlp_flops
          ? 2.0 * as_double(parameters.attention + parameters.router + parameters.mlp) / mlp_flops
          : layer.attention_linear_per_token + layer.mlp_linear_per_token;
  const Bytes routed = weight_bytes_in(model, precision.experts, parameters.routed);
  const Bytes of_attention = weight_bytes_in(model, precision.attention, parameters.attention);
  layer.weights = (as_double(weight_bytes_per_layer(model, group) - routed) +
                   (ranks - 1) * as_double(of_attention)) /
                  bytes_per_second;
  const bool has_experts = group.has_experts && parameters.routed > 0;
  if (has_experts) {
    const double share = as_double(experts_->active) / as_double(experts_->routed);
    layer.routed_per_token =
        2.0 * as_double(parameters.routed) * share / flops_of(precision.experts);
    layer.expert_weights = as_double(routed) / as_double(experts_->routed) / bytes_per_second;
  }

  const AllReduceTime in_rank = all_reduce(model, hardware, gpus_of_rank(hardware));
  const AllReduceTime in_stage = has_experts && ranks_ > 1 && hardware.parallel.expert > 1
                                     ? expert_all_to_all(model, hardware)
                                     : all_reduce(model, hardware, stage);
  if (ranks_ == 1) {
    layer.link_per_token = in_rank.seconds_per_token + in_stage.seconds_per_token;
  } else {
    layer.link_per_token = in_stage.seconds_per_token;
    layer.rank_link_per_token = in_rank.seconds_per_token;
  }
  layer.link_fixed = in_rank.fixed_seconds + in_stage.fixed_seconds;
  if (model.norm_over_heads) {
    layer.link_fixed += in_rank.fixed_seconds;  // one number for each token
  }

  // A rank has its share of the rates; each GPU that holds a copy of KV reads it.
  const double rank_flops = flops_per_second / ranks;
  const double rank_bytes = bytes_per_second / ranks;
  if (group.attention == AttentionKind::state) {
    const StateConfig& state = *model.state;
    const double elements = as_double(state.value_heads * state.key_dim * state.value_dim);
    layer.state_per_token = kStateOperations * elements / rank_flops;
    layer.state_per_request = 2 * as_double(state_bytes(state)) / rank_bytes;
    return layer;
  }
  std::int64_t first = 0;
  while (layer_kind(model, first).attention != group.attention) {
    ++first;
  }
  layer.kv_per_token = as_double(kv_bytes_read_per_token_layer(model, first)) / rank_bytes *
                       as_double(kv_copies(model, hardware, group.attention));
  layer.pair = attention_flops_per_pair_layer(model) / rank_flops;
  layer.prefill_pair = layer.pair;
  if (group.attention == AttentionKind::latent) {
    const LatentConfig& latent = *model.latent;
    const double heads = as_double(model.attention_heads);
    layer.pair = 2 * heads * as_double(2 * latent.rank + latent.rope_dim) / rank_flops;
    layer.prefill_pair = 2 * heads * as_double(model.head_dim + latent.value_dim) / rank_flops;
    layer.expand_per_token = 2 * heads * as_double(latent.rank) *
                             as_double(model.head_dim - latent.rope_dim + latent.value_dim) /
                             (attention_flops / ranks);
  }
  if (const std::optional<Tokens> window = window_of(model, group.attention)) {
    layer.window = std::ranges::find(windows_, *window) - windows_.begin();
  }
  if (model.sparse && group.attention != AttentionKind::window) {
    const SparseConfig& sparse = *model.sparse;
    // Indexers multiply in 8 bits; every GPU of a rank runs all of it.
    const double copies = as_double(gpus_of_rank(hardware));
    layer.index_pair = 2 * as_double(sparse.index_heads * sparse.index_dim) /
                       (flops_of(NumberFormat::fp8) / ranks) * copies;
    layer.index_per_token = as_double(index_bytes_per_token(sparse)) / rank_bytes * copies;
  }
  return layer;
}

double RooflineTiming::dense_seconds(const Layer& layer, const LayerTokens& tokens) const {
  const double compute = ranks_ == 1 ? tokens.all * layer.linear_per_token
                                     : tokens.rank * layer.attention_linear_per_token +
                                           tokens.all * layer.mlp_linear_per_token;
  double seconds =
      std::max(compute, layer.weights) + tokens.all * layer.link_per_token + layer.link_fixed;
  if (ranks_ > 1) {
    seconds += tokens.rank * layer.rank_link_per_token;
  }
  return seconds + routed_seconds(layer, tokens.all);
}

double RooflineTiming::attention_seconds(const Layer& layer, const PrefillPart& part) const {
  const double added = as_double(part.added.value);
  const double past = as_double(part.past.value);
  if (layer.attention == AttentionKind::state) {
    return std::max(added * layer.state_per_token, layer.state_per_request);
  }
  const double all_pairs = attention_pairs(added, past, 0);
  double pairs = all_pairs;
  double read = past + 2 * added;
  if (layer.window >= 0) {
    const std::int64_t window = windows_[static_cast<std::size_t>(layer.window)].value;
    pairs = attention_pairs(added, past, window);
    // Each token of a sparse layer selects tokens of its own from the whole context.
    read = layer.attention == AttentionKind::window ? std::min(past, as_double(window)) + 2 * added
                                                    : read;
  }
  double seconds = std::max(pairs * layer.prefill_pair, read * layer.kv_per_token);
  if (layer.attention == AttentionKind::latent) {
    seconds = std::min(seconds + past * layer.expand_per_token,
                       std::max(pairs * layer.pair, read * layer.kv_per_token));
  }
  return seconds + std::max(all_pairs * layer.index_pair, (past + added) * layer.index_per_token);
}

double RooflineTiming::decode_seconds(const Layer& layer, double requests, double context,
                                      std::span<const double> within) const {
  if (layer.attention == AttentionKind::state) {
    return requests * std::max(layer.state_per_token, layer.state_per_request);
  }
  const double read = layer.window < 0 ? context
                      : within.empty() ? 0
                                       : within[static_cast<std::size_t>(layer.window)];
  return read * std::max(layer.kv_per_token, layer.pair) +
         context * std::max(layer.index_per_token, layer.index_pair);
}

double RooflineTiming::attention_of(std::size_t kind, const PrefillPart& part) const {
  return attention_seconds(kinds_[kind], part);
}

double RooflineTiming::decode_attention_of(std::size_t kind, double requests,
                                           double context) const {
  std::vector<double> within;
  within.reserve(windows_.size());
  for (const Tokens window : windows_) {
    within.push_back(std::min(context, requests * as_double(window.value)));
  }
  return decode_seconds(kinds_[kind], requests, context, within);
}

double RooflineTiming::routed_experts_of(std::size_t kind, double tokens) const {
  return routed_seconds(kinds_[kind], tokens);
}

double RooflineTiming::routed_seconds(const Layer& layer, double tokens) const {
  return layer.expert_weights > 0
             ? std::max(tokens * layer.routed_per_token,
                        touched_experts(*experts_, tokens) * layer.expert_weights)
             : 0;
}

double RooflineTiming::head_seconds(double rows) const {
  return std::max(rows * head_seconds_per_row_, head_weight_seconds_);
}

double RooflineTiming::send_seconds(double tokens) const {
  return tokens * send_per_token_ + send_fixed_;
}

template <class Seconds>
double RooflineTiming::mean_layer(Seconds seconds) const {
  if (kinds_.size() == 1) {
    return seconds(kinds_.front());
  }
  double sum = 0;
  for (const Layer& kind : kinds_) {
    sum += kind.count * seconds(kind);
  }
  return sum / as_double(layers_);
}

PrefillTime RooflineTiming::iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                      Tokens context) const {
  if (static_cast<std::uint64_t>(batch) >= dense_.batches) [[unlikely]] {
    return layered_iteration(parts, batch, context);
  }
  KVTIER_ASSERT(!parts.empty(), "a prefill has at least one part");
  Tokens added(batch);
  double attention =
      static_cast<double>(context.value) * std::max(dense_.kv_per_token, dense_.pair);
  for (const PrefillPart& part : parts) {
    KVTIER_ASSERT(part.added > Tokens(0) && part.past >= Tokens(0),
                  "a part of a prefill computes at least one token");
    added += part.added;
    const double own = as_double(part.added.value);
    const double past = as_double(part.past.value);
    const double pairs = own * past + own * (own + 1) / 2;
    attention += std::max(pairs * dense_.pair, (past + 2 * own) * dense_.kv_per_token);
  }
  const double tokens = as_double(added.value);
  const double matrices = std::max(tokens * dense_.linear_per_token, dense_.weights) +
                          tokens * dense_.link_per_token + dense_.link_fixed;
  const SimDuration layer = duration_from_seconds(matrices + attention);
  const SimDuration head =
      parts.size() == 1 && batch == 0
          ? head_of_one_row_
          : duration_from_seconds(head_seconds(as_double(std::ssize(parts)) + as_double(batch)));
  return {.total = layer * layers_ + head + host_time(std::ssize(parts) + batch),
          .layer = layer,
          .shares = kAllRoofline};
}

PrefillTime RooflineTiming::layered_iteration(std::span<const PrefillPart> parts,
                                              std::int64_t batch, Tokens context) const {
  std::vector<double> within;
  within.reserve(windows_.size());
  for (const Tokens window : windows_) {
    within.push_back(as_double(equal_tokens_within(batch, context, window).value));
  }
  return iteration(parts, batch, context, within);
}

PrefillTime RooflineTiming::iteration_of(std::span<const PrefillPart> parts,
                                         std::span<const Tokens> contexts) const {
  Tokens context;
  for (const Tokens one : contexts) {
    context += one;
  }
  std::vector<double> within;
  within.reserve(windows_.size());
  for (const Tokens window : windows_) {
    within.push_back(as_double(tokens_within(contexts, window).value));
  }
  return iteration(parts, std::ssize(contexts), context, within);
}

PrefillTime RooflineTiming::iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                      Tokens context, std::span<const double> within) const {
  KVTIER_ASSERT(!parts.empty(), "a prefill has at least one part");
  KVTIER_ASSERT(batch >= 0 && batch <= max_batch(),
                "the batch is one the timing model was made for");
  if (stages_ > 1 || ranks_ > 1) {
    double rows = 0;
    double tokens = 0;
    const SimDuration layer =
        dealt_layer(parts, batch, as_double(context.value), within, rows, tokens);
    return {.total = layer * layers_ +
                     duration_from_seconds(head_seconds(rows) + send_seconds(tokens)) +
                     host_time(std::ssize(parts) + batch),
            .layer = layer,
            .shares = kAllRoofline};
  }
  Tokens added(batch);
  for (const PrefillPart& part : parts) {
    KVTIER_ASSERT(part.added > Tokens(0) && part.past >= Tokens(0),
                  "a part of a prefill computes at least one token");
    added += part.added;
  }
  const double tokens = as_double(added.value);
  const SimDuration layer = duration_from_seconds(mean_layer([&](const Layer& kind) {
    double attention = decode_seconds(kind, as_double(batch), as_double(context.value), within);
    for (const PrefillPart& part : parts) {
      attention += attention_seconds(kind, part);
    }
    return dense_seconds(kind, {.all = tokens, .rank = tokens}) + attention;
  }));
  const SimDuration head =
      parts.size() == 1 && batch == 0
          ? head_of_one_row_
          : duration_from_seconds(head_seconds(as_double(std::ssize(parts)) + as_double(batch)));
  return {.total = layer * layers_ + head + host_time(std::ssize(parts) + batch),
          .layer = layer,
          .shares = kAllRoofline};
}

SimDuration RooflineTiming::dealt_layer(std::span<const PrefillPart> parts, std::int64_t batch,
                                        double context, std::span<const double> within,
                                        double& rows, double& tokens) const {
  // Running requests are dealt evenly: each micro-batch has as many as the largest.
  const std::int64_t running = divide_up(batch, stages_);
  const std::int64_t running_of_rank = divide_up(running, ranks_);
  const double share = batch > 0 ? as_double(running_of_rank) / as_double(batch) : 0;
  std::vector<double> rank_within(within.begin(), within.end());
  for (double& one : rank_within) {
    one *= share;
  }
  SimDuration longest;
  const std::int64_t micros = std::min(stages_, std::max<std::int64_t>(1, std::ssize(parts)));
  for (std::int64_t micro = 0; micro < micros; ++micro) {
    std::int64_t all = running;
    double logits = as_double(running);
    std::vector<std::vector<PrefillPart>> of_rank(static_cast<std::size_t>(ranks_));
    std::vector<std::int64_t> tokens_of_rank(of_rank.size(), running_of_rank);
    for (std::int64_t i = micro; i < std::ssize(parts); i += stages_) {
      const PrefillPart& part = parts[static_cast<std::size_t>(i)];
      KVTIER_ASSERT(part.added > Tokens(0) && part.past >= Tokens(0),
                    "a part of a prefill computes at least one token");
      const auto rank = static_cast<std::size_t>(i / stages_ % ranks_);
      of_rank[rank].push_back(part);
      tokens_of_rank[rank] += part.added.value;
      all += part.added.value;
      logits += 1;
    }
    const LayerTokens layer_tokens{.all = as_double(all),
                                   .rank = as_double(*std::ranges::max_element(tokens_of_rank))};
    const double seconds = mean_layer([&](const Layer& kind) {
      double attention = 0;
      for (const std::vector<PrefillPart>& own : of_rank) {
        double sum = decode_seconds(kind, as_double(running_of_rank), context * share, rank_within);
        for (const PrefillPart& part : own) {
          sum += attention_seconds(kind, part);
        }
        attention = std::max(attention, sum);
      }
      return dense_seconds(kind, layer_tokens) + attention;
    });
    longest = std::max(longest, duration_from_seconds(seconds));
    rows = std::max(rows, logits);
    tokens = std::max(tokens, layer_tokens.all);
  }
  return longest;
}

const RooflineTiming::DecodeBatch& RooflineTiming::decode_batch(std::int64_t batch) const {
  KVTIER_ASSERT(batch >= 1 && batch <= max_batch(),
                "the batch is one the timing model was made for");
  return decode_[static_cast<std::size_t>(batch - 1)];
}

const std::vector<DecodePiece>& RooflineTiming::decode(std::int64_t batch) const {
  return decode_batch(batch).pieces;
}

std::span<const std::int64_t> RooflineTiming::window_slopes(std::int64_t batch) const {
  return decode_batch(batch).window_slopes;
}

SimDuration RooflineTiming::decode_layer(std::int64_t batch, Tokens context) const {
  const DecodeBatch& entry = decode_batch(batch);
  const DecodePiece& piece = entry.pieces.front();
  const std::int64_t reading = decode_ticks(batch, context) - piece.base;
  const std::int64_t ticks = entry.layer_base + reading / layers_;
  return SimDuration((ticks + kTicksPerNs / 2) / kTicksPerNs);
}

}  // namespace kvtier
