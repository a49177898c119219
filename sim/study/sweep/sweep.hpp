#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
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
  error,  // one refused config is an error
  skip,   // a refused config is a row with the reason
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
  v.field("refused", c.refused,
          "Handling of points with refused configs: error (exit code 2; before the first run in a "
          "sweep of up to 1,000 points), or skip (the row has the reason).");
  v.field(
      "bound", c.bound,
      "Adds /bound to results. It compares the policies with Belady's choice (hit_rate, "
      "share_reached), which is greedy if sizes differ, and with an upper bound of all policies "
      "(upper_bound), replayed without a clock (untimed_hit_rate). null with shared "
      "prompts, several instances or no tier.");
}

/// Draws sampled axes, and adds problems between keys of the sweep.
void finish_sweep(Sweep& sweep, Problems& problems);
/// Reads a sweep as if `json` were the content of `file`: relative paths start at its folder, and
/// tables and messages have its name. Throws ConfigError with all problems.
[[nodiscard]] Sweep read_sweep(const Json& json, const std::filesystem::path& file);
[[nodiscard]] Sweep load_sweep(const std::filesystem::path& file);

[[nodiscard]] std::size_t point_count(const Sweep& sweep);
/// The labels of a point's values on each axis. The last axis changes fastest.
[[nodiscard]] std::vector<std::string> labels_of(const Sweep& sweep, std::size_t point);

/// One combination of the axes' values.
struct SweepPoint {
  std::size_t index = 0;
  std::vector<std::string> labels;
  std::optional<ResolvedConfig> resolved;
  /// Reasons why the config was refused.
  std::vector<std::string> refused;
};

/// The number of points that are checked before the first run.
inline constexpr std::size_t kCheckedPoints = 1000;

/// The points of a sweep. A point is resolved when it is used, and is not kept, so the number of
/// points hardly matters. Files are read once. `sweep` and `registry` must outlive it.
class SweepPoints {
 public:
  /// Resolves and keeps all points, if they are at most `most`. Otherwise it resolves those that
  /// differ from the first point on one axis, at most `most`, spread evenly over each axis. Throws
  /// ConfigError with the problems of all that are refused. With RefusedPoints::skip it throws only
  /// if every point of the sweep is refused.
  SweepPoints(const Sweep& sweep, ConfigDirectory presets, const PolicyRegistry& registry,
              std::size_t most = kCheckedPoints);
  SweepPoints(Sweep&&, ConfigDirectory, const PolicyRegistry&, std::size_t = 0) = delete;
  SweepPoints(const Sweep&, ConfigDirectory, PolicyRegistry&&, std::size_t = 0) = delete;

  [[nodiscard]] std::size_t size() const { return point_count(sweep_); }
  /// Thread-safe.
  [[nodiscard]] SweepPoint operator[](std::size_t index) const;
  /// The points that the constructor resolved, in order.
  [[nodiscard]] const std::vector<SweepPoint>& checked() const { return checked_; }

  /// The config before the keys of the sweep.
  [[nodiscard]] const Json& base_json() const;
  /// Adds the files that a key's value may name: presets, profiles, traces, tokenizers.
  void add_named_files(const Json& value, std::set<std::filesystem::path>& files) const;

 private:
  [[nodiscard]] SweepPoint resolve(std::size_t index) const;

  const Sweep& sweep_;
  ConfigDirectory presets_;
  const PolicyRegistry& registry_;
  ConfigRequest base_;
  std::vector<SweepPoint> checked_;
};

/// The files and folders that the points read, and the sweep's own file, each once.
[[nodiscard]] std::vector<std::string> files_of(const Sweep& sweep,
                                                const std::vector<SweepPoint>& points);

/// Throws ConfigError with the problems of refused points, each once, unless the sweep skips
/// refused points and has others.
void check_refused(const Sweep& sweep, const std::vector<std::string>& problems, bool has_others);

/// All points. Throws as SweepPoints does.
[[nodiscard]] std::vector<SweepPoint> resolve_points(const Sweep& sweep,
                                                     const ConfigDirectory& presets,
                                                     const PolicyRegistry& registry);

/// The column's header in results.csv: "TTFT [s]".
[[nodiscard]] std::string header_of(const SweepColumn& column);

/// Columns of results.csv apart from the sweep's axes and columns.
inline constexpr std::array<const char*, 4> kSweepRowCells{"point", "replication", "seed", "error"};

}  // namespace kvtier
