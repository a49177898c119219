#include "sim/study/compare.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "sim/core/statistics.hpp"
#include "sim/study/summary.hpp"

namespace kvtier {
namespace {

/// One row of the table: where its number stands in a result and how it is shown.
struct Row {
  const char* label;
  const char* pointer;
  double factor;
  const char* format;  // of the scaled number
  /// A tier without which the row is left out of tables, if no system uses it.
  const char* tier = nullptr;
};

constexpr double kPerHour = 1.0 / 3600;
constexpr double kMillis = 1000;
constexpr double kPercent = 100;

constexpr Row kRows[] = {
    {"hit rate, all turns %", "/metrics/hit_rate/all_turns/total", 100, "{:.1f}"},
    {"  of which in HBM %", "/metrics/hit_rate/all_turns/hbm", 100, "{:.1f}"},
    {"  of which in DRAM %", "/metrics/hit_rate/all_turns/dram", 100, "{:.1f}"},
    {"  of which in CXL %", "/metrics/hit_rate/all_turns/cxl", 100, "{:.1f}",
     "/config/system/tiers/cxl"},
    {"  of which in SSD %", "/metrics/hit_rate/all_turns/ssd", 100, "{:.1f}"},
    {"hit rate, resumed turns %", "/metrics/hit_rate/resumed_turns/total", 100, "{:.1f}"},
    {"hit rate, tokens %", "/metrics/hit_rate/tokens/total", 100, "{:.1f}"},
    {"TTFT mean s", "/metrics/ttft_seconds/mean", 1, "{:.3f}"},
    {"TTFT p90 s", "/metrics/ttft_seconds/p90", 1, "{:.3f}"},
    {"TTFT without queueing, mean ms", "/metrics/ttft_seconds_without_queueing/mean", kMillis,
     "{:.1f}"},
    {"TTFT without queueing, p90 ms", "/metrics/ttft_seconds_without_queueing/p90", kMillis,
     "{:.1f}"},
    {"TPOT mean ms", "/metrics/tpot_seconds/mean", kMillis, "{:.1f}"},
    {"prefill throughput, tokens/s", "/metrics/prefill_throughput_tokens_per_second", 1, "{:.0f}"},
    {"output throughput, tokens/s", "/metrics/output_throughput_tokens_per_second", 1, "{:.0f}"},
    {"GPU hours", "/metrics/gpu_seconds/total", kPerHour, "{:.2f}"},
    {"  prefill", "/metrics/gpu_seconds/prefill", kPerHour, "{:.2f}"},
    {"  decode", "/metrics/gpu_seconds/decode", kPerHour, "{:.2f}"},
    {"  waiting for loads", "/metrics/gpu_seconds/exposed_load", kPerHour, "{:.2f}"},
    {"  waiting for saves", "/metrics/gpu_seconds/exposed_save", kPerHour, "{:.2f}"},
    {"dollars, busy time", "/metrics/busy_cost_dollars/total", 1, "{:.2f}"},
    {"dollars, rented time", "/metrics/cost_dollars/total", 1, "{:.2f}"},
    {"utilization %", "/load/utilization", 100, "{:.1f}"},
};

constexpr std::size_t kLabelWidth = 32;
constexpr const char* kVerdict = "/load/verdict";

std::string cell(const Comparison::Column& column, const Row& row) {
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

/// What `column` has more than `base`, over pairs of runs with the same seed; nullopt where a run
/// has no such number.
std::optional<MeanInterval> difference(const Comparison::Column& column,
                                       const Comparison::Column& base, const Row& row) {
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

std::string difference_cell(const std::optional<MeanInterval>& difference, const Row& row) {
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

bool is_shown(const Row& row, const Comparison& comparison) {
  const auto uses_tier = [&](const Comparison::Column& column) {
    return column.results.front().at(Json::json_pointer(row.tier)).is_object();
  };
  return row.tier == nullptr ||
         std::any_of(comparison.columns.begin(), comparison.columns.end(), uses_tier);
}

std::string verdict(const Comparison::Column& column) {
  const Json::json_pointer at{std::string(kVerdict)};
  const std::string first = column.results.front().at(at).get<std::string>();
  const bool same = std::all_of(column.results.begin(), column.results.end(),
                                [&](const Json& result) { return result.at(at) == first; });
  return same ? first : "differs between runs";
}

std::string difference_table(const Comparison& comparison) {
  const Comparison::Column& base = comparison.columns.front();
  std::vector<std::pair<const char*, std::vector<std::string>>> lines;
  std::vector<std::size_t> widths;
  for (std::size_t i = 1; i < comparison.columns.size(); ++i) {
    widths.push_back(comparison.columns[i].system.size());
  }
  for (const Row& row : kRows) {
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

Comparison compare_systems(const ConfigRequest& request, const std::vector<std::string>& systems,
                           std::int64_t replications, const ConfigDirectory& presets,
                           const PolicyRegistry& registry, const RunOptions& options,
                           const std::function<void(std::int64_t, std::int64_t)>& progress) {
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
  const auto all = static_cast<std::int64_t>(systems.size()) * replications;
  std::int64_t done = 0;
  Comparison comparison;
  for (std::size_t i = 0; i < systems.size(); ++i) {
    Comparison::Column column{systems[i], {}};
    for (std::int64_t r = 0; r < replications; ++r) {
      RunConfig config = configs[i].config;
      config.seed += r;
      RunOptions run = options;
      run.base_dir = configs[i].base_dir;
      column.results.push_back(simulate(config, registry, run));
      if (progress) {
        progress(++done, all);
      }
    }
    comparison.columns.push_back(std::move(column));
  }
  return comparison;
}

Json to_json(const Comparison& comparison) {
  Json json{{"format", "kvtier.compare/1"}};
  json["systems"] = Json::object();
  for (const Comparison::Column& column : comparison.columns) {
    Json summary = Json::object();
    for (const Row& row : kRows) {
      if (const auto value = summarize(column.results, row.pointer)) {
        summary[row.pointer] = Json{{"mean", value->mean}, {"spread", value->spread}};
      }
    }
    Json& system = json["systems"][column.system];
    system = Json{{"verdict", verdict(column)}, {"summary", summary}};
    const Comparison::Column& base = comparison.columns.front();
    if (has_differences(comparison) && &column != &base) {
      Json differences = Json::object();
      for (const Row& row : kRows) {
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
  std::vector<std::size_t> widths;
  for (const Comparison::Column& column : comparison.columns) {
    std::size_t width = std::max(column.system.size(), verdict(column).size());
    for (const Row& row : kRows) {
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
    text += fmt::format("{:>{}}", comparison.columns[i].system, widths[i]);
  }
  text += "\n";
  for (const Row& row : kRows) {
    if (!is_shown(row, comparison)) {
      continue;
    }
    text += fmt::format("{:<{}}", row.label, kLabelWidth);
    for (std::size_t i = 0; i < widths.size(); ++i) {
      text += fmt::format("{:>{}}", cell(comparison.columns[i], row), widths[i]);
    }
    text += "\n";
  }
  text += fmt::format("{:<{}}", "verdict", kLabelWidth);
  bool overloaded = false;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const std::string word = verdict(comparison.columns[i]);
    const std::vector<Json>& results = comparison.columns[i].results;
    overloaded = overloaded || std::all_of(results.begin(), results.end(), exceeds_capacity);
    text += fmt::format("{:>{}}", word, widths[i]);
  }
  text += "\n";
  if (has_differences(comparison)) {
    text += difference_table(comparison);
  }
  std::string compressed;
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
  if (overloaded) {
    text +=
        "\nWhere the load exceeds capacity the queue grows as long as sessions arrive: TTFT with "
        "queueing then says how "
        "long\nthe run was, not how a server would do. Hit rates, TTFT without queueing and GPU "
        "time keep their meaning.\n";
  }
  return text;
}

}  // namespace kvtier
