#include "calibrate/from_table.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "hw/profile/described_gpu.hpp"
#include "hw/profile/profile_shapes.hpp"
#include "hw/profile/profile_timing.hpp"
#include "hw/timing/operation_time.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/csv_reader.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"
#include "sim/core/rng.hpp"
#include "sim/core/statistics.hpp"
#include "sim/core/text.hpp"

namespace kvtier::calibrate {
namespace {

constexpr const char* kFormat = "kvtier.columns/1";
constexpr std::size_t kMostProblems = 100;
constexpr double kLargestSize = 1e9;

double unit_seconds(const std::string& unit) {
  return unit == "ms" ? 1e-3 : unit == "us" ? 1e-6 : 1.0;
}

/// A rule with its columns found in a header.
struct BoundRule {
  const ColumnRule* rule;
  std::optional<std::size_t> op;
  std::size_t time = 0;
  std::optional<std::size_t> new_tokens;
  std::optional<std::size_t> past_tokens;
  std::optional<std::size_t> batch;
  std::optional<std::size_t> context;
  std::optional<std::size_t> tensor_parallel;
  std::vector<std::pair<std::string, std::size_t>> sizes;
  std::optional<std::size_t> reached_experts;
  std::optional<std::size_t> dtype;
  /// A column, and the texts that it may have.
  std::vector<std::pair<std::size_t, std::vector<std::string>>> where;
  std::vector<std::pair<std::size_t, std::vector<std::string>>> where_not;
};

/// The sizes of one timed row.
struct Sizes {
  std::int64_t new_tokens = 0;
  std::int64_t past_tokens = 0;
  std::int64_t batch = 1;
  std::int64_t context = 0;
  std::int64_t gpus = 1;
  /// Sizes of the shape that the row has.
  std::map<std::string, std::int64_t> shape;
  std::optional<DataType> type;

  [[nodiscard]] std::int64_t of(const char* key, std::int64_t absent) const {
    const auto found = shape.find(key);
    return found == shape.end() ? absent : found->second;
  }
};

/// The table of a profile for a row, and the row's place in it.
struct Slot {
  OperationId operation = OperationId::gemm;
  std::string variant;
  std::map<std::string, std::int64_t> shape;
  std::vector<std::int64_t> at;
  std::optional<DataType> dtype{};
  CacheState cache = CacheState::cold;
};

/// The formats of published tables.
std::optional<DataType> type_named(std::string_view text) {
  using enum DataType;
  static const std::map<std::string_view, DataType> kNames{
      {"float32", fp32},      {"float16", fp16},
      {"half", fp16},         {"bfloat16", bf16},
      {"fp32", fp32},         {"fp16", fp16},
      {"bf16", bf16},         {"fp8", fp8},
      {"int8", int8},         {"fp8_block", fp8_block},
      {"int4", int4},         {"int4_wo", int4},
      {"nvfp4", nvfp4},       {"mxfp4", mxfp4},
      {"w4a16_mxfp4", mxfp4}, {"w4a8_mxfp4_mxfp8", mxfp4_mxfp8}};
  const auto found = kNames.find(text);
  return found == kNames.end() ? std::nullopt : std::optional(found->second);
}

/// A type that a table must name. Plain elements of 16 bits need no name.
std::optional<DataType> named_type(std::optional<DataType> type) {
  return type == DataType::bf16 || type == DataType::fp16 ? std::nullopt : type;
}

std::int64_t element_bytes(std::optional<DataType> type) {
  return type ? std::max<std::int64_t>(1, std::llround(bytes_of(*type))) : 2;
}

/// The slot of a row that has columns of its shape; none if an attention lacks its KV heads.
std::optional<Slot> shaped_slot(TableOperation operation, const Sizes& sizes) {
  using enum TableOperation;
  const std::int64_t tokens = sizes.new_tokens * sizes.batch;
  switch (operation) {
    case gemm:
      return Slot{.operation = OperationId::gemm_grid,
                  .variant = "matrix",
                  .shape = {},
                  .at = {tokens, sizes.of("n", 0), sizes.of("k", 0)},
                  .dtype = named_type(sizes.type).value_or(DataType::bf16)};
    case prefill_attention:
    case decode_attention: {
      const std::int64_t heads = sizes.of("attention_heads", 0);
      if (heads == 0) {
        return std::nullopt;
      }
      const bool prefill = operation == prefill_attention;
      Slot slot{
          .operation = prefill ? OperationId::prefill_attention : OperationId::decode_attention,
          .variant = "imported",
          .shape = {{"attention_heads", heads},
                    {"kv_heads", sizes.of("kv_heads", heads)},
                    {"head_dim", sizes.of("head_dim", 0)},
                    {"element_bytes", element_bytes(sizes.type)}},
          .at = prefill ? std::vector{sizes.new_tokens, sizes.past_tokens}
                        : std::vector{sizes.batch, sizes.context},
          .dtype = named_type(sizes.type)};
      if (const std::int64_t window = sizes.of("window", 0); window > 0) {
        slot.shape["window"] = window;
      }
      return slot;
    }
    case moe: {
      const std::int64_t ways = std::max<std::int64_t>(1, sizes.gpus);
      return Slot{.operation = OperationId::moe,
                  .variant = "moe",
                  .shape = {{"hidden_size", sizes.of("hidden_size", 0)},
                            {"intermediate_size", sizes.of("intermediate_size", 0) / ways},
                            {"experts", sizes.of("experts", 0)},
                            {"top_k", sizes.of("top_k", 0)},
                            {"expert_gpus", sizes.of("expert_gpus", 1)}},
                  .at = {tokens},
                  .dtype = named_type(sizes.type).value_or(DataType::bf16)};
    }
    case mla_prefill:
      return Slot{.operation = OperationId::mla_prefill,
                  .variant = "kernel",
                  .shape = {{"attention_heads", sizes.of("attention_heads", 1)}},
                  .at = {sizes.new_tokens, sizes.past_tokens},
                  .dtype = sizes.type.value_or(DataType::bf16)};
    case mla_decode:
      return Slot{.operation = OperationId::mla_decode,
                  .variant = "kernel",
                  .shape = {{"attention_heads", sizes.of("attention_heads", 1)}},
                  .at = {sizes.batch, sizes.context},
                  .dtype = sizes.type.value_or(DataType::bf16)};
    case state_prefill:
    case state_decode: {
      const bool prefill = operation == state_prefill;
      return Slot{.operation = prefill ? OperationId::state_prefill : OperationId::state_decode,
                  .variant = "imported",
                  .shape = {{"key_heads", sizes.of("key_heads", 0)},
                            {"value_heads", sizes.of("value_heads", 0)},
                            {"key_dim", sizes.of("key_dim", 0)},
                            {"value_dim", sizes.of("value_dim", 0)}},
                  .at = {prefill ? sizes.new_tokens : sizes.batch}};
    }
    case convolution:
      return Slot{.operation = OperationId::elementwise,
                  .variant = "convolution",
                  .shape = {{"width", 2 * sizes.of("key_heads", 0) * sizes.of("key_dim", 0) +
                                          sizes.of("value_heads", 0) * sizes.of("value_dim", 0)},
                            {"element_bytes", 2}},
                  .at = {tokens}};
    case all_reduce:
      return Slot{.operation = OperationId::all_reduce,
                  .variant = "graph",
                  .shape = {},
                  .at = {sizes.gpus, sizes.of("bytes", 2 * sizes.of("elements", 0))}};
    case quantize:
      return Slot{.operation = OperationId::quantize,
                  .variant = "scales",
                  .shape = {},
                  .at = {tokens, sizes.of("width", 0)},
                  .dtype = sizes.type.value_or(DataType::fp8)};
    default:
      return std::nullopt;
  }
}

/// The slot of a row by the model's shape; nullopt for operations whose sizes a table has to name.
std::optional<Slot> slot_of(TableOperation operation, const Sizes& sizes,
                            const ModelConfig& model) {
  using enum TableOperation;
  const std::vector<MatrixShape> matrices = layer_matrices(model, sizes.gpus);
  const AttentionShape heads = attention_shape(model, sizes.gpus);
  const std::int64_t tokens = sizes.new_tokens * sizes.batch;
  const auto matrix = [&](const MatrixShape& m) {
    return Slot{OperationId::gemm,
                std::string(m.name),
                {{"n", m.n}, {"k", m.k}, {"element_bytes", model.bytes_per_element}},
                {tokens}};
  };
  const auto rows = [&](const char* variant, std::int64_t width) {
    return Slot{OperationId::elementwise,
                variant,
                {{"width", width}, {"element_bytes", model.bytes_per_element}},
                {tokens}};
  };
  const auto attention = [&](OperationId id, std::vector<std::int64_t> at) {
    return Slot{id,
                "imported",
                {{"attention_heads", heads.attention_heads},
                 {"kv_heads", heads.kv_heads},
                 {"head_dim", heads.head_dim},
                 {"element_bytes", heads.element_bytes}},
                std::move(at)};
  };
  switch (operation) {
    case qkv:
    case attention_output:
    case mlp_up:
    case mlp_down:
      return matrix(matrices[static_cast<std::size_t>(operation)]);
    case lm_head:
      return matrix(head_matrix(model, sizes.gpus));
    case prefill_attention:
      return attention(OperationId::prefill_attention, {sizes.new_tokens, sizes.past_tokens});
    case decode_attention:
      return attention(OperationId::decode_attention, {sizes.batch, sizes.context});
    case norm:
      return rows("norm", model.hidden_size);
    case residual:
      return rows("residual", model.hidden_size);
    case activation:
      return rows("activation", matrices.back().k);
    case embedding:
      return rows("embedding", model.hidden_size);
    case kv_write:
      return rows("kv_write", 2 * heads.kv_heads * heads.head_dim);
    case sampling:
      return rows("sampling", head_matrix(model, sizes.gpus).n);
    case mixed_attention:
      return attention(OperationId::mixed_attention,
                       {sizes.new_tokens, sizes.past_tokens, sizes.batch, sizes.context});
    case rope:
      return Slot{OperationId::rotation,
                  "rope",
                  {{"heads", heads.attention_heads + heads.kv_heads},
                   {"head_dim", heads.head_dim},
                   {"element_bytes", model.bytes_per_element}},
                  {tokens}};
    default:
      return std::nullopt;
  }
}

bool is_shaped(const ColumnRule& rule) { return !rule.sizes.empty(); }

/// A power of 2 times an odd number of at most `most`.
bool is_round(std::int64_t value, std::int64_t most) {
  while (value > 1 && value % 2 == 0) {
    value /= 2;
  }
  return value <= most;
}

bool is_kept(const Slot& slot) {
  constexpr std::int64_t kLeastContext = 64;
  constexpr std::int64_t kLeastSide = 256;
  constexpr std::int64_t kMostHeads = 1;
  constexpr std::int64_t kMostExpertGpus = 8;
  switch (slot.operation) {
    case OperationId::gemm_grid:
      return is_round(slot.at[0], 3) && is_round(slot.at[1], 7) && is_round(slot.at[2], 7) &&
             slot.at[1] >= kLeastSide && slot.at[2] >= kLeastSide;
    case OperationId::decode_attention:
    case OperationId::mla_decode:
      return is_round(slot.at[0], 1) && is_round(slot.at[1], 1) &&
             (slot.at[1] == 1 || slot.at[1] >= kLeastContext) &&
             is_round(slot.shape.at("attention_heads"), kMostHeads);
    case OperationId::prefill_attention:
      return is_round(slot.at[0], 5) && is_round(slot.at[1], 1) &&
             is_round(slot.shape.at("attention_heads"), kMostHeads);
    case OperationId::mixed_attention:
      return is_round(slot.at[0], 1) && (slot.at[1] == 0 || is_round(slot.at[1], 1)) &&
             is_round(slot.at[2], 1) && is_round(slot.at[3], 1) &&
             std::bit_width(static_cast<std::uint64_t>(slot.at[1])) % 2 == 0 &&
             std::bit_width(static_cast<std::uint64_t>(slot.at[2])) % 2 == 1 &&
             std::bit_width(static_cast<std::uint64_t>(slot.at[3])) % 2 == 0;
    case OperationId::moe:
      return is_round(slot.at[0], 1) && slot.shape.at("expert_gpus") <= kMostExpertGpus;
    default:
      return is_round(slot.at[0], 3);
  }
}

/// Collects the samples of all files, cell by cell.
class Importer {
 public:
  Importer(const ModelConfig* model, const HardwareConfig& hardware, const ImportOptions& options)
      : model_(model), options_(options) {
    profile_.device = described_device(hardware);
  }

  void read(const TableFile& file) {
    origin_ = file.path.string();
    try {
      CsvReader rows(file.path);
      const std::vector<BoundRule> rules = bind(file.columns, rows);
      while (next(rows)) {
        for (const BoundRule& rule : rules) {
          take(rule, rows);
        }
      }
    } catch (const ConfigError& error) {
      report(error);
    }
  }

  Imported finish(std::vector<std::string> notes) {
    if (!problems_.empty()) {
      throw ConfigError(problems_);
    }
    add_all_experts();
    for (auto& [key, times] : samples_) {
      ProfileTable& table = profile_.tables[key.first];
      std::ranges::sort(times);
      if (options_.thinning == Thinning::compact) {
        table.cells.push_back(compact_cell(key.second, lower_quantile(times, 0.5)));
        continue;
      }
      table.cells.push_back({.at = key.second,
                             .p25_seconds = lower_quantile(times, 0.25),
                             .median_seconds = lower_quantile(times, 0.5),
                             .p75_seconds = lower_quantile(times, 0.75),
                             .n = static_cast<std::int64_t>(times.size())});
    }
    for (ProfileTable& table : profile_.tables) {
      counts_.contradictions += drop_contradictions(table);
    }
    std::erase_if(profile_.tables, [](const ProfileTable& table) { return table.cells.empty(); });
    if (profile_.tables.empty()) {
      throw ConfigError(origin_ + ": no row has a time that counts");
    }
    profile_.name = options_.name;
    profile_.provenance.model = model_ == nullptr ? "" : model_->name;
    profile_.provenance.notes = std::move(notes);
    return {.profile = std::move(profile_), .counts = counts_};
  }

 private:
  void report(const ConfigError& error) {
    problems_.insert(problems_.end(), error.problems().begin(), error.problems().end());
  }

  /// Goes to the next row with as many fields as the header; other rows are reported.
  bool next(CsvReader& rows) {
    while (problems_.size() < kMostProblems) {
      try {
        return rows.next();
      } catch (const ConfigError& error) {
        report(error);
      }
    }
    return false;
  }

  std::vector<BoundRule> bind(const ColumnMap& map, const CsvReader& rows) {
    const std::vector<std::string> names(rows.names().begin(), rows.names().end());
    std::vector<BoundRule> bound;
    const auto find = [&](const std::string& column) -> std::optional<std::size_t> {
      if (column.empty()) {
        return std::nullopt;
      }
      const auto found = rows.column(column);
      if (!found) {
        report(rows.error(
            fmt::format("no column {}{}", quote_text(column), suggestion(column, names))));
      }
      return found;
    };
    for (const ColumnRule& rule : map.rules) {
      BoundRule one{.rule = &rule,
                    .op = find(rule.op_column),
                    .time = find(rule.time).value_or(0),
                    .new_tokens = find(rule.new_tokens),
                    .past_tokens = find(rule.past_tokens),
                    .batch = find(rule.batch),
                    .context = find(rule.context),
                    .tensor_parallel = find(rule.tensor_parallel),
                    .sizes = {},
                    .reached_experts = find(rule.reached_experts),
                    .dtype = find(rule.dtype),
                    .where = {},
                    .where_not = {}};
      for (const auto& [size, column] : rule.sizes) {
        if (const auto index = find(column)) {
          one.sizes.emplace_back(size, *index);
        }
      }
      for (const auto& [from, to] :
           {std::pair{&rule.where, &one.where}, std::pair{&rule.where_not, &one.where_not}}) {
        for (const auto& [column, text] : *from) {
          if (const auto index = find(column)) {
            to->emplace_back(*index, alternatives(text));
          }
        }
      }
      bound.push_back(std::move(one));
    }
    if (!problems_.empty()) {
      bound.clear();
    }
    return bound;
  }

  /// The parts of "a|b|c".
  static std::vector<std::string> alternatives(const std::string& text) {
    std::vector<std::string> parts(1);
    for (const char letter : text) {
      if (letter == '|') {
        parts.emplace_back();
      } else {
        parts.back() += letter;
      }
    }
    return parts;
  }

  void take(const BoundRule& rule, const CsvReader& rows) {
    const auto has = [&rows](const auto& cell) {
      return std::ranges::find(cell.second, rows.text(cell.first)) != cell.second.end();
    };
    if (!std::ranges::all_of(rule.where, has) || std::ranges::any_of(rule.where_not, has)) {
      return;
    }
    std::optional<TableOperation> operation = rule.rule->op;
    if (rule.op) {
      Problems problems;
      TableOperation named{};
      read_value(named, Json(rows.text(*rule.op)), "/op", problems);
      if (!problems.empty()) {
        report(rows.error(problems.lines().front()));
        return;
      }
      operation = named;
    }
    bool bad = false;
    const auto size = [&](std::optional<std::size_t> column, std::int64_t absent) {
      if (!column || rows.text(*column).empty()) {
        return absent;
      }
      const auto value = parse_number(rows.text(*column));
      if (!value || *value < 0 || *value > kLargestSize || std::floor(*value) != *value) {
        report(rows.unexpected(*column, "a whole number"));
        bad = true;
        return absent;
      }
      return static_cast<std::int64_t>(*value);
    };
    Sizes sizes{.new_tokens = size(rule.new_tokens, 1),
                .past_tokens = size(rule.past_tokens, 0),
                .batch = size(rule.batch, 1),
                .context = size(rule.context, 0),
                .gpus = size(rule.tensor_parallel, options_.gpus),
                .shape = {},
                .type = {}};
    if (!rule.context && *operation != TableOperation::prefill_attention && rule.past_tokens) {
      sizes.context = sizes.past_tokens + 1;  // a token reads itself too
    }
    for (const auto& [key, column] : rule.sizes) {
      sizes.shape[key] = size(column, 0);
    }
    const std::string text(rows.text(rule.time));
    const auto time = parse_number(text);
    if (bad) {
      return;
    }
    if (sizes.gpus < 1 || sizes.batch < 1) {
      report(rows.error("expected at least one GPU and one request"));
      return;
    }
    ++counts_.times;
    if (!time) {
      ++counts_.not_numbers;
      return;
    }
    if (rule.dtype) {
      sizes.type = type_named(rows.text(*rule.dtype));
      if (!sizes.type) {
        ++counts_.unknown_types;
        return;
      }
    }
    const bool one_prefill = *operation == TableOperation::prefill_attention ||
                             *operation == TableOperation::mla_prefill ||
                             *operation == TableOperation::state_prefill;
    if (one_prefill && sizes.batch > 1) {
      ++counts_.several_requests;
      return;
    }
    if (rule.reached_experts) {
      if (model_ == nullptr || !model_->experts) {
        report(rows.error("the shape of this operation needs --model, with experts"));
        return;
      }
      const std::int64_t reached = size(rule.reached_experts, 0);
      if (!bad) {
        add_experts(sizes.new_tokens, reached, *time * unit_seconds(rule.rule->unit));
      }
      return;
    }
    std::optional<Slot> slot;
    if (is_shaped(*rule.rule)) {
      slot = shaped_slot(*operation, sizes);
    } else if (model_ != nullptr) {
      slot = slot_of(*operation, sizes, *model_);
    }
    if (!slot) {
      report(rows.error("the shape of this operation needs --model or columns of its sizes"));
      return;
    }
    if (!rule.rule->variant.empty()) {
      slot->variant = rule.rule->variant;
    }
    slot->cache = rule.rule->cache;
    add(*slot, (*time - rule.rule->less) * unit_seconds(rule.rule->unit));
  }

  /// With whole experts on GPUs, each GPU has routed / groups experts and its share of the choices
  /// of all tokens.
  void add_experts(std::int64_t own_tokens, std::int64_t reached, double seconds) {
    for (const std::int64_t groups : {1, 2, 4, 8}) {
      const double all_tokens = static_cast<double>(own_tokens * groups);
      const double expected =
          touched_experts(*model_->experts, all_tokens) / static_cast<double>(groups);
      const double distance = std::abs(static_cast<double>(reached) - expected);
      const auto [found, is_new] = experts_.try_emplace(std::pair(groups, own_tokens * groups),
                                                        std::pair(distance, seconds));
      if (!is_new && distance < found->second.first) {
        found->second = {distance, seconds};
      }
    }
  }

  void add_all_experts() {
    for (const auto& [key, nearest] : experts_) {
      add({.operation = OperationId::moe,
           .variant = "imported",
           .shape = {{"hidden_size", model_->hidden_size},
                     {"intermediate_size", model_->experts->intermediate_size},
                     {"experts", model_->experts->routed},
                     {"top_k", model_->experts->active},
                     {"expert_gpus", key.first}},
           .at = {key.second},
           .dtype = plain_type(model_->bytes_per_element)},
          nearest.second);
    }
  }

  void add(const Slot& slot, double seconds) {
    const bool no_shape =
        std::ranges::any_of(slot.shape, [](const auto& size) { return size.second < 1; });
    if (seconds <= 0 || slot.at[0] < 1 || no_shape) {
      ++counts_.not_positive;
      return;
    }
    if (options_.thinning == Thinning::compact && !is_kept(slot)) {
      return;
    }
    const std::size_t index = table_of(slot);
    if (seconds < shortest(profile_.tables[index], slot.at)) {
      ++counts_.beyond_limits;
      return;
    }
    samples_[{index, slot.at}].push_back(seconds);
  }

  /// Shortest time by the device's limits; 0 for operations without limits.
  [[nodiscard]] double shortest(const ProfileTable& table,
                                const std::vector<std::int64_t>& at) const {
    if (table.operation == OperationId::gemm_grid) {
      return matrix_seconds({"", at[1], at[2]}, bytes_of(*table.dtype), static_cast<double>(at[0]),
                            device_rates(profile_, table.dtype, table.cache));
    }
    if (!is_interpolated(table.operation)) {
      return 0;
    }
    // A grid of one cell with almost no time gives the limit itself.
    const ProfileCell instant{.at = at, .median_seconds = 1e-30};
    return make_grid(profile_, table, {&instant, 1})
        .at(static_cast<double>(at[0]), at.size() > 1 ? static_cast<double>(at[1]) : 0)
        .seconds;
  }

  std::size_t table_of(const Slot& slot) {
    const auto [found, is_new] = tables_.try_emplace(
        std::tuple(slot.operation, slot.variant, slot.shape, slot.dtype, slot.cache),
        profile_.tables.size());
    if (is_new) {
      profile_.tables.push_back({.operation = slot.operation,
                                 .variant = slot.variant,
                                 .method = "imported",
                                 .cache = slot.cache,
                                 .dtype = slot.dtype,
                                 .shape = slot.shape,
                                 .axes = profile_operation(slot.operation).axes,
                                 .cells = {},
                                 .grid = {},
                                 .left_out = {}});
    }
    return found->second;
  }

  /// Removes the cells with the most contradictions until none is left; returns how many.
  static std::int64_t drop_contradictions(ProfileTable& table) {
    std::int64_t dropped = 0;
    while (profile_operation(table.operation).monotone) {
      std::size_t worst = 0;
      std::int64_t most = 0;
      for (std::size_t i = 0; i < table.cells.size(); ++i) {
        const ProfileCell& cell = table.cells[i];
        const std::int64_t count = std::ranges::count_if(table.cells, [&](const auto& other) {
          return cell.at != other.at && (contradicts(cell, other) || contradicts(other, cell));
        });
        if (count > most) {
          most = count;
          worst = i;
        }
      }
      if (most == 0) {
        break;
      }
      table.cells.erase(table.cells.begin() + static_cast<std::ptrdiff_t>(worst));
      ++dropped;
    }
    return dropped;
  }

  static ProfileCell compact_cell(const std::vector<std::int64_t>& at, double seconds) {
    const double rounded = std::stod(fmt::format("{:.4g}", seconds * 1e6)) * 1e-6;
    return {.at = at,
            .p25_seconds = rounded,
            .median_seconds = rounded,
            .p75_seconds = rounded,
            .n = 1};
  }

  using TableKey = std::tuple<OperationId, std::string, std::map<std::string, std::int64_t>,
                              std::optional<DataType>, CacheState>;

  const ModelConfig* model_;
  const ImportOptions& options_;
  std::map<TableKey, std::size_t> tables_;
  Profile profile_;
  std::map<std::pair<std::size_t, std::vector<std::int64_t>>, std::vector<double>> samples_;
  /// By GPUs and tokens: the distance of the nearest row from random choice, and its time.
  std::map<std::pair<std::int64_t, std::int64_t>, std::pair<double, double>> experts_;
  ImportCounts counts_;
  std::string origin_;
  std::vector<std::string> problems_;
};

/// The roofline's time of one cell at the attained rates.
std::optional<double> roofline_seconds(const ProfileTable& table, const ProfileCell& cell,
                                       const Rates& rates) {
  using enum OperationId;
  constexpr std::array kWithRoofline{gemm, prefill_attention, decode_attention};
  if (std::ranges::find(kWithRoofline, table.operation) == kWithRoofline.end()) {
    return std::nullopt;
  }
  return seconds_of(work_at(work_of(table), cell), rates);
}

const char* group_of(OperationId operation) {
  switch (operation) {
    case OperationId::gemm:
      return "matrices";
    case OperationId::prefill_attention:
      return "prefill attention";
    case OperationId::decode_attention:
      return "decode attention";
    case OperationId::moe:
      return "experts";
    case OperationId::mla_prefill:
    case OperationId::mla_decode:
      return "latent attention";
    case OperationId::state_prefill:
    case OperationId::state_decode:
      return "state layers";
    default:
      return "rows of elements";
  }
}

struct Group {
  std::vector<Pair> held_out;
  std::int64_t extrapolated = 0;
  std::vector<Pair> roofline;
};

void judge_table(const Profile& profile, const ProfileTable& table, const Rates& rates,
                 RandomStream& random, Group& group) {
  std::vector<ProfileCell> fitted;
  std::vector<const ProfileCell*> held;
  for (const ProfileCell& cell : table.cells) {
    if (random.uniform() < 0.5) {
      fitted.push_back(cell);
    } else {
      held.push_back(&cell);
    }
    if (const auto seconds = roofline_seconds(table, cell, rates)) {
      group.roofline.push_back({*seconds, cell.median_seconds});
    }
  }
  if (fitted.empty()) {
    return;
  }
  const ProfileGrid grid = make_grid(profile, table, fitted);
  for (const ProfileCell* cell : held) {
    const ProfileGrid::Time time =
        grid.at(static_cast<double>(cell->at[0]),
                cell->at.size() > 1 ? static_cast<double>(cell->at[1]) : 0);
    group.held_out.push_back({time.seconds, cell->median_seconds});
    group.extrapolated += time.extrapolated ? 1 : 0;
  }
}

/// The prefill of a layer at every measured size of attention: the roofline's time and the sum of
/// measured parts.
std::vector<Pair> layer_prefills(const Profile& profile, const ModelConfig& model,
                                 const Rates& rates) {
  const ProfileTable* attention = find_attention_table(
      profile, OperationId::prefill_attention, attention_shape(model, 1), KeyPositions::embedded);
  if (attention == nullptr) {
    return {};
  }
  std::vector<Pair> pairs;
  std::vector<std::pair<MatrixShape, ProfileGrid>> matrices;
  for (const MatrixShape& matrix : layer_matrices(model, 1)) {
    const ProfileTable* table = find_matrix_table(profile, matrix, model.bytes_per_element);
    if (table == nullptr) {
      return {};
    }
    matrices.emplace_back(matrix, make_grid(profile, *table));
  }
  for (const ProfileCell& cell : attention->cells) {
    Pair pair{.predicted = *roofline_seconds(*attention, cell, rates),
              .measured = cell.median_seconds};
    const auto tokens = static_cast<double>(cell.at[0]);
    for (const auto& [matrix, grid] : matrices) {
      pair.predicted +=
          matrix_seconds(matrix, static_cast<double>(model.bytes_per_element), tokens, rates);
      pair.measured += grid.at(tokens).seconds;
    }
    pairs.push_back(pair);
  }
  return pairs;
}

}  // namespace

ColumnMap standard_columns() {
  ColumnRule rule;
  rule.op_column = "op";
  rule.time = "seconds";
  rule.new_tokens = "new_tokens";
  rule.past_tokens = "past_tokens";
  rule.batch = "batch";
  rule.context = "context";
  rule.tensor_parallel = "tensor_parallel";
  ColumnMap map;
  map.rules.push_back(std::move(rule));
  return map;
}

ColumnMap read_columns(const std::filesystem::path& path) {
  Problems problems;
  problems.set_origin("", path.string());
  ColumnMap map;
  read_value(map, parse_json_strictly(read_text_file(path), path.string()), "", problems);
  if (map.format != kFormat) {
    problems.add("/format",
                 fmt::format("expected \"{}\", got {}", kFormat, quote_text(map.format)));
  }
  constexpr std::array<std::string_view, 18> kSizes{
      "n",           "k",           "attention_heads",   "kv_heads", "head_dim",
      "window",      "hidden_size", "intermediate_size", "experts",  "top_k",
      "expert_gpus", "bytes",       "elements",          "width",    "key_heads",
      "value_heads", "key_dim",     "value_dim"};
  for (std::size_t i = 0; i < map.rules.size(); ++i) {
    const ColumnRule& rule = map.rules[i];
    const std::string pointer = fmt::format("/rules/{}", i);
    for (const auto& [size, column] : rule.sizes) {
      if (std::ranges::find(kSizes, size) == kSizes.end()) {
        problems.add(pointer + "/sizes/" + escape_pointer(size),
                     fmt::format("expected one of {}", fmt::join(kSizes, ", ")));
      }
    }
    if (rule.op.has_value() == !rule.op_column.empty()) {
      problems.add(pointer, "expected either op or op_column");
    }
    if (rule.unit != "s" && rule.unit != "ms" && rule.unit != "us") {
      problems.add(pointer + "/unit",
                   fmt::format("expected one of s, ms, us, got {}", quote_text(rule.unit)));
    }
  }
  problems.throw_if_any();
  return map;
}

Imported import_tables(const std::vector<TableFile>& files, const ModelConfig* model,
                       const HardwareConfig& hardware, const ImportOptions& options) {
  Importer importer(model, hardware, options);
  std::vector<std::string> notes{"Imported: no samples of its own, and no copies or drives"};
  for (const TableFile& file : files) {
    importer.read(file);
    notes.push_back("Times of " + file.path.filename().string() +
                    (file.columns.source.empty() ? "" : ": " + file.columns.source));
  }
  return importer.finish(std::move(notes));
}

std::vector<FitRow> judge_fit(const Profile& profile, const ModelConfig* model,
                              const HardwareConfig& hardware, std::uint64_t seed) {
  const Rates rates = attained_rates(hardware);
  RandomStream random(seed, "calibrate/held_out_half");
  constexpr std::array<const char*, 6> kGroups{"matrices",          "rows of elements",
                                               "prefill attention", "decode attention",
                                               "experts",           "latent attention"};
  std::map<std::string, Group> groups;
  for (const ProfileTable& table : profile.tables) {
    if (is_interpolated(table.operation)) {
      judge_table(profile, table, rates, random, groups[group_of(table.operation)]);
    }
  }
  std::vector<FitRow> rows;
  for (const char* name : kGroups) {
    const auto group = groups.find(name);
    if (group != groups.end()) {
      rows.push_back({.operation = name,
                      .held_out = error_statistics(group->second.held_out),
                      .extrapolated = group->second.extrapolated,
                      .roofline = error_statistics(group->second.roofline)});
    }
  }
  const std::vector<Pair> layers =
      model == nullptr ? std::vector<Pair>{} : layer_prefills(profile, *model, rates);
  if (!layers.empty()) {
    rows.push_back({.operation = "prefill of a layer",
                    .held_out = {},
                    .extrapolated = 0,
                    .roofline = error_statistics(layers)});
  }
  return rows;
}

std::string to_text(const Imported& imported, const std::vector<FitRow>& rows,
                    const HardwareConfig& hardware) {
  const ImportCounts& counts = imported.counts;
  std::string text = fmt::format(
      "{} times read; rejected: {} no numbers, {} not positive, {} beyond the limits of {}, {} "
      "prefills of several requests, {} of unknown formats, {} contradicted\n"
      "roofline: {} of the compute peak, {} of the memory bandwidth\n\n"
      "{:<20} {:>9} {:>8} {:>8} {:>13} {:>10} {:>8} {:>8}\n",
      counts.times, counts.not_numbers, counts.not_positive, counts.beyond_limits,
      hardware.gpu.name, counts.several_requests, counts.unknown_types, counts.contradictions,
      hardware.efficiency.compute, hardware.efficiency.memory, "", "held out", "p50", "p90",
      "extrapolated", "roofline", "p50", "p90");
  const auto columns = [](const ErrorStatistics& errors) {
    return errors.count == 0 ? std::pair{std::string("-"), std::string("-")}
                             : std::pair{fmt::format("{:.1f} %", 100 * errors.p50),
                                         fmt::format("{:.1f} %", 100 * errors.p90)};
  };
  for (const FitRow& row : rows) {
    const auto [p50, p90] = columns(row.held_out);
    const auto [roofline_p50, roofline_p90] = columns(row.roofline);
    text += fmt::format("{:<20} {:>9} {:>8} {:>8} {:>13} {:>10} {:>8} {:>8}\n", row.operation,
                        row.held_out.count, p50, p90, row.extrapolated, row.roofline.count,
                        roofline_p50, roofline_p90);
  }
  return text;
}

}  // namespace kvtier::calibrate
