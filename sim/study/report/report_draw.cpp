#include "sim/study/report/report_draw.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "sim/study/runs/summary.hpp"

namespace kvtier::charts {
namespace {

/// The most bars and lines of a readable chart. Tables have all.
constexpr std::size_t kBarsMost = 40;
constexpr std::size_t kLinesMost = 12;

std::string left_out(std::size_t drawn, std::size_t all, const char* what) {
  return drawn >= all ? ""
                      : fmt::format(" The first {} of {} {} are drawn; the table has all.", drawn,
                                    all, what);
}

/// The values of an entry with `keys_of`; nullopt if no result has that object.
std::optional<std::vector<Value>> keys_as_values(const Entry& entry, const Report& report) {
  std::optional<std::vector<Value>> values;
  for (const ReportRun& run : report.runs) {
    for (const Json& result : run.results) {
      const Json* keys = find_at(result, Json::json_pointer(entry.keys_of));
      if (keys == nullptr || !keys->is_object()) {
        continue;
      }
      values = values.value_or(entry.values);
      for (const auto& [key, number] : keys->items()) {
        Value value{words_of(key), std::string(entry.keys_of) + "/" + escape_pointer(key), ""};
        if (number_at(result, value.pointer).value_or(0) > 0 &&
            std::none_of(values->begin(), values->end(),
                         [&](const Value& known) { return known.pointer == value.pointer; })) {
          values->push_back(std::move(value));
        }
      }
    }
  }
  return values;
}

Number number_of(const Entry& entry, const Value& value, const Json& result) {
  Number number = number_at(result, value.pointer);
  if (!number && entry.keys_of != nullptr &&
      find_at(result, Json::json_pointer(entry.keys_of)) != nullptr) {
    number = 0;
  }
  if (entry.share_of != nullptr) {
    const Number whole = number_at(result, entry.share_of);
    number = number && whole ? Number(*whole > 0 ? *number / *whole : 0) : std::nullopt;
  }
  return shown(entry.unit, number);
}

}  // namespace

Number mean_at(const ReportRun& run, const std::string& pointer) {
  return mean_of(run.results, [&](const Json& result) { return number_at(result, pointer); });
}

Number shown(Unit unit, Number number) {
  return number ? Number(*number * unit.factor / unit.divisor) : std::nullopt;
}

std::string text_of(Number number) { return number ? fmt::format("{:.4g}", *number) : "-"; }

const Json& list_at(const Json& result, const std::string& pointer) {
  static const Json kNone = Json::array();
  const Json* list = find_at(result, Json::json_pointer(pointer));
  return list != nullptr && list->is_array() ? *list : kNone;
}

const Json& object_at(const Json& result, const std::string& pointer) {
  static const Json kNone = Json::object();
  const Json* object = find_at(result, Json::json_pointer(pointer));
  return object != nullptr && object->is_object() ? *object : kNone;
}

Number varied_at(const Json& json, const std::string& name) {
  const Number rate = number_at(json, "/" + name + "_per_second");
  return rate ? rate : number_at(json, "/" + name);
}

const char* varied_unit(const Json& search) {
  return text_at(search, "/varied") == "/workload/speed_up" ? "speed-up of the trace"
                                                            : "arrivals per second";
}

Json axis(const std::string& title, const char* scale, const char* format) {
  return Json{{"title", title}, {"scale", scale}, {"format", format}};
}

void draw_bars(ReportChart& chart, const Entry& entry, const std::vector<Value>& values,
               const std::vector<Bar>& bars, Json x, const char* what) {
  for (const Value& value : values) {
    chart.table.header.push_back(value.name);
  }
  chart.table.header.insert(chart.table.header.end(), entry.columns.begin(), entry.columns.end());
  Json labels = Json::array();
  std::vector<Json> lists(values.size(), Json::array());
  Json hatched = Json::array();
  for (const Bar& bar : bars) {
    std::vector<std::string>& row = chart.table.rows.emplace_back(1, bar.name);
    std::transform(bar.numbers.begin(), bar.numbers.end(), std::back_inserter(row), text_of);
    row.insert(row.end(), bar.cells.begin(), bar.cells.end());
    if (labels.size() < kBarsMost) {
      labels.push_back(bar.name + bar.mark);
      hatched.push_back(bar.overloaded);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const Number number = bar.numbers[bar.numbers[i] ? i : bar.instead];
        lists[i].push_back(number ? Json(*number) : Json());
      }
    }
  }
  chart.note += left_out(labels.size(), bars.size(), what);
  chart.drawing =
      Json{{"kind", entry.drawing}, {"x", std::move(x)}, {"labels", labels}, {"hatched", hatched}};
  chart.drawing.merge_patch(entry.options);
  // Bars that add up are series, without series of only 0. Other drawings have a member for each
  // value.
  const bool are_series = entry.drawing == std::string_view("bars");
  if (are_series) {
    chart.drawing["series"] = Json::array();
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!are_series) {
      chart.drawing[values[i].key] = std::move(lists[i]);
    } else if (std::any_of(lists[i].begin(), lists[i].end(),
                           [](const Json& number) { return number != 0.0; })) {
      chart.drawing["series"].push_back(
          {{"name", values[i].name}, {"color", values[i].key}, {"values", lists[i]}});
    }
  }
}

void draw_lines(ReportChart& chart, const Entry& entry, const std::vector<Line>& lines, Json x) {
  const bool is_stacked = entry.options.contains("stacked");
  Json series = Json::array();
  for (std::size_t i = 0; i < std::min(kLinesMost, lines.size()); ++i) {
    Json points = Json::array();
    bool any = false;
    for (const auto& [at, value] : lines[i].points) {
      points.push_back(Json::array({at, value}));
      any = any || value > 0;
    }
    // A stacked line of only 0 would just lengthen the legend.
    if (any || !is_stacked) {
      series.push_back({{"name", lines[i].name}, {"color", lines[i].color}, {"points", points}});
    }
  }
  chart.note += left_out(std::min(kLinesMost, lines.size()), lines.size(), "lines");
  chart.drawing = Json{{"kind", "lines"}, {"x", std::move(x)}, {"y", axis(entry.y_title)}};
  chart.drawing["y"]["min"] = 0;
  chart.drawing.merge_patch(entry.options);
  chart.drawing["series"] = std::move(series);
}

void bars_of_runs(const Entry& entry, const Report& report, ReportSection& section) {
  const auto values =
      entry.keys_of == nullptr ? std::optional(entry.values) : keys_as_values(entry, report);
  if (!values || values->empty()) {
    section.missing = values ? entry.none_of_keys : section.missing;
    return;
  }
  const bool is_log = entry.scale == std::string_view("log");
  std::vector<Bar> bars;
  for (const ReportRun& run : report.runs) {
    Bar bar{.name = run.label, .numbers = {}, .overloaded = is_overloaded(run)};
    for (const Value& value : *values) {
      bar.numbers.push_back(mean_of(
          run.results, [&](const Json& result) { return number_of(entry, value, result); }));
    }
    if (std::all_of(bar.numbers.begin(), bar.numbers.end(),
                    [&](Number number) { return number && (!is_log || *number > 0); })) {
      bars.push_back(std::move(bar));
    }
  }
  if (bars.empty()) {
    return;
  }
  ReportChart chart{entry.title, entry.note, {}, {{"run"}, {}}};
  draw_bars(chart, entry, *values, bars, axis(entry.x_title, entry.scale), "runs");
  if (std::any_of(report.runs.begin(), report.runs.end(), is_overloaded)) {
    chart.note += entry.overload_note;
  }
  section.charts.push_back(std::move(chart));
}

void lines_of_samples(const Entry& entry, const Report& report, ReportSection& section) {
  for (const Value& value : entry.values) {
    ReportChart chart{
        fmt::format(fmt::runtime(entry.title), value.name), entry.note, {}, {entry.columns, {}}};
    std::vector<Line> lines;
    std::map<double, std::vector<std::string>> capacities;
    for (const ReportRun& run : report.runs) {
      const Json& seconds = list_at(run.results.front(), entry.times);
      const Json& numbers = list_at(run.results.front(), value.pointer);
      Line line{run.label, "", {}};
      for (std::size_t i = 0; i < std::min(seconds.size(), numbers.size()); ++i) {
        const Number x = shown(kHours, number_at(seconds[i], ""));
        const Number y = shown(entry.unit, number_at(numbers[i], ""));
        if (x && y) {
          line.points.emplace_back(*x, *y);
          chart.table.rows.push_back({run.label, text_of(x), text_of(y)});
        }
      }
      if (!line.points.empty()) {
        lines.push_back(std::move(line));
        const auto capacity = parse_quantity<Bytes>(
            text_at(run.results.front(), "/config/hardware/" + value.key + "/capacity"));
        // Weights and activations take a part of HBM, so its capacity is no limit of KV.
        if (capacity && value.key != "hbm") {
          const Number y = shown(entry.unit, static_cast<double>(capacity->value));
          capacities[*y].push_back(run.label);
        }
      }
    }
    if (!lines.empty()) {
      draw_lines(chart, entry, lines, axis(entry.x_title));
      for (const auto& [at, runs] : capacities) {
        chart.drawing["marks"].push_back(
            {{"name", capacities.size() > 1 ? "capacity, " + detail::join(runs, ", ") : "capacity"},
             {"at", at}});
      }
      section.charts.push_back(std::move(chart));
    }
  }
}

void front(const Entry& entry, const Report& report, ReportSection& section) {
  struct Point {
    const ReportRun* run;
    double x;
    double y;
    bool overloaded;
    bool too_short;
  };
  std::vector<Point> points;
  for (const ReportRun& run : report.runs) {
    const Number x = mean_at(run, entry.values[0].pointer);
    const Number y = mean_at(run, entry.values[1].pointer);
    if (x && y && *y > 0) {
      points.push_back({&run, *x, *y, is_overloaded(run), is_too_short(run)});
    }
  }
  if (points.size() < 2) {
    return;
  }
  std::stable_sort(points.begin(), points.end(),
                   [](const Point& a, const Point& b) { return a.x < b.x; });
  ReportChart chart{entry.title, entry.note, {}, {}};
  chart.table.header = {"run", entry.values[0].name, entry.values[1].name, ""};
  Json groups = Json::array();
  for (const char* name : {"on the front", "costs more or is slower", "load exceeds capacity",
                           "run too short to tell"}) {
    groups.push_back({{"name", name}, {"points", Json::array()}});
  }
  for (const Point& point : points) {
    const bool beaten = std::any_of(points.begin(), points.end(), [&](const Point& other) {
      return !other.overloaded && !other.too_short && other.x <= point.x && other.y <= point.y &&
             (other.x < point.x || other.y < point.y);
    });
    Json& group = groups[point.overloaded ? 2 : point.too_short ? 3 : beaten ? 1 : 0];
    group["points"].push_back({point.x, point.y, point.run->label});
    chart.table.rows.push_back({point.run->label, fmt::format("{:.3f}", point.x), text_of(point.y),
                                group["name"].get<std::string>()});
  }
  chart.drawing =
      Json{{"kind", "points"}, {"x", axis(entry.x_title)}, {"y", axis(entry.y_title, entry.scale)}};
  chart.drawing["groups"] = std::move(groups);
  section.charts.push_back(std::move(chart));
}

}  // namespace kvtier::charts
