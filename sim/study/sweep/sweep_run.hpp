#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/sweep/sweep.hpp"

/// Runs a sweep into a folder:
///
///     sweep.json             the identity of the sweep, written first
///     results.jsonl.partial  lines of the finished runs, until the sweep ends
///     results.jsonl          a line for each point and replication, in order, at the end
///     results.csv            the axes and columns as a table, at the end
namespace kvtier {

/// Part `number` (from 1) of `of` parts of a sweep, which has every of-th point.
struct Shard {
  std::int64_t number = 1;
  std::int64_t of = 1;
};

struct SweepOptions {
  std::filesystem::path out;
  /// Threads; at least 1.
  std::int64_t jobs = 1;
  Shard shard;
  /// Keep the results of the same sweep in `out`. Failed runs are repeated.
  bool resume = false;
  /// Lines of runs that were done elsewhere, such as in shards, including failed runs.
  std::vector<std::string> done;
  /// Called on the caller's thread with each message about unusable lines in `out`.
  std::function<void(const std::string&)> tell;
  /// Called a few times a second on the caller's thread with the runs done and the number of all
  /// runs; may throw to end the sweep. Finished runs are kept.
  std::function<void(std::int64_t, std::int64_t)> progress;
};

enum class RunState { ok, refused, input_failed, device_failed, internal_failed };
/// Name of a failed run's cause in results: input, device or internal.
[[nodiscard]] const char* failure_name(RunState state);

/// The run of one point and replication.
struct SweepRow {
  std::size_t point = 0;
  std::int64_t replication = 0;
  RunState state = RunState::ok;
  /// The run's line of results.jsonl.
  std::string line;
  std::optional<std::int64_t> seed;
  /// The number for each column, in its unit; nullopt if the result has none.
  std::vector<std::optional<double>> values;
  /// Reasons why there is no result.
  std::vector<std::string> problems;
  /// The queue grew while sessions arrived.
  bool exceeds_capacity = false;
  /// Requests waited longer than they were served for a part of the time.
  bool exceeds_capacity_at_times = false;
  /// If the run is too short to tell (run_length.hpp): that it is, and what it needs.
  std::optional<std::string> too_short;
};

struct SweepResult {
  /// The rows of the shard, in order of points and replications.
  std::vector<SweepRow> rows;
  Shard shard;
  /// Number of runs that this call did. The others were in `out` or `done`, or refused.
  std::int64_t runs = 0;

  [[nodiscard]] std::int64_t count(RunState state) const;
};

/// Does the runs that are not in `options.out` yet. The files do not depend on jobs, the order in
/// which runs end, or interruptions. A failed run is a row. Throws ConfigError as check_columns()
/// does, for a folder with results of another sweep, or with any results without `resume`. Throws
/// DeviceError if the folder cannot be written.
[[nodiscard]] SweepResult run_sweep(const Sweep& sweep, const SweepPoints& points,
                                    const PolicyRegistry& registry, const SweepOptions& options);

/// The identity of a folder's results (`kvtier.sweep/1`): axes, replications, shard, version,
/// commit, and a hash of all inputs of the results, including traces and profiles. Columns are not
/// part of it. If not all points are checked, "setting" is that of the checked points.
[[nodiscard]] Json sweep_identity(const Sweep& sweep, const SweepPoints& points,
                                  const Shard& shard);

/// Throws ConfigError with the problems of refused configs, unless the sweep skips them and has
/// other points, and with every column that no result has, if there are results. A sweep with
/// corrected columns resumes without runs, because the results are complete.
void check_result(const Sweep& sweep, const SweepResult& result);

/// A table with a row for each point: means over the replications, or why there are none.
[[nodiscard]] std::string to_table(const Sweep& sweep, const SweepResult& result);

}  // namespace kvtier
