#pragma once

#include <functional>
#include <memory>

#include <CLI/CLI.hpp>

/// The subcommands of `kvtier`. Each adds its options to the app and returns nothing; when its
/// subcommand is given, `run` is set to what has to be done, which returns the exit code.
namespace kvtier::cli {

using Action = std::function<int()>;

struct Program {
  CLI::App app;
  /// --config-dir, for every subcommand.
  std::string config_dir;
  /// What the subcommand given on the command line does.
  Action run;
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

}  // namespace kvtier::cli
