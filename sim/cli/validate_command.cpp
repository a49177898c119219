#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "calibrate/calibrate.hpp"
#include "sim/cli/commands.hpp"
#include "sim/cli/config_options.hpp"
#include "sim/cli/output.hpp"
#include "sim/cli/program.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/core/build.hpp"
#include "sim/core/text.hpp"
#include "sim/study/validate/validate.hpp"

namespace kvtier::cli {
namespace {

struct ValidateCommandOptions {
  ConfigOptions config;
  std::string device = "cpu";
  std::string storage;
  std::int64_t repetitions = 3;
  bool lock_step = false;
  bool verify = false;
  std::vector<std::string> only;
  std::string json;
  std::string timeline;
};

/// Common options of all configs of one call.
struct Call {
  const ValidateCommandOptions& options;
  const PolicyRegistry& registry;
  const std::vector<std::string>& plugins;
  ValidateOptions how;
};

/// A result as JSON and text, and whether it is in band (in lock step: equal).
struct Outcome {
  Json json;
  std::string text;
  bool good = false;
};

Outcome validate_one(const Call& call, const ResolvedConfig& resolved,
                     const std::function<std::string(const Validation&)>& text_of) {
  ValidateOptions how = call.how;
  how.base_dir = resolved.base_dir;
  if (call.options.lock_step) {
    const LockStep run = validate_in_lock_step(resolved.config, call.registry, how);
    return {to_json(run), to_text(run), run.equal};
  }
  const Validation validation = validate(resolved.config, call.registry, how);
  return {to_json(validation), text_of(validation), validation.in_band()};
}

/// Removes the points that lack one of the labels.
void keep_only(std::vector<SweepPoint>& points, const std::vector<std::string>& labels) {
  std::vector<std::string> problems;
  for (const std::string& label : labels) {
    const auto has = [&label](const SweepPoint& point) {
      return std::ranges::find(point.labels, label) != point.labels.end();
    };
    if (std::ranges::none_of(points, has)) {
      std::set<std::string> known;
      for (const SweepPoint& point : points) {
        known.insert(point.labels.begin(), point.labels.end());
      }
      problems.push_back(
          fmt::format("--only: no point is labelled {}; the remaining points have the "
                      "labels {}",
                      quote_text(label), fmt::join(known, ", ")));
      continue;
    }
    std::erase_if(points, [&](const SweepPoint& point) { return !has(point); });
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
}

void check_validate_outputs(const Call& call, const std::vector<std::string>& inputs) {
  check_outputs({{"--json", call.options.json}, {"--timeline", call.options.timeline}},
                joined({inputs, call.plugins}));
}

/// Resolves and checks the points that --only leaves. Throws ConfigError for refused points,
/// unless the sweep skips them.
std::vector<SweepPoint> points_for_device(const Call& call, const Sweep& sweep,
                                          const ConfigDirectory& presets) {
  std::vector<SweepPoint> points = resolve_points(sweep, presets, call.registry);
  check_validate_outputs(call, files_of(sweep, points));
  keep_only(points, call.options.only);
  std::vector<std::string> problems;
  for (SweepPoint& point : points) {
    if (!point.resolved) {
      continue;
    }
    try {
      check_validates(point.resolved->config, call.how);
    } catch (const ConfigError& error) {
      point.resolved.reset();
      for (const std::string& problem : error.problems()) {
        point.refused.push_back(problem);
        problems.push_back(fmt::format("{}: {}", fmt::join(point.labels, ", "), problem));
      }
    }
  }
  if (!problems.empty() && sweep.refused == RefusedPoints::error) {
    throw ConfigError(std::move(problems));
  }
  return points;
}

/// Validates all points and prints a line after each. `keep` gets the finished points if the run
/// ends early, and returns whether it wrote them.
Outcome validate_all(const Call& call, const Sweep& sweep, const std::vector<SweepPoint>& points,
                     const std::function<bool(const Json&)>& keep) {
  const ValidationColumns columns = columns_of(sweep);
  const bool shows = call.options.json != "-";
  Outcome all{.json = new_result("kvtier.validations/1"), .text = {}, .good = true};
  all.json["axes"] = columns.axes;
  all.json["points"] = Json::array();
  if (call.how.recorders != nullptr && points.size() != 1) {
    throw ConfigError(fmt::format(
        "--timeline shows one config; these are {} points of a sweep (--only chooses one)",
        points.size()));
  }
  const auto show = [shows](const std::string& text) {
    if (shows) {
      print("{}", text);
      flush_standard_output();
    }
  };
  const auto keep_done = [&] {
    all.json["complete"] = false;
    return keep(all.json);
  };
  if (!call.options.lock_step) {
    show(header_line(columns));
  }
  for (const SweepPoint& point : points) {
    Json json;
    json["labels"] = point.labels;
    if (point.resolved) {
      Outcome one;
      try {
        one = validate_one(call, *point.resolved, [&](const Validation& validation) {
          return table_line(columns, point.labels, validation);
        });
      } catch (const Interrupted&) {
        if (!keep_done()) {
          throw;
        }
        throw Interrupted(fmt::format("the points that were done are in {}", call.options.json));
      } catch (...) {
        static_cast<void>(keep_done());
        throw;
      }
      show(call.options.lock_step ? fmt::format("{}: {}\n", fmt::join(point.labels, ", "), one.text)
                                  : one.text);
      json["validation"] = one.json;
      all.good = all.good && one.good;
    } else {
      show(fmt::format("{}: refused: {}\n", fmt::join(point.labels, ", "),
                       fmt::join(point.refused, "; ")));
      json["refused"] = point.refused;
    }
    all.json["points"].push_back(std::move(json));
  }
  return all;
}

/// Whether the file is a sweep. Other files are configs of a run.
bool is_sweep(const std::string& file) {
  const Json json = read_json_file(file);
  return json.is_object() && json.contains("axes");
}

int validate_command(const Program& program, const ValidateCommandOptions& options) {
  const PolicyRegistry registry = program.policies();
  const ConfigDirectory presets = program.presets();
  ProgressLine line;
  Call call{
      .options = options,
      .registry = registry,
      .plugins = program.plugins,
      .how = {.device = parse_device_name(options.device),
              .storage = options.storage.empty() ? std::filesystem::temp_directory_path().string()
                                                 : options.storage,
              .repetitions = options.repetitions,
              .verify = options.verify,
              .base_dir = {}}};
  call.how.check = [] { check_interrupt(); };
  call.how.progress = [&](std::int64_t run, std::int64_t turns) {
    check_interrupt();
    line.show(run == 0 ? fmt::format("simulation: {} turns", turns)
                       : fmt::format("run {} of {} on {}: {} turns, {:.0f} s", run,
                                     options.lock_step ? 1 : options.repetitions, options.device,
                                     turns, elapsed_seconds()));
  };
  const ConfigRequest request = options.config.request();
  const auto write = [&](TextOutput& to, const Json& json) {
    if (!options.json.empty()) {
      to.write(json_text(json, 2) + "\n");
    }
  };
  const auto finish = [&](TextOutput& json, const Outcome& outcome) {
    write(json, outcome.json);
    if (options.json != "-") {
      print("{}", outcome.text);
    }
    return outcome.good ? 0 : 1;
  };
  Recorders recorders;
  const auto open_timeline = [&] {
    if (!options.timeline.empty()) {
      recorders.timeline = std::make_unique<TimelineRecorder>(options.timeline);
      call.how.recorders = &recorders;
    }
  };
  if (is_sweep(request.file.string())) {
    Sweep sweep = load_sweep(request.file);
    // The options override the sweep's own settings, so they come last.
    sweep.set.list.insert(sweep.set.list.end(), request.overrides.begin(), request.overrides.end());
    if (request.seed) {
      sweep.set.list.push_back({.pointer = "/seed", .value = *request.seed});
    }
    const std::vector<SweepPoint> points = points_for_device(call, sweep, presets);
    open_timeline();
    TextOutput json(options.json);
    const Outcome outcome = validate_all(call, sweep, points, [&](const Json& done) {
      const bool some = !options.json.empty() && !done["points"].empty();
      if (some) {
        write(json, done);
      }
      return some;
    });
    recorders.commit();
    return finish(json, outcome);
  }
  if (!options.only.empty()) {
    throw ConfigError("--only chooses points of a sweep; this is one config");
  }
  const ResolvedConfig resolved = resolve_config(request, presets, registry);
  check_validate_outputs(call, resolved.files);
  open_timeline();
  TextOutput json(options.json);
  const Outcome outcome = validate_one(
      call, resolved, [](const Validation& validation) { return to_table(validation); });
  recorders.commit();
  return finish(json, outcome);
}

}  // namespace

void add_validate(Program& program) {
  auto options = std::make_shared<ValidateCommandOptions>();
  CLI::App* command = program.app.add_subcommand(
      "validate",
      "Run one config, or each point of a sweep, in simulation and on a device with real kernels, "
      "copies and files, and compare the results; exit code 1 out of band. A region of host memory "
      "replaces CXL memory");
  options->config.add_to(*command);
  command->add_option("--device", options->device,
                      "cpu, cpu:THREADS or cuda:N (cpu: all processors but one compute)");
  command->add_option("--storage", options->storage,
                      "A folder on the drive that a tier on SSD uses (that of temporary files)");
  command->add_option("--repetitions", options->repetitions, "Runs on the device (3)")
      ->check(whole_number(1, 1000));
  CLI::Option* lock_step =
      command->add_flag("--lock-step", options->lock_step,
                        "Simulated time, work on the device: decisions must equal the "
                        "simulation's, and every byte must be right");
  command
      ->add_flag("--verify", options->verify,
                 "Compare every token's KV after every move with the computed KV (slow)")
      ->excludes(lock_step);
  command
      ->add_option("--only", options->only,
                   "Points of a sweep with these labels (all of them, if several are given)")
      ->delimiter(',');
  command->add_option("--json", options->json,
                      "Write the comparison and all results as JSON to a file, or to standard "
                      "output (-); if a sweep ends early, its finished points");
  command
      ->add_option("--timeline", options->timeline,
                   "Write the simulation and the first run on the device as tracks of one Chrome "
                   "trace (Perfetto)")
      ->excludes(lock_step);
  command->callback([&program, options] {
    program.run = [&program, options] { return validate_command(program, *options); };
  });
}

}  // namespace kvtier::cli
