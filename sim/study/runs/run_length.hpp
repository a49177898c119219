#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/serving/simulate.hpp"

/// Checks that a run is long enough to show the steady state of a server.
namespace kvtier {

/// The reason why the run is too short (`/load/too_short` of its result), or nullopt.
[[nodiscard]] std::optional<std::string> too_short(const Json& result);

/// The number of sessions that should make a run at the same rate long enough; at least 100.
[[nodiscard]] std::int64_t sessions_wanted(const Json& result);

/// The change that a run that is too short needs, if it replays a trace in order: a longer trace,
/// or a key of the workload. Empty for other workloads, which can have more sessions.
[[nodiscard]] std::string longer_trace(const Json& workload);

/// Throws ConfigError with advice if the run is too short. `what` names the question that the run
/// cannot answer. `workload` is that of the run's config.
void check_long_enough(const Json& result, const Json& workload, const std::string& what);

/// Why the run is too short, with advice; empty for other runs. `workload` is that of its config.
[[nodiscard]] std::string describe_too_short(const Json& result, const Json& workload);

/// A note for tables: why the run is too short, with advice, or the precision that a growing run
/// reached. Empty for other runs.
[[nodiscard]] std::string describe_run_length(const Json& result);

/// Simulates. A run of "auto" sessions grows until its results have /workload/precision. `config`
/// then has the needed number of sessions, with which `simulate` gives the same bytes except for
/// `/load/precision`. Growth stops earlier if the load exceeds capacity, or if the next run would
/// have more than kMostTurns turns or end later than kGrowthSeconds after the first start. Throws
/// as `simulate` does.
[[nodiscard]] Json simulate_to_precision(RunConfig& config, const PolicyRegistry& registry,
                                         const RunOptions& options = {});

/// A /workload/precision that every run meets if it is not too short.
inline constexpr double kAnyPrecision = 1;
inline constexpr std::int64_t kMostTurns = 2'000'000;
inline constexpr double kGrowthSeconds = 120;

}  // namespace kvtier
