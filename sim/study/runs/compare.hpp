#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/serving/simulate.hpp"
#include "sim/study/config/resolve.hpp"

namespace kvtier {

/// Results of several systems on the same workload draws: replication r of every system has the
/// seed `seed + r`.
struct Comparison {
  struct Column {
    std::string system;
    /// One result (kvtier.result/1) a replication.
    std::vector<Json> results;
  };
  std::vector<Column> columns;
};

/// Runs `request` once per system and replication. Every config is resolved before the first run,
/// so that bad input costs nothing. `with_bound` adds to every result how far its policies are from
/// what is possible (untimed_bound). `progress(done, all)` is called before the first and after
/// each run. Throws as simulate does.
[[nodiscard]] Comparison compare_systems(
    const ConfigRequest& request, const std::vector<std::string>& systems,
    std::int64_t replications, bool with_bound, const ConfigDirectory& presets,
    const PolicyRegistry& registry, const RunOptions& options,
    const std::function<void(std::int64_t, std::int64_t)>& progress);

/// `kvtier.compare/1`: every result, mean and spread (maximum - minimum) of the table's rows and,
/// of several replications, each system's differences from the first.
[[nodiscard]] Json to_json(const Comparison& comparison);
/// The table that users see, a column a system. One system gives a table of one column. Several
/// replications of several systems give a second one, of differences from the first system: each is
/// the mean over pairs of runs with the same draws, with a 95 % interval (common random numbers:
/// Law, Simulation Modeling and Analysis, section 11.2).
[[nodiscard]] std::string to_table(const Comparison& comparison);

}  // namespace kvtier
