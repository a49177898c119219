#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "sim/core/file.hpp"
#include "sim/core/fingerprint.hpp"
#include "sim/study/config/overrides.hpp"
#include "sim/study/report/report.hpp"
#include "sim/study/runs/run_folder.hpp"
#include "sim/study/runs/summary.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

/// The text of a whole number, such as a seed; empty for other values.
std::string whole_text(const Json& json, const std::string& pointer) {
  const Json* whole = find_at(json, Json::json_pointer(pointer));
  return whole != nullptr && whole->is_number_integer() ? json_text(*whole) : "";
}

/// Whether a member is this value.
bool is_at(const Json& json, const std::string& pointer, bool value) {
  const Json* member = find_at(json, Json::json_pointer(pointer));
  return member != nullptr && *member == value;
}

void add_once(std::vector<std::string>& list, const std::string& text) {
  if (!text.empty() && std::find(list.begin(), list.end(), text) == list.end()) {
    list.push_back(text);
  }
}

void add_lines(Problems& problems, const std::vector<std::string>& lines) {
  std::for_each(lines.begin(), lines.end(), [&](const auto& line) { problems.add_line(line); });
}

constexpr Json::value_t kObject = Json::value_t::object;
constexpr Json::value_t kList = Json::value_t::array;

/// A member that a document needs.
struct Member {
  const char* pointer;
  Json::value_t kind;
};
const std::vector<Member> kResult = {{"/config", kObject}, {"/metrics", kObject}};

/// The file that is read.
struct Source {
  std::string path;
  std::size_t index = 0;
  Report* report = nullptr;
  Problems* problems = nullptr;

  [[nodiscard]] ReportInput& input() const { return report->inputs[index]; }
  /// The member of this kind at a pointer. Otherwise adds a problem and returns null.
  [[nodiscard]] const Json& need(const Json& json, const std::string& pointer, Json::value_t kind,
                                 const std::string& prefix = "") const {
    static const Json kNull;
    const Json* found = find_at(json, Json::json_pointer(pointer));
    if (found != nullptr && found->type() == kind) {
      return *found;
    }
    const char* const expected = kind == kObject ? "an object" : "a list";
    problems->add(prefix + pointer, found == nullptr ? "missing key"
                                                     : fmt::format("expected {}, got {}", expected,
                                                                   quote_json(*found)));
    return kNull;
  }
  /// Whether all members are there. Adds a problem for each missing one.
  [[nodiscard]] bool has(const Json& json, const std::vector<Member>& members,
                         const std::string& prefix = "") const {
    return std::count_if(members.begin(), members.end(), [&](const Member& member) {
             return need(json, member.pointer, member.kind, prefix).is_null();
           }) == 0;
  }
  /// The results in a list. Adds a problem for each other item.
  [[nodiscard]] std::vector<Json> results_of(const Json& list, const std::string& prefix) const {
    std::vector<Json> results;
    for (const auto& [i, json] : list.items()) {
      if (has(json, kResult, prefix + "/" + i)) {
        results.push_back(json);
      }
    }
    return results;
  }
  void add_config(const std::string& name, const Json& config) const {
    input().configs.emplace_back(name, config);
    add_once(input().seeds, whole_text(config, "/seed"));
  }
  void add_run(const std::string& label, const ReportAxes& axes, std::vector<Json> results) const {
    if (!results.empty()) {
      report->runs.push_back({label, index, axes, std::move(results)});
    }
  }
  void add_note(const std::string& note) const { input().notes.push_back(note); }
  /// The text. Adds a problem and returns nullopt for another value.
  [[nodiscard]] std::optional<std::string> need_text(const Json& text,
                                                     const std::string& pointer) const {
    if (!text.is_string()) {
      problems->add(pointer, "expected a string, got " + quote_json(text));
      return std::nullopt;
    }
    return text.get<std::string>();
  }
};

void read_result(const Source& source, const Json& json) {
  source.add_config(text_at(json, "/config/system/name"), json["config"]);
  source.add_run(source.input().label, {}, {json});
}

void read_comparison(const Source& source, const Json& json) {
  for (const auto& [name, system] : json["systems"].items()) {
    const std::string at = "/systems/" + escape_pointer(name);
    const auto results =
        source.results_of(source.need(system, "/results", kList, at), at + "/results");
    if (!results.empty()) {
      source.add_config(name, results.front()["config"]);
    }
    for (const Json& result : results) {
      add_once(source.input().seeds, whole_text(result, "/config/seed"));
    }
    source.add_run(name, {}, results);
  }
}

/// The labels of a run on its axes. Adds a problem and returns none if one is no text.
ReportAxes axes_of(const Source& source, const Json& json, const std::string& prefix) {
  ReportAxes axes;
  for (const auto& [name, label] : source.need(json, "/axes", kObject, prefix).items()) {
    const auto text = source.need_text(label, prefix + "/axes/" + escape_pointer(name));
    if (!text) {
      return {};
    }
    axes.emplace_back(name, *text);
  }
  return axes;
}

std::string label_of(const ReportAxes& axes) {
  std::string text;
  for (const auto& [name, label] : axes) {
    text += (text.empty() ? "" : ", ") + label;
  }
  return text;
}

/// A trial in the form of a result, with the numbers that the plan keeps.
Json result_of_trial(const Json& trial) {
  constexpr const char* kMembers[][2] = {{"/hit_rate", "/metrics/hit_rate/prompt_tokens/total"},
                                         {"/ttft_seconds/mean", "/metrics/ttft_seconds/mean"},
                                         {"/dollars_per_hour", "/dollars_per_hour"}};
  Json result{{"metrics", Json::object()}};
  for (const auto& [from, to] : kMembers) {
    if (const Json* member = find_at(trial, Json::json_pointer(from))) {
      result[Json::json_pointer(to)] = *member;
    }
  }
  result["load"]["verdict"] = number_at(trial, "/overloaded_replications").value_or(0) > 0
                                  ? "load exceeds capacity"
                                  : "load is within capacity";
  return result;
}

void read_plan(const Source& source, const Json& json) {
  source.report->plans.push_back({source.input().label, json});
  source.input().setting = json.value("setting", Json());
  source.input().configs.emplace_back("plan", json["plan"]);
  add_once(source.input().seeds, whole_text(json, "/plan/config/seed"));
  for (const auto& [i, trial] : json["trials"].items()) {
    const ReportAxes axes = axes_of(source, trial, "/trials/" + i);
    std::string label = label_of(axes);
    // The labels of the axes may not name the system.
    const std::string system = text_at(trial, "/system");
    if (!system.empty() && label.find(system) == std::string::npos) {
      label = system + ": " + label;
    }
    label += is_at(trial, "/meets", true) ? " (meets the SLO)" : "";
    source.add_run(label, axes, {result_of_trial(trial)});
  }
}

void read_curve(const Source& source, const Json& json) {
  source.add_config("LRU at every capacity", json["config"]);
  ReportCurve curve{source.input().label + " (LRU, one tier, untimed)", {}};
  for (const auto& [i, point] : json["points"].items()) {
    const auto bytes = number_at(point, "/capacity_bytes");
    const auto hits = number_at(point, "/hit_rate/all_turns");
    if (bytes && hits) {
      curve.points.emplace_back(*bytes, *hits);
    } else {
      source.problems->add(
          "/points/" + i,
          "expected numbers at /capacity_bytes and /hit_rate/all_turns, got neither or one");
    }
  }
  source.report->curves.push_back(std::move(curve));
}

void read_search(const Source& source, const Json& json) {
  source.add_config(text_at(json, "/config/system/name"), json["config"]);
  source.report->searches.push_back({source.input().label, json});
}

void read_reproduction(const Source& source, const Json& json) {
  for (const auto& [name, figure] : json["figures"].items()) {
    const std::string at = "/figures/" + escape_pointer(name);
    for (const auto& [i, value] : source.need(figure, "/values", kList, at).items()) {
      if (text_at(value, "/name").empty()) {
        source.problems->add(fmt::format("{}/values/{}/name", at, i), "missing key");
      }
    }
  }
  if (const auto seeds = number_at(json, "/replications")) {
    source.input().seeds.push_back(fmt::format("{} of each run", *seeds));
  }
  source.report->reproductions.push_back({source.input().label, json});
}

/// Adds a validation to those of its file. A run in lock step has no times and becomes a note.
void add_validation(const Source& source, const Json& json, const ReportAxes& axes,
                    const std::string& prefix, ReportValidations& all) {
  const std::string name = label_of(axes);
  if (json.contains("lock_step")) {
    source.add_note(fmt::format(
        "{}{}in lock step on {}: the decisions and metrics are {}those of the simulation.", name,
        name.empty() ? "" : ": ", text_at(json, "/device"),
        is_at(json, "/lock_step/equal", true) ? "" : "not "));
    return;
  }
  if (!source.has(json, {{"/rows", kList}}, prefix)) {
    return;
  }
  for (const auto& [i, row] : json["rows"].items()) {
    if (text_at(row, "/metric").empty() || !number_at(row, "/simulated") ||
        !number_at(row, "/measured")) {
      source.problems->add(fmt::format("{}/rows/{}", prefix, i),
                           "expected a metric and the numbers simulated and measured");
      return;
    }
  }
  all.points.push_back({name, json});
  // The simulated and the measured results are also runs.
  if (!source.has(json, {{"/simulated", kObject}, {"/measured", kList}}, prefix) ||
      !source.has(json["simulated"], kResult, prefix + "/simulated")) {
    return;
  }
  source.add_config(name.empty() ? "the validation" : name, json["simulated"]["config"]);
  const auto add_side = [&](const char* side, std::vector<Json> results) {
    ReportAxes with_side = axes;
    with_side.emplace_back("run", side);
    source.add_run(label_of(with_side), with_side, std::move(results));
  };
  add_side("simulated", {json["simulated"]});
  add_side("measured", source.results_of(json["measured"], prefix + "/measured"));
}

void read_validation(const Source& source, const Json& json) {
  ReportValidations all{source.input().label, {}};
  add_validation(source, json, {}, "", all);
  source.report->validations.push_back(std::move(all));
}

void read_validations(const Source& source, const Json& json) {
  const Json& names = json["axes"];
  ReportValidations all{source.input().label, {}};
  for (const auto& [i, point] : json["points"].items()) {
    const std::string at = "/points/" + i;
    const Json& labels = source.need(point, "/labels", kList, at);
    ReportAxes axes;
    for (std::size_t axis = 0; axis < std::min(names.size(), labels.size()); ++axis) {
      const auto name = source.need_text(names[axis], fmt::format("/axes/{}", axis));
      const auto label = source.need_text(labels[axis], fmt::format("{}/labels/{}", at, axis));
      if (!name || !label) {
        return;
      }
      axes.emplace_back(*name, *label);
    }
    if (point.contains("refused")) {
      source.add_note(label_of(axes) + " was refused.");
    } else if (source.has(point, {{"/validation", kObject}}, at)) {
      add_validation(source, point["validation"], axes, at + "/validation", all);
    }
  }
  if (is_at(json, "/complete", false)) {
    source.add_note("The validation ended early: points are missing.");
  }
  source.report->validations.push_back(std::move(all));
}

/// The lines of a sweep that were read so far.
struct Lines {
  /// Index of the run of each point.
  std::map<std::string, std::size_t> runs;
  std::int64_t failed = 0;
  /// Reasons why runs have no result.
  std::vector<std::string> reasons;
};

void read_line(const Source& source, const Json& line, Lines& lines) {
  const std::string point = whole_text(line, "/point");
  const bool is_failure =
      line.contains("refused") || (line.contains("error") && line["error"].contains("problems"));
  if (point.empty() || !(is_failure || line.contains("metrics"))) {
    source.problems->add(
        "", "expected a line of a sweep, with point, axes and one of metrics, error and refused");
    return;
  }
  const ReportAxes axes = axes_of(source, line, "");
  if (!source.problems->empty()) {
    return;
  }
  if (is_failure) {
    ++lines.failed;
    for (const Json& why : line.contains("refused") ? line["refused"] : line["error"]["problems"]) {
      add_once(lines.reasons, why.is_string() ? why.get<std::string>() : json_text(why));
    }
  } else if (source.has(line, {{"/metrics", kObject}})) {
    add_once(source.input().seeds, whole_text(line, "/seed"));
    auto& runs = source.report->runs;
    const auto [run, is_new] = lines.runs.emplace(point, runs.size());
    if (is_new) {
      runs.push_back({label_of(axes), source.index, axes, {}});
    }
    runs[run->second].results.push_back(line);
  }
}

void read_lines(const Source& source, const std::string& text) {
  Lines lines;
  std::istringstream stream(text);
  std::string line;
  for (std::int64_t number = 1; std::getline(stream, line); ++number) {
    const std::string where = fmt::format("{}:{}", source.path, number);
    Problems problems;
    problems.set_origin("", where);
    Source here = source;
    here.problems = &problems;
    try {
      read_line(here, parse_json_strictly(line, where), lines);
    } catch (const ConfigError& error) {
      add_lines(problems, error.problems());
    }
    add_lines(*source.problems, problems.lines());
  }
  if (lines.failed > 0) {
    source.add_note(fmt::format("{} {} no result: {}.", lines.failed,
                                lines.failed == 1 ? "run has" : "runs have",
                                detail::join(lines.reasons, "; ")));
  }
}

/// The build that wrote a result; empty if it is not known.
std::string written_by(const std::string& version, const std::string& commit) {
  return commit.empty() ? version : fmt::format("{} (commit {})", version, commit);
}

/// Reads the sweep's identity from the file beside its lines, if there is one.
void read_identity(const Source& source) {
  const fs::path file = fs::path(source.path).parent_path() / kSweepFolder.identity;
  if (!path_exists(file)) {
    return;
  }
  const Json identity = parse_json_strictly(read_text_file(file), file.string());
  if (text_at(identity, "/format") != kSweepFormat) {
    source.problems->add_line(fmt::format("{}: /format: expected {}", file.string(), kSweepFormat));
    return;
  }
  source.input().version = written_by(text_at(identity, "/version"), text_at(identity, "/commit"));
  source.input().config_hash = text_at(identity, "/hash");
  source.input().setting = identity.value("setting", Json());
}

struct Format {
  const char* name;
  std::vector<Member> needs;
  void (*read)(const Source&, const Json&);
};
const Format kFormats[] = {
    {"kvtier.result/1", kResult, read_result},
    {"kvtier.untimed/1", kResult, read_result},
    {"kvtier.compare/1", {{"/systems", kObject}}, read_comparison},
    {"kvtier.capacity/1", {{"/config", kObject}, {"/slo", kList}, {"/trials", kList}}, read_search},
    {"kvtier.plan/1", {{"/plan", kObject}, {"/trials", kList}}, read_plan},
    {"kvtier.miss_ratio_curve/1", {{"/config", kObject}, {"/points", kList}}, read_curve},
    {"kvtier.reproduce/1", {{"/figures", kObject}}, read_reproduction},
    {"kvtier.validation/1", {}, read_validation},
    {"kvtier.validations/1", {{"/axes", kList}, {"/points", kList}}, read_validations},
};

bool are_lines(const std::string& text, const std::string& path) {
  const auto first = parse_json_if_valid(text.substr(0, text.find('\n')), path);
  return first && first->is_object() && first->contains("point") && !first->contains("format");
}

void read_document(const Source& source, const std::string& text) {
  const Json json = parse_json_strictly(text, source.path);
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
      if (source.has(json, known.needs)) {
        known.read(source, json);
      }
      return;
    }
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  source.problems->add(
      "/format", fmt::format("expected one of {}, or the lines of a sweep, got {}", names,
                             json.contains("format") ? quote_json(json["format"]) : "no format"));
}

/// The name of each file on the page: the file's name, or a sweep's folder. The path if two files
/// have the same name.
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

/// The file of results for an argument, which may be the folder of a sweep or plan.
std::string resolve_file(const std::string& argument, Problems& problems) {
  if (!is_folder(argument)) {
    return argument;
  }
  for (const char* name : {kPlanFolder.summary, kRunLines}) {
    const fs::path file = fs::path(argument) / name;
    if (path_exists(file)) {
      return file.lexically_normal().string();
    }
  }
  problems.add_line(fmt::format(
      "{}: expected a result or the folder of a finished sweep, got a folder without {}", argument,
      kRunLines));
  return "";
}

/// Adds the hourly rent of GPUs and used tiers to a result that only has their total cost.
void add_rent(Json& result) {
  constexpr double kSecondsPerHour = 3600;
  const auto dollars = number_at(result, "/metrics/cost_dollars/total");
  const auto seconds = number_at(result, "/load/measured_seconds");
  if (!number_at(result, "/dollars_per_hour") && dollars && seconds && *seconds > 0) {
    result["dollars_per_hour"] = *dollars / *seconds * kSecondsPerHour;
  }
}

/// Makes the labels of all runs different. With several inputs, labels begin with the input's name.
void tell_apart(Report& report) {
  std::map<std::string, int> uses;
  for (ReportRun& run : report.runs) {
    const std::string& input = report.inputs[run.input].label;
    if (report.inputs.size() > 1 && run.label != input) {
      run.label = input + ": " + run.label;
    }
    const int use = ++uses[run.label];
    run.label += use > 1 ? fmt::format(" ({})", use) : "";
    run.label += is_overloaded(run) ? " *" : "";
  }
}

}  // namespace

bool is_overloaded(const ReportRun& run) {
  return std::any_of(run.results.begin(), run.results.end(), exceeds_capacity);
}

bool is_too_short(const ReportRun& run) {
  return !is_overloaded(run) &&
         std::any_of(run.results.begin(), run.results.end(),
                     [](const Json& result) { return is_too_short(result); });
}

Report read_report(const std::vector<std::string>& files) {
  Report report;
  std::vector<std::string> paths;
  Problems all;
  for (auto file = files.begin(); file != files.end(); ++file) {
    if (std::find(files.begin(), file, *file) != file) {
      all.add_line(fmt::format("RESULT: {} is given twice", *file));
    } else if (std::string path = resolve_file(*file, all); !path.empty()) {
      paths.push_back(std::move(path));
    }
  }
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
      add_lines(problems, error.problems());
    }
    add_lines(all, problems.lines());
  }
  all.throw_if_any();
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
  for (ReportRun& run : report.runs) {
    std::for_each(run.results.begin(), run.results.end(), add_rent);
  }
  return report;
}

}  // namespace kvtier
