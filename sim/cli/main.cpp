#include "sim/cli/commands.hpp"

int main(int argc, char** argv) {
  using namespace kvtier::cli;
  return run_program(
      argc, argv,
      {add_simulate, add_compare, add_sweep, add_plan, add_breakeven, add_reproduce, add_list,
       add_trace, add_schema, add_calibrate, add_validate, add_new, add_check, add_report});
}
