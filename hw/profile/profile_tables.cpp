#include "hw/profile/profile_tables.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

Shape shape_of(const MatrixShape& matrix, std::int64_t element_bytes) {
  return {{"n", matrix.n}, {"k", matrix.k}, {"element_bytes", element_bytes}};
}

template <class Counts>
const ProfileTable* find_table_that(const Profile& profile, OperationId operation,
                                    const Shape& shape, Counts counts) {
  const ProfileTable* found = nullptr;
  for (const ProfileTable* table : find_tables(profile, operation)) {
    const bool is_plain = !table->dtype || !shape.contains("element_bytes") ||
                          table->dtype == plain_type(shape.at("element_bytes"));
    if (is_plain && counts(table->variant) && table->shape == shape && !table->cells.empty() &&
        (found == nullptr ||
         (found->cache == CacheState::hot && table->cache == CacheState::cold))) {
      found = table;
    }
  }
  return found;
}

DataType type_of_format(NumberFormat format) {
  switch (format) {
    case NumberFormat::fp32:
      return DataType::fp32;
    case NumberFormat::bf16:
      return DataType::bf16;
    case NumberFormat::fp8:
      return DataType::fp8;
    case NumberFormat::int8:
      return DataType::int8;
    case NumberFormat::nvfp4:
      return DataType::nvfp4;
    case NumberFormat::mxfp4:
      return DataType::mxfp4;
    case NumberFormat::int4:
      return DataType::int4;
  }
  KVTIER_ASSERT(false, "every format has a type");
}

/// Widths of a published model whose latent attention was measured with its projections.
struct PublishedLatent {
  const char* variant;
  std::int64_t hidden_size;
  std::int64_t head_dim;
  LatentConfig latent;
  std::optional<SparseConfig> sparse;
};
const std::array<PublishedLatent, 3>& published_latent() {
  static const std::array<PublishedLatent, 3> kModels{
      PublishedLatent{kModuleVariant, 7168, 192, {512, 64, 1536, 128}, {}},
      PublishedLatent{
          "sparse_module", 7168, 192, {512, 64, 1536, 128}, SparseConfig{Tokens(2048), 64, 128}},
      PublishedLatent{"sparse_module_glm",
                      6144,
                      256,
                      {512, 64, 2048, 256},
                      SparseConfig{Tokens(2048), 32, 128}},
  };
  return kModels;
}

/// The first of `types` that `found` has a table of, marked as extrapolated if it is not the first.
template <class Found>
std::optional<ShapedTable> first_type(std::span<const DataType> types, Found found) {
  for (const DataType type : types) {
    if (std::optional<ShapedTable> shaped = found(type)) {
      shaped->extrapolated = shaped->extrapolated || type != types.front();
      return shaped;
    }
  }
  return std::nullopt;
}

double size_of(const ProfileTable& table, const char* key) {
  return static_cast<double>(table.shape.at(key));
}

WorkOf work_of_matrix(const ProfileTable& table) {
  return [matrix = MatrixShape{"", table.shape.at("n"), table.shape.at("k")},
          bytes = table.dtype ? bytes_of(*table.dtype) : size_of(table, "element_bytes")](
             double tokens, double) { return matrix_work(matrix, bytes, tokens); };
}

/// Each expert that a token chooses is read once, and the activations of each choice are moved.
WorkOf work_of_experts(const ProfileTable& table) {
  const double hidden = size_of(table, "hidden_size");
  const double width = size_of(table, "intermediate_size");
  const double groups = size_of(table, "expert_gpus");
  const double bytes = 3 * hidden * width * bytes_of(table.dtype.value_or(DataType::bf16));
  const ExpertsConfig experts{.routed = table.shape.at("experts"),
                              .active = table.shape.at("top_k")};
  return [=](double tokens, double) -> Work {
    const double chosen = tokens * static_cast<double>(experts.active) / groups;
    return {6 * chosen * hidden * width, touched_experts(experts, tokens) / groups * bytes +
                                             kActivationBytes * chosen * 2 * (hidden + 3 * width)};
  };
}

/// Latent attention with its projections.
WorkOf work_of_latent_attention(const ProfileTable& table, bool is_prefill) {
  const auto& known = published_latent();
  const auto* found = std::ranges::find(known, table.variant, &PublishedLatent::variant);
  const PublishedLatent& model = found == known.end() ? known.front() : *found;
  const LatentConfig& latent = model.latent;
  const auto d = [](std::int64_t size) { return static_cast<double>(size); };
  const double heads = size_of(table, "attention_heads");
  const double row = d(latent.rank + latent.rope_dim);
  double weights = d(model.hidden_size) * (d(latent.query_rank) + row) +
                   heads * (d(latent.query_rank * model.head_dim) +
                            d(latent.rank * (model.head_dim - latent.rope_dim + latent.value_dim)) +
                            d(latent.value_dim * model.hidden_size));
  double of_index_pair = 0;
  if (model.sparse) {
    const double index = d(model.sparse->index_heads * model.sparse->index_dim);
    weights += d(latent.query_rank) * index + d(model.hidden_size * model.sparse->index_dim);
    of_index_pair = 2 * index;
  }
  const double of_pair =
      2 * heads * (is_prefill ? d(model.head_dim + latent.value_dim) : row + d(latent.rank));
  const double weight_bytes = weights * bytes_of(table.dtype.value_or(DataType::bf16));
  const double row_bytes = is_prefill ? 0 : row * (table.dtype == DataType::bf16 ? 2 : 1);
  const std::int64_t window = model.sparse ? model.sparse->top_k.value : 0;
  return [=](double rows, double context) -> Work {
    const double seen = window == 0 ? context : std::min(context, static_cast<double>(window));
    const double pairs = is_prefill ? attention_pairs(rows, context, window) : rows * seen;
    const double all_pairs = is_prefill ? attention_pairs(rows, context, 0) : rows * context;
    return {2 * rows * weights + pairs * of_pair + all_pairs * of_index_pair,
            weight_bytes + rows * seen * row_bytes};
  };
}

/// Each state is read and written once.
WorkOf work_of_state(const ProfileTable& table, bool is_prefill) {
  const double elements =
      size_of(table, "value_heads") * size_of(table, "key_dim") * size_of(table, "value_dim");
  constexpr double kStateBytes = 2 * sizeof(float);
  return [=](double tokens, double) -> Work {
    return {kStateOperations * tokens * elements,
            kStateBytes * elements * (is_prefill ? 1 : tokens)};
  };
}

}  // namespace

WorkOf work_of(const ProfileTable& table) {
  const Shape& shape = table.shape;
  switch (table.operation) {
    case OperationId::gemm:
      return work_of_matrix(table);
    case OperationId::prefill_attention:
      return [at = attention_of(table), window = window_of(table)](double added, double past) {
        return extend_attention_work(at, added, past, window);
      };
    case OperationId::decode_attention:
      return [at = attention_of(table), window = window_of(table)](double batch, double context) {
        const double seen = window == 0 ? context : std::min(context, static_cast<double>(window));
        return decode_attention_work(at, batch * seen);
      };
    case OperationId::elementwise:
      return [width = shape.at("width"), bytes = shape.at("element_bytes")](double rows, double) {
        return rows_work(width, bytes, rows);
      };
    case OperationId::rotation:
      return [width = shape.at("heads") * shape.at("head_dim"), bytes = shape.at("element_bytes")](
                 double rows, double) { return rows_work(width, bytes, rows); };
    case OperationId::copy_h2d:
    case OperationId::copy_d2h:
    case OperationId::copy_duplex:
      // Every byte is read from the device's memory or written to it.
      return [](double bytes, double) { return Work{0, bytes}; };
    case OperationId::quantize:
      return [](double rows, double width) { return Work{0, rows * width}; };
    case OperationId::moe:
      return work_of_experts(table);
    case OperationId::mla_prefill:
      return work_of_latent_attention(table, true);
    case OperationId::mla_decode:
      return work_of_latent_attention(table, false);
    case OperationId::state_prefill:
      return work_of_state(table, true);
    case OperationId::state_decode:
      return work_of_state(table, false);
    default:
      KVTIER_ASSERT(false, "only work on a device and copies are interpolated");
  }
}

Work work_at(const WorkOf& work, const ProfileCell& cell) {
  const double second = cell.at.size() > 1 ? static_cast<double>(cell.at[1]) : 0;
  return work(static_cast<double>(cell.at[0]), second);
}

const char* latent_variant(const ModelConfig& model) {
  const auto& known = published_latent();
  const auto* const found = std::ranges::find_if(known, [&](const PublishedLatent& one) {
    return model.latent == one.latent && model.sparse == one.sparse &&
           model.hidden_size == one.hidden_size && model.head_dim == one.head_dim;
  });
  return found == known.end() ? nullptr : found->variant;
}

Shape shape_of(const AttentionShape& shape) {
  return {{"attention_heads", shape.attention_heads},
          {"kv_heads", shape.kv_heads},
          {"head_dim", shape.head_dim},
          {"element_bytes", shape.element_bytes}};
}

const ProfileTable* find_table(const Profile& profile, OperationId operation, const Shape& shape,
                               std::optional<std::string_view> variant) {
  return find_table_that(profile, operation, shape,
                         [variant](const std::string& one) { return !variant || one == *variant; });
}

const ProfileTable* find_matrix_table(const Profile& profile, const MatrixShape& matrix,
                                      std::int64_t element_bytes) {
  return find_table_that(profile, OperationId::gemm, shape_of(matrix, element_bytes),
                         [](const std::string&) { return true; });
}

const ProfileTable* find_attention_table(const Profile& profile, OperationId operation,
                                         const AttentionShape& shape, KeyPositions positions) {
  const bool rotated = positions == KeyPositions::decoupled;
  return find_table_that(profile, operation, shape_of(shape), [rotated](const std::string& one) {
    return (one == kRotatedVariant) == rotated;
  });
}

std::optional<ShapedTable> table_of_matrix(const Profile& profile, const MatrixShape& matrix,
                                           DataType type) {
  const std::int64_t bytes = std::llround(bytes_of(type));
  if (plain_type(bytes) == type) {
    if (const ProfileTable* table = find_matrix_table(profile, matrix, bytes)) {
      return ShapedTable{.table = *table};
    }
  }
  return interpolate_matrix(profile, matrix.n, matrix.k, type);
}

std::optional<NumberFormat> format_of_matrix(const ModelConfig& model, std::string_view matrix) {
  constexpr std::array kMlp{"mlp_up", "mlp_down", "shared_up", "shared_down"};
  return is_matrix_of_attention(matrix)                  ? model.precision.attention
         : std::ranges::find(kMlp, matrix) != kMlp.end() ? model.precision.mlp
                                                         : std::nullopt;
}

bool is_matrix_of_attention(std::string_view matrix) {
  return matrix == "qkv" || matrix.starts_with("attention");
}

DataType type_of_matrix(const ModelConfig& model, std::string_view matrix) {
  const std::optional<NumberFormat> format = format_of_matrix(model, matrix);
  return format ? type_of_format(*format)
                : plain_type(model.bytes_per_element).value_or(DataType::bf16);
}

std::optional<ShapedTable> table_of_matrix(const Profile& profile, const ModelConfig& model,
                                           const MatrixShape& matrix) {
  const DataType type = type_of_matrix(model, matrix.name);
  if (type == DataType::fp8 && model.experts) {
    if (auto table = table_of_matrix(profile, matrix, DataType::fp8_block)) {
      return table;
    }
  }
  return table_of_matrix(profile, matrix, type);
}

AttentionShape measured_attention(const ModelConfig& model, std::int64_t gpus) {
  AttentionShape shape = attention_shape(model, gpus);
  if (model.precision.kv) {
    shape.element_bytes =
        std::max<std::int64_t>(1, std::llround(bytes_of(type_of_format(*model.precision.kv))));
  }
  return shape;
}

std::optional<ShapedTable> table_of_attention(const Profile& profile, OperationId operation,
                                              const AttentionShape& shape, std::int64_t window,
                                              KeyPositions positions) {
  std::optional<ShapedTable> found;
  const ProfileTable* table =
      window == 0 ? find_attention_table(profile, operation, shape, positions) : nullptr;
  if (table != nullptr) {
    found = ShapedTable{.table = *table};
  } else if (const auto type = plain_type(shape.element_bytes);
             type && positions == KeyPositions::embedded) {
    // Elements of one byte take a table of twice the bytes, but none of four take one of half.
    const std::array types{*type, bytes_of(*type) <= 1 ? DataType::bf16 : *type};
    found = first_type(types, [&](DataType one) {
      return interpolate_attention(profile, operation, shape, window, one);
    });
  }
  if (found && operation == OperationId::prefill_attention) {
    found->past_by_law = add_past_by_law(found->table);
  }
  return found;
}

std::optional<ShapedTable> table_of_latent_attention(const Profile& profile, OperationId operation,
                                                     const ModelConfig& model, std::int64_t gpus) {
  const char* const variant = latent_variant(model);
  if (variant == nullptr) {
    return std::nullopt;
  }
  const DataType wanted = type_of_matrix(model, "attention_output");
  const std::array types{wanted == DataType::fp8 ? DataType::fp8_block : wanted, DataType::bf16};
  const std::int64_t heads = heads_per_gpu(model, gpus).attention;
  return first_type(types, [&](DataType type) -> std::optional<ShapedTable> {
    for (const ProfileTable* table : find_tables(profile, operation, variant)) {
      if (!table->cells.empty() && table->shape.at("attention_heads") == heads &&
          table->dtype == type) {
        // Tables of quantized projections are of KV in 8 bits, others of 16.
        const bool has_narrow_kv = type != DataType::bf16;
        return ShapedTable{.table = *table,
                           .extrapolated = model.precision.kv.has_value() != has_narrow_kv};
      }
    }
    return std::nullopt;
  });
}

std::optional<ShapedTable> table_of_experts(const Profile& profile, const ModelConfig& model,
                                            std::int64_t gpus, std::int64_t groups) {
  const std::optional<NumberFormat>& format = model.precision.experts;
  // Weights of 4 bits alone: the table is of activations in 16 bits.
  const bool is_weight_only = format == NumberFormat::mxfp4 || format == NumberFormat::int4;
  const std::optional<NumberFormat>& compute = model.precision.compute;
  const bool is_mx = format == NumberFormat::mxfp4 && compute == NumberFormat::fp8;
  if (is_weight_only && !is_mx &&
      (compute == NumberFormat::fp8 || compute == NumberFormat::int8 ||
       compute == NumberFormat::nvfp4)) {
    return std::nullopt;
  }
  const DataType wanted = is_mx    ? DataType::mxfp4_mxfp8
                          : format ? type_of_format(*format)
                                   : plain_type(model.bytes_per_element).value_or(DataType::bf16);
  const std::array types{wanted == DataType::fp8 ? DataType::fp8_block : wanted, wanted};
  const ExpertsConfig& experts = *model.experts;
  const Shape shape{{"hidden_size", model.hidden_size},
                    {"intermediate_size", experts.intermediate_size * groups / gpus},
                    {"experts", experts.routed},
                    {"top_k", experts.active},
                    {"expert_gpus", groups}};
  return first_type(types, [&](DataType type) -> std::optional<ShapedTable> {
    for (const ProfileTable* table : find_tables(profile, OperationId::moe)) {
      if (!table->cells.empty() && table->dtype == type && table->shape == shape) {
        return ShapedTable{.table = *table};
      }
    }
    return std::nullopt;
  });
}

std::optional<ShapedTable> table_of_state(const Profile& profile, OperationId operation,
                                          const ModelConfig& model, std::int64_t gpus) {
  const StateConfig& state = *model.state;
  const Shape shape{{"key_heads", std::max<std::int64_t>(1, state.key_heads / gpus)},
                    {"value_heads", std::max<std::int64_t>(1, state.value_heads / gpus)},
                    {"key_dim", state.key_dim},
                    {"value_dim", state.value_dim}};
  const ProfileTable* const table = find_table(profile, operation, shape);
  return table == nullptr ? std::nullopt : std::optional(ShapedTable{.table = *table});
}

Shape step_shape(const ModelConfig& model, std::int64_t element_bytes) {
  return {{"layers", model.layers},
          {"hidden_size", model.hidden_size},
          {"attention_heads", model.attention_heads},
          {"kv_heads", model.kv_heads},
          {"head_dim", model.head_dim},
          {"intermediate_size", model.intermediate_size},
          {"gated_mlp", model.gated_mlp ? 1 : 0},
          {"vocabulary_size", model.vocabulary_size},
          {"element_bytes", element_bytes}};
}

ModelConfig model_of_steps(const ProfileTable& table) {
  const Shape& shape = table.shape;
  ModelConfig model;
  model.layers = shape.at("layers");
  model.hidden_size = shape.at("hidden_size");
  model.attention_heads = shape.at("attention_heads");
  model.kv_heads = shape.at("kv_heads");
  model.head_dim = shape.at("head_dim");
  model.intermediate_size = shape.at("intermediate_size");
  model.gated_mlp = shape.at("gated_mlp") != 0;
  model.vocabulary_size = shape.at("vocabulary_size");
  model.bytes_per_element = shape.at("element_bytes");
  model.kv_bytes_per_element = model.bytes_per_element;
  return model;
}

Tokens decode_context(const ProfileCell& cell) { return Tokens(cell.at[2] + 1) * cell.at[0]; }

ProfileGrid make_grid(const Profile& profile, const ProfileTable& table) {
  return make_grid(profile, table, table.cells);
}

ProfileGrid make_grid(const Profile& profile, const ProfileTable& table,
                      std::span<const ProfileCell> cells) {
  const bool is_matrix = table.operation == OperationId::gemm;
  const Rates rates = device_rates(profile, is_matrix ? type_of(table) : std::nullopt, table.cache);
  ProfileGrid::Limit limit;
  switch (table.operation) {
    case OperationId::moe:
    case OperationId::mla_prefill:
    case OperationId::mla_decode:
    case OperationId::quantize:
    case OperationId::state_prefill:
    case OperationId::state_decode:
      // No limit of the device. Beyond the grid, time is proportional to the sizes.
      limit = [](double first, double second) { return 1e-18 * first * std::max(1.0, second); };
      break;
    default:
      limit = [work = work_of(table), rates](double first, double second) {
        return seconds_of(work(first, second), rates);
      };
      break;
  }
  // Matrices in a named format come from an engine, which has a kernel for each range of tokens.
  const auto falls =
      is_matrix && table.dtype ? ProfileGrid::Falls::kept : ProfileGrid::Falls::noise;
  return {cells, std::move(limit), falls};
}

}  // namespace kvtier
