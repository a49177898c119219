#include "calibrate/check.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "hw/profile/profile_shapes.hpp"
#include "hw/profile/profile_timing.hpp"
#include "hw/timing/layer_pipeline.hpp"
#include "sim/core/rng.hpp"
#include "sim/core/statistics.hpp"

namespace kvtier::calibrate {
namespace {

/// Folds of a cross-validation: a fifth of the cells is left out at a time.
constexpr std::int64_t kFolds = 5;

/// Fewest cells of a table for a cross-validation.
constexpr std::size_t kFewestCells = 3;

/// Results of one operation on one rung, over all its tables.
struct Gathered {
  std::vector<Pair> pairs;
  std::vector<Pair> roofline;
  std::int64_t left_out = 0;
};
struct RowKey {
  Rung rung;
  OperationId operation;
  std::string kind{};

  auto operator<=>(const RowKey&) const = default;
};
using Rows = std::map<RowKey, Gathered>;

CheckReport make_report(const Rows& rows, bool live) {
  CheckReport report;
  for (const auto& [key, gathered] : rows) {
    CheckRow row{.rung = key.rung,
                 .operation = key.operation,
                 .kind = key.kind,
                 .errors = error_statistics(gathered.pairs),
                 .roofline = error_statistics(gathered.roofline),
                 .left_out = gathered.left_out,
                 .in_band = {}};
    const std::optional<Band> band = band_of(key.operation);
    const bool recorded = row.rung == Rung::composition || row.rung == Rung::overlap;
    const bool against_now = row.rung == Rung::drift || row.rung == Rung::held_out;
    const bool judged = recorded || (live && against_now);
    if (band && judged && row.errors.count > 0) {
      row.in_band = row.errors.p50 <= band->p50 && row.errors.p90 <= band->p90;
    }
    report.rows.push_back(row);
  }
  return report;
}

ProfileGrid::Time predict(const ProfileGrid& grid, const std::vector<std::int64_t>& at) {
  return grid.at(static_cast<double>(at[0]), at.size() > 1 ? static_cast<double>(at[1]) : 0);
}

/// The fold of each cell, drawn at random; folds have equal sizes.
std::vector<std::int64_t> draw_folds(std::size_t cells, RandomStream& random) {
  std::vector<std::int64_t> folds(cells);
  for (std::size_t i = 0; i < cells; ++i) {
    folds[i] = static_cast<std::int64_t>(i) % kFolds;
  }
  for (std::size_t i = cells; i > 1; --i) {
    std::swap(folds[i - 1],
              folds[static_cast<std::size_t>(random.index(static_cast<std::int64_t>(i)))]);
  }
  return folds;
}

/// Adds the roofline's time of a cell, at common shares of the limits (those of the hardware
/// presets), with a floor for each call. Adds nothing for operations without a limit.
void add_roofline(const Profile& profile, const ProfileTable& table, const ProfileCell& cell,
                  Gathered& gathered) {
  constexpr double kAttentionFloor = 10e-6;
  constexpr double kFloor = 3e-6;
  using enum OperationId;
  const bool is_attention =
      table.operation == prefill_attention || table.operation == decode_attention;
  if (table.cache == CacheState::hot || (!is_attention && table.operation != gemm)) {
    return;
  }
  const std::optional<DataType> type = is_attention ? std::nullopt : type_of(table);
  const double seconds = seconds_of(work_at(work_of(table), cell),
                                    usual_rates(device_rates(profile, type, table.cache)));
  gathered.roofline.push_back(
      {std::max(seconds, is_attention ? kAttentionFloor : kFloor), cell.median_seconds});
}

/// Predicts a cell of a table by a grid without it, and by the roofline.
void add_prediction(const Profile& profile, const ProfileTable& table, const ProfileGrid& grid,
                    const ProfileCell& cell, Gathered& gathered) {
  const ProfileGrid::Time time = predict(grid, cell.at);
  if (time.extrapolated) {
    ++gathered.left_out;
  } else {
    gathered.pairs.push_back({time.seconds, cell.median_seconds});
    add_roofline(profile, table, cell, gathered);
  }
}

void add_cross_validation(const Profile& profile, const ProfileTable& table, RandomStream& random,
                          Gathered& gathered) {
  if (table.cells.size() < kFewestCells) {
    gathered.left_out += static_cast<std::int64_t>(table.cells.size());
    return;
  }
  const std::vector<std::int64_t> folds = draw_folds(table.cells.size(), random);
  for (std::int64_t fold = 0; fold < kFolds; ++fold) {
    std::vector<ProfileCell> rest;
    std::vector<const ProfileCell*> held;
    for (std::size_t i = 0; i < table.cells.size(); ++i) {
      if (folds[i] == fold) {
        held.push_back(&table.cells[i]);
      } else {
        rest.push_back(table.cells[i]);
      }
    }
    const ProfileGrid grid = make_grid(profile, table, rest);
    for (const ProfileCell* cell : held) {
      add_prediction(profile, table, grid, *cell, gathered);
    }
  }
}

/// The kind of a table, for the rows of a report.
std::string kind_of(const ProfileTable& table) {
  std::string kind = table.dtype ? kvtier::to_string(*table.dtype) : "";
  if (table.operation == OperationId::moe || table.operation == OperationId::mla_prefill ||
      table.operation == OperationId::mla_decode || table.operation == OperationId::quantize) {
    kind += " " + table.variant;
  }
  if (table.shape.contains("window")) {
    kind += kind.empty() ? "window" : " window";
  }
  return kind;
}

/// Holds out folds of pairs of n and k at all tokens, and folds of the cells of each pair.
void add_matrices(const Profile& profile, const ProfileTable& table, RandomStream& random,
                  Rows& rows) {
  using Shape = std::pair<std::int64_t, std::int64_t>;
  std::map<Shape, std::vector<ProfileCell>> shapes;
  for (const ProfileCell& cell : table.cells) {
    shapes[{cell.at[1], cell.at[2]}].push_back(cell);
  }
  const std::string kind = kind_of(table);
  Gathered& over_tokens = rows[{Rung::held_out, OperationId::gemm_grid, kind + " tokens"}];
  Gathered& over_shapes = rows[{Rung::held_out, OperationId::gemm_grid, kind + " n, k"}];
  const std::vector<std::int64_t> folds = draw_folds(shapes.size(), random);
  for (std::int64_t fold = 0; fold < kFolds; ++fold) {
    ProfileTable rest = table;
    rest.cells.clear();
    std::size_t i = 0;
    for (const auto& [shape, cells] : shapes) {
      if (folds[i++] != fold) {
        rest.cells.insert(rest.cells.end(), cells.begin(), cells.end());
      }
    }
    i = 0;
    for (const auto& [shape, cells] : shapes) {
      if (folds[i++] != fold) {
        continue;
      }
      const auto shaped = interpolate_matrix(profile, rest, shape.first, shape.second);
      if (!shaped || shaped->extrapolated) {
        over_shapes.left_out += static_cast<std::int64_t>(cells.size());
        continue;
      }
      const ProfileGrid grid = make_grid(profile, shaped->table);
      ProfileTable measured = shaped->table;
      measured.cells = cells;
      for (ProfileCell& cell : measured.cells) {
        cell.at = {cell.at[0]};
        over_shapes.pairs.push_back(
            {grid.at(static_cast<double>(cell.at[0])).seconds, cell.median_seconds});
        add_roofline(profile, measured, cell, over_shapes);
      }
      add_cross_validation(profile, measured, random, over_tokens);
    }
  }
}

/// Holds out tables of attention between those of fewer and of more heads.
void add_heads(const Profile& profile, const ProfileTable& table, Rows& rows) {
  const std::optional<DataType> type = type_of(table);
  if (!type) {
    return;
  }
  Profile rest;
  rest.device = profile.device;
  for (const ProfileTable* other : find_tables(profile, table.operation)) {
    if (other->shape != table.shape || type_of(*other) != type) {
      rest.tables.push_back(*other);
    }
  }
  const auto shaped =
      interpolate_attention(rest, table.operation, attention_of(table), window_of(table), *type);
  if (!shaped || shaped->extrapolated) {
    return;
  }
  Gathered& gathered = rows[{Rung::held_out, table.operation, kind_of(table) + " heads"}];
  const ProfileGrid grid = make_grid(profile, shaped->table);
  for (const ProfileCell& cell : table.cells) {
    add_prediction(profile, table, grid, cell, gathered);
  }
}

/// Predicts attention after past tokens by the law from the cells without past tokens.
void add_past_law(const Profile& profile, const ProfileTable& table, Rows& rows) {
  ProfileTable without = table;
  std::erase_if(without.cells, [](const ProfileCell& cell) { return cell.at[1] > 0; });
  if (without.cells.size() < kFewestCells || without.cells.size() == table.cells.size() ||
      table.variant == kRotatedVariant) {
    return;
  }
  add_past_by_law(without);
  const ProfileGrid grid = make_grid(profile, without);
  Gathered& gathered = rows[{Rung::held_out, table.operation, kind_of(table) + " past by law"}];
  for (const ProfileCell& cell : table.cells) {
    if (cell.at[1] == 0) {
      continue;
    }
    add_prediction(profile, table, grid, cell, gathered);
  }
}

/// Holds out folds of all-reduce messages.
void add_messages(const ProfileTable& table, RandomStream& random, Rows& rows) {
  std::map<std::int64_t, std::vector<ProfileCell>> messages;
  for (const ProfileCell& cell : table.cells) {
    messages[cell.at[0]].push_back(cell);
    messages[cell.at[0]].back().at = {cell.at[1]};
  }
  Gathered& gathered = rows[{Rung::held_out, table.operation, table.variant}];
  for (const auto& [gpus, cells] : messages) {
    const std::vector<std::int64_t> folds = draw_folds(cells.size(), random);
    for (std::int64_t fold = 0; fold < kFolds && cells.size() >= kFewestCells; ++fold) {
      std::vector<ProfileCell> rest;
      for (std::size_t i = 0; i < cells.size(); ++i) {
        if (folds[i] != fold) {
          rest.push_back(cells[i]);
        }
      }
      const ProfileGrid grid(rest, [](double bytes, double) { return bytes * 1e-18; });
      for (std::size_t i = 0; i < cells.size(); ++i) {
        if (folds[i] == fold) {
          const ProfileGrid::Time time = grid.at(static_cast<double>(cells[i].at[0]));
          if (time.extrapolated) {
            ++gathered.left_out;
          } else {
            gathered.pairs.push_back({time.seconds, cells[i].median_seconds});
          }
        }
      }
    }
  }
}

/// Holds out folds of iterations that mix a prefill and decodes: their factor on the sum of both
/// alone.
void add_mixed(const Profile& profile, const ProfileTable& table, RandomStream& random,
               Rows& rows) {
  const auto alone = [&](OperationId operation) -> std::optional<ProfileGrid> {
    for (const ProfileTable* other : find_tables(profile, operation)) {
      if (other->shape == table.shape && !other->cells.empty()) {
        return make_grid(profile, *other);
      }
    }
    return std::nullopt;
  };
  const auto prefill = alone(OperationId::prefill_attention);
  const auto decode = alone(OperationId::decode_attention);
  if (!prefill || !decode) {
    return;
  }
  const auto sum_of = [&](const ProfileCell& cell) {
    const auto at = [&](std::size_t axis) { return static_cast<double>(cell.at[axis]); };
    return prefill->at(at(0), at(1)).seconds + decode->at(at(2), at(3)).seconds;
  };
  const auto place = [](const ProfileCell& cell) {
    FactorGrid::Place at{};
    std::ranges::copy(cell.at, at.begin());
    return at;
  };
  Gathered& gathered = rows[{Rung::held_out, table.operation, ""}];
  Gathered& sums = rows[{Rung::sum, table.operation, ""}];
  const std::vector<std::int64_t> folds = draw_folds(table.cells.size(), random);
  for (std::int64_t fold = 0; fold < kFolds; ++fold) {
    std::vector<FactorGrid::Point> points;
    for (std::size_t i = 0; i < table.cells.size(); ++i) {
      if (folds[i] != fold) {
        const ProfileCell& cell = table.cells[i];
        points.push_back({.at = place(cell), .factor = cell.median_seconds / sum_of(cell)});
      }
    }
    const FactorGrid factors(points);
    for (std::size_t i = 0; i < table.cells.size(); ++i) {
      if (folds[i] == fold) {
        const ProfileCell& cell = table.cells[i];
        const double sum = sum_of(cell);
        gathered.pairs.push_back({sum * factors.at(place(cell)), cell.median_seconds});
        sums.pairs.push_back({sum, cell.median_seconds});
      }
    }
  }
}

/// The table of the same heads, with keys rotated or not as in `like`.
const ProfileTable* same_attention(const Profile& profile, OperationId operation,
                                   const ProfileTable& like) {
  const auto rotates = [](const ProfileTable& table) { return table.variant == kRotatedVariant; };
  for (const ProfileTable* table : find_tables(profile, operation)) {
    if (table->shape == like.shape && rotates(*table) == rotates(like) && !table->cells.empty()) {
      return table;
    }
  }
  return nullptr;
}

/// A part of a ragged batch as the timing model composes it: one request, or all requests of one
/// new token together. It is a place in prefill_attention or decode_attention.
struct Part {
  const ProfileTable* table = nullptr;
  std::vector<std::int64_t> at;
};

/// A ragged batch as the timing model composes it: requests of one new token by the sum of their
/// contexts (decode_attention), all others one by one (prefill_attention). Empty if the profile
/// lacks one of the two.
std::vector<Part> parts_of(const Profile& profile, const ProfileTable& ragged,
                           const ProfileCell& cell) {
  const ProfileTable* extend = same_attention(profile, OperationId::prefill_attention, ragged);
  const ProfileTable* decode = same_attention(profile, OperationId::decode_attention, ragged);
  if (extend == nullptr || decode == nullptr) {
    return {};
  }
  std::vector<Part> parts;
  std::int64_t decoding = 0;
  std::int64_t context = 0;
  for (const std::vector<std::int64_t>& part : cell.parts) {
    if (part[0] == 1) {
      decoding += 1;
      context += part[1];
    } else {
      parts.push_back({extend, part});
    }
  }
  if (decoding > 0) {
    parts.push_back({decode, {decoding, std::max<std::int64_t>(1, context / decoding)}});
  }
  return parts;
}

/// Composes recorded cells from the profile's own grids.
void add_composition(const Profile& profile, const ProfileTable& ragged, Gathered& gathered) {
  std::map<const ProfileTable*, ProfileGrid> grids;
  for (const ProfileCell& cell : ragged.cells) {
    const std::vector<Part> parts = parts_of(profile, ragged, cell);
    ProfileGrid::Time sum{.seconds = 0, .extrapolated = parts.empty()};
    for (const Part& part : parts) {
      if (!grids.contains(part.table)) {
        grids.emplace(part.table, make_grid(profile, *part.table));
      }
      const ProfileGrid::Time time = predict(grids.at(part.table), part.at);
      sum.seconds += time.seconds;
      sum.extrapolated = sum.extrapolated || time.extrapolated;
    }
    if (sum.extrapolated) {
      ++gathered.left_out;
    } else {
      gathered.pairs.push_back({sum.seconds, cell.median_seconds});
    }
  }
}

std::int64_t passes_before(const ProfileTable& steps) {
  constexpr std::int64_t kMany = 2;
  const bool in_a_run = steps.variant == kWarm || steps.variant == kDecodeWarm;
  return in_a_run ? kMany : steps.variant == kSecond ? 1 : 0;
}

/// Compares a table of recorded whole steps with the timing model.
void compare_steps(const Profile& profile, const ProfileTable& table, Gathered& gathered) {
  const ModelConfig model = model_of_steps(table);
  HardwareConfig hardware;
  hardware.gpus = 1;
  hardware.profile =
      ProfileChoice{.name = profile.name, .loaded = {std::shared_ptr<const Profile>(), &profile}};
  Problems problems;
  check_profile_timing(model, hardware, problems);
  if (table.cells.empty() || !problems.lines().empty()) {
    gathered.left_out += std::ssize(table.cells);
    return;
  }
  const auto largest =
      std::ranges::max(table.cells, {}, [](const ProfileCell& cell) { return cell.at[0]; });
  const ProfileTiming timing(model, hardware, KeyPositions::decoupled, largest.at[0]);
  for (const ProfileCell& cell : table.cells) {
    if (cell.at[1] == 1) {
      const SimDuration time = timing.decode_duration(cell.at[0], decode_context(cell)) +
                               timing.decode_warm_up(passes_before(table));
      gathered.pairs.push_back({time.seconds(), cell.median_seconds});
    } else {
      const std::vector<PrefillPart> parts(
          static_cast<std::size_t>(cell.at[0]),
          {.added = Tokens(cell.at[1]), .past = Tokens(cell.at[2])});
      gathered.pairs.push_back(
          {timing.prefill(parts).after(passes_before(table)).seconds(), cell.median_seconds});
    }
  }
}

void add_steps(const Profile& profile, Rows& rows) {
  Profile operations = profile;
  std::erase_if(operations.tables, [](const ProfileTable& table) {
    return table.operation == OperationId::model_step;
  });
  for (const ProfileTable* table : find_tables(profile, OperationId::model_step)) {
    compare_steps(profile, *table, rows[{Rung::composition, OperationId::model_step}]);
    compare_steps(operations, *table, rows[{Rung::sum, OperationId::model_step}]);
  }
}

const ProfileCell* find_cell(const Profile& profile, OperationId operation, const char* variant,
                             const std::vector<std::int64_t>& at) {
  for (const ProfileTable* table : find_tables(profile, operation)) {
    if (table->variant == variant) {
      const auto found = std::ranges::find(table->cells, at, &ProfileCell::at);
      return found == table->cells.end() ? nullptr : &*found;
    }
  }
  return nullptr;
}

/// Compares recorded copies and matrices of a few layers together with each alone.
void add_overlap(const Profile& profile, Rows& rows) {
  for (const ProfileTable* table : find_tables(profile, OperationId::layer_pipeline)) {
    if (table->variant != "pipeline") {
      continue;
    }
    Gathered& gathered = rows[{Rung::overlap, OperationId::layer_pipeline}];
    for (const ProfileCell& cell : table->cells) {
      const ProfileCell* copies =
          find_cell(profile, OperationId::layer_pipeline, "copies", cell.at);
      const ProfileCell* compute =
          find_cell(profile, OperationId::layer_pipeline, "compute", cell.at);
      if (copies == nullptr || compute == nullptr) {
        ++gathered.left_out;
        continue;
      }
      const std::int64_t layers = cell.at[0];
      const auto share = static_cast<double>(layers);
      const SimDuration predicted =
          pipelined_finish({.layers = layers,
                            .load = duration_from_seconds(copies->median_seconds / share),
                            .compute = duration_from_seconds(compute->median_seconds / share),
                            .loaded_ahead = {}});
      gathered.pairs.push_back({predicted.seconds(), cell.median_seconds});
    }
  }
}

/// The cells that each rung uses.
std::span<const ProfileCell> first_cells(const ProfileTable& table, const CheckOptions& options) {
  return std::span(table.cells)
      .first(std::min(table.cells.size(), static_cast<std::size_t>(options.cells)));
}

/// The same by measuring: the whole is measured between the first and the second half of its parts.
void measure_composition(const Profile& profile, const ProfileTable& ragged,
                         const MeasureCell& measure, const CheckOptions& options,
                         Gathered& gathered) {
  for (const ProfileCell& cell : first_cells(ragged, options)) {
    const std::vector<Part> parts = parts_of(profile, ragged, cell);
    std::optional<double> whole;
    std::optional<double> sum = parts.empty() ? std::nullopt : std::optional(0.0);
    for (std::size_t k = 0; k < parts.size() && sum; ++k) {
      if (k == parts.size() / 2) {
        whole = measure(ragged, {cell.at, cell.parts});
      }
      const auto part = measure(*parts[k].table, {parts[k].at});
      sum = part ? std::optional(*sum + *part) : std::nullopt;
    }
    if (sum && whole) {
      gathered.pairs.push_back({*sum, *whole});
    } else {
      ++gathered.left_out;
    }
  }
}

/// Neighbours along every axis, all measured.
using Corners = std::vector<const ProfileCell*>;

/// The corners of each field of the grid whose corners were all measured. An axis with one value
/// has no width.
std::vector<Corners> fields_of(const ProfileTable& table) {
  const std::size_t axes = table.axes.size();
  std::vector<std::vector<std::int64_t>> values(axes);
  std::map<std::vector<std::int64_t>, const ProfileCell*> at;
  for (const ProfileCell& cell : table.cells) {
    at.emplace(cell.at, &cell);
    for (std::size_t axis = 0; axis < axes; ++axis) {
      values[axis].push_back(cell.at[axis]);
    }
  }
  for (std::vector<std::int64_t>& axis : values) {
    std::ranges::sort(axis);
    axis.erase(std::unique(axis.begin(), axis.end()), axis.end());
  }
  std::vector<Corners> fields;
  for (const ProfileCell& lowest : table.cells) {
    std::vector<std::vector<std::int64_t>> places{lowest.at};
    bool inside = true;
    for (std::size_t axis = 0; axis < axes; ++axis) {
      const auto next = std::ranges::upper_bound(values[axis], lowest.at[axis]);
      if (next == values[axis].end()) {
        inside = inside && values[axis].size() == 1;
        continue;
      }
      const std::size_t count = places.size();
      for (std::size_t i = 0; i < count; ++i) {
        places.push_back(places[i]);
        places.back()[axis] = *next;
      }
    }
    Corners corners;
    for (const std::vector<std::int64_t>& place : places) {
      const auto found = at.find(place);
      inside = inside && found != at.end();
      corners.push_back(inside ? found->second : nullptr);
    }
    if (inside && corners.size() > 1) {
      fields.push_back(std::move(corners));
    }
  }
  return fields;
}

/// A random place between the corners, uniform in the logarithms of sizes. The last corner is the
/// largest along every axis.
std::vector<std::int64_t> draw_place(const Corners& corners, RandomStream& random) {
  std::vector<std::int64_t> at;
  for (std::size_t axis = 0; axis < corners.front()->at.size(); ++axis) {
    const std::int64_t least = corners.front()->at[axis];
    const std::int64_t most = corners.back()->at[axis];
    // One is added to sizes, because they may be zero.
    const double low = std::log(static_cast<double>(least + 1));
    const double high = std::log(static_cast<double>(most + 1));
    const double drawn = std::exp(low + (high - low) * random.uniform()) - 1;
    at.push_back(std::clamp(static_cast<std::int64_t>(std::llround(drawn)), least, most));
  }
  return at;
}

/// Measures a place after the first half and before the second half of its corners, and predicts it
/// from the corners.
std::optional<Pair> measure_between(const Profile& profile, const ProfileTable& table,
                                    const Corners& corners, const std::vector<std::int64_t>& place,
                                    const MeasureCell& measure) {
  std::vector<ProfileCell> now;
  std::optional<double> measured;
  for (std::size_t i = 0; i < corners.size(); ++i) {
    if (i == corners.size() / 2) {
      measured = measure(table, {place});
      if (!measured) {
        return std::nullopt;
      }
    }
    const auto seconds = measure(table, {corners[i]->at});
    if (!seconds) {
      return std::nullopt;
    }
    now.push_back(*corners[i]);
    now.back().median_seconds = *seconds;
  }
  return Pair{predict(make_grid(profile, table, now), place).seconds, *measured};
}

bool is_measured_again(const ProfileTable& table) {
  return is_interpolated(table.operation) && !table.cells.empty();
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

}  // namespace

ErrorStatistics error_statistics(std::span<const Pair> pairs) {
  std::vector<double> errors;
  double sum = 0;
  for (const Pair& pair : pairs) {
    errors.push_back(std::abs(pair.predicted - pair.measured) / pair.measured);
    sum += errors.back();
  }
  if (errors.empty()) {
    return {};
  }
  std::ranges::sort(errors);
  return {.count = static_cast<std::int64_t>(errors.size()),
          .p50 = lower_quantile(errors, 0.5),
          .p90 = lower_quantile(errors, 0.9),
          .mean = sum / static_cast<double>(errors.size()),
          .worst = errors.back()};
}

std::optional<Band> band_of(OperationId operation) {
  switch (operation) {
    case OperationId::gemm:
    case OperationId::prefill_attention:
    case OperationId::decode_attention:
      return Band{.p50 = 0.05, .p90 = 0.12};
    case OperationId::copy_h2d:
    case OperationId::copy_d2h:
    case OperationId::copy_duplex:
      return Band{.p50 = 0.03, .p90 = 0.08};
    case OperationId::ragged_attention:
    case OperationId::model_step:
      return Band{.p50 = 0.05, .p90 = 1};
    case OperationId::layer_pipeline:
      return Band{.p50 = 0.1, .p90 = 1};
    default:
      return std::nullopt;
  }
}

const char* to_string(Rung rung) {
  constexpr std::array<const char*, 6> names{"repeat",      "drift", "held out",
                                             "composition", "sum",   "overlap"};
  return names[static_cast<std::size_t>(rung)];
}

bool CheckReport::in_band() const {
  return std::ranges::all_of(rows, [](const CheckRow& row) { return row.in_band.value_or(true); });
}

bool is_interpolated(OperationId operation) {
  using enum OperationId;
  return operation == gemm || operation == prefill_attention || operation == decode_attention ||
         operation == elementwise || operation == rotation || operation == copy_h2d ||
         operation == copy_d2h || operation == copy_duplex || operation == moe ||
         operation == mla_prefill || operation == mla_decode || operation == quantize ||
         operation == state_prefill || operation == state_decode;
}

CheckReport cross_validate(const Profile& profile, std::uint64_t seed) {
  RandomStream random(seed, "calibrate/cross_validation");
  Rows rows;
  for (const ProfileTable& table : profile.tables) {
    if (is_interpolated(table.operation)) {
      add_cross_validation(profile, table, random,
                           rows[{Rung::held_out, table.operation, kind_of(table)}]);
    }
    switch (table.operation) {
      case OperationId::gemm_grid:
        add_matrices(profile, table, random, rows);
        break;
      case OperationId::prefill_attention:
        add_past_law(profile, table, rows);
        add_heads(profile, table, rows);
        break;
      case OperationId::decode_attention:
        add_heads(profile, table, rows);
        break;
      case OperationId::all_reduce:
        add_messages(table, random, rows);
        break;
      case OperationId::mixed_attention:
        add_mixed(profile, table, random, rows);
        break;
      default:
        break;
    }
  }
  for (const ProfileTable* table : find_tables(profile, OperationId::ragged_attention)) {
    add_composition(profile, *table, rows[{Rung::composition, OperationId::ragged_attention}]);
  }
  add_steps(profile, rows);
  add_overlap(profile, rows);
  return make_report(rows, false);
}

namespace {

/// Whether the profile has the cell itself.
bool has_cell(const Profile& profile, const ProfileTable& table, const ProfileCell& cell) {
  for (const ProfileTable* other : find_tables(profile, table.operation)) {
    if (other->shape == table.shape && type_of(*other) == type_of(table)) {
      return std::ranges::any_of(other->cells,
                                 [&](const ProfileCell& one) { return one.at == cell.at; });
    }
  }
  return false;
}

void compare_matrices(const Profile& profile, const ProfileTable& table, Rows& rows) {
  std::set<std::vector<std::int64_t>> known;
  for (const ProfileTable* other : find_tables(profile, OperationId::gemm_grid)) {
    if (other->dtype == table.dtype) {
      for (const ProfileCell& cell : other->cells) {
        known.insert(cell.at);
      }
    }
  }
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<ProfileCell>> shapes;
  for (const ProfileCell& cell : table.cells) {
    if (!known.contains(cell.at)) {
      shapes[{cell.at[1], cell.at[2]}].push_back(cell);
    }
  }
  Gathered& gathered = rows[{Rung::held_out, table.operation, kind_of(table)}];
  for (const auto& [shape, cells] : shapes) {
    const auto shaped = interpolate_matrix(profile, shape.first, shape.second, *table.dtype);
    if (!shaped || shaped->extrapolated) {
      gathered.left_out += static_cast<std::int64_t>(cells.size());
      continue;
    }
    const ProfileGrid grid = make_grid(profile, shaped->table);
    for (ProfileCell cell : cells) {
      cell.at = {cell.at[0]};
      add_prediction(profile, shaped->table, grid, cell, gathered);
    }
  }
}

void compare_attention(const Profile& profile, const ProfileTable& table, Rows& rows) {
  const std::optional<DataType> type = type_of(table);
  Gathered& gathered = rows[{Rung::held_out, table.operation, kind_of(table)}];
  const auto shaped = type ? interpolate_attention(profile, table.operation, attention_of(table),
                                                   window_of(table), *type)
                           : std::nullopt;
  if (!shaped || shaped->extrapolated) {
    gathered.left_out += static_cast<std::int64_t>(table.cells.size());
    return;
  }
  const ProfileGrid grid = make_grid(profile, shaped->table);
  for (const ProfileCell& cell : table.cells) {
    if (has_cell(profile, table, cell)) {
      continue;
    }
    add_prediction(profile, table, grid, cell, gathered);
  }
}

/// Work of the same shape at other sizes.
void compare_sizes(const Profile& profile, const ProfileTable& table, Rows& rows) {
  Gathered& gathered = rows[{Rung::held_out, table.operation, kind_of(table)}];
  for (const ProfileTable* other : find_tables(profile, table.operation, table.variant)) {
    if (other->shape != table.shape || other->dtype != table.dtype) {
      continue;
    }
    const ProfileGrid grid = make_grid(profile, *other);
    for (const ProfileCell& cell : table.cells) {
      const ProfileGrid::Time time = predict(grid, cell.at);
      if (time.extrapolated) {
        ++gathered.left_out;
      } else if (!has_cell(profile, table, cell)) {
        gathered.pairs.push_back({time.seconds, cell.median_seconds});
      }
    }
    return;
  }
  gathered.left_out += static_cast<std::int64_t>(table.cells.size());
}

}  // namespace

CheckReport compare_with(const Profile& profile, const Profile& measured) {
  Rows rows;
  for (const ProfileTable& table : measured.tables) {
    if (table.operation == OperationId::gemm_grid) {
      compare_matrices(profile, table, rows);
    } else if (table.operation == OperationId::prefill_attention ||
               table.operation == OperationId::decode_attention) {
      compare_attention(profile, table, rows);
    } else if (table.operation == OperationId::moe || table.operation == OperationId::mla_prefill ||
               table.operation == OperationId::mla_decode ||
               table.operation == OperationId::state_prefill ||
               table.operation == OperationId::state_decode) {
      compare_sizes(profile, table, rows);
    }
  }
  return make_report(rows, false);
}

std::int64_t measurements(const Profile& profile, const CheckOptions& options) {
  std::int64_t count = 0;
  for (const ProfileTable& table : profile.tables) {
    if (is_measured_again(table)) {
      const std::int64_t corners = table.axes.size() > 1 ? 4 : 2;
      count += options.cells * (2 + 1 + corners);
    }
    if (table.operation == OperationId::ragged_attention) {
      for (const ProfileCell& cell : first_cells(table, options)) {
        count += 1 + static_cast<std::int64_t>(parts_of(profile, table, cell).size());
      }
    }
  }
  return count;
}

CheckReport check_by_measuring(const Profile& profile, const MeasureCell& measure,
                               const CheckOptions& options) {
  RandomStream random(options.seed, "calibrate/check");
  Rows rows;
  for (const ProfileTable& table : profile.tables) {
    if (table.operation == OperationId::ragged_attention) {
      measure_composition(profile, table, measure, options,
                          rows[{Rung::composition, OperationId::ragged_attention}]);
    }
    if (!is_measured_again(table)) {
      continue;
    }
    Gathered& repeats = rows[{Rung::repeat, table.operation}];
    Gathered& drift = rows[{Rung::drift, table.operation}];
    Gathered& held_out = rows[{Rung::held_out, table.operation}];
    const std::vector<Corners> fields = fields_of(table);
    const auto draw = [&random](const auto& items) -> const auto& {
      return items[static_cast<std::size_t>(random.index(static_cast<std::int64_t>(items.size())))];
    };
    for (std::int64_t i = 0; i < options.cells; ++i) {
      const ProfileCell& cell = draw(table.cells);
      const auto first = measure(table, {cell.at});
      const auto second = first ? measure(table, {cell.at}) : std::nullopt;
      if (second) {
        repeats.pairs.push_back({*first, *second});
        drift.pairs.push_back({cell.median_seconds, *first});
      } else {
        ++repeats.left_out;
        ++drift.left_out;
      }
      std::optional<Pair> pair;
      if (!fields.empty()) {
        const Corners& corners = draw(fields);
        pair = measure_between(profile, table, corners, draw_place(corners, random), measure);
      }
      if (pair) {
        held_out.pairs.push_back(*pair);
      } else {
        ++held_out.left_out;
      }
    }
  }
  add_steps(profile, rows);
  add_overlap(profile, rows);
  return make_report(rows, true);
}

std::string to_text(const CheckReport& report) {
  constexpr const char* kLine =
      "{:<12} {:<19} {:<20} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  {}\n";
  std::string text = fmt::format(kLine, "rung", "op", "of", "cells", "p50", "p90", "mean", "worst",
                                 "left out", "roofline", "p90", "band");
  for (const CheckRow& row : report.rows) {
    const std::optional<Band> band = band_of(row.operation);
    const std::string verdict = !row.in_band
                                    ? "-"
                                    : fmt::format("{} ({}, {})", *row.in_band ? "in" : "OUT",
                                                  percent(band->p50), percent(band->p90));
    const bool has_roofline = row.roofline.count > 0;
    text += fmt::format(kLine, to_string(row.rung), kvtier::to_string(row.operation), row.kind,
                        row.errors.count, percent(row.errors.p50), percent(row.errors.p90),
                        percent(row.errors.mean), percent(row.errors.worst), row.left_out,
                        has_roofline ? percent(row.roofline.p50) : "-",
                        has_roofline ? percent(row.roofline.p90) : "-", verdict);
  }
  return text;
}

}  // namespace kvtier::calibrate
