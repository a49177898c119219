#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hw/timing/model_error.hpp"
#include "sim/core/config.hpp"
#include "sim/study/engines/engine_times.hpp"

/// Fits and checks the error ranges of times (hw/timing/model_error.hpp) on published runs.
namespace kvtier {

/// TPOT of runs of one class of times.
struct ClassRange {
  /// A source, or "mixed".
  std::string source;
  bool has_experts = false;
  /// The range in use, and the one that fits best to one half of the runs. Both are of the source
  /// alone; a mixture has none.
  ErrorRange used;
  ErrorRange fitted;
  /// Runs of the other half: their number, the share within their ranges, and the median of high -
  /// low.
  std::int64_t rows = 0;
  double coverage = 0;
  double median_width = 0;
};

/// Whether ranges are fitted to a run. The others show the coverage.
[[nodiscard]] bool is_fitting_half(const std::string& id);

/// For dense models and those with experts: each source that runs have, and mixtures. All sources
/// have the same weight in the fit. Mixtures have twice that, because no range is their own.
[[nodiscard]] std::vector<ClassRange> ranges_of(const EngineTimes& times);

[[nodiscard]] Json to_json(const std::vector<ClassRange>& ranges);
[[nodiscard]] std::string to_text(const std::vector<ClassRange>& ranges);

}  // namespace kvtier
