#pragma once

#include <initializer_list>

/// The subcommands of `kvtier`. Each function adds one subcommand and its options to the app.
/// Parsing the subcommand sets `Program::run` to the function that does the work.
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

/// Parses the command line and runs the command of `commands` that it names. Catches every error
/// and returns the exit code.
[[nodiscard]] int run_program(int argc, char** argv, std::initializer_list<AddCommand> commands);

}  // namespace kvtier::cli
