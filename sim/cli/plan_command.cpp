#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "sim/cli/commands.hpp"
#include "sim/cli/expect_options.hpp"
#include "sim/cli/jobs_option.hpp"
#include "sim/cli/output.hpp"
#include "sim/cli/program.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/study/plan/plan.hpp"

namespace kvtier::cli {
namespace {

struct PlanCommandOptions {
  std::string file;
  std::string json;
  std::int64_t jobs = 1;
  std::string out;
  bool resume = false;
  ExpectOptions expect;
};

/// The plan's JSON with trials in place of their numbers, so that a pointer selects a trial by its
/// role: `/cheapest/dollars_per_hour`, `/systems/NAME/axes/DRAM`.
Json named_trials(const Json& plan) {
  const auto trial = [&plan](const Json& number) {
    return number.is_null() ? Json() : plan["trials"][number.get<std::size_t>()];
  };
  Json named{{"feasible", plan["feasible"]}, {"cheapest", trial(plan["cheapest"])}};
  for (const Json& system : plan["systems"]) {
    named["systems"][system["name"].get<std::string>()] = trial(system["trial"]);
  }
  return named;
}

int plan_command(const Program& program, const PlanCommandOptions& options) {
  const PolicyRegistry registry = program.policies();
  const ConfigDirectory presets = program.presets();
  const Plan plan = load_plan(options.file);
  const SweepPoints points(plan.space, presets, registry, std::numeric_limits<std::size_t>::max());
  check_outputs({{"--json", options.json}}, joined({files_of(plan.space, points.checked()),
                                                    options.expect.inputs(), program.plugins}));
  TextOutput json(options.json);
  Expectations expectations(options.expect);
  ProgressLine line;
  PlanOptions how;
  how.jobs = options.jobs;
  how.out = options.out;
  how.resume = options.resume;
  how.tell = tell;
  how.progress = [&](std::int64_t runs) {
    check_interrupt();
    line.show(fmt::format("{} runs, {:.1f} s", runs, elapsed_seconds()));
  };
  PlanResult result;
  try {
    result = make_plan(plan, points, registry, how);
  } catch (const Interrupted&) {
    if (options.out.empty()) {
      throw;
    }
    throw Interrupted(
        fmt::format("the runs that ended are in {}, and --resume goes on from there", options.out));
  }
  const Json answer = to_json(plan, result);
  expectations.check([&answer] { return values_of(named_trials(answer)); });
  if (!options.json.empty()) {
    json.write(json_text(answer, 2) + "\n");
  }
  if (options.json != "-") {
    print("{}", to_table(plan, result));
  }
  note(fmt::format("{} runs in {:.2f} s", result.short_runs + result.full_runs, elapsed_seconds()));
  const int code = expectations.finish();
  return result.cheapest ? code : 1;
}

}  // namespace

void add_plan(Program& program) {
  auto options = std::make_shared<PlanCommandOptions>();
  CLI::App* command = program.app.add_subcommand(
      "plan", "Find the cheapest configuration that meets an SLO; exit code 1 if none does");
  command->add_option("PLAN", options->file, "JSON file with a config, axes and an SLO")
      ->required();
  command->add_option("--json", options->json,
                      "Write all results as JSON to a file, or to standard output (-)");
  add_jobs(*command, options->jobs);
  CLI::Option* out =
      command->add_option("--out", options->out, "Folder that keeps the runs, for --resume");
  command->add_flag("--resume", options->resume, "Use the runs in --out")->needs(out);
  options->expect.add_to(
      *command,
      "the plan's trials, by JSON pointers: /feasible, /cheapest or /systems/NAME "
      "and a pointer into a trial of --json");
  command->callback([&program, options] {
    program.run = [&program, options] { return plan_command(program, *options); };
  });
}

}  // namespace kvtier::cli
