#include "calibrate/check.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "hw/profile_timing.hpp"
#include "sim/core/rng.hpp"

namespace kvtier::calibrate {
namespace {

/// Folds of a cross-validation: a fifth of the cells is left out at a time.
constexpr std::int64_t kFolds = 5;

/// Fewer cells span nothing once some are left out.
constexpr std::size_t kFewestCells = 3;

/// What one operation gave on one rung, over all its tables.
struct Gathered {
  std::vector<Pair> pairs;
  std::int64_t left_out = 0;
};
using Rows = std::map<std::pair<Rung, OperationId>, Gathered>;

CheckReport make_report(const Rows& rows, bool judge_held_out) {
  CheckReport report;
  for (const auto& [key, gathered] : rows) {
    CheckRow row{.rung = key.first,
                 .operation = key.second,
                 .errors = error_statistics(gathered.pairs),
                 .left_out = gathered.left_out,
                 .in_band = {}};
    const std::optional<Band> band = band_of(key.second);
    const bool judged =
        row.rung == Rung::composition || (row.rung == Rung::held_out && judge_held_out);
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

/// A cell's fold, drawn anew for each table; equal shares.
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
      const ProfileGrid::Time time = predict(grid, cell->at);
      if (time.extrapolated) {
        ++gathered.left_out;
      } else {
        gathered.pairs.push_back({time.seconds, cell->median_seconds});
      }
    }
  }
}

const ProfileTable* same_shape(const Profile& profile, OperationId operation,
                               const ProfileTable& like) {
  for (const ProfileTable* table : find_tables(profile, operation)) {
    if (table->shape == like.shape && !table->cells.empty()) {
      return table;
    }
  }
  return nullptr;
}

/// A ragged batch as the timing model composes it: requests of one new token by the sum of their
/// contexts (A2), all others one by one (A1).
void add_composition(const Profile& profile, const ProfileTable& ragged, Gathered& gathered) {
  const ProfileTable* extend = same_shape(profile, OperationId::A1, ragged);
  const ProfileTable* decode = same_shape(profile, OperationId::A2, ragged);
  if (extend == nullptr || decode == nullptr) {
    gathered.left_out += static_cast<std::int64_t>(ragged.cells.size());
    return;
  }
  const ProfileGrid extend_grid = make_grid(profile, *extend);
  const ProfileGrid decode_grid = make_grid(profile, *decode);
  for (const ProfileCell& cell : ragged.cells) {
    ProfileGrid::Time sum;
    const auto add = [&sum](const ProfileGrid::Time& time) {
      sum.seconds += time.seconds;
      sum.extrapolated = sum.extrapolated || time.extrapolated;
    };
    double decoding = 0;
    double context = 0;
    for (const std::vector<std::int64_t>& part : cell.parts) {
      if (part[0] == 1) {
        decoding += 1;
        context += static_cast<double>(part[1]);
      } else {
        add(predict(extend_grid, part));
      }
    }
    if (decoding > 0) {
      add(decode_grid.at(decoding, context / decoding));
    }
    if (sum.extrapolated) {
      ++gathered.left_out;
    } else {
      gathered.pairs.push_back({sum.seconds, cell.median_seconds});
    }
  }
}

void add_compositions(const Profile& profile, Rows& rows) {
  for (const ProfileTable* table : find_tables(profile, OperationId::A3)) {
    add_composition(profile, *table, rows[{Rung::composition, OperationId::A3}]);
  }
}

/// A place inside of the grid and not on it: between two neighbours on each axis, by their
/// logarithms.
std::vector<std::int64_t> draw_place(const ProfileTable& table, RandomStream& random) {
  std::vector<std::int64_t> at;
  for (std::size_t axis = 0; axis < table.axes.size(); ++axis) {
    std::vector<std::int64_t> values;
    for (const ProfileCell& cell : table.cells) {
      values.push_back(cell.at[axis]);
    }
    std::ranges::sort(values);
    values.erase(std::unique(values.begin(), values.end()), values.end());
    if (values.size() == 1) {
      at.push_back(values.front());
      continue;
    }
    const auto i =
        static_cast<std::size_t>(random.index(static_cast<std::int64_t>(values.size()) - 1));
    // One more than the sizes, so that none is zero.
    const double low = std::log(static_cast<double>(values[i] + 1));
    const double high = std::log(static_cast<double>(values[i + 1] + 1));
    const double drawn = std::exp(low + (high - low) * random.uniform()) - 1;
    at.push_back(
        std::clamp(static_cast<std::int64_t>(std::llround(drawn)), values[i], values[i + 1]));
  }
  return at;
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
  const auto quantile = [&errors](double share) {
    return errors[static_cast<std::size_t>(share * static_cast<double>(errors.size() - 1))];
  };
  return {.count = static_cast<std::int64_t>(errors.size()),
          .p50 = quantile(0.5),
          .p90 = quantile(0.9),
          .mean = sum / static_cast<double>(errors.size()),
          .worst = errors.back()};
}

std::optional<Band> band_of(OperationId operation) {
  switch (operation) {
    case OperationId::G1:
    case OperationId::A1:
    case OperationId::A2:
      return Band{.p50 = 0.05, .p90 = 0.12};
    case OperationId::C1:
    case OperationId::C2:
    case OperationId::C4:
      return Band{.p50 = 0.03, .p90 = 0.08};
    case OperationId::A3:
      return Band{.p50 = 0.05, .p90 = 1};
    default:
      return std::nullopt;
  }
}

const char* to_string(Rung rung) {
  constexpr std::array<const char*, 3> names{"repeat", "held out", "composition"};
  return names[static_cast<std::size_t>(rung)];
}

bool CheckReport::in_band() const {
  return std::ranges::all_of(rows, [](const CheckRow& row) { return row.in_band.value_or(true); });
}

bool is_interpolated(OperationId operation) {
  using enum OperationId;
  return operation == G1 || operation == A1 || operation == A2 || operation == E1 ||
         operation == R1 || operation == C1 || operation == C2 || operation == C4;
}

CheckReport cross_validate(const Profile& profile, std::uint64_t seed) {
  RandomStream random(seed, "calibrate/cross_validation");
  Rows rows;
  for (const ProfileTable& table : profile.tables) {
    if (is_interpolated(table.operation)) {
      add_cross_validation(profile, table, random, rows[{Rung::held_out, table.operation}]);
    }
  }
  add_compositions(profile, rows);
  return make_report(rows, false);
}

CheckReport check_by_measuring(const Profile& profile, const MeasureCell& measure,
                               const CheckOptions& options) {
  RandomStream random(options.seed, "calibrate/check");
  Rows rows;
  for (const ProfileTable& table : profile.tables) {
    if (!is_interpolated(table.operation) || table.cells.empty()) {
      continue;
    }
    const ProfileGrid grid = make_grid(profile, table);
    Gathered& repeats = rows[{Rung::repeat, table.operation}];
    Gathered& held_out = rows[{Rung::held_out, table.operation}];
    for (std::int64_t i = 0; i < options.cells; ++i) {
      const auto chosen =
          static_cast<std::size_t>(random.index(static_cast<std::int64_t>(table.cells.size())));
      const std::vector<std::int64_t>& at = table.cells[chosen].at;
      const auto first = measure(table, at);
      const auto second = first ? measure(table, at) : std::nullopt;
      if (second) {
        repeats.pairs.push_back({*first, *second});
      } else {
        ++repeats.left_out;
      }
      const std::vector<std::int64_t> place = draw_place(table, random);
      const ProfileGrid::Time time = predict(grid, place);
      const auto measured = time.extrapolated ? std::nullopt : measure(table, place);
      if (measured) {
        held_out.pairs.push_back({time.seconds, *measured});
      } else {
        ++held_out.left_out;
      }
    }
  }
  add_compositions(profile, rows);
  return make_report(rows, true);
}

std::string to_text(const CheckReport& report) {
  std::string text = fmt::format("{:<12} {:<4} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9}  {}\n", "rung",
                                 "op", "cells", "p50", "p90", "mean", "worst", "left out", "band");
  for (const CheckRow& row : report.rows) {
    const std::optional<Band> band = band_of(row.operation);
    const std::string verdict = !row.in_band
                                    ? "-"
                                    : fmt::format("{} ({}, {})", *row.in_band ? "in" : "OUT",
                                                  percent(band->p50), percent(band->p90));
    text += fmt::format("{:<12} {:<4} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9}  {}\n",
                        to_string(row.rung), kvtier::to_string(row.operation), row.errors.count,
                        percent(row.errors.p50), percent(row.errors.p90), percent(row.errors.mean),
                        percent(row.errors.worst), row.left_out, verdict);
  }
  return text;
}

}  // namespace kvtier::calibrate
