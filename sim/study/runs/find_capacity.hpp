#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/serving/simulate.hpp"
#include "sim/study/config/resolve.hpp"
#include "sim/study/runs/model_error.hpp"

/// Finds the capacity of a system: the highest rate that meets a service level objective (SLO),
/// also called goodput (DistServe, arXiv 2401.09670, introduction).
namespace kvtier {

/// One condition of an SLO: a number of a result that must be at most, or at least, `bound`.
struct SloCondition {
  /// JSON pointer into a result, such as /metrics/ttft_seconds/p90.
  std::string pointer;
  bool at_most = true;
  double bound = 0;
};

/// Reads conditions separated by commas, each METRIC<=NUMBER or METRIC>=NUMBER. A metric is a JSON
/// pointer into a result (below /metrics or /load), or a path below /metrics with dots:
/// `ttft_seconds.p90<=2,tpot_seconds.mean<=0.05`. Throws ConfigError with every malformed
/// condition. Messages begin with `where`. check_metrics() finds unknown metrics.
[[nodiscard]] std::vector<SloCondition> parse_slo(const std::string& text,
                                                  const std::string& where = "--find-capacity: ");
/// The factor on the condition's metric if all durations are `longer` times as long.
[[nodiscard]] double scale_of(const SloCondition& condition, double longer);
/// The condition as text: "ttft_seconds.p90 <= 2".
[[nodiscard]] std::string describe_condition(const SloCondition& condition);
/// Throws ConfigError with every condition on a metric that the result does not have.
void check_metrics(const std::vector<SloCondition>& slo, const Json& result,
                   const std::string& where = "--find-capacity: ");

struct CapacityOptions {
  /// Seeds to run at each rate: seed, seed + 1, ...; at least 1.
  std::int64_t replications = 1;
  /// The search ends when the rates that meet and miss the SLO differ by at most this share of the
  /// rate that meets it; > 0.
  double tolerance = 0.01;
  /// Factor between neighbouring rates until one meets the SLO and the next one misses it; > 1.
  double step = 2;
  /// The load at the config's own rate is known to exceed capacity.
  bool starts_overloaded = false;
  /// The share of that load that was served. The search begins at most a few times above it.
  double served = 1;
};

/// Results at one rate. Numbers are means over the replications.
struct CapacityTrial {
  /// The value of the varied key: sessions/s, requests/s or a speed-up.
  double rate = 0;
  /// The mean for each condition over the replications with a value. nullopt, which violates
  /// nothing, if a distribution is empty in all of them.
  std::vector<std::optional<double>> values;
  /// Replications whose load exceeds capacity; without an SLO, also for a part of the time.
  std::int64_t overloaded = 0;
  /// Every condition holds for the mean, and no replication is overloaded.
  bool meets = false;
  double requests_per_second = 0;
  /// Shares of the slots and of the time, in [0, 1].
  double slots_in_use = 0;
  double gpus_busy = 0;
  /// The main cause of waiting, as in tables.
  std::string bottleneck;
  /// Rent of GPUs and used tiers in the measured time.
  double dollars_per_million_output_tokens = 0;
  /// The errors of the first replication.
  std::optional<ModelError> model_error;
};

/// The range of a capacity by the errors of times; nullopt beyond the tried rates.
struct CapacityRange {
  std::optional<double> low;
  std::optional<double> high;
};

struct CapacitySearch {
  std::vector<SloCondition> slo;
  CapacityOptions options;
  /// The resolved config. The search began at its rate.
  Json config;
  /// The varied key: /workload/request_rate or /workload/arrival_rate, whichever the config has, or
  /// /workload/speed_up of a trace that is replayed at its own times.
  std::string key;
  /// Two lines on the run: hardware and workload.
  std::string description;
  /// Every rate that was tried, from the lowest to the highest.
  std::vector<CapacityTrial> trials;
  /// Indices of `trials`: the highest rate that meets the SLO, and the next tried rate, which
  /// misses it. Without `capacity` no tried rate meets the SLO. Without `above` no higher rate
  /// misses it.
  std::optional<std::size_t> capacity;
  std::optional<std::size_t> above;
};

/// Finds the highest rate at which `config` meets `slo`. It multiplies or divides the config's own
/// rate by the step until neighbouring rates meet and miss the SLO (within a factor of
/// kCapacityRange each way). Then it bisects to the tolerance. The search assumes that lower rates
/// meet the SLO, too; runs at one half and three quarters of the result check this. All rates have
/// the same random draws.
///
/// Throws ConfigError for a run that seems to meet the SLO and is too short to tell
/// (run_length.hpp), for metrics that a result does not have, and as `simulate` does.
/// `progress(runs done, next rate)` is called before each run.
[[nodiscard]] CapacitySearch find_capacity(
    const ResolvedConfig& config, const std::vector<SloCondition>& slo,
    const CapacityOptions& options, const PolicyRegistry& registry, const RunOptions& run,
    const std::function<void(std::int64_t, double)>& progress);

/// The search tries rates up to this factor above and below the config's.
inline constexpr double kCapacityRange = 1024;

/// The highest arrival rate, request rate or speed-up, to 5 %, at which the load of `config`, which
/// exceeds its capacity, would not. nullopt if the search found none, or its runs were too short.
/// It measures the stationary state, and uses as many sessions as needed if the workload allows any
/// number.
struct StableRate {
  std::string key;
  double rate = 0;
};
/// `served`: the share of its load that a run of `config` served, as far as it is known.
[[nodiscard]] std::optional<StableRate> highest_stable_rate(const ResolvedConfig& config,
                                                            const PolicyRegistry& registry,
                                                            const RunOptions& run,
                                                            double served = 1);
/// Adds /load/highest_stable_rate (the varied key and the rate, or null) to a result whose load
/// exceeds capacity.
void add_stable_rate(Json& result, const ResolvedConfig& config, const PolicyRegistry& registry,
                     const RunOptions& run);
/// The result of `kvtier simulate`: simulate_to_precision(), which sets the sessions of `config`,
/// and add_stable_rate().
[[nodiscard]] Json simulate_with_stable_rate(ResolvedConfig& config, const PolicyRegistry& registry,
                                             const RunOptions& run);
/// "0.235 sessions/s". `key` is the varied key.
[[nodiscard]] std::string describe_rate(const std::string& key, double rate);

/// The capacities if all times are longer or shorter by the error of the GPUs' time, from the tried
/// rates: times that are f times as long have the results of f times the rate, with all durations
/// times f. Between tried rates metrics are interpolated. {nullopt, nullopt} without a capacity or
/// errors.
[[nodiscard]] CapacityRange capacity_range(const CapacitySearch& search);

/// `kvtier.capacity/1`: the config, the SLO, the capacity and every trial.
[[nodiscard]] Json to_json(const CapacitySearch& search);
/// A table of the highest rate that meets the SLO and the next one, which misses it.
[[nodiscard]] std::string to_table(const CapacitySearch& search);

}  // namespace kvtier
