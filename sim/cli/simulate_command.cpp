#include <fmt/format.h>

#include "sim/cli/commands.hpp"
#include "sim/cli/config_options.hpp"
#include "sim/cli/expect_options.hpp"
#include "sim/cli/output.hpp"
#include "sim/cli/program.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/replay/untimed.hpp"
#include "sim/serving/simulate.hpp"
#include "sim/study/runs/bound.hpp"
#include "sim/study/runs/compare.hpp"
#include "sim/study/runs/find_capacity.hpp"
#include "sim/study/runs/recorders.hpp"
#include "sim/study/runs/summary.hpp"
#include "sim/study/runs/untimed_table.hpp"

namespace kvtier::cli {
namespace {

struct SimulateOptions {
  ConfigOptions config;
  std::string json;
  std::string requests;
  std::string iterations;
  std::string timeline;
  std::string decisions;
  ExpectOptions expect;
  std::optional<std::string> slo;
  CapacityOptions capacity;
  bool occupancy = false;
  bool untimed = false;
  bool bound = false;
  bool print_config = false;
  bool reference = false;
};

/// Throws ConfigError for options of a single run, because a search makes many runs.
void check_capacity_options(const SimulateOptions& options) {
  std::vector<std::string> problems;
  const auto refuse = [&](bool given, const char* option, const char* why) {
    if (given) {
      problems.push_back(fmt::format("{}: {}", option, why));
    }
  };
  constexpr const char* kOneRun = "shows one run, --find-capacity makes many";
  refuse(options.untimed, "--untimed", "a replay without a clock has no arrival rate");
  refuse(options.print_config, "--print-config", "runs nothing, --find-capacity searches");
  refuse(!options.requests.empty(), "--requests", kOneRun);
  refuse(!options.iterations.empty(), "--iterations", kOneRun);
  refuse(!options.timeline.empty(), "--timeline", kOneRun);
  refuse(!options.decisions.empty(), "--decisions", kOneRun);
  refuse(options.occupancy, "--occupancy", kOneRun);
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
}

void check_untimed_options(const SimulateOptions& options) {
  std::vector<std::string> problems;
  for (const auto& [given, option] : {std::pair(!options.iterations.empty(), "--iterations"),
                                      std::pair(!options.timeline.empty(), "--timeline"),
                                      std::pair(options.occupancy, "--occupancy")}) {
    if (options.untimed && given) {
      problems.push_back(fmt::format("{}: an untimed replay has no clock", option));
    }
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
}

int find_capacity_command(const ResolvedConfig& resolved, const PolicyRegistry& registry,
                          const std::vector<std::string>& plugins, const SimulateOptions& options) {
  const std::vector<SloCondition> slo = parse_slo(*options.slo);
  check_outputs({{"--json", options.json}},
                joined({resolved.files, options.expect.inputs(), plugins}));
  Expectations expectations(options.expect);
  ProgressLine line;
  TextOutput json(options.json);
  RunOptions run;
  run.stepping = options.reference ? DecodeStepping::per_iteration : DecodeStepping::closed_form;
  run.progress = [](std::int64_t) { check_interrupt(); };
  std::int64_t runs = 0;
  const CapacitySearch search = find_capacity(
      resolved, slo, options.capacity, registry, run, [&](std::int64_t done, double rate) {
        check_interrupt();
        runs = done + 1;
        line.show(fmt::format("{} runs, now at {:.4g}/s, {:.1f} s", done, rate, elapsed_seconds()));
      });
  const Json result = to_json(search);
  expectations.check([&result] { return values_of(result); });
  if (!options.json.empty()) {
    json.write(json_text(result, 2) + "\n");
  }
  if (options.json != "-") {
    print("{}", to_table(search));
  }
  note(fmt::format("{} runs in {:.2f} s", runs, elapsed_seconds()));
  return expectations.finish();
}

/// Prints a row for each workload of a mix.
void show_classes(const Json& classes) {
  print("\n{:<20}{:>10}{:>14}{:>14}{:>12}{:>12}{:>12}\n", "class", "turns", "turns hit %",
        "tokens hit %", "TTFT s", "p50", "p99");
  for (const auto& [name, one] : classes.items()) {
    const Json& rates = one["hit_rate"];
    const Json& ttft = one["ttft_seconds"];
    const auto seconds = [&](const char* key) {
      return ttft.is_null() ? std::string("-") : fmt::format("{:.4g}", ttft[key].get<double>());
    };
    print("{:<20}{:>10}{:>14.1f}{:>14.1f}{:>12}{:>12}{:>12}\n", name,
          one["turns"].get<std::int64_t>(), 100 * rates["all_turns"]["total"].get<double>(),
          100 * rates["prompt_tokens"]["total"].get<double>(), seconds("mean"), seconds("p50"),
          seconds("p99"));
  }
}

void show(const Json& result, const SimulateOptions& options, const std::string& system) {
  if (options.json == "-") {
    return;  // standard output is the JSON
  }
  if (options.untimed) {
    print("{}", untimed_table(result));
    return;
  }
  print("{}\n{}", to_table(Comparison{{{system, {result}}}}), describe_confidence(result));
  if (result["metrics"].contains("classes")) {
    show_classes(result["metrics"]["classes"]);
  }
}

int simulate_command(const Program& program, const SimulateOptions& options) {
  if (options.slo) {
    check_capacity_options(options);
  }
  const PolicyRegistry registry = program.policies();
  const ConfigDirectory presets = program.presets();
  ResolvedConfig resolved = resolve_config(options.config.request(), presets, registry);
  if (options.slo) {
    return find_capacity_command(resolved, registry, program.plugins, options);
  }
  if (options.print_config) {
    print("{}\n", json_text(write_value(resolved.config), 2));
    return 0;
  }
  check_untimed_options(options);
  Problems problems;
  if (!options.timeline.empty() || options.occupancy) {
    check_one_instance(resolved.config,
                       options.occupancy ? "the occupancy of tiers over time" : "a timeline",
                       problems);
  }
  if (!options.decisions.empty() && options.reference && resolved.config.system.blocks) {
    problems.add("/system/blocks", "--decisions has no decisions of the blocks of --reference");
  }
  problems.throw_if_any();
  check_outputs({{"--json", options.json},
                 {"--requests", options.requests},
                 {"--iterations", options.iterations},
                 {"--timeline", options.timeline},
                 {"--decisions", options.decisions}},
                joined({resolved.files, options.expect.inputs(), program.plugins}));
  Expectations expectations(options.expect);
  ProgressLine line;
  TextOutput json(options.json);
  Recorders recorders;
  if (!options.requests.empty()) {
    recorders.requests =
        std::make_unique<RequestRecorder>(options.requests, resolved.config.system);
  }
  if (!options.iterations.empty()) {
    recorders.iterations = std::make_unique<IterationRecorder>(options.iterations);
  }
  if (!options.timeline.empty()) {
    recorders.timeline = std::make_unique<TimelineRecorder>(options.timeline);
  }
  if (!options.decisions.empty()) {
    recorders.decisions = std::make_unique<DecisionRecorder>(options.decisions);
  }
  RunOptions run;
  if (options.occupancy) {
    recorders.occupancy = std::make_unique<OccupancyRecorder>();
    run.on_start = [&recorders](const Instance& instance) { recorders.occupancy->watch(instance); };
  }
  run.stepping = options.reference ? DecodeStepping::per_iteration : DecodeStepping::closed_form;
  run.observer = recorders.any() ? &recorders : nullptr;
  run.decisions = recorders.decisions.get();
  run.progress = turn_progress(line);
  run.base_dir = resolved.base_dir;
  const double begin = elapsed_seconds();
  Json result = options.untimed ? simulate_untimed(resolved.config, registry, run)
                                : simulate_with_stable_rate(resolved, registry, run);
  const double seconds = elapsed_seconds() - begin;
  if (options.bound) {
    result["bound"] = bound_of(resolved.config, result, registry, run);
  }
  if (recorders.occupancy) {
    result["occupancy"] = recorders.occupancy->to_json();
  }
  // Throws for an expectation of a value that no result has, before anything is written.
  expectations.check([&result] { return values_of(result); });
  if (!options.json.empty()) {
    json.write(json_text(result, 2) + "\n");
  }
  recorders.commit();
  show(result, options, resolved.config.system.name);
  const auto turns = result["workload"]["turns"].get<double>();
  note(fmt::format("{:.0f} turns in {:.2f} s, {:.0f} turns/s", turns, seconds, turns / seconds));
  return expectations.finish();
}

}  // namespace

void add_simulate(Program& program) {
  auto options = std::make_shared<SimulateOptions>();
  CLI::App* command = program.app.add_subcommand("simulate", "Run one system on one workload");
  options->config.add_to(*command);
  CLI::Option* json = command->add_option(
      "--json", options->json, "Write the result as JSON to a file, or to standard output (-)");
  command->add_option("--requests", options->requests, "Write one CSV row for each finished turn");
  command->add_option("--iterations", options->iterations,
                      "Write each iteration of the GPUs with its requests as JSON lines");
  command->add_option("--timeline", options->timeline,
                      "Write a Chrome trace of GPUs, links and queue");
  command->add_option("--decisions", options->decisions,
                      "Write each eviction, prefetch and insertion as JSON lines");
  command
      ->add_flag("--occupancy", options->occupancy,
                 "Add what each tier holds over time to the result, for kvtier report")
      ->needs(json);
  options->expect.add_to(*command, "values of the result, by JSON pointers");
  CLI::Option* slo = command->add_option(
      "--find-capacity", options->slo,
      "Find the highest arrival_rate (or request_rate, or speed_up of a trace) that meets an SLO: "
      "conditions on metrics, separated by commas, such as "
      "ttft_seconds.p90<=2,tpot_seconds.mean<=0.05. A rate meets it if the means over the "
      "replications do, and if the load exceeds capacity in no replication");
  slo->type_name("SLO");
  command
      ->add_option("--replications", options->capacity.replications,
                   "Seeds at each rate of --find-capacity: seed, seed+1, ...")
      ->needs(slo)
      ->check(whole_number(1, 100000));
  command
      ->add_option("--tolerance", options->capacity.tolerance,
                   "Relative precision of the rate of --find-capacity")
      ->needs(slo)
      ->check(number_between(0.0001, 1));
  CLI::Option* untimed = command->add_flag("--untimed", options->untimed,
                                           "Replay one fixed order of accesses without a clock");
  command
      ->add_flag("--bound", options->bound,
                 "With --untimed: compare the hit rates with Belady's choice and with an upper "
                 "bound of all policies")
      ->needs(untimed);
  command->add_flag("--print-config", options->print_config, "Print the resolved config and stop");
  command->add_flag("--reference", options->reference,
                    "Step every decode iteration: slow, same result");
  command->callback([&program, options] {
    program.run = [&program, options] { return simulate_command(program, *options); };
  });
}

}  // namespace kvtier::cli
