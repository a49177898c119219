#include "sim/study/sweep/sweep.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "sim/core/file.hpp"
#include "sim/core/text.hpp"

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
                      fmt::format("the axis has a value {} already", quote_text(value.label)));
      }
      for (const Override& change : value.set.list) {
        keys.insert(change.pointer);
      }
    }
    for (const std::string& key : keys) {
      const auto [other, is_new] = axis_of_key_.emplace(key, axis.name);
      if (!is_new) {
        problems_.add(at, fmt::format("axis {} sets {}, too", quote_text(other->second), key));
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
                                "or, with \"bound\": true, /bound, got {}",
                                quote_text(column.metric)));
    }
  }

  void header(const std::string& name, const std::string& cell, const std::string& at) {
    if (name.empty()) {
      problems_.add(at, "expected a name, got \"\"");
    } else if (!headers_.insert(cell).second) {
      problems_.add(at, fmt::format("the table has a column {} already", quote_text(cell)));
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
  if (!is_file(request.file)) {
    throw ConfigError(fmt::format("{}: no such file: {}", origin, request.file.string()));
  }
  return request;
}

/// The index of a point's value on each axis.
std::vector<std::size_t> place_of(const Sweep& sweep, std::size_t point) {
  std::vector<std::size_t> at(sweep.axes.size());
  for (std::size_t i = at.size(); i-- > 0;) {
    at[i] = point % sweep.axes[i].values.size();
    point /= sweep.axes[i].values.size();
  }
  return at;
}

/// The points to check before the first run, in order (see SweepPoints).
std::vector<std::size_t> points_to_check(const Sweep& sweep, std::size_t size, std::size_t most) {
  if (size <= most) {
    std::vector<std::size_t> all(size);
    std::iota(all.begin(), all.end(), std::size_t{0});
    return all;
  }
  // Axes with few values are checked whole. The others share the rest.
  std::vector<std::size_t> by_size(sweep.axes.size());
  std::iota(by_size.begin(), by_size.end(), std::size_t{0});
  const auto values_of = [&](std::size_t axis) { return sweep.axes[axis].values.size(); };
  std::ranges::stable_sort(by_size, {}, values_of);
  std::vector<std::size_t> shares(sweep.axes.size());
  for (std::size_t i = 0; i < by_size.size(); ++i) {
    shares[by_size[i]] =
        std::clamp(most / (by_size.size() - i), std::size_t{1}, values_of(by_size[i]));
    most -= std::min(most, shares[by_size[i]]);
  }
  std::set<std::size_t> chosen;
  std::size_t step = 1;  // between points with neighbouring values of the axis
  for (std::size_t i = sweep.axes.size(); i-- > 0;) {
    for (std::size_t k = 0; k < shares[i]; ++k) {
      chosen.insert(shares[i] == 1 ? 0 : k * (values_of(i) - 1) / (shares[i] - 1) * step);
    }
    step *= values_of(i);
  }
  return {chosen.begin(), chosen.end()};
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

std::vector<std::string> files_of(const Sweep& sweep, const std::vector<SweepPoint>& points) {
  std::set<std::string> files{sweep.file.string()};
  for (const SweepPoint& point : points) {
    if (point.resolved) {
      files.insert(point.resolved->files.begin(), point.resolved->files.end());
    }
  }
  return {files.begin(), files.end()};
}

std::size_t point_count(const Sweep& sweep) {
  std::size_t count = 1;
  for (const SweepAxis& axis : sweep.axes) {
    count *= axis.values.size();
  }
  return count;
}

std::vector<std::string> labels_of(const Sweep& sweep, std::size_t point) {
  std::vector<std::string> labels;
  const std::vector<std::size_t> at = place_of(sweep, point);
  for (std::size_t i = 0; i < at.size(); ++i) {
    labels.push_back(sweep.axes[i].values[at[i]].label);
  }
  return labels;
}

SweepPoints::SweepPoints(const Sweep& sweep, ConfigDirectory presets,
                         const PolicyRegistry& registry, std::size_t most)
    : sweep_(sweep), presets_(std::move(presets)), registry_(registry), base_(base_request(sweep)) {
  base_.files = std::make_shared<ConfigFiles>();
  std::vector<std::string> problems;
  bool has_others = false;
  for (const std::size_t index : points_to_check(sweep, size(), most)) {
    checked_.push_back(resolve(index));
    const SweepPoint& point = checked_.back();
    has_others = has_others || point.resolved;
    problems.insert(problems.end(), point.refused.begin(), point.refused.end());
  }
  check_refused(sweep, problems, has_others || checked_.size() < size());
}

SweepPoint SweepPoints::operator[](std::size_t index) const {
  const auto known = std::ranges::lower_bound(checked_, index, {}, &SweepPoint::index);
  return known != checked_.end() && known->index == index ? *known : resolve(index);
}

SweepPoint SweepPoints::resolve(std::size_t index) const {
  SweepPoint point{.index = index, .labels = labels_of(sweep_, index)};
  ConfigRequest request = base_;
  request.overrides = overrides_of(sweep_, place_of(sweep_, index));
  try {
    point.resolved = resolve_config(request, presets_, registry_);
  } catch (const ConfigError& error) {
    point.refused = error.problems();
  }
  return point;
}

void check_refused(const Sweep& sweep, const std::vector<std::string>& problems, bool has_others) {
  const bool may_skip = sweep.refused == RefusedPoints::skip;
  if (problems.empty() || (may_skip && has_others)) {
    return;
  }
  std::set<std::string> known;
  std::vector<std::string> lines;
  for (const std::string& problem : problems) {
    if (known.insert(problem).second) {
      lines.push_back(
          may_skip ? fmt::format("{}: every point is refused: {}", sweep.file.string(), problem)
                   : problem);
    }
  }
  throw ConfigError(std::move(lines));
}

const Json& SweepPoints::base_json() const {
  return base_.inline_config ? base_.inline_config->json : base_.files->json(base_.file);
}

void SweepPoints::add_named_files(const Json& value, std::set<fs::path>& files) const {
  if (value.is_structured()) {
    for (const Json& item : value) {
      add_named_files(item, files);
    }
  } else if (value.is_string()) {
    const auto& name = value.get_ref<const std::string&>();
    std::vector<fs::path> paths{base_.file.parent_path() / name};
    for (const char* kind : {"models", "hardware", "systems", "profiles"}) {
      paths.push_back(presets_.file(kind, name));
    }
    std::error_code ignored;
    std::ranges::copy_if(paths, std::inserter(files, files.end()),
                         [&](const fs::path& path) { return fs::is_regular_file(path, ignored); });
  }
}

std::vector<SweepPoint> resolve_points(const Sweep& sweep, const ConfigDirectory& presets,
                                       const PolicyRegistry& registry) {
  return SweepPoints(sweep, presets, registry, std::numeric_limits<std::size_t>::max()).checked();
}

}  // namespace kvtier
