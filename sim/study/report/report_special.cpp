/// Special kinds of charts: lines over a capacity, hit rates of blocks, and charts of clusters,
/// searches, reproductions and validations.

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "sim/study/report/report_draw.hpp"
#include "sim/study/runs/summary.hpp"

namespace kvtier::charts {
namespace {

// ---- Over capacity ----------------------------------------------------------------------------

constexpr std::size_t kStackedMost = 6;

/// Runs that differ only in one capacity.
struct Family {
  /// The tier, or an axis of sizes of a sweep.
  std::string dimension;
  /// The runs' common settings.
  std::string key;
  std::string label;
  std::map<double, std::vector<const ReportRun*>> runs;
};

/// Finds or adds a family. Families of one dimension are adjacent.
Family& family_of(std::vector<Family>& all, const std::string& dimension, const std::string& key) {
  const auto same_dimension = [&](const Family& one) { return one.dimension == dimension; };
  const auto found = std::find_if(all.begin(), all.end(), [&](const Family& one) {
    return same_dimension(one) && one.key == key;
  });
  if (found != all.end()) {
    return *found;
  }
  const auto last = std::find_if(all.rbegin(), all.rend(), same_dimension);
  return *all.insert(last == all.rend() ? all.end() : last.base(), {dimension, key, "", {}});
}

Number size_of(const std::string& label) {
  const auto bytes = parse_quantity<Bytes>(label);
  return bytes ? Number(static_cast<double>(bytes->value)) : std::nullopt;
}

/// Adds a run to a family for each of its capacities: each axis of sizes, or each tier that its
/// config uses.
void add_run(const Report& report, const ReportRun& run, std::vector<Family>& all) {
  auto axes = run.axes;
  std::string fixed = std::to_string(run.input);
  std::string system;
  if (axes.empty() && run.results.front().contains("config")) {
    Json config = run.results.front()["config"];
    system = text_at(config, "/system/name");
    for (const auto& [tier, name] : kTierNames) {
      const std::string capacity = text_at(config, fmt::format("/hardware/{}/capacity", tier));
      const Json* used = find_at(config, Json::json_pointer(fmt::format("/system/tiers/{}", tier)));
      if (size_of(capacity) && used != nullptr && used->is_object()) {
        axes.emplace_back(name, capacity);
        config["hardware"][tier].erase("capacity");
      }
    }
    config.erase("seed");
    fixed = json_text(config);
  }
  for (const auto& [name, label] : axes) {
    const Number bytes = size_of(label);
    if (!bytes) {
      continue;
    }
    std::vector<std::string> rest;
    std::string key = fixed;
    for (const auto& [other, other_label] : axes) {
      if (other != name) {
        rest.push_back(other_label);
        key += "\n" + other + "\n" + other_label;
      }
    }
    Family& family = family_of(all, name, key);
    const std::string& input = report.inputs[run.input].label;
    family.label = run.axes.empty()           ? system
                   : rest.empty()             ? input
                   : report.inputs.size() > 1 ? input + ": " + detail::join(rest, ", ")
                                              : detail::join(rest, ", ");
    family.runs[*bytes].push_back(&run);
  }
}

/// Families with several capacities, with different labels.
std::vector<Family> families_of(const Report& report) {
  std::vector<Family> all;
  for (const ReportRun& run : report.runs) {
    add_run(report, run, all);
  }
  std::erase_if(all, [](const Family& family) { return family.runs.size() < 2; });
  std::map<std::pair<std::string, std::string>, int> uses;
  for (Family& family : all) {
    if (++uses[{family.dimension, family.label}] > 1) {
      family.label += fmt::format(" (as {})", family.runs.begin()->second.front()->label);
    }
  }
  return all;
}

/// The value over the capacity, for capacities at which all runs have it.
Points points_of(const Entry& entry, const Value& value, const Family& family) {
  Points points;
  for (const auto& [bytes, runs] : family.runs) {
    const Number mean =
        mean_of(runs, [&](const ReportRun* run) { return mean_at(*run, value.pointer); });
    if (mean) {
      points.emplace_back(bytes, *shown(entry.unit, mean));
    }
  }
  return points;
}

std::string size_text(double bytes) {
  constexpr double kLargest = 9e18;
  return bytes >= 0 && bytes < kLargest ? format_quantity(Bytes(static_cast<std::int64_t>(bytes)))
                                        : fmt::format("{:.4g}B", bytes);
}

/// Lines over a capacity, and their table.
struct CapacityChart {
  std::string dimension;
  std::string family;
  std::vector<Line> lines;

  [[nodiscard]] ReportChart draw(const Entry& entry) const {
    const std::string x_title = fmt::format(fmt::runtime(entry.x_title), dimension);
    ReportChart chart{fmt::format(fmt::runtime(entry.title), dimension, family), entry.note};
    chart.table.header = {x_title};
    std::map<double, std::vector<std::string>> rows;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      chart.table.header.push_back(lines[i].name);
      for (const auto& [bytes, number] : lines[i].points) {
        auto& row = rows.try_emplace(bytes, lines.size() + 1, "-").first->second;
        row[0] = size_text(bytes);
        row[i + 1] = text_of(number);
      }
    }
    for (auto& [bytes, row] : rows) {
      chart.table.rows.push_back(std::move(row));
    }
    draw_lines(chart, entry, lines, axis(x_title, "log", "bytes"));
    return chart;
  }
};

// ---- Validations ------------------------------------------------------------------------------

bool is_rate(const Json& row) { return text_at(row, "/metric").starts_with("hit_rate."); }
bool is_latency(const Json& row) {
  const std::string metric = text_at(row, "/metric");
  return metric.find("_seconds.") != std::string::npos && !metric.starts_with("gpu_seconds");
}

/// An error as text: in points for a rate, otherwise in % of the measured number.
std::string share_text(const Json& row, const char* pointer, const char* format) {
  const Number value = shown(kPercent, number_at(row, pointer));
  return value ? fmt::format(fmt::runtime(format), *value, is_rate(row) ? "pt" : "%") : "-";
}

std::string verdict_text(const Json& json) {
  const Json* in_band = find_at(json, Json::json_pointer("/in_band"));
  return in_band == nullptr || !in_band->is_boolean() ? "-" : *in_band == true ? "in" : "OUT";
}

/// Rows of validations with their labels in the chart.
using BesideRows = std::vector<std::pair<std::string, const Json*>>;

/// Adds a chart of rows, if there are any. All rows must be rates, or all latencies.
void add_beside(const Entry& entry, const std::string& input, const std::string& metrics,
                const char* first, const BesideRows& rows, ReportSection& section) {
  if (rows.empty()) {
    return;
  }
  const bool are_rates = is_rate(*rows.front().second);
  std::vector<Bar> bars;
  for (const auto& [label, row] : rows) {
    const std::string verdict = verdict_text(*row);
    Bar& bar = bars.emplace_back(
        Bar{.name = label, .numbers = {}, .mark = verdict == "OUT" ? " (OUT)" : ""});
    for (const Value& value : entry.values) {
      bar.numbers.push_back(shown(are_rates ? kPercent : Unit{}, number_at(*row, value.pointer)));
    }
    bar.cells = {share_text(*row, "/error", "{:+.2f} {}"), share_text(*row, "/band", "{:.4g} {}"),
                 verdict};
    // With one measured run, the measured value is also the lowest and the highest.
    bar.instead = 1;
  }
  ReportChart chart{fmt::format(fmt::runtime(entry.title), input, metrics), entry.note};
  chart.table.header = {first};
  draw_bars(chart, entry, entry.values, bars, axis(are_rates ? "%" : "seconds"), "rows");
  section.charts.push_back(std::move(chart));
}

std::string describe_validations(const ReportValidations& validations) {
  std::vector<std::string> out;
  for (const ReportDocument& one : validations.points) {
    if (verdict_text(one.json) != "in") {
      const Number load = number_at(one.json, "/occupied_fraction");
      out.push_back(fmt::format("{} (occupied {})", one.label.empty() ? "it" : one.label,
                                load ? fmt::format("{:.2f}", *load) : "not known"));
    }
  }
  return fmt::format("{}: on {}, {}.", validations.label,
                     text_at(validations.points.front().json, "/device"),
                     out.empty() ? "all in band" : "out of band: " + detail::join(out, ", "));
}

// ---- Searches, papers -------------------------------------------------------------------------

/// The short name of a metric: "ttft_seconds.p90" for "/metrics/ttft_seconds/p90".
std::string name_of_metric(std::string pointer) {
  constexpr std::string_view kMetrics = "/metrics/";
  if (pointer.starts_with(kMetrics)) {
    pointer.erase(0, kMetrics.size());
    std::replace(pointer.begin(), pointer.end(), '/', '.');
  }
  return pointer;
}

/// The varied number of a search's trial: a rate, or a trace's speed-up.
Number varied_of(const Json& trial) { return varied_at(trial, "rate"); }

/// The band of a value in the form of the table of `reproduce`.
std::string band_text(const Json& value) {
  const Number paper = number_at(value, "/paper");
  const Number absolute = number_at(value, "/band/absolute");
  const Number relative = number_at(value, "/band/relative");
  const std::string side = text_at(value, "/band/side");
  if (!paper || (!absolute && !relative)) {
    return "-";
  }
  const double distance = absolute ? *absolute : *relative * std::abs(*paper);
  return side == "at_most"    ? fmt::format("<= {:g}", *paper + distance)
         : side == "at_least" ? fmt::format(">= {:g}", *paper - distance)
         : absolute           ? fmt::format("+-{:g}", *absolute)
                              : fmt::format("+-{:g} %", *shown(kPercent, relative));
}

}  // namespace

void prompt_hits(const Entry& entry, const Report& report, ReportSection& section) {
  struct Rate {
    const char* name;
    const char* pointer;
    /// Hits of a cache without limit.
    const char* ceiling;
    const char* bound;
  };
  constexpr Rate kRates[] = {{"requests", "/metrics/hit_rate/requests_with_hits",
                              "/metrics/hit_rate/ideal/requests_with_hits", ""},
                             {"blocks", "/metrics/hit_rate/blocks/total",
                              "/metrics/hit_rate/ideal/blocks", "/bound/hit_rate/blocks"},
                             {"prompt tokens", "/metrics/hit_rate/prompt_tokens/total",
                              "/metrics/hit_rate/ideal/prompt_tokens", ""}};
  ReportChart chart{entry.title, entry.note};
  chart.table.header = {"run", "of", "hit rate", "ceiling", "bound"};
  for (const ReportRun& run : report.runs) {
    for (const Rate& rate : kRates) {
      if (const auto found = mean_at(run, rate.pointer)) {
        const bool is_bounded = *rate.bound != '\0';
        chart.table.rows.push_back(
            {run.label, rate.name, text_of(shown(entry.unit, found)),
             text_of(shown(entry.unit, mean_at(run, rate.ceiling))),
             text_of(is_bounded ? shown(entry.unit, mean_at(run, rate.bound)) : std::nullopt)});
      }
    }
  }
  if (!chart.table.rows.empty()) {
    section.charts.push_back(std::move(chart));
  }
}

void over_capacity(const Entry& entry, const Report& report, ReportSection& section) {
  const bool is_stacked = entry.values.size() > 1;
  std::vector<CapacityChart> charts;
  for (const Family& family : families_of(report)) {
    std::vector<Line> lines;
    for (const Value& value : entry.values) {
      lines.push_back(
          {is_stacked ? value.name : family.label, value.key, points_of(entry, value, family)});
    }
    if (std::any_of(lines.begin(), lines.end(), [&](const Line& line) {
          return line.points.size() < (is_stacked ? family.runs.size() : 2);
        })) {
      continue;
    }
    if (is_stacked || charts.empty() || charts.back().dimension != family.dimension) {
      charts.push_back({family.dimension, family.label, {}});
    }
    std::move(lines.begin(), lines.end(), std::back_inserter(charts.back().lines));
  }
  if (is_stacked && charts.size() > kStackedMost) {
    section.missing = fmt::format(
        "Hits by tier are drawn for the first {} of {} lines. Fewer inputs show the others.",
        kStackedMost, charts.size());
    charts.resize(kStackedMost);
  }
  for (const CapacityChart& chart : charts) {
    section.charts.push_back(chart.draw(entry));
  }
}

void reuse_curves(const Entry& entry, const Report& report, ReportSection& section) {
  CapacityChart chart;
  for (const ReportCurve& curve : report.curves) {
    chart.lines.push_back({curve.label, "", curve.points});
    for (auto& [bytes, rate] : chart.lines.back().points) {
      rate = *shown(entry.unit, rate);
    }
  }
  if (!chart.lines.empty()) {
    section.charts.push_back(chart.draw(entry));
  }
}

void lines_of_instances(const Entry& entry, const Report& report, ReportSection& section) {
  for (const ReportRun& run : report.runs) {
    const Json* const instances =
        find_at(run.results.front(), Json::json_pointer("/metrics/instances"));
    if (instances == nullptr || !instances->is_array()) {
      continue;
    }
    ReportChart chart{fmt::format(fmt::runtime(entry.title), run.label), entry.note};
    chart.table.header = entry.columns;
    std::vector<Line> lines;
    for (const Json& instance : *instances) {
      Line line{fmt::format("instance {}", instance["instance"].get<std::int64_t>()), "", {}};
      const double width = instance["series"]["interval_seconds"].get<double>();
      double seconds = 0;
      for (const Json& value : instance["series"][entry.times]) {
        seconds += width;
        if (value.is_number()) {
          line.points.emplace_back(seconds, *shown(entry.unit, value.get<double>()));
          chart.table.rows.push_back(
              {line.name, text_of(seconds), text_of(line.points.back().second)});
        }
      }
      lines.push_back(std::move(line));
    }
    draw_lines(chart, entry, lines, axis(entry.x_title));
    section.charts.push_back(std::move(chart));
  }
}

void over_load(const Entry& entry, const Report& report, ReportSection& section) {
  for (const ReportDocument& search : report.searches) {
    const char* const unit = varied_unit(search.json);
    ReportChart chart{fmt::format(fmt::runtime(entry.title), search.label), entry.note};
    chart.table.header = {unit};
    for (const Json& trial : search.json["trials"]) {
      chart.table.rows.push_back({text_of(varied_of(trial))});
    }
    std::vector<Line> lines;
    for (const Json& condition : search.json["slo"]) {
      const std::string metric = text_at(condition, "/metric");
      const Number bound = number_at(condition, "/bound");
      Line line{fmt::format("{} {} {}", name_of_metric(metric), text_at(condition, "/relation"),
                            text_of(bound)),
                "",
                {}};
      chart.table.header.push_back(line.name);
      std::size_t row = 0;
      for (const Json& trial : search.json["trials"]) {
        const Number rate = varied_of(trial);
        const Number value = number_at(trial, "/values/" + escape_pointer(metric));
        chart.table.rows[row++].push_back(text_of(value));
        if (rate && value && bound && *bound > 0) {
          line.points.emplace_back(*rate, *value / *bound);
        }
      }
      lines.push_back(std::move(line));
    }
    draw_lines(chart, entry, lines, axis(unit));
    section.charts.push_back(std::move(chart));
  }
}

void paper_tables(const Entry& entry, const Report& report, ReportSection& section) {
  for (const ReportDocument& reproduction : report.reproductions) {
    const Json& json = reproduction.json;
    ReportChart chart{fmt::format(fmt::runtime(entry.title), reproduction.label,
                                  text_at(json, "/title"), text_at(json, "/source"))};
    chart.table.header = entry.columns;
    std::map<std::string, std::int64_t> verdicts;
    for (const auto& [name, figure] : json["figures"].items()) {
      for (const Json& value : figure["values"]) {
        const std::string verdict = text_at(value, "/verdict");
        ++verdicts[verdict];
        chart.table.rows.push_back({text_at(value, "/name"), text_at(figure, "/source"),
                                    text_at(value, "/unit"), text_of(number_at(value, "/paper")),
                                    text_of(number_at(value, "/mean")),
                                    text_of(number_at(value, "/spread")), band_text(value),
                                    verdict.empty()    ? "-"
                                    : verdict == "out" ? "OUT"
                                                       : verdict,
                                    text_at(value, "/explanation")});
      }
    }
    const Number seeds = number_at(json, "/replications");
    chart.note = fmt::format(
        fmt::runtime(entry.note), verdicts["in"], verdicts["out"],
        seeds && *seeds > 1 ? fmt::format("Means of {:g} seeds.", *seeds) : "One seed.");
    section.charts.push_back(std::move(chart));
  }
}

void beside(const Entry& entry, const Report& report, ReportSection& section) {
  std::vector<std::string> notes;
  for (const ReportValidations& validations : report.validations) {
    if (validations.points.empty()) {
      continue;
    }
    notes.push_back(describe_validations(validations));
    // One validation gives a bar for each metric. Several give a chart for each metric, with a bar
    // for each validation.
    BesideRows rates;
    BesideRows latencies;
    for (const Json& row : validations.points.front().json["rows"]) {
      const std::string metric = text_at(row, "/metric");
      if (!is_rate(row) && !is_latency(row)) {
        continue;
      }
      if (validations.points.size() == 1) {
        (is_rate(row) ? rates : latencies).emplace_back(metric, &row);
      } else if (number_at(row, "/band")) {
        // Metrics without a band are left out, because they are too many.
        BesideRows rows;
        for (const ReportDocument& one : validations.points) {
          for (const Json& other : one.json["rows"]) {
            if (text_at(other, "/metric") == metric) {
              rows.emplace_back(one.label, &other);
            }
          }
        }
        add_beside(entry, validations.label, metric, "config", rows, section);
      }
    }
    add_beside(entry, validations.label, "hit rates", "metric", rates, section);
    add_beside(entry, validations.label, "latencies", "metric", latencies, section);
  }
  if (!section.charts.empty()) {
    section.missing = detail::join(notes, " ");
  }
}

}  // namespace kvtier::charts
