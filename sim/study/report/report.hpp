#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/config.hpp"

/// Draws results as one page of charts and tables, which needs only a browser:
///
///     read_report    reads files of results into runs, curves and their sources
///     make_sections  makes the charts and tables that they allow, and texts for missing ones
///     report_page    makes the page
namespace kvtier {

/// The axes of a sweep, a plan or a validation, each with the label of a run's value.
using ReportAxes = std::vector<std::pair<std::string, std::string>>;

/// Results that differ only in their seeds.
struct ReportRun {
  std::string label;
  /// Index of the run's input.
  std::size_t input = 0;
  ReportAxes axes;
  /// Results as `simulate` writes them. Those of a sweep lack `config`, and those of a plan most of
  /// `metrics`. `dollars_per_hour` is the rent of GPUs and used tiers, if it is known.
  std::vector<Json> results;
};

/// Whether the load exceeds capacity in one of the run's results. Its label then ends with " *".
[[nodiscard]] bool is_overloaded(const ReportRun& run);
/// Whether one of the run's results is too short to tell, and none exceeds capacity.
[[nodiscard]] bool is_too_short(const ReportRun& run);

/// A hit rate at many capacities of one tier.
struct ReportCurve {
  std::string label;
  /// Pairs of capacity in bytes and hit rate of all turns.
  std::vector<std::pair<double, double>> points;
};

/// A JSON document that charts read directly.
struct ReportDocument {
  /// The label of its input, or for a validation of a sweep the labels of its point.
  std::string label;
  Json json;
};
/// The validations of one file.
struct ReportValidations {
  std::string label;
  std::vector<ReportDocument> points;
};

/// One input file.
struct ReportInput {
  /// The file's name, or for a sweep its folder's. The path if two inputs have the same name.
  std::string name;
  /// The name without its ending, for charts.
  std::string label;
  std::string format;
  /// The hash of the file's bytes.
  std::string hash;
  /// The version of kvtier that wrote the file; empty if it is not known.
  std::string version;
  /// The hash of the configs; for a sweep, of all inputs of its results. Empty if it is not known.
  std::string config_hash;
  /// The setting of a sweep or plan (run_setting in summary.hpp); null in other inputs.
  Json setting;
  /// The resolved configs, each with the name of its system or run.
  std::vector<std::pair<std::string, Json>> configs;
  std::vector<std::string> seeds;
  /// Warnings for the reader, such as runs that failed.
  std::vector<std::string> notes;
};

struct Report {
  std::vector<ReportInput> inputs;
  std::vector<ReportRun> runs;
  std::vector<ReportCurve> curves;
  /// Searches for the highest load, `kvtier.capacity/1`.
  std::vector<ReportDocument> searches;
  /// Results of plans, `kvtier.plan/1`.
  std::vector<ReportDocument> plans;
  /// Comparisons with papers' values, `kvtier.reproduce/1`.
  std::vector<ReportDocument> reproductions;
  /// Simulated and measured runs of one config each, `kvtier.validation/1`.
  std::vector<ReportValidations> validations;
};

/// Reads the results of `simulate`, `compare`, `sweep`, `plan`, `trace mrc`, `reproduce` and
/// `validate`. The folder of a sweep or plan stands for its results. Throws ConfigError with all
/// problems of all files, and DeviceError for a file that cannot be read.
[[nodiscard]] Report read_report(const std::vector<std::string>& files);

/// A table whose first column names its rows.
struct ReportTable {
  std::vector<std::string> header = {};
  std::vector<std::vector<std::string>> rows = {};
};

struct ReportChart {
  std::string title;
  /// An explanation below the chart.
  std::string note = {};
  /// The input of page/page.js; null if the chart is a table only.
  Json drawing = {};
  ReportTable table = {};
};

struct ReportSection {
  std::string id;
  std::string title;
  std::vector<ReportChart> charts;
  /// The reason why there is no chart, or a note on all charts; may be empty.
  std::string missing;
};

/// A line with the model, server, workload and load of the runs, or the number of different ones.
/// Empty if they are not known.
[[nodiscard]] std::string page_line(const Report& report);
/// Up to three sentences on the main results, after one on runs that are too short to tell. Those
/// are not in the other sentences.
[[nodiscard]] std::vector<std::string> page_sentences(const Report& report);
/// Sentences on a plan (`kvtier.plan/1`): its cheapest configuration, or else the binding
/// condition; the capacities beyond which more improves little; why the other systems are excluded.
[[nodiscard]] std::vector<std::string> describe_plan(const Json& plan);

/// Runs of one model and kind of workload, which may share an axis of a chart.
struct ReportSetting {
  std::string name;
  /// Pointers into the report.
  std::vector<const ReportRun*> runs;
};
[[nodiscard]] std::vector<ReportSetting> by_setting(const Report& report);

/// The sections of a page, including those without a chart.
[[nodiscard]] std::vector<ReportSection> make_sections(const Report& report);
/// Headline metrics in one table with a column for each run. With more than three runs, tables with
/// a row for each run and few enough columns for a printed page; the first has hit rates, TTFT,
/// TPOT, cost and verdict.
[[nodiscard]] std::vector<ReportTable> headline_tables(const Report& report);

/// The parts of a page that do not depend on results.
struct PageParts {
  std::string_view style;
  std::string_view script;
  /// Chart.js and its licence; empty if kvtier was built without them.
  std::string_view chart_library;
  std::string_view chart_licence;
};
/// The parts that are built into kvtier.
[[nodiscard]] const PageParts& page_parts();
/// Throws DeviceError with the package to install if `parts` has no Chart.js.
void check_chart_library(const PageParts& parts);

/// The page as HTML. The same report and parts give the same bytes.
[[nodiscard]] std::string report_page(const Report& report, const PageParts& parts);

}  // namespace kvtier
