/// The program of `make demo`: `kvtier` with one of its commands.

#include "sim/cli/commands.hpp"

int main(int argc, char** argv) {
  using namespace kvtier::cli;
  return run_program(argc, argv, {add_compare});
}
