#include "sim/study/sweep/sweep_run.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <stop_token>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/build.hpp"
#include "sim/core/fingerprint.hpp"
#include "sim/core/text.hpp"
#include "sim/serving/simulate.hpp"
#include "sim/study/runs/bound.hpp"
#include "sim/study/runs/run_folder.hpp"
#include "sim/study/runs/run_length.hpp"
#include "sim/study/runs/run_threads.hpp"
#include "sim/study/runs/summary.hpp"
#include "sim/study/sweep/sweep_columns.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config";
constexpr const char* kFormat = "format";
constexpr const char* kBuild = "build";
constexpr const char* kRefused = "refused";
constexpr const char* kError = "error";

struct Failure {
  RunState state;
  const char* name;
};
constexpr std::array kFailures{Failure{RunState::input_failed, "input"},
                               Failure{RunState::device_failed, "device"},
                               Failure{RunState::internal_failed, "internal"}};

Json line_of(const Sweep& sweep, const SweepRow& row) {
  Json line{{"point", row.point}, {"replication", row.replication}};
  Json& axes = line["axes"] = Json::object();
  const std::vector<std::string> labels = labels_of(sweep, row.point);
  for (std::size_t i = 0; i < sweep.axes.size(); ++i) {
    axes[sweep.axes[i].name] = labels[i];
  }
  return line;
}

Json failure(RunState state, const std::vector<std::string>& problems) {
  return Json{{"kind", failure_name(state)}, {"problems", problems}};
}

/// Does a run and returns its sealed line.
std::string execute(const Sweep& sweep, const ResolvedConfig& resolved, const SweepRow& row,
                    const PolicyRegistry& registry, const std::stop_token& stop) {
  RunConfig config = resolved.config;
  config.seed += row.replication;
  RunOptions how;
  how.base_dir = resolved.base_dir;
  how.progress = [&stop](std::int64_t) {
    if (stop.stop_requested()) {
      throw Stopped{};
    }
  };
  Json line = line_of(sweep, row);
  line["seed"] = config.seed;
  try {
    Json result = simulate_to_precision(config, registry, how);
    if (sweep.bound) {
      result["bound"] = untimed_bound(config, registry, how);
    }
    for (const auto& [key, value] : result.items()) {
      if (key != kFormat && key != kBuild && key != kConfig) {
        line[key] = value;
      }
    }
  } catch (const ConfigError& error) {
    line[kError] = failure(RunState::input_failed, error.problems());
  } catch (const InvariantError& error) {
    line[kError] = failure(RunState::internal_failed, {error.what()});
  } catch (const std::exception& error) {
    line[kError] = failure(RunState::device_failed, {error.what()});
  }
  return sealed_line(std::move(line));
}

/// Fills a row of `point` from its line, which must be new or checked by is_line_of().
void read_line(const Sweep& sweep, const SweepPoint& point, const Json& line, SweepRow& row) {
  if (line.contains("seed")) {
    row.seed = line["seed"].get<std::int64_t>();
  }
  row.state = RunState::ok;
  row.problems.clear();
  if (line.contains(kRefused)) {
    row.state = RunState::refused;
    row.problems = line[kRefused].get<std::vector<std::string>>();
  } else if (line.contains(kError)) {
    row.problems = line[kError]["problems"].get<std::vector<std::string>>();
    for (const Failure& known : kFailures) {
      if (line[kError]["kind"] == known.name) {
        row.state = known.state;
      }
    }
  }
  row.exceeds_capacity = row.state == RunState::ok && exceeds_capacity(line);
  row.exceeds_capacity_at_times =
      row.state == RunState::ok && !row.exceeds_capacity && ever_exceeds_capacity(line);
  row.too_short.reset();
  if (row.state == RunState::ok && too_short(line)) {
    // A line that was not written here may have a result of a refused point.
    const std::string longer =
        point.resolved ? longer_trace(write_value(point.resolved->config.workload)) : "";
    row.too_short =
        "run too short for its load: " +
        (longer.empty() ? "more sessions are needed, or \"auto\"" : "expected " + longer);
  }
  row.values.clear();
  for (const SweepColumn& column : sweep.columns) {
    std::optional<double> value = number_at(line, column.metric);
    if (value) {
      *value *= factor_of(column.unit);
    }
    row.values.push_back(value);
  }
}

/// Makes the row of a point whose config is refused.
void refuse(const Sweep& sweep, const SweepPoint& point, SweepRow& row) {
  Json line = line_of(sweep, row);
  line[kRefused] = point.refused;
  row.line = sealed_line(line);
  read_line(sweep, point, line, row);
}

/// A field of a CSV file (RFC 4180).
std::string csv_field(const std::string& cell) {
  const std::string text = formula_safe(cell);
  if (text.find_first_of(",\"\r\n") == std::string::npos) {
    return text;
  }
  std::string quoted = "\"";
  for (const char c : text) {
    quoted += c == '"' ? "\"\"" : std::string(1, c);
  }
  return quoted + "\"";
}

std::string state_text(const SweepRow& row) {
  return row.state == RunState::ok
             ? ""
             : fmt::format("{}: {}", row.state == RunState::refused ? "refused" : "failed",
                           detail::join(row.problems, "; "));
}

std::string to_csv(const Sweep& sweep, const std::vector<SweepRow>& rows) {
  std::vector<std::string> cells{kSweepRowCells[0], kSweepRowCells[1], kSweepRowCells[2]};
  std::string text;
  const auto end_row = [&] {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      text += (i > 0 ? "," : "") + csv_field(cells[i]);
    }
    text += "\n";
    cells.clear();
  };
  for (const SweepAxis& axis : sweep.axes) {
    cells.push_back(axis.name);
  }
  for (const SweepColumn& column : sweep.columns) {
    cells.push_back(header_of(column));
  }
  cells.emplace_back(kSweepRowCells[3]);
  end_row();
  for (const SweepRow& row : rows) {
    cells = {fmt::format("{}", row.point), fmt::format("{}", row.replication),
             row.seed ? fmt::format("{}", *row.seed) : ""};
    const std::vector<std::string> labels = labels_of(sweep, row.point);
    cells.insert(cells.end(), labels.begin(), labels.end());
    for (const std::optional<double>& value : row.values) {
      cells.push_back(value ? fmt::format("{}", *value) : "");
    }
    cells.push_back(state_text(row));
    end_row();
  }
  return text;
}

/// Does the runs of the rows `todo`. `present` runs are already done.
void run_rows(const Sweep& sweep, const SweepPoints& points, const PolicyRegistry& registry,
              const SweepOptions& options, const std::vector<std::size_t>& todo,
              std::int64_t present, RunFolder& folder, std::vector<SweepRow>& rows) {
  const auto all = present + static_cast<std::int64_t>(todo.size());
  std::mutex mutex;
  const auto work = [&](std::size_t i, const std::stop_token& stop) {
    SweepRow& row = rows[todo[i]];
    const SweepPoint point = points[row.point];
    if (!point.resolved) {
      refuse(sweep, point, row);
      return;
    }
    row.line = execute(sweep, *point.resolved, row, registry, stop);
    read_line(sweep, point, *unsealed_line(row.line), row);
    const std::lock_guard lock(mutex);
    folder.append(row.line);
  };
  run_on_threads(todo.size(), options.jobs, work, [&](std::int64_t done) {
    if (options.progress) {
      options.progress(present + done, all);
    }
  });
}

/// The shard's rows. Only rows of points that are known to be refused are filled.
std::vector<SweepRow> empty_rows(const Sweep& sweep, const SweepPoints& points,
                                 const Shard& shard) {
  std::map<std::size_t, const SweepPoint*> refused;
  for (const SweepPoint& point : points.checked()) {
    if (!point.resolved) {
      refused[point.index] = &point;
    }
  }
  std::vector<SweepRow> rows;
  for (std::size_t point = 0; point < points.size(); ++point) {
    if (static_cast<std::int64_t>(point) % shard.of != shard.number - 1) {
      continue;
    }
    for (std::int64_t r = 0; r < sweep.replications; ++r) {
      SweepRow row;
      row.point = point;
      row.replication = r;
      if (const auto found = refused.find(point); found != refused.end()) {
        refuse(sweep, *found->second, row);
      }
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

bool are_texts(const Json& list) {
  return list.is_array() &&
         std::all_of(list.begin(), list.end(), [](const Json& item) { return item.is_string(); });
}

/// Whether a line is a result of the row's run or, `with_failed`, the failure of it.
bool is_line_of(const Sweep& sweep, const SweepPoint& point, const SweepRow& row, bool with_failed,
                const Json& line) {
  if (!point.resolved) {
    return false;  // lines of refused points are made again
  }
  Json expected = line_of(sweep, row);
  expected["seed"] = point.resolved->config.seed + row.replication;
  const bool is_same =
      std::all_of(expected.items().begin(), expected.items().end(), [&](const auto& item) {
        return line.contains(item.key()) && line[item.key()] == item.value();
      });
  if (!is_same) {
    return false;
  }
  if (line.contains(kError)) {
    const Json& error = line[kError];
    return with_failed && error.is_object() && error.contains("kind") &&
           error["kind"].is_string() && error.contains("problems") && are_texts(error["problems"]);
  }
  return line.contains("metrics") && line["metrics"].is_object() && line.contains("load") &&
         line["load"].is_object();
}

/// Puts a run's line into its row. Returns false if there is no such row, or for a failed run
/// without `with_failed`.
bool take_line(const Sweep& sweep, const SweepPoints& points, std::string text, const Json& line,
               const Shard& shard, bool with_failed, std::vector<SweepRow>& rows) {
  const auto index = [&](const char* key, std::size_t end) -> std::optional<std::size_t> {
    const bool is_index = line.contains(key) && line[key].is_number_unsigned() &&
                          line[key].get<std::uint64_t>() < end;
    return is_index ? std::optional(line[key].get<std::size_t>()) : std::nullopt;
  };
  const auto replications = static_cast<std::size_t>(sweep.replications);
  const auto point = index(kSweepRowCells[0], points.size());
  const auto replication = index(kSweepRowCells[1], replications);
  const auto shards = static_cast<std::size_t>(shard.of);
  if (!point || !replication || *point % shards != static_cast<std::size_t>(shard.number) - 1) {
    return false;
  }
  SweepRow& row = rows[*point / shards * replications + *replication];
  const SweepPoint resolved = points[*point];
  if (!is_line_of(sweep, resolved, row, with_failed, line)) {
    return false;
  }
  row.line = std::move(text);
  read_line(sweep, resolved, line, row);
  return true;
}

/// Whether the result has null at the pointer or at a parent: an empty distribution has no mean.
bool is_empty_at(const Json& line, Json::json_pointer at) {
  const Json* value = find_at(line, at);
  for (; value == nullptr; value = find_at(line, at)) {
    at = at.parent_pointer();
  }
  return value->is_null();
}

/// Numbers reasons in the order of their first use.
class Reasons {
 public:
  [[nodiscard]] std::string mark(const std::vector<std::string>& problems) {
    std::vector<std::string> numbers;
    for (const std::string& problem : problems) {
      const auto found = std::find(list_.begin(), list_.end(), problem);
      numbers.push_back(std::to_string(found - list_.begin() + 1));
      if (found == list_.end()) {
        list_.push_back(problem);
      }
    }
    return "[" + detail::join(numbers, ",") + "]";
  }
  [[nodiscard]] std::string text() const {
    std::string text;
    for (std::size_t i = 0; i < list_.size(); ++i) {
      text += fmt::format("[{}] {}\n", i + 1, list_[i]);
    }
    return text;
  }

 private:
  std::vector<std::string> list_;
};

/// A cell of a point: the mean over its rows, and the spread if there are several.
std::string cell(const std::vector<SweepRow>& rows, std::size_t first, std::size_t count,
                 std::size_t column, ValueUnit unit) {
  double sum = 0;
  double least = 0;
  double most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::optional<double>& value = rows[first + i].values[column];
    if (!value) {
      return "-";
    }
    sum += *value;
    least = i == 0 ? *value : std::min(least, *value);
    most = i == 0 ? *value : std::max(most, *value);
  }
  std::string text = format_in(unit, sum / static_cast<double>(count));
  if (count > 1) {
    text += " (" + format_in(unit, most - least) + ")";
  }
  return text;
}

/// Reasons why a point has no numbers, or why a longer run may give others.
std::vector<std::string> notes_on(const std::vector<SweepRow>& rows, std::size_t first,
                                  std::size_t count) {
  std::vector<std::string> notes;
  const auto add = [&](const std::string& note) {
    if (std::find(notes.begin(), notes.end(), note) == notes.end()) {
      notes.push_back(note);
    }
  };
  for (std::size_t i = 0; i < count; ++i) {
    const SweepRow& row = rows[first + i];
    for (const std::string& problem : row.problems) {
      add((row.state == RunState::refused ? "refused: " : "failed: ") + problem);
    }
    if (row.exceeds_capacity) {
      add(fmt::format("load exceeds capacity{}: every number depends on the length of the run",
                      count > 1 ? ", with one seed at least" : ""));
    }
    if (row.exceeds_capacity_at_times) {
      add(fmt::format("load exceeds capacity part of the time{}",
                      count > 1 ? ", with one seed at least" : ""));
    }
    if (row.too_short) {
      add(*row.too_short);
    }
  }
  return notes;
}

}  // namespace

const char* failure_name(RunState state) {
  for (const Failure& known : kFailures) {
    if (known.state == state) {
      return known.name;
    }
  }
  KVTIER_ASSERT(false, "every way to fail has a name");
}

std::int64_t SweepResult::count(RunState state) const {
  return std::count_if(rows.begin(), rows.end(),
                       [&](const SweepRow& row) { return row.state == state; });
}

Json sweep_identity(const Sweep& sweep, const SweepPoints& points, const Shard& shard) {
  Fingerprint all;
  std::vector<Json> settings;
  std::map<fs::path, std::string> files;
  std::map<const Profile*, std::string> profiles;
  const auto add_file = [&](const fs::path& path) {
    const auto [found, is_new] = files.emplace(path, "");
    if (is_new) {
      Fingerprint content;
      content.add_file(path);
      found->second = content.text();
    }
    all.add(found->second);
  };
  if (points.checked().size() < points.size()) {
    all.add(json_text(points.base_json()));
    all.add(json_text(write_value(sweep.set)));
    std::set<fs::path> named;
    for (const SweepAxis& axis : sweep.axes) {
      for (const AxisValue& value : axis.values) {
        for (const Override& change : value.set.list) {
          points.add_named_files(change.value, named);
        }
      }
    }
    std::for_each(named.begin(), named.end(), add_file);
  }
  for (const SweepPoint& point : points.checked()) {
    for (const std::string& label : point.labels) {
      all.add(label);
    }
    if (!point.resolved) {
      all.add("refused");
      continue;
    }
    const RunConfig& config = point.resolved->config;
    const Json written = write_value(config);
    all.add(json_text(written));
    settings.push_back(run_setting(written));
    const auto add_profile = [&](const HardwareConfig& hardware) {
      if (hardware.profile && hardware.profile->loaded) {
        std::string& text = profiles[hardware.profile->loaded.get()];
        if (text.empty()) {
          text = fingerprint(json_text(write_value(*hardware.profile->loaded)));
        }
        all.add(text);
      }
    };
    add_profile(config.hardware);
    for (const InstanceGroupConfig& group : config.cluster.groups) {
      if (group.hardware) {
        add_profile(group.hardware->config);
      }
    }
    const auto add_files = [&](const WorkloadConfig& workload) {
      for (const auto& file : {workload.trace, workload.tokenizer}) {
        if (file) {
          add_file(point.resolved->base_dir / *file);
        }
      }
    };
    add_files(config.workload);
    for (const MixMember& member : config.workload.mix) {
      add_files(*member.workload);
    }
  }
  if (sweep.bound) {
    all.add("bound");
  }
  return Json{{"format", kSweepFormat},
              {"version", build_version()},
              {"commit", build_commit()},
              {"setting", common_setting(settings)},
              {"axes", write_value(sweep.axes)},
              {"replications", sweep.replications},
              {"shard", fmt::format("{}/{}", shard.number, shard.of)},
              {"hash", all.text()}};
}

SweepResult run_sweep(const Sweep& sweep, const SweepPoints& points, const PolicyRegistry& registry,
                      const SweepOptions& options) {
  check_columns(sweep, points, registry);
  RunFolder folder(kSweepFolder, options.out, sweep_identity(sweep, points, options.shard),
                   options.resume, options.tell);
  SweepResult result;
  result.shard = options.shard;
  result.rows = empty_rows(sweep, points, options.shard);
  const auto take = [&](std::string text, const Json& line, bool with_failed) {
    return take_line(sweep, points, std::move(text), line, options.shard, with_failed, result.rows);
  };
  std::int64_t strangers = 0;
  for (std::string& text : folder.take_kept()) {
    const Json line = *unsealed_line(text);
    // Lines of failed runs and refused points are made again.
    const bool is_result = !line.contains(kError) && !line.contains(kRefused);
    strangers += is_result && !take(std::move(text), line, false) ? 1 : 0;
  }
  folder.tell_of_strangers(strangers);
  for (const std::string& text : options.done) {
    if (const auto line = unsealed_line(text)) {
      (void)take(text, *line, true);
    }
  }
  std::vector<std::size_t> todo;
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    if (result.rows[i].line.empty()) {
      todo.push_back(i);
    }
  }
  const std::int64_t refused = result.count(RunState::refused);
  const auto present = static_cast<std::int64_t>(result.rows.size() - todo.size()) - refused;
  run_rows(sweep, points, registry, options, todo, present, folder, result.rows);
  result.runs = std::ssize(todo) - (result.count(RunState::refused) - refused);
  std::vector<std::string_view> lines;
  for (const SweepRow& row : result.rows) {
    lines.push_back(row.line);
  }
  folder.finish(lines, to_csv(sweep, result.rows));
  return result;
}

void check_result(const Sweep& sweep, const SweepResult& result) {
  std::vector<std::string> refused;
  for (const SweepRow& row : result.rows) {
    if (row.state == RunState::refused) {
      refused.insert(refused.end(), row.problems.begin(), row.problems.end());
    }
  }
  check_refused(sweep, refused,
                result.shard.of > 1 || result.count(RunState::refused) < std::ssize(result.rows));
  Problems problems;
  problems.set_origin("", sweep.file.string());
  for (std::size_t i = 0; i < sweep.columns.size(); ++i) {
    const Json::json_pointer at(sweep.columns[i].metric);
    bool any_result = false;
    bool found = false;
    for (const SweepRow& row : result.rows) {
      if (row.state != RunState::ok) {
        continue;
      }
      any_result = true;
      found = row.values[i].has_value() || is_empty_at(Json::parse(row.line), at);
      if (found) {
        break;
      }
    }
    if (any_result && !found) {
      problems.add(fmt::format("/columns/{}/value", i),
                   fmt::format("no result has a number at {}; with the column corrected, --resume "
                               "shows the results again",
                               sweep.columns[i].metric));
    }
  }
  problems.throw_if_any();
}

std::string to_table(const Sweep& sweep, const SweepResult& result) {
  const auto replications = static_cast<std::size_t>(sweep.replications);
  const std::size_t shown = result.rows.size() / replications;
  Reasons reasons;
  std::vector<std::vector<std::string>> lines(2);
  for (const SweepAxis& axis : sweep.axes) {
    lines[0].push_back(axis.name);
    lines[1].emplace_back();
  }
  for (const SweepColumn& column : sweep.columns) {
    lines[0].push_back(column.name);
    lines[1].push_back(write_value(column.unit).get<std::string>());
  }
  for (std::size_t first = 0; first < result.rows.size(); first += replications) {
    std::vector<std::string> line = labels_of(sweep, result.rows[first].point);
    for (std::size_t i = 0; i < sweep.columns.size(); ++i) {
      line.push_back(cell(result.rows, first, replications, i, sweep.columns[i].unit));
    }
    const std::vector<std::string> notes = notes_on(result.rows, first, replications);
    if (!notes.empty()) {
      line.push_back(reasons.mark(notes));
    }
    lines.push_back(std::move(line));
  }
  std::string text = fmt::format("{}: {} points", sweep.file.stem().string(), point_count(sweep));
  if (result.shard.of > 1) {
    text += fmt::format(", shard {}/{} with {}", result.shard.number, result.shard.of, shown);
  }
  text += replications > 1
              ? fmt::format(", mean of {} seeds (largest - smallest)\n\n", replications)
              : ", one seed\n\n";
  text += align_columns(lines, sweep.axes.size());
  const std::string why = reasons.text();
  return why.empty() ? text : text + "\n" + why;
}

}  // namespace kvtier
