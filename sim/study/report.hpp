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

/// Results that differ in their seeds only.
struct ReportRun {
  std::string label;
  /// Index of the input that it is from.
  std::size_t input = 0;
  /// Of a sweep or a plan: each axis and the run's place on it.
  std::vector<std::pair<std::string, std::string>> axes;
  /// Each as `simulate` writes it, of a sweep without `config`, of a plan with little of `metrics`.
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

/// A search for the highest load, `kvtier.capacity/1`.
struct ReportSearch {
  std::string label;
  Json json;
};

/// A paper's values beside ours, `kvtier.reproduce/1`.
struct ReportReproduction {
  std::string label;
  Json json;
};

/// One config in simulation and on a device, `kvtier.validation/1`.
struct ReportValidation {
  /// Of a sweep the point's labels, else empty.
  std::string label;
  Json json;
};
/// The validations of one file.
struct ReportValidations {
  std::string label;
  std::vector<ReportValidation> points;
};

/// One file.
struct ReportInput {
  /// Its name, of a sweep that of its folder; the path where two have the same.
  std::string name;
  /// The name without its ending: what charts call it.
  std::string label;
  std::string format;
  /// Of the file's bytes.
  std::string hash;
  /// Of the kvtier that wrote it; empty if it does not say.
  std::string version;
  /// Of the configs and, of a sweep, of all that its results follow from; empty if not known.
  std::string config_hash;
  /// The resolved configs, each with what it is of.
  std::vector<std::pair<std::string, Json>> configs;
  std::vector<std::string> seeds;
  /// What a reader has to know: runs that failed.
  std::vector<std::string> notes;
};

struct Report {
  std::vector<ReportInput> inputs;
  std::vector<ReportRun> runs;
  std::vector<ReportCurve> curves;
  std::vector<ReportSearch> searches;
  std::vector<ReportReproduction> reproductions;
  std::vector<ReportValidations> validations;
};

/// Reads what `simulate`, `compare`, `sweep`, `plan`, `trace mrc`, `reproduce` and `validate`
/// write. The folder of a sweep stands for its results. Throws ConfigError with every problem of
/// every file, DeviceError for one that cannot be read.
[[nodiscard]] Report read_report(const std::vector<std::string>& files);

/// A table whose first column names its rows.
struct ReportTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};

struct ReportChart {
  std::string title;
  /// How to read it.
  std::string note;
  /// What page/page.js draws; null where the table is all there is.
  Json drawing;
  ReportTable table;
};

struct ReportSection {
  std::string id;
  std::string title;
  std::vector<ReportChart> charts;
  /// Why there is no chart, or what is to be said of all of them; empty if nothing is.
  std::string missing;
};

/// The sections of a page, those without a chart too.
[[nodiscard]] std::vector<ReportSection> make_sections(const Report& report);
/// Headline metrics, a column a run.
[[nodiscard]] ReportTable headline_table(const Report& report);

/// What a page is made of, besides results.
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
