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

/// A sweep as data: one run's config, the axes along which its keys change, and the columns that
/// its table has. docs/sweeps.md describes the file.
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
  v.field("name", c.name, "What the column shows.", required());
  v.field("value", c.metric,
          "JSON pointer of a number in the result, below /metrics, /load, /workload, /timing or "
          "/bound.",
          required());
  v.field("unit", c.unit, "How it is shown.", required());
}

enum class RefusedPoints {
  error,  // one refused config refuses the sweep
  skip,   // it is a row that says why
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
  v.field("config", c.config, "Config of a run: a file, seen from this one's folder, or an object.",
          required());
  v.field("set", c.set,
          "Keys of the config and their values, like --set, before those of the axes.");
  v.field(
      "axes", c.axes,
      "The sweep is every combination of their values; the last axis turns fastest. Keys are set "
      "in the order of the axes, so that a later one comes over an earlier one.",
      required());
  v.field("seed", c.seed, "Of the draws of sampled axes; runs have the config's.", non_negative());
  v.field("replications", c.replications,
          "Seeds to run at each point: the config's, and those after it.", between(1, 100000));
  v.field("columns", c.columns, "What the tables show of each run.", required());
  v.field("refused", c.refused,
          "A point whose config is refused: error (nothing is run), or skip (its row says why).");
  v.field("bound", c.bound,
          "Results have /bound: how far the policies are from Belady's choice (hit_rate, "
          "share_reached), which is greedy where sizes differ, and from an upper bound of all "
          "policies (upper_bound), replayed without a clock (untimed_hit_rate). null with paging, "
          "shared prompts, several instances or no tier.");
}

/// Draws sampled axes and finds what no single key of a sweep shows.
void finish_sweep(Sweep& sweep, Problems& problems);
/// A sweep as `file` would have it: relative paths start at the file's folder, and tables and
/// messages have its name. Throws ConfigError with every problem.
[[nodiscard]] Sweep read_sweep(const Json& json, const std::filesystem::path& file);
[[nodiscard]] Sweep load_sweep(const std::filesystem::path& file);

/// One combination of the axes' values.
struct SweepPoint {
  std::vector<std::string> labels;
  std::optional<ResolvedConfig> resolved;
  /// Why there is no config.
  std::vector<std::string> refused;
};

/// All points, the last axis turning fastest. Throws ConfigError with the problems of every refused
/// config, or if configs may be refused when there is no other.
[[nodiscard]] std::vector<SweepPoint> resolve_points(const Sweep& sweep,
                                                     const ConfigDirectory& presets,
                                                     const PolicyRegistry& registry);

/// A cell of a table's header: "TTFT [s]".
[[nodiscard]] std::string header_of(const SweepColumn& column);

/// Columns of results.csv beside axes and columns of the sweep.
inline constexpr std::array<const char*, 4> kSweepRowCells{"point", "replication", "seed", "error"};

}  // namespace kvtier
