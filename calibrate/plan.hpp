#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/instrument.hpp"
#include "hw/profile/profile.hpp"

/// What a calibration is going to measure, as a list that can be looked at, cut and resumed before
/// anything runs.
namespace kvtier::calibrate {

/// Where a cell of a table lies.
struct Place {
  std::vector<std::int64_t> at;
  /// Ragged batches only: [new tokens, past tokens] of each request.
  std::vector<std::vector<std::int64_t>> parts{};
};

struct PlannedCell {
  std::vector<std::int64_t> at;
  /// No sample can be shorter.
  double limit_seconds = 0;
  /// What it needs to have allocated.
  Bytes memory;
  /// Makes what the samples need (verifies it once) and returns the sample.
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
  /// More threads are at work than there are processors: samples cannot be told from disturbed
  /// ones.
  bool interference = false;
  /// Visits of each cell in every round but the first, spread over it: what others are corrected by
  /// should not be of one moment.
  int visits_in_round = 1;
};
inline constexpr int kManyVisits = 4;

/// A moment of a calibration, for a progress line.
struct Progress {
  std::size_t done = 0;
  std::size_t all = 0;
  /// "gemm qkv [128]".
  std::string cell;
  /// Of what is left, from what was done so far.
  double seconds_left = 0;
};

struct RunOptions {
  Bytes memory;
  /// After it, what has not been measured is left out.
  double seconds = 0;
  /// A cell's samples are taken in so many visits, the first in the order of the plan, the others
  /// in random order: what the machine's pace does in the meantime is part of every cell's spread
  /// instead of some cells' median.
  int visits = 1;
  std::uint64_t seed = 1;
  /// Called before each cell.
  std::function<void(const Progress&)> progress = [](const Progress&) {};
  /// Called before each sample; what it throws ends the run.
  std::function<void()> check = [] {};
  /// Called with the profile so far after each table and, if the run ends early, at its end. Cells
  /// that others contradict are not in it until the last visit has decided.
  std::function<void(const Profile&)> keep = [](const Profile&) {};
};

/// Measures what is planned and is not in `profile` yet and adds it. Cells that are left out say
/// why; when a cell is too large for its time, cells that are at least as large along every axis
/// are left out unmeasured. Cells without a sample that counts, and those of monotone operations
/// that contradict their neighbours beyond noise, are measured a second time. Whatever ends the
/// run, `keep` has been called with what was measured.
void run_plan(const std::vector<PlannedTable>& plan, const RunOptions& options, Clock& clock,
              DisturbanceMonitor& monitor, Profile& profile);

/// The median of one cell at any place of a table's setting, measured as the plan does; nothing
/// where the plan has no such setting, the memory does not suffice, or every sample was rejected.
[[nodiscard]] std::optional<double> measure_cell(const std::vector<PlannedTable>& plan,
                                                 const ProfileTable& setting, const Place& place,
                                                 const RunOptions& options, Clock& clock,
                                                 DisturbanceMonitor& monitor);

/// Takes out what a second run should try again: cells left out for the run's time or because every
/// sample was disturbed.
void forget_left_out(Profile& profile);

}  // namespace kvtier::calibrate
