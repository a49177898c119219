#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "sim/study/report.hpp"
#include "sim/study/summary.hpp"

namespace kvtier {
namespace {

using Number = std::optional<double>;

constexpr double kPercent = 100;
constexpr double kSecondsPerHour = 3600;
/// Beyond these a chart is not readable; tables have all.
constexpr std::size_t kBarsMost = 40;
constexpr std::size_t kLinesMost = 12;
constexpr std::size_t kSmallChartsMost = 6;

struct Tier {
  const char* key;
  const char* name;
};
constexpr Tier kTiers[] = {{"hbm", "HBM"}, {"dram", "DRAM"}, {"cxl", "CXL"}, {"ssd", "SSD"}};

/// Mean over the run's results; nullopt where one has no such number.
Number mean_of(const ReportRun& run, const std::function<Number(const Json&)>& get) {
  double sum = 0;
  for (const Json& result : run.results) {
    const Number value = get(result);
    if (!value) {
      return std::nullopt;
    }
    sum += *value;
  }
  return sum / static_cast<double>(run.results.size());
}

Number mean_at(const ReportRun& run, const std::string& pointer) {
  return mean_of(run, [&](const Json& result) { return number_at(result, pointer); });
}

/// Rent of GPUs and used tiers.
Number dollars_per_hour(const Json& result) {
  if (const Number given = number_at(result, "/dollars_per_hour")) {
    return given;
  }
  const Number dollars = number_at(result, "/metrics/cost_dollars/total");
  const Number seconds = number_at(result, "/load/measured_seconds");
  if (!dollars || !seconds || *seconds <= 0) {
    return std::nullopt;
  }
  return *dollars / *seconds * kSecondsPerHour;
}

std::string text_of(const Number& value) { return value ? fmt::format("{:.4g}", *value) : "-"; }

std::string size_text(double bytes) {
  constexpr double kLargest = 9e18;
  return bytes >= 0 && bytes < kLargest ? format_quantity(Bytes(static_cast<std::int64_t>(bytes)))
                                        : fmt::format("{:.4g}B", bytes);
}

Json json_of(const Number& value) { return value ? Json(*value) : Json(); }

Json axis(const char* title, const char* scale = "linear", const char* format = "") {
  return Json{{"title", title}, {"scale", scale}, {"format", format}};
}

std::string left_out(std::size_t shown, std::size_t all, const char* what) {
  return shown >= all
             ? ""
             : fmt::format("The first {} of {} {} are drawn; the table has all.", shown, all, what);
}

/// Parts that add up, a bar a run.
struct Part {
  std::string name;
  /// A tier's key, or empty.
  std::string color;
  std::function<Number(const Json&)> get;
};

/// Of the runs that have every part; nullopt if none has.
std::optional<ReportChart> stacked_bars(const Report& report, const std::vector<Part>& parts,
                                        const char* title, const char* x_title, const char* note) {
  ReportChart chart{title, note, {}, {}};
  chart.table.header.emplace_back("run");
  Json series = Json::array();
  for (const Part& part : parts) {
    chart.table.header.push_back(part.name);
    series.push_back({{"name", part.name}, {"color", part.color}, {"values", Json::array()}});
  }
  Json labels = Json::array();
  for (const ReportRun& run : report.runs) {
    std::vector<Number> values;
    for (const Part& part : parts) {
      values.push_back(mean_of(run, part.get));
    }
    if (!std::all_of(values.begin(), values.end(), [](const Number& v) { return v.has_value(); })) {
      continue;
    }
    std::vector<std::string> row{run.label};
    for (std::size_t i = 0; i < values.size(); ++i) {
      row.push_back(text_of(values[i]));
      if (labels.size() < kBarsMost) {
        series[i]["values"].push_back(json_of(values[i]));
      }
    }
    if (labels.size() < kBarsMost) {
      labels.push_back(run.label);
    }
    chart.table.rows.push_back(std::move(row));
  }
  if (chart.table.rows.empty()) {
    return std::nullopt;
  }
  // What no run has takes no place in the legend.
  Json drawn = Json::array();
  for (Json& one : series) {
    const Json& values = one["values"];
    if (std::any_of(values.begin(), values.end(), [](const Json& value) { return value != 0.0; })) {
      drawn.push_back(std::move(one));
    }
  }
  const std::string more = left_out(labels.size(), chart.table.rows.size(), "runs");
  chart.note += more.empty() ? "" : " " + more;
  chart.drawing = Json{{"kind", "bars"}, {"x", axis(x_title)}, {"labels", labels}};
  chart.drawing["series"] = std::move(drawn);
  return chart;
}

// ---- Hit rate ---------------------------------------------------------------------------------

constexpr const char* kHitRate = "/metrics/hit_rate/all_turns/";

ReportSection hit_rate_section(const Report& report) {
  ReportSection section{"hit-rate", "Hit rate by tier", {}, ""};
  std::vector<Part> parts;
  for (const Tier& tier : kTiers) {
    parts.push_back({tier.name, tier.key,
                     [pointer = std::string(kHitRate) + tier.key](const Json& result) -> Number {
                       const Number rate = number_at(result, pointer);
                       return rate ? Number(*rate * kPercent) : std::nullopt;
                     }});
  }
  if (auto chart = stacked_bars(
          report, parts, "Hit rate, by the tier in which the KV cache was found", "% of all turns",
          "A turn hits if the KV of its whole history is in some tier when it is admitted. First "
          "turns have no history and count as misses.")) {
    chart->drawing["x"]["max"] = kPercent;
    section.charts.push_back(std::move(*chart));
  } else {
    section.missing = "No input splits hits by tier: results of simulate, compare and sweep do.";
  }
  return section;
}

// ---- Over capacity ----------------------------------------------------------------------------

/// Runs that differ in one capacity alone.
struct Family {
  std::string label;
  std::map<double, std::vector<const ReportRun*>> runs;
};
/// Families over the capacity of one tier, or over one axis of a sweep.
struct Dimension {
  std::string name;
  /// By all else that the runs follow from.
  std::vector<std::pair<std::string, Family>> families;

  void add(const std::string& key, const std::string& label, double bytes, const ReportRun& run) {
    auto found = std::find_if(families.begin(), families.end(),
                              [&](const auto& family) { return family.first == key; });
    if (found == families.end()) {
      families.emplace_back(key, Family{label, {}});
      found = families.end() - 1;
    }
    found->second.runs[bytes].push_back(&run);
  }
};

Dimension& dimension(std::vector<Dimension>& all, const std::string& name) {
  for (Dimension& known : all) {
    if (known.name == name) {
      return known;
    }
  }
  all.push_back({name, {}});
  return all.back();
}

/// A size on an axis.
Number size_of(const std::string& label) {
  const auto bytes = parse_quantity<Bytes>(label);
  return bytes ? Number(static_cast<double>(bytes->value)) : std::nullopt;
}

/// Places a run of a sweep or a plan on each of its axes that is one of sizes.
void add_by_axes(const Report& report, const ReportRun& run, std::vector<Dimension>& all) {
  for (const auto& [name, label] : run.axes) {
    const Number bytes = size_of(label);
    if (!bytes) {
      continue;
    }
    std::string rest;
    std::string key = std::to_string(run.input);
    for (const auto& [other, other_label] : run.axes) {
      if (other != name) {
        rest += (rest.empty() ? "" : ", ") + other_label;
        key += "\n" + other + "\n" + other_label;
      }
    }
    const std::string& input = report.inputs[run.input].label;
    const bool say_input = rest.empty() || report.inputs.size() > 1;
    const std::string separator = rest.empty() ? "" : ": ";
    dimension(all, name).add(key, (say_input ? input + separator : "") + rest, *bytes, run);
  }
}

/// Places a run that has its config at the capacity of each tier that it uses.
void add_by_config(const ReportRun& run, std::vector<Dimension>& all) {
  const Json& result = run.results.front();
  for (const Tier& tier : kTiers) {
    const std::string pointer = fmt::format("/config/hardware/{}/capacity", tier.key);
    const Json::json_pointer used(fmt::format("/config/system/tiers/{}", tier.key));
    const Number bytes = size_of(text_at(result, pointer));
    if (!bytes || !result.contains(used) || !result.at(used).is_object()) {
      continue;
    }
    Json rest = result["config"];
    rest.erase("seed");
    rest["hardware"][tier.key].erase("capacity");
    dimension(all, tier.name)
        .add(json_text(rest), text_at(result, "/config/system/name"), *bytes, run);
  }
}

Number mean_over(const std::vector<const ReportRun*>& runs, const std::string& pointer) {
  double sum = 0;
  for (const ReportRun* run : runs) {
    const Number value = mean_at(*run, pointer);
    if (!value) {
      return std::nullopt;
    }
    sum += *value;
  }
  return sum / static_cast<double>(runs.size());
}

/// Hit rates in % over the capacity; empty where a run has none.
std::vector<std::pair<double, double>> rates_of(const Family& family, const std::string& which) {
  std::vector<std::pair<double, double>> points;
  for (const auto& [bytes, runs] : family.runs) {
    if (const Number rate = mean_over(runs, kHitRate + which)) {
      points.emplace_back(bytes, *rate * kPercent);
    }
  }
  return points;
}

Json points_json(const std::vector<std::pair<double, double>>& points) {
  Json json = Json::array();
  for (const auto& [x, y] : points) {
    json.push_back(Json::array({x, y}));
  }
  return json;
}

/// Lines over capacity, and their table.
struct Lines {
  std::vector<std::pair<std::string, std::vector<std::pair<double, double>>>> all;

  [[nodiscard]] ReportChart chart(const std::string& title, const std::string& note,
                                  const std::string& x_title) const {
    ReportChart chart{title, note, {}, {}};
    Json series = Json::array();
    chart.table.header = {x_title};
    std::set<double> places;
    for (const auto& [label, points] : all) {
      chart.table.header.push_back(label);
      if (series.size() < kLinesMost) {
        series.push_back({{"name", label}, {"color", ""}, {"points", points_json(points)}});
      }
      for (const auto& [x, y] : points) {
        places.insert(x);
      }
    }
    for (const double x : places) {
      std::vector<std::string> row{size_text(x)};
      for (const auto& [label, points] : all) {
        const auto found = std::find_if(points.begin(), points.end(),
                                        [x](const auto& point) { return point.first == x; });
        row.push_back(found == points.end() ? "-" : text_of(found->second));
      }
      chart.table.rows.push_back(std::move(row));
    }
    const std::string more = left_out(series.size(), all.size(), "lines");
    chart.note += more.empty() ? "" : " " + more;
    chart.drawing = Json{{"kind", "lines"},
                         {"x", axis(x_title.c_str(), "log", "bytes")},
                         {"y", axis("hit rate, % of all turns")}};
    chart.drawing["y"]["min"] = 0;
    chart.drawing["series"] = std::move(series);
    return chart;
  }
};

/// A family's hits by tier, stacked.
std::optional<ReportChart> by_tier(const Dimension& dimension, const Family& family) {
  ReportChart chart{
      fmt::format("{}: hits by tier over {}", family.label, dimension.name), "", {}, {}};
  const std::string x_title = "capacity of " + dimension.name;
  chart.table.header = {x_title};
  Json series = Json::array();
  for (const Tier& tier : kTiers) {
    const auto points = rates_of(family, tier.key);
    if (points.size() != family.runs.size()) {
      return std::nullopt;
    }
    chart.table.header.emplace_back(tier.name);
    if (std::any_of(points.begin(), points.end(), [](const auto& p) { return p.second > 0; })) {
      series.push_back({{"name", tier.name}, {"color", tier.key}, {"points", points_json(points)}});
    }
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (chart.table.rows.size() <= i) {
        chart.table.rows.push_back({size_text(points[i].first)});
      }
      chart.table.rows[i].push_back(text_of(points[i].second));
    }
  }
  chart.drawing = Json{{"kind", "lines"},
                       {"x", axis(x_title.c_str(), "log", "bytes")},
                       {"y", axis("hit rate, % of all turns")},
                       {"stacked", true}};
  chart.drawing["y"]["min"] = 0;
  chart.drawing["series"] = std::move(series);
  return chart;
}

/// Labels that are all different.
void tell_apart(std::vector<std::pair<std::string, Family>>& families) {
  std::map<std::string, int> uses;
  for (auto& [key, family] : families) {
    const int use = ++uses[family.label];
    if (use > 1) {
      const ReportRun& first = *family.runs.begin()->second.front();
      family.label += fmt::format(" (as {})", first.label);
    }
  }
}

ReportSection capacity_section(const Report& report) {
  ReportSection section{"capacity", "Hit rate over capacity", {}, ""};
  std::vector<Dimension> dimensions;
  for (const ReportRun& run : report.runs) {
    add_by_axes(report, run, dimensions);
    if (run.axes.empty()) {
      add_by_config(run, dimensions);
    }
  }
  std::vector<ReportChart> small;
  for (Dimension& dimension : dimensions) {
    std::erase_if(dimension.families,
                  [](const auto& family) { return family.second.runs.size() < 2; });
    tell_apart(dimension.families);
    Lines lines;
    for (const auto& [key, family] : dimension.families) {
      auto points = rates_of(family, "total");
      if (points.size() < 2) {
        continue;
      }
      lines.all.emplace_back(family.label, std::move(points));
      if (auto chart = by_tier(dimension, family)) {
        small.push_back(std::move(*chart));
      }
    }
    if (!lines.all.empty()) {
      section.charts.push_back(lines.chart("Hit rate over the capacity of " + dimension.name,
                                           "Each line's runs differ in this capacity alone.",
                                           "capacity of " + dimension.name));
    }
  }
  Lines curves;
  for (const ReportCurve& curve : report.curves) {
    std::vector<std::pair<double, double>> points;
    for (const auto& [bytes, rate] : curve.points) {
      points.emplace_back(bytes, rate * kPercent);
    }
    curves.all.emplace_back(curve.label, std::move(points));
  }
  if (!curves.all.empty()) {
    section.charts.push_back(curves.chart("Hit rate of one LRU tier at every capacity",
                                          "From the reuse distances of an untimed replay.",
                                          "capacity of the tier"));
  }
  if (section.charts.empty()) {
    section.missing =
        "No two runs differ in one tier's capacity alone. Give results at several capacities, a "
        "sweep with an axis of sizes, or what kvtier trace mrc --json writes.";
  }
  if (small.size() > kSmallChartsMost) {
    section.missing = fmt::format(
        "Hits by tier are drawn for the first {} of {} lines. Fewer inputs show the others.",
        kSmallChartsMost, small.size());
    small.resize(kSmallChartsMost);
  }
  std::move(small.begin(), small.end(), std::back_inserter(section.charts));
  return section;
}

// ---- Time to first token ----------------------------------------------------------------------

std::optional<ReportChart> range_chart(const Report& report, const std::string& metric,
                                       const char* title, const char* note) {
  constexpr const char* kStatistics[] = {"mean", "p50", "p90", "p95", "p99"};
  ReportChart chart{title, note, {}, {{"run", "mean s", "p50 s", "p90 s", "p95 s", "p99 s"}, {}}};
  Json labels = Json::array();
  std::map<std::string, Json> values;
  for (const ReportRun& run : report.runs) {
    std::vector<Number> found;
    for (const char* statistic : kStatistics) {
      found.push_back(mean_at(run, "/metrics/" + metric + "/" + statistic));
    }
    if (!std::all_of(found.begin(), found.end(), [](const Number& v) { return v && *v > 0; })) {
      continue;
    }
    std::vector<std::string> row{run.label};
    for (std::size_t i = 0; i < found.size(); ++i) {
      row.push_back(text_of(found[i]));
      if (labels.size() < kBarsMost) {
        values[kStatistics[i]].push_back(*found[i]);
      }
    }
    if (labels.size() < kBarsMost) {
      labels.push_back(run.label);
    }
    chart.table.rows.push_back(std::move(row));
  }
  if (chart.table.rows.empty()) {
    return std::nullopt;
  }
  const std::string more = left_out(labels.size(), chart.table.rows.size(), "runs");
  chart.note += more.empty() ? "" : " " + more;
  chart.drawing = Json{{"kind", "ranges"}, {"x", axis("seconds", "log")}, {"labels", labels}};
  for (const char* statistic : kStatistics) {
    chart.drawing[statistic] = values[statistic];
  }
  return chart;
}

ReportSection ttft_section(const Report& report) {
  ReportSection section{"ttft", "Time to first token", {}, ""};
  constexpr const char* kNote =
      "Half of the turns wait less than where the bar begins, 90 % less than where the shade "
      "changes, 99 % less than where it ends; the diamond is the mean.";
  const auto add = [&](const char* metric, const char* title, const std::string& note) {
    if (auto chart = range_chart(report, metric, title, note.c_str())) {
      section.charts.push_back(std::move(*chart));
    }
  };
  add("ttft_seconds", "TTFT with queueing: from the arrival of a turn to its first token", kNote);
  if (!section.charts.empty() &&
      std::any_of(report.runs.begin(), report.runs.end(), is_overloaded)) {
    section.charts.back().note +=
        " *: the load exceeds capacity, and the numbers depend on the length of the run.";
  }
  add("ttft_seconds_without_queueing",
      "TTFT without queueing: from the admission of a turn to its first token", kNote);
  if (section.charts.empty()) {
    section.missing =
        "No input has the distribution of TTFT: timed results of simulate, compare and sweep do.";
  }
  return section;
}

// ---- Cost -------------------------------------------------------------------------------------

struct Priced {
  const ReportRun* run;
  double dollars;
  double seconds;
  bool overloaded;
  bool on_front = false;
};

/// Marks those within capacity than which none is as cheap and faster, or as fast and cheaper.
void mark_front(std::vector<Priced>& all) {
  for (Priced& one : all) {
    one.on_front =
        !one.overloaded && std::none_of(all.begin(), all.end(), [&](const Priced& other) {
          return !other.overloaded && other.dollars <= one.dollars &&
                 other.seconds <= one.seconds &&
                 (other.dollars < one.dollars || other.seconds < one.seconds);
        });
  }
}

ReportSection cost_section(const Report& report) {
  ReportSection section{"cost", "Cost against time to first token", {}, ""};
  std::vector<Priced> all;
  for (const ReportRun& run : report.runs) {
    const Number dollars = mean_of(run, dollars_per_hour);
    const Number seconds = mean_at(run, "/metrics/ttft_seconds/mean");
    if (dollars && seconds && *seconds > 0) {
      all.push_back({&run, *dollars, *seconds, is_overloaded(run)});
    }
  }
  if (all.size() < 2) {
    section.missing =
        "Two timed runs at least make a front: give several results, a comparison, a sweep or a "
        "plan.";
    return section;
  }
  mark_front(all);
  std::stable_sort(all.begin(), all.end(),
                   [](const Priced& a, const Priced& b) { return a.dollars < b.dollars; });
  ReportChart chart{"Rent of GPUs and used tiers against mean TTFT",
                    "Nothing within capacity is both cheaper and faster than a run on the front.",
                    {},
                    {{"run", "$ per hour", "TTFT mean s", ""}, {}}};
  Json groups = Json::array();
  for (const char* name : {"on the front", "costs more or is slower", "load exceeds capacity"}) {
    groups.push_back({{"name", name}, {"points", Json::array()}});
  }
  for (const Priced& one : all) {
    Json& group = groups[one.overloaded ? 2 : one.on_front ? 0 : 1];
    group["points"].push_back(Json::array({one.dollars, one.seconds, one.run->label}));
    chart.table.rows.push_back({one.run->label, fmt::format("{:.3f}", one.dollars),
                                text_of(one.seconds), group["name"].get<std::string>()});
  }
  chart.drawing = Json{{"kind", "points"},
                       {"x", axis("rent, $ per hour")},
                       {"y", axis("mean TTFT with queueing, seconds", "log")}};
  chart.drawing["groups"] = std::move(groups);
  section.charts.push_back(std::move(chart));
  return section;
}

// ---- Lost hits, GPU time ----------------------------------------------------------------------

constexpr const char* kLostHits = "/metrics/lost_hits";

/// "below_threshold" as a reader sees it.
std::string words(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

ReportSection lost_section(const Report& report) {
  ReportSection section{"lost", "Lost hits by cause", {}, ""};
  const Json::json_pointer at(kLostHits);
  std::vector<std::string> causes;
  bool any_result = false;
  for (const ReportRun& run : report.runs) {
    for (const Json& result : run.results) {
      if (!result.contains(at) || !result.at(at).is_object()) {
        continue;
      }
      any_result = true;
      for (const auto& [cause, count] : result.at(at).items()) {
        const bool lost = count.is_number() && count.get<double>() > 0;
        if (lost && std::find(causes.begin(), causes.end(), cause) == causes.end()) {
          causes.push_back(cause);
        }
      }
    }
  }
  if (causes.empty()) {
    section.missing = any_result
                          ? "No hit was lost: every turn that has a history found all of it."
                          : "No input counts lost hits: results of simulate, compare and sweep do.";
    return section;
  }
  std::vector<Part> parts;
  for (const std::string& cause : causes) {
    parts.push_back({words(cause), "", [cause](const Json& result) -> Number {
                       const Number turns = number_at(result, "/metrics/resumed_turns");
                       if (!turns || !result.contains(Json::json_pointer(kLostHits))) {
                         return std::nullopt;
                       }
                       const Number lost =
                           number_at(result, std::string(kLostHits) + "/" + escape_pointer(cause));
                       return *turns > 0 ? lost.value_or(0) / *turns * kPercent : 0;
                     }});
  }
  if (auto chart = stacked_bars(report, parts, "Turns with a history that was not all found",
                                "% of the turns that have a history",
                                "Why the KV cache, or a part of it, was in no tier.")) {
    section.charts.push_back(std::move(*chart));
  }
  return section;
}

ReportSection gpu_section(const Report& report) {
  ReportSection section{"gpu", "GPU time", {}, ""};
  struct Activity {
    const char* key;
    const char* name;
  };
  constexpr Activity kActivities[] = {{"prefill", "prefill"},
                                      {"decode", "decode"},
                                      {"exposed_load", "waiting for loads"},
                                      {"exposed_save", "waiting for saves"}};
  std::vector<Part> parts;
  for (const Activity& activity : kActivities) {
    parts.push_back(
        {activity.name, "",
         [pointer = std::string("/metrics/gpu_seconds/") + activity.key](const Json& result) {
           const Number seconds = number_at(result, pointer);
           return seconds ? Number(*seconds / kSecondsPerHour) : std::nullopt;
         }});
  }
  if (auto chart = stacked_bars(report, parts, "What the GPUs spend their time on", "GPU hours",
                                "Of the measured part of the run, over all GPUs.")) {
    section.charts.push_back(std::move(*chart));
  } else {
    section.missing = "No input has GPU time: timed results of simulate, compare and sweep do.";
  }
  return section;
}

// ---- Occupancy --------------------------------------------------------------------------------

/// Hours and GiB; empty if the result has no such tier in its samples.
std::vector<std::pair<double, double>> occupancy_of(const Json& result, const char* tier) {
  constexpr double kGib = 1024.0 * 1024 * 1024;
  const Json::json_pointer times("/occupancy/seconds");
  const Json::json_pointer bytes(std::string("/occupancy/bytes/") + tier);
  std::vector<std::pair<double, double>> points;
  if (!result.contains(times) || !result.contains(bytes)) {
    return points;
  }
  const Json& x = result.at(times);
  const Json& y = result.at(bytes);
  const bool are_lists = x.is_array() && y.is_array();
  for (std::size_t i = 0; are_lists && i < std::min(x.size(), y.size()); ++i) {
    if (x[i].is_number() && y[i].is_number()) {
      points.emplace_back(x[i].get<double>() / kSecondsPerHour, y[i].get<double>() / kGib);
    }
  }
  return points;
}

ReportSection occupancy_section(const Report& report) {
  ReportSection section{"occupancy", "Tier occupancy over time", {}, ""};
  for (const Tier& tier : kTiers) {
    ReportChart chart{fmt::format("What is stored in {}", tier.name),
                      "Means between one sample and the next.",
                      {},
                      {{"run", "hours", "GiB"}, {}}};
    Json series = Json::array();
    for (const ReportRun& run : report.runs) {
      const auto points = occupancy_of(run.results.front(), tier.key);
      if (points.empty()) {
        continue;
      }
      if (series.size() < kLinesMost) {
        series.push_back({{"name", run.label}, {"color", ""}, {"points", points_json(points)}});
      }
      for (const auto& [hours, gib] : points) {
        chart.table.rows.push_back({run.label, text_of(hours), text_of(gib)});
      }
    }
    if (series.empty()) {
      continue;
    }
    chart.drawing = Json{{"kind", "lines"},
                         {"x", axis("simulated time, hours")},
                         {"y", axis("GiB stored")},
                         {"smooth", true}};
    chart.drawing["y"]["min"] = 0;
    chart.drawing["series"] = std::move(series);
    section.charts.push_back(std::move(chart));
  }
  if (section.charts.empty()) {
    section.missing =
        "No input has samples of what the tiers hold: kvtier simulate --occupancy --json adds them "
        "to a result.";
  }
  return section;
}

// ---- The highest load -------------------------------------------------------------------------

/// "/metrics/ttft_seconds/p90" as --find-capacity takes it.
std::string name_of_metric(std::string pointer) {
  constexpr std::string_view kMetrics = "/metrics/";
  if (pointer.starts_with(kMetrics)) {
    pointer.erase(0, kMetrics.size());
    std::replace(pointer.begin(), pointer.end(), '/', '.');
  }
  return pointer;
}

/// Of a trial of a search: a rate, or a trace's speed-up.
Number varied_of(const Json& trial) {
  const Number rate = number_at(trial, "/rate_per_second");
  return rate ? rate : number_at(trial, "/rate");
}

ReportSection load_section(const Report& report) {
  ReportSection section{"load", "Objective over load", {}, ""};
  for (const ReportSearch& search : report.searches) {
    const char* const unit = text_at(search.json, "/varied") == "/workload/speed_up"
                                 ? "speed-up of the trace"
                                 : "arrivals per second";
    ReportChart chart{fmt::format("{}: each condition's value over its bound", search.label),
                      "Up to 1 a condition is met (from 1 on where it asks for at least).",
                      {},
                      {{unit}, {}}};
    Json series = Json::array();
    for (const Json& trial : search.json["trials"]) {
      chart.table.rows.push_back({text_of(varied_of(trial))});
    }
    for (const Json& condition : search.json["slo"]) {
      const std::string metric = text_at(condition, "/metric");
      const Number bound = number_at(condition, "/bound");
      std::vector<std::pair<double, double>> points;
      const std::string name = fmt::format("{} {} {}", name_of_metric(metric),
                                           text_at(condition, "/relation"), text_of(bound));
      chart.table.header.push_back(name);
      std::size_t row = 0;
      for (const Json& trial : search.json["trials"]) {
        const Number rate = varied_of(trial);
        const Number value = number_at(trial, "/values/" + escape_pointer(metric));
        chart.table.rows[row++].push_back(text_of(value));
        if (rate && value && bound && *bound > 0) {
          points.emplace_back(*rate, *value / *bound);
        }
      }
      series.push_back({{"name", name}, {"color", ""}, {"points", points_json(points)}});
    }
    chart.drawing =
        Json{{"kind", "lines"}, {"x", axis(unit)}, {"y", axis("value / bound")}, {"mark", 1}};
    chart.drawing["y"]["min"] = 0;
    chart.drawing["series"] = std::move(series);
    section.charts.push_back(std::move(chart));
  }
  if (section.charts.empty()) {
    section.missing =
        "No input is a search for the highest load: kvtier simulate --find-capacity --json writes "
        "one.";
  }
  return section;
}

// ---- A paper's values -------------------------------------------------------------------------

/// The band of a value, as the table of `reproduce` writes it.
std::string band_of(const Json& value) {
  const Number paper = number_at(value, "/paper");
  const Number absolute = number_at(value, "/band/absolute");
  const Number relative = number_at(value, "/band/relative");
  const std::string side = text_at(value, "/band/side");
  if (!paper || (!absolute && !relative)) {
    return "-";
  }
  const double distance = absolute ? *absolute : *relative * std::abs(*paper);
  if (side == "at_most") {
    return fmt::format("<= {:g}", *paper + distance);
  }
  if (side == "at_least") {
    return fmt::format(">= {:g}", *paper - distance);
  }
  return absolute ? fmt::format("+-{:g}", *absolute)
                  : fmt::format("+-{:g} %", *relative * kPercent);
}

ReportSection paper_section(const Report& report) {
  ReportSection section{"paper", "Beside a paper's figures", {}, ""};
  for (const ReportReproduction& reproduction : report.reproductions) {
    const Json& json = reproduction.json;
    const Number seeds = number_at(json, "/replications");
    ReportChart chart{fmt::format("{}: {} ({})", reproduction.label, text_at(json, "/title"),
                                  text_at(json, "/source")),
                      "",
                      {},
                      {{"value", "figure", "unit", "paper", "kvtier", "largest - smallest", "band",
                        "verdict", "why"},
                       {}}};
    std::int64_t in = 0;
    std::int64_t out = 0;
    for (const auto& [name, figure] : json["figures"].items()) {
      for (const Json& value : figure["values"]) {
        const std::string verdict = text_at(value, "/verdict");
        in += verdict == "in" ? 1 : 0;
        out += verdict == "out" ? 1 : 0;
        chart.table.rows.push_back({text_at(value, "/name"), text_at(figure, "/source"),
                                    text_at(value, "/unit"), text_of(number_at(value, "/paper")),
                                    text_of(number_at(value, "/mean")),
                                    text_of(number_at(value, "/spread")), band_of(value),
                                    verdict.empty()    ? "-"
                                    : verdict == "out" ? "OUT"
                                                       : verdict,
                                    text_at(value, "/explanation")});
      }
    }
    chart.note = fmt::format(
        "{} in their band, {} out. {}", in, out,
        seeds && *seeds > 1 ? fmt::format("Means of {:g} seeds.", *seeds) : "One seed.");
    section.charts.push_back(std::move(chart));
  }
  if (section.charts.empty()) {
    section.missing = "No input has a paper's values: kvtier reproduce --json writes them.";
  }
  return section;
}

// ---- Simulated beside measured ----------------------------------------------------------------

constexpr std::string_view kRates = "hit_rate.";

bool is_rate(const std::string& metric) { return metric.starts_with(kRates); }
bool is_latency(const std::string& metric) {
  return metric.find("_seconds.") != std::string::npos && !metric.starts_with("gpu_seconds");
}

/// A metric of a validation, in % where it is a rate.
struct BesideRow {
  std::string label;
  const Json* row = nullptr;

  [[nodiscard]] bool rate() const { return is_rate(text_at(*row, "/metric")); }
  [[nodiscard]] Number at(const char* pointer) const {
    const Number value = number_at(*row, pointer);
    return value && rate() ? Number(*value * kPercent) : value;
  }
  /// In points of a rate, else in % of what was measured.
  [[nodiscard]] std::string share(const char* pointer, const char* format) const {
    const Number value = number_at(*row, pointer);
    return value ? fmt::format(fmt::runtime(format), *value * kPercent) + (rate() ? " pt" : " %")
                 : "-";
  }
  [[nodiscard]] std::string verdict() const {
    const Json::json_pointer at("/in_band");
    return !row->contains(at) || !row->at(at).is_boolean() ? "-"
           : row->at(at) == true                           ? "in"
                                                           : "OUT";
  }
};

ReportChart beside_chart(const std::string& title, const char* first, const char* x_title,
                         const std::vector<BesideRow>& rows) {
  ReportChart chart{
      title,
      "The third bar goes from the lowest to the highest of the measured runs; "
      "\"measured\" is their median.",
      {},
      {{first, "simulated", "measured", "lowest", "highest", "error", "band", "verdict"}, {}}};
  Json lists{{"labels", Json::array()},
             {"simulated", Json::array()},
             {"measured", Json::array()},
             {"lowest", Json::array()},
             {"highest", Json::array()}};
  for (const BesideRow& row : rows) {
    chart.table.rows.push_back(
        {row.label, text_of(row.at("/simulated")), text_of(row.at("/measured")),
         text_of(row.at("/measured_lowest")), text_of(row.at("/measured_highest")),
         row.share("/error", "{:+.2f}"), row.share("/band", "{:.4g}"), row.verdict()});
    if (lists["labels"].size() < kBarsMost) {
      const Number measured = row.at("/measured");
      const auto or_measured = [&](const Number& value) {
        return json_of(value ? value : measured);
      };
      lists["labels"].push_back(row.label + (row.verdict() == "OUT" ? " (OUT)" : ""));
      lists["simulated"].push_back(json_of(row.at("/simulated")));
      lists["measured"].push_back(json_of(measured));
      lists["lowest"].push_back(or_measured(row.at("/measured_lowest")));
      lists["highest"].push_back(or_measured(row.at("/measured_highest")));
    }
  }
  const std::string more = left_out(lists["labels"].size(), rows.size(), "rows");
  chart.note += more.empty() ? "" : " " + more;
  chart.drawing = Json{{"kind", "beside"}, {"x", axis(x_title)}};
  chart.drawing.update(lists);
  return chart;
}

std::string describe_validations(const ReportValidations& validations) {
  std::vector<std::string> out;
  for (const ReportValidation& one : validations.points) {
    if (!one.json.contains("in_band") || one.json["in_band"] != true) {
      const Number load = number_at(one.json, "/occupied_fraction");
      out.push_back(fmt::format("{} (occupied {})", one.label.empty() ? "it" : one.label,
                                load ? fmt::format("{:.2f}", *load) : "not known"));
    }
  }
  const std::string device = text_at(validations.points.front().json, "/device");
  return fmt::format("{}: on {}, {}.", validations.label, device,
                     out.empty() ? "all in band" : "out of band: " + detail::join(out, ", "));
}

ReportSection validation_section(const Report& report) {
  ReportSection section{"validation", "Simulated beside measured", {}, ""};
  for (const ReportValidations& validations : report.validations) {
    if (validations.points.empty()) {
      continue;
    }
    section.missing += (section.missing.empty() ? "" : " ") + describe_validations(validations);
    // A metric each of one validation; of several, their points at each metric of the first.
    const bool several = validations.points.size() > 1;
    std::vector<BesideRow> rates;
    std::vector<BesideRow> latencies;
    for (const Json& row : validations.points.front().json["rows"]) {
      const std::string metric = text_at(row, "/metric");
      std::vector<BesideRow>* const of_kind = is_rate(metric)      ? &rates
                                              : is_latency(metric) ? &latencies
                                                                   : nullptr;
      if (of_kind == nullptr) {
        continue;
      }
      if (!several) {
        of_kind->push_back({metric, &row});
        continue;
      }
      std::vector<BesideRow> points;
      for (const ReportValidation& one : validations.points) {
        for (const Json& other : one.json["rows"]) {
          if (text_at(other, "/metric") == metric) {
            points.push_back({one.label, &other});
          }
        }
      }
      // Those that are judged; there are too many of the others.
      if (number_at(row, "/band")) {
        section.charts.push_back(beside_chart(fmt::format("{}: {}", validations.label, metric),
                                              "config", is_rate(metric) ? "%" : "seconds", points));
      }
    }
    if (!rates.empty()) {
      section.charts.push_back(
          beside_chart(validations.label + ": hit rates", "metric", "%", rates));
    }
    if (!latencies.empty()) {
      section.charts.push_back(
          beside_chart(validations.label + ": latencies", "metric", "seconds", latencies));
    }
  }
  if (section.charts.empty()) {
    section.missing =
        "No input has times of a device beside simulated ones: kvtier validate --json writes them.";
  }
  return section;
}

}  // namespace

std::vector<ReportSection> make_sections(const Report& report) {
  return {hit_rate_section(report),  capacity_section(report), ttft_section(report),
          cost_section(report),      lost_section(report),     gpu_section(report),
          occupancy_section(report), load_section(report),     paper_section(report),
          validation_section(report)};
}

ReportTable headline_table(const Report& report) {
  ReportTable table;
  table.header.emplace_back("metric");
  for (const ReportRun& run : report.runs) {
    table.header.push_back(run.results.size() > 1
                               ? fmt::format("{} (mean of {})", run.label, run.results.size())
                               : run.label);
  }
  for (const ResultRow& row : result_rows()) {
    std::vector<std::string> cells{row.label};
    bool any = false;
    for (const ReportRun& run : report.runs) {
      const Number value = mean_at(run, row.pointer);
      any = any || (value && (row.needs == nullptr || *value > 0));
      cells.push_back(value ? fmt::format(fmt::runtime(row.format), *value * row.factor)
                            : std::string("-"));
    }
    if (any) {
      table.rows.push_back(std::move(cells));
    }
  }
  std::vector<std::string> rent{"rent, $ per hour"};
  std::vector<std::string> bottlenecks{"bottleneck"};
  std::vector<std::string> verdicts{"verdict"};
  for (const ReportRun& run : report.runs) {
    const Number dollars = mean_of(run, dollars_per_hour);
    rent.push_back(dollars ? fmt::format("{:.3f}", *dollars) : "-");
    bottlenecks.push_back(describe_bottleneck(run.results));
    const auto worst = std::find_if(run.results.begin(), run.results.end(), exceeds_capacity);
    const std::string verdict =
        text_at(worst == run.results.end() ? run.results.front() : *worst, "/load/verdict");
    verdicts.push_back(verdict.empty() ? "-" : verdict);
  }
  if (!report.runs.empty()) {
    table.rows.push_back(std::move(rent));
    table.rows.push_back(std::move(bottlenecks));
    table.rows.push_back(std::move(verdicts));
  }
  return table;
}

}  // namespace kvtier
