#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "sim/core/build.hpp"
#include "sim/study/report/report_draw.hpp"
#include "sim/study/runs/model_error.hpp"
#include "sim/study/runs/summary.hpp"

namespace kvtier {
namespace {

/// Escapes text for an element or a quoted attribute.
std::string escape(std::string_view text) {
  constexpr std::pair<char, const char*> kEntities[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string out;
  for (const char c : text) {
    const auto* found = std::find_if(std::begin(kEntities), std::end(kEntities),
                                     [c](const auto& entity) { return entity.first == c; });
    out += found == std::end(kEntities) ? std::string(1, c) : found->second;
  }
  return out;
}

std::string paragraph(const char* style, const std::string& text) {
  return text.empty() ? "" : fmt::format("<p class=\"{}\">{}</p>\n", style, escape(text));
}

std::string details(const std::string& summary, std::string_view text) {
  return fmt::format("<details><summary>{}</summary>\n<pre tabindex=\"0\">{}</pre></details>\n",
                     escape(summary), escape(text));
}

/// JSON for a script element, which ends at the first "</script", even inside a text. JSON has the
/// escaped characters only in texts.
std::string script_json(const Json& json) {
  std::string out;
  for (const char c : json_text(json)) {
    if (c == '<' || c == '>' || c == '&') {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out;
}

/// Whether a cell is a number, which is aligned to the right.
bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789.+-e") == std::string::npos;
}

std::string table_html(const ReportTable& table, const std::string& caption) {
  std::string html = fmt::format(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\">\n<table>\n"
      "<caption>{0}</caption>\n<thead><tr>",
      escape(caption));
  for (const std::string& cell : table.header) {
    html += fmt::format("<th scope=\"col\">{}</th>", escape(cell));
  }
  html += "</tr></thead>\n<tbody>\n";
  for (const std::vector<std::string>& row : table.rows) {
    // A part of the row above is indented, as in tables of text.
    const bool is_part = row.front().starts_with("  ");
    html += fmt::format("<tr><th scope=\"row\"{}>{}</th>", is_part ? " class=\"part\"" : "",
                        escape(row.front()));
    for (std::size_t i = 1; i < row.size(); ++i) {
      html += fmt::format("<td{}>{}</td>", is_number(row[i]) ? " class=\"number\"" : "",
                          escape(row[i]));
    }
    html += "</tr>\n";
  }
  return html + "</tbody>\n</table>\n</div>\n";
}

std::string chart_html(const ReportChart& chart, std::size_t number) {
  std::string html = fmt::format("<figure>\n<figcaption>{}</figcaption>\n", escape(chart.title));
  if (chart.drawing.is_null()) {
    return html + paragraph("note", chart.note) + table_html(chart.table, chart.title) +
           "</figure>\n";
  }
  // The height grows with the number of bars.
  const std::size_t bars = chart.drawing.contains("labels") ? chart.drawing["labels"].size() : 0;
  html += fmt::format(
      "<div class=\"canvas\" style=\"height:{}px\"><canvas id=\"chart-{}\" role=\"img\" "
      "aria-label=\"{}. The table below has the data.\"></canvas></div>\n",
      bars > 0 ? 120 + (chart.drawing["kind"] == "beside" ? 58 : 34) * bars : 340, number,
      escape(chart.title));
  return html + paragraph("note", chart.note) + "<details><summary>Data</summary>\n" +
         table_html(chart.table, chart.title) + "</details>\n</figure>\n";
}

std::string joined(const std::vector<std::string>& words) {
  return words.empty() ? "not said" : detail::join(words, ", ");
}

std::string provenance_html(const Report& report) {
  ReportTable table{
      {"input", "format", "seeds", "hash of the file", "written by", "hash of configs"}, {}};
  for (const ReportInput& input : report.inputs) {
    table.rows.push_back({input.name, input.format, joined(input.seeds), input.hash,
                          input.version.empty() ? "not said" : "kvtier " + input.version,
                          input.config_hash.empty() ? "not said" : input.config_hash});
  }
  std::string html = table_html(table, "Inputs");
  for (const ReportInput& input : report.inputs) {
    for (const auto& [name, config] : input.configs) {
      html += details(fmt::format("Config of {}: {}", input.name, name), json_text(config, 2));
    }
    if (input.configs.empty()) {
      html += fmt::format("<p class=\"note\">{} has no configs: {} has.</p>\n", escape(input.name),
                          input.format == "kvtier.reproduce/1" ? "the paper's folder in configs"
                                                               : "the sweep's file");
    }
  }
  return html;
}

std::string notes_html(const Report& report) {
  std::string html;
  for (const ReportInput& input : report.inputs) {
    for (const std::string& note : input.notes) {
      html += paragraph("warning", input.name + ": " + note);
    }
  }
  if (std::any_of(report.runs.begin(), report.runs.end(), is_overloaded)) {
    html += paragraph(
        "warning",
        "In some runs, marked with * and hatched, the load exceeds capacity: the queue "
        "grows as long as sessions arrive. Every number of such a run depends on its length, "
        "hit rates too.");
  }
  std::vector<std::pair<std::string, const Json*>> first_results;
  for (const ReportRun& run : report.runs) {
    first_results.emplace_back(run.label, &run.results.front());
  }
  for (const std::string& line : describe_filling(first_results)) {
    html += paragraph("warning", line);
  }
  return html;
}

/// The transposed table: a row for each column.
ReportTable turned(const ReportTable& table, const char* corner) {
  ReportTable other;
  other.header.emplace_back(corner);
  std::string whole;
  for (const std::vector<std::string>& row : table.rows) {
    // Columns do not show indentation, so a part gets the name of the row above.
    const std::size_t name = row.front().find_first_not_of(' ');
    whole = name == 0 ? row.front() : whole;
    std::string part = row.front().substr(name);
    part.erase(0, part.starts_with("of which ") ? std::string_view("of which ").size() : 0);
    other.header.push_back(name == 0 ? part : whole + ", " + part);
  }
  for (std::size_t i = 1; i < table.header.size(); ++i) {
    std::vector<std::string>& row = other.rows.emplace_back(1, table.header[i]);
    for (const std::vector<std::string>& cells : table.rows) {
      row.push_back(cells[i]);
    }
  }
  return other;
}

/// Columns of a table of runs that a printed page has room for, beside the first one.
constexpr std::size_t kColumnsMost = 8;

/// The table in parts of at most kColumnsMost columns beside the first one, which all parts have.
/// The first part has the columns that answer most questions.
std::vector<ReportTable> cut(const ReportTable& table) {
  constexpr std::string_view kFirst[] = {
      "hit rate, prompt tokens %",   "TTFT mean s", "TTFT p95 s", "TPOT mean ms",
      "$ per million output tokens", "verdict"};
  static_assert(std::size(kFirst) <= kColumnsMost);
  std::vector<std::size_t> columns(table.header.size() - 1);
  if (columns.size() <= kColumnsMost) {
    return {table};
  }
  std::iota(columns.begin(), columns.end(), 1);
  const auto rest = std::stable_partition(columns.begin(), columns.end(), [&](std::size_t column) {
    return std::find(std::begin(kFirst), std::end(kFirst), table.header[column]) !=
           std::end(kFirst);
  });
  std::vector<ReportTable> parts;
  auto to = static_cast<std::size_t>(rest - columns.begin());
  for (std::size_t from = 0; from < columns.size();
       from = std::exchange(to, std::min(columns.size(), to + kColumnsMost))) {
    const auto part_of = [&](const std::vector<std::string>& row) {
      std::vector<std::string> cells{row.front()};
      for (std::size_t i = from; i < to; ++i) {
        cells.push_back(row[columns[i]]);
      }
      return cells;
    };
    ReportTable& part = parts.emplace_back();
    part.header = part_of(table.header);
    std::transform(table.rows.begin(), table.rows.end(), std::back_inserter(part.rows), part_of);
  }
  return parts;
}

std::string input_names(const Report& report) {
  std::vector<std::string> names;
  for (const ReportInput& input : report.inputs) {
    names.push_back(input.name);
  }
  return detail::join(names, ", ");
}

}  // namespace

void check_chart_library(const PageParts& parts) {
  if (parts.chart_library.empty()) {
    throw DeviceError(
        "report: Chart.js 3 was not there when kvtier was built; install libjs-chart.js (apt-get "
        "install libjs-chart.js), then configure and build again (make build)");
  }
}

std::vector<ReportTable> headline_tables(const Report& report) {
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
      const auto value = charts::mean_at(run, row.pointer);
      any = any || (value && (row.needs == nullptr || *value > 0));
      cells.push_back(value ? fmt::format(fmt::runtime(row.format), *value * row.factor)
                            : std::string("-"));
    }
    if (any) {
      table.rows.push_back(std::move(cells));
    }
  }
  const auto add_row = [&](const char* name, const auto& text_of_run) {
    std::vector<std::string>& row = table.rows.emplace_back(1, name);
    std::transform(report.runs.begin(), report.runs.end(), std::back_inserter(row), text_of_run);
  };
  if (!report.runs.empty()) {
    add_row("rent, $ per hour", [](const ReportRun& run) {
      const auto dollars = charts::mean_at(run, "/dollars_per_hour");
      return dollars ? fmt::format("{:.3f}", *dollars) : "-";
    });
    for (const ModelErrorRow& row : model_error_rows()) {
      if (std::ranges::any_of(report.runs,
                              [&](const ReportRun& run) { return row.text(run.results) != "-"; })) {
        add_row(row.label, [&](const ReportRun& run) { return row.text(run.results); });
      }
    }
    add_row("bottleneck", [](const ReportRun& run) { return describe_bottleneck(run.results); });
    add_row("verdict", [](const ReportRun& run) {
      auto worst = std::find_if(run.results.begin(), run.results.end(), exceeds_capacity);
      if (worst == run.results.end()) {
        worst = std::find_if(run.results.begin(), run.results.end(), ever_exceeds_capacity);
      }
      if (worst == run.results.end() && is_too_short(run)) {
        worst = std::find_if(run.results.begin(), run.results.end(),
                             [](const Json& result) { return is_too_short(result); });
      }
      const std::string verdict =
          describe_verdict(worst == run.results.end() ? run.results.front() : *worst);
      return verdict.empty() ? "-" : verdict;
    });
  }
  constexpr std::size_t kRunsMost = 3;
  return report.runs.size() > kRunsMost ? cut(turned(table, "run")) : std::vector{table};
}

std::string report_page(const Report& report, const PageParts& parts) {
  check_chart_library(parts);
  const std::vector<ReportSection> sections = make_sections(report);
  const std::vector<ReportTable> headline = headline_tables(report);
  std::string body;
  std::string links;
  std::string missing;
  Json drawings = Json::array();
  for (const ReportSection& section : sections) {
    if (section.charts.empty()) {
      missing += fmt::format("<li><strong>{}.</strong> {}</li>\n", escape(section.title),
                             escape(section.missing));
      continue;
    }
    links += fmt::format("<a href=\"#{}\">{}</a>\n", section.id, escape(section.title));
    body += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n", section.id, escape(section.title));
    for (const ReportChart& chart : section.charts) {
      body += chart_html(chart, drawings.size());
      if (!chart.drawing.is_null()) {
        drawings.push_back(chart.drawing);
      }
    }
    body += paragraph("note", section.missing) + "</section>\n";
  }
  const std::string names = escape(input_names(report));
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\">\n"
      "<meta name=\"generator\" content=\"kvtier {}\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>kvtier report: {}</title>\n<style>\n",
      build_version(), names);
  page += parts.style;
  const std::string line = page_line(report);
  page += fmt::format(
      "</style>\n</head>\n<body>\n<header>\n<h1>{}</h1>\n<p>kvtier report: {}</p>\n</header>\n",
      line.empty() ? "kvtier report" : escape(line), names);
  const std::vector<std::string> sentences = page_sentences(report);
  if (!sentences.empty()) {
    page += fmt::format("<p class=\"answer\">{}</p>\n", escape(detail::join(sentences, " ")));
  }
  page += "<nav aria-label=\"Sections\">\n";
  if (!report.runs.empty()) {
    links = "<a href=\"#headline\">Headline metrics</a>\n" + links;
  }
  page += links + "<a href=\"#provenance\">Configs and provenance</a>\n</nav>\n<main>\n";
  page +=
      "<noscript><p class=\"warning\">Charts need JavaScript; the tables do not.</p></noscript>\n";
  page += notes_html(report);
  if (!report.runs.empty()) {
    page += "<section id=\"headline\">\n<h2>Headline metrics</h2>\n";
    for (std::size_t i = 0; i < headline.size(); ++i) {
      page += table_html(headline[i], i == 0 ? "Headline metrics"
                                             : fmt::format("Headline metrics, part {}", i + 1));
    }
    page += "</section>\n";
  }
  page += body;
  if (!missing.empty()) {
    page +=
        "<section id=\"missing\">\n<h2>Not drawn</h2>\n<ul>\n" + missing + "</ul>\n</section>\n";
  }
  page += "<section id=\"provenance\">\n<h2>Configs and provenance</h2>\n" +
          provenance_html(report) + "</section>\n</main>\n";
  page += fmt::format(
      "<footer>\n<p>Made by kvtier {}. Charts are drawn by Chart.js, which is part of this "
      "page.</p>\n{}</footer>\n<script>\n",
      build_version(), details("Licence of Chart.js", parts.chart_licence));
  page += parts.chart_library;
  page += "\n</script>\n<script type=\"application/json\" id=\"drawings\">";
  page += script_json(drawings);
  page += "</script>\n<script>\n";
  page += parts.script;
  return page + "</script>\n</body>\n</html>\n";
}

}  // namespace kvtier
