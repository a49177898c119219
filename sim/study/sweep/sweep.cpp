#include "sim/study/sweep/sweep.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <system_error>

#include <fmt/format.h>

namespace kvtier {
namespace {

namespace fs = std::filesystem;

/// Limits the memory for the lines of all runs, which are kept until the end.
constexpr std::int64_t kMostRuns = 100000;

class SweepCheck {
 public:
  SweepCheck(const Sweep& sweep, Problems& problems) : sweep_(sweep), problems_(problems) {
    for (const char* cell : kSweepRowCells) {
      headers_.insert(cell);
    }
  }

  void all() {
    if (sweep_.axes.empty()) {
      problems_.add("/axes", "expected one axis at least, got []");
    }
    if (sweep_.columns.empty()) {
      problems_.add("/columns", "expected one column at least, got []");
    }
    for (std::size_t i = 0; i < sweep_.axes.size(); ++i) {
      axis(sweep_.axes[i], fmt::format("/axes/{}", i));
    }
    for (std::size_t i = 0; i < sweep_.columns.size(); ++i) {
      column(sweep_.columns[i], fmt::format("/columns/{}", i));
    }
    std::int64_t runs = sweep_.replications;
    for (const SweepAxis& axis : sweep_.axes) {
      runs *= static_cast<std::int64_t>(axis.values.size());
      if (runs > kMostRuns) {
        problems_.add("/axes", fmt::format("expected at most {} runs, all points and replications",
                                           kMostRuns));
        break;
      }
    }
  }

 private:
  void axis(const SweepAxis& axis, const std::string& at) {
    header(axis.name, axis.name, at + "/name");
    if (axis.values.empty()) {
      problems_.add(at + "/values", "expected one value at least, got []");
    }
    std::set<std::string> labels;
    std::set<std::string> keys;
    for (std::size_t i = 0; i < axis.values.size(); ++i) {
      const AxisValue& value = axis.values[i];
      if (!labels.insert(value.label).second) {
        problems_.add(fmt::format("{}/values/{}", at, i),
                      fmt::format("the axis has a value \"{}\" already", value.label));
      }
      for (const Override& change : value.set.list) {
        keys.insert(change.pointer);
      }
    }
    for (const std::string& key : keys) {
      const auto [other, is_new] = axis_of_key_.emplace(key, axis.name);
      if (!is_new) {
        problems_.add(at, fmt::format("axis \"{}\" sets {}, too", other->second, key));
      }
    }
  }

  void column(const SweepColumn& column, const std::string& at) {
    header(column.name, header_of(column), at + "/name");
    const auto below = [&](const char* part) { return column.metric.starts_with(part); };
    bool is_pointer = below("/metrics/") || below("/load/") || below("/workload/") ||
                      below("/timing/") || (below("/bound/") && sweep_.bound);
    try {
      (void)Json::json_pointer(column.metric);
    } catch (const Json::parse_error&) {
      is_pointer = false;
    }
    if (!is_pointer) {
      problems_.add(at + "/value",
                    fmt::format("expected a JSON pointer below /metrics, /load, /workload, /timing "
                                "or, with \"bound\": true, /bound, got \"{}\"",
                                column.metric));
    }
  }

  void header(const std::string& name, const std::string& cell, const std::string& at) {
    if (name.empty()) {
      problems_.add(at, "expected a name, got \"\"");
    } else if (!headers_.insert(cell).second) {
      problems_.add(at, fmt::format("the table has a column \"{}\" already", cell));
    }
  }

  const Sweep& sweep_;
  Problems& problems_;
  std::set<std::string> headers_;
  std::map<std::string, std::string> axis_of_key_;
};

/// The overrides of a point, in order: the file's own keys, then those of each axis.
std::vector<Override> overrides_of(const Sweep& sweep, const std::vector<std::size_t>& at) {
  std::vector<Override> list;
  const auto add = [&](const Overrides& set, const std::string& pointer) {
    for (const Override& change : set.list) {
      list.push_back(
          {change.pointer, change.value, fmt::format("{}: {}", sweep.file.string(), pointer)});
    }
  };
  add(sweep.set, "/set");
  for (std::size_t i = 0; i < at.size(); ++i) {
    const AxisValue& value = sweep.axes[i].values[at[i]];
    add(value.set, value.pointer);
  }
  return list;
}

/// A request for the sweep's config, without the points' overrides.
ConfigRequest base_request(const Sweep& sweep) {
  ConfigRequest request;
  request.file = sweep.file;
  request.name_origins = sweep.refused == RefusedPoints::error;
  const std::string origin = sweep.file.string() + ": /config";
  if (sweep.config.json.is_object()) {
    request.inline_config = InlineConfig{sweep.config.json, origin};
    return request;
  }
  request.file = sweep.file.parent_path() / sweep.config.json.get<std::string>();
  std::error_code ignored;
  if (!fs::is_regular_file(request.file, ignored)) {
    throw ConfigError(fmt::format("{}: no such file: {}", origin, request.file.string()));
  }
  return request;
}

/// Moves on to the next combination; false after the last.
bool advance(std::vector<std::size_t>& at, const std::vector<SweepAxis>& axes) {
  for (std::size_t i = axes.size(); i-- > 0;) {
    if (++at[i] < axes[i].values.size()) {
      return true;
    }
    at[i] = 0;
  }
  return false;
}

}  // namespace

void read_config(SweepBase& base, const Json& json, const std::string& pointer,
                 Problems& problems) {
  base.json = json;
  if (!json.is_string() && !json.is_object()) {
    problems.add(pointer, "expected a config's path, or a config, got " + quote_json(json));
  }
}
Json write_config(const SweepBase& base) { return base.json; }
Json config_schema(const SweepBase&) { return Json{{"type", Json::array({"string", "object"})}}; }

std::string header_of(const SweepColumn& column) {
  return fmt::format("{} [{}]", column.name, write_value(column.unit).get<std::string>());
}

void finish_sweep(Sweep& sweep, Problems& problems) {
  for (std::size_t i = 0; i < sweep.axes.size(); ++i) {
    if (sweep.axes[i].sampled) {
      draw(sweep.axes[i], static_cast<std::uint64_t>(sweep.seed), fmt::format("/axes/{}", i));
    }
  }
  SweepCheck(sweep, problems).all();
}

Sweep load_sweep(const fs::path& file) { return read_sweep(read_json_file(file), file); }

Sweep read_sweep(const Json& json, const fs::path& file) {
  Sweep sweep;
  sweep.file = file;
  Problems problems;
  problems.set_origin("", file.string());
  read_value(sweep, json, "", problems);
  if (problems.empty()) {
    finish_sweep(sweep, problems);
  }
  problems.throw_if_any();
  return sweep;
}

std::vector<SweepPoint> resolve_points(const Sweep& sweep, const ConfigDirectory& presets,
                                       const PolicyRegistry& registry) {
  const ConfigRequest base = base_request(sweep);
  std::vector<SweepPoint> points;
  std::vector<std::string> lines;
  bool any_resolved = false;
  std::vector<std::size_t> at(sweep.axes.size(), 0);
  do {
    SweepPoint point;
    for (std::size_t i = 0; i < at.size(); ++i) {
      point.labels.push_back(sweep.axes[i].values[at[i]].label);
    }
    ConfigRequest request = base;
    request.overrides = overrides_of(sweep, at);
    try {
      point.resolved = resolve_config(request, presets, registry);
      any_resolved = true;
    } catch (const ConfigError& error) {
      point.refused = error.problems();
      for (const std::string& line : error.problems()) {
        if (std::find(lines.begin(), lines.end(), line) == lines.end()) {
          lines.push_back(line);
        }
      }
    }
    points.push_back(std::move(point));
  } while (advance(at, sweep.axes));
  const bool may_skip = sweep.refused == RefusedPoints::skip;
  if (may_skip && !any_resolved) {
    for (std::string& line : lines) {
      line = fmt::format("{}: every point is refused: {}", sweep.file.string(), line);
    }
  }
  if (!lines.empty() && (!may_skip || !any_resolved)) {
    throw ConfigError(std::move(lines));
  }
  return points;
}

}  // namespace kvtier
