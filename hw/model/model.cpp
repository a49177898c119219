#include "hw/model/model.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "sim/core/histogram.hpp"
#include "sim/core/rounding.hpp"

namespace kvtier {
namespace {

/// part / whole of `amount`, rounded up.
std::int64_t share_up(std::int64_t amount, std::int64_t part, std::int64_t whole) {
  const Int128 product = static_cast<Int128>(amount) * part;
  return static_cast<std::int64_t>((product + whole - 1) / whole);
}

bool has_kind(const ModelConfig& model, AttentionKind kind) {
  return std::ranges::find(model.attention, kind) != model.attention.end();
}

Bytes kv_elements_bytes(const ModelConfig& model, std::int64_t elements) {
  if (!model.precision.kv) {
    return Bytes(elements * model.kv_bytes_per_element);
  }
  // One scale for the whole KV: its bytes do not count.
  return *model.precision.kv == NumberFormat::fp8 ? Bytes(elements)
                                                  : format_bytes(*model.precision.kv, elements);
}

/// KV of one token in a layer that keeps it, from the shape.
Bytes token_row_bytes(const ModelConfig& model, AttentionKind kind) {
  switch (kind) {
    case AttentionKind::full:
    case AttentionKind::window:
      return kv_elements_bytes(model, 2 * model.kv_heads * model.head_dim);
    case AttentionKind::latent:
      return kv_elements_bytes(model, model.latent->rank + model.latent->rope_dim);
    case AttentionKind::state:
      break;
  }
  return Bytes(0);
}

bool has_index(const ModelConfig& model, AttentionKind kind) {
  return model.sparse && (kind == AttentionKind::full || kind == AttentionKind::latent);
}

bool parameters_are_given(const ModelConfig& model) { return model.total_parameters.has_value(); }

AttentionKind attention_kind(const ModelConfig& model, std::int64_t layer) {
  return model.attention[static_cast<std::size_t>(layer) % model.attention.size()];
}

bool layer_has_experts(const ModelConfig& model, std::int64_t layer) {
  if (!model.experts) {
    return false;
  }
  const ExpertsConfig& experts = *model.experts;
  const std::int64_t behind = layer - experts.dense_layers;
  return parameters_are_given(model) || (behind >= 0 && (behind + 1) % experts.every == 0);
}

std::int64_t embedding_parameters(const ModelConfig& model) {
  return (model.tied_embeddings ? 1 : 2) * model.vocabulary_size * model.hidden_size;
}

std::int64_t attention_parameters(const ModelConfig& model, AttentionKind kind) {
  const std::int64_t hidden = model.hidden_size;
  const std::int64_t query_width = model.attention_heads * model.head_dim;
  std::int64_t result = 0;
  switch (kind) {
    case AttentionKind::full:
    case AttentionKind::window:
      result = hidden *
               ((model.output_gate ? 3 : 2) * query_width + 2 * model.kv_heads * model.head_dim);
      break;
    case AttentionKind::latent: {
      const LatentConfig& latent = *model.latent;
      const std::int64_t queries =
          latent.query_rank > 0 ? latent.query_rank * (hidden + query_width) : hidden * query_width;
      result = queries + hidden * (latent.rank + latent.rope_dim) +
               latent.rank * model.attention_heads *
                   (model.head_dim - latent.rope_dim + latent.value_dim) +
               model.attention_heads * latent.value_dim * hidden;
      break;
    }
    case AttentionKind::state: {
      const StateConfig& state = *model.state;
      result =
          hidden * (2 * state.key_heads * state.key_dim + 3 * state.value_heads * state.value_dim);
      break;
    }
  }
  if (has_index(model, kind)) {
    const SparseConfig& sparse = *model.sparse;
    const std::int64_t from = kind == AttentionKind::latent && model.latent->query_rank > 0
                                  ? model.latent->query_rank
                                  : hidden;
    result += from * sparse.index_heads * sparse.index_dim +
              hidden * (sparse.index_dim + sparse.index_heads);
  }
  return result;
}

/// Rough number of parameters in floating point, without sizes given by hand. It is checked before
/// anything is computed in 64 bits.
double rough_parameters(const ModelConfig& model) {
  const auto d = [](std::int64_t value) { return static_cast<double>(value); };
  double layer = 3 * d(model.hidden_size) * d(model.intermediate_size) +
                 d(model.hidden_size) * d(model.head_dim) *
                     (3 * d(model.attention_heads) + 2 * d(model.kv_heads));
  if (model.experts) {
    layer +=
        3 * d(model.hidden_size) *
        (d(model.experts->routed) * d(model.experts->intermediate_size) +
         d(model.experts->shared) *
             d(model.experts->shared_intermediate_size.value_or(model.experts->intermediate_size)));
  }
  if (model.latent) {
    layer += d(model.attention_heads) * (d(model.head_dim) + d(model.latent->value_dim)) *
             (d(model.latent->rank) + d(model.latent->query_rank) + d(model.hidden_size));
  }
  if (model.state) {
    layer += d(model.hidden_size) * (2 * d(model.state->key_heads) * d(model.state->key_dim) +
                                     3 * d(model.state->value_heads) * d(model.state->value_dim));
  }
  if (model.sparse) {
    layer += (d(model.hidden_size) + d(model.latent ? model.latent->query_rank : 0)) *
             d(model.sparse->index_dim) * (d(model.sparse->index_heads) + 2);
  }
  return std::max(d(model.layers) * layer, d(model.total_parameters.value_or(0))) +
         2 * d(model.vocabulary_size) * d(model.hidden_size);
}

void check_attention(const ModelConfig& model, const std::string& pointer, Problems& problems) {
  if (model.attention.empty() || std::ssize(model.attention) > model.layers) {
    problems.add(pointer + "/attention",
                 fmt::format("expected 1 to {} kinds, one for each layer, got {}", model.layers,
                             model.attention.size()));
  }
  const auto shape = [&](AttentionKind kind, const char* key, bool given) {
    const std::string name = write_value(kind).get<std::string>();
    if (has_kind(model, kind) && !given) {
      problems.add(pointer + "/" + key, fmt::format("{} layers need it, got \"none\"", name));
    } else if (given && !has_kind(model, kind)) {
      problems.add(pointer + "/" + key,
                   fmt::format("expected \"none\": /attention has no {} layer", name));
    }
  };
  shape(AttentionKind::window, "window", model.window.has_value());
  shape(AttentionKind::latent, "latent", model.latent.has_value());
  shape(AttentionKind::state, "state", model.state.has_value());
  if (model.latent && model.latent->rope_dim >= model.head_dim) {
    problems.add(pointer + "/latent/rope_dim",
                 fmt::format("expected less than /head_dim, {}, got {}", model.head_dim,
                             model.latent->rope_dim));
  }
  if (model.sparse && !has_kind(model, AttentionKind::full) &&
      !has_kind(model, AttentionKind::latent)) {
    problems.add(pointer + "/sparse",
                 "expected \"none\": /attention has no full and no latent layer");
  }
  if (model.resume_every && !has_kind(model, AttentionKind::window) &&
      !has_kind(model, AttentionKind::state)) {
    problems.add(pointer + "/resume_every",
                 "expected \"none\": /attention has no window and no state layer");
  }
}

void check_experts(const ModelConfig& model, const std::string& pointer, Problems& problems) {
  if (!model.experts) {
    return;
  }
  const ExpertsConfig& experts = *model.experts;
  if (experts.active > experts.routed) {
    problems.add(pointer + "/experts/active",
                 fmt::format("expected at most the routed experts, {}, got {}", experts.routed,
                             experts.active));
  }
  if (experts.dense_layers + experts.every > model.layers) {
    problems.add(pointer + (experts.dense_layers >= model.layers ? "/experts/dense_layers"
                                                                 : "/experts/every"),
                 fmt::format("expected that one of {} layers has experts at least", model.layers));
  }
}

void check_given_parameters(const ModelConfig& model, const std::string& pointer,
                            Problems& problems) {
  if (model.active_parameters && !model.total_parameters) {
    problems.add(pointer + "/total_parameters", "active_parameters needs it, got \"auto\"");
  }
  if (!model.total_parameters) {
    return;
  }
  const std::int64_t embedding = embedding_parameters(model);
  if (*model.total_parameters <= embedding) {
    problems.add(pointer + "/total_parameters",
                 fmt::format("expected more than embedding and head have, {}, got {}", embedding,
                             *model.total_parameters));
  }
  const std::int64_t active = model.active_parameters.value_or(*model.total_parameters);
  if (active > *model.total_parameters || active <= embedding) {
    problems.add(pointer + "/active_parameters",
                 fmt::format("expected more than embedding and head have, {}, and at most "
                             "total_parameters, {}, got {}",
                             embedding, *model.total_parameters, active));
  } else if (active < *model.total_parameters &&
             (!model.experts || model.experts->active == model.experts->routed)) {
    problems.add(pointer + "/experts",
                 "active_parameters below total_parameters need experts that are not all active");
  } else if (model.experts && !model.active_parameters) {
    problems.add(pointer + "/active_parameters", "total_parameters and experts need it");
  }
}

}  // namespace

void check_model(const ModelConfig& model, const std::string& pointer, Problems& problems) {
  const std::size_t before = problems.lines().size();
  if (model.kv_heads > 0 && model.attention_heads % model.kv_heads != 0) {
    problems.add(pointer + "/kv_heads", fmt::format("{} KV heads do not divide {} attention heads",
                                                    model.kv_heads, model.attention_heads));
  }
  check_attention(model, pointer, problems);
  check_experts(model, pointer, problems);
  check_given_parameters(model, pointer, problems);
  if (problems.lines().size() != before) {
    return;
  }
  constexpr double kMost = 9e18;
  if (rough_parameters(model) * ModelLimits::kElementBytes > kMost) {
    problems.add(pointer.empty() ? "/" : pointer,
                 fmt::format("expected weights of at most {:.0e} bytes in all", kMost));
  } else if (static_cast<double>(kv_bytes_per_token(model).value) *
                 static_cast<double>(model.context_window.value) >
             kMost) {
    problems.add(pointer + "/context_window",
                 fmt::format("expected that the KV of one takes at most {:.0e} bytes", kMost));
  }
}

bool is_dense(const ModelConfig& model) {
  return std::ranges::all_of(model.attention,
                             [](AttentionKind kind) { return kind == AttentionKind::full; }) &&
         !model.output_gate && !model.norm_over_heads && !model.sparse && !model.experts &&
         model.precision == PrecisionConfig{} && !model.kv_bytes_per_token &&
         !model.total_parameters;
}

LayerGroup layer_kind(const ModelConfig& model, std::int64_t layer) {
  return {.count = 1,
          .attention = attention_kind(model, layer),
          .has_experts = layer_has_experts(model, layer)};
}

std::vector<LayerGroup> layer_groups(const ModelConfig& model) {
  std::vector<LayerGroup> groups;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const LayerGroup kind = layer_kind(model, layer);
    const auto found = std::ranges::find_if(groups, [&](const LayerGroup& group) {
      return group.attention == kind.attention && group.has_experts == kind.has_experts;
    });
    if (found == groups.end()) {
      groups.push_back(kind);
    } else {
      ++found->count;
    }
  }
  return groups;
}

Bytes format_bytes(NumberFormat format, std::int64_t elements) {
  // Bytes of 4096 elements.
  constexpr std::int64_t kUnit = 4096;
  const std::int64_t bytes = [format] {
    switch (format) {
      case NumberFormat::fp32:
        return 4 * kUnit;
      case NumberFormat::bf16:
        return 2 * kUnit;
      case NumberFormat::fp8:
        return kUnit + 1;
      case NumberFormat::int8:
        return kUnit;
      case NumberFormat::nvfp4:
        return kUnit / 2 + kUnit / 16;
      case NumberFormat::mxfp4:
        return kUnit / 2 + kUnit / 32;
      case NumberFormat::int4:
        return kUnit / 2 + kUnit * 5 / 2 / 128;
    }
    return std::int64_t{0};
  }();
  return Bytes(share_up(elements, bytes, kUnit));
}

Bytes index_bytes_per_token(const SparseConfig& sparse) {
  return Bytes(sparse.index_dim + 4 * divide_up(sparse.index_dim, 128));
}

Bytes state_bytes(const StateConfig& state) {
  // The convolution runs on 16-bit inputs.
  const std::int64_t seen = std::max<std::int64_t>(0, state.convolution - 1);
  return Bytes(state.value_heads * state.key_dim * state.value_dim * state.bytes_per_element +
               2 * seen *
                   (2 * state.key_heads * state.key_dim + state.value_heads * state.value_dim));
}

Bytes kv_bytes_read_per_token_layer(const ModelConfig& model, std::int64_t layer) {
  if (model.kv_bytes_per_token && attention_kind(model, layer) != AttentionKind::state) {
    return kv_bytes_per_token_layer(model, layer);
  }
  return token_row_bytes(model, attention_kind(model, layer));
}

Bytes kv_bytes_per_token_layer(const ModelConfig& model, std::int64_t layer) {
  if (model.kv_bytes_per_token) {
    // State layers keep no tokens, unless there are no others.
    const auto keeps = [&](std::int64_t one) {
      return attention_kind(model, one) != AttentionKind::state;
    };
    std::int64_t keeping = 0;
    std::int64_t before = 0;
    for (std::int64_t one = 0; one < model.layers; ++one) {
      before += keeps(one) && one < layer ? 1 : 0;
      keeping += keeps(one) ? 1 : 0;
    }
    const std::int64_t all = model.kv_bytes_per_token->value;
    if (keeping == 0) {
      return Bytes(all / model.layers + (layer < all % model.layers ? 1 : 0));
    }
    return keeps(layer) ? Bytes(all / keeping + (before < all % keeping ? 1 : 0)) : Bytes(0);
  }
  const AttentionKind kind = attention_kind(model, layer);
  const Bytes row = token_row_bytes(model, kind);
  if (kind == AttentionKind::window && model.resume_every) {
    const std::int64_t kept = std::min(*model.window, *model.resume_every).value;
    return Bytes(share_up(row.value, kept, model.resume_every->value));
  }
  if (kind == AttentionKind::state) {
    return model.resume_every
               ? Bytes(divide_up(state_bytes(*model.state).value, model.resume_every->value))
               : Bytes(0);
  }
  return has_index(model, kind) ? row + index_bytes_per_token(*model.sparse) : row;
}

Bytes kv_bytes_per_token_layer(const ModelConfig& model) {
  Bytes most;
  const std::int64_t different =
      model.kv_bytes_per_token && !model.state
          ? 1
          : std::min<std::int64_t>(model.layers, std::ssize(model.attention));
  for (std::int64_t layer = 0; layer < different; ++layer) {
    most = std::max(most, kv_bytes_per_token_layer(model, layer));
  }
  return most;
}

Bytes kv_bytes_per_token(const ModelConfig& model) {
  if (model.kv_bytes_per_token) {
    return *model.kv_bytes_per_token;
  }
  if (model.attention.size() == 1) {
    return kv_bytes_per_token_layer(model, 0) * model.layers;
  }
  Bytes sum;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    sum += kv_bytes_per_token_layer(model, layer);
  }
  return sum;
}

Bytes kv_bytes(const ModelConfig& model, Tokens tokens) {
  return kv_bytes_per_token(model) * tokens.value;
}

Bytes kv_bytes_per_request(const ModelConfig& model) {
  Bytes sum;
  for (const LayerGroup& group : layer_groups(model)) {
    if (group.attention == AttentionKind::state) {
      sum += state_bytes(*model.state) * group.count;
    } else if (group.attention == AttentionKind::window && model.resume_every &&
               !model.kv_bytes_per_token) {
      sum += token_row_bytes(model, group.attention) *
             (std::min(*model.window, model.context_window).value * group.count);
    }
  }
  return sum;
}

LayerParameters layer_parameters(const ModelConfig& model, const LayerGroup& kind) {
  const std::int64_t matrices = (model.gated_mlp ? 3 : 2) * model.hidden_size;
  if (parameters_are_given(model)) {
    const std::int64_t embedding = embedding_parameters(model);
    const std::int64_t total = *model.total_parameters - embedding;
    const std::int64_t active =
        model.active_parameters.value_or(*model.total_parameters) - embedding;
    std::int64_t routed = 0;
    if (model.experts && active < total) {
      // total = rest + routed, active = rest + routed x active / routed experts.
      const std::int64_t idle = model.experts->routed - model.experts->active;
      routed = std::min(total, share_up(total - active, model.experts->routed, idle));
    }
    return {.mlp = (total - routed) / model.layers, .routed = routed / model.layers};
  }
  LayerParameters result{.attention = attention_parameters(model, kind.attention)};
  if (kind.has_experts) {
    const ExpertsConfig& experts = *model.experts;
    result.mlp = experts.shared *
                 experts.shared_intermediate_size.value_or(experts.intermediate_size) * matrices;
    result.router = model.hidden_size * experts.routed;
    result.routed = experts.routed * experts.intermediate_size * matrices;
  } else {
    result.mlp = matrices * model.intermediate_size;
  }
  return result;
}

std::int64_t parameters_per_layer(const ModelConfig& model, std::int64_t layer) {
  return layer_parameters(model, layer_kind(model, layer)).sum();
}

std::int64_t parameters(const ModelConfig& model) {
  if (parameters_are_given(model)) {
    return *model.total_parameters;
  }
  std::int64_t sum = embedding_parameters(model);
  for (const LayerGroup& group : layer_groups(model)) {
    sum += group.count * layer_parameters(model, group).sum();
  }
  return sum;
}

std::int64_t active_parameters(const ModelConfig& model) {
  if (parameters_are_given(model)) {
    return model.active_parameters.value_or(*model.total_parameters);
  }
  std::int64_t sum = parameters(model);
  for (const LayerGroup& group : layer_groups(model)) {
    if (group.has_experts) {
      const std::int64_t one = layer_parameters(model, group).routed / model.experts->routed;
      sum -= group.count * one * (model.experts->routed - model.experts->active);
    }
  }
  return sum;
}

double touched_experts(const ExpertsConfig& experts, double tokens) {
  const double all = static_cast<double>(experts.routed);
  if (experts.active >= experts.routed) {
    return all;
  }
  const double missed = 1 - static_cast<double>(experts.active) / all;
  return all * (1 - std::pow(missed, tokens));
}

Bytes weight_bytes_in(const ModelConfig& model, const std::optional<NumberFormat>& format,
                      std::int64_t elements) {
  return format ? format_bytes(*format, elements) : Bytes(elements * model.bytes_per_element);
}

Bytes weight_bytes_per_layer(const ModelConfig& model, const LayerGroup& kind) {
  const LayerParameters p = layer_parameters(model, kind);
  return weight_bytes_in(model, model.precision.attention, p.attention) +
         weight_bytes_in(model, model.precision.mlp, p.mlp) +
         weight_bytes_in(model, std::nullopt, p.router) +
         weight_bytes_in(model, model.precision.experts, p.routed);
}

Bytes weight_bytes_per_layer(const ModelConfig& model, std::int64_t layer) {
  return weight_bytes_per_layer(model, layer_kind(model, layer));
}

Bytes weight_bytes(const ModelConfig& model) {
  Bytes sum = Bytes(embedding_parameters(model) * model.bytes_per_element);
  for (const LayerGroup& group : layer_groups(model)) {
    sum += weight_bytes_per_layer(model, group) * group.count;
  }
  return sum;
}

Bytes lm_head_bytes(const ModelConfig& model) {
  return Bytes(model.vocabulary_size * model.hidden_size * model.bytes_per_element);
}

double linear_flops_per_token_layer(const ModelConfig& model) {
  return 2.0 * static_cast<double>(parameters_per_layer(model));
}

double attention_flops_per_pair_layer(const ModelConfig& model) {
  return 4.0 * static_cast<double>(model.attention_heads * model.head_dim);
}

HeadCounts heads_per_gpu(const ModelConfig& model, std::int64_t gpus) {
  return {.attention = divide_up(model.attention_heads, gpus),
          .kv = divide_up(model.kv_heads, gpus)};
}

std::vector<MatrixShape> layer_matrices(const ModelConfig& model, std::int64_t gpus) {
  return layer_matrices(model, {.count = model.layers}, gpus, gpus);
}

std::vector<MatrixShape> layer_matrices(const ModelConfig& model, const LayerGroup& kind,
                                        std::int64_t rank_gpus, std::int64_t stage_gpus) {
  const std::int64_t hidden = model.hidden_size;
  std::vector<MatrixShape> matrices;
  if (kind.attention == AttentionKind::full || kind.attention == AttentionKind::window) {
    const HeadCounts heads = heads_per_gpu(model, rank_gpus);
    const std::int64_t query_width = heads.attention * model.head_dim;
    const std::int64_t kv_width = heads.kv * model.head_dim;
    matrices = {{"qkv", (model.output_gate ? 2 : 1) * query_width + 2 * kv_width, hidden},
                {"attention_output", hidden, query_width}};
  } else if (kind.attention == AttentionKind::latent) {
    const LatentConfig& latent = *model.latent;
    const std::int64_t heads = heads_per_gpu(model, rank_gpus).attention;
    const std::int64_t row = latent.rank + latent.rope_dim;
    const std::int64_t queries = heads * model.head_dim;
    if (latent.query_rank > 0) {
      matrices = {{"attention_input", latent.query_rank + row, hidden},
                  {"attention_queries", queries, latent.query_rank}};
    } else {
      matrices = {{"attention_input", queries + row, hidden}};
    }
    matrices.push_back({"attention_values",
                        heads * (model.head_dim - latent.rope_dim + latent.value_dim),
                        latent.rank});
    matrices.push_back({"attention_output", hidden, heads * latent.value_dim});
  } else {
    const StateConfig& state = *model.state;
    const std::int64_t values = divide_up(state.value_heads * state.value_dim, rank_gpus);
    const std::int64_t keys = divide_up(state.key_heads * state.key_dim, rank_gpus);
    matrices = {{"attention_input", 2 * keys + 2 * values, hidden},
                {"attention_output", hidden, values}};
  }
  if (has_index(model, kind.attention)) {
    const SparseConfig& sparse = *model.sparse;
    const bool from_queries =
        kind.attention == AttentionKind::latent && model.latent->query_rank > 0;
    matrices.push_back({"attention_index", sparse.index_heads * sparse.index_dim,
                        from_queries ? model.latent->query_rank : hidden});
    matrices.push_back({"attention_index_key", sparse.index_dim + sparse.index_heads, hidden});
  }
  const auto add_mlp = [&](const char* up, const char* down, std::int64_t width) {
    const std::int64_t own = divide_up(width, stage_gpus);
    matrices.push_back({up, (model.gated_mlp ? 2 : 1) * own, hidden});
    matrices.push_back({down, hidden, own});
  };
  if (!kind.has_experts) {
    add_mlp("mlp_up", "mlp_down", model.intermediate_size);
    return matrices;
  }
  const ExpertsConfig& experts = *model.experts;
  matrices.push_back({"router", experts.routed, hidden});
  if (experts.shared > 0) {
    add_mlp("shared_up", "shared_down",
            experts.shared * experts.shared_intermediate_size.value_or(experts.intermediate_size));
  }
  return matrices;
}

MatrixShape head_matrix(const ModelConfig& model, std::int64_t gpus) {
  return {"lm_head", divide_up(model.vocabulary_size, gpus), model.hidden_size};
}

double lm_head_flops_per_token(const ModelConfig& model) {
  return 2.0 * static_cast<double>(model.vocabulary_size * model.hidden_size);
}

}  // namespace kvtier
