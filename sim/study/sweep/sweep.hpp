#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/study/config/presets.hpp"
#include "sim/study/config/resolve.hpp"
#include "sim/study/config/value_unit.hpp"
#include "sim/study/sweep/sweep_axis.hpp"

/// A sweep as data: one run's config, the axes along which its keys change, and the columns of its
/// table. docs/sweeps.md describes the file.
namespace kvtier {

/// A run's config: a file's path, or the config itself.
struct SweepBase {
  Json json;
};
void read_config(SweepBase& base, const Json& json, const std::string& pointer, Problems& problems);
[[nodiscard]] Json write_config(const SweepBase& base);
[[nodiscard]] Json config_schema(const SweepBase& base);

struct SweepColumn {
  std::string name;
  std::string metric;
  ValueUnit unit = ValueUnit::count;
};
template <class V>
void describe(V& v, SweepColumn& c) {
  v.field("name", c.name, "Name of the column.", required());
  v.field("value", c.metric,
          "JSON pointer of a number in the result, below /metrics, /load, /workload, /timing or "
          "/bound.",
          required());
  v.field("unit", c.unit, "Unit of the column.", required());
}

enum class RefusedPoints {
  error,  // one refused config refuses the sweep
  skip,   // a refused config becomes a row with the reason
};
constexpr auto enum_names(RefusedPoints) {
  return std::array{std::pair<std::string_view, RefusedPoints>{"error", RefusedPoints::error},
                    std::pair<std::string_view, RefusedPoints>{"skip", RefusedPoints::skip}};
}

struct Sweep {
  SweepBase config;
  Overrides set;
  std::vector<SweepAxis> axes;
  std::int64_t seed = 1;
  std::int64_t replications = 1;
  std::vector<SweepColumn> columns;
  RefusedPoints refused = RefusedPoints::error;
  bool bound = false;

  std::filesystem::path file;
};
template <class V>
void describe(V& v, Sweep& c) {
  v.field("config", c.config,
          "Config of a run: an object, or a file relative to this file's folder.", required());
  v.field("set", c.set,
          "Keys of the config and their values, like --set, before those of the axes.");
  v.field(
      "axes", c.axes,
      "Axes of the sweep, which is every combination of their values; the last axis changes "
      "fastest. Keys are set in the order of the axes, so a later one overrides an earlier one.",
      required());
  v.field("seed", c.seed, "Seed of the draws of sampled axes. Runs have the config's seed.",
          non_negative());
  v.field("replications", c.replications,
          "Seeds to run at each point: the config's, and those after it.", between(1, 100000));
  v.field("columns", c.columns, "Columns of the tables: numbers of each run.", required());
  v.field(
      "refused", c.refused,
      "Handling of points with refused configs: error (nothing is run), or skip (the row has the "
      "reason).");
  v.field(
      "bound", c.bound,
      "Adds /bound to results. It compares the policies with Belady's choice (hit_rate, "
      "share_reached), which is greedy if sizes differ, and with an upper bound of all policies "
      "(upper_bound), replayed without a clock (untimed_hit_rate). null with paging, shared "
      "prompts, several instances or no tier.");
}

/// Draws sampled axes, and adds problems between keys of the sweep.
void finish_sweep(Sweep& sweep, Problems& problems);
/// Reads a sweep as if `json` were the content of `file`: relative paths start at its folder, and
/// tables and messages have its name. Throws ConfigError with all problems.
[[nodiscard]] Sweep read_sweep(const Json& json, const std::filesystem::path& file);
[[nodiscard]] Sweep load_sweep(const std::filesystem::path& file);

/// One combination of the axes' values.
struct SweepPoint {
  std::vector<std::string> labels;
  std::optional<ResolvedConfig> resolved;
  /// Reasons why the config was refused.
  std::vector<std::string> refused;
};

/// All points, with the last axis changing fastest. Throws ConfigError with the problems of all
/// refused configs. With RefusedPoints::skip it throws only if all configs are refused.
[[nodiscard]] std::vector<SweepPoint> resolve_points(const Sweep& sweep,
                                                     const ConfigDirectory& presets,
                                                     const PolicyRegistry& registry);

/// The column's header in results.csv: "TTFT [s]".
[[nodiscard]] std::string header_of(const SweepColumn& column);

/// Columns of results.csv apart from the sweep's axes and columns.
inline constexpr std::array<const char*, 4> kSweepRowCells{"point", "replication", "seed", "error"};

}  // namespace kvtier
