#include "calibrate/from_table.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "hw/profile/profile_timing.hpp"
#include "hw/timing/operation_time.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/csv_reader.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"
#include "sim/core/rng.hpp"
#include "sim/core/statistics.hpp"

namespace kvtier::calibrate {
namespace {

constexpr const char* kFormat = "kvtier.columns/1";
constexpr std::size_t kMostProblems = 100;
constexpr double kLargestSize = 1e9;

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

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
  std::vector<std::pair<std::size_t, std::string>> where;
};

/// The sizes of one timed row.
struct Sizes {
  std::int64_t new_tokens = 0;
  std::int64_t past_tokens = 0;
  std::int64_t batch = 1;
  std::int64_t context = 0;
  std::int64_t gpus = 1;
};

/// Which table of a profile a row belongs to, and its place in it.
struct Slot {
  OperationId operation = OperationId::gemm;
  std::string variant;
  std::map<std::string, std::int64_t> shape;
  std::vector<std::int64_t> at;
};

Slot slot_of(TableOperation operation, const Sizes& sizes, const ModelConfig& model) {
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
    case rope:
      break;
  }
  return {OperationId::rotation,
          "rope",
          {{"heads", heads.attention_heads + heads.kv_heads},
           {"head_dim", heads.head_dim},
           {"element_bytes", model.bytes_per_element}},
          {tokens}};
}

/// Collects the samples of all files, cell by cell.
class Importer {
 public:
  Importer(const ModelConfig& model, const HardwareConfig& hardware) : model_(model) {
    profile_.device = {.name = hardware.gpu.name,
                       .driver = "unknown",
                       .memory = hardware.hbm.capacity,
                       .peak = hardware.gpu.peak,
                       .memory_bandwidth = hardware.hbm.bandwidth,
                       .limits_source = "hardware " + hardware.name};
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

  Imported finish(const std::string& name, std::vector<std::string> notes) {
    if (!problems_.empty()) {
      throw ConfigError(problems_);
    }
    for (auto& [key, times] : samples_) {
      ProfileTable& table = profile_.tables[key.first];
      std::ranges::sort(times);
      table.cells.push_back({.at = key.second,
                             .p25_seconds = lower_quantile(times, 0.25),
                             .median_seconds = lower_quantile(times, 0.5),
                             .p75_seconds = lower_quantile(times, 0.75),
                             .n = static_cast<std::int64_t>(times.size())});
    }
    if (profile_.tables.empty()) {
      throw ConfigError(origin_ + ": no row has a time that counts");
    }
    profile_.name = name;
    profile_.provenance.model = model_.name;
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
        report(rows.error(fmt::format("no column \"{}\"{}", column, suggestion(column, names))));
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
                    .where = {}};
      for (const auto& [column, text] : rule.where) {
        if (const auto index = find(column)) {
          one.where.emplace_back(*index, text);
        }
      }
      bound.push_back(std::move(one));
    }
    if (!problems_.empty()) {
      bound.clear();
    }
    return bound;
  }

  void take(const BoundRule& rule, const CsvReader& rows) {
    for (const auto& [column, text] : rule.where) {
      if (rows.text(column) != text) {
        return;
      }
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
      const auto value = number(rows.text(*column));
      if (!value || *value < 0 || *value > kLargestSize || std::floor(*value) != *value) {
        report(rows.unexpected(*column, "a whole number"));
        bad = true;
        return absent;
      }
      return static_cast<std::int64_t>(*value);
    };
    const Sizes sizes{.new_tokens = size(rule.new_tokens, 1),
                      .past_tokens = size(rule.past_tokens, 0),
                      .batch = size(rule.batch, 1),
                      .context = size(rule.context, 0),
                      .gpus = size(rule.tensor_parallel, 1)};
    const auto time = number(rows.text(rule.time));
    if (!time) {
      report(rows.unexpected(rule.time, "a time"));
    }
    if (bad || !time) {
      return;
    }
    if (sizes.gpus < 1 || sizes.batch < 1) {
      report(rows.error("expected at least one GPU and one request"));
      return;
    }
    ++counts_.times;
    if (*operation == TableOperation::prefill_attention && sizes.batch > 1) {
      ++counts_.several_requests;
      return;
    }
    add(slot_of(*operation, sizes, model_), *time * unit_seconds(rule.rule->unit));
  }

  void add(const Slot& slot, double seconds) {
    if (seconds <= 0 || slot.at[0] < 1) {
      ++counts_.not_positive;
      return;
    }
    const std::size_t index = table_of(slot);
    const double second = slot.at.size() > 1 ? static_cast<double>(slot.at[1]) : 0;
    // A grid of one cell that takes no time gives the limit itself.
    const ProfileCell instant{.at = slot.at, .median_seconds = 1e-30};
    const double limit = make_grid(profile_, profile_.tables[index], {&instant, 1})
                             .at(static_cast<double>(slot.at[0]), second)
                             .seconds;
    if (seconds < limit) {
      ++counts_.beyond_limits;
      return;
    }
    samples_[{index, slot.at}].push_back(seconds);
  }

  std::size_t table_of(const Slot& slot) {
    for (std::size_t i = 0; i < profile_.tables.size(); ++i) {
      const ProfileTable& table = profile_.tables[i];
      if (table.operation == slot.operation && table.variant == slot.variant &&
          table.shape == slot.shape) {
        return i;
      }
    }
    profile_.tables.push_back({.operation = slot.operation,
                               .variant = slot.variant,
                               .method = "imported",
                               .cache = CacheState::cold,
                               .shape = slot.shape,
                               .axes = profile_operation(slot.operation).axes,
                               .cells = {},
                               .left_out = {}});
    return profile_.tables.size() - 1;
  }

  const ModelConfig& model_;
  Profile profile_;
  std::map<std::pair<std::size_t, std::vector<std::int64_t>>, std::vector<double>> samples_;
  ImportCounts counts_;
  std::string origin_;
  std::vector<std::string> problems_;
};

/// What the roofline says of one cell, at the attained rates.
std::optional<double> roofline_seconds(const ProfileTable& table, const ProfileCell& cell,
                                       const Rates& rates) {
  const auto attention = [&] {
    return AttentionShape{.attention_heads = table.shape.at("attention_heads"),
                          .kv_heads = table.shape.at("kv_heads"),
                          .head_dim = table.shape.at("head_dim"),
                          .element_bytes = table.shape.at("element_bytes")};
  };
  const auto at = [&](std::size_t axis) { return static_cast<double>(cell.at[axis]); };
  switch (table.operation) {
    case OperationId::gemm:
      return matrix_seconds({"", table.shape.at("n"), table.shape.at("k")},
                            table.shape.at("element_bytes"), at(0), rates);
    case OperationId::prefill_attention:
      return extend_attention_seconds(attention(), at(0), at(1), rates);
    case OperationId::decode_attention:
      return decode_attention_seconds(attention(), at(0) * at(1), rates);
    default:
      return std::nullopt;
  }
}

const char* group_of(OperationId operation) {
  switch (operation) {
    case OperationId::gemm:
      return "matrices";
    case OperationId::prefill_attention:
      return "prefill attention";
    case OperationId::decode_attention:
      return "decode attention";
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

/// A layer's prefill at every size of attention that was measured, as the sum of measured parts and
/// as the roofline gives it.
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
      pair.predicted += matrix_seconds(matrix, model.bytes_per_element, tokens, rates);
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
    problems.add("/format", fmt::format("expected \"{}\", got \"{}\"", kFormat, map.format));
  }
  for (std::size_t i = 0; i < map.rules.size(); ++i) {
    const ColumnRule& rule = map.rules[i];
    const std::string pointer = fmt::format("/rules/{}", i);
    if (rule.op.has_value() == !rule.op_column.empty()) {
      problems.add(pointer, "expected either op or op_column");
    }
    if (rule.unit != "s" && rule.unit != "ms" && rule.unit != "us") {
      problems.add(pointer + "/unit",
                   fmt::format("expected one of s, ms, us, got \"{}\"", rule.unit));
    }
  }
  problems.throw_if_any();
  return map;
}

Imported import_tables(const std::vector<TableFile>& files, const ModelConfig& model,
                       const HardwareConfig& hardware, const std::string& name) {
  Importer importer(model, hardware);
  std::vector<std::string> notes{"Imported: no samples of its own, and no copies or drives"};
  for (const TableFile& file : files) {
    importer.read(file);
    notes.push_back("Times of " + file.path.filename().string() +
                    (file.columns.source.empty() ? "" : ": " + file.columns.source));
  }
  return importer.finish(name, std::move(notes));
}

std::vector<FitRow> judge_fit(const Profile& profile, const ModelConfig& model,
                              const HardwareConfig& hardware, std::uint64_t seed) {
  const Rates rates = attained_rates(hardware);
  RandomStream random(seed, "calibrate/held_out_half");
  constexpr std::array<const char*, 4> kGroups{"matrices", "rows of elements", "prefill attention",
                                               "decode attention"};
  std::map<std::string, Group> groups;
  for (const ProfileTable& table : profile.tables) {
    judge_table(profile, table, rates, random, groups[group_of(table.operation)]);
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
  if (const std::vector<Pair> layers = layer_prefills(profile, model, rates); !layers.empty()) {
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
      "{} times read; rejected: {} not positive, {} beyond the limits of {}, {} prefills of "
      "several requests\n"
      "roofline: {} of the compute peak, {} of the memory bandwidth\n\n"
      "{:<20} {:>9} {:>8} {:>8} {:>13} {:>10} {:>8} {:>8}\n",
      counts.times, counts.not_positive, counts.beyond_limits, hardware.gpu.name,
      counts.several_requests, hardware.efficiency.compute, hardware.efficiency.memory, "",
      "held out", "p50", "p90", "extrapolated", "roofline", "p50", "p90");
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
