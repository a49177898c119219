#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/serving/model_error.hpp"

/// Texts on the errors of the times of results.
namespace kvtier {

/// A row of a table: its label, and the text for results of one config.
struct ModelErrorRow {
  const char* label;
  std::string (*text)(const std::vector<Json>& results);
};
/// The sources of times, and the 80 % ranges of the means of TTFT and TPOT. "-": not known.
[[nodiscard]] std::span<const ModelErrorRow> model_error_rows();

/// "measured", or "measured, mixed" for prefill and decode with different classes.
[[nodiscard]] std::string describe_classes(const ModelError& error);

/// "prefill 62 % measured, 38 % cached law; decode measured", or empty without a mixed class.
[[nodiscard]] std::string describe_mixture(const ModelError& error);

/// Times of one answer, such as a system or a GPU.
struct ComparedTimes {
  std::string name;
  ModelError error;
  /// Means; nullopt without values.
  std::optional<double> ttft_seconds;
  std::optional<double> tpot_seconds;
};

/// Means over results of one config; nullopt if they have no model error.
[[nodiscard]] std::optional<ComparedTimes> compared_times(const std::string& name,
                                                          const std::vector<Json>& results);

/// The metrics, "TTFT" and "TPOT", in which the order of two answers is not certain: their ranges
/// overlap by errors that they do not share.
[[nodiscard]] std::vector<std::string> uncertain_orders(const ComparedTimes& one,
                                                        const ComparedTimes& other);

/// Whether the two have errors of their own, which a comparison has to count.
[[nodiscard]] bool have_own_errors(const ModelError& one, const ModelError& other);

/// A sentence for two answers whose order is not certain; otherwise empty.
[[nodiscard]] std::string describe_uncertain_order(const ComparedTimes& one,
                                                   const ComparedTimes& other);

}  // namespace kvtier
