#include <fmt/format.h>

#include "sim/cli/commands.hpp"
#include "sim/cli/config_options.hpp"
#include "sim/cli/expect_options.hpp"
#include "sim/cli/output.hpp"
#include "sim/cli/program.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/study/runs/compare.hpp"

namespace kvtier::cli {
namespace {

struct CompareOptions {
  ConfigOptions config;
  std::vector<std::string> systems;
  std::int64_t replications = 1;
  bool bound = false;
  std::string json;
  ExpectOptions expect;
};

int compare_command(const Program& program, const CompareOptions& options) {
  const PolicyRegistry registry = program.policies();
  const ConfigDirectory presets = program.presets();
  std::vector<ResolvedConfig> configs =
      resolve_systems(options.config.request(), options.systems, presets, registry);
  std::vector<std::string> inputs = joined({options.expect.inputs(), program.plugins});
  for (const ResolvedConfig& config : configs) {
    inputs.insert(inputs.end(), config.files.begin(), config.files.end());
  }
  check_outputs({{"--json", options.json}}, inputs);
  TextOutput json(options.json);
  Expectations expectations(options.expect);
  ProgressLine line;
  RunOptions run;
  run.progress = [](std::int64_t) { check_interrupt(); };
  const Comparison comparison =
      compare_systems(std::move(configs), options.systems, options.replications, options.bound,
                      registry, run, run_progress(line));
  expectations.check([&comparison] {
    NamedResults results;
    for (const Comparison::Column& column : comparison.columns) {
      results[column.system] = column.results;
    }
    return values_of(std::move(results));
  });
  if (!options.json.empty()) {
    json.write(json_text(to_json(comparison), 2) + "\n");
  }
  if (options.json != "-") {
    print("{}", to_table(comparison));
  }
  return expectations.finish();
}

}  // namespace

void add_compare(Program& program) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command = program.app.add_subcommand(
      "compare", "Run several systems on the same workload, side by side");
  options->config.add_to(*command);
  command->add_option("--systems", options->systems, "Presets to compare, separated by commas")
      ->delimiter(',')
      ->required();
  command->add_option("--replications", options->replications, "Seeds to run: seed, seed+1, ...")
      ->check(whole_number(1, 100000));
  command->add_flag("--bound", options->bound,
                    "Also compare each system's policies with Belady's choice and with an upper "
                    "bound of all policies, on accesses replayed without a clock");
  command->add_option("--json", options->json,
                      "Write all results as JSON to a file, or to standard output (-)");
  options->expect.add_to(*command,
                         "means over the replications, by JSON pointers: /SYSTEM and a pointer "
                         "into a result");
  command->callback([&program, options] {
    program.run = [&program, options] { return compare_command(program, *options); };
  });
}

}  // namespace kvtier::cli
