#pragma once

#include <optional>

#include "sim/study/report/report.hpp"

/// Kinds of charts. A chart is an entry of the table in report_charts.cpp. Its kind is one of the
/// functions below, which adds the charts that the results allow to the section.
namespace kvtier::charts {

using Number = std::optional<double>;
using Points = std::vector<std::pair<double, double>>;

/// A number is shown as number * factor / divisor.
struct Unit {
  double factor = 1;
  double divisor = 1;
};
constexpr Unit kPercent{100, 1};
constexpr Unit kHours{1, 3600};
constexpr Unit kGibibytes{1, 1024.0 * 1024 * 1024};

/// A number of a result.
struct Value {
  /// The name in the table and the legend.
  std::string name;
  std::string pointer;
  /// For page/page.js: a colour of the style sheet, or the name of a list of the drawing.
  std::string key;
};

struct Entry {
  void (*draw)(const Entry&, const Report&, ReportSection&);
  const char* title;
  /// An explanation below the chart.
  const char* note = "";
  /// The kind of bars: "bars" add up, "ranges" are statistics of one distribution, "beside" are
  /// pairs.
  const char* drawing = "bars";
  std::vector<Value> values = {};
  Unit unit = {};
  const char* x_title = "";
  const char* y_title = "";
  /// The scale of the numbers' axis: "linear" or "log".
  const char* scale = "linear";
  /// Columns of the table after those of the values, or the whole header.
  std::vector<std::string> columns = {};
  /// Pointer to an object. Each of its keys with a number above 0 in some result becomes a value.
  const char* keys_of = nullptr;
  /// Shown instead of the chart if all numbers of `keys_of` are 0.
  const char* none_of_keys = "";
  /// Pointer to the number that each value is divided by; 0 makes all of them 0.
  const char* share_of = nullptr;
  /// Further members of the drawing.
  Json options = Json::object();
  /// For samples: pointer to the list of their times in seconds.
  const char* times = "";
  /// Added to the note if the load of a run exceeds capacity.
  const char* overload_note = "";
};

struct Section {
  const char* id;
  const char* title;
  /// Shown if no entry gives a chart.
  const char* missing;
  std::vector<Entry> entries;
};

// ---- Kinds ------------------------------------------------------------------------------------

using Kind = void(const Entry&, const Report&, ReportSection&);

/// A bar for each run that has all values (on a logarithmic axis, all above 0).
Kind bars_of_runs;
/// A chart over time for each value, with a line for each run.
Kind lines_of_samples;
/// A point for each run: the second value over the first. Smaller values are better.
Kind front;
/// A table of hit rates of systems of blocks, with the ceiling of their workload and the bound of
/// their capacity.
Kind prompt_hits;
/// Lines over one capacity, for runs that differ only in it. A single value gives a line for each
/// group of runs. Several values, which add up, give a chart for each group.
Kind over_capacity;
/// A chart over time for each run of a cluster, with a line for each instance. `times` names the
/// list of the series.
Kind lines_of_instances;
/// The hit rate curves of `trace mrc`.
Kind reuse_curves;
/// Tables of a plan: the cheapest of each system, and its capacities with their knee.
Kind plan_answers;
/// A chart for each search, with a line for each condition.
Kind over_load;
/// A table for each reproduction.
Kind paper_tables;
/// Bars of simulated and measured values, side by side.
Kind beside;

// ---- Common parts -----------------------------------------------------------------------------

/// Mean of a number over all items; nullopt if an item has none.
template <class All, class Get>
[[nodiscard]] Number mean_of(const All& all, Get get) {
  double sum = 0;
  for (const auto& one : all) {
    const Number number = get(one);
    if (!number) {
      return std::nullopt;
    }
    sum += *number;
  }
  return sum / static_cast<double>(all.size());
}
/// Mean over the run's results.
[[nodiscard]] Number mean_at(const ReportRun& run, const std::string& pointer);
[[nodiscard]] Number shown(Unit unit, Number number);
[[nodiscard]] std::string text_of(Number number);
/// A list or an object of a result; empty if it is missing.
[[nodiscard]] const Json& list_at(const Json& result, const std::string& pointer);
[[nodiscard]] const Json& object_at(const Json& result, const std::string& pointer);
/// A rate or speed-up of a search (`kvtier.capacity/1`): the number NAME_per_second, or else NAME.
[[nodiscard]] Number varied_at(const Json& json, const std::string& name);
[[nodiscard]] const char* varied_unit(const Json& search);
/// An axis of a drawing.
[[nodiscard]] Json axis(const std::string& title, const char* scale = "linear",
                        const char* format = "");

struct Bar {
  std::string name;
  /// One number for each value.
  std::vector<Number> numbers;
  /// Text after the name in the drawing.
  std::string mark = {};
  /// The row's cells in the entry's columns.
  std::vector<std::string> cells = {};
  /// Index of the number that replaces a missing one in the drawing.
  std::size_t instead = 0;
  /// Whether the load of the bar's run exceeds capacity.
  bool overloaded = false;
};
/// Adds a column for each value and a row for each bar to the table. Draws the first 40 bars.
void draw_bars(ReportChart& chart, const Entry& entry, const std::vector<Value>& values,
               const std::vector<Bar>& bars, Json x, const char* what);

struct Line {
  std::string name;
  std::string color;
  Points points;
};
/// Draws the first 12 lines.
void draw_lines(ReportChart& chart, const Entry& entry, const std::vector<Line>& lines, Json x);

}  // namespace kvtier::charts
