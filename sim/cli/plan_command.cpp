#include <fmt/format.h>

#include "policies/registry.hpp"
#include "sim/cli/commands.hpp"
#include "sim/cli/output.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/study/plan.hpp"

namespace kvtier::cli {
namespace {

struct PlanOptions {
  std::string file;
  std::string json;
};

int plan_command(const Program& program, const PlanOptions& options) {
  const PolicyRegistry registry = builtin_policies();
  const ConfigDirectory presets = ConfigDirectory::find(program.config_dir);
  const Plan plan = load_plan(options.file);
  check_outputs({{"--json", options.json}});
  TextOutput json(options.json);
  ProgressLine line;
  RunOptions run;
  run.progress = [](std::int64_t) { check_interrupt(); };
  const PlanResult result = make_plan(plan, presets, registry, run, [&](std::int64_t runs) {
    check_interrupt();
    line.show(fmt::format("{} runs, {:.1f} s", runs, elapsed_seconds()));
  });
  if (!options.json.empty()) {
    json.write(to_json(plan, result).dump(2) + "\n");
  }
  if (options.json != "-") {
    fmt::print("{}", to_table(plan, result));
  }
  fmt::print(stderr, "{} runs in {:.2f} s\n", result.short_runs + result.full_runs,
             elapsed_seconds());
  return result.cheapest ? 0 : 1;
}

}  // namespace

void add_plan(Program& program) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = program.app.add_subcommand(
      "plan", "Find the cheapest configuration that meets an SLO; exit code 1 if none does");
  command->add_option("PLAN", options->file, "JSON file with a config, axes and an SLO")
      ->required();
  command->add_option("--json", options->json,
                      "Write all that was found as JSON to a file, or to standard output (-)");
  command->callback([&program, options] {
    program.run = [&program, options] { return plan_command(program, *options); };
  });
}

}  // namespace kvtier::cli
