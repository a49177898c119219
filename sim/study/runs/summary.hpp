#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/config.hpp"

/// Common parts of tables of results (kvtier.result/1).
namespace kvtier {

/// The tiers, the fastest first: their keys in configs and results, and their names in tables.
inline constexpr std::pair<const char*, const char*> kTierNames[] = {
    {"hbm", "HBM"}, {"dram", "DRAM"}, {"cxl", "CXL"}, {"ssd", "SSD"}};

/// A key as words: "larger_than_tier" is "larger than tier".
[[nodiscard]] std::string words_of(std::string key);

/// The value at a JSON pointer; null if there is none. Any pointer may be asked for:
/// Json::contains() throws where one has no number, or one beyond all, for an index of a list.
[[nodiscard]] const Json* find_at(const Json& json, const Json::json_pointer& at);

/// The number at a JSON pointer of a result; nullopt if there is none.
[[nodiscard]] std::optional<double> number_at(const Json& result, const std::string& pointer);

/// The text at a JSON pointer of a result; empty if there is none.
[[nodiscard]] std::string text_at(const Json& result, const std::string& pointer);

/// That number of each of some results; nullopt if one of them does not have it.
[[nodiscard]] std::optional<std::vector<double>> numbers_at(const std::vector<Json>& results,
                                                            const std::string& pointer);

/// A number of several runs that differ in their seeds only.
struct Summary {
  double mean = 0;
  /// Largest minus smallest.
  double spread = 0;
};
/// nullopt if one of `results` does not have the number. There is at least one result.
[[nodiscard]] std::optional<Summary> summarize(const std::vector<Json>& results,
                                               const std::string& pointer);

/// Whether the queue grew as long as sessions arrived ("load exceeds capacity").
[[nodiscard]] bool exceeds_capacity(const Json& result);

/// The main cause of waiting, such as "batch slots 83 %", with its share of the measured time;
/// "none" if requests hardly wait, "-" if a result does not say. There is at least one result.
[[nodiscard]] std::string describe_bottleneck(const std::vector<Json>& results);

/// A line on GPUs that wait for KV to come in more than 5 % of the time; else empty.
[[nodiscard]] std::string describe_load_waits(const std::string& system,
                                              const std::vector<Json>& results);

/// The setting of a resolved config, as `{"model", "server", "workload", "load"}`: each a few
/// words, empty where the config does not say.
[[nodiscard]] Json run_setting(const Json& config);
/// The same of several runs: what they have in common, or how many of it there are ("3 models").
[[nodiscard]] Json common_setting(const std::vector<Json>& settings);

/// A headline number: where it stands in a result and how it is shown.
struct ResultRow {
  const char* label;
  const char* pointer;
  double factor;
  const char* format;  // of the scaled number
  /// Pointer that a result must have for the row to be shown, such as a tier.
  const char* needs = nullptr;
};
/// In the order of tables.
[[nodiscard]] std::span<const ResultRow> result_rows();

/// Lines on how far the headline metrics of one run are to be trusted: their intervals by batch
/// means.
[[nodiscard]] std::string describe_confidence(const Json& result);

/// A table: the first line's cells are its columns, the first `left` of them on the left; what a
/// line has beyond them follows as it is.
[[nodiscard]] std::string align_columns(const std::vector<std::vector<std::string>>& lines,
                                        std::size_t left);

/// Two lines: the model and the hardware, then the workload.
[[nodiscard]] std::string describe_run(const Json& result);

}  // namespace kvtier
