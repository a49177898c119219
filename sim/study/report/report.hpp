#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/config.hpp"

/// Results as one page of charts and tables, which needs nothing but a browser:
///
///     read_report    files of results to runs, curves and where they come from
///     make_sections  which charts these can give, with their tables, and what is missing
///     report_page    the page
namespace kvtier {

/// The axes of a sweep, a plan or a validation, each with a run's place on it.
using ReportAxes = std::vector<std::pair<std::string, std::string>>;

/// Results that differ in their seeds only.
struct ReportRun {
  std::string label;
  /// Index of the input that it is from.
  std::size_t input = 0;
  ReportAxes axes;
  /// Each as `simulate` writes it, of a sweep without `config`, of a plan with little of `metrics`.
  /// `dollars_per_hour` is the rent of GPUs and used tiers, where it is known.
  std::vector<Json> results;
};

/// Whether the load of one of its results exceeds capacity; the label then ends with " *".
[[nodiscard]] bool is_overloaded(const ReportRun& run);

/// A hit rate at many capacities of one tier.
struct ReportCurve {
  std::string label;
  /// Bytes and the hit rate of all turns.
  std::vector<std::pair<double, double>> points;
};

/// A document that charts read as it is.
struct ReportDocument {
  /// The label of its input. For a validation of a sweep: the labels of its point.
  std::string label;
  Json json;
};
/// The validations of one file.
struct ReportValidations {
  std::string label;
  std::vector<ReportDocument> points;
};

/// One file.
struct ReportInput {
  /// Its name, of a sweep that of its folder; the path where two have the same.
  std::string name;
  /// The name without its ending: what charts call it.
  std::string label;
  std::string format;
  /// The hash of the file's bytes.
  std::string hash;
  /// The version of the kvtier that wrote it; empty if it does not say.
  std::string version;
  /// The hash of the configs; for a sweep, of all inputs of its results. Empty if not known.
  std::string config_hash;
  /// The setting of a sweep or plan (run_setting in summary.hpp); null in other inputs.
  Json setting;
  /// The resolved configs, each with what it is of.
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
  /// Answers to "which configuration is the cheapest", `kvtier.plan/1`.
  std::vector<ReportDocument> plans;
  /// A paper's values beside ours, `kvtier.reproduce/1`.
  std::vector<ReportDocument> reproductions;
  /// Simulated and measured runs of one config each, `kvtier.validation/1`.
  std::vector<ReportValidations> validations;
};

/// Reads what `simulate`, `compare`, `sweep`, `plan`, `trace mrc`, `reproduce` and `validate`
/// write. The folder of a sweep stands for its results. Throws ConfigError with every problem of
/// every file, DeviceError for one that cannot be read.
[[nodiscard]] Report read_report(const std::vector<std::string>& files);

/// A table whose first column names its rows.
struct ReportTable {
  std::vector<std::string> header = {};
  std::vector<std::vector<std::string>> rows = {};
};

struct ReportChart {
  std::string title;
  /// How to read it.
  std::string note = {};
  /// The input of page/page.js; null if the chart is a table only.
  Json drawing = {};
  ReportTable table = {};
};

struct ReportSection {
  std::string id;
  std::string title;
  std::vector<ReportChart> charts;
  /// Why there is no chart, or what is to be said of all of them; empty if nothing is.
  std::string missing;
};

/// One line: model, server, workload and load of the runs, or how many there are of each. Empty if
/// no run says so.
[[nodiscard]] std::string page_line(const Report& report);
/// Up to three sentences on what came out.
[[nodiscard]] std::vector<std::string> page_sentences(const Report& report);
/// Sentences on a plan (`kvtier.plan/1`): its cheapest configuration, or what binds if there is
/// none; from which capacities on more of them improves little; the system that comes next.
[[nodiscard]] std::vector<std::string> describe_plan(const Json& plan);

/// Runs of one model and kind of workload, which may share an axis.
struct ReportSetting {
  std::string name;
  /// Of the report.
  std::vector<const ReportRun*> runs;
};
[[nodiscard]] std::vector<ReportSetting> by_setting(const Report& report);

/// The sections of a page, those without a chart too.
[[nodiscard]] std::vector<ReportSection> make_sections(const Report& report);
/// Headline metrics: a column a run, and from four runs on a row a run.
[[nodiscard]] ReportTable headline_table(const Report& report);

/// The parts of a page besides results.
struct PageParts {
  std::string_view style;
  std::string_view script;
  /// Chart.js and its licence; empty if they were not there when kvtier was built.
  std::string_view chart_library;
  std::string_view chart_licence;
};
/// Those that kvtier was built with.
[[nodiscard]] const PageParts& page_parts();
/// Throws DeviceError, which says what to install, if `parts` have no Chart.js.
void check_chart_library(const PageParts& parts);

/// The page as HTML. The same report and parts give the same bytes.
[[nodiscard]] std::string report_page(const Report& report, const PageParts& parts);

}  // namespace kvtier
