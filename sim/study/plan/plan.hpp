#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/runs/find_capacity.hpp"
#include "sim/study/runs/model_error.hpp"
#include "sim/study/sweep/sweep.hpp"

/// Finds the cheapest configuration of a space that meets a service level objective (SLO).
/// docs/planning.md describes the file.
namespace kvtier {

/// The rated endurance of a drive.
struct Endurance {
  double drive_writes_per_day = 1;
  double years = 5;
};
template <class V>
void describe(V& v, Endurance& c) {
  v.field("drive_writes_per_day", c.drive_writes_per_day,
          "Rated writes of the drive's whole capacity per day.", required(between(0.001, 1000)));
  v.field("years", c.years, "Rated life in years.", required(between(0.1, 100)));
}

struct Plan {
  /// The plan's config, axes and replications.
  Sweep space;
  std::vector<std::string> capacities;
  std::vector<std::string> slo;
  double screening = 0.25;
  std::optional<Endurance> endurance;

  std::vector<SloCondition> conditions;
};
template <class V>
void describe(V& v, Plan& c) {
  v.field("config", c.space.config,
          "Config of a run: an object, or a file relative to this file's folder.", required());
  v.field("set", c.space.set, "Keys of the config and their values, before those of the axes.");
  v.field("axes", c.space.axes,
          "Axes such as servers, systems and capacities. The space is every combination of their "
          "values.",
          required());
  v.field("capacities", c.capacities,
          "Names of the axes that are capacities, with ascending values. A larger value costs more "
          "and meets every SLO that a smaller one meets. The last capacity is bisected.");
  v.field("slo", c.slo,
          "Conditions on metrics, as of simulate --find-capacity: \"ttft_seconds.p90<=2\". Also on "
          "drive_life_years, with an endurance.",
          required());
  v.field("replications", c.space.replications,
          "Seeds of each full simulation: the config's, and those after it.", between(2, 1000));
  v.field(
      "screening", c.screening,
      "Share of the sessions and of the warm-up in the short runs that begin the search. Runs of "
      "a whole trace stay whole.",
      between(0.01, 1));
  v.field("endurance", c.endurance,
          "Rated endurance of the drives, which gives their life. Drives with a purchase price are "
          "replaced at its end. \"none\": not known.");
}
/// Throws ConfigError with every problem of the file.
[[nodiscard]] Plan read_plan(const Json& json, const std::filesystem::path& file);
[[nodiscard]] Plan load_plan(const std::filesystem::path& file);

/// A mean over replications and its 95 % interval (Student's). The interval is cut at 0, and at 1
/// for a hit rate. True means cannot lie in the cut part, so the rest has the same confidence.
struct PlanInterval {
  double mean = 0;
  double low = 0;
  double high = 0;
};

/// Results of full simulations of one configuration.
struct PlanTrial {
  /// Labels in tables, one for each axis; "-" if the axis does not change the configuration, such
  /// as a tier that the system does not use.
  std::vector<std::string> labels;
  /// The system's name.
  std::string system;
  /// Price of GPUs and used tiers, with drives that are replaced at the end of their life.
  double dollars_per_hour = 0;
  /// A value for each condition. nullopt, which violates nothing, if fewer than two replications
  /// have a value.
  std::vector<std::optional<PlanInterval>> values;
  /// For each condition, whether it holds for the whole interval.
  std::vector<bool> holds;
  /// Replications whose load exceeds capacity.
  std::int64_t overloaded = 0;
  /// Every condition holds and no replication is overloaded.
  bool meets = false;
  PlanInterval ttft_seconds;
  double hit_rate = 0;
  /// Bytes written to the SSD per day, and the same in capacities. Only with a tier on SSD.
  std::optional<double> ssd_bytes_per_day;
  std::optional<double> drive_writes_per_day;
  /// nullopt without a rated endurance, or if nothing is written.
  std::optional<double> drive_life_years;
  /// The part of dollars_per_hour beyond that of drives which last as long as they are written off.
  /// nullopt without a life, or for drives at an hourly price, which may be rented.
  std::optional<double> replacement_dollars_per_hour;
  /// The share of the load that the first replication served; nullopt if the load is not known.
  std::optional<double> served_share;
  /// Its times, and what their errors depend on.
  std::optional<ComparedTimes> times;
};

/// The range of a plan's answer by the errors of times, among the trials.
struct PlanRange {
  /// The cheapest price per hour that meets the SLO if all times are as short, or as long, as their
  /// ranges say; nullopt if no trial meets it.
  std::optional<double> low;
  std::optional<double> high;
};

/// Trials over one capacity, with the other axes as in the cheapest configuration.
struct CapacityCurve {
  std::string axis;
  /// Indices of trials, from the least capacity to the most; without overloaded ones.
  std::vector<std::size_t> trials;
  /// Index in `trials` of the knee: beyond it, more cost gains little TTFT. It is the point
  /// farthest below the line from the first trial to the last (Satopaa et al., Finding a Kneedle in
  /// a Haystack, 2011). nullopt if there is none.
  std::optional<std::size_t> knee;
};

/// A configuration that was not simulated, because the miss-ratio curve of its tier rules it out.
struct PlanScreened {
  std::vector<std::string> labels;
  std::string system;
  std::string reason;
};

/// The result of one system, over all its configurations.
struct PlanSystem {
  std::string name;
  /// The cheapest trial that meets the SLO, or else the nearest one; nullopt if none was simulated.
  std::optional<std::size_t> trial;
  /// The reasons why the system is not the plan's answer; empty for the answer.
  std::vector<std::string> excluded_by;
};

/// Options of the search, which do not change its result.
struct PlanOptions {
  /// Threads; at least 1.
  std::int64_t jobs = 1;
  /// Folder that keeps the runs for a later call; empty: none.
  std::filesystem::path out;
  /// Use the runs that are in `out`.
  bool resume = false;
  /// Called on the caller's thread with each message about unusable lines in `out`.
  std::function<void(const std::string&)> tell;
  /// Called a few times a second on the caller's thread with the runs done; may throw to end the
  /// search. Finished runs are kept.
  std::function<void(std::int64_t)> progress;
};

struct PlanResult {
  /// common_setting() of the configurations.
  Json setting;
  std::int64_t configurations = 0;
  /// Why configurations were refused, each reason once.
  std::vector<std::string> refused;
  /// Configurations that were not simulated, because LRU's miss-ratio curve rules them out.
  std::vector<PlanScreened> screened;
  std::int64_t short_runs = 0;
  std::int64_t full_runs = 0;
  /// Configurations that were simulated in full, the cheapest first.
  std::vector<PlanTrial> trials;
  std::optional<std::size_t> cheapest;
  /// In the order of the space.
  std::vector<PlanSystem> systems;
  /// The Pareto front of cost and mean TTFT: trials within capacity that no other trial beats.
  std::vector<std::size_t> front;
  std::vector<CapacityCurve> curves;
  PlanRange dollars_per_hour;
  /// Sentences on trials whose times have errors that the answer (or the nearest trial) does not
  /// share: whether the order of the two is certain.
  std::vector<std::string> orders;
  /// If no trial meets the SLO: the nearest trial, and the condition that it misses by most
  /// (nullopt: its load exceeds capacity).
  std::size_t nearest = 0;
  std::optional<std::size_t> binding;
};

/// Searches the space in these steps, for every combination of the axes without the last capacity:
///
/// 1. If the last capacity is that of a single LRU tier, the tier's miss-ratio curve rules out
///    capacities: those that hit too little for a condition on hit_rate.all_turns.total, and those
///    beyond which more memory brings no hits.
/// 2. Short runs with one seed bisect the last capacity.
/// 3. Full simulations move up or down from there to the least capacity that meets the SLO. With an
///    endurance, they go on to larger capacities that may cost less, because their drives last
///    longer.
///
/// Then it simulates all values of each capacity around the cheapest configuration. Equal
/// configurations are run once.
///
/// Throws ConfigError for metrics that a result does not have and for capacities whose cost falls,
/// and as `run_sweep` (for the folder), `SweepPoints` and `simulate` do.
[[nodiscard]] PlanResult make_plan(const Plan& plan, const ConfigDirectory& presets,
                                   const PolicyRegistry& registry, const PlanOptions& options = {});

/// The same with the points of the space, all of them resolved before.
[[nodiscard]] PlanResult make_plan(const Plan& plan, const SweepPoints& points,
                                   const PolicyRegistry& registry, const PlanOptions& options = {});

/// The result as JSON (`kvtier.plan/1`).
[[nodiscard]] Json to_json(const Plan& plan, const PlanResult& result);
/// The result as tables.
[[nodiscard]] std::string to_table(const Plan& plan, const PlanResult& result);

}  // namespace kvtier
