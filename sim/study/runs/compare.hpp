#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/serving/simulate.hpp"
#include "sim/study/config/resolve.hpp"

namespace kvtier {

/// Results of several systems on the same workload. Replication r of every system has the seed
/// `seed + r`.
struct Comparison {
  struct Column {
    std::string system;
    /// One result (kvtier.result/1) for each replication.
    std::vector<Json> results;
  };
  std::vector<Column> columns;
};

/// Runs `request` once per system and replication. All configs are resolved before the first run,
/// so that bad input fails early. `with_bound` adds untimed_bound() to every result.
/// `progress(done, all)` is called before the first and after each run. Throws as `simulate` does.
[[nodiscard]] Comparison compare_systems(
    const ConfigRequest& request, const std::vector<std::string>& systems,
    std::int64_t replications, bool with_bound, const ConfigDirectory& presets,
    const PolicyRegistry& registry, const RunOptions& options,
    const std::function<void(std::int64_t, std::int64_t)>& progress);

/// The configs of the systems, in order. Throws ConfigError with the problems of all of them.
[[nodiscard]] std::vector<ResolvedConfig> resolve_systems(const ConfigRequest& request,
                                                          const std::vector<std::string>& systems,
                                                          const ConfigDirectory& presets,
                                                          const PolicyRegistry& registry);
/// The same with the configs of resolve_systems().
[[nodiscard]] Comparison compare_systems(
    std::vector<ResolvedConfig> configs, const std::vector<std::string>& systems,
    std::int64_t replications, bool with_bound, const PolicyRegistry& registry,
    const RunOptions& options, const std::function<void(std::int64_t, std::int64_t)>& progress);

/// `kvtier.compare/1`: every result, and mean and spread (maximum - minimum) of the table's rows.
/// With several replications, also each system's differences from the first.
[[nodiscard]] Json to_json(const Comparison& comparison);
/// The table, with a column for each system. Several replications of several systems add a table of
/// differences from the first system. Each is the mean over pairs of runs with the same seed, with
/// a 95 % interval (common random numbers: Law, Simulation Modeling and Analysis, section 11.2).
[[nodiscard]] std::string to_table(const Comparison& comparison);

}  // namespace kvtier
