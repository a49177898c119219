#include "sim/study/engines/engines_cache.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "sim/core/build.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"
#include "sim/study/engines/engine_tables.hpp"
#include "sim/study/engines/oracle.hpp"
#include "sim/study/runs/run_threads.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

/// The folder's files with one of these endings, by their names without it.
std::map<std::string, fs::path> files_ending(const fs::path& folder,
                                             const std::vector<std::string>& endings) {
  std::map<std::string, fs::path> files;
  if (!is_folder(folder)) {
    throw ConfigError(fmt::format("{}: expected a folder", folder.string()));
  }
  for (const fs::path& file : folder_entries(folder)) {
    const std::string name = file.filename().string();
    for (const std::string& ending : endings) {
      if (name.ends_with(ending) && name.size() > ending.size()) {
        const std::string stem = name.substr(0, name.size() - ending.size());
        if (!files.emplace(stem, file).second) {
          throw ConfigError(
              fmt::format("{}: expected one file of a name, got two of {}", folder.string(), stem));
        }
        break;
      }
    }
  }
  return files;
}

/// A table, its trace and its runs.
struct Oracle {
  std::string name;
  OracleKind kind;
  OracleTable table;
  const HashTrace* trace = nullptr;
  std::vector<OracleRun> runs;
};

std::string values_text(const Json& values) {
  std::string text;
  for (const auto& [name, value] : values.items()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value.dump());
  }
  return text;
}

}  // namespace

EnginesInput engines_sample(const ConfigDirectory& presets) {
  const fs::path folder = presets.path() / "engines";
  EnginesInput input;
  input.oracles = folder / "oracles";
  for (const auto& [name, path] : files_ending(input.oracles, {".jsonl.gz"})) {
    input.traces.push_back(path);
  }
  for (const auto& [name, path] : files_ending(folder, {"_unit.json"})) {
    input.calls.push_back(path);
  }
  return input;
}

std::int64_t EnginesResult::rows() const {
  std::int64_t sum = 0;
  for (const EngineComparison& file : files) {
    sum += file.rows;
  }
  return sum;
}

std::int64_t EnginesResult::different() const {
  std::int64_t sum = 0;
  for (const EngineComparison& file : files) {
    sum += file.different;
  }
  return sum;
}

EnginesResult compare_engines(const EnginesInput& input, const ConfigDirectory& presets,
                              const EnginesOptions& options) {
  EnginesResult result;
  std::vector<HashTrace> traces;
  for (const fs::path& path : input.traces) {
    traces.push_back(read_hash_trace(path));
  }
  std::vector<Oracle> oracles;
  for (const auto& [name, path] : files_ending(input.oracles, {".csv", ".csv.gz"})) {
    const std::optional<OracleKind> kind = oracle_kind(name);
    if (!kind) {
      result.unknown.push_back(name);
      continue;
    }
    Oracle oracle{.name = name, .kind = *kind, .table = read_oracle(path)};
    const auto trace = std::ranges::find_if(
        traces, [&](const HashTrace& one) { return is_of(oracle.table, one); });
    if (trace == traces.end()) {
      result.other_trace.push_back(name);
      continue;
    }
    oracle.trace = &*trace;
    oracle.runs = oracle_runs(path.string(), oracle.kind, oracle.table);
    oracles.push_back(std::move(oracle));
  }
  if (oracles.empty()) {
    throw ConfigError(fmt::format(
        "{}: expected a table of the trace {}; {} of another trace, {} with an unknown name",
        input.oracles.string(),
        fmt::join(std::vector<std::string>(input.traces.begin(), input.traces.end()), " or "),
        result.other_trace.size(), result.unknown.size()));
  }
  struct Task {
    const Oracle* oracle;
    const OracleRun* run;
  };
  std::vector<Task> tasks;
  for (const Oracle& oracle : oracles) {
    for (const OracleRun& run : oracle.runs) {
      tasks.push_back({&oracle, &run});
    }
  }
  result.files.resize(tasks.size());
  run_on_threads(
      tasks.size(), options.jobs,
      [&](std::size_t i, const std::stop_token& stop) {
        const Oracle& oracle = *tasks[i].oracle;
        try {
          result.files[i] =
              compare_with_oracle(oracle.name, oracle.kind, oracle.table, *tasks[i].run,
                                  *oracle.trace, presets, {.reference = false, .stop = stop});
        } catch (const ConfigError& error) {
          throw ConfigError(
              fmt::format("{}, {}: {}", oracle.name, tasks[i].run->capacity, error.what()));
        }
      },
      [&](std::int64_t done) {
        if (options.progress) {
          options.progress(done, static_cast<std::int64_t>(tasks.size()));
        }
      });
  for (const fs::path& path : input.calls) {
    const EngineTables tables = read_engine_tables(path);
    for (const EngineTable& table : tables.tables) {
      std::variant<EngineComparison, NotRun> compared = compare_with_calls(table, presets);
      if (const NotRun* left_out = std::get_if<NotRun>(&compared)) {
        result.not_run.push_back({table.name, left_out->reason});
        continue;
      }
      EngineComparison& one = std::get<EngineComparison>(compared);
      one.capacity = std::exchange(one.name, path.stem().string());
      result.files.push_back(std::move(one));
    }
  }
  return result;
}

Json to_json(const EnginesResult& result) {
  Json json = new_result("kvtier.engines_cache/1");
  json["files"] = Json::array();
  for (const EngineComparison& file : result.files) {
    Json first = Json::array();
    for (const EngineDifference& difference : file.first) {
      first.push_back(
          {{"row", difference.row}, {"expected", difference.expected}, {"got", difference.got}});
    }
    json["files"].push_back({{"name", file.name},
                             {"capacity", file.capacity},
                             {"rows", file.rows},
                             {"different", file.different},
                             {"first", std::move(first)}});
  }
  json["unknown"] = result.unknown;
  json["other_trace"] = result.other_trace;
  json["not_run"] = Json::array();
  for (const EnginesResult::LeftOut& table : result.not_run) {
    json["not_run"].push_back({{"name", table.name}, {"reason", table.reason}});
  }
  json["rows"] = result.rows();
  json["different"] = result.different();
  return json;
}

std::string to_table(const EnginesResult& result) {
  const auto width = [&](std::string EngineComparison::*text, std::size_t least) {
    std::size_t most = least;
    for (const EngineComparison& file : result.files) {
      most = std::max(most, (file.*text).size());
    }
    return most;
  };
  const std::size_t names = width(&EngineComparison::name, 4);
  const std::size_t capacities = width(&EngineComparison::capacity, 18);
  const auto row = [&](const auto& name, const auto& capacity, const auto& rows,
                       const auto& different) {
    return fmt::format("{:<{}}  {:<{}}  {:>6}  {:>9}\n", name, names, capacity, capacities, rows,
                       different);
  };
  std::string text = row("file", "capacity, or table", "rows", "different");
  std::set<std::string> files;
  for (const EngineComparison& file : result.files) {
    text += row(file.name, file.capacity, file.rows, file.different);
    files.insert(file.name);
  }
  for (const EngineComparison& file : result.files) {
    if (file.different > 0) {
      text += fmt::format("\n{}, {}\n", file.name, file.capacity);
    }
    for (const EngineDifference& difference : file.first) {
      text += fmt::format("  row {}: expected {}; got {}\n", difference.row,
                          values_text(difference.expected), values_text(difference.got));
    }
  }
  const auto list = [&](const char* title, const std::vector<std::string>& entries) {
    if (!entries.empty()) {
      text += fmt::format("\n{}:\n", title);
      for (const std::string& entry : entries) {
        text += fmt::format("  {}\n", entry);
      }
    }
  };
  list("not known", result.unknown);
  list("of another trace", result.other_trace);
  std::map<std::string, int> reasons;
  for (const EnginesResult::LeftOut& table : result.not_run) {
    ++reasons[table.reason];
  }
  if (!reasons.empty()) {
    text += fmt::format("\ntables that are not executed: {}\n", result.not_run.size());
  }
  for (const auto& [reason, count] : reasons) {
    text += fmt::format("  {} ({})\n", count, reason);
  }
  text += fmt::format("\nfiles: {}, rows: {}, different: {}\n", files.size(), result.rows(),
                      result.different());
  return text;
}

}  // namespace kvtier
