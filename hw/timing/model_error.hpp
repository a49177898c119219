#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "hw/timing/timing_model.hpp"

/// The errors of predicted times by the source of the times, found in published runs of engines.
namespace kvtier {

enum class TimeSource {
  /// Tables measured on this GPU, and host times fitted to an engine.
  measured,
  /// Tables of a related GPU, scaled.
  sibling,
  /// The analytic model.
  roofline,
  /// The law of attention over cached tokens, for tables without them.
  cached_law,
};
inline constexpr std::array kTimeSourceNames{"measured", "sibling", "roofline", "cached_law"};

/// Shares of a time by its source; they add up to 1.
struct SourceShares {
  std::array<double, kTimeSourceNames.size()> all{};

  [[nodiscard]] double& operator[](TimeSource source) {
    return all[static_cast<std::size_t>(source)];
  }
  [[nodiscard]] double operator[](TimeSource source) const {
    return all[static_cast<std::size_t>(source)];
  }
  friend bool operator==(const SourceShares&, const SourceShares&) = default;
};

/// `is_sibling`: the tables are those of a related GPU.
[[nodiscard]] SourceShares source_shares(const TimeShares& shares, bool is_sibling);

/// The source of nine tenths of a time, or "mixed".
[[nodiscard]] std::string class_of(const SourceShares& shares);

/// Factors on a predicted time: the real time lies between `low` and `high` times the predicted one
/// in 80 % of the runs of its sources. Errors have a sign, so a range need not hold 1.
struct ErrorRange {
  double low = 1;
  double high = 1;

  friend bool operator==(const ErrorRange&, const ErrorRange&) = default;
};

/// The weighted geometric mean of two ranges.
[[nodiscard]] ErrorRange mean_range(const ErrorRange& one, const ErrorRange& other,
                                    double share_of_one);

/// The facts on which the error of a time depends.
struct TimeOrigin {
  SourceShares shares;
  /// The GPU that runs.
  std::string gpu;
  /// The profile whose tables were scaled, if any were, and HardwareConfig::sibling.
  std::string relative;
  double sibling_factor = 1;
  /// Whether the model has routed experts.
  bool has_experts = false;
};

/// The weighted geometric mean of the ranges of the sources. A sibling's factor is fitted to few
/// runs: half of it (in logarithms) widens the range both ways.
[[nodiscard]] ErrorRange error_range(const TimeOrigin& origin);

/// The range of `one` in a comparison with `other`, without the errors that both have: those of
/// tables, those of the law, those of one profile's scaled tables, and those of the roofline on one
/// GPU. Models with experts and models without share none.
[[nodiscard]] ErrorRange error_range_beside(const TimeOrigin& one, const TimeOrigin& other);

}  // namespace kvtier
