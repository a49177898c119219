#include "sim/serving/result.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "sim/core/statistics.hpp"
#include "sim/serving/store_rules.hpp"
#include "traces/statistics.hpp"

namespace kvtier {
namespace {

constexpr double kNanosecond = 1e-9;
/// Growth of a tier's content over the measured part from which it counts as still filling.
constexpr double kGrowth = 1.05;

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0.0; }
double ratio(std::int64_t part, std::int64_t whole) {
  return ratio(static_cast<double>(part), static_cast<double>(whole));
}

double gib(Bytes bytes) {
  return static_cast<double>(bytes.value) / static_cast<double>(std::int64_t{1} << 30);
}

/// Counts by medium over a whole, with their sum; parts of each belong to nearer media.
Json split_by_tier(const std::array<std::int64_t, kMedia>& counts, std::int64_t whole,
                   const std::array<std::array<double, kMedia>, kMedia>& nearer = {}) {
  Json json;
  std::int64_t total = 0;
  for (const std::int64_t count : counts) {
    total += count;
  }
  json["total"] = ratio(total, whole);
  for (std::size_t i = 0; i < kMedia; ++i) {
    double count = static_cast<double>(counts[i]);
    double gained = 0;
    for (std::size_t j = 0; j < kMedia; ++j) {
      count -= nearer[i][j];
      gained += nearer[j][i];
    }
    count += gained;
    json[to_string(static_cast<Medium>(i))] = ratio(count, static_cast<double>(whole));
  }
  return json;
}

}  // namespace

Json workload_report(const RunConfig& config, const WorkloadStatistics& statistics) {
  Json json = to_json(statistics);
  if (is_synthetic(config.workload)) {
    json["synthetic"] = true;
  }
  return json;
}

Json compression_report(const RunConfig& config) {
  return Json{{"kept_share", ratio(stored_kv_bytes_per_token(config).value,
                                   kv_bytes_per_token(config.model).value)},
              {"accuracy", "not simulated"}};
}

namespace {

Json hit_rate_report(const HitCounts& hits, bool of_blocks, const std::optional<BlockHits>& ideal) {
  const BlockHits& prompts = hits.prompts;
  std::array<std::int64_t, kMedia> reused{};
  for (std::size_t i = 0; i < kMedia; ++i) {
    reused[i] = hits.reused_tokens[i].value;
  }
  Json json{
      {"all_turns", split_by_tier(hits.full_hits, hits.turns, hits.full_hits_nearer)},
      {"resumed_turns", split_by_tier(hits.full_hits, hits.resumed_turns, hits.full_hits_nearer)},
      {"tokens", split_by_tier(reused, hits.history_tokens.value)},
      {"prompt_tokens", split_by_tier(prompts.hit_tokens, prompts.prompt_tokens)},
      {"requests_with_hits", ratio(prompts.turns_with_hits, prompts.turns)},
      {"partial_turns", hits.partial_turns},
      {"late_hits", hits.late_hits}};
  if (of_blocks) {
    json["blocks"] = split_by_tier(prompts.hit_blocks, prompts.prompt_blocks);
  }
  if (ideal) {
    json["ideal"] = {{"requests_with_hits", ratio(ideal->turns_with_hits, ideal->turns)},
                     {"prompt_tokens", ratio(ideal->hit_tokens_in_all(), ideal->prompt_tokens)}};
    if (of_blocks) {
      json["ideal"]["blocks"] = ratio(ideal->hit_blocks_in_all(), ideal->prompt_blocks);
    }
  }
  return json;
}

Json counts_by_tier(const std::array<std::int64_t, kMedia>& counts) {
  Json json{{"total", std::accumulate(counts.begin(), counts.end(), std::int64_t{0})}};
  for (std::size_t i = 0; i < kMedia; ++i) {
    json[to_string(static_cast<Medium>(i))] = counts[i];
  }
  return json;
}

}  // namespace

Json hits_report(const HitCounts& hits, const SystemConfig& system,
                 const std::optional<BlockHits>& ideal) {
  const bool of_blocks = system.blocks.has_value();
  Json json{{"turns", hits.turns},
            {"resumed_turns", hits.resumed_turns},
            {"hit_rate", hit_rate_report(hits, of_blocks, ideal)},
            {"requests_with_hits", hits.prompts.turns_with_hits},
            {"prompt_tokens", hits.prompts.prompt_tokens},
            {"hit_tokens", counts_by_tier(hits.prompts.hit_tokens)},
            {"truncated_turns", hits.truncated_turns},
            {"truncated_tokens", hits.truncated_tokens.value}};
  if (of_blocks) {
    json["prompt_blocks"] = hits.prompts.prompt_blocks;
    json["hit_blocks"] = counts_by_tier(hits.prompts.hit_blocks);
  }
  for (std::size_t i = 1; i < kLossCauses; ++i) {
    const auto cause = static_cast<LossCause>(i);
    if (cause != LossCause::not_admitted || filters_admission(system)) {
      json["lost_hits"][to_string(cause)] = hits.lost_hits[i];
    }
  }
  return json;
}

namespace {

/// The reason why a measured part of so many seconds is too short for sessions that last so long.
std::optional<std::string> too_few_lifetimes(double seconds, double session) {
  return seconds < kSessionDurations * session
             ? std::optional(fmt::format(
                   "the measured part lasts {:.0f} s, and the sessions that live at a time last "
                   "{:.0f} s on average, expected {:.0f} times as long",
                   seconds, session, kSessionDurations))
             : std::nullopt;
}

/// The reason why a run has no intervals, by its `load`; empty if it has some.
std::string refused_intervals(const Json& load) {
  if (load["verdict"] == kLoadExceedsCapacity) {
    return "the load exceeds capacity";
  }
  if (load["measured"]["rule"] == "auto" && load["too_short"].is_string()) {
    return "the run is too short";
  }
  // With "measure": "all" that is no verdict.
  return too_few_lifetimes(load["measured_seconds"], load["measured"]["live_session_seconds"])
      .value_or("");
}

}  // namespace

Json confidence_report(const TurnMetrics& turns, const Json& load) {
  const BatchMeans& batches = turns.batch_means;
  Json json{{"level", kConfidence}};
  std::string refused = refused_intervals(load);
  if (refused.empty() && turns.turns < BatchMeans::kLeastTurns) {
    refused = fmt::format("{} turns are measured, expected at least {}", turns.turns,
                          BatchMeans::kLeastTurns);
  }
  if (!refused.empty()) {
    json["missing_because"] = refused;
    return json;
  }
  json["batches"] = batches.batches();
  json["turns_per_batch"] = batches.turns_per_batch();
  json["degrees_of_freedom"] = BatchMeans::kCosines;
  const auto add_share = [&](const char* name, double mean, double RunningTotals::*part,
                             double RunningTotals::*whole) {
    if (const auto half = batches.half_width(part, whole)) {
      json[name] = Json{{"low", std::max(mean - *half, 0.0)},
                        {"high", std::min(mean + *half, 1.0)},
                        {"half_width", *half}};
    }
  };
  // Means of times are skewed and positive: their intervals are those of their logarithms.
  const auto add_time = [&](const char* name, const Histogram& times_ns,
                            double RunningTotals::*sum_ns) {
    if (const auto half = batches.half_width(sum_ns, &RunningTotals::turns)) {
      const double mean = times_ns.mean();
      const double factor = mean > 0 ? std::exp(*half / mean) : 1;
      json[name] = Json{{"low", mean / factor * kNanosecond},
                        {"high", mean * factor * kNanosecond},
                        {"half_width", *half * kNanosecond}};
    }
  };
  const Json hits = hit_rate_report(turns, false, {});
  add_share("hit_rate_all_turns", hits["all_turns"]["total"], &RunningTotals::full_hits,
            &RunningTotals::turns);
  add_share("hit_rate_tokens", hits["tokens"]["total"], &RunningTotals::reused_tokens,
            &RunningTotals::history_tokens);
  add_time("ttft_seconds", turns.ttft_ns, &RunningTotals::ttft_ns);
  add_time("queueing_seconds", turns.queueing_ns, &RunningTotals::queueing_ns);
  const auto add_quantile = [&](const char* name, double q) {
    if (const auto interval = batches.quantile_interval(turns.ttft_ns, q)) {
      json[name] = Json{{"low", static_cast<double>(interval->low) * kNanosecond},
                        {"high", static_cast<double>(interval->high) * kNanosecond}};
    }
  };
  add_quantile("ttft_seconds_p50", 0.5);
  add_quantile("ttft_seconds_p90", 0.9);
  add_quantile("ttft_seconds_p95", 0.95);
  add_quantile("ttft_seconds_p99", 0.99);
  return json;
}

Json seconds_report(const Histogram& histogram_ns) {
  if (histogram_ns.count() == 0) {
    return nullptr;
  }
  const auto at = [&](double q) { return static_cast<double>(histogram_ns.quantile(q)) * 1e-9; };
  return Json{{"mean", histogram_ns.mean() * 1e-9},
              {"p50", at(0.5)},
              {"p90", at(0.9)},
              {"p95", at(0.95)},
              {"p99", at(0.99)}};
}

Json resumed_report(const TurnMetrics& turns, double gpus) {
  const ResumedTurnCosts& r = turns.resumed;
  const SimDuration busy = r.prefill + r.exposed_load + r.decode;
  const auto per_turn = [&](SimDuration duration) {
    return ratio(duration.seconds() * gpus, static_cast<double>(turns.resumed_turns));
  };
  const auto throughput = [](Tokens tokens, SimDuration duration) {
    return ratio(static_cast<double>(tokens.value), duration.seconds());
  };
  return Json{{"ttft_seconds_without_queueing", seconds_report(r.ttft_without_queueing_ns)},
              {"prompt_tokens_served_per_prefill_second",
               throughput(r.prompt_tokens, r.prefill + r.exposed_load)},
              {"output_throughput_tokens_per_busy_second", throughput(r.output_tokens, busy)},
              {"gpu_seconds_per_turn", Json{{"total", per_turn(busy)},
                                            {"prefill", per_turn(r.prefill)},
                                            {"decode", per_turn(r.decode)},
                                            {"exposed_load", per_turn(r.exposed_load)}}}};
}

Json timing_report(const RunConfig& config, const ProfileTiming* timing, const TimingUse& use) {
  const std::vector<std::string> left_out =
      timing != nullptr ? timing->left_out() : std::vector<std::string>();
  const std::vector<std::string> from_roofline =
      timing != nullptr ? timing->from_roofline()
                        : std::vector<std::string>{"all operations of " + config.model.name};
  return {
      {"profile", config.hardware.sibling ? config.hardware.profile->loaded->name
                                          : config.hardware.profile->name},
      {"source", config.hardware.sibling ? "sibling" : "measured"},
      {"prefills", {{"total", use.prefills}, {"extrapolated", use.extrapolated_prefills}}},
      {"decode_iterations",
       {{"total", use.decode_iterations}, {"extrapolated", use.extrapolated_decode_iterations}}},
      {"left_out", left_out},
      {"from_roofline", from_roofline}};
}

namespace {

SimDuration measured_span(const Instance& instance) { return instance.measured().span(); }

/// Measured seconds of all instances, added up.
double measured_seconds(Instances instances) {
  double seconds = 0;
  for (const Instance* instance : instances) {
    seconds += measured_span(*instance).seconds();
  }
  return seconds;
}

GpuTime measured_gpu_time(Instances instances) {
  GpuTime time;
  for (const Instance* instance : instances) {
    time += instance->measured_gpu_time();
  }
  return time;
}

/// Instances of one config, and their measured work.
struct AlikeInstances {
  const RunConfig* config = nullptr;
  double seconds = 0;
  GpuTime gpu;
};

std::vector<AlikeInstances> alike_instances(Instances instances) {
  std::vector<AlikeInstances> all;
  for (const Instance* instance : instances) {
    auto own = std::find_if(all.begin(), all.end(), [&](const AlikeInstances& some) {
      return some.config == &instance->config();
    });
    if (own == all.end()) {
      own = all.insert(own, {.config = &instance->config()});
    }
    own->seconds += measured_span(*instance).seconds();
    own->gpu += instance->measured_gpu_time();
  }
  return all;
}

/// A part of the GPU time, a duration or a function of GpuTime, times the GPUs.
template <class Part>
double gpu_seconds(const std::vector<AlikeInstances>& alike, Part part) {
  double sum = 0;
  for (const AlikeInstances& some : alike) {
    sum += std::invoke(part, some.gpu).seconds() * static_cast<double>(some.config->hardware.gpus);
  }
  return sum;
}

/// The load of an instance while sessions arrived.
struct Overload {
  bool exceeds = false;
  /// Share of the time in which requests waited longer than they were served.
  double share = 0;
};

Overload overload_of(Requests& users, Instance& instance) {
  // The queue is judged while sessions still arrive, since afterwards it can only drain; from the
  // beginning if the measured part has less than half of that.
  const SimTime arrivals_end = users.last_session_arrival();
  const SimTime measured_from = users.measured().from;
  const SimTime from = measured_from.ns * 2 < arrivals_end.ns ? measured_from : SimTime(0);
  // Fewer waiting requests than this are no trend.
  constexpr double kShortQueue = 50;
  constexpr double kShareOfSessions = 0.25;
  const double floor =
      std::min(kShortQueue, kShareOfSessions * static_cast<double>(users.workload().parts()));
  if (arrivals_end <= from) {
    return {};
  }
  QueueTrend& trend = instance.queue_trend();
  constexpr std::int64_t kParts = 10;
  constexpr double kMost = 0.5;
  const double share = trend.overloaded_share(from, arrivals_end, floor);
  const double at_end =
      trend.overloaded_share(arrivals_end - (arrivals_end - from) / kParts, arrivals_end, floor);
  return {.exceeds = trend.grows_throughout(from, arrivals_end, floor) ||
                     (share > kMost && at_end > kMost),
          .share = share};
}

double requests_per_second(const Requests& users) {
  return ratio(static_cast<double>(users.turns().turns), users.measured().span().seconds());
}

/// Turns that users would send in a second if responses took no time of the arrivals; nullopt where
/// all are due at one time.
std::optional<double> nominal_requests_per_second(const RunConfig& config, const Requests& users) {
  const WorkloadStatistics& workload = users.workload();
  if (config.workload.arrivals != ArrivalModel::trace && !starts_sessions(config.workload)) {
    return config.workload.request_rate
               ? config.workload.request_rate->value
               : config.workload.arrival_rate->value * ratio(workload.turns(), workload.parts());
  }
  const SimDuration span = users.offered_span();
  return span.ns > 0 ? std::optional(static_cast<double>(workload.turns()) / span.seconds())
                     : std::nullopt;
}

/// The cause with the largest share of the time, or none.
Json bottleneck_report(const WaitTimes& waits, double seconds) {
  Json shares;
  std::size_t most = 0;
  for (std::size_t i = 0; i < kWaitCauses; ++i) {
    shares[to_string(static_cast<WaitCause>(i))] = ratio(waits.by_cause[i].seconds(), seconds);
    most = waits.by_cause[i] > waits.by_cause[most] ? i : most;
  }
  const double waiting = ratio(waits.total().seconds(), seconds);
  const bool binds = waiting >= kLeastWaitingShare;
  return {{"name", binds ? to_string(static_cast<WaitCause>(most)) : "none"},
          {"share", binds ? ratio(waits.by_cause[most].seconds(), seconds) : 0.0},
          {"requests_wait_share", waiting},
          {"shares", shares}};
}

/// Time that GPUs wait for KV to come, by the link that it comes over.
Json load_wait_report(const WaitTimes& loads, SimDuration total, double seconds) {
  Json json{{"total", ratio(total.seconds(), seconds)}};
  for (const WaitCause link :
       {WaitCause::host_link, WaitCause::host_memory, WaitCause::cxl_memory, WaitCause::drive}) {
    json[to_string(link)] = ratio(loads[link].seconds(), seconds);
  }
  return json;
}

/// Tokens whose KV running requests may hold in the HBM of all instances, and how often the tiers
/// behind HBM hold a token.
Json kv_report(const RunConfig& config) {
  std::int64_t tokens = 0;
  for (const auto& [group, instances] : group_sizes(config)) {
    const RunConfig alike = group_config(config, group);
    const Bytes token = kv_bytes_per_token(alike.model);
    tokens += token.value > 0 ? running_kv_capacity(alike) / token * instances : 0;
  }
  Json json{{"tokens_in_hbm", tokens}};
  if (config.whole_window) {
    json["context_window"] = config.model.context_window.value;
    json["context_window_of_model"] = config.whole_window->value;
  }
  if (config.cluster.groups.empty()) {
    const Bytes once = kv_bytes_per_token(config.model);
    // Sessions hold one copy, which may be compressed.
    const Bytes stored = config.system.blocks ? stored_kv_bytes_per_token(config) : once;
    json["copies_behind_hbm"] = ratio(stored.value, once.value);
    json["gpus_of_rank"] = gpus_of_rank(config.hardware);
    json["kv_heads"] = config.model.kv_heads;
    json["latent"] = config.model.latent.has_value();
  }
  return json;
}

}  // namespace

Json load_report(Requests& users, Instances instances, const RunConfig& config) {
  const WorkloadStatistics& workload = users.workload();
  const MeasuredPart& part = users.measured();
  const double seconds = measured_seconds(instances);
  Occupied occupied;
  WaitTimes waits;
  WaitTimes loads;
  double queue_mean = 0;
  std::size_t queue_max = 0;
  bool exceeds = false;
  double overloaded = 0;
  const bool stationary = part.stationary;
  const SessionDurations& durations = users.session_durations();
  for (Instance* instance : instances) {
    occupied += instance->measured_occupied();
    waits += instance->measured_waits();
    loads += instance->measured_load_waits();
    queue_mean += instance->queue_trend().mean(part.from, part.to);
    queue_max = std::max(queue_max, instance->queue_trend().longest());
    const Overload overload = overload_of(users, *instance);
    exceeds = exceeds || overload.exceeds;
    overloaded = std::max(overloaded, overload.share);
  }
  Json json;
  const GpuTime gpu = measured_gpu_time(instances);
  json["slots_in_use_fraction"] = ratio(occupied.slots, seconds);
  json["kv_memory_in_use_fraction"] = ratio(occupied.kv_memory, seconds);
  json["kv"] = kv_report(config);
  json["gpu_busy_fraction"] = ratio(gpu.busy().seconds(), seconds);
  json["gpu_load_wait_fraction"] = load_wait_report(loads, gpu.exposed_load, seconds);
  json["bottleneck"] = bottleneck_report(waits, seconds);
  const bool is_automatic = config.workload.measure == Measure::automatic;
  // An instance that was lost and came back is in the list twice.
  const auto servers = static_cast<double>(config.cluster.instances);
  const double span = part.span().seconds();
  json["queue_length"] = Json{{"mean", queue_mean / servers}, {"max", queue_max}};
  json["measured_seconds"] = span;
  json["measured"] = Json{{"rule", write_value(config.workload.measure)},
                          {"from_seconds", part.from.seconds()},
                          {"to_seconds", part.to.seconds()},
                          {"live_session_seconds", durations.mean_of_live()}};
  if (is_automatic) {
    json["measured"]["stationary"] = stationary;
    json["measured"]["sessions_before"] = part.sessions_before;
  }
  const std::optional<double> nominal = nominal_requests_per_second(config, users);
  const double rate = requests_per_second(users);
  constexpr double kRateError = 0.1;
  const bool agrees = nominal && std::abs(rate - *nominal) <= kRateError * *nominal;
  json["requests_per_second"] =
      Json{{"nominal", nominal ? Json(*nominal) : Json()}, {"measured", rate}, {"agree", agrees}};

  std::optional<std::string> too_short;
  const double session = durations.mean_of_live();
  if (exceeds) {
    too_short = std::nullopt;
  } else if (is_automatic && !stationary) {
    too_short = fmt::format(
        "no stationary state is found: the {} sessions arrive within {:.0f} s, and those that live "
        "at a time last {:.0f} s on average",
        workload.parts(), workload.last_arrival().seconds(), session);
  } else if (!nominal) {
    too_short = "the workload has no rate: all of its turns are due at one time";
  } else if (!agrees) {
    too_short = fmt::format("the nominal rate is {:.4g} requests/s, the measured one {:.4g}",
                            *nominal, rate);
  } else if (is_automatic) {
    too_short = too_few_lifetimes(span, session);
  }
  json["too_short"] = too_short ? Json(*too_short) : Json();
  json["overloaded_fraction"] = overloaded;
  json["verdict"] = exceeds                             ? kLoadExceedsCapacity
                    : overloaded >= kLeastOverloadShare ? kLoadExceedsCapacityAtTimes
                    : is_automatic && too_short         ? kRunTooShort
                                                        : kLoadWithinCapacity;
  return json;
}

Json prefetch_report(const PrefetchCounters& prefetches, const TurnMetrics& turns) {
  const Histogram& waits = turns.late_wait_ns;
  const double late_wait_ns =
      waits.count() == 0 ? 0 : waits.mean() * static_cast<double>(waits.count());
  return Json{{"begun", prefetches.begun},
              {"late", prefetches.late},
              {"on_time", prefetches.on_time},
              {"early", prefetches.early},
              {"unused", prefetches.unused},
              {"idle_byte_seconds", static_cast<double>(prefetches.idle_byte_ns) * 1e-9},
              {"late_wait_seconds", late_wait_ns * 1e-9}};
}

Json cost_report(const RunConfig& config, double hours) {
  const double gpu_dollars =
      config.hardware.gpu.price.value * static_cast<double>(config.hardware.gpus) * hours;
  // Storage is rented with the server when the system uses it. A shared store of its own is rented
  // once, in place of that of the servers.
  const auto memory = [&](const char* name, bool used, const auto& installed) {
    if (!used || !installed) {
      return 0.0;
    }
    const auto& shared = config.cluster.shared;
    const bool is_apart = is_shared(config, name) && shared->capacity;
    const double size =
        is_apart ? gib(shared_capacity(config)) / static_cast<double>(config.cluster.instances)
                 : gib(installed->capacity);
    return installed->price.value * size * hours;
  };
  const TiersConfig& rented = config.system.tiers;
  const double dram_dollars = memory("dram", rented.dram.has_value(), config.hardware.dram);
  const double cxl_dollars = memory("cxl", rented.cxl.has_value(), config.hardware.cxl);
  const double ssd_dollars = memory("ssd", rented.ssd.has_value(), config.hardware.ssd);
  return Json{{"total", gpu_dollars + dram_dollars + cxl_dollars + ssd_dollars},
              {"gpu", gpu_dollars},
              {"dram", dram_dollars},
              {"cxl", cxl_dollars},
              {"ssd", ssd_dollars}};
}

bool is_filling(std::int64_t evictions, Bytes peak_before, Bytes peak) {
  return evictions == 0 &&
         static_cast<double>(peak.value) > kGrowth * static_cast<double>(peak_before.value);
}

double rent_dollars(const RunConfig& config, double hours) {
  double sum = 0;
  for (const auto& [group, instances] : group_sizes(config)) {
    sum += cost_report(group_config(config, group), hours * static_cast<double>(instances))["total"]
               .get<double>();
  }
  return sum;
}

Json metrics_report(const Requests& users, Instances instances, const RunConfig& config,
                    const std::vector<LinkReport>& links) {
  const TurnMetrics& turns = users.turns();
  const SimDuration span = users.measured().span();
  const GpuTime gpu = measured_gpu_time(instances);
  const auto sum = [&](const auto& of_instance) {
    double total = 0;
    for (const Instance* instance : instances) {
      total += of_instance(*instance);
    }
    return total;
  };
  const std::vector<AlikeInstances> alike = alike_instances(instances);
  // GPUs of an instance, weighted by their work where instances differ.
  const double gpus = alike.size() == 1
                          ? static_cast<double>(alike.front().config->hardware.gpus)
                          : ratio(gpu_seconds(alike, &GpuTime::busy), gpu.busy().seconds());

  Json m = hits_report(turns, config.system, users.hits_without_limit());
  m["ttft_seconds"] = seconds_report(turns.ttft_ns);
  m["ttft_seconds_without_queueing"] = seconds_report(turns.ttft_without_queueing_ns);
  m["queueing_seconds"] = seconds_report(turns.queueing_ns);
  m["exposed_load_seconds"] = seconds_report(turns.exposed_load_ns);
  m["late_fetch_wait_seconds"] = seconds_report(turns.late_wait_ns);
  m["read_buffer_to_hide_loading_bytes"] = distribution_report(turns.read_buffer_bytes, 1);
  m["tpot_seconds"] = seconds_report(turns.tpot_ns);
  m["normalized_latency_seconds_per_token"] = seconds_report(turns.normalized_latency_ns_per_token);
  m["resumed"] = resumed_report(turns, gpus);
  const std::int64_t prompt_tokens = turns.prompts.prompt_tokens;
  m["output_tokens"] = turns.output_tokens.value;
  const auto rate = [&](std::int64_t count) {
    return ratio(static_cast<double>(count), span.seconds());
  };
  m["prompt_tokens_served_per_second"] = rate(prompt_tokens);
  m["computed_tokens_per_second"] = rate(turns.computed_tokens().value);
  m["prompt_tokens_served_per_prefill_second"] =
      ratio(static_cast<double>(prompt_tokens), (gpu.prefill + gpu.exposed_load).seconds());
  m["output_throughput_tokens_per_second"] = rate(turns.output_tokens.value);
  m["requests_per_second"] = requests_per_second(users);
  m["gpu_seconds"] = Json{{"total", gpu_seconds(alike, &GpuTime::busy)},
                          {"prefill", gpu_seconds(alike, &GpuTime::prefill)},
                          {"decode", gpu_seconds(alike, &GpuTime::decode)},
                          {"exposed_load", gpu_seconds(alike, &GpuTime::exposed_load)},
                          {"exposed_save", gpu_seconds(alike, &GpuTime::exposed_save)}};
  m["gpu_seconds_per_request"] = Json::object();
  for (const auto& [part, sum_of_part] : m["gpu_seconds"].items()) {
    m["gpu_seconds_per_request"][part] =
        ratio(sum_of_part.get<double>(), static_cast<double>(turns.turns));
  }

  Json tiers_json = Json::object();
  const Batcher& batcher = instances.front()->batcher();
  for (std::size_t i = 0; i < batcher.tier_count(); ++i) {
    TierCounters moved;
    Bytes peak;
    Bytes peak_before;
    for (const Instance* instance : instances) {
      const TierCounters& now = instance->tiers_after()[i];
      const TierCounters& before = instance->tiers_before()[i];
      moved.stores += now.stores - before.stores;
      moved.blocks += now.blocks - before.blocks;
      moved.block_waste += now.block_waste - before.block_waste;
      moved.read += now.read - before.read;
      moved.written += now.written - before.written;
      moved.in_flight += now.in_flight;
      moved.insertions += now.insertions - before.insertions;
      moved.evictions += now.evictions - before.evictions;
      moved.refused += now.refused - before.refused;
      peak += now.occupancy_peak;
      peak_before += before.occupancy_peak;
    }
    const double occupancy = sum([i, span](const Instance& one) {
      return ratio(static_cast<double>(one.tiers_after()[i].occupancy_byte_ns -
                                       one.tiers_before()[i].occupancy_byte_ns),
                   static_cast<double>(span.ns));
    });
    tiers_json[to_string(batcher.medium(i))] =
        Json{{"occupancy_bytes", {{"mean", occupancy}, {"max", peak.value}}},
             {"block_waste_bytes", {{"mean", ratio(moved.block_waste.value, moved.stores)}}},
             {"block_waste_share", ratio(moved.block_waste.value, moved.blocks.value)},
             {"read_bytes", moved.read.value},
             {"written_bytes", moved.written.value},
             {"in_flight_bytes", moved.in_flight.value},
             {"insertions", moved.insertions},
             {"evictions", moved.evictions},
             {"filling", is_filling(moved.evictions, peak_before, peak)}};
    if (config.system.blocks) {
      tiers_json[to_string(batcher.medium(i))]["refused_blocks"] = moved.refused;
    }
  }
  m["tiers"] = tiers_json;
  Json links_json = Json::object();
  for (const LinkReport& link : links) {
    links_json[link.name] =
        Json{{"busy_fraction", ratio(link.counters.busy.seconds(), link.seconds)},
             {"towards_gpu_bytes", link.counters.forward.value},
             {"from_gpu_bytes", link.counters.backward.value}};
  }
  m["links"] = links_json;

  // `busy_cost` charges the same prices for the time the GPUs work, as AttentionStore 4.2 does; in
  // an overloaded run the two are the same.
  const auto dollars = [&](const auto& hours) {
    Json all = Json::object();
    for (const AlikeInstances& some : alike) {
      const Json own = cost_report(*some.config, hours(some));
      for (const auto& part : own.items()) {
        all[part.key()] = all.value(part.key(), 0.0) + part.value().template get<double>();
      }
    }
    return all;
  };
  m["cost_dollars"] = dollars([](const AlikeInstances& some) { return some.seconds / 3600; });
  m["busy_cost_dollars"] =
      dollars([](const AlikeInstances& some) { return some.gpu.busy().seconds() / 3600; });
  // Sums follow the length of the measured part; these do not.
  const auto per_million = [&](const char* cost) {
    constexpr double kMillion = 1e6;
    return ratio(m[cost]["total"].get<double>() * kMillion,
                 static_cast<double>(turns.output_tokens.value));
  };
  m["dollars_per_million_output_tokens"] =
      Json{{"rented", per_million("cost_dollars")}, {"busy", per_million("busy_cost_dollars")}};
  std::int64_t preemptions = 0;
  PrefetchCounters prefetches;
  for (const Instance* instance : instances) {
    preemptions += instance->preemptions();
    prefetches = prefetches + instance->prefetches();
  }
  m["preemptions"] = preemptions;
  m["prefetches"] = prefetch_report(prefetches, turns);
  if (config.system.compression) {
    m["compression"] = compression_report(config);
  }
  return m;
}

}  // namespace kvtier
