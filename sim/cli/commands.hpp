#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "sim/study/plugins.hpp"

/// The subcommands of `kvtier`. Each adds its options to the app and returns nothing; when its
/// subcommand is given, `run` is set to what has to be done, which returns the exit code.
namespace kvtier::cli {

using Action = std::function<int()>;

struct Program {
  CLI::App app;
  /// --config-dir, for every subcommand.
  std::string config_dir;
  /// --plugin, for every subcommand.
  std::vector<std::string> plugins;
  /// What the subcommand given on the command line does.
  Action run;

  /// Those of the program and of its plugins. Throws ConfigError.
  [[nodiscard]] PolicyRegistry policies() const { return load_policies(plugins); }
};

void add_simulate(Program& program);
void add_compare(Program& program);
void add_sweep(Program& program);
void add_plan(Program& program);
void add_reproduce(Program& program);
void add_list(Program& program);
void add_trace(Program& program);
void add_schema(Program& program);
void add_calibrate(Program& program);
void add_validate(Program& program);
void add_new(Program& program);
void add_check(Program& program);
void add_report(Program& program);

}  // namespace kvtier::cli
