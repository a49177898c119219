#pragma once

#include <optional>

#include "sim/study/report/report.hpp"

/// How charts are drawn. A chart is an entry of the table in report_charts.cpp. Its kind is one of
/// the functions below, which adds what the results have of it to the section.
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
  /// In the table and the legend.
  std::string name;
  std::string pointer;
  /// In page/page.js: a colour of the style sheet, or the name of a list of the drawing.
  std::string key;
};

struct Entry {
  void (*draw)(const Entry&, const Report&, ReportSection&);
  const char* title;
  /// How to read it.
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
  /// The table's header where it is more than the values' names.
  std::vector<std::string> columns = {};
  /// Each key of this object whose number is not 0 in all results is a value, too.
  const char* keys_of = nullptr;
  /// Shown instead of the chart where all numbers of `keys_of` are 0.
  const char* none_of_keys = "";
  /// Pointer to the number that each value is divided by; 0 makes all of them 0.
  const char* share_of = nullptr;
  /// Further members of the drawing.
  Json options = Json::object();
  /// For samples: pointer to the list of their times in seconds.
  const char* times = "";
  /// Added to the note where a run's load exceeds capacity.
  const char* overload_note = "";
};

struct Section {
  const char* id;
  const char* title;
  /// Shown where no entry gives a chart.
  const char* missing;
  std::vector<Entry> entries;
};

// ---- Kinds ------------------------------------------------------------------------------------

using Kind = void(const Entry&, const Report&, ReportSection&);

/// A bar a run that has all values, above 0 on a logarithmic axis.
Kind bars_of_runs;
/// A chart a value and a line a run, over time.
Kind lines_of_samples;
/// A point a run: its first value against its second, of which less is better.
Kind front;
/// A table of the hit rates of runs of blocks, beside the ceiling of their workload and the bound
/// of their capacity.
Kind block_hits;
/// Runs that differ in one capacity alone: a line for them, or the lines of several values, which
/// add up, as a chart of their own. Titles are given the tier and the runs' name.
Kind over_capacity;
/// A chart a run of a cluster, a line an instance over time. `times` names the list of the series.
Kind lines_of_instances;
/// The lines of `trace mrc`.
Kind reuse_curves;
/// Tables of a plan: the cheapest of each system, and its capacities with their knee.
Kind plan_answers;
/// A chart a search, a line a condition.
Kind over_load;
/// A table a reproduction.
Kind paper_tables;
/// Values of a simulation beside those of a device.
Kind beside;

// ---- What kinds share -------------------------------------------------------------------------

/// Mean of a number of each; nullopt where one has none.
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
/// A list or an object of a result; an empty one if it is not there.
[[nodiscard]] const Json& list_at(const Json& result, const std::string& pointer);
[[nodiscard]] const Json& object_at(const Json& result, const std::string& pointer);
/// A rate of a search (`kvtier.capacity/1`), whose name ends with the unit of what is varied.
[[nodiscard]] Number varied_at(const Json& json, const std::string& name);
[[nodiscard]] const char* varied_unit(const Json& search);
/// An axis of a drawing.
[[nodiscard]] Json axis(const std::string& title, const char* scale = "linear",
                        const char* format = "");

struct Bar {
  std::string name;
  /// One number for each value.
  std::vector<Number> numbers;
  /// Follows the name in the drawing.
  std::string mark = {};
  /// The row's cells in the entry's columns.
  std::vector<std::string> cells = {};
  /// Index of the number that is drawn for a missing one.
  std::size_t instead = 0;
  /// The load of its run exceeds capacity.
  bool overloaded = false;
};
/// Adds a column a value and a row a bar to the table. The first 40 bars are drawn.
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
