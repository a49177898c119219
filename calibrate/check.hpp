#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "calibrate/plan.hpp"
#include "hw/profile/profile.hpp"

/// The errors of a profile's predictions: repeat noise, drift of the machine, cells between those
/// of the grid, and sums of parts against the whole (rungs 1 to 4 of the validation ladder).
namespace kvtier::calibrate {

/// One prediction beside what was measured.
struct Pair {
  double predicted = 0;
  double measured = 0;
};

/// Statistics of |predicted - measured| / measured.
struct ErrorStatistics {
  std::int64_t count = 0;
  double p50 = 0;
  double p90 = 0;
  double mean = 0;
  double worst = 0;
};
/// All zero without pairs. Quantiles are the lower ones.
[[nodiscard]] ErrorStatistics error_statistics(std::span<const Pair> pairs);

/// Largest errors that pass.
struct Band {
  double p50 = 0;
  double p90 = 0;
};
/// Matrices and attention: 5 % and 12 %. Copies: 3 % and 8 %. Median of a whole against its parts
/// (ragged_attention, model_step): 5 %, and of the pipeline of layers (layer_pipeline): 10 %.
/// Nullopt for other operations.
[[nodiscard]] std::optional<Band> band_of(OperationId operation);

/// `repeat`: a cell measured twice in a row. `drift`: a cell of the profile against a new
/// measurement. `held_out`: a place between cells against its interpolation. `composition`: a
/// ragged batch against its parts, whole steps as recorded (model_step) against the timing model,
/// which is fitted to them. `sum`: those steps against the sum of their operations alone.
/// `overlap`: copies beside matrices against the schedule of layer_pipeline.hpp with the times of
/// each alone.
enum class Rung { repeat, drift, held_out, composition, sum, overlap };
[[nodiscard]] const char* to_string(Rung rung);

/// The errors of one operation on one rung.
struct CheckRow {
  Rung rung = Rung::repeat;
  OperationId operation = OperationId::gemm;
  /// The kind of table, if an operation has several: the format, and the sizes held out.
  std::string kind;
  ErrorStatistics errors;
  /// The roofline's errors on these cells, at common shares of the limits, with a floor for each
  /// call.
  ErrorStatistics roofline;
  /// Cells that could not be judged: outside of the other cells, or not measurable.
  std::int64_t left_out = 0;
  /// Set where there is a band.
  std::optional<bool> in_band;
};

struct CheckReport {
  std::vector<CheckRow> rows;

  /// Whether every row with a band is in its band.
  [[nodiscard]] bool in_band() const;
};

/// The operations that are interpolated: those of make_grid.
[[nodiscard]] bool is_interpolated(OperationId operation);

/// Cross-validation without a device: leaves each fold of a table's cells out once and predicts it
/// from the rest. It does the same for shapes: pairs of n and k of gemm_grid, and tables of
/// attention between those of fewer and of more heads. The law (past_law_seconds) also predicts
/// attention after past tokens from attention without them. Gaps are twice as wide as the grid's,
/// so there is no band. Composition, sum and overlap use recorded ragged_attention, model_step and
/// layer_pipeline cells. Does not throw.
[[nodiscard]] CheckReport cross_validate(const Profile& profile, std::uint64_t seed);

/// Predicts the cells of `measured` that `profile` lacks, such as cells of a published table that a
/// compact profile leaves out. The result is the error of the shipped profile as the timing model
/// interpolates it. Matrices (gemm_grid) and attention only.
[[nodiscard]] CheckReport compare_with(const Profile& profile, const Profile& measured);

/// The median time of one cell of a table, in seconds; nullopt if it cannot be measured.
using MeasureCell =
    std::function<std::optional<double>(const ProfileTable& table, const Place& place)>;

struct CheckOptions {
  std::uint64_t seed = 1;
  /// Number of cells for each rung in each table.
  std::int64_t cells = 8;
};

/// The most measurements that check_by_measuring makes.
[[nodiscard]] std::int64_t measurements(const Profile& profile, const CheckOptions& options);

/// Measures again. Random cells of the grid are measured twice. Random places off the grid are
/// measured between the measurements of their neighbours, and ragged batches between those of their
/// parts. A machine that becomes slower or faster therefore shows as drift, not as an interpolation
/// error.
[[nodiscard]] CheckReport check_by_measuring(const Profile& profile, const MeasureCell& measure,
                                             const CheckOptions& options);

[[nodiscard]] std::string to_text(const CheckReport& report);

}  // namespace kvtier::calibrate
