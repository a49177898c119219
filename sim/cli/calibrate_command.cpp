#include <memory>
#include <string>
#include <tuple>

#include <fmt/format.h>

#include "sim/cli/commands.hpp"
#include "sim/cli/measure_mode.hpp"
#include "sim/cli/profile_modes.hpp"
#include "sim/cli/program.hpp"
#include "sim/cli/validators.hpp"
#include "sim/core/errors.hpp"

namespace kvtier::cli {
namespace {

struct CalibrateOptions {
  MeasureOptions measure;
  TableImportOptions import;
  std::string check;
  bool no_measure = false;
  std::string against;
  std::string convert;
  std::int64_t cells = 8;
  ExplainCommandOptions explain;
  SparsityCommandOptions sparsity;
};

int calibrate_command(const Program& program, const CalibrateOptions& options) {
  if (!options.import.tables.empty()) {
    TableImportOptions import = options.import;
    import.gpus = options.explain.gpus;
    return import_tables_command(program, import);
  }
  if (!options.convert.empty()) {
    return convert_profile_command(options.convert, options.import.out);
  }
  if (!options.against.empty()) {
    return compare_profiles_command(program, options.check, options.against);
  }
  if (!options.check.empty()) {
    if (!options.no_measure) {
      return live_check_command(program, {.profile = options.check,
                                          .device = options.measure.device,
                                          .model = options.import.model,
                                          .seed = options.import.seed,
                                          .cells = options.cells});
    }
    return cross_validate_command(program, options.check, options.import.seed);
  }
  if (!options.explain.profile.empty()) {
    ExplainCommandOptions explain = options.explain;
    explain.model = options.import.model;
    return explain_command(program, explain);
  }
  if (options.sparsity.wanted) {
    return sparsity_command(program, options.sparsity, options.import.model, options.import.seed);
  }
  MeasureOptions measure = options.measure;
  measure.model = options.import.model;
  measure.out = options.import.out;
  return measure_command(program, measure);
}

/// Modes that need no device.
void add_profile_modes(CLI::App& command, CalibrateOptions& options) {
  CLI::Option* table =
      command.add_option("--from-table", options.import.tables,
                         "Make a profile of kernel times measured elsewhere: a CSV file, plain or "
                         "gzip (may be repeated)");
  table->type_name("CSV")->take_all();
  command
      .add_option("--columns", options.import.columns,
                  "Names of the table's columns: standard, a name in configs/columns, or a path; "
                  "one for all tables or one for each")
      ->needs(table)
      ->take_all();
  command
      .add_flag("--compact", options.import.compact,
                "With --from-table: keep a coarser grid, for a small file")
      ->needs(table);
  command.add_option("--name", options.import.name, "With --from-table: the profile's name")
      ->needs(table);
  command
      .add_option("--engine", options.import.engine,
                  "With --from-table: the engine that was timed and its version")
      ->needs(table);
  command
      .add_option("--note", options.import.notes,
                  "With --from-table: a note in the profile, such as the source of its tables and "
                  "their licence (may be repeated)")
      ->needs(table)
      ->take_all();
  for (const auto& [name, target, peak] :
       {std::tuple{"--compute", &options.import.compute, "/gpu/peak"},
        std::tuple{"--memory", &options.import.memory, "/hbm/bandwidth"}}) {
    command
        .add_option(name, *target,
                    fmt::format("With --from-table: the roofline's share of {}, in place of the "
                                "hardware's",
                                peak))
        ->needs(table)
        ->check(number_between(0.01, 1));
  }
  CLI::Option* check = command.add_option("--check", options.check,
                                          "Measure cells of a profile again, and points between "
                                          "them, and print the profile's errors by operation; exit "
                                          "code 1 if they are out of band");
  check->type_name("PROFILE");
  command
      .add_flag("--no-measure", options.no_measure,
                "With --check: predict left-out cells of the profile, without a device")
      ->needs(check);
  command
      .add_option("--against", options.against,
                  "With --check: predict the cells of another profile that this one does not have, "
                  "without a device")
      ->needs(check)
      ->type_name("PROFILE");
  command
      .add_option("--cells", options.cells,
                  "With --check: cells of each table to measure again, and points between them (8)")
      ->needs(check)
      ->check(whole_number(1, 10000));
  CLI::Option* convert =
      command.add_option("--convert", options.convert,
                         "Write a profile of an earlier format in today's format to --out");
  convert->type_name("PROFILE");
  CLI::Option* explain =
      command.add_option("--explain", options.explain.profile,
                         "Print how many tokens a load can hide behind a prefill, and read buffer "
                         "sizes (load or recompute: kvtier breakeven)");
  explain->type_name("PROFILE");
  command.add_option("--history", options.explain.history, "With --explain: tokens of the history")
      ->needs(explain)
      ->check(whole_number(1, 1 << 30));
  command.add_option("--prompt", options.explain.prompt, "With --explain: tokens of the prompt")
      ->needs(explain)
      ->check(whole_number(1, 1 << 30));
  command
      .add_option("--gpus", options.explain.gpus,
                  "With --explain: GPUs that serve together. With --from-table: GPUs of tables "
                  "without such a column")
      ->check(whole_number(1, 1024));
  command
      .add_flag("--roofline", options.explain.roofline,
                "With --explain: use the roofline for work that the profile lacks")
      ->needs(explain);
  CLI::Option* sparsity =
      command.add_flag("--sparsity", options.sparsity.wanted,
                       "Print the share of small attention scores in each layer of a decoder with "
                       "random weights, for CaR's compression");
  command
      .add_option("--tokens", options.sparsity.tokens,
                  "With --sparsity: tokens of the prompt (512)")
      ->needs(sparsity)
      ->check(whole_number(1, 1 << 30));
  sparsity->excludes(table)->excludes(check)->excludes(explain);
  table->excludes(check)->excludes(explain);
  check->excludes(explain);
  convert->excludes(table)->excludes(check)->excludes(explain)->excludes(sparsity);
}

}  // namespace

void add_calibrate(Program& program) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* command =
      program.app.add_subcommand("calibrate",
                                 "Measure a device and a drive and write a profile; or make a "
                                 "profile of kernel times, check one, explain one");
  add_measure_options(*command, options->measure);
  command->add_option("--model", options->import.model,
                      "Model whose shapes are measured: a preset, or the path of a config.json (on "
                      "the CPU: kvtier-small)");
  command->add_option("--hardware", options->import.hardware,
                      "Hardware preset with the device's limits, prices and other values that a "
                      "profile does not have");
  command->add_option("--out", options->import.out, "The profile to write");
  command->add_option("--seed", options->import.seed, "Seed of random draws");
  add_profile_modes(*command, *options);
  command->callback([&program, command, options] {
    if (command->count("--hardware") > 0) {
      options->explain.hardware = options->import.hardware;
    }
    std::string& line = options->import.command;
    line = "kvtier calibrate";
    for (const CLI::Option* option : command->get_options()) {
      if (option->get_name() == "--note") {
        continue;  // the profile itself holds the notes
      }
      for (const std::string& value : option->results()) {
        line += " " + option->get_name() + " " + value;
      }
    }
    program.run = [&program, options] { return calibrate_command(program, *options); };
  });
}

}  // namespace kvtier::cli
