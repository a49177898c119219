#pragma once

#include <initializer_list>

/// The subcommands of `kvtier`. Each adds its options to the app and returns nothing; when its
/// subcommand is given, `Program::run` is set to what has to be done, which returns the exit code.
namespace kvtier::cli {

struct Program;

void add_simulate(Program& program);
void add_compare(Program& program);
void add_sweep(Program& program);
void add_plan(Program& program);
void add_breakeven(Program& program);
void add_reproduce(Program& program);
void add_list(Program& program);
void add_trace(Program& program);
void add_schema(Program& program);
void add_calibrate(Program& program);
void add_validate(Program& program);
void add_new(Program& program);
void add_check(Program& program);
void add_report(Program& program);

using AddCommand = void (*)(Program&);

/// Runs the command that the command line names, one of `commands`. Catches every error; returns
/// the exit code.
[[nodiscard]] int run_program(int argc, char** argv, std::initializer_list<AddCommand> commands);

}  // namespace kvtier::cli
