#include "hw/profile/profile_timing.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include <fmt/format.h>

#include "hw/profile/profile_shapes.hpp"
#include "hw/timing/roofline.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/statistics.hpp"

namespace kvtier {
namespace {

using Shape = std::map<std::string, std::int64_t>;

Shape shape_of(const MatrixShape& matrix, std::int64_t element_bytes) {
  return {{"n", matrix.n}, {"k", matrix.k}, {"element_bytes", element_bytes}};
}

Shape shape_of(const AttentionShape& shape) {
  return {{"attention_heads", shape.attention_heads},
          {"kv_heads", shape.kv_heads},
          {"head_dim", shape.head_dim},
          {"element_bytes", shape.element_bytes}};
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

const ProfileTable* find_table(const Profile& profile, OperationId operation, const Shape& shape,
                               std::string_view variant) {
  return find_table_that(profile, operation, shape,
                         [variant](const std::string& one) { return one == variant; });
}

std::string matrix_text(std::int64_t n, std::int64_t k, std::int64_t element_bytes) {
  return fmt::format("{} x {} in {} B", n, k, element_bytes);
}

std::string attention_text(const Shape& shape) {
  return fmt::format("{} heads, {} KV heads, {} wide in {} B", shape.at("attention_heads"),
                     shape.at("kv_heads"), shape.at("head_dim"), shape.at("element_bytes"));
}

/// The shapes of one operation that a profile has, as messages name them.
std::string known_shapes(const Profile& profile, OperationId operation) {
  std::vector<std::string> texts;
  for (const ProfileTable* table : find_tables(profile, operation)) {
    if (table->cells.empty()) {
      continue;
    }
    std::string text = operation == OperationId::gemm
                           ? matrix_text(table->shape.at("n"), table->shape.at("k"),
                                         table->shape.at("element_bytes"))
                           : attention_text(table->shape);
    if (std::ranges::find(texts, text) == texts.end()) {
      texts.push_back(std::move(text));
    }
  }
  if (operation == OperationId::gemm) {
    for (const ProfileTable* table : find_tables(profile, OperationId::gemm_grid)) {
      texts.push_back(
          fmt::format("a grid of n and k in {}", to_string(table->dtype.value_or(DataType::bf16))));
    }
  }
  constexpr std::size_t kShown = 8;
  if (texts.size() > kShown) {
    const std::size_t more = texts.size() - kShown;
    texts.resize(kShown);
    texts.push_back(fmt::format("{} more", more));
  }
  return texts.empty() ? "none" : fmt::format("{}", fmt::join(texts, "; "));
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

/// Rows are read and written once. A kernel takes as long at least as the shortest ones measured on
/// RTX PRO 6000 and H100, 2.5 us; residuals are added by the norm behind them.
ProfileGrid::Limit element_roofline(OperationId operation, std::string_view variant,
                                    const Shape& shape, const Rates& rates) {
  constexpr double kShortestKernel = 2.5e-6;
  const double floor = variant == "residual" ? 0 : kShortestKernel;
  const std::int64_t width = operation == OperationId::rotation
                                 ? shape.at("heads") * shape.at("head_dim")
                                 : shape.at("width");
  return [=, bytes = shape.at("element_bytes")](double rows, double) {
    return std::max(floor, 2 * rows_seconds(width, bytes, rows, rates));
  };
}

std::vector<MatrixShape> all_matrices(const ModelConfig& model, std::int64_t gpus) {
  std::vector<MatrixShape> matrices = layer_matrices(model, gpus);
  matrices.push_back(head_matrix(model, gpus));
  return matrices;
}

void add(ProfileGrid::Time& sum, const ProfileGrid::Time& term, double count = 1) {
  sum.seconds += term.seconds * count;
  sum.extrapolated = sum.extrapolated || term.extrapolated;
}

}  // namespace

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

/// nullopt: /model/bytes_per_element.
std::optional<NumberFormat> format_of_matrix(const ModelConfig& model, std::string_view matrix) {
  const bool is_attention = matrix == "qkv" || matrix == "attention_output";
  const bool is_mlp = matrix == "mlp_up" || matrix == "mlp_down";
  return is_attention ? model.precision.attention : is_mlp ? model.precision.mlp : std::nullopt;
}

DataType type_of_matrix(const ModelConfig& model, std::string_view matrix) {
  const std::optional<NumberFormat> format = format_of_matrix(model, matrix);
  return format ? type_of_format(*format)
                : plain_type(model.bytes_per_element).value_or(DataType::bf16);
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
                                              const AttentionShape& shape, KeyPositions positions) {
  std::optional<ShapedTable> found;
  if (const ProfileTable* table = find_attention_table(profile, operation, shape, positions)) {
    found = ShapedTable{.table = *table};
  } else if (const auto type = plain_type(shape.element_bytes);
             type && positions == KeyPositions::embedded) {
    found = interpolate_attention(profile, operation, shape, 0, *type);
  }
  if (found && operation == OperationId::prefill_attention) {
    found->past_by_law = add_past_by_law(found->table);
  }
  return found;
}

std::map<std::string, std::int64_t> step_shape(const ModelConfig& model,
                                               std::int64_t element_bytes) {
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
  const Shape& shape = table.shape;
  ProfileGrid::Limit limit;
  switch (table.operation) {
    case OperationId::gemm:
      limit = [matrix = MatrixShape{"", shape.at("n"), shape.at("k")},
               bytes = table.dtype ? bytes_of(*table.dtype)
                                   : static_cast<double>(shape.at("element_bytes")),
               rates](double tokens, double) {
        return matrix_seconds(matrix, bytes, tokens, rates);
      };
      break;
    case OperationId::prefill_attention:
      limit = [at = attention_of(table), window = window_of(table), rates](double added,
                                                                           double past) {
        if (window == 0) {
          return extend_attention_seconds(at, added, past, rates);
        }
        return attention_pairs(added, past, window) * 4 *
               static_cast<double>(at.attention_heads * at.head_dim) / rates.flops_per_second;
      };
      break;
    case OperationId::decode_attention:
      limit = [at = attention_of(table), window = window_of(table), rates](double batch,
                                                                           double context) {
        const double seen = window == 0 ? context : std::min(context, static_cast<double>(window));
        return decode_attention_seconds(at, batch * seen, rates);
      };
      break;
    case OperationId::elementwise:
      limit = [width = shape.at("width"), bytes = shape.at("element_bytes"), rates](
                  double rows, double) { return rows_seconds(width, bytes, rows, rates); };
      break;
    case OperationId::rotation:
      limit = [width = shape.at("heads") * shape.at("head_dim"), bytes = shape.at("element_bytes"),
               rates](double rows, double) { return rows_seconds(width, bytes, rows, rates); };
      break;
    case OperationId::copy_h2d:
    case OperationId::copy_d2h:
    case OperationId::copy_duplex:
      // Every byte is read from the device's memory or written to it.
      limit = [rates](double bytes, double) { return bytes / rates.bytes_per_second; };
      break;
    case OperationId::moe:
    case OperationId::mla_prefill:
    case OperationId::mla_decode:
    case OperationId::quantize:
      // Their limit is not known here: beyond the grid time is in proportion to the sizes.
      limit = [](double first, double second) { return 1e-18 * first * std::max(1.0, second); };
      break;
    default:
      KVTIER_ASSERT(false, "only work on a device and copies are interpolated");
  }
  // Matrices of a format are those of an engine, which has a kernel for each range of tokens.
  const auto falls =
      is_matrix && table.dtype ? ProfileGrid::Falls::kept : ProfileGrid::Falls::noise;
  return {cells, std::move(limit), falls};
}

ProfileTiming::ProfileTiming(const ModelConfig& model, const HardwareConfig& hardware,
                             KeyPositions positions, std::int64_t max_batch)
    : layers_(model.layers),
      iteration_overhead_(hardware.efficiency.iteration_overhead),
      attained_(attained_rates(hardware)),
      attention_(measured_attention(model, hardware.gpus)),
      all_reduces_(layer_all_reduces(model, hardware)),
      hidden_bytes_(static_cast<double>(model.hidden_size) * kActivationBytes) {
  KVTIER_ASSERT(max_batch >= 1, "a timing model serves at least one request");
  KVTIER_ASSERT(hardware.profile && hardware.profile->loaded, "the profile has been read");
  const Profile& profile = *hardware.profile->loaded;
  const std::int64_t gpus = hardware.gpus;

  const auto matrix_work = [&](const MatrixShape& matrix) {
    TokenWork work{.count = 1, .roofline = {}, .grid = {}, .extrapolated = false};
    const DataType type = type_of_matrix(model, matrix.name);
    if (const auto shaped = table_of_matrix(profile, matrix, type)) {
      work.grid.emplace(make_grid(profile, shaped->table));
      work.extrapolated = shaped->extrapolated;
    } else {
      KVTIER_ASSERT(hardware.unmeasured == Unmeasured::roofline, "every matrix was measured");
      const bool is_plain = type == plain_type(model.bytes_per_element);
      from_roofline_.push_back(is_plain
                                   ? fmt::format("gemm {}", matrix.name)
                                   : fmt::format("gemm {} in {}", matrix.name, to_string(type)));
      Rates rates = attained_;
      if (!is_plain) {
        rates.flops_per_second =
            attained_flops(model, hardware, format_of_matrix(model, matrix.name), 1);
      }
      work.roofline = [matrix, bytes = bytes_of(type), rates](double tokens, double) {
        return matrix_seconds(matrix, bytes, tokens, rates);
      };
    }
    return work;
  };
  for (const MatrixShape& matrix : layer_matrices(model, gpus)) {
    layer_work_.push_back(matrix_work(matrix));
  }
  row_work_.push_back(matrix_work(head_matrix(model, gpus)));

  const auto rotates = [&](OperationId operation) {
    return find_attention_table(profile, operation, attention_, KeyPositions::decoupled) != nullptr;
  };
  const KeyPositions keys = positions == KeyPositions::decoupled &&
                                    rotates(OperationId::prefill_attention) &&
                                    rotates(OperationId::decode_attention)
                                ? KeyPositions::decoupled
                                : KeyPositions::embedded;
  const auto attention_grid = [&](OperationId operation) -> std::optional<ProfileGrid> {
    if (const auto shaped = table_of_attention(profile, operation, attention_, keys)) {
      past_by_law_ = past_by_law_ || shaped->past_by_law;
      attention_extrapolated_ = attention_extrapolated_ || shaped->extrapolated;
      return make_grid(profile, shaped->table);
    }
    KVTIER_ASSERT(hardware.unmeasured == Unmeasured::roofline, "attention was measured");
    from_roofline_.emplace_back(to_string(operation));
    return std::nullopt;
  };
  extend_ = attention_grid(OperationId::prefill_attention);
  decode_attention_ = attention_grid(OperationId::decode_attention);
  all_reduce_ = all_reduce_grid(profile, gpus);
  if (extend_ && decode_attention_) {
    mixed_ = mixed_factors(profile);
  }

  const auto add_optional = [&](std::vector<TokenWork>& to, double count, OperationId operation,
                                const char* variant, const Shape& shape) {
    if (const ProfileTable* table = find_table(profile, operation, shape, variant)) {
      to.push_back({.count = count,
                    .roofline = {},
                    .grid = make_grid(profile, *table),
                    .extrapolated = false});
    } else if (hardware.unmeasured == Unmeasured::roofline) {
      to.push_back({.count = count,
                    .roofline = element_roofline(operation, variant, shape, attained_),
                    .grid = {},
                    .extrapolated = false});
      from_roofline_.push_back(fmt::format("{} {}", to_string(operation), variant));
    } else {
      left_out_.push_back(fmt::format("{} {}", to_string(operation), variant));
    }
  };
  const auto rows = [&](std::int64_t width) {
    return Shape{{"width", width}, {"element_bytes", model.bytes_per_element}};
  };
  const std::int64_t kv_width = 2 * attention_.kv_heads * attention_.head_dim;
  const std::int64_t mlp_width = layer_matrices(model, gpus).back().k;
  using enum OperationId;
  add_optional(layer_work_, 2, elementwise, "norm", rows(model.hidden_size));
  add_optional(layer_work_, 2, elementwise, "residual", rows(model.hidden_size));
  add_optional(layer_work_, 1, elementwise, "activation", rows(mlp_width));
  add_optional(layer_work_, 1, elementwise, "kv_write", rows(kv_width));
  if (keys == KeyPositions::embedded) {
    add_optional(layer_work_, 1, rotation, "rope",
                 {{"heads", attention_.attention_heads + attention_.kv_heads},
                  {"head_dim", attention_.head_dim},
                  {"element_bytes", model.bytes_per_element}});
  }
  add_optional(token_work_, 1, elementwise, "embedding", rows(model.hidden_size));
  add_optional(row_work_, 1, elementwise, "sampling", rows(head_matrix(model, gpus).n));

  // Whole steps were measured on one device, of keys that are stored without positions.
  if (gpus == 1 && from_roofline_.empty()) {
    if (positions == KeyPositions::decoupled) {
      measure_overheads(profile, model);
    } else {
      const ProfileTiming measured(model, hardware, KeyPositions::decoupled, 1);
      prefill_overhead_ = measured.prefill_overhead_;
      prefill_less_second_ = measured.prefill_less_second_;
      prefill_less_in_run_ = measured.prefill_less_in_run_;
      decode_corrections_ = measured.decode_corrections_;
    }
  }
  decode_.reserve(static_cast<std::size_t>(max_batch));
  for (std::int64_t batch = 1; batch <= max_batch; ++batch) {
    decode_.push_back(make_decode(batch));
  }
}

std::optional<ProfileGrid> ProfileTiming::all_reduce_grid(const Profile& profile,
                                                          std::int64_t gpus) {
  if (gpus == 1) {
    return std::nullopt;
  }
  for (const char* variant : {"graph", "eager", "nccl"}) {
    for (const ProfileTable* table : find_tables(profile, OperationId::all_reduce, variant)) {
      std::vector<ProfileCell> cells;
      for (const ProfileCell& cell : table->cells) {
        if (cell.at[0] == gpus) {
          cells.push_back(cell);
          cells.back().at = {cell.at[1]};
        }
      }
      if (!cells.empty()) {
        // Beyond the largest message time is in proportion to the bytes.
        constexpr double kNoLimit = 1e-18;
        return ProfileGrid(cells, [](double bytes, double) { return bytes * kNoLimit; });
      }
    }
  }
  return std::nullopt;
}

std::optional<FactorGrid> ProfileTiming::mixed_factors(const Profile& profile) const {
  const ProfileTable* table =
      find_table_that(profile, OperationId::mixed_attention, shape_of(attention_),
                      [](const auto&) { return true; });
  if (table == nullptr) {
    return std::nullopt;
  }
  std::vector<FactorGrid::Point> points;
  for (const ProfileCell& cell : table->cells) {
    const auto at = [&](std::size_t axis) { return static_cast<double>(cell.at[axis]); };
    const double parts =
        extend_attention(at(0), at(1)).seconds + decode_attention(at(2), at(3)).seconds;
    points.push_back({.at = {at(0), at(1), at(2), at(3)}, .factor = cell.median_seconds / parts});
  }
  return FactorGrid(points);
}

void ProfileTiming::measure_overheads(const Profile& profile, const ModelConfig& model) {
  const Shape shape = step_shape(model, model.bytes_per_element);
  const double overhead = iteration_overhead_.seconds();  // no part of a step
  // With what was measured already; none without cells.
  const auto beyond_parts = [&](const char* variant) -> std::optional<double> {
    std::vector<double> beyond;
    if (const ProfileTable* steps = find_table(profile, OperationId::model_step, shape, variant)) {
      for (const ProfileCell& cell : steps->cells) {
        const PrefillPart part{.added = Tokens(cell.at[1]), .past = Tokens(cell.at[2])};
        if (cell.at[0] == 1 && part.added > Tokens(1)) {
          const double parts = prefill(std::span(&part, 1)).total.seconds() - overhead;
          beyond.push_back(cell.median_seconds - parts);
        }
      }
    }
    return beyond.empty() ? std::nullopt : std::optional(median(std::move(beyond)));
  };
  std::map<std::int64_t, std::vector<double>> decodes;
  if (const ProfileTable* runs = find_table(profile, OperationId::model_step, shape, kDecodeRun)) {
    for (const ProfileCell& cell : runs->cells) {
      const Tokens context = decode_context(cell);
      const std::int64_t ticks = piece_at(make_decode(cell.at[0]).pieces, context).at(context);
      const double parts = SimDuration(ticks / kTicksPerNs).seconds() - overhead;
      decodes[cell.at[0]].push_back(cell.median_seconds - parts);
    }
  }
  prefill_overhead_ = duration_from_seconds(std::max(0.0, beyond_parts(kStep).value_or(0)));
  const double in_run = std::max(0.0, -beyond_parts(kPrefillRun).value_or(0));
  const double second = std::clamp(-beyond_parts(kPrefillSecond).value_or(-in_run), 0.0, in_run);
  prefill_less_in_run_ = duration_from_seconds(in_run);
  prefill_less_second_ = duration_from_seconds(second);
  for (auto& [batch, beyond] : decodes) {
    decode_corrections_[batch] = median(std::move(beyond));
  }
}

double ProfileTiming::decode_correction(std::int64_t batch) const {
  if (decode_corrections_.empty()) {
    return 0;
  }
  const auto above = decode_corrections_.lower_bound(batch);
  if (above == decode_corrections_.end()) {
    return decode_corrections_.rbegin()->second;
  }
  if (above == decode_corrections_.begin()) {
    return above->second;
  }
  const auto& [smaller, correction] = *std::prev(above);
  return std::lerp(
      correction, above->second,
      static_cast<double>(batch - smaller) / static_cast<double>(above->first - smaller));
}

ProfileGrid::Time ProfileTiming::TokenWork::at(double tokens) const {
  if (!grid) {
    return {roofline(tokens, 0), false};
  }
  ProfileGrid::Time time = grid->at(tokens);
  time.extrapolated = time.extrapolated || extrapolated;
  return time;
}

ProfileGrid::Time ProfileTiming::dense(double tokens) const {
  ProfileGrid::Time sum{tokens * all_reduces_.seconds_per_token + all_reduces_.fixed_seconds,
                        false};
  if (all_reduce_) {
    sum = {};
    add(sum, all_reduce_->at(tokens * hidden_bytes_), kAllReducesPerLayer);
  }
  for (const TokenWork& work : layer_work_) {
    add(sum, work.at(tokens), work.count);
  }
  return sum;
}

ProfileGrid::Time ProfileTiming::outside(double tokens, double rows) const {
  ProfileGrid::Time sum;
  for (const TokenWork& work : token_work_) {
    add(sum, work.at(tokens), work.count);
  }
  for (const TokenWork& work : row_work_) {
    add(sum, work.at(rows), work.count);
  }
  return sum;
}

ProfileGrid::Time ProfileTiming::extend_attention(double added, double past) const {
  if (!extend_) {
    return {extend_attention_seconds(attention_, added, past, attained_), false};
  }
  ProfileGrid::Time time = extend_->at(added, past);
  time.extrapolated = time.extrapolated || attention_extrapolated_ || (past_by_law_ && past > 0);
  return time;
}

ProfileGrid::Time ProfileTiming::decode_attention(double batch, double context) const {
  if (!decode_attention_) {
    return {decode_attention_seconds(attention_, batch * context, attained_), false};
  }
  ProfileGrid::Time time = decode_attention_->at(batch, context);
  time.extrapolated = time.extrapolated || attention_extrapolated_;
  return time;
}

PrefillTime ProfileTiming::iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                     Tokens context) const {
  KVTIER_ASSERT(!parts.empty(), "a prefill has at least one part");
  KVTIER_ASSERT(batch >= 0 && batch <= static_cast<std::int64_t>(decode_.size()),
                "the batch is one the timing model was made for");
  Tokens added(batch);
  ProfileGrid::Time layer;
  const double requests = static_cast<double>(batch);
  if (batch > 0) {
    add(layer, decode_attention(requests, static_cast<double>(context.value) / requests));
  }
  double prefilled = 0;
  double past_pairs = 0;
  for (const PrefillPart& part : parts) {
    KVTIER_ASSERT(part.added > Tokens(0) && part.past >= Tokens(0),
                  "a part of a prefill computes at least one token");
    added += part.added;
    prefilled += static_cast<double>(part.added.value);
    past_pairs += static_cast<double>(part.added.value) * static_cast<double>(part.past.value);
    add(layer, extend_attention(static_cast<double>(part.added.value),
                                static_cast<double>(part.past.value)));
  }
  if (mixed_ && batch > 0) {
    layer.seconds *= mixed_->at({prefilled, past_pairs / prefilled, requests,
                                 static_cast<double>(context.value) / requests});
  }
  const double tokens = static_cast<double>(added.value);
  const ProfileGrid::Time matrices = dense(tokens);
  add(layer, matrices);
  const ProfileGrid::Time rest = outside(tokens, static_cast<double>(parts.size()) + requests);
  const SimDuration layer_time = duration_from_seconds(layer.seconds);
  // All that caches save is reading weights.
  const SimDuration most = prefill_overhead_ + duration_from_seconds(matrices.seconds) * layers_;
  return {.total = layer_time * layers_ + duration_from_seconds(rest.seconds) +
                   iteration_overhead_ + prefill_overhead_,
          .layer = layer_time,
          .less_second = std::min(prefill_less_second_, most),
          .less_in_run = std::min(prefill_less_in_run_, most),
          .extrapolated = layer.extrapolated || rest.extrapolated};
}

/// Knots are in whole ticks, and slopes are rounded down between them: the time never falls, and a
/// piece is short of the next knot by less than a tick for each token of it.
ProfileTiming::DecodeBatch ProfileTiming::make_decode(std::int64_t batch) const {
  const double requests = static_cast<double>(batch);
  const double layers = static_cast<double>(layers_);
  const ProfileGrid::Time layer = dense(requests);
  const ProfileGrid::Time rest = outside(requests, requests);
  DecodeBatch result;
  result.outside_layers = ticks_from_seconds(rest.seconds + iteration_overhead_.seconds());
  const std::int64_t base =
      result.outside_layers +
      ticks_from_seconds(std::max(0.0, layers * layer.seconds + decode_correction(batch)));

  struct Knot {
    std::int64_t context;  // of one request
    std::int64_t ticks;
    bool extrapolated;
  };
  std::vector<Knot> knots;
  const auto add_knot = [&](double context) {
    const ProfileGrid::Time time = decode_attention(requests, context);
    knots.push_back({static_cast<std::int64_t>(context), ticks_from_seconds(layers * time.seconds),
                     time.extrapolated});
  };
  add_knot(0);
  if (decode_attention_) {
    for (const double context : decode_attention_->second_axis()) {
      if (context > 0) {
        add_knot(context);
      }
    }
  } else {
    add_knot(1);  // a roofline is one line
  }
  const bool always = layer.extrapolated || rest.extrapolated;
  for (std::size_t i = 0; i < knots.size(); ++i) {
    const bool last = i + 1 == knots.size();
    const Knot& knot = knots[i];
    const std::int64_t from = knot.context * batch;
    // Beyond the last the attained bandwidth is held: time is proportional to the context.
    const std::int64_t slope =
        last ? knot.ticks / std::max<std::int64_t>(1, from)
             : (knots[i + 1].ticks - knot.ticks) / ((knots[i + 1].context - knot.context) * batch);
    const bool extrapolated =
        knot.extrapolated || (decode_attention_ && (last || knots[i + 1].extrapolated));
    result.pieces.push_back({.from = Tokens(from),
                             .base = base + knot.ticks - detail::time_product(slope, from),
                             .slope = slope,
                             .extrapolated = always || extrapolated});
  }
  return result;
}

const ProfileTiming::DecodeBatch& ProfileTiming::decode_batch(std::int64_t batch) const {
  KVTIER_ASSERT(batch >= 1 && batch <= static_cast<std::int64_t>(decode_.size()),
                "the batch is one the timing model was made for");
  return decode_[static_cast<std::size_t>(batch - 1)];
}

const std::vector<DecodePiece>& ProfileTiming::decode(std::int64_t batch) const {
  return decode_batch(batch).pieces;
}

SimDuration ProfileTiming::decode_layer(std::int64_t batch, Tokens context) const {
  const DecodeBatch& entry = decode_batch(batch);
  const std::int64_t ticks =
      (piece_at(entry.pieces, context).at(context) - entry.outside_layers) / layers_;
  return SimDuration((ticks + kTicksPerNs / 2) / kTicksPerNs);
}

bool has_measured_layers(const ModelConfig& model, const HardwareConfig& hardware) {
  ModelConfig plain = model;
  plain.precision = {};
  return is_dense(plain) && hardware.parallel == ParallelConfig{};
}

void check_profile_timing(const ModelConfig& model, const HardwareConfig& hardware,
                          Problems& problems) {
  if (!hardware.profile || hardware.unmeasured == Unmeasured::roofline) {
    return;
  }
  if (!has_measured_layers(model, hardware)) {
    problems.add("/hardware/profile",
                 fmt::format("profile {} has no operations of {}, {}: set /hardware/unmeasured to "
                             "\"roofline\" to take all times from the analytic model",
                             hardware.profile->name, model.name,
                             hardware.parallel == ParallelConfig{}
                                 ? "which is not dense"
                                 : "whose GPUs are not tensor parallel alone"));
    return;
  }
  KVTIER_ASSERT(hardware.profile->loaded, "the profile has been read");
  const Profile& profile = *hardware.profile->loaded;
  const auto report = [&](OperationId operation, const std::string& what) {
    problems.add("/hardware/profile",
                 fmt::format("profile {} has no {} of {}, needed for {} on {} GPUs; it has {}: "
                             "measure with --model {}, or set /hardware/unmeasured to \"roofline\"",
                             profile.name, to_string(operation), what, model.name, hardware.gpus,
                             known_shapes(profile, operation), model.name));
  };
  for (const MatrixShape& matrix : all_matrices(model, hardware.gpus)) {
    const DataType type = type_of_matrix(model, matrix.name);
    if (!table_of_matrix(profile, matrix, type)) {
      const bool is_plain = type == plain_type(model.bytes_per_element);
      report(
          OperationId::gemm,
          fmt::format("{} ({})",
                      is_plain ? matrix_text(matrix.n, matrix.k, model.bytes_per_element)
                               : fmt::format("{} x {} in {}", matrix.n, matrix.k, to_string(type)),
                      matrix.name));
    }
  }
  const AttentionShape shape = measured_attention(model, hardware.gpus);
  for (const OperationId operation :
       {OperationId::prefill_attention, OperationId::decode_attention}) {
    if (!table_of_attention(profile, operation, shape, KeyPositions::embedded)) {
      report(operation, attention_text(shape_of(shape)));
    }
  }
}

std::unique_ptr<TimingModel> make_timing(const ModelConfig& model, const HardwareConfig& hardware,
                                         KeyPositions positions, std::int64_t max_batch) {
  if (hardware.profile && has_measured_layers(model, hardware)) {
    return std::make_unique<ProfileTiming>(model, hardware, positions, max_batch);
  }
  return std::make_unique<RooflineTiming>(model, hardware, max_batch);
}

}  // namespace kvtier
