#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/instrument.hpp"
#include "hw/profile/profile.hpp"

/// The cells that a calibration will measure: a list that can be read, shortened and resumed before
/// it runs.
namespace kvtier::calibrate {

/// The place of a cell in a table.
struct Place {
  std::vector<std::int64_t> at;
  /// Ragged batches only: [new tokens, past tokens] of each request.
  std::vector<std::vector<std::int64_t>> parts{};
};

struct PlannedCell {
  std::vector<std::int64_t> at;
  /// The shortest possible time of a sample.
  double limit_seconds = 0;
  /// Memory that it allocates.
  Bytes memory;
  /// Prepares the samples, verifies the work once and returns the sample.
  std::function<Sample()> prepare;
  /// Ragged batches only.
  std::vector<std::vector<std::int64_t>> parts{};
};

struct PlannedTable {
  /// Without cells.
  ProfileTable table;
  std::vector<PlannedCell> cells;
  StopRules rules{};
  /// The cell at any place, on the grid or not; for operations that a check measures again.
  std::function<PlannedCell(const Place& place)> cell_at{};
  /// More threads work than there are processors, so disturbed samples cannot be recognised.
  bool interference = false;
  /// Visits of each cell in every round but the first. Cells that correct others need samples from
  /// many moments.
  int visits_in_round = 1;
  /// The memory that a cell may take, if other than RunOptions::memory.
  std::optional<Bytes> memory{};
};
inline constexpr int kManyVisits = 4;

/// The state of a calibration, for a progress line.
struct Progress {
  std::size_t done = 0;
  std::size_t all = 0;
  /// "gemm qkv [128]".
  std::string cell;
  /// Estimated time of the remaining visits.
  double seconds_left = 0;
};

struct RunOptions {
  /// The memory that a cell may take.
  Bytes memory;
  /// Time of the whole run. Cells not measured by then are left out.
  double seconds = 0;
  /// Number of visits in which a cell's samples are taken. In the first visit, tables take turns,
  /// so that a run out of time has the first cells of all tables. Later visits are in random order.
  /// Variations of the machine therefore widen every cell's spread instead of shifting some
  /// medians.
  int visits = 1;
  std::uint64_t seed = 1;
  /// Called before each cell.
  std::function<void(const Progress&)> progress = [](const Progress&) {};
  /// Called before each sample; an exception ends the run.
  std::function<void()> check = [] {};
  /// Called with the profile so far after each turn of the tables and, if the run ends early, at
  /// its end. Contradicted cells are left out until the last visit.
  std::function<void(const Profile&)> keep = [](const Profile&) {};
};

/// Measures planned cells that `profile` lacks, and adds them. A cell that is left out gets a
/// reason. If a cell is too large for its time, cells at least as large along every axis are left
/// out unmeasured. Cells without a sample that counts, and those of monotone operations that
/// contradict their neighbours beyond noise, are measured a second time. `keep` is called with the
/// measured cells however the run ends.
void run_plan(const std::vector<PlannedTable>& plan, const RunOptions& options, Clock& clock,
              DisturbanceMonitor& monitor, Profile& profile);

/// The median of one cell at any place of a table's setting, measured as the plan does. nullopt if
/// the plan has no such setting, memory is short, or every sample was rejected.
[[nodiscard]] std::optional<double> measure_cell(const std::vector<PlannedTable>& plan,
                                                 const ProfileTable& setting, const Place& place,
                                                 const RunOptions& options, Clock& clock,
                                                 DisturbanceMonitor& monitor);

/// Removes the cells that a second run tries again: cells left out for the run's time or memory, or
/// for their samples.
void forget_left_out(Profile& profile);

}  // namespace kvtier::calibrate
