// The functions of kvtier._core. They take and return configs, results and rows as text.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "sim/core/assert.hpp"
#include "sim/core/build.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/text.hpp"
#include "sim/policy/conformance.hpp"
#include "sim/python/policies.hpp"
#include "sim/replay/untimed.hpp"
#include "sim/serving/simulate.hpp"
#include "sim/study/config/resolve.hpp"
#include "sim/study/plan/plan.hpp"
#include "sim/study/runs/bound.hpp"
#include "sim/study/runs/compare.hpp"
#include "sim/study/runs/find_capacity.hpp"
#include "sim/study/runs/hit_curve.hpp"
#include "sim/study/sweep/sweep_columns.hpp"
#include "sim/study/sweep/sweep_run.hpp"

namespace kvtier::python {
namespace {

namespace py = pybind11;

/// Presets and policies, which most functions need.
struct Setup {
  ConfigDirectory presets;
  PolicyRegistry registry;
};

Setup setup_of(const std::string& config_dir, const std::vector<std::string>& plugins,
               const py::list& declared) {
  return {ConfigDirectory::find(config_dir), make_registry(plugins, declared)};
}

/// Throws if the interpreter has received Ctrl-C.
void check_signals() {
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) {
    throw py::error_already_set();
  }
}

using Overrides = std::vector<std::pair<std::string, std::string>>;

/// Makes a request for the config `file`, or for the config in `text` if `file` is empty.
ConfigRequest request_of(const std::string& file, const std::string& text,
                         const Overrides& overrides, std::optional<std::int64_t> seed) {
  ConfigRequest request;
  request.file = file;
  request.seed = seed;
  request.overrides_origin = "overrides";
  if (file.empty()) {
    request.inline_config = InlineConfig{parse_json_strictly(text, "config"), "config"};
  }
  std::vector<std::string> problems;
  for (const auto& [pointer, value] : overrides) {
    if (pointer.size() < 2 || pointer.front() != '/') {
      problems.push_back("overrides: expected a JSON pointer such as /hardware/gpus, got \"" +
                         pointer + "\"");
      continue;
    }
    request.overrides.push_back({pointer, parse_json_strictly(value, "overrides: " + pointer)});
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  return request;
}

RunOptions run_options() {
  RunOptions run;
  run.progress = [](std::int64_t) { check_signals(); };
  return run;
}

/// Resolves a config and returns the JSON text of `work(config, run)`.
template <class Work>
std::string on_config(const std::string& file, const std::string& text, const Overrides& overrides,
                      std::optional<std::int64_t> seed, const Setup& setup, const Work& work) {
  const py::gil_scoped_release release;
  ResolvedConfig resolved =
      resolve_config(request_of(file, text, overrides, seed), setup.presets, setup.registry);
  RunOptions run = run_options();
  run.base_dir = resolved.base_dir;
  return json_text(work(resolved, run));
}

std::string simulate_text(const std::string& file, const std::string& text,
                          const Overrides& overrides, std::optional<std::int64_t> seed,
                          bool untimed, bool with_bound, const std::string& config_dir,
                          const std::vector<std::string>& plugins, const py::list& declared) {
  const Setup setup = setup_of(config_dir, plugins, declared);
  return on_config(
      file, text, overrides, seed, setup, [&](ResolvedConfig& resolved, const RunOptions& run) {
        Json result = untimed ? simulate_untimed(resolved.config, setup.registry, run)
                              : simulate_with_stable_rate(resolved, setup.registry, run);
        if (with_bound) {
          result["bound"] = untimed ? bound_of(resolved.config, result, setup.registry, run)
                                    : untimed_bound(resolved.config, setup.registry, run);
        }
        return result;
      });
}

std::string compare_text(const std::string& file, const std::string& text,
                         const Overrides& overrides, std::optional<std::int64_t> seed,
                         const std::vector<std::string>& systems, std::int64_t replications,
                         bool with_bound, const std::string& config_dir,
                         const std::vector<std::string>& plugins, const py::list& declared) {
  const Setup setup = setup_of(config_dir, plugins, declared);
  const py::gil_scoped_release release;
  return json_text(to_json(compare_systems(request_of(file, text, overrides, seed), systems,
                                           replications, with_bound, setup.presets, setup.registry,
                                           run_options(), [](std::int64_t, std::int64_t) {})));
}

std::string find_capacity_text(const std::string& file, const std::string& text,
                               const Overrides& overrides, std::optional<std::int64_t> seed,
                               const std::string& slo, std::int64_t replications, double tolerance,
                               const std::string& config_dir,
                               const std::vector<std::string>& plugins, const py::list& declared) {
  const Setup setup = setup_of(config_dir, plugins, declared);
  CapacityOptions options;
  options.replications = replications;
  options.tolerance = tolerance;
  return on_config(
      file, text, overrides, seed, setup,
      [&](const ResolvedConfig& resolved, const RunOptions& run) {
        return to_json(find_capacity(resolved, parse_slo(slo, "slo: "), options, setup.registry,
                                     run, [](std::int64_t, double) {}));
      });
}

HitCurveOptions curve_options(const py::dict& given) {
  return {.block = given["block"].cast<std::optional<std::int64_t>>(),
          .whole_blocks = given["whole_blocks"].cast<bool>(),
          .policy = given["policy"].cast<std::string>(),
          .bound = given["bound"].cast<bool>(),
          .sampling_rate = given["sampling_rate"].cast<double>(),
          .capacities = given["capacities"].cast<std::vector<std::string>>(),
          .prefix = ""};
}

std::string curve_text(const std::string& file, const std::string& text, const Overrides& overrides,
                       std::optional<std::int64_t> seed, const py::dict& given,
                       const std::string& config_dir, const std::vector<std::string>& plugins,
                       const py::list& declared) {
  const Setup setup = setup_of(config_dir, plugins, declared);
  const HitCurveOptions options = curve_options(given);
  if (text.empty() && !is_config_file(file)) {
    if (!overrides.empty() || seed) {
      throw ConfigError("overrides and seed need a config, and " + file + " is a trace");
    }
    const py::gil_scoped_release release;
    return json_text(hit_curve(file, ImportOptions{}, setup.registry, options, run_options()));
  }
  return on_config(file, text, overrides, seed, setup,
                   [&](const ResolvedConfig& resolved, const RunOptions& run) {
                     return hit_curve(resolved.config, setup.registry, options, run);
                   });
}

/// Reads a plan or sweep from `text`, or from `file` if `text` is empty. Messages name `file`.
Json document_of(const std::string& file, const std::string& text) {
  return text.empty() ? read_json_file(file) : parse_json_strictly(text, file);
}

std::string plan_text(const std::string& file, const std::string& text, std::int64_t jobs,
                      const std::string& out, bool resume, const std::string& config_dir,
                      const std::vector<std::string>& plugins, const py::list& declared) {
  const Setup setup = setup_of(config_dir, plugins, declared);
  const py::gil_scoped_release release;
  const Plan plan = read_plan(document_of(file, text), file);
  PlanOptions how;
  how.jobs = jobs;
  how.out = out;
  how.resume = resume;
  how.tell = [](const std::string&) {};
  how.progress = [](std::int64_t) { check_signals(); };
  return json_text(to_json(plan, make_plan(plan, setup.presets, setup.registry, how)));
}

/// The number of a sweep's points, after the checks before the first run.
std::size_t sweep_points(const std::string& file, const std::string& text,
                         const std::string& config_dir, const std::vector<std::string>& plugins,
                         const py::list& declared) {
  const Setup setup = setup_of(config_dir, plugins, declared);
  const py::gil_scoped_release release;
  const Sweep sweep = read_sweep(document_of(file, text), file);
  const SweepPoints points(sweep, setup.presets, setup.registry);
  check_columns(sweep, points, setup.registry);
  return points.size();
}

/// Runs a shard, without the runs whose lines `done` has, on one thread. Returns its rows, its
/// table, its problems (check_result), and for each column its header, name and unit.
py::dict run_sweep_shard(const std::string& file, const std::string& text, const std::string& out,
                         std::int64_t number, std::int64_t of, const std::vector<std::string>& done,
                         bool resume, const std::string& config_dir,
                         const std::vector<std::string>& plugins, const py::list& declared) {
  const Setup setup = setup_of(config_dir, plugins, declared);
  std::vector<std::string> lines;
  std::string table;
  std::vector<std::string> problems;
  std::vector<std::tuple<std::string, std::string, std::string>> columns;
  {
    const py::gil_scoped_release release;
    const Sweep sweep = read_sweep(document_of(file, text), file);
    for (const SweepColumn& column : sweep.columns) {
      columns.emplace_back(formula_safe(header_of(column)), column.name,
                           write_value(column.unit).get<std::string>());
    }
    const SweepPoints points(sweep, setup.presets, setup.registry);
    SweepOptions how;
    how.out = out;
    how.shard = {number, of};
    how.resume = resume;
    how.done = done;
    how.progress = [](std::int64_t, std::int64_t) { check_signals(); };
    const SweepResult result = run_sweep(sweep, points, setup.registry, how);
    for (const SweepRow& row : result.rows) {
      lines.push_back(row.line);
    }
    table = to_table(sweep, result);
    try {
      check_result(sweep, result);
    } catch (const ConfigError& error) {
      problems = error.problems();
    }
  }
  py::dict answer;
  answer["lines"] = lines;
  answer["table"] = table;
  answer["problems"] = problems;
  answer["columns"] = columns;
  return answer;
}

/// The type and message of an exception that a Python policy raised.
std::string raised_name(const std::exception& error) {
  const auto* const raised = dynamic_cast<const py::error_already_set*>(&error);
  if (raised == nullptr) {
    return exception_name(error);
  }
  const py::gil_scoped_acquire acquire;
  if (!raised->matches(PyExc_Exception)) {
    throw;  // Ctrl-C, or the end of the interpreter
  }
  return py::cast<std::string>(py::handle(raised->type()).attr("__name__")) + ": " +
         py::cast<std::string>(py::str(raised->value()));
}

/// Violations of the contract by a policy. `what` is "eviction" or "routing".
std::vector<std::string> check_policy(const std::string& what, const std::string& name,
                                      const std::vector<std::string>& plugins,
                                      const py::list& declared) {
  const PolicyRegistry registry = make_registry(plugins, declared);
  const auto checked = [&](const auto& kinds, const auto& problems) {
    const auto* const kind = find_policy(kinds, name);
    if (kind == nullptr) {
      throw ConfigError("name: there is no " + what + " policy \"" + name + "\"");
    }
    const py::gil_scoped_release release;
    return problems(*kind, raised_name);
  };
  return what == "eviction" ? checked(registry.eviction, eviction_problems)
                            : checked(registry.routing, routing_problems);
}

/// Names of all policies by kind.
py::dict policies(const std::vector<std::string>& plugins, const py::list& declared) {
  const PolicyRegistry registry = make_registry(plugins, declared);
  py::dict all;
  const auto add = [&](const char* what, const auto& kinds) {
    py::list names;
    for (const auto& kind : kinds) {
      names.append(kind.name);
    }
    all[what] = names;
  };
  add("eviction", registry.eviction);
  add("admission", registry.admission);
  add("prefetch", registry.prefetch);
  add("order", registry.order);
  add("routing", registry.routing);
  return all;
}

/// Raises kvtier.errors.TYPE with the problems.
void raise(const char* type, const std::vector<std::string>& problems) {
  const py::object error = py::module_::import("kvtier.errors").attr(type);
  PyErr_SetObject(error.ptr(), error(problems).ptr());
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.doc() = "The parts of kvtier that are written in C++; use the package kvtier.";
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (const ConfigError& error) {
      raise("ConfigError", error.problems());
    } catch (const DeviceError& error) {
      raise("DeviceError", {error.what()});
    } catch (const InvariantError& error) {
      raise("InternalError", {error.what()});
    } catch (const py::builtin_exception& error) {
      // If another extension uses another pybind11, the default translators may not know this type.
      error.set_error();
    }
  });
  bind_views(module);
  module.attr("version") = build_version();
  module.def("simulate", &simulate_text);
  module.def("compare", &compare_text);
  module.def("find_capacity", &find_capacity_text);
  module.def("plan", &plan_text);
  module.def("curve", &curve_text);
  module.def("sweep_points", &sweep_points);
  module.def("run_sweep_shard", &run_sweep_shard);
  module.def("check_policy", &check_policy);
  module.def("policies", &policies);
}

}  // namespace kvtier::python
