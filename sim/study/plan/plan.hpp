#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/runs/find_capacity.hpp"
#include "sim/study/sweep/sweep.hpp"

/// The cheapest configuration that meets a service level objective (SLO), of a space of
/// configurations. docs/planning.md describes the file.
namespace kvtier {

/// The rated endurance of a drive.
struct Endurance {
  double drive_writes_per_day = 1;
  double years = 5;
};
template <class V>
void describe(V& v, Endurance& c) {
  v.field("drive_writes_per_day", c.drive_writes_per_day,
          "Writes of its whole capacity that a drive is rated for, each day.",
          required(between(0.001, 1000)));
  v.field("years", c.years, "For how many years.", required(between(0.1, 100)));
}

struct Plan {
  /// Its config, axes and replications.
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
          "Config of a run: a file, seen from this one's folder, or an object.", required());
  v.field("set", c.space.set, "Keys of the config and their values, before those of the axes.");
  v.field("axes", c.space.axes,
          "The space is every combination of their values: servers, systems, capacities.",
          required());
  v.field("capacities", c.capacities,
          "Names of the axes whose values go from the least to the most, more of which costs more "
          "and never misses an SLO that less meets. The last one is bisected.");
  v.field("slo", c.slo,
          "Conditions on metrics, as of simulate --find-capacity: \"ttft_seconds.p90<=2\".",
          required());
  v.field("replications", c.space.replications,
          "Seeds of each full simulation: the config's, and those after it.", between(2, 1000));
  v.field("screening", c.screening,
          "Share of the sessions (and of the warm-up) that the short runs have which begin the "
          "search; a trace that is run whole stays whole.",
          between(0.01, 1));
  v.field("endurance", c.endurance,
          "What the drives are rated for, for their life; \"none\": not known.");
}
/// Throws ConfigError with every problem of the file.
[[nodiscard]] Plan read_plan(const Json& json, const std::filesystem::path& file);
[[nodiscard]] Plan load_plan(const std::filesystem::path& file);

/// A mean over replications and its 95 % interval (Student's), cut at 0 and of a hit rate at 1: the
/// mean does not lie in what is cut off, so the rest has the same confidence.
struct PlanInterval {
  double mean = 0;
  double low = 0;
  double high = 0;
};

/// Results of full simulations of one configuration.
struct PlanTrial {
  /// Its labels in tables, one for each axis; "-" if the axis changes nothing, such as a tier that
  /// the system does not use.
  std::vector<std::string> labels;
  /// The system's name.
  std::string system;
  /// GPUs and used tiers.
  double dollars_per_hour = 0;
  /// One a condition; nullopt where no replication has a value, which violates nothing.
  std::vector<std::optional<PlanInterval>> values;
  /// Which conditions hold for the whole interval.
  std::vector<bool> holds;
  /// Replications whose load exceeds capacity.
  std::int64_t overloaded = 0;
  /// Every condition holds and no replication is overloaded.
  bool meets = false;
  PlanInterval ttft_seconds;
  double hit_rate = 0;
  /// If the system has a tier on SSD: bytes written to it, and that in its capacities.
  std::optional<double> ssd_bytes_per_day;
  std::optional<double> drive_writes_per_day;
  /// nullopt without a rating, or where nothing is written.
  std::optional<double> drive_life_years;
};

/// One capacity around the cheapest configuration, all else as there.
struct CapacityCurve {
  std::string axis;
  /// Indices of trials, from the least capacity to the most; without overloaded ones.
  std::vector<std::size_t> trials;
  /// Index in `trials` where mean TTFT over cost turns from steep to flat: the place farthest below
  /// the line from the first to the last (Satopaa et al., Finding a Kneedle in a Haystack, 2011).
  /// nullopt where there is no such place.
  std::optional<std::size_t> knee;
};

/// A configuration that was not simulated, as the miss-ratio curve of its tier answers for it.
struct PlanScreened {
  std::vector<std::string> labels;
  std::string system;
  std::string reason;
};

/// Results of all configurations with a system of one name.
struct PlanSystem {
  std::string name;
  /// The cheapest trial that meets the SLO; if none does, the one that comes nearest; nullopt if
  /// none was simulated.
  std::optional<std::size_t> trial;
  /// Why this is not the plan's answer; empty for the answer.
  std::vector<std::string> excluded_by;
};

/// How a plan is worked out. None of it changes what is found.
struct PlanOptions {
  /// Threads; at least 1.
  std::int64_t jobs = 1;
  /// Folder that keeps the runs for a later call; empty: none.
  std::filesystem::path out;
  /// Take the runs that `out` has.
  bool resume = false;
  /// Called, on the caller's thread, with each message about lines in `out` that cannot be used.
  std::function<void(const std::string&)> tell;
  /// Called a few times a second, on the caller's thread, with the runs done; may throw to end the
  /// search. Runs that ended are kept.
  std::function<void(std::int64_t)> progress;
};

struct PlanResult {
  /// common_setting() of the configurations.
  Json setting;
  std::int64_t configurations = 0;
  /// Why configurations were refused, each reason once.
  std::vector<std::string> refused;
  /// Configurations that LRU's miss-ratio curve shows to be no answer, and why; none was simulated.
  std::vector<PlanScreened> screened;
  std::int64_t short_runs = 0;
  std::int64_t full_runs = 0;
  /// Configurations simulated in full, from the cheapest.
  std::vector<PlanTrial> trials;
  std::optional<std::size_t> cheapest;
  /// In the order of the space.
  std::vector<PlanSystem> systems;
  /// Trials within capacity than which none is as cheap and has a lower mean TTFT.
  std::vector<std::size_t> front;
  std::vector<CapacityCurve> curves;
  /// If none meets the SLO: the one that comes nearest, and the condition that it misses by most
  /// (an index of the conditions; nullopt: its load exceeds capacity).
  std::size_t nearest = 0;
  std::optional<std::size_t> binding;
};

/// Looks for it: along the last capacity by bisection of short runs with one seed, for every
/// combination of the other axes; then by full simulations to either side, until one that meets the
/// SLO and the next that does not are found; then along every capacity from the cheapest. Equal
/// configurations, such as of a tier that a system does not use, are run once. Where a system has
/// one tier with LRU and the last capacity is that tier's, the curve of its miss ratios says
/// without a simulation which capacities miss too much for a condition on hit_rate.all_turns.total,
/// and beyond which one more memory finds no more.
///
/// Throws ConfigError for metrics that a result does not have, capacities that do not cost more
/// from one value to the next, a folder as run_sweep does, and as resolve_points and simulate do.
[[nodiscard]] PlanResult make_plan(const Plan& plan, const ConfigDirectory& presets,
                                   const PolicyRegistry& registry, const PlanOptions& options = {});

/// `kvtier.plan/1`.
[[nodiscard]] Json to_json(const Plan& plan, const PlanResult& result);
/// The tables that users see.
[[nodiscard]] std::string to_table(const Plan& plan, const PlanResult& result);

}  // namespace kvtier
