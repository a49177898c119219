#include "sim/study/sweep/sweep_columns.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/core/text.hpp"
#include "sim/serving/simulate.hpp"
#include "sim/study/runs/bound.hpp"
#include "sim/study/runs/expect.hpp"
#include "sim/study/runs/summary.hpp"

namespace kvtier {
namespace {

constexpr std::int64_t kShortSessions = 8;
constexpr std::size_t kMostShortRuns = 32;
constexpr const char* kBound = "/bound";
/// Parts of a result that only runs with enough turns have.
constexpr std::array kOfLongRuns{"/metrics/classes", "/metrics/confidence", "/load/precision"};

/// The parts of a config on which the keys of its results depend.
std::string structure_of(const RunConfig& config) {
  const Json json = write_value(config);
  const auto part = [&json](const char* key) { return json.value(key, Json()); };
  Json workload = part("workload");
  for (const char* key : {"sessions", "warmup_turns", "arrival_rate", "request_rate"}) {
    workload.erase(key);
  }
  return json_text(
      Json{part("system"), part("cluster"), workload, config.hardware.profile.has_value()});
}

/// The result of a run of the first sessions; nullopt if it fails. The sweep's runs then say why.
std::optional<Json> short_result(const Sweep& sweep, const ResolvedConfig& resolved,
                                 const PolicyRegistry& registry) {
  RunConfig config = resolved.config;
  config.workload.sessions =
      SessionCount(std::min(config.workload.sessions.value_or(kShortSessions), kShortSessions));
  config.workload.warmup_turns = 0;
  RunOptions how;
  how.base_dir = resolved.base_dir;
  try {
    Json result = simulate(config, registry, how);
    if (sweep.bound) {
      result["bound"] = untimed_bound(config, registry, how);
    }
    return result;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

/// The longest part of a pointer that a result has.
Json::json_pointer deepest_of(const Json& result, Json::json_pointer at) {
  while (find_at(result, at) == nullptr) {
    at = at.parent_pointer();
  }
  return at;
}

/// Whether a longer run like that of `result` may have a number at a column's pointer.
bool may_have(const Json& result, const std::string& metric) {
  if (std::ranges::any_of(kOfLongRuns,
                          [&](const char* part) { return metric.starts_with(part); })) {
    return true;
  }
  const Json::json_pointer whole(metric);
  const Json::json_pointer deepest = deepest_of(result, whole);
  const Json& value = *find_at(result, deepest);
  if (value.is_null()) {
    return deepest.to_string() != kBound;  // an empty distribution is null
  }
  return deepest == whole ? value.is_number() : value.is_array();
}

void add_numbers(const Json& value, const std::string& pointer, std::vector<std::string>& numbers) {
  if (value.is_number()) {
    numbers.push_back(pointer);
  } else if (value.is_object()) {
    for (const auto& [key, below] : value.items()) {
      add_numbers(below, pointer + "/" + escape_pointer(key), numbers);
    }
  }
}

/// Numbers that could be meant: the closest one in the deepest common part, or the first ones
/// there.
std::string alternatives(const std::vector<Json>& results, const std::string& metric) {
  if (const std::string renamed = renamed_pointer(metric); !renamed.empty()) {
    return fmt::format(" (write {})", renamed);
  }
  std::string deepest;
  for (const Json& result : results) {
    const std::string own = deepest_of(result, Json::json_pointer(metric)).to_string();
    deepest = own.size() > deepest.size() ? own : deepest;
  }
  std::vector<std::string> known;
  for (const Json& result : results) {
    if (const Json* part = find_at(result, Json::json_pointer(deepest))) {
      add_numbers(*part, deepest, known);
    }
  }
  std::string closest = suggestion(metric, known);
  if (!closest.empty() || known.empty()) {
    return closest;
  }
  std::vector<std::string> shown;
  constexpr std::size_t kMostShown = 8;
  for (std::size_t i = 0; i < known.size() && shown.size() < kMostShown; ++i) {
    if (std::ranges::find(shown, known[i]) == shown.end()) {
      shown.push_back(known[i]);
    }
  }
  return fmt::format("; numbers in {} are {}", deepest, fmt::join(shown, ", "));
}

}  // namespace

void check_columns(const Sweep& sweep, const SweepPoints& points, const PolicyRegistry& registry) {
  std::vector<std::size_t> missing(sweep.columns.size());
  std::iota(missing.begin(), missing.end(), std::size_t{0});
  std::set<std::string> structures;
  std::vector<Json> results;
  for (const SweepPoint& point : points.checked()) {
    if (!point.resolved || !structures.insert(structure_of(point.resolved->config)).second) {
      continue;
    }
    std::optional<Json> result = short_result(sweep, *point.resolved, registry);
    if (!result || results.size() == kMostShortRuns) {
      return;  // another run may have the columns
    }
    std::erase_if(missing,
                  [&](std::size_t i) { return may_have(*result, sweep.columns[i].metric); });
    if (missing.empty()) {
      return;
    }
    results.push_back(*std::move(result));
  }
  Problems problems;
  problems.set_origin("", sweep.file.string());
  for (const std::size_t i : missing) {
    const std::string& metric = sweep.columns[i].metric;
    problems.add(fmt::format("/columns/{}/value", i),
                 fmt::format("no result of this sweep has a number at {}{}", metric,
                             alternatives(results, metric)));
  }
  problems.throw_if_any();
}

}  // namespace kvtier
