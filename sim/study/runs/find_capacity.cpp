#include "sim/study/runs/find_capacity.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/build.hpp"
#include "sim/core/text.hpp"
#include "sim/study/runs/run_length.hpp"
#include "sim/study/runs/summary.hpp"

namespace kvtier {
namespace {

constexpr const char* kMetrics = "/metrics/";
constexpr const char* kArrivalRate = "/workload/arrival_rate";
constexpr const char* kRequestRate = "/workload/request_rate";
constexpr const char* kSpeedUp = "/workload/speed_up";
/// Shares of the capacity that are run to check that lower rates meet the SLO, too.
constexpr double kLowerRates[] = {0.5, 0.75};

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(' ');
  const std::size_t end = text.find_last_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

std::string pointer_of(const std::string& metric) {
  if (metric.front() == '/') {
    return metric;
  }
  std::string pointer = kMetrics + metric;
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  return pointer;
}

/// The short form with dots for metrics; other pointers stay.
std::string name_of(const std::string& pointer) {
  if (!pointer.starts_with(kMetrics)) {
    return pointer;
  }
  std::string name = pointer.substr(std::string_view(kMetrics).size());
  std::replace(name.begin(), name.end(), '/', '.');
  return name;
}

const char* relation(const SloCondition& condition) { return condition.at_most ? "<=" : ">="; }

bool holds(const SloCondition& condition, double value) {
  return condition.at_most ? value <= condition.bound : value >= condition.bound;
}

/// Parses one condition; nullopt if it is malformed.
std::optional<SloCondition> parse_condition(const std::string& text) {
  const std::size_t at = std::min(text.find("<="), text.find(">="));
  if (at == std::string::npos) {
    return std::nullopt;
  }
  const std::string metric = trimmed(text.substr(0, at));
  const std::string number = trimmed(text.substr(at + 2));
  SloCondition condition{.pointer = {}, .at_most = text[at] == '<', .bound = 0};
  const char* const end = number.data() + number.size();
  const auto [last, error] = std::from_chars(number.data(), end, condition.bound);
  if (metric.empty() || metric.find_first_of(" ~") != std::string::npos || error != std::errc() ||
      last != end || !std::isfinite(condition.bound)) {
    return std::nullopt;
  }
  condition.pointer = pointer_of(metric);
  return condition;
}

/// The key that a search varies.
const char* varied_key(const WorkloadConfig& workload) {
  if (workload.request_rate) {
    return kRequestRate;
  }
  return workload.arrivals == ArrivalModel::trace ? kSpeedUp : kArrivalRate;
}

double rate_of(const WorkloadConfig& workload) {
  if (workload.request_rate) {
    return workload.request_rate->value;
  }
  return workload.arrivals == ArrivalModel::trace ? workload.speed_up
                                                  : workload.arrival_rate->value;
}

void set_rate(WorkloadConfig& workload, double rate) {
  if (workload.request_rate) {
    workload.request_rate = PerSecond(rate);
  } else if (workload.arrivals == ArrivalModel::trace) {
    workload.speed_up = rate;
  } else {
    workload.arrival_rate = PerSecond(rate);
  }
}

/// Adds the pointers of all numbers in `json`. A null is an empty distribution, which may have
/// values at another rate, so the pointers of its statistics are added.
void collect_numbers(const Json& json, const std::string& pointer,
                     std::vector<std::string>& numbers) {
  if (json.is_number()) {
    numbers.push_back(pointer);
  } else if (json.is_null()) {
    for (const char* statistic : {"mean", "p50", "p90", "p95", "p99"}) {
      numbers.push_back(pointer + "/" + statistic);
    }
  } else if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      collect_numbers(value, pointer + "/" + escape_pointer(key), numbers);
    }
  }
}

double mean_of(const std::vector<Json>& results, const std::string& pointer) {
  const auto summary = summarize(results, pointer);
  KVTIER_ASSERT(summary.has_value(), "every result has the number");
  return summary->mean;
}

/// The mean over the results that have the number; nullopt if none has.
std::optional<double> mean_where_present(const std::vector<Json>& results,
                                         const std::string& pointer) {
  double sum = 0;
  std::int64_t count = 0;
  for (const Json& result : results) {
    if (const auto value = number_at(result, pointer)) {
      sum += *value;
      ++count;
    }
  }
  return count == 0 ? std::nullopt : std::optional(sum / static_cast<double>(count));
}

class Search {
 public:
  Search(const ResolvedConfig& config, const std::vector<SloCondition>& slo,
         const CapacityOptions& options, const PolicyRegistry& registry, RunOptions run,
         const std::function<void(std::int64_t, double)>& progress)
      : config_(config.config),
        slo_(slo),
        options_(options),
        registry_(registry),
        run_(std::move(run)),
        progress_(progress) {
    run_.base_dir = config.base_dir;
  }

  CapacitySearch operator()() {
    if (!slo_.empty()) {
      look_for_unknown_metrics();
    }
    const double begin = rate_of(config_.workload);
    const auto [meets, misses] = neighbours(begin);
    std::optional<double> capacity = meets;
    std::optional<double> above = misses;
    if (capacity && above) {
      std::tie(capacity, above) = bisected(*capacity, *above);
    }
    if (capacity && !slo_.empty()) {
      for (const double part : kLowerRates) {
        (void)meets_at(*capacity * part);
      }
    }
    CapacitySearch search{.slo = slo_,
                          .options = options_,
                          .config = write_value(config_),
                          .key = varied_key(config_.workload),
                          .description = description_,
                          .trials = {},
                          .capacity = {},
                          .above = {}};
    for (auto& [rate, trial] : trials_) {
      if (capacity == rate) {
        search.capacity = search.trials.size();
      }
      if (capacity && above == rate) {
        search.above = search.trials.size();
      }
      search.trials.push_back(std::move(trial));
    }
    return search;
  }

 private:
  using Rates = std::pair<std::optional<double>, std::optional<double>>;

  Json run(RunConfig& config) {
    if (progress_) {
      progress_(runs_, rate_of(config.workload));
    }
    ++runs_;
    return simulate_to_precision(config, registry_, run_);
  }

  /// Throws ConfigError for unknown metrics after a run that is short if the workload allows it, so
  /// that a misspelt metric fails early.
  void look_for_unknown_metrics() {
    constexpr std::int64_t kSessions = 32;
    RunConfig config = config_;
    if (config.workload.sessions || config.workload.sessions.automatic) {
      config.workload.sessions =
          SessionCount(std::min(config.workload.sessions.value_or(kSessions), kSessions));
      config.workload.warmup_turns = 0;
    }
    check_metrics(slo_, run(config));
  }

  bool meets_at(double rate) {
    const auto known = trials_.find(rate);
    if (known != trials_.end()) {
      return known->second.meets;
    }
    RunConfig config = config_;
    set_rate(config.workload, rate);
    std::vector<Json> results;
    for (std::int64_t r = 0; r < options_.replications; ++r) {
      config.seed = config_.seed + r;
      config.workload.sessions = config_.workload.sessions;
      results.push_back(run(config));
    }
    if (description_.empty()) {
      description_ = describe_run(results.front());
    }
    const CapacityTrial trial = judged(rate, results);
    // A run that is too short has little load. It may meet an SLO that a longer run misses, and its
    // throughput is lower.
    const bool may_mislead =
        trial.meets || std::any_of(slo_.begin(), slo_.end(), [](const SloCondition& condition) {
          return !condition.at_most;
        });
    if (may_mislead && trial.overloaded == 0) {
      for (const Json& result : results) {
        check_long_enough(result, result["config"]["workload"],
                          fmt::format("whether {} meets the SLO",
                                      describe_rate(varied_key(config_.workload), rate)));
      }
    }
    trials_.emplace(rate, trial);
    return trial.meets;
  }

  [[nodiscard]] CapacityTrial judged(double rate, const std::vector<Json>& results) const {
    CapacityTrial trial;
    trial.rate = rate;
    // The highest stable rate is one at which the load never exceeds capacity. An SLO has
    // conditions on what waiting does in a part of the time.
    trial.overloaded = std::count_if(results.begin(), results.end(),
                                     slo_.empty() ? ever_exceeds_capacity : exceeds_capacity);
    trial.meets = trial.overloaded == 0;
    if (slo_.empty()) {  // a search for the highest stable rate needs runs that are long enough
      trial.meets = trial.meets && std::none_of(results.begin(), results.end(), too_short);
    }
    for (const SloCondition& condition : slo_) {
      const auto value = mean_where_present(results, condition.pointer);
      trial.values.push_back(value);
      trial.meets = trial.meets && (!value || holds(condition, *value));
    }
    trial.requests_per_second = mean_of(results, "/metrics/requests_per_second");
    trial.slots_in_use = mean_of(results, "/load/slots_in_use_fraction");
    trial.gpus_busy = mean_of(results, "/load/gpu_busy_fraction");
    trial.bottleneck = describe_bottleneck(results);
    trial.dollars_per_million_output_tokens =
        mean_of(results, "/metrics/dollars_per_million_output_tokens/rented");
    trial.model_error = model_error_of(results.front());
    return trial;
  }

  /// A rate that meets the SLO and the next one, which misses it. One of them is missing if it is
  /// not in the range.
  Rates neighbours(double begin) {
    const double step = options_.step;
    if (options_.starts_overloaded) {
      trials_.emplace(begin, CapacityTrial{.rate = begin, .overloaded = 1});
      return neighbours_below(begin);
    }
    if (meets_at(begin)) {
      for (double rate = begin; rate < begin * kCapacityRange; rate *= step) {
        if (!meets_at(rate * step)) {
          return {rate, rate * step};
        }
      }
      return {trials_.rbegin()->first, std::nullopt};
    }
    return neighbours_below(begin);
  }

  /// The same below an overloaded rate. The longer a run is overloaded, the more requests wait in
  /// it, so rates far above the one that was served are tried only if all below them meet the SLO.
  Rates neighbours_below(double overloaded) {
    constexpr double kMargin = 4;
    std::vector<double> rates{overloaded};
    while (rates.back() > overloaded / kCapacityRange) {
      rates.push_back(rates.back() / options_.step);
    }
    std::size_t at = 1;
    while (at + 1 < rates.size() && rates[at] > kMargin * options_.served * overloaded) {
      ++at;
    }
    if (meets_at(rates[at])) {
      while (meets_at(rates[at - 1])) {
        --at;
      }
      return {rates[at], rates[at - 1]};
    }
    while (++at < rates.size()) {
      if (meets_at(rates[at])) {
        return {rates[at], rates[at - 1]};
      }
    }
    return {std::nullopt, trials_.begin()->first};
  }

  Rates bisected(double meets, double misses) {
    while (misses - meets > options_.tolerance * meets) {
      const double middle = meets + (misses - meets) / 2;
      (meets_at(middle) ? meets : misses) = middle;
    }
    return {meets, misses};
  }

  RunConfig config_;
  const std::vector<SloCondition>& slo_;
  const CapacityOptions& options_;
  const PolicyRegistry& registry_;
  RunOptions run_;
  const std::function<void(std::int64_t, double)>& progress_;
  std::map<double, CapacityTrial> trials_;
  std::string description_;
  std::int64_t runs_ = 0;
};

/// The rate, between two trials, up to which the SLO is met with durations `longer` times as long.
/// The first trial meets it; nullopt if the second one does, too.
std::optional<double> crossing(const CapacitySearch& search, const CapacityTrial& meets,
                               const CapacityTrial& next, double longer) {
  if (next.overloaded > 0) {
    return meets.rate;
  }
  double share = 1;
  for (std::size_t c = 0; c < search.slo.size(); ++c) {
    const SloCondition& condition = search.slo[c];
    if (!meets.values[c] || !next.values[c]) {
      continue;
    }
    const double bound = condition.bound / scale_of(condition, longer);
    const double before = *meets.values[c];
    const double after = *next.values[c];
    const bool misses = condition.at_most ? after > bound : after < bound;
    if (misses) {
      share = std::min(share, std::clamp((bound - before) / (after - before), 0.0, 1.0));
    }
  }
  return share < 1 ? std::optional(meets.rate + share * (next.rate - meets.rate)) : std::nullopt;
}

bool meets_scaled(const CapacitySearch& search, const CapacityTrial& trial, double longer) {
  bool meets = trial.overloaded == 0;
  for (std::size_t c = 0; c < search.slo.size() && meets; ++c) {
    const SloCondition& condition = search.slo[c];
    meets = !trial.values[c] || holds(condition, *trial.values[c] * scale_of(condition, longer));
  }
  return meets;
}

/// The capacity with durations `longer` times as long; nullopt beyond the tried rates.
std::optional<double> scaled_capacity(const CapacitySearch& search, double longer) {
  std::optional<std::size_t> last;
  for (std::size_t i = 0; i < search.trials.size(); ++i) {
    if (meets_scaled(search, search.trials[i], longer)) {
      last = i;
    } else if (last) {
      break;
    }
  }
  if (!last || *last + 1 == search.trials.size()) {
    return std::nullopt;
  }
  const auto rate = crossing(search, search.trials[*last], search.trials[*last + 1], longer);
  return rate ? std::optional(*rate / longer) : std::nullopt;
}

/// Rates below the capacity that miss the SLO.
std::vector<double> failing_below(const CapacitySearch& search) {
  std::vector<double> rates;
  for (std::size_t i = 0; search.capacity && i < *search.capacity; ++i) {
    if (!search.trials[i].meets) {
      rates.push_back(search.trials[i].rate);
    }
  }
  return rates;
}

/// Suffix of JSON keys with rates.
std::string unit_suffix(const CapacitySearch& search) {
  return search.key == kSpeedUp ? "" : "_per_second";
}

std::string seeds(std::int64_t count) {
  return count == 1 ? "one seed" : fmt::format("mean of {} seeds", count);
}

std::string outcome(const CapacityTrial& trial) {
  if (trial.overloaded > 0) {
    return "load exceeds capacity";
  }
  return trial.meets ? "met" : "missed";
}

/// Rent per million output tokens at another capacity, which the rate of the trial has become.
std::optional<double> dollars_at(const CapacityTrial& trial, const std::optional<double>& rate) {
  return rate ? std::optional(trial.dollars_per_million_output_tokens * trial.rate / *rate)
              : std::nullopt;
}

/// The range of the capacity and of the cost by the errors of times; "-": beyond the tried rates.
std::string describe_range(const CapacitySearch& search) {
  const CapacityTrial& trial = search.trials[*search.capacity];
  if (!trial.model_error) {
    return "";
  }
  const CapacityRange range = capacity_range(search);
  const auto rate = [&](const std::optional<double>& of) {
    return of ? describe_rate(search.key, *of) : std::string("-");
  };
  const auto cost = [&](const std::optional<double>& at) {
    const auto dollars = dollars_at(trial, at);
    return dollars ? fmt::format("{:.2f}", *dollars) : std::string("-");
  };
  return fmt::format("80 % range by the errors of times ({}): {} to {}, {} to {} dollars.\n",
                     describe_classes(*trial.model_error), rate(range.low), rate(range.high),
                     cost(range.high), cost(range.low));
}

std::string conclusion(const CapacitySearch& search) {
  const double lowest = search.trials.front().rate;
  const double highest = search.trials.back().rate;
  if (!search.capacity) {
    return fmt::format("No rate that was tried meets the SLO, down to {}.\n",
                       describe_rate(search.key, lowest));
  }
  std::string text;
  if (!search.above) {
    text += fmt::format("Every rate from the config's to {} meets the SLO: no bound was found.\n",
                        describe_rate(search.key, highest));
  }
  text += describe_range(search);
  const std::vector<double> below = failing_below(search);
  if (!below.empty()) {
    std::vector<std::string> rates;
    std::transform(below.begin(), below.end(), std::back_inserter(rates),
                   [&](double rate) { return describe_rate(search.key, rate); });
    text += fmt::format(
        "Not every lower rate meets the SLO: {} missed it. Below this capacity the SLO may be "
        "missed.\n",
        detail::join(rates, ", "));
  }
  return text;
}

}  // namespace

double scale_of(const SloCondition& condition, double longer) {
  const auto has = [&](const char* word) {
    return condition.pointer.find(word) != std::string::npos;
  };
  if (has("per_second")) {
    return 1 / longer;
  }
  return has("seconds") || has("dollars") ? longer : 1;
}

std::string describe_condition(const SloCondition& condition) {
  return fmt::format("{} {} {}", name_of(condition.pointer), relation(condition), condition.bound);
}

void check_metrics(const std::vector<SloCondition>& slo, const Json& result,
                   const std::string& where) {
  std::vector<std::string> known;
  for (const char* part : {"metrics", "load"}) {
    collect_numbers(result[part], std::string("/") + part, known);
  }
  std::vector<std::string> names;
  std::transform(known.begin(), known.end(), std::back_inserter(names), name_of);
  std::vector<std::string> problems;
  for (const SloCondition& condition : slo) {
    if (std::find(known.begin(), known.end(), condition.pointer) != known.end()) {
      continue;
    }
    const std::string name = name_of(condition.pointer);
    std::vector<std::string> below;
    std::copy_if(names.begin(), names.end(), std::back_inserter(below),
                 [&](const std::string& other) { return other.starts_with(name + "."); });
    problems.push_back(below.empty()
                           ? fmt::format("{}the result has no number {}{}", where, quote_text(name),
                                         suggestion(name, names))
                           : fmt::format("{}{} is several numbers: expected one of {}", where,
                                         quote_text(name), detail::join(below, ", ")));
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
}

std::vector<SloCondition> parse_slo(const std::string& text, const std::string& where) {
  std::vector<SloCondition> slo;
  std::vector<std::string> problems;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string one = text.substr(begin, end - begin);
    if (const auto condition = parse_condition(one)) {
      slo.push_back(*condition);
    } else {
      problems.push_back(fmt::format(
          "{}expected METRIC<=NUMBER or METRIC>=NUMBER, such as ttft_seconds.p90<=2, got {}", where,
          quote_text(one)));
    }
    begin = end + 1;
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  return slo;
}

CapacitySearch find_capacity(const ResolvedConfig& config, const std::vector<SloCondition>& slo,
                             const CapacityOptions& options, const PolicyRegistry& registry,
                             const RunOptions& run,
                             const std::function<void(std::int64_t, double)>& progress) {
  KVTIER_ASSERT(options.replications >= 1 && options.tolerance > 0, "the search can be run");
  return Search(config, slo, options, registry, run, progress)();
}

CapacityRange capacity_range(const CapacitySearch& search) {
  if (!search.capacity || !search.trials[*search.capacity].model_error) {
    return {};
  }
  const ErrorRange error = search.trials[*search.capacity].model_error->gpu_time;
  return {.low = scaled_capacity(search, error.high), .high = scaled_capacity(search, error.low)};
}

std::string describe_rate(const std::string& key, double rate) {
  return fmt::format("{:.4g}{}", rate,
                     key == kSpeedUp       ? " times the trace's speed"
                     : key == kRequestRate ? " requests/s"
                                           : " sessions/s");
}

std::optional<StableRate> highest_stable_rate(const ResolvedConfig& config,
                                              const PolicyRegistry& registry, const RunOptions& run,
                                              double served) {
  const CapacityOptions coarse{.replications = 1,
                               .tolerance = 0.05,
                               .step = 1.5,
                               .starts_overloaded = true,
                               .served = served};
  ResolvedConfig stationary = config;
  WorkloadConfig& workload = stationary.config.workload;
  workload.measure = Measure::automatic;
  workload.warmup_turns = 0;
  if (workload.generator || !workload.mix.empty() || workload.replay == Replay::bootstrap) {
    workload.sessions = SessionCount();
    workload.sessions.automatic = true;
    workload.precision = kAnyPrecision;
  }
  RunOptions quick;
  quick.progress = run.progress;
  try {
    const CapacitySearch search = find_capacity(stationary, {}, coarse, registry, quick, {});
    if (!search.capacity || !search.above || search.trials[*search.above].overloaded == 0) {
      return std::nullopt;
    }
    return StableRate{search.key, search.trials[*search.capacity].rate};
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

void add_stable_rate(Json& result, const ResolvedConfig& config, const PolicyRegistry& registry,
                     const RunOptions& run) {
  if (!exceeds_capacity(result)) {
    return;
  }
  const Json& rate = result.at("load").at("requests_per_second");
  const double served = rate["nominal"].is_number() && rate["nominal"].get<double>() > 0
                            ? rate["measured"].get<double>() / rate["nominal"].get<double>()
                            : 1;
  const std::optional<StableRate> stable = highest_stable_rate(config, registry, run, served);
  result["load"]["highest_stable_rate"] =
      stable ? Json{{"varied", stable->key}, {"rate", stable->rate}} : Json();
}

Json simulate_with_stable_rate(ResolvedConfig& config, const PolicyRegistry& registry,
                               const RunOptions& run) {
  Json result = simulate_to_precision(config.config, registry, run);
  add_stable_rate(result, config, registry, run);
  return result;
}

Json to_json(const CapacitySearch& search) {
  Json json = new_result("kvtier.capacity/1");
  json["config"] = search.config;
  json["varied"] = search.key;
  json["slo"] = Json::array();
  for (const SloCondition& condition : search.slo) {
    json["slo"].push_back(Json{{"metric", condition.pointer},
                               {"relation", relation(condition)},
                               {"bound", condition.bound}});
  }
  json["replications"] = search.options.replications;
  json["tolerance"] = search.options.tolerance;
  const auto rate_of = [&](const std::optional<std::size_t>& trial) {
    return trial ? Json(search.trials[*trial].rate) : Json();
  };
  const std::string suffix = unit_suffix(search);
  json["capacity" + suffix] = rate_of(search.capacity);
  json["missed_above" + suffix] = rate_of(search.above);
  json["missed_below" + suffix] = failing_below(search);
  if (search.capacity && search.trials[*search.capacity].model_error) {
    const CapacityTrial& trial = search.trials[*search.capacity];
    const CapacityRange range = capacity_range(search);
    const auto number = [](const std::optional<double>& of) { return of ? Json(*of) : Json(); };
    json["model_error"] = to_json(*trial.model_error);
    json["model_error"]["capacity" + suffix] = {{"low", number(range.low)},
                                                {"high", number(range.high)}};
    json["model_error"]["dollars_per_million_output_tokens"] = {
        {"low", number(dollars_at(trial, range.high))},
        {"high", number(dollars_at(trial, range.low))}};
  }
  json["trials"] = Json::array();
  for (const CapacityTrial& trial : search.trials) {
    Json values = Json::object();
    for (std::size_t i = 0; i < search.slo.size(); ++i) {
      values[search.slo[i].pointer] = trial.values[i] ? Json(*trial.values[i]) : Json();
    }
    json["trials"].push_back(
        Json{{"rate" + suffix, trial.rate},
             {"meets", trial.meets},
             {"overloaded_replications", trial.overloaded},
             {"values", values},
             {"requests_per_second", trial.requests_per_second},
             {"slots_in_use_fraction", trial.slots_in_use},
             {"gpu_busy_fraction", trial.gpus_busy},
             {"bottleneck", trial.bottleneck},
             {"dollars_per_million_output_tokens", trial.dollars_per_million_output_tokens}});
  }
  return json;
}

std::string to_table(const CapacitySearch& search) {
  std::vector<std::pair<const char*, const CapacityTrial*>> columns;
  if (search.capacity) {
    columns.emplace_back("capacity", &search.trials[*search.capacity]);
    if (search.above) {
      columns.emplace_back("just above", &search.trials[*search.above]);
    }
  } else {
    columns.emplace_back("lowest tried", &search.trials.front());
  }
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;
  const auto add_row = [&](const std::string& label, const auto& cell) {
    std::vector<std::string> cells;
    for (const auto& [name, trial] : columns) {
      cells.push_back(cell(*trial));
    }
    rows.emplace_back(label, std::move(cells));
  };
  add_row(search.key == kSpeedUp       ? "speed-up of the trace"
          : search.key == kRequestRate ? "request rate, requests/s"
                                       : "arrival rate, sessions/s",
          [](const CapacityTrial& trial) { return fmt::format("{:.4g}", trial.rate); });
  for (std::size_t i = 0; i < search.slo.size(); ++i) {
    add_row(describe_condition(search.slo[i]), [i](const CapacityTrial& trial) {
      return trial.values[i] ? fmt::format("{:.4g}", *trial.values[i]) : "-";
    });
  }
  add_row("requests/s, measured", [](const CapacityTrial& trial) {
    return fmt::format("{:.4g}", trial.requests_per_second);
  });
  constexpr double kPercent = 100;
  add_row("slots in use %", [](const CapacityTrial& trial) {
    return fmt::format("{:.1f}", trial.slots_in_use * kPercent);
  });
  add_row("GPUs busy %", [](const CapacityTrial& trial) {
    return fmt::format("{:.1f}", trial.gpus_busy * kPercent);
  });
  add_row("bottleneck", [](const CapacityTrial& trial) { return trial.bottleneck; });
  add_row("dollars per million output tokens", [](const CapacityTrial& trial) {
    return fmt::format("{:.2f}", trial.dollars_per_million_output_tokens);
  });
  add_row("SLO", outcome);

  std::size_t label_width = 0;
  std::vector<std::size_t> widths(columns.size());
  for (std::size_t i = 0; i < columns.size(); ++i) {
    widths[i] = std::string_view(columns[i].first).size();
  }
  for (const auto& [label, cells] : rows) {
    label_width = std::max(label_width, label.size());
    for (std::size_t i = 0; i < cells.size(); ++i) {
      widths[i] = std::max(widths[i], cells[i].size());
    }
  }
  std::string text =
      search.description + fmt::format("highest rate that meets the SLO, to {:.4g} %; {}\n",
                                       search.options.tolerance * 100,
                                       seeds(search.options.replications));
  text += fmt::format("\n{:<{}}", "", label_width);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    text += fmt::format("  {:>{}}", columns[i].first, widths[i]);
  }
  text += "\n";
  for (const auto& [label, cells] : rows) {
    text += fmt::format("{:<{}}", label, label_width);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      text += fmt::format("  {:>{}}", cells[i], widths[i]);
    }
    text += "\n";
  }
  const std::string said = conclusion(search);
  return said.empty() ? text : text + "\n" + said;
}

}  // namespace kvtier
