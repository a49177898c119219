#include "sim/study/runs/compare.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include <fmt/format.h>

#include "sim/core/build.hpp"
#include "sim/core/statistics.hpp"
#include "sim/study/runs/bound.hpp"
#include "sim/study/runs/find_capacity.hpp"
#include "sim/study/runs/model_error.hpp"
#include "sim/study/runs/run_length.hpp"
#include "sim/study/runs/summary.hpp"

namespace kvtier {
namespace {

constexpr std::size_t kLabelWidth = 32;
constexpr const char* kVerdict = "/load/verdict";

std::string cell(const Comparison::Column& column, const ResultRow& row) {
  const auto summary = summarize(column.results, row.pointer);
  if (!summary) {
    return "-";
  }
  std::string text = fmt::format(fmt::runtime(row.format), summary->mean * row.factor);
  if (column.results.size() > 1) {
    text += " (" + fmt::format(fmt::runtime(row.format), summary->spread * row.factor) + ")";
  }
  return text;
}

bool has_differences(const Comparison& comparison) {
  return comparison.columns.size() > 1 && comparison.columns.front().results.size() > 1;
}

/// Difference of `column` and `base`, over pairs of runs with the same seed; nullopt if a run lacks
/// the number.
std::optional<MeanInterval> difference(const Comparison::Column& column,
                                       const Comparison::Column& base, const ResultRow& row) {
  const auto numbers = numbers_at(column.results, row.pointer);
  const auto others = numbers_at(base.results, row.pointer);
  if (!numbers || !others) {
    return std::nullopt;
  }
  std::vector<double> differences;
  for (std::size_t i = 0; i < numbers->size(); ++i) {
    differences.push_back((*numbers)[i] - (*others)[i]);
  }
  return mean_interval(differences);
}

std::string difference_cell(const std::optional<MeanInterval>& difference, const ResultRow& row) {
  if (!difference) {
    return "-";
  }
  if (difference->mean == 0 && difference->half_width == 0) {
    return "same";
  }
  const auto number = [&](double value) {
    const std::string text = fmt::format(fmt::runtime(row.format), value * row.factor);
    return value > 0 ? "+" + text : text;
  };
  return fmt::format("{} ({} to {}){}", number(difference->mean), number(difference->low()),
                     number(difference->high()), difference->excludes_zero() ? " *" : "  ");
}

bool is_shown(const ResultRow& row, const Comparison& comparison) {
  const auto has_it = [&](const Comparison::Column& column) {
    const Json::json_pointer at{std::string(row.needs)};
    const Json& result = column.results.front();
    const Json* needed = find_at(result, at);
    return needed != nullptr && (needed->is_object() || (needed->is_number() && *needed != 0));
  };
  return row.needs == nullptr ||
         std::any_of(comparison.columns.begin(), comparison.columns.end(), has_it);
}

std::string measured_part(const Comparison::Column& column) {
  const auto is_stationary = [](const Json& result) {
    return result["load"]["measured"].value("stationary", false);
  };
  const auto stationary =
      std::count_if(column.results.begin(), column.results.end(), is_stationary);
  return stationary == std::ssize(column.results) ? "stationary state"
         : stationary == 0                        ? "all turns"
                                                  : "differs between runs";
}

std::string verdict(const Comparison::Column& column) {
  const Json::json_pointer at{std::string(kVerdict)};
  const std::string first = column.results.front().at(at).get<std::string>();
  const bool same = std::all_of(column.results.begin(), column.results.end(),
                                [&](const Json& result) { return result.at(at) == first; });
  return same ? first : "differs between runs";
}

/// With the largest share of the time, if the load exceeds capacity in a part of it.
std::string verdict_cell(const Comparison::Column& column) {
  const auto share = [](const Json& result) {
    return number_at(result, "/load/overloaded_fraction").value_or(0);
  };
  const std::string same = verdict(column);
  const auto worst = std::ranges::max_element(column.results, {}, share);
  return same == text_at(*worst, kVerdict) ? describe_verdict(*worst) : same;
}

/// Rows below those of numbers: a label, and a cell for each column.
using TextRow = std::pair<std::string, std::vector<std::string>>;

std::vector<TextRow> text_rows(const Comparison& comparison) {
  std::vector<TextRow> rows;
  const auto add = [&](const char* label, const auto& cell) {
    auto& cells = rows.emplace_back(label, std::vector<std::string>()).second;
    std::ranges::transform(comparison.columns, std::back_inserter(cells), cell);
  };
  for (const ModelErrorRow& row : model_error_rows()) {
    add(row.label, [&](const Comparison::Column& column) { return row.text(column.results); });
  }
  add("bottleneck",
      [](const Comparison::Column& column) { return describe_bottleneck(column.results); });
  add("measured", measured_part);
  add("verdict", verdict_cell);
  return rows;
}

bool is_overloaded(const Comparison::Column& column) {
  return std::any_of(column.results.begin(), column.results.end(), exceeds_capacity);
}

std::string heading(const Comparison::Column& column) {
  return column.system + (is_overloaded(column) ? " *" : "");
}

/// "0.21 sessions/s", or "not found".
std::string stable_rate(const Json& result) {
  const Json::json_pointer at("/load/highest_stable_rate");
  if (!result.contains(at) || result.at(at).is_null()) {
    return "not found";
  }
  return describe_rate(result.at(at)["varied"].get<std::string>(),
                       result.at(at)["rate"].get<double>());
}

constexpr const char* kRooflineTimes =
    "Times are those of the roofline, which are too short on most GPUs.";

/// A sentence if HBM holds less than a context window of the model.
std::string describe_window(const std::string& system, const Json& result) {
  const Json& kv = result["load"]["kv"];
  return kv.contains("context_window")
             ? fmt::format(
                   "\n{}: the context window is {} tokens of the model's {}: HBM holds no "
                   "more KV.\n",
                   system, kv["context_window"].get<std::int64_t>(),
                   kv["context_window_of_model"].get<std::int64_t>())
             : "";
}

/// A sentence if tiers behind HBM hold KV more than once.
std::string describe_copies(const std::string& system, const Json& result) {
  const double copies = number_at(result, "/load/kv/copies_behind_hbm").value_or(1);
  if (copies <= 1 || result["metrics"]["tiers"].size() < 2) {
    return "";
  }
  const auto gpus = result["load"]["kv"]["gpus_of_rank"].get<std::int64_t>();
  const auto heads = result["load"]["kv"]["kv_heads"].get<std::int64_t>();
  return fmt::format("\n{}: tiers behind HBM hold {:.3g} copies of KV: {}.\n", system, copies,
                     result["load"]["kv"]["latent"].get<bool>()
                         ? fmt::format("each of {} GPUs writes all rows of latent attention", gpus)
                         : fmt::format("{} GPUs, {} KV heads", gpus, heads));
}

/// Adds the times of one profile to the counts of another use of it.
void add_timing(Json& sum, const Json& timing) {
  for (const char* part : {"prefills", "decode_iterations"}) {
    for (const char* count : {"total", "extrapolated"}) {
      Json& counted = sum[part][count];
      counted = timing[part][count].get<std::int64_t>() +
                (counted.is_null() ? std::int64_t{0} : counted.get<std::int64_t>());
    }
  }
}

/// "99.1 % and 3.2 %": the shares of prefills and decode iterations that a profile did not measure;
/// empty: none.
std::string describe_extrapolation(const Json& timing) {
  const auto percent = [&](const char* part) {
    const auto total = timing[part]["total"].get<double>();
    return total > 0 ? 100 * timing[part]["extrapolated"].get<double>() / total : 0;
  };
  const double prefills = percent("prefills");
  const double decode = percent("decode_iterations");
  return prefills + decode > 0 ? fmt::format("{:.1f} % and {:.1f} %", prefills, decode) : "";
}

/// The shares of mixed times, and the columns whose order with the first one is not certain.
std::string describe_model_errors(const Comparison& comparison) {
  std::string mixtures;
  std::string orders;
  std::optional<ComparedTimes> first;
  for (const Comparison::Column& column : comparison.columns) {
    const auto own = compared_times(column.system, column.results);
    if (!own) {
      continue;
    }
    const std::string mixture = describe_mixture(own->error);
    if (!mixture.empty()) {
      mixtures += fmt::format("  {}: {}\n", column.system, mixture);
    }
    if (!first) {
      first = own;
      continue;
    }
    const std::string order = describe_uncertain_order(*first, *own);
    orders += order.empty() ? "" : fmt::format("\n{}\n", order);
  }
  return (mixtures.empty() ? "" : "\nSources of times:\n" + mixtures) + orders;
}

/// Sentences below the table, on the columns that need them.
std::string notes(const Comparison& comparison) {
  std::string text;
  std::vector<std::string> rates;
  std::vector<std::pair<std::string, const Json*>> first_results;
  for (const Comparison::Column& column : comparison.columns) {
    if (is_overloaded(column)) {
      const auto searched =
          std::find_if(column.results.begin(), column.results.end(), exceeds_capacity);
      rates.push_back(fmt::format("{} {}", column.system, stable_rate(*searched)));
    }
    const std::string full = tiers_without_evictions(column.results.front(), true);
    if (!full.empty()) {
      text += fmt::format("\n{}: {} evicts nothing, and new KV found no room there.\n",
                          column.system, full);
    }
    text += describe_window(column.system, column.results.front());
    text += describe_copies(column.system, column.results.front());
    const Json& metrics = column.results.front()["metrics"];
    if (metrics.contains("cluster") && metrics["cluster"].value("router_ignores_tiers", false)) {
      text += fmt::format(
          "\n{}: router {} knows the prompts that it sent to each instance, not what the "
          "tiers behind HBM hold.\n",
          column.system, metrics["cluster"]["router"].get<std::string>());
    }
    first_results.emplace_back(column.system, &column.results.front());
    const std::string length = describe_run_length(column.results.front());
    if (!length.empty()) {
      text += fmt::format("\n{}: {}\n", column.system, length);
    }
  }
  std::set<std::string> sources;
  std::map<std::string, std::vector<std::string>> outside_by_profile;
  for (const Comparison::Column& column : comparison.columns) {
    const Json& result = column.results.front();
    Json timings = result.value("timing_of_groups", Json::array());
    if (result.contains("timing")) {
      timings.push_back(result["timing"]);
    }
    if (timings.empty()) {
      sources.insert(kRooflineTimes);
    }
    std::map<std::string, Json> by_profile;
    for (const Json& timing : timings) {
      const auto profile = timing["profile"].get<std::string>();
      if (timing.value("source", "measured") == "sibling") {
        sources.insert("Times were not measured on this GPU: profile " + profile + ".");
      }
      add_timing(by_profile[profile], timing);
    }
    for (const auto& [profile, timing] : by_profile) {
      const std::string outside = describe_extrapolation(timing);
      if (!outside.empty()) {
        outside_by_profile[profile].push_back(column.system + " " + outside);
      }
    }
  }
  for (const std::string& source : sources) {
    text += fmt::format("\n{}\n", source);
  }
  for (const auto& [profile, outside] : outside_by_profile) {
    text += fmt::format("\nPrefills and decode iterations beyond the tables of profile {}: {}.\n",
                        profile, fmt::join(outside, ", "));
  }
  text += describe_model_errors(comparison);
  for (const std::string& line : describe_filling(first_results)) {
    text += fmt::format("\n{}\n", line);
  }
  if (!rates.empty()) {
    text += fmt::format(
        "\n* The load exceeds capacity: every number of this column depends on the length of the "
        "run, hit rates too.\n  Highest stable rate: {}.\n",
        fmt::join(rates, ", "));
  }
  return text;
}

std::string difference_table(const Comparison& comparison) {
  const Comparison::Column& base = comparison.columns.front();
  std::vector<std::pair<const char*, std::vector<std::string>>> lines;
  std::vector<std::size_t> widths;
  for (std::size_t i = 1; i < comparison.columns.size(); ++i) {
    widths.push_back(comparison.columns[i].system.size());
  }
  for (const ResultRow& row : result_rows()) {
    if (!is_shown(row, comparison)) {
      continue;
    }
    std::vector<std::string> cells;
    for (std::size_t i = 1; i < comparison.columns.size(); ++i) {
      cells.push_back(difference_cell(difference(comparison.columns[i], base, row), row));
      widths[i - 1] = std::max(widths[i - 1], cells.back().size());
    }
    lines.emplace_back(row.label, std::move(cells));
  }
  std::string text = fmt::format(
      "\ndifference from {}, mean over pairs of runs with the same seed (95 % interval)\n"
      "*: the interval is on one side of 0 (by chance alone, that of one row in 20 is)\n\n{:<{}}",
      base.system, "", kLabelWidth);
  for (std::size_t i = 0; i < widths.size(); ++i) {
    text += fmt::format("  {:>{}}", comparison.columns[i + 1].system, widths[i]);
  }
  text += "\n";
  for (const auto& [label, cells] : lines) {
    std::string line = fmt::format("{:<{}}", label, kLabelWidth);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      line += fmt::format("  {:>{}}", cells[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace

namespace {

/// Gives all systems the number of sessions of the system that needs most for its precision.
void give_sessions(std::vector<ResolvedConfig>& configs, const PolicyRegistry& registry,
                   const RunOptions& options) {
  if (!configs.front().config.workload.sessions.automatic) {
    return;
  }
  SessionCount most;
  for (const ResolvedConfig& one : configs) {
    RunConfig config = one.config;
    RunOptions run;
    run.progress = options.progress;
    run.base_dir = one.base_dir;
    (void)simulate_to_precision(config, registry, run);
    most = SessionCount(std::max(most.value_or(0), *config.workload.sessions));
  }
  for (ResolvedConfig& one : configs) {
    one.config.workload.sessions = most;
  }
}

}  // namespace

std::vector<ResolvedConfig> resolve_systems(const ConfigRequest& request,
                                            const std::vector<std::string>& systems,
                                            const ConfigDirectory& presets,
                                            const PolicyRegistry& registry) {
  std::vector<ResolvedConfig> configs;
  std::vector<std::string> problems;
  for (const Override& change : request.overrides) {
    if (change.pointer == "/system") {
      problems.emplace_back("--set: /system: --systems says which systems are compared");
    }
  }
  for (auto system = systems.begin(); system != systems.end(); ++system) {
    if (system->empty()) {
      problems.emplace_back("--systems: expected names separated by commas, got an empty one");
    } else if (std::find(systems.begin(), system, *system) != system) {
      problems.push_back(fmt::format("--systems: {} is given twice", *system));
    }
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  for (const std::string& system : systems) {
    ConfigRequest one = request;
    one.system = system;
    try {
      configs.push_back(resolve_config(one, presets, registry));
    } catch (const ConfigError& error) {
      for (const std::string& problem : error.problems()) {
        if (std::find(problems.begin(), problems.end(), problem) == problems.end()) {
          problems.push_back(problem);
        }
      }
    }
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  return configs;
}

Comparison compare_systems(const ConfigRequest& request, const std::vector<std::string>& systems,
                           std::int64_t replications, bool with_bound,
                           const ConfigDirectory& presets, const PolicyRegistry& registry,
                           const RunOptions& options,
                           const std::function<void(std::int64_t, std::int64_t)>& progress) {
  return compare_systems(resolve_systems(request, systems, presets, registry), systems,
                         replications, with_bound, registry, options, progress);
}

Comparison compare_systems(std::vector<ResolvedConfig> configs,
                           const std::vector<std::string>& systems, std::int64_t replications,
                           bool with_bound, const PolicyRegistry& registry,
                           const RunOptions& options,
                           const std::function<void(std::int64_t, std::int64_t)>& progress) {
  give_sessions(configs, registry, options);
  const auto all = static_cast<std::int64_t>(systems.size()) * replications;
  std::int64_t done = 0;
  if (progress) {
    progress(done, all);  // the time left counts from here
  }
  Comparison comparison;
  for (std::size_t i = 0; i < systems.size(); ++i) {
    Comparison::Column column{systems[i], {}};
    for (std::int64_t r = 0; r < replications; ++r) {
      RunConfig config = configs[i].config;
      config.seed += r;
      RunOptions run = options;
      run.base_dir = configs[i].base_dir;
      column.results.push_back(simulate(config, registry, run));
      if (exceeds_capacity(column.results.back()) &&
          std::none_of(column.results.begin(), column.results.end() - 1, exceeds_capacity)) {
        add_stable_rate(column.results.back(), configs[i], registry, run);
      }
      if (with_bound) {
        column.results.back()["bound"] = untimed_bound(config, registry, run);
      }
      if (progress) {
        progress(++done, all);
      }
    }
    comparison.columns.push_back(std::move(column));
  }
  return comparison;
}

Json to_json(const Comparison& comparison) {
  Json json = new_result("kvtier.compare/1");
  json["systems"] = Json::object();
  for (const Comparison::Column& column : comparison.columns) {
    Json summary = Json::object();
    for (const ResultRow& row : result_rows()) {
      if (const auto value = summarize(column.results, row.pointer)) {
        summary[row.pointer] = Json{{"mean", value->mean}, {"spread", value->spread}};
      }
    }
    Json& system = json["systems"][column.system];
    system = Json{{"verdict", verdict(column)}, {"summary", summary}};
    const Comparison::Column& base = comparison.columns.front();
    if (has_differences(comparison) && &column != &base) {
      Json differences = Json::object();
      for (const ResultRow& row : result_rows()) {
        if (const auto found = difference(column, base, row)) {
          differences[row.pointer] = Json{{"mean", found->mean},
                                          {"low", found->low()},
                                          {"high", found->high()},
                                          {"significant", found->excludes_zero()}};
        }
      }
      system["difference_from"] = base.system;
      system["differences"] = differences;
    }
    system["results"] = column.results;
  }
  return json;
}

std::string to_table(const Comparison& comparison) {
  const std::vector<TextRow> rows = text_rows(comparison);
  std::vector<std::size_t> widths;
  for (const Comparison::Column& column : comparison.columns) {
    std::size_t width = heading(column).size();
    for (const auto& [label, cells] : rows) {
      width = std::max(width, cells[widths.size()].size());
    }
    for (const ResultRow& row : result_rows()) {
      width = std::max(width, cell(column, row).size());
    }
    widths.push_back(width + 2);
  }
  const Json& first = comparison.columns.front().results.front();
  std::string text = describe_run(first);
  if (comparison.columns.front().results.size() > 1) {
    text += fmt::format("mean of {} seeds (largest - smallest)\n",
                        comparison.columns.front().results.size());
  }
  text += fmt::format("\n{:<{}}", "", kLabelWidth);
  for (std::size_t i = 0; i < widths.size(); ++i) {
    text += fmt::format("{:>{}}", heading(comparison.columns[i]), widths[i]);
  }
  text += "\n";
  for (const ResultRow& row : result_rows()) {
    if (!is_shown(row, comparison)) {
      continue;
    }
    text += fmt::format("{:<{}}", row.label, kLabelWidth);
    for (std::size_t i = 0; i < widths.size(); ++i) {
      text += fmt::format("{:>{}}", cell(comparison.columns[i], row), widths[i]);
    }
    text += "\n";
  }
  for (const auto& [label, cells] : rows) {
    text += fmt::format("{:<{}}", label, kLabelWidth);
    for (std::size_t i = 0; i < widths.size(); ++i) {
      text += fmt::format("{:>{}}", cells[i], widths[i]);
    }
    text += "\n";
  }
  if (has_differences(comparison)) {
    text += difference_table(comparison);
  }
  std::string compressed;
  constexpr double kPercent = 100;
  for (const Comparison::Column& column : comparison.columns) {
    if (const auto kept = number_at(column.results.front(), "/metrics/compression/kept_share")) {
      compressed += fmt::format(
          "{} keeps {:.1f} % of the KV that it stores; what that costs in accuracy is not "
          "simulated.\n",
          column.system, *kept * kPercent);
    }
  }
  if (!compressed.empty()) {
    text += "\n" + compressed;
  }
  std::string load_waits;
  for (const Comparison::Column& column : comparison.columns) {
    load_waits += describe_load_waits(column.system, column.results);
  }
  if (!load_waits.empty()) {
    text += "\n" + load_waits;
  }
  text += notes(comparison);
  return text;
}

}  // namespace kvtier
