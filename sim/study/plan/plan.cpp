#include "sim/study/plan/plan.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/build.hpp"
#include "sim/core/fingerprint.hpp"
#include "sim/core/statistics.hpp"
#include "sim/core/text.hpp"
#include "sim/replay/miss_ratio_curve.hpp"
#include "sim/serving/result.hpp"
#include "sim/study/runs/run_folder.hpp"
#include "sim/study/runs/run_length.hpp"
#include "sim/study/runs/run_threads.hpp"
#include "sim/study/runs/summary.hpp"
#include "sim/study/sweep/sweep_run.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "kvtier.plan/1";
constexpr const char* kFolderFormat = "kvtier.plan_folder/1";
/// The condition on the life of the drives, which is no number of a result.
constexpr const char* kDriveLife = "/metrics/drive_life_years";
constexpr double kHoursPerDay = 24;
constexpr double kSecondsPerHour = 3600;
constexpr double kPercent = 100;
constexpr double kMillis = 1000;
constexpr const char* kTtft = "/metrics/ttft_seconds/mean";
constexpr const char* kHitRate = "/metrics/hit_rate/prompt_tokens/total";
/// The hit rate that the untimed curve has.
constexpr const char* kCurveHitRate = "/metrics/hit_rate/all_turns/total";
/// Largest excess of a simulation's hit rate over that of the untimed curve. Waiting requests
/// change the order of accesses.
constexpr double kCurveError = 0.05;
/// Gains of the hit rate below this share are ignored.
constexpr double kNothing = 0.001;

using Place = std::vector<std::size_t>;  // one index for each axis

/// A key for the result of a run: the config without hardware that the system does not use.
std::string identity_of(const RunConfig& config) {
  Json json = write_value(config);
  for (const char* tier : {"dram", "cxl", "ssd"}) {
    if (!json["system"]["tiers"][tier].is_object()) {
      json["hardware"].erase(tier);
    }
  }
  return json_text(json);
}

/// Capacity of a system with one tier of whole sessions and LRU; nullopt for other systems.
std::optional<Bytes> lru_capacity(const RunConfig& config) {
  const SystemConfig& system = config.system;
  if (system.tiers.count() != 1 || system.sharing == Sharing::prompts || is_cluster(config)) {
    return std::nullopt;
  }
  const auto of = [](const auto& tier, const auto& installed) -> std::optional<Bytes> {
    const bool is_lru = tier && installed && tier->eviction.name == "lru" && !tier->ttl &&
                        tier->admission.name == kAlwaysAdmitted;
    return is_lru ? std::optional(installed->capacity - tier->free_buffer) : std::nullopt;
  };
  if (const auto dram = of(system.tiers.dram, config.hardware.dram)) {
    return dram;
  }
  if (const auto cxl = of(system.tiers.cxl, config.hardware.cxl)) {
    return cxl;
  }
  return of(system.tiers.ssd, config.hardware.ssd);
}

/// The price in 0.001 $/h, as tables show it. Prices are compared so, because that of worn drives
/// hardly depends on their number.
std::int64_t shown_price(const PlanTrial& trial) {
  constexpr double kShown = 1e-3;
  return std::llround(trial.dollars_per_hour / kShown);
}

double ssd_bytes_per_day(const Json& result) {
  return *number_at(result, "/metrics/tiers/ssd/written_bytes") /
         *number_at(result, "/load/measured_seconds") * kSecondsPerHour * kHoursPerDay;
}

/// The capacity of the drives of all instances.
double drive_bytes(const RunConfig& config) {
  double bytes = 0;
  for (const auto& [group, instances] : group_sizes(config)) {
    bytes += static_cast<double>(group_config(config, group).hardware.ssd->capacity.value) *
             static_cast<double>(instances);
  }
  return bytes;
}

/// Years until the rated writes are done; nullopt without a rating or writes.
std::optional<double> drive_life(const std::optional<Endurance>& rated, double writes_per_day) {
  return rated && writes_per_day > 0
             ? std::optional(rated->years * rated->drive_writes_per_day / writes_per_day)
             : std::nullopt;
}

/// Dollars per hour beyond the rent, for drives whose life is shorter than their years of service:
/// they cost their price over their life. nullopt if a price is by the hour.
std::optional<double> replacement_dollars(const RunConfig& config, double life_years) {
  double sum = 0;
  for (const auto& [group, instances] : group_sizes(config)) {
    const RunConfig own = group_config(config, group);
    const double service = own.hardware.ssd->price.years;
    if (service == 0) {
      return std::nullopt;
    }
    const double written_off =
        cost_report(own, static_cast<double>(instances))["ssd"].get<double>();
    sum += written_off * std::max(service / life_years - 1, 0.0);
  }
  return sum;
}

/// The interval of the number at `pointer`. It is cut to the possible range: at 0 if no replication
/// is below 0 (times, rates, bytes, counts), and at 1 for a hit rate.
PlanInterval plan_interval(const std::vector<double>& values, const std::string& pointer) {
  const MeanInterval interval = mean_interval(values);
  PlanInterval possible{interval.mean, interval.low(), interval.high()};
  if (*std::min_element(values.begin(), values.end()) >= 0) {
    possible.low = std::max(possible.low, 0.0);
  }
  if (pointer.starts_with("/metrics/hit_rate/") && !pointer.ends_with("/partial_turns") &&
      !pointer.ends_with("/late_hits")) {
    possible.high = std::min(possible.high, 1.0);
  }
  return possible;
}

/// The share of its bound by which the interval misses a condition; 0 or less if it meets it.
double violation(const SloCondition& condition, const std::optional<PlanInterval>& value) {
  if (!value) {
    return 0;
  }
  const double beyond =
      condition.at_most ? value->high - condition.bound : condition.bound - value->low;
  return beyond / std::max(std::abs(condition.bound), std::numeric_limits<double>::min());
}

std::string number_text(double value) {
  constexpr double kLong = 1000;
  return std::abs(value) < kLong ? fmt::format("{:.3g}", value) : fmt::format("{:.0f}", value);
}

std::string interval_text(const PlanInterval& interval) {
  return fmt::format("{} ({} to {})", number_text(interval.mean), number_text(interval.low),
                     number_text(interval.high));
}

/// Thrown if a step of the search needs missing runs.
struct MissingRuns {};

/// The results of runs by their keys. `find` collects missing runs, and `make_wanted` does them
/// together on several threads.
class Runs {
 public:
  using Make = std::function<Json(const RunOptions&)>;

  Runs(const PlanOptions& options, RunFolder* folder) : options_(options), folder_(folder) {
    if (folder_ == nullptr) {
      return;
    }
    std::int64_t strangers = 0;
    for (const std::string& text : folder_->take_kept()) {
      Json line = *unsealed_line(text);
      if (line.contains("run") && line["run"].is_string() && line.contains("result") &&
          line["result"].is_object()) {
        known_[line["run"].get<std::string>()] = std::move(line["result"]);
      } else {
        ++strangers;
      }
    }
    folder_->tell_of_strangers(strangers);
  }

  /// nullptr if the run is missing; `make_wanted` then does it.
  const Json* find(const std::string& key, const Make& make) {
    const auto known = known_.find(key);
    if (known != known_.end()) {
      return &known->second;
    }
    if (asked_.insert(key).second) {
      wanted_.emplace_back(key, make);
    }
    return nullptr;
  }

  [[nodiscard]] bool any_wanted() const { return !wanted_.empty(); }

  void make_wanted() {
    const auto done = static_cast<std::int64_t>(known_.size());
    std::vector<Json> results(wanted_.size());
    std::mutex mutex;
    const auto work = [&](std::size_t i, const std::stop_token& stop) {
      RunOptions how;
      how.progress = [&stop](std::int64_t) {
        if (stop.stop_requested()) {
          throw Stopped{};
        }
      };
      results[i] = wanted_[i].second(how);
      results[i].erase("config");  // the plan has it
      const std::lock_guard lock(mutex);
      if (folder_ != nullptr) {
        folder_->append(line_of(wanted_[i].first, results[i]));
      }
    };
    run_on_threads(wanted_.size(), options_.jobs, work, [&](std::int64_t more) {
      if (options_.progress) {
        options_.progress(done + more);
      }
    });
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      known_[wanted_[i].first] = std::move(results[i]);
    }
    wanted_.clear();
    asked_.clear();
  }

  void finish(const std::string& summary) const {
    std::vector<std::string> lines;
    for (const auto& [key, result] : known_) {
      lines.push_back(line_of(key, result));
    }
    folder_->finish({lines.begin(), lines.end()}, summary);
  }

 private:
  static std::string line_of(const std::string& key, const Json& result) {
    return sealed_line(Json{{"run", key}, {"result", result}});
  }

  const PlanOptions& options_;
  RunFolder* folder_;
  std::map<std::string, Json> known_;
  std::set<std::string> asked_;
  std::vector<std::pair<std::string, Make>> wanted_;
};

/// Searches the space as if every run were there. Missing runs are done, and the search starts
/// again, so the result does not depend on the number of threads.
class Search {
 public:
  Search(const Plan& plan, const std::vector<SweepPoint>& points, const PolicyRegistry& registry,
         Runs& runs)
      : plan_(plan), axes_(plan.space.axes), registry_(registry), points_(points), runs_(runs) {
    for (const SweepPoint& point : points_) {
      identities_.push_back(point.resolved ? identity_of(point.resolved->config) : "");
    }
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      if (std::find(plan.capacities.begin(), plan.capacities.end(), axes_[i].name) !=
          plan.capacities.end()) {
        capacities_.push_back(i);
      }
    }
  }

  PlanResult operator()() {
    check_costs();
    while (!found_all()) {
      runs_.make_wanted();
    }
    return std::move(result_);
  }

 private:
  /// Searches once. Returns whether no run was missing.
  bool found_all() {
    result_ = {};
    seems_.clear();
    trials_.clear();
    places_.clear();
    result_.configurations = static_cast<std::int64_t>(points_.size());
    for (const SweepPoint& point : points_) {
      for (const std::string& line : point.refused) {
        if (std::find(result_.refused.begin(), result_.refused.end(), line) ==
            result_.refused.end()) {
          result_.refused.push_back(line);
        }
      }
    }
    Place place(axes_.size(), 0);
    do {
      if (capacities_.empty()) {
        attempt([&] { (void)trial(place); });
      } else if (place[capacities_.back()] == 0) {
        attempt([&] { search_line(place); });
      }
    } while (advance(place));
    if (runs_.any_wanted()) {
      return false;
    }
    std::optional<std::string> best;
    for (const auto& [identity, found] : trials_) {
      if (found.meets && (!best || order(found, trials_.at(*best)))) {
        best = identity;
      }
    }
    std::vector<std::pair<std::size_t, std::vector<std::string>>> curves;
    if (best) {
      curves = run_curves(places_.at(*best));
    }
    if (runs_.any_wanted()) {
      return false;
    }
    finish(best, curves);
    return true;
  }

  template <class Ask>
  static void attempt(const Ask& ask) {
    try {
      ask();
    } catch (const MissingRuns&) {
    }
  }

  static bool order(const PlanTrial& a, const PlanTrial& b) {
    return std::pair(shown_price(a), a.ttft_seconds.mean) <
           std::pair(shown_price(b), b.ttft_seconds.mean);
  }

  bool advance(Place& place) const {
    for (std::size_t i = axes_.size(); i-- > 0;) {
      if (++place[i] < axes_[i].values.size()) {
        return true;
      }
      place[i] = 0;
    }
    return false;
  }

  [[nodiscard]] std::size_t index_of(const Place& place) const {
    std::size_t index = 0;
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      index = index * axes_[i].values.size() + place[i];
    }
    return index;
  }
  [[nodiscard]] const std::optional<ResolvedConfig>& config_at(const Place& place) const {
    return points_[index_of(place)].resolved;
  }
  static Place moved(Place place, std::size_t axis, std::size_t value) {
    place[axis] = value;
    return place;
  }

  /// Throws ConfigError if a larger capacity costs less, because the bisection relies on this
  /// order.
  void check_costs() const {
    Problems problems;
    problems.set_origin("", plan_.space.file.string());
    std::set<std::string> told;
    Place place(axes_.size(), 0);
    do {
      for (const std::size_t axis : capacities_) {
        if (place[axis] == 0) {
          continue;
        }
        const auto& less = config_at(moved(place, axis, place[axis] - 1));
        const auto& more = config_at(place);
        const std::string at = fmt::format("/axes/{}/values/{}", axis, place[axis]);
        if (less && more && rent_dollars(more->config, 1) < rent_dollars(less->config, 1) &&
            told.insert(at).second) {
          problems.add(at, fmt::format("costs less than \"{}\": the values of a capacity go from "
                                       "the least to the most",
                                       axes_[axis].values[place[axis] - 1].label));
        }
      }
    } while (advance(place));
    problems.throw_if_any();
  }

  /// The result of a run; nullptr if it is missing.
  const Json* run(const char* kind, const RunConfig& config, const SweepPoint& point,
                  const std::string& identity) {
    const fs::path base_dir = point.resolved->base_dir;
    const Json* result =
        runs_.find(fmt::format("{}-{}-{}", fingerprint(identity), kind, config.seed),
                   [&registry = registry_, config, base_dir](const RunOptions& options) {
                     RunOptions how = options;
                     how.base_dir = base_dir;
                     RunConfig own = config;
                     return simulate_to_precision(own, registry, how);
                   });
    if (result != nullptr && !checked_) {
      std::vector<SloCondition> of_results = plan_.conditions;
      std::erase_if(of_results, [](const SloCondition& one) { return one.pointer == kDriveLife; });
      check_metrics(of_results, *result, plan_.space.file.string() + ": /slo: ");
      checked_ = true;
    }
    return result;
  }

  /// The number that a condition is on; nullopt if the result has none.
  [[nodiscard]] std::optional<double> value_of(const SloCondition& condition, const Json& result,
                                               const RunConfig& config) const {
    if (condition.pointer != kDriveLife) {
      return number_at(result, condition.pointer);
    }
    return config.system.tiers.ssd
               ? drive_life(plan_.endurance, ssd_bytes_per_day(result) / drive_bytes(config))
               : std::nullopt;
  }

  /// Whether a short run with one seed meets the SLO.
  bool seems_to_meet(const Place& place) {
    const SweepPoint& point = points_[index_of(place)];
    if (!point.resolved) {
      return false;
    }
    const std::string& identity = identities_[index_of(place)];
    const auto known = seems_.find(identity);
    if (known != seems_.end()) {
      return known->second;
    }
    RunConfig config = point.resolved->config;
    // Each of several instances may have too few sessions for a shorter run.
    if (config.workload.sessions && config.cluster.instances == 1) {
      const auto part = [&](std::int64_t whole) {
        return static_cast<std::int64_t>(std::ceil(plan_.screening * static_cast<double>(whole)));
      };
      config.workload.sessions = part(*config.workload.sessions);
      config.workload.warmup_turns = static_cast<std::int64_t>(
          plan_.screening * static_cast<double>(config.workload.warmup_turns));
    }
    const Json* const result = run("short", config, point, identity);
    if (result == nullptr) {
      throw MissingRuns{};
    }
    bool meets = !exceeds_capacity(*result);
    for (const SloCondition& condition : plan_.conditions) {
      const auto value = value_of(condition, *result, config);
      meets = meets && (!value || violation(condition, PlanInterval{*value, *value, *value}) <= 0);
    }
    seems_.emplace(identity, meets);
    return meets;
  }

  /// The full simulations of a configuration; nullptr if the config is refused.
  const PlanTrial* trial(const Place& place) {
    const SweepPoint& point = points_[index_of(place)];
    if (!point.resolved) {
      return nullptr;
    }
    const std::string& identity = identities_[index_of(place)];
    const auto known = trials_.find(identity);
    if (known != trials_.end()) {
      return &known->second;
    }
    std::vector<Json> results;
    for (std::int64_t r = 0; r < plan_.space.replications; ++r) {
      RunConfig config = point.resolved->config;
      config.seed += r;
      if (const Json* const result = run("full", config, point, identity)) {
        results.push_back(*result);
      }
    }
    if (std::ssize(results) < plan_.space.replications) {
      throw MissingRuns{};
    }
    places_.emplace(identity, place);
    return &trials_.emplace(identity, judged(place, point.resolved->config, results)).first->second;
  }

  PlanTrial judged(const Place& place, const RunConfig& config, const std::vector<Json>& results) {
    PlanTrial trial;
    trial.labels = labels_of(place);
    trial.system = config.system.name;
    trial.dollars_per_hour = rent_dollars(config, 1);
    trial.overloaded = std::count_if(results.begin(), results.end(), exceeds_capacity);
    trial.meets = trial.overloaded == 0;
    for (const SloCondition& condition : plan_.conditions) {
      std::vector<double> values;
      for (const Json& result : results) {
        if (const auto value = value_of(condition, result, config)) {
          values.push_back(*value);
        }
      }
      // A distribution with values in only one replication has no interval.
      trial.values.push_back(values.size() < 2
                                 ? std::nullopt
                                 : std::optional(plan_interval(values, condition.pointer)));
      trial.holds.push_back(violation(condition, trial.values.back()) <= 0);
      trial.meets = trial.meets && trial.holds.back();
    }
    if (trial.meets) {
      for (const Json& result : results) {
        check_long_enough(result, write_value(config.workload),
                          fmt::format("whether {} meets the SLO", fmt::join(trial.labels, ", ")));
      }
    }
    const auto all = [&](const std::string& pointer) {
      const auto numbers = numbers_at(results, pointer);
      KVTIER_ASSERT(numbers.has_value(), "every result has the number");
      return plan_interval(*numbers, pointer);
    };
    trial.ttft_seconds = all(kTtft);
    const auto nominal = number_at(results.front(), "/load/requests_per_second/nominal");
    const auto measured = number_at(results.front(), "/load/requests_per_second/measured");
    if (nominal && measured && *nominal > 0) {
      trial.served_share = *measured / *nominal;
    }
    trial.times = compared_times(detail::join(trial.labels, ", "), results);
    if (trial.times) {  // these results lack their config
      trial.times->error.prefill.gpu = trial.times->error.decode.gpu = config.hardware.gpu.name;
    }
    trial.hit_rate = all(kHitRate).mean;
    if (config.system.tiers.ssd) {
      std::vector<double> per_day;
      std::ranges::transform(results, std::back_inserter(per_day), ssd_bytes_per_day);
      trial.ssd_bytes_per_day = mean_interval(per_day).mean;
      trial.drive_writes_per_day = *trial.ssd_bytes_per_day / drive_bytes(config);
      trial.drive_life_years = drive_life(plan_.endurance, *trial.drive_writes_per_day);
    }
    if (trial.drive_life_years) {
      trial.replacement_dollars_per_hour = replacement_dollars(config, *trial.drive_life_years);
      trial.dollars_per_hour += trial.replacement_dollars_per_hour.value_or(0);
    }
    return trial;
  }

  /// Whether the axis changes the configuration.
  [[nodiscard]] bool matters(const Place& place, std::size_t axis) const {
    for (std::size_t value = 0; value < axes_[axis].values.size(); ++value) {
      const Place other = moved(place, axis, value);
      if (config_at(other) && identities_[index_of(other)] != identities_[index_of(place)]) {
        return true;
      }
    }
    return axes_[axis].values.size() == 1;
  }

  [[nodiscard]] std::vector<std::string> labels_of(const Place& place) const {
    std::vector<std::string> labels;
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      labels.push_back(matters(place, i) ? axes_[i].values[place[i]].label : "-");
    }
    return labels;
  }

  /// The values of the last capacity that the miss-ratio curve does not rule out.
  struct Left {
    std::size_t first = 0;
    std::size_t end = 0;
  };

  /// Rules out values of the last capacity by the miss-ratio curve of its LRU tier. `place` has the
  /// first value.
  Left screen(const Place& place) {
    const std::size_t axis = capacities_.back();
    const std::size_t count = axes_[axis].values.size();
    Left left{0, count};
    std::vector<Bytes> capacities;
    for (std::size_t value = 0; value < count; ++value) {
      const auto& resolved = config_at(moved(place, axis, value));
      const auto capacity = resolved ? lru_capacity(resolved->config) : std::nullopt;
      if (!capacity || (value > 0 && *capacity <= capacities.back())) {
        return left;  // not a single LRU tier, or not an axis of its capacity
      }
      capacities.push_back(*capacity);
    }
    if (count < 2 || !differ_in_memory_alone(place, axis)) {
      return left;
    }
    const SweepPoint& point = points_[index_of(place)];
    const RunConfig config = point.resolved->config;
    const Json* const curve = runs_.find(
        fmt::format("{}-curve-{}", fingerprint(identities_[index_of(place)]), config.seed),
        [&registry = registry_, config, capacities,
         base_dir = point.resolved->base_dir](const RunOptions& options) {
          RunOptions how = options;
          how.base_dir = base_dir;
          Json all = miss_ratio_curve(config, registry,
                                      {.sampling_rate = 1, .capacities = capacities}, how);
          return Json{{"points", all["points"]},
                      {"without_limit", all["hit_rate_without_limit"]["all_turns"]}};
        });
    if (curve == nullptr) {
      throw MissingRuns{};
    }
    const auto hits = [&](std::size_t value) {
      return (*curve)["points"][value]["hit_rate"]["all_turns"].get<double>();
    };
    double wanted = 0;
    for (const SloCondition& condition : plan_.conditions) {
      if (condition.pointer == kCurveHitRate && !condition.at_most) {
        wanted = std::max(wanted, condition.bound);
      }
    }
    const double most = (*curve)["without_limit"].get<double>();
    while (left.first < count && hits(left.first) < wanted - kCurveError) {
      note(moved(place, axis, left.first),
           fmt::format("LRU hits {:.1f} % of the turns there, the SLO asks for {:.1f} %",
                       hits(left.first) * kPercent, wanted * kPercent));
      ++left.first;
    }
    std::size_t enough = left.first;
    while (enough < count && hits(enough) < most - kNothing) {
      ++enough;
    }
    left.end = std::min(count, enough + 1);
    for (std::size_t value = left.end; value < count; ++value) {
      note(moved(place, axis, value),
           fmt::format("LRU finds all that it can find, {:.1f} % of the turns, at \"{}\" already",
                       most * kPercent, axes_[axis].values[enough].label));
    }
    return left;
  }

  [[nodiscard]] bool is_screened(const Place& place) const {
    const std::vector<std::string> labels = labels_of(place);
    return std::any_of(result_.screened.begin(), result_.screened.end(),
                       [&](const PlanScreened& known) { return known.labels == labels; });
  }

  void note(const Place& place, const std::string& reason) {
    const std::vector<std::string> labels = labels_of(place);
    const auto same = [&](const PlanScreened& known) { return known.labels == labels; };
    if (std::none_of(result_.screened.begin(), result_.screened.end(), same)) {
      result_.screened.push_back({labels, config_at(place)->config.system.name, reason});
    }
  }

  /// Whether the axis changes only the capacities of tiers.
  [[nodiscard]] bool differ_in_memory_alone(const Place& place, std::size_t axis) const {
    const auto without_capacity = [&](std::size_t value) {
      Json json = write_value(config_at(moved(place, axis, value))->config);
      for (const char* tier : {"dram", "cxl", "ssd"}) {
        if (json["hardware"][tier].is_object()) {
          json["hardware"][tier].erase("capacity");
        }
      }
      return json;
    };
    const Json first = without_capacity(0);
    for (std::size_t value = 1; value < axes_[axis].values.size(); ++value) {
      if (without_capacity(value) != first) {
        return false;
      }
    }
    return true;
  }

  /// Finds the least value of the last capacity that meets the SLO. `place` has the first value.
  void search_line(const Place& place) {
    const std::size_t axis = capacities_.back();
    const Left left = screen(place);
    if (left.first == left.end) {
      return;
    }
    std::size_t low = left.first;
    std::size_t high = left.end;
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      if (seems_to_meet(moved(place, axis, middle))) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    const auto meets = [&](std::size_t value) {
      const PlanTrial* const found = trial(moved(place, axis, value));
      return found != nullptr && found->meets;
    };
    std::size_t at = std::min(low, left.end - 1);
    if (meets(at)) {
      while (at > left.first && meets(at - 1)) {
        --at;
      }
    } else {
      do {
        ++at;
      } while (at < left.end && !meets(at));
    }
    if (plan_.endurance && at < left.end) {
      search_longer_lives(place, at, left.end);
    }
  }

  /// Tries larger values of the last capacity while they may cost less than the least one that
  /// meets the SLO: their drives may last longer, and cost their rent at least.
  void search_longer_lives(const Place& place, std::size_t meeting, std::size_t end) {
    const std::size_t axis = capacities_.back();
    double least = trial(moved(place, axis, meeting))->dollars_per_hour;
    for (std::size_t value = meeting + 1; value < end; ++value) {
      const auto& resolved = config_at(moved(place, axis, value));
      if (!resolved || rent_dollars(resolved->config, 1) >= least) {
        continue;
      }
      const PlanTrial& found = *trial(moved(place, axis, value));
      least = found.meets ? std::min(least, found.dollars_per_hour) : least;
    }
  }

  /// Runs all values of each capacity, with the other axes as in `place`. Returns axes and the keys
  /// of their trials.
  std::vector<std::pair<std::size_t, std::vector<std::string>>> run_curves(const Place& place) {
    std::vector<std::pair<std::size_t, std::vector<std::string>>> curves;
    for (const std::size_t axis : capacities_) {
      if (!matters(place, axis)) {
        continue;
      }
      std::vector<std::string> identities;
      for (std::size_t value = 0; value < axes_[axis].values.size(); ++value) {
        const Place at = moved(place, axis, value);
        attempt([&] {
          const PlanTrial* const found = is_screened(at) ? nullptr : trial(at);
          if (found != nullptr && found->overloaded == 0) {
            identities.push_back(identities_[index_of(at)]);
          }
        });
      }
      curves.emplace_back(axis, std::move(identities));
    }
    return curves;
  }

  /// Sorts the trials and fills the other members of the result.
  void finish(const std::optional<std::string>& best,
              const std::vector<std::pair<std::size_t, std::vector<std::string>>>& curves) {
    result_.short_runs = std::ssize(seems_);
    result_.full_runs = std::ssize(trials_) * plan_.space.replications;
    std::vector<std::string> sorted;
    for (const auto& [identity, found] : trials_) {
      sorted.push_back(identity);
    }
    std::sort(sorted.begin(), sorted.end(), [&](const std::string& a, const std::string& b) {
      return order(trials_.at(a), trials_.at(b));
    });
    std::map<std::string, std::size_t> index;
    for (const std::string& identity : sorted) {
      index[identity] = result_.trials.size();
      result_.trials.push_back(trials_.at(identity));
    }
    for (std::size_t i = 0; i < result_.trials.size(); ++i) {
      const PlanTrial& trial = result_.trials[i];
      if (trial.overloaded == 0 &&
          (result_.front.empty() ||
           trial.ttft_seconds.mean < result_.trials[result_.front.back()].ttft_seconds.mean)) {
        result_.front.push_back(i);
      }
    }
    if (best) {
      result_.cheapest = index.at(*best);
    }
    list_systems();
    if (!best) {
      find_binding();
    }
    result_.dollars_per_hour = {
        .low = cheapest_with([](const ModelError& error) { return error.gpu_time.low; }),
        .high = cheapest_with([](const ModelError& error) { return error.gpu_time.high; })};
    compare_times();
    if (!best) {
      return;
    }
    for (const auto& [axis, identities] : curves) {
      CapacityCurve curve{axes_[axis].name, {}, std::nullopt};
      for (const std::string& identity : identities) {
        curve.trials.push_back(index.at(identity));
      }
      curve.knee = knee_of(curve.trials);
      result_.curves.push_back(std::move(curve));
    }
  }

  [[nodiscard]] std::optional<std::size_t> knee_of(const std::vector<std::size_t>& curve) const {
    if (curve.size() < 3) {
      return std::nullopt;
    }
    const PlanTrial& first = result_.trials[curve.front()];
    const PlanTrial& last = result_.trials[curve.back()];
    const double dollars = last.dollars_per_hour - first.dollars_per_hour;
    const double seconds = first.ttft_seconds.mean - last.ttft_seconds.mean;
    if (shown_price(last) <= shown_price(first) || seconds <= 0) {
      return std::nullopt;
    }
    std::optional<std::size_t> knee;
    double farthest = 0;
    for (std::size_t i = 0; i < curve.size(); ++i) {
      const PlanTrial& trial = result_.trials[curve[i]];
      const double paid = (trial.dollars_per_hour - first.dollars_per_hour) / dollars;
      const double gained = (first.ttft_seconds.mean - trial.ttft_seconds.mean) / seconds;
      if (gained - paid > farthest) {
        farthest = gained - paid;
        knee = i;
      }
    }
    return knee;
  }

  /// Whether the trial meets the SLO with all durations `longer` times as long. An overloaded trial
  /// does not: what it would do with less load is not known.
  [[nodiscard]] bool meets_scaled(const PlanTrial& trial, double longer) const {
    bool meets = trial.overloaded == 0;
    for (std::size_t c = 0; c < plan_.conditions.size() && meets; ++c) {
      if (trial.values[c]) {
        const double factor = scale_of(plan_.conditions[c], longer);
        const PlanInterval& value = *trial.values[c];
        meets = violation(plan_.conditions[c], PlanInterval{value.mean * factor, value.low * factor,
                                                            value.high * factor}) <= 0;
      }
    }
    return meets;
  }

  /// The price of the cheapest trial that meets the SLO with each trial's durations times a factor.
  template <class FactorOf>
  [[nodiscard]] std::optional<double> cheapest_with(const FactorOf& factor_of) const {
    for (const PlanTrial& trial : result_.trials) {
      if (trial.times && meets_scaled(trial, factor_of(trial.times->error))) {
        return trial.dollars_per_hour;
      }
    }
    return std::nullopt;
  }

  /// Compares the answer, or the nearest trial, with the best trial of each other GPU and source of
  /// times.
  void compare_times() {
    if (result_.trials.empty()) {
      return;
    }
    const std::size_t chosen = result_.cheapest.value_or(result_.nearest);
    const PlanTrial& answer = result_.trials[chosen];
    std::set<std::string> seen;
    const auto hardware_of = [](const ComparedTimes& times) {
      return times.error.prefill.gpu + "/" + times.error.prefill.relative + "/" +
             describe_classes(times.error);
    };
    if (!answer.times) {
      return;
    }
    seen.insert(hardware_of(*answer.times));
    for (const bool meeting : {true, false}) {
      for (const PlanTrial& trial : result_.trials) {
        if (trial.meets == meeting && trial.times &&
            seen.insert(hardware_of(*trial.times)).second &&
            have_own_errors(answer.times->error, trial.times->error)) {
          result_.orders.push_back(describe_order(answer, trial));
        }
      }
    }
  }

  /// A sentence on two trials with errors of their own.
  [[nodiscard]] std::string describe_order(const PlanTrial& answer, const PlanTrial& other) const {
    const auto own_error = [](const PlanTrial& one, const PlanTrial& beside) {
      const ErrorRange prefill =
          error_range_beside(one.times->error.prefill, beside.times->error.prefill);
      const ErrorRange decode =
          error_range_beside(one.times->error.decode, beside.times->error.decode);
      return ErrorRange{.low = std::min(prefill.low, decode.low),
                        .high = std::max(prefill.high, decode.high)};
    };
    std::vector<std::string> metrics;
    const auto may_change = [&](const PlanTrial& trial, const ErrorRange& range) {
      return trial.overloaded > 0
                 ? trial.served_share && range.low <= *trial.served_share
                 : meets_scaled(trial, range.low) != meets_scaled(trial, range.high);
    };
    if (may_change(answer, own_error(answer, other)) ||
        may_change(other, own_error(other, answer))) {
      metrics.emplace_back("SLO");
    }
    if (answer.overloaded == 0 && other.overloaded == 0) {
      for (std::string& metric : uncertain_orders(*answer.times, *other.times)) {
        metrics.push_back(std::move(metric));
      }
    }
    return fmt::format(
        "{} (times {}) and {} (times {}) have errors that they do not share, and their order {}.",
        answer.times->name, describe_classes(answer.times->error), other.times->name,
        describe_classes(other.times->error),
        metrics.empty() ? "is the same within the ranges"
                        : "is not certain by " + detail::join(metrics, ", "));
  }

  /// The distance of a trial from meeting the SLO.
  struct Miss {
    bool overloaded = false;
    double worst = 0;
    /// The condition that the trial misses by most.
    std::optional<std::size_t> condition;

    [[nodiscard]] bool nearer_than(const Miss& other) const {
      return overloaded != other.overloaded ? !overloaded : worst < other.worst;
    }
  };
  [[nodiscard]] Miss miss_of(const PlanTrial& trial) const {
    Miss miss{.overloaded = trial.overloaded > 0};
    for (std::size_t c = 0; c < plan_.conditions.size(); ++c) {
      const double missed = violation(plan_.conditions[c], trial.values[c]);
      if (missed > miss.worst) {
        miss.worst = missed;
        miss.condition = c;
      }
    }
    return miss;
  }

  /// Finds the trial that is nearest to the SLO, and the condition that it misses by most.
  void find_binding() {
    Miss least{.overloaded = true, .worst = std::numeric_limits<double>::infinity()};
    for (std::size_t i = 0; i < result_.trials.size(); ++i) {
      const Miss miss = miss_of(result_.trials[i]);
      if (miss.nearer_than(least)) {
        least = miss;
        result_.nearest = i;
        result_.binding = miss.overloaded ? std::nullopt : miss.condition;
      }
    }
  }

  /// Lists the systems with their best trials. The search covers every combination of the other
  /// axes, so the trials include each system's cheapest.
  void list_systems() {
    for (const SweepPoint& point : points_) {
      const auto has_name = [&](const PlanSystem& system) {
        return system.name == point.resolved->config.system.name;
      };
      if (point.resolved &&
          std::none_of(result_.systems.begin(), result_.systems.end(), has_name)) {
        result_.systems.push_back({point.resolved->config.system.name, std::nullopt, {}});
        complete(result_.systems.back());
      }
    }
  }

  void complete(PlanSystem& system) const {
    Miss least;
    bool meets = false;
    for (std::size_t i = 0; i < result_.trials.size() && !meets; ++i) {
      const PlanTrial& trial = result_.trials[i];
      if (trial.system != system.name) {
        continue;
      }
      const Miss miss = miss_of(trial);
      meets = trial.meets;
      if (meets || !system.trial || miss.nearer_than(least)) {
        system.trial = i;
        least = miss;
      }
    }
    if (!system.trial) {
      for (const PlanScreened& screened : result_.screened) {
        if (screened.system == system.name &&
            std::find(system.excluded_by.begin(), system.excluded_by.end(), screened.reason) ==
                system.excluded_by.end()) {
          system.excluded_by.push_back(screened.reason);
        }
      }
    } else if (system.trial != result_.cheapest) {
      exclude(system, result_.trials[*system.trial]);
    }
  }

  void exclude(PlanSystem& system, const PlanTrial& trial) const {
    if (trial.meets) {
      const PlanTrial& cheapest = result_.trials[*result_.cheapest];
      const double more = trial.dollars_per_hour / cheapest.dollars_per_hour - 1;
      system.excluded_by.push_back(shown_price(trial) > shown_price(cheapest)
                                       ? fmt::format("more expensive by {:.1f} %", more * kPercent)
                                       : "as expensive, with a higher mean TTFT");
      return;
    }
    if (trial.overloaded > 0) {
      system.excluded_by.push_back(trial.overloaded == plan_.space.replications
                                       ? "load exceeds capacity"
                                       : fmt::format("load exceeds capacity with {} of {} seeds",
                                                     trial.overloaded, plan_.space.replications));
      return;  // every other number depends on the length of the run
    }
    for (std::size_t c = 0; c < plan_.conditions.size(); ++c) {
      if (!trial.holds[c]) {
        system.excluded_by.push_back(fmt::format("misses {}: {}",
                                                 describe_condition(plan_.conditions[c]),
                                                 interval_text(*trial.values[c])));
      }
    }
  }

  const Plan& plan_;
  const std::vector<SweepAxis>& axes_;
  const PolicyRegistry& registry_;
  const std::vector<SweepPoint>& points_;
  Runs& runs_;
  /// Key of each point (identity_of); empty if it is refused.
  std::vector<std::string> identities_;
  std::vector<std::size_t> capacities_;
  bool checked_ = false;
  std::map<std::string, bool> seems_;
  std::map<std::string, PlanTrial> trials_;
  std::map<std::string, Place> places_;
  PlanResult result_;
};

void check_plan(const Plan& plan, Problems& problems) {
  std::set<std::string> axes;
  for (const SweepAxis& axis : plan.space.axes) {
    axes.insert(axis.name);
  }
  const std::vector<std::string> names(axes.begin(), axes.end());
  std::set<std::string> seen;
  for (std::size_t i = 0; i < plan.capacities.size(); ++i) {
    const std::string& name = plan.capacities[i];
    const std::string at = fmt::format("/capacities/{}", i);
    if (!axes.contains(name)) {
      problems.add(
          at, fmt::format("no axis is called {}{}", quote_text(name), suggestion(name, names)));
    } else if (!seen.insert(name).second) {
      problems.add(at, fmt::format("{} is given twice", quote_text(name)));
    }
  }
  if (plan.slo.empty()) {
    problems.add("/slo", "expected one condition at least, got []");
  }
}

std::vector<std::string> header(const Plan& plan) {
  std::vector<std::string> cells;
  for (const SweepAxis& axis : plan.space.axes) {
    cells.push_back(axis.name);
  }
  cells.insert(cells.end(), {"$/h", "TTFT mean s", "hits %"});
  if (plan.endurance) {
    cells.emplace_back("drive life y");
  }
  return cells;
}

std::vector<std::string> row(const Plan& plan, const PlanTrial& trial) {
  std::vector<std::string> cells = trial.labels;
  cells.push_back(fmt::format("{:.3f}", trial.dollars_per_hour));
  cells.push_back(trial.overloaded > 0 ? "overloaded" : interval_text(trial.ttft_seconds));
  cells.push_back(fmt::format("{:.1f}", trial.hit_rate * kPercent));
  if (plan.endurance) {
    cells.push_back(trial.drive_life_years ? number_text(*trial.drive_life_years) : "-");
  }
  return cells;
}

std::string describe_replacement(const PlanTrial& trial) {
  if (!trial.replacement_dollars_per_hour) {
    return "SSD: priced by the hour, without replacement";
  }
  return *trial.replacement_dollars_per_hour > 0
             ? fmt::format("SSD: replaced every {} years, for {:.3f} $/h of the {:.3f}",
                           number_text(*trial.drive_life_years),
                           *trial.replacement_dollars_per_hour, trial.dollars_per_hour)
             : "SSD: written off before the end of its life";
}

/// The sources of a trial's times, and the ranges of TTFT and TPOT by their errors.
std::string describe_times(const ComparedTimes& times) {
  std::string text = fmt::format("  times: {}", describe_classes(times.error));
  const auto add = [&](const char* name, const std::optional<double>& value,
                       const ErrorRange& range) {
    if (value) {
      text += fmt::format("; 80 % range of the mean {}: {} to {} s", name,
                          number_text(*value * range.low), number_text(*value * range.high));
    }
  };
  add("TTFT", times.ttft_seconds, times.error.ttft);
  add("TPOT", times.tpot_seconds, times.error.tpot);
  return text + "\n";
}

/// A table row of one trial, and its conditions.
std::string describe_trial(const Plan& plan, const PlanTrial& trial) {
  std::string text = align_columns({header(plan), row(plan, trial)}, plan.space.axes.size());
  for (std::size_t i = 0; i < plan.conditions.size(); ++i) {
    text += fmt::format("  {}: {}{}\n", describe_condition(plan.conditions[i]),
                        trial.values[i] ? interval_text(*trial.values[i]) : "-",
                        trial.holds[i] ? "" : ", missed");
  }
  if (trial.times) {
    text += describe_times(*trial.times);
  }
  if (trial.ssd_bytes_per_day) {
    constexpr double kTera = 1e12;
    text += fmt::format("  SSD: {} TB written per day, {} drive writes per day",
                        number_text(*trial.ssd_bytes_per_day / kTera),
                        number_text(*trial.drive_writes_per_day));
    if (trial.drive_life_years) {
      text += fmt::format(", a life of {} years (rated for {} a day, {} years)",
                          number_text(*trial.drive_life_years),
                          plan.endurance->drive_writes_per_day, plan.endurance->years);
      text += "\n  " + describe_replacement(trial);
    }
    text += "\n";
  }
  return text;
}

/// The range of the price, and sentences on trials with times of other sources.
std::string describe_model_errors(const PlanResult& result) {
  const auto price = [](const std::optional<double>& dollars) {
    return dollars ? fmt::format("{:.3f} $/h", *dollars)
                   : std::string("no configuration that was simulated");
  };
  std::string text;
  if (result.dollars_per_hour.low || result.dollars_per_hour.high) {
    text += fmt::format(
        "\nThe cheapest with the shortest and the longest times of their 80 % ranges: {} and {}.\n",
        price(result.dollars_per_hour.low), price(result.dollars_per_hour.high));
  }
  for (const std::string& order : result.orders) {
    text += "\n" + order + "\n";
  }
  return text;
}

/// A table of the systems and the reasons that exclude them.
std::string describe_systems(const Plan& plan, const PlanResult& result) {
  std::vector<std::vector<std::string>> lines{header(plan)};
  lines[0].insert(lines[0].begin(), "name");
  for (const PlanSystem& system : result.systems) {
    std::vector<std::string> cells(lines[0].size() - 1, "-");
    if (system.trial) {
      cells = row(plan, result.trials[*system.trial]);
    }
    cells.insert(cells.begin(), system.name);
    cells.push_back(system.excluded_by.empty() ? "meets the SLO, cheapest"
                                               : detail::join(system.excluded_by, "; "));
    lines.push_back(std::move(cells));
  }
  return "\neach system's cheapest that meets the SLO, or else its nearest, and what excludes "
         "it\n" +
         align_columns(lines, plan.space.axes.size() + 1);
}

/// A table of a capacity's values, and the gain of each over the one before.
std::string describe_curve(const Plan& plan, const PlanResult& result, const CapacityCurve& curve) {
  std::size_t axis = 0;
  while (plan.space.axes[axis].name != curve.axis) {
    ++axis;
  }
  std::vector<std::string> columns = header(plan);
  columns.erase(columns.begin(),
                columns.begin() + static_cast<std::ptrdiff_t>(plan.space.axes.size()));
  columns.insert(columns.begin(), curve.axis);
  columns.insert(columns.end(), {"ms less per $/h", "hit points per $/h"});
  std::vector<std::vector<std::string>> lines{columns};
  for (std::size_t i = 0; i < curve.trials.size(); ++i) {
    const PlanTrial& trial = result.trials[curve.trials[i]];
    std::vector<std::string> cells = row(plan, trial);
    cells.erase(cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(trial.labels.size()));
    cells.insert(cells.begin(), trial.labels[axis]);
    const PlanTrial& before = result.trials[curve.trials[i > 0 ? i - 1 : 0]];
    const double paid = trial.dollars_per_hour - before.dollars_per_hour;
    const auto gain = [&](double gained) {
      return shown_price(trial) > shown_price(before) ? number_text(gained / paid) : "-";
    };
    cells.push_back(gain((before.ttft_seconds.mean - trial.ttft_seconds.mean) * kMillis));
    cells.push_back(gain((trial.hit_rate - before.hit_rate) * kPercent));
    if (curve.knee == i) {
      cells.emplace_back("knee");
    }
    lines.push_back(std::move(cells));
  }
  return align_columns(lines, 1);
}

std::string describe_infeasible(const Plan& plan, const PlanResult& result) {
  if (result.trials.empty()) {
    return "No configuration meets the SLO, by the curves of LRU alone.\n";
  }
  const PlanTrial& nearest = result.trials[result.nearest];
  std::string text = "No configuration meets the SLO.";
  text += result.binding ? fmt::format(" The nearest configuration misses {}.\n",
                                       describe_condition(plan.conditions[*result.binding]))
                         : " The load exceeds the capacity of every configuration.\n";
  for (std::size_t i = 0; i < plan.conditions.size(); ++i) {
    if (std::none_of(result.trials.begin(), result.trials.end(),
                     [&](const PlanTrial& trial) { return trial.holds[i]; })) {
      text += fmt::format("Every configuration that was simulated misses {}.\n",
                          describe_condition(plan.conditions[i]));
    }
  }
  return text + "\nnearest\n" + describe_trial(plan, nearest);
}

Json interval_json(const PlanInterval& interval) {
  return Json{{"mean", interval.mean}, {"low", interval.low}, {"high", interval.high}};
}

Json trial_json(const Plan& plan, const PlanTrial& trial) {
  Json json;
  json["axes"] = Json::object();
  for (std::size_t i = 0; i < trial.labels.size(); ++i) {
    json["axes"][plan.space.axes[i].name] = trial.labels[i];
  }
  json["system"] = trial.system;
  json["dollars_per_hour"] = trial.dollars_per_hour;
  json["meets"] = trial.meets;
  json["overloaded_replications"] = trial.overloaded;
  json["conditions"] = Json::array();
  for (std::size_t i = 0; i < trial.values.size(); ++i) {
    json["conditions"].push_back(
        Json{{"condition", describe_condition(plan.conditions[i])},
             {"value", trial.values[i] ? interval_json(*trial.values[i]) : Json()},
             {"holds", static_cast<bool>(trial.holds[i])}});
  }
  json["ttft_seconds"] = interval_json(trial.ttft_seconds);
  json["hit_rate"] = trial.hit_rate;
  json["model_error"] = trial.times ? to_json(trial.times->error) : Json();
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value) {
      json[name] = *value;
    }
  };
  add("ssd_bytes_per_day", trial.ssd_bytes_per_day);
  add("drive_writes_per_day", trial.drive_writes_per_day);
  add("drive_life_years", trial.drive_life_years);
  add("replacement_dollars_per_hour", trial.replacement_dollars_per_hour);
  return json;
}

}  // namespace

Plan load_plan(const fs::path& file) { return read_plan(read_json_file(file), file); }

Plan read_plan(const Json& json, const fs::path& file) {
  Plan plan;
  plan.space.replications = 5;
  plan.space.file = file;
  plan.space.refused = RefusedPoints::skip;
  plan.space.columns = {{"TTFT mean", kTtft, ValueUnit::seconds}};
  Problems problems;
  problems.set_origin("", file.string());
  read_value(plan, json, "", problems);
  if (problems.empty()) {
    finish_sweep(plan.space, problems);
    check_plan(plan, problems);
    for (std::size_t i = 0; i < plan.slo.size(); ++i) {
      try {
        const std::vector<SloCondition> conditions = parse_slo(plan.slo[i], "");
        if (!plan.endurance &&
            std::ranges::find(conditions, kDriveLife, &SloCondition::pointer) != conditions.end()) {
          problems.add(fmt::format("/slo/{}", i), "drive_life_years needs /endurance");
        }
        plan.conditions.insert(plan.conditions.end(), conditions.begin(), conditions.end());
      } catch (const ConfigError& error) {
        for (const std::string& problem : error.problems()) {
          problems.add(fmt::format("/slo/{}", i), problem);
        }
      }
    }
  }
  problems.throw_if_any();
  return plan;
}

PlanResult make_plan(const Plan& plan, const ConfigDirectory& presets,
                     const PolicyRegistry& registry, const PlanOptions& options) {
  return make_plan(
      plan, SweepPoints(plan.space, presets, registry, std::numeric_limits<std::size_t>::max()),
      registry, options);
}

PlanResult make_plan(const Plan& plan, const SweepPoints& points, const PolicyRegistry& registry,
                     const PlanOptions& options) {
  std::unique_ptr<RunFolder> folder;
  if (!options.out.empty()) {
    // The SLO, the capacities and the endurance select runs, but do not change their results.
    Json identity = sweep_identity(plan.space, points, Shard{});
    identity["format"] = kFolderFormat;
    identity["screening"] = plan.screening;
    identity.erase("shard");
    folder = std::make_unique<RunFolder>(kPlanFolder, options.out, identity, options.resume,
                                         options.tell);
  }
  Runs runs(options, folder.get());
  PlanResult result = Search(plan, points.checked(), registry, runs)();
  std::vector<Json> settings;
  for (const SweepPoint& point : points.checked()) {
    if (point.resolved) {
      settings.push_back(run_setting(write_value(point.resolved->config)));
    }
  }
  result.setting = common_setting(settings);
  if (folder) {
    runs.finish(json_text(to_json(plan, result), 2) + "\n");
  }
  return result;
}

Json to_json(const Plan& plan, const PlanResult& result) {
  Json json = new_result(kFormat);
  json.update(Json{{"plan", write_value(plan)},
                   {"setting", result.setting},
                   {"configurations", result.configurations},
                   {"refused", result.refused},
                   {"screened", Json::array()},
                   {"short_runs", result.short_runs},
                   {"full_runs", result.full_runs},
                   {"feasible", result.cheapest.has_value()},
                   {"cheapest", result.cheapest ? Json(*result.cheapest) : Json()}});
  for (const PlanScreened& screened : result.screened) {
    Json axes = Json::object();
    for (std::size_t i = 0; i < screened.labels.size(); ++i) {
      axes[plan.space.axes[i].name] = screened.labels[i];
    }
    json["screened"].push_back(
        Json{{"axes", axes}, {"system", screened.system}, {"reason", screened.reason}});
  }
  if (!result.cheapest && !result.trials.empty()) {
    json["nearest"] = result.nearest;
    json["binding"] = result.binding ? Json(describe_condition(plan.conditions[*result.binding]))
                                     : Json("load exceeds capacity");
  }
  const auto dollars = [](const std::optional<double>& of) { return of ? Json(*of) : Json(); };
  json["dollars_per_hour"] = {{"low", dollars(result.dollars_per_hour.low)},
                              {"high", dollars(result.dollars_per_hour.high)}};
  json["orders"] = result.orders;
  json["systems"] = Json::array();
  for (const PlanSystem& system : result.systems) {
    json["systems"].push_back(Json{{"name", system.name},
                                   {"trial", system.trial ? Json(*system.trial) : Json()},
                                   {"excluded_by", system.excluded_by}});
  }
  json["front"] = result.front;
  json["capacities"] = Json::object();
  for (const CapacityCurve& curve : result.curves) {
    json["capacities"][curve.axis] = Json{
        {"trials", curve.trials}, {"knee", curve.knee ? Json(curve.trials[*curve.knee]) : Json()}};
  }
  json["trials"] = Json::array();
  for (const PlanTrial& trial : result.trials) {
    json["trials"].push_back(trial_json(plan, trial));
  }
  return json;
}

std::string to_table(const Plan& plan, const PlanResult& result) {
  std::string text = fmt::format(
      "{}: {} configurations, {} short and {} full runs; means of {} seeds (95 % interval)\n",
      plan.space.file.stem().string(), result.configurations, result.short_runs, result.full_runs,
      plan.space.replications);
  for (const std::string& reason : result.refused) {
    text += "refused: " + reason + "\n";
  }
  for (const PlanScreened& screened : result.screened) {
    text += fmt::format("not simulated: {}: {}\n", detail::join(screened.labels, ", "),
                        screened.reason);
  }
  text += "\n";
  text += result.cheapest ? "cheapest that meets the SLO\n" +
                                describe_trial(plan, result.trials[*result.cheapest])
                          : describe_infeasible(plan, result);
  text += describe_model_errors(result);
  text += describe_systems(plan, result);
  if (!result.front.empty()) {
    std::vector<std::vector<std::string>> lines{header(plan)};
    for (const std::size_t i : result.front) {
      lines.push_back(row(plan, result.trials[i]));
      lines.back().emplace_back(result.trials[i].meets ? "meets the SLO" : "");
    }
    text += "\ncost against TTFT, of what was simulated in full (Pareto front)\n" +
            align_columns(lines, plan.space.axes.size());
  }
  for (const CapacityCurve& curve : result.curves) {
    text += fmt::format("\n{}, all else as in the cheapest\n{}", curve.axis,
                        describe_curve(plan, result, curve));
  }
  return text;
}

}  // namespace kvtier
