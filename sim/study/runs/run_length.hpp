#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/serving/simulate.hpp"

/// Whether a run is long enough for its numbers to be those of a server that goes on and on.
namespace kvtier {

/// Why the run is too short, as `load/too_short` of its result says, or nullopt.
[[nodiscard]] std::optional<std::string> too_short(const Json& result);

/// Sessions with which a run at the same rate should be long enough; at least 100.
[[nodiscard]] std::int64_t sessions_wanted(const Json& result);

/// Throws ConfigError if the run is too short, with what to set. `what` is what cannot be told
/// then.
void check_long_enough(const Json& result, const std::string& what);

/// For tables: why the run is too short and what to set, or the precision that a growing run
/// reached; empty if there is nothing to say.
[[nodiscard]] std::string describe_run_length(const Json& result);

/// Simulates. A run of "auto" sessions grows until its numbers have /workload/precision; `config`
/// then has the number of sessions that it needed, with which a plain run gives the same bytes but
/// for `load/precision`. It ends before the precision is reached where the load exceeds capacity,
/// and where the next run would have more than kMostTurns turns or end later than kGrowthSeconds
/// after the first began. Throws as simulate does.
[[nodiscard]] Json simulate_to_precision(RunConfig& config, const PolicyRegistry& registry,
                                         const RunOptions& options = {});

/// A /workload/precision that every run has which is not too short.
inline constexpr double kAnyPrecision = 1;
inline constexpr std::int64_t kMostTurns = 2'000'000;
inline constexpr double kGrowthSeconds = 120;

}  // namespace kvtier
