#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "sim/core/file.hpp"
#include "sim/core/fingerprint.hpp"
#include "sim/study/report.hpp"
#include "sim/study/run_folder.hpp"
#include "sim/study/summary.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

/// Whole numbers as they are written, such as seeds.
std::string whole_text(const Json& json, const std::string& pointer) {
  const Json::json_pointer at(pointer);
  return json.contains(at) && json.at(at).is_number_integer() ? json_text(json.at(at)) : "";
}

void add_once(std::vector<std::string>& list, const std::string& text) {
  if (!text.empty() && std::find(list.begin(), list.end(), text) == list.end()) {
    list.push_back(text);
  }
}

/// A file that is being read.
struct Source {
  std::string path;
  std::size_t index = 0;
  Report* report = nullptr;
  Problems* problems = nullptr;

  [[nodiscard]] ReportInput& input() const { return report->inputs[index]; }
  /// The object or list at a pointer; null, and a problem, if it is something else.
  [[nodiscard]] const Json* need(const Json& json, const std::string& pointer, Json::value_t kind,
                                 const std::string& prefix = "") const {
    const Json::json_pointer at(pointer);
    if (json.contains(at) && json.at(at).type() == kind) {
      return &json.at(at);
    }
    problems->add(prefix + pointer,
                  json.contains(at)
                      ? fmt::format("expected {}, got {}",
                                    kind == Json::value_t::object ? "an object" : "a list",
                                    quote_json(json.at(at)))
                      : "missing key");
    return nullptr;
  }
  [[nodiscard]] const Json* object(const Json& json, const std::string& pointer,
                                   const std::string& prefix = "") const {
    return need(json, pointer, Json::value_t::object, prefix);
  }
  [[nodiscard]] const Json* list(const Json& json, const std::string& pointer,
                                 const std::string& prefix = "") const {
    return need(json, pointer, Json::value_t::array, prefix);
  }
  void add_config(const std::string& name, const Json& config) const {
    input().configs.emplace_back(name, config);
    add_once(input().seeds, whole_text(config, "/seed"));
  }
  [[nodiscard]] bool is_result(const Json& json, const std::string& prefix = "") const {
    const Json* config = object(json, "/config", prefix);
    const Json* metrics = object(json, "/metrics", prefix);
    return config != nullptr && metrics != nullptr;
  }
};

void read_result(const Source& source, Json json) {
  if (!source.is_result(json)) {
    return;
  }
  source.add_config(text_at(json, "/config/system/name"), json["config"]);
  source.report->runs.push_back({source.input().label, source.index, {}, {std::move(json)}});
}

void read_comparison(const Source& source, const Json& json) {
  const Json* systems = source.object(json, "/systems");
  if (systems == nullptr) {
    return;
  }
  for (const auto& [name, system] : systems->items()) {
    const std::string at = "/systems/" + escape_pointer(name);
    const Json* results = source.list(system, "/results", at);
    if (results == nullptr) {
      continue;
    }
    ReportRun run{name, source.index, {}, {}};
    for (std::size_t i = 0; i < results->size(); ++i) {
      const Json& result = (*results)[i];
      if (!source.is_result(result, fmt::format("{}/results/{}", at, i))) {
        continue;
      }
      if (run.results.empty()) {
        source.add_config(name, result["config"]);
      }
      add_once(source.input().seeds, whole_text(result, "/config/seed"));
      run.results.push_back(result);
    }
    if (!run.results.empty()) {
      source.report->runs.push_back(std::move(run));
    }
  }
}

/// The places of a run on its axes; a problem and none if they are no texts.
std::vector<std::pair<std::string, std::string>> axes_of(const Source& source, const Json& json,
                                                         const std::string& prefix) {
  std::vector<std::pair<std::string, std::string>> axes;
  if (const Json* object = source.object(json, "/axes", prefix)) {
    for (const auto& [name, label] : object->items()) {
      if (!label.is_string()) {
        source.problems->add(prefix + "/axes/" + escape_pointer(name),
                             "expected a string, got " + quote_json(label));
        return {};
      }
      axes.emplace_back(name, label.get<std::string>());
    }
  }
  return axes;
}

std::string label_of(const std::vector<std::pair<std::string, std::string>>& axes) {
  std::string text;
  for (const auto& [name, label] : axes) {
    text += (text.empty() ? "" : ", ") + label;
  }
  return text;
}

/// A trial as a result that has what the plan keeps of it.
Json result_of_trial(const Json& trial) {
  const Json::json_pointer ttft("/ttft_seconds/mean");
  Json result{{"metrics", Json::object()}};
  if (trial.contains("hit_rate")) {
    result["metrics"]["hit_rate"]["all_turns"]["total"] = trial["hit_rate"];
  }
  if (trial.contains(ttft)) {
    result["metrics"]["ttft_seconds"]["mean"] = trial.at(ttft);
  }
  if (trial.contains("dollars_per_hour")) {
    result["dollars_per_hour"] = trial["dollars_per_hour"];
  }
  const auto overloaded = number_at(trial, "/overloaded_replications");
  result["load"]["verdict"] =
      overloaded && *overloaded > 0 ? "load exceeds capacity" : "load is within capacity";
  return result;
}

void read_plan(const Source& source, const Json& json) {
  const Json* plan = source.object(json, "/plan");
  const Json* trials = source.list(json, "/trials");
  if (plan == nullptr || trials == nullptr) {
    return;
  }
  source.input().configs.emplace_back("plan", *plan);
  add_once(source.input().seeds, whole_text(*plan, "/config/seed"));
  for (std::size_t i = 0; i < trials->size(); ++i) {
    const Json& trial = (*trials)[i];
    ReportRun run{"", source.index, axes_of(source, trial, fmt::format("/trials/{}", i)), {}};
    run.label = label_of(run.axes);
    // An axis may call the system something else, or set a part of it.
    const std::string system = text_at(trial, "/system");
    if (!system.empty() && run.label.find(system) == std::string::npos) {
      run.label = system + ": " + run.label;
    }
    if (trial.contains("meets") && trial["meets"] == true) {
      run.label += " (meets the SLO)";
    }
    run.results.push_back(result_of_trial(trial));
    source.report->runs.push_back(std::move(run));
  }
  if (!json.contains("systems") || !json["systems"].is_array()) {
    return;
  }
  for (const Json& system : json["systems"]) {
    const std::string name = text_at(system, "/name");
    const std::string reason = text_at(system, "/excluded_by/0");
    if (!name.empty() && !reason.empty()) {
      source.input().notes.push_back(fmt::format("{}: {}.", name, reason));
    }
  }
}

void read_curve(const Source& source, const Json& json) {
  const Json* config = source.object(json, "/config");
  const Json* points = source.list(json, "/points");
  if (config == nullptr || points == nullptr) {
    return;
  }
  source.add_config("LRU at every capacity", *config);
  ReportCurve curve{source.input().label + " (LRU, one tier, untimed)", {}};
  for (std::size_t i = 0; i < points->size(); ++i) {
    const auto bytes = number_at((*points)[i], "/capacity_bytes");
    const auto hits = number_at((*points)[i], "/hit_rate/all_turns");
    if (bytes && hits) {
      curve.points.emplace_back(*bytes, *hits);
    } else {
      source.problems->add(
          fmt::format("/points/{}", i),
          "expected numbers at /capacity_bytes and /hit_rate/all_turns, got neither or one");
    }
  }
  source.report->curves.push_back(std::move(curve));
}

void read_search(const Source& source, const Json& json) {
  const Json* config = source.object(json, "/config");
  const bool whole = source.list(json, "/slo") != nullptr;
  if (source.list(json, "/trials") == nullptr || config == nullptr || !whole) {
    return;
  }
  source.add_config(text_at(*config, "/system/name"), *config);
  source.report->searches.push_back({source.input().label, json});
}

void read_reproduction(const Source& source, const Json& json) {
  const Json* figures = source.object(json, "/figures");
  if (figures == nullptr) {
    return;
  }
  for (const auto& [name, figure] : figures->items()) {
    const std::string at = "/figures/" + escape_pointer(name);
    const Json* values = source.list(figure, "/values", at);
    for (std::size_t i = 0; values != nullptr && i < values->size(); ++i) {
      if (text_at((*values)[i], "/name").empty()) {
        source.problems->add(fmt::format("{}/values/{}/name", at, i), "missing key");
      }
    }
  }
  if (const auto seeds = number_at(json, "/replications")) {
    source.input().seeds.push_back(fmt::format("{} of each run", *seeds));
  }
  source.report->reproductions.push_back({source.input().label, json});
}

/// The two sides of a validation are runs, too.
void add_sides(const Source& source, const Json& json,
               const std::vector<std::pair<std::string, std::string>>& axes,
               const std::string& prefix) {
  const auto add = [&](const char* side, std::vector<Json> results) {
    ReportRun run{"", source.index, axes, std::move(results)};
    run.axes.emplace_back("run", side);
    run.label = label_of(run.axes);
    source.report->runs.push_back(std::move(run));
  };
  const Json* simulated = source.object(json, "/simulated", prefix);
  const Json* measured = source.list(json, "/measured", prefix);
  if (simulated == nullptr || measured == nullptr ||
      !source.is_result(*simulated, prefix + "/simulated")) {
    return;
  }
  source.add_config(axes.empty() ? "the validation" : label_of(axes), (*simulated)["config"]);
  std::vector<Json> results;
  for (std::size_t i = 0; i < measured->size(); ++i) {
    if (source.is_result((*measured)[i], fmt::format("{}/measured/{}", prefix, i))) {
      results.push_back((*measured)[i]);
    }
  }
  add("simulated", {*simulated});
  if (!results.empty()) {
    add("measured", std::move(results));
  }
}

/// Adds a validation to those of its file. One in lock step has no times: it becomes a note.
void read_validation(const Source& source, const Json& json,
                     const std::vector<std::pair<std::string, std::string>>& axes,
                     const std::string& prefix, ReportValidations& all) {
  const std::string name = label_of(axes);
  if (json.contains("lock_step")) {
    const Json::json_pointer at("/lock_step/equal");
    const bool equal = json.contains(at) && json.at(at) == true;
    source.input().notes.push_back(fmt::format(
        "{}{}in lock step on {}: the decisions and metrics are {}those of the simulation.", name,
        name.empty() ? "" : ": ", text_at(json, "/device"), equal ? "" : "not "));
    return;
  }
  const Json* rows = source.list(json, "/rows", prefix);
  if (rows == nullptr) {
    return;
  }
  for (std::size_t i = 0; i < rows->size(); ++i) {
    const Json& row = (*rows)[i];
    if (text_at(row, "/metric").empty() || !number_at(row, "/simulated") ||
        !number_at(row, "/measured")) {
      source.problems->add(fmt::format("{}/rows/{}", prefix, i),
                           "expected a metric and the numbers simulated and measured");
      return;
    }
  }
  add_sides(source, json, axes, prefix);
  all.points.push_back({name, json});
}

void read_validation(const Source& source, const Json& json) {
  ReportValidations all{source.input().label, {}};
  read_validation(source, json, {}, "", all);
  source.report->validations.push_back(std::move(all));
}

void read_validations(const Source& source, const Json& json) {
  const Json* names = source.list(json, "/axes");
  const Json* points = source.list(json, "/points");
  if (names == nullptr || points == nullptr) {
    return;
  }
  ReportValidations all{source.input().label, {}};
  for (std::size_t i = 0; i < points->size(); ++i) {
    const std::string at = fmt::format("/points/{}", i);
    const Json& point = (*points)[i];
    const Json* labels = source.list(point, "/labels", at);
    if (labels == nullptr) {
      continue;
    }
    std::vector<std::pair<std::string, std::string>> axes;
    for (std::size_t axis = 0; axis < std::min(names->size(), labels->size()); ++axis) {
      if (!(*names)[axis].is_string() || !(*labels)[axis].is_string()) {
        source.problems->add(fmt::format("{}/labels/{}", at, axis),
                             "expected a string, got " + quote_json((*labels)[axis]));
        return;
      }
      axes.emplace_back((*names)[axis].get<std::string>(), (*labels)[axis].get<std::string>());
    }
    if (point.contains("refused")) {
      source.input().notes.push_back(label_of(axes) + " was refused.");
    } else if (const Json* one = source.object(point, "/validation", at)) {
      read_validation(source, *one, axes, at + "/validation", all);
    }
  }
  if (json.contains("complete") && json["complete"] == false) {
    source.input().notes.emplace_back("The validation ended early: points are missing.");
  }
  source.report->validations.push_back(std::move(all));
}

/// Why runs of a sweep have no result.
struct Failures {
  std::int64_t count = 0;
  std::vector<std::string> reasons;

  void add(const Json& line) {
    ++count;
    const Json& why = line.contains("refused") ? line["refused"] : line["error"]["problems"];
    for (const Json& reason : why) {
      add_once(reasons, reason.is_string() ? reason.get<std::string>() : json_text(reason));
    }
  }
  [[nodiscard]] std::string note() const {
    std::string text = fmt::format("{} {} no result:", count, count == 1 ? "run has" : "runs have");
    for (std::size_t i = 0; i < reasons.size(); ++i) {
      text += (i > 0 ? "; " : " ") + reasons[i];
    }
    return text + ".";
  }
};

/// One line of a sweep; `places` says which run its point is.
void read_line(const Source& source, Json line, std::map<std::string, std::size_t>& places,
               Failures& failures) {
  const std::string point = whole_text(line, "/point");
  const bool is_failure =
      line.contains("refused") || (line.contains("error") && line["error"].contains("problems"));
  if (point.empty() || !(is_failure || line.contains("metrics"))) {
    source.problems->add(
        "", "expected a line of a sweep, with point, axes and one of metrics, error and refused");
    return;
  }
  const auto axes = axes_of(source, line, "");
  if (!source.problems->empty()) {
    return;
  }
  if (is_failure) {
    failures.add(line);
    return;
  }
  if (source.object(line, "/metrics") == nullptr) {
    return;
  }
  add_once(source.input().seeds, whole_text(line, "/seed"));
  const auto [place, is_new] = places.emplace(point, source.report->runs.size());
  if (is_new) {
    source.report->runs.push_back({label_of(axes), source.index, axes, {}});
  }
  source.report->runs[place->second].results.push_back(std::move(line));
}

/// The lines of a sweep: runs with all their replications, in the order of the points.
void read_lines(const Source& source, const std::string& text) {
  std::map<std::string, std::size_t> places;
  Failures failures;
  std::istringstream stream(text);
  std::string line;
  for (std::int64_t number = 1; std::getline(stream, line); ++number) {
    const std::string where = fmt::format("{}:{}", source.path, number);
    Problems problems;
    problems.set_origin("", where);
    Source here = source;
    here.problems = &problems;
    try {
      read_line(here, parse_json_strictly(line, where), places, failures);
    } catch (const ConfigError& error) {
      for (const std::string& problem : error.problems()) {
        problems.add_line(problem);
      }
    }
    for (const std::string& problem : problems.lines()) {
      source.problems->add_line(problem);
    }
  }
  if (failures.count > 0) {
    source.input().notes.push_back(failures.note());
  }
}

/// The build that made a result; empty where the result does not say.
std::string written_by(const std::string& version, const std::string& commit) {
  return commit.empty() ? version : fmt::format("{} (commit {})", version, commit);
}

/// Which sweep the lines are of, if the file that says so lies beside them.
void read_identity(const Source& source) {
  const fs::path file = fs::path(source.path).parent_path() / kSweepFolder.identity;
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    return;
  }
  const Json identity = parse_json_strictly(read_text_file(file), file.string());
  if (text_at(identity, "/format") != kSweepFormat) {
    source.problems->add_line(fmt::format("{}: /format: expected {}", file.string(), kSweepFormat));
    return;
  }
  source.input().version = written_by(text_at(identity, "/version"), text_at(identity, "/commit"));
  source.input().config_hash = text_at(identity, "/hash");
}

struct Format {
  const char* name;
  void (*read)(const Source&, Json);
};
constexpr Format kFormats[] = {
    {"kvtier.result/1", [](const Source& s, Json json) { read_result(s, std::move(json)); }},
    {"kvtier.untimed/1", [](const Source& s, Json json) { read_result(s, std::move(json)); }},
    {"kvtier.compare/1", [](const Source& s, Json json) { read_comparison(s, json); }},
    {"kvtier.capacity/1", [](const Source& s, Json json) { read_search(s, json); }},
    {"kvtier.plan/1", [](const Source& s, Json json) { read_plan(s, json); }},
    {"kvtier.miss_ratio_curve/1", [](const Source& s, Json json) { read_curve(s, json); }},
    {"kvtier.reproduce/1", [](const Source& s, Json json) { read_reproduction(s, json); }},
    {"kvtier.validation/1", [](const Source& s, Json json) { read_validation(s, json); }},
    {"kvtier.validations/1", [](const Source& s, Json json) { read_validations(s, json); }},
};

bool are_lines(const std::string& text, const std::string& path) {
  const auto first = parse_json_if_valid(text.substr(0, text.find('\n')), path);
  return first && first->is_object() && first->contains("point") && !first->contains("format");
}

void read_document(const Source& source, const std::string& text) {
  Json json = parse_json_strictly(text, source.path);
  if (!json.is_object()) {
    source.problems->add("", "expected an object, got " + quote_json(json));
    return;
  }
  const std::string format = text_at(json, "/format");
  std::string names;
  for (const Format& known : kFormats) {
    if (format == known.name) {
      source.input().format = format;
      source.input().version =
          written_by(text_at(json, "/build/version"), text_at(json, "/build/commit"));
      return known.read(source, std::move(json));
    }
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  source.problems->add(
      "/format", fmt::format("expected one of {}, or the lines of a sweep, got {}", names,
                             json.contains("format") ? quote_json(json["format"]) : "no format"));
}

/// What the page calls each file: its name, of a sweep that of its folder; the path where two have
/// the same name.
std::vector<std::string> names_of(const std::vector<std::string>& files) {
  std::vector<std::string> names;
  std::map<std::string, int> uses;
  for (const std::string& file : files) {
    const fs::path path(file);
    names.push_back(path.filename() == kRunLines && path.has_parent_path()
                        ? path.parent_path().filename().string()
                        : path.filename().string());
    ++uses[names.back()];
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (uses[names[i]] > 1) {
      names[i] = files[i];
    }
  }
  return names;
}

/// The file that an argument means.
std::string resolve_file(const std::string& argument, Problems& problems) {
  std::error_code ignored;
  if (!fs::is_directory(argument, ignored)) {
    return argument;
  }
  const fs::path plan = fs::path(argument) / kPlanFolder.summary;
  if (fs::exists(plan, ignored)) {
    return plan.lexically_normal().string();
  }
  const fs::path lines = fs::path(argument) / kRunLines;
  if (!fs::exists(lines, ignored)) {
    problems.add_line(
        fmt::format("{}: expected a result or the folder of a finished sweep, got a folder without "
                    "{}",
                    argument, kRunLines));
    return "";
  }
  return lines.lexically_normal().string();
}

/// Runs of several inputs say which, and no two are called the same.
void tell_apart(Report& report) {
  if (report.inputs.size() > 1) {
    for (ReportRun& run : report.runs) {
      const std::string& input = report.inputs[run.input].label;
      if (run.label != input) {
        run.label = input + ": " + run.label;
      }
    }
  }
  std::map<std::string, int> uses;
  for (ReportRun& run : report.runs) {
    const int use = ++uses[run.label];
    if (use > 1) {
      run.label += fmt::format(" ({})", use);
    }
  }
  for (ReportRun& run : report.runs) {
    run.label += is_overloaded(run) ? " *" : "";
  }
}

}  // namespace

bool is_overloaded(const ReportRun& run) {
  return std::any_of(run.results.begin(), run.results.end(), exceeds_capacity);
}

Report read_report(const std::vector<std::string>& files) {
  Report report;
  std::vector<std::string> lines;
  std::vector<std::string> paths;
  Problems arguments(false);
  for (auto file = files.begin(); file != files.end(); ++file) {
    if (std::find(files.begin(), file, *file) != file) {
      arguments.add_line(fmt::format("RESULT: {} is given twice", *file));
    } else if (std::string path = resolve_file(*file, arguments); !path.empty()) {
      paths.push_back(std::move(path));
    }
  }
  lines = arguments.lines();
  const std::vector<std::string> names = names_of(paths);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    Problems problems;
    problems.set_origin("", paths[i]);
    try {
      const std::string text = read_text_file(paths[i]);
      report.inputs.push_back({.name = names[i],
                               .label = fs::path(names[i]).replace_extension().string(),
                               .hash = fingerprint(text)});
      const Source source{paths[i], report.inputs.size() - 1, &report, &problems};
      if (are_lines(text, paths[i])) {
        source.input().format = "lines of a sweep";
        read_lines(source, text);
        read_identity(source);
      } else {
        read_document(source, text);
      }
    } catch (const ConfigError& error) {
      for (const std::string& problem : error.problems()) {
        problems.add_line(problem);
      }
    }
    lines.insert(lines.end(), problems.lines().begin(), problems.lines().end());
  }
  if (!lines.empty()) {
    throw ConfigError(std::move(lines));
  }
  for (ReportInput& input : report.inputs) {
    if (input.config_hash.empty() && !input.configs.empty()) {
      Fingerprint hash;
      for (const auto& [name, config] : input.configs) {
        hash.add(json_text(config));
      }
      input.config_hash = hash.text();
    }
  }
  tell_apart(report);
  return report;
}

}  // namespace kvtier
