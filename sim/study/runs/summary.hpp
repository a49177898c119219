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

/// The value at a JSON pointer; null if there is none. Unlike Json::contains(), it does not throw
/// for an invalid index of a list.
[[nodiscard]] const Json* find_at(const Json& json, const Json::json_pointer& at);

/// The number at a JSON pointer of a result; nullopt if there is none.
[[nodiscard]] std::optional<double> number_at(const Json& result, const std::string& pointer);

/// The text at a JSON pointer of a result; empty if there is none.
[[nodiscard]] std::string text_at(const Json& result, const std::string& pointer);

/// The number at a JSON pointer of each result; nullopt if a result does not have it.
[[nodiscard]] std::optional<std::vector<double>> numbers_at(const std::vector<Json>& results,
                                                            const std::string& pointer);

/// A number over several runs that differ only in their seeds.
struct Summary {
  double mean = 0;
  /// Largest minus smallest.
  double spread = 0;
};
/// nullopt if one of `results` does not have the number. There is at least one result.
[[nodiscard]] std::optional<Summary> summarize(const std::vector<Json>& results,
                                               const std::string& pointer);

/// Whether the verdict is "load exceeds capacity": the queue grew while sessions arrived.
[[nodiscard]] bool exceeds_capacity(const Json& result);
/// The same, or "load exceeds capacity part of the time".
[[nodiscard]] bool ever_exceeds_capacity(const Json& result);
/// The verdict as a cell of a table; a part of the time has its share ("load exceeds capacity 43 %
/// of the time"). Empty for a result without a verdict.
[[nodiscard]] std::string describe_verdict(const Json& result);

/// Whether the verdict is "run too short to tell".
[[nodiscard]] bool is_too_short(const Json& result);

/// The main cause of waiting with its share of the measured time, such as "batch slots 83 %".
/// "none" if requests hardly wait, "-" if a result has no cause. There must be at least one result.
[[nodiscard]] std::string describe_bottleneck(const std::vector<Json>& results);

/// Joined names of the tiers that evict nothing: those that still fill, or those in which blocks
/// found no room.
[[nodiscard]] std::string tiers_without_evictions(const Json& result, bool full);

/// Lines on tiers that still fill, with the names of the runs.
[[nodiscard]] std::vector<std::string> describe_filling(
    const std::vector<std::pair<std::string, const Json*>>& runs);

/// A line on GPUs that wait for loads of KV for more than 5 % of the time; otherwise empty.
[[nodiscard]] std::string describe_load_waits(const std::string& system,
                                              const std::vector<Json>& results);

/// The setting of a resolved config as `{"model", "server", "workload", "load"}`. Each is a few
/// words, or empty if the config lacks it.
[[nodiscard]] Json run_setting(const Json& config);
/// The setting of several runs: each common member, or the number of different ones ("3 models").
[[nodiscard]] Json common_setting(const std::vector<Json>& settings);

/// A headline number: its pointer into a result, and its format.
struct ResultRow {
  const char* label;
  const char* pointer;
  double factor;
  const char* format;  // of the scaled number
  /// The row is shown if a result has an object or another number than 0 there, such as a tier.
  const char* needs = nullptr;
};
/// The rows in the order of tables.
[[nodiscard]] std::span<const ResultRow> result_rows();

/// Lines with the confidence intervals of one run's headline metrics, or the reason why it has
/// none.
[[nodiscard]] std::string describe_confidence(const Json& result);

/// Aligns cells to a table. The first line has the columns, of which the first `left` are aligned
/// to the left. More cells of a line follow unaligned.
[[nodiscard]] std::string align_columns(const std::vector<std::vector<std::string>>& lines,
                                        std::size_t left);

/// Two lines: the model and the hardware, then the workload.
[[nodiscard]] std::string describe_run(const Json& result);

}  // namespace kvtier
