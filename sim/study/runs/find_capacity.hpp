#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/serving/simulate.hpp"
#include "sim/study/config/resolve.hpp"

/// How much load a system carries: the highest rate that meets a service level objective
/// (SLO). Studies of serving call it goodput (DistServe, arXiv 2401.09670, introduction).
namespace kvtier {

/// One condition of an SLO: a number of a result that must be at most, or at least, `bound`.
struct SloCondition {
  /// Into a result, such as /metrics/ttft_seconds/p90.
  std::string pointer;
  bool at_most = true;
  double bound = 0;
};

/// Reads conditions separated by commas, each METRIC<=NUMBER or METRIC>=NUMBER. A metric is a JSON
/// pointer into a result (below /metrics or /load), or a path below /metrics with dots:
/// `ttft_seconds.p90<=2,tpot_seconds.mean<=0.05`. Throws ConfigError with every malformed
/// condition; whether a result has the metric is not known here.
/// Messages begin with `where`.
[[nodiscard]] std::vector<SloCondition> parse_slo(const std::string& text,
                                                  const std::string& where = "--find-capacity: ");
/// As users write it.
[[nodiscard]] std::string describe_condition(const SloCondition& condition);
/// Throws ConfigError with every condition on what a result does not have.
void check_metrics(const std::vector<SloCondition>& slo, const Json& result,
                   const std::string& where = "--find-capacity: ");

struct CapacityOptions {
  /// Seeds to run at each rate: seed, seed + 1, ...; at least 1.
  std::int64_t replications = 1;
  /// The search ends when the rates that meet and miss the SLO are this near, relative to the one
  /// that meets it; > 0.
  double tolerance = 0.01;
  /// Factor between neighbouring rates until one meets the SLO and the next one misses it; > 1.
  double step = 2;
};

/// Results at one rate. Numbers are means over the replications.
struct CapacityTrial {
  /// In the unit of what is varied.
  double rate = 0;
  /// One a condition, over the replications that have a value; nullopt where a distribution is
  /// empty in all of them, which violates nothing.
  std::vector<std::optional<double>> values;
  /// Replications whose load exceeds capacity.
  std::int64_t overloaded = 0;
  /// Every condition holds for the mean, and no replication is overloaded.
  bool meets = false;
  double requests_per_second = 0;
  /// Shares of the slots and of the time, in [0, 1].
  double slots_in_use = 0;
  double gpus_busy = 0;
  /// As tables name it.
  std::string bottleneck;
  /// GPUs and used tiers, rented from the first measured turn to the last.
  double dollars_per_million_output_tokens = 0;
};

struct CapacitySearch {
  std::vector<SloCondition> slo;
  CapacityOptions options;
  /// The resolved config; its rate is where the search began.
  Json config;
  /// /workload/arrival_rate or /workload/request_rate, whichever the config has, or
  /// /workload/speed_up of a trace that is replayed at its own times.
  std::string key;
  /// Two lines on the run: hardware and workload.
  std::string description;
  /// Every rate that was tried, from the lowest to the highest.
  std::vector<CapacityTrial> trials;
  /// The highest rate found to meet the SLO and the next tried above it, which does not: indices of
  /// `trials`. Without `capacity` no rate that was tried meets it, without `above` all up to the
  /// highest do.
  std::optional<std::size_t> capacity;
  std::optional<std::size_t> above;
};

/// Looks for the highest rate at which `config` meets `slo`: multiplies or divides the config's own
/// rate by the step until a rate that meets the SLO and one that misses it are neighbours (within
/// a factor of kCapacityRange each way), then bisects to the tolerance. The search takes the SLO
/// to be met below a rate that meets it; rates of one half and three quarters of the result are run
/// as well, so that `trials` shows where that is not so. All rates share their random draws.
///
/// Throws ConfigError for a run that seems to meet the SLO and is too short to tell
/// (run_length.hpp), for metrics that a result does not have, and as simulate does. `progress(runs
/// done, rate to be tried)` is called before each run.
[[nodiscard]] CapacitySearch find_capacity(
    const ResolvedConfig& config, const std::vector<SloCondition>& slo,
    const CapacityOptions& options, const PolicyRegistry& registry, const RunOptions& run,
    const std::function<void(std::int64_t, double)>& progress);

/// The search tries rates up to this many times, and down to as small a part of, the config's.
inline constexpr double kCapacityRange = 1024;

/// The highest arrival rate, request rate or speed-up, to 5 %, at which the load of `config` does
/// not exceed its capacity; nullopt if none that is long enough to tell was found. Measured in the
/// stationary state, whatever `config` measures, and with as many sessions as that takes where the
/// workload gives any number.
struct StableRate {
  std::string key;
  double rate = 0;
};
[[nodiscard]] std::optional<StableRate> highest_stable_rate(const ResolvedConfig& config,
                                                            const PolicyRegistry& registry,
                                                            const RunOptions& run);
/// Adds load/highest_stable_rate to the result of a run whose load exceeds capacity: what is varied
/// and the rate, or null.
void add_stable_rate(Json& result, const ResolvedConfig& config, const PolicyRegistry& registry,
                     const RunOptions& run);
/// The result of `kvtier simulate`: simulate_to_precision, which sets the sessions of `config`,
/// with load/highest_stable_rate.
[[nodiscard]] Json simulate_with_stable_rate(ResolvedConfig& config, const PolicyRegistry& registry,
                                             const RunOptions& run);
/// "0.235 sessions/s", by the key that is varied.
[[nodiscard]] std::string describe_rate(const std::string& key, double rate);

/// `kvtier.capacity/1`: the config, the SLO, what was found and every trial.
[[nodiscard]] Json to_json(const CapacitySearch& search);
/// The table that users see: the highest rate that meets the SLO beside the next above.
[[nodiscard]] std::string to_table(const CapacitySearch& search);

}  // namespace kvtier
