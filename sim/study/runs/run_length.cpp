#include "sim/study/runs/run_length.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <fmt/format.h>

#include "sim/core/errors.hpp"
#include "sim/serving/result.hpp"
#include "sim/study/runs/summary.hpp"

namespace kvtier {
namespace {

/// Sessions of the first of the growing runs.
constexpr std::int64_t kFirstSessions = 500;

double at(const Json& result, const char* pointer) {
  return number_at(result, pointer).value_or(0);
}

/// The precision of a run: the larger half width of the 95 % intervals of the mean TTFT (as a share
/// of it) and of the hit rate. nullopt if an interval is missing.
std::optional<double> precision_of(const Json& result) {
  double worst = 0;
  for (const auto& [name, mean] : {std::pair("ttft_seconds", "/metrics/ttft_seconds/mean"),
                                   std::pair("hit_rate_tokens", "")}) {
    if (*mean == '\0' && at(result, "/metrics/resumed_turns") == 0) {
      continue;  // no turn has a history that could be hit
    }
    const Json::json_pointer pointer{std::string("/metrics/confidence/") + name};
    if (!result.contains(pointer)) {
      return std::nullopt;
    }
    const double whole = *mean == '\0' ? 1 : at(result, mean);
    worst = std::max(worst, result.at(pointer)["half_width"].get<double>() / whole);
  }
  return worst;
}

}  // namespace

std::optional<std::string> too_short(const Json& result) {
  const std::string why = text_at(result, "/load/too_short");
  return why.empty() ? std::nullopt : std::optional(why);
}

std::int64_t sessions_wanted(const Json& result) {
  // The part before the stationary state takes about half as long as the measured part.
  constexpr double kWithBeginning = 1.5;
  const double turns = at(result, "/workload/turns") / at(result, "/workload/sessions");
  const double rate = at(result, "/load/requests_per_second/nominal") / turns;
  const double wanted =
      kWithBeginning * kSessionDurations * rate * at(result, "/load/measured/live_session_seconds");
  const double unit =
      std::pow(10, std::max(2.0, std::floor(std::log10(std::max(wanted, 1.0)))) - 1);
  constexpr double kLeast = 100;
  return static_cast<std::int64_t>(std::max(kLeast, std::ceil(wanted / unit) * unit));
}

std::string longer_trace(const Json& workload) {
  const std::string trace = text_at(workload, "/trace");
  if (trace.empty() || trace == "none" || text_at(workload, "/replay") != "in_order") {
    return "";
  }
  const Json* sessions = find_at(workload, Json::json_pointer("/sessions"));
  const std::string more =
      sessions != nullptr && sessions->is_number() ? "more /workload/sessions, " : "";
  return more + "a longer trace, or " +
         (text_at(workload, "/arrivals") == "trace"
              ? "a smaller /workload/speed_up"
              : "/workload/replay \"bootstrap\" with /workload/sessions \"auto\"");
}

namespace {

/// Advice for a run that is longer than that of `result`, with the /workload of its config.
std::string advice(const Json& result, const Json& workload) {
  const std::string longer = longer_trace(workload);
  return "expected " +
         (!longer.empty()
              ? longer
              : fmt::format("/workload/sessions \"auto\", or about {}{}", sessions_wanted(result),
                            text_at(result, "/load/measured/rule") == "all"
                                ? ", and /workload/measure \"auto\""
                                : ""));
}

}  // namespace

void check_long_enough(const Json& result, const Json& workload, const std::string& what) {
  if (const std::string why = describe_too_short(result, workload); !why.empty()) {
    throw ConfigError(fmt::format("/workload: a run of {} sessions is too short to tell {}: {}",
                                  result["workload"]["sessions"].get<std::int64_t>(), what, why));
  }
}

std::string describe_too_short(const Json& result, const Json& workload) {
  const std::optional<std::string> why = too_short(result);
  return why ? fmt::format("{}; {}", *why, advice(result, workload)) : "";
}

std::string describe_run_length(const Json& result) {
  constexpr double kPercent = 100;
  std::string text;
  if (const std::string why = describe_too_short(result, result["config"]["workload"]);
      !why.empty()) {
    text = "the run is too short: " + why;
  }
  const Json::json_pointer precision("/load/precision");
  if (result.contains(precision)) {
    const Json& grown = result.at(precision);
    text += fmt::format(
        "{}{} sessions{}: {}", text.empty() ? "" : "\n",
        result["workload"]["sessions"].get<std::int64_t>(),
        grown["reached"].is_null()
            ? ""
            : fmt::format(", mean TTFT and hit rate within {:.1f} % (95 %), {:.1f} % wanted",
                          grown["reached"].get<double>() * kPercent,
                          grown["wanted"].get<double>() * kPercent),
        grown["stopped_because"].get<std::string>());
  }
  return text;
}

Json simulate_to_precision(RunConfig& config, const PolicyRegistry& registry,
                           const RunOptions& options) {
  if (!config.workload.sessions.automatic) {
    return simulate(config, registry, options);
  }
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration duration) {
    return std::chrono::duration<double>(duration).count();
  };
  const Clock::time_point begin = Clock::now();
  // Observers must see only the final run, which is repeated for them.
  const bool is_observed =
      options.observer != nullptr || options.decisions != nullptr || options.on_start;
  RunOptions unseen = options;
  unseen.observer = nullptr;
  unseen.decisions = nullptr;
  unseen.on_start = nullptr;
  // Every session has at least one turn, so some turns follow the warm-up.
  config.workload.sessions = SessionCount(kFirstSessions + config.workload.warmup_turns);
  for (;; config.workload.sessions = SessionCount(2 * *config.workload.sessions)) {
    const Clock::time_point run_begin = Clock::now();
    Json result = simulate(config, registry, unseen);
    const std::optional<double> reached = precision_of(result);
    const char* stopped = nullptr;
    if (exceeds_capacity(result)) {
      stopped = "the load exceeds capacity";
    } else if (!too_short(result) && config.workload.precision == kAnyPrecision) {
      stopped = "the run is long enough";
    } else if (!too_short(result) && reached && *reached <= config.workload.precision) {
      stopped = "the precision is reached";
    } else if (2 * result["workload"]["turns"].get<std::int64_t>() > kMostTurns) {
      stopped = "a run of twice the turns would be too long";
    } else if (seconds(Clock::now() - begin) + 2 * seconds(Clock::now() - run_begin) >
               kGrowthSeconds) {
      stopped = "a run of twice the turns would take too much time";
    }
    if (stopped == nullptr) {
      continue;
    }
    if (is_observed) {
      result = simulate(config, registry, options);
    }
    result["load"]["precision"] = Json{{"wanted", config.workload.precision},
                                       {"reached", reached ? Json(*reached) : Json()},
                                       {"stopped_because", stopped}};
    return result;
  }
}

}  // namespace kvtier
