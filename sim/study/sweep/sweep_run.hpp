#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/sweep/sweep.hpp"

/// Running a sweep into a folder:
///
///     sweep.json             which sweep it is, written first
///     results.jsonl          a line a point and replication, in their order; at the end
///     results.csv            the same as a table of the columns; at the end
///     results.jsonl.partial  lines of the runs that ended, until then
namespace kvtier {

/// Part `number` (from 1) of `of` parts: every of-th point.
struct Shard {
  std::int64_t number = 1;
  std::int64_t of = 1;
};

struct SweepOptions {
  std::filesystem::path out;
  /// Threads; at least 1.
  std::int64_t jobs = 1;
  Shard shard;
  /// Keep what `out` has of the same sweep; failed runs are repeated.
  bool resume = false;
  /// Lines of runs that were done elsewhere, of shards perhaps; of failed ones too.
  std::vector<std::string> done;
  /// Called, on the caller's thread, with each message about lines in `out` that cannot be used.
  std::function<void(const std::string&)> tell;
  /// Called a few times a second, on the caller's thread, with the runs done and all of them; may
  /// throw to end the sweep. Runs that ended are kept.
  std::function<void(std::int64_t, std::int64_t)> progress;
};

enum class RunState { ok, refused, input_failed, device_failed, internal_failed };
/// Name of a failed run's cause in results: input, device or internal.
[[nodiscard]] const char* failure_name(RunState state);

/// One point and replication.
struct SweepRow {
  std::size_t point = 0;
  std::int64_t replication = 0;
  RunState state = RunState::ok;
  /// Line of results.jsonl.
  std::string line;
  std::optional<std::int64_t> seed;
  /// One a column, in its unit; nullopt where the result has none.
  std::vector<std::optional<double>> values;
  /// Why there is no result.
  std::vector<std::string> problems;
  /// The queue grew as long as sessions arrived.
  bool exceeds_capacity = false;
  /// See run_length.hpp.
  bool too_short = false;
};

struct SweepResult {
  /// Those of the shard, in order, all replications of a point one after the other.
  std::vector<SweepRow> rows;
  Shard shard;
  /// Runs that this call did; the others were there already, or refused.
  std::int64_t runs = 0;

  [[nodiscard]] std::int64_t count(RunState state) const;
};

/// Runs what is not yet in `options.out`. The files do not depend on jobs, on the order in which
/// runs end, nor on interruptions. A failed run is a row. Throws ConfigError for a folder that has
/// results if not told to resume, or those of another sweep; DeviceError if the folder cannot be
/// written.
[[nodiscard]] SweepResult run_sweep(const Sweep& sweep, const std::vector<SweepPoint>& points,
                                    const PolicyRegistry& registry, const SweepOptions& options);

/// Which sweep a folder's results are of (`kvtier.sweep/1`): axes, replications, shard, version,
/// commit, and a hash of everything that the results follow from, traces and profiles included.
/// Columns are no part of it.
[[nodiscard]] Json sweep_identity(const Sweep& sweep, const std::vector<SweepPoint>& points,
                                  const Shard& shard);

/// Throws ConfigError with every column that no result has, if there are results. They are
/// complete, so a sweep whose columns are corrected resumes without runs.
void check_columns(const Sweep& sweep, const SweepResult& result);

/// A row a point: means over the replications, and what refused or failed.
[[nodiscard]] std::string to_table(const Sweep& sweep, const std::vector<SweepPoint>& points,
                                   const SweepResult& result);

}  // namespace kvtier
