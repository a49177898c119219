#pragma once

#include <optional>
#include <span>
#include <string>

#include "hw/profile/profile_timing.hpp"
#include "sim/backend/simulated_backend.hpp"
#include "sim/core/config.hpp"
#include "sim/serving/config.hpp"
#include "sim/serving/instance.hpp"

namespace kvtier {

/// A link's name and what it did in the measured part.
struct LinkReport {
  std::string name;
  LinkCounters counters;
  /// Measured time of the instances that have it, added up.
  double seconds = 0;
};

/// The workload that was drawn, and whether it is synthetic.
[[nodiscard]] Json workload_report(const RunConfig& config, const WorkloadStatistics& statistics);
/// How much of the KV a system keeps that compresses what it stores.
[[nodiscard]] Json compression_report(const RunConfig& config);
/// The hits of some turns, as all `metrics` have them:
///
///     {"turns", "resumed_turns", "requests_with_hits", "prompt_tokens", "hit_tokens": {},
///      "prompt_blocks", "hit_blocks": {}, "lost_hits": {}, "truncated_turns", "truncated_tokens",
///      "hit_rate": {"all_turns": {}, "resumed_turns": {}, "tokens": {}, "prompt_tokens": {},
///                   "requests_with_hits", "blocks": {}, "partial_turns", "late_hits",
///                   "ideal": {"requests_with_hits", "prompt_tokens", "blocks"}}}
///
/// By tier with their total: {}. "lost_hits" are by cause. Blocks are those of a system of blocks.
/// "ideal" are the hits of a cache without limit, if they are known.
[[nodiscard]] Json hits_report(const HitCounts& hits, const SystemConfig& system,
                               const std::optional<BlockHits>& ideal);
/// 95 % intervals of the headline metrics in the steady state. Without any, "missing_because" has
/// the reason: by `load`, the run is overloaded or too short.
[[nodiscard]] Json confidence_report(const TurnMetrics& turns, const Json& load);
/// {"mean", "p50", "p90", "p95", "p99"} in seconds; null without values.
[[nodiscard]] Json seconds_report(const Histogram& histogram_ns);
/// TTFT, throughput and GPU time of the turns that have a history; `gpus` is their number.
[[nodiscard]] Json resumed_report(const TurnMetrics& turns, double gpus);
/// The measured part of a run's times: the profile, its extrapolations and its gaps, over the whole
/// run with its warm-up. `timing` is null if the profile measured nothing of the model, so that the
/// roofline gave all times.
[[nodiscard]] Json timing_report(const RunConfig& config, const ProfileTiming* timing,
                                 const TimingUse& use);
/// Cost of GPUs and used tiers for so many hours: {"total", "gpu", "dram", "cxl", "ssd"} in
/// dollars.
[[nodiscard]] Json cost_report(const RunConfig& config, double hours);
/// Whether a tier still fills: it has evicted nothing, and holds more than before.
[[nodiscard]] bool is_filling(std::int64_t evictions, Bytes peak_before, Bytes peak);
/// Rent of all instances of a cluster for so many hours, in dollars.
[[nodiscard]] double rent_dollars(const RunConfig& config, double hours);
/// The instances of a run, one or several that share its workload.
using Instances = std::span<Instance* const>;
/// `load` and `metrics` of a timed run. `users` are those of the whole run, with what was counted
/// of their turns. Of several instances: bytes, time and dollars are sums, shares of time are those
/// of all together, the verdict that of the worst. `links` are those of all instances.
[[nodiscard]] Json load_report(Requests& users, Instances instances, const RunConfig& config);
/// The measured part has to last this many times as long as the sessions that live at a time last
/// on average. Shorter ones were up to 16 % off in the rate that meets an SLO, and their intervals
/// are too narrow.
inline constexpr double kSessionDurations = 10;
/// If requests wait in a smaller share of the time, nothing is named as the bottleneck.
inline constexpr double kLeastWaitingShare = 0.1;
/// If requests wait longer than they are served in a smaller share of the time, the load is within
/// capacity.
inline constexpr double kLeastOverloadShare = 0.05;
/// Verdicts of `load`. The load exceeds capacity if the queue grows as long as sessions arrive, or
/// if requests wait longer than they are served for most of that time and at its end. If they do so
/// in a smaller part of it, or if the queue is short again at the end, it exceeds capacity part of
/// the time.
inline constexpr const char* kLoadWithinCapacity = "load is within capacity";
inline constexpr const char* kLoadExceedsCapacity = "load exceeds capacity";
inline constexpr const char* kLoadExceedsCapacityAtTimes = "load exceeds capacity part of the time";
/// A run that is to be measured in its stationary state has none, or too little of it:
/// `load/too_short` says why. With "measure": "all" that is judged by the rate of requests alone,
/// and is no verdict. Null where the load exceeds capacity.
inline constexpr const char* kRunTooShort = "run too short to tell";
[[nodiscard]] Json metrics_report(const Requests& users, Instances instances,
                                  const RunConfig& config, const std::vector<LinkReport>& links);

}  // namespace kvtier
