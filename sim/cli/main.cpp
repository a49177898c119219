#include <exception>
#include <new>
#include <sstream>

#include <fmt/format.h>

#include "sim/cli/commands.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/cli/validators.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/build.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"

namespace {

enum ExitCode : int {
  done = 0,
  check_failed = 1,
  bad_input = 2,
  device_failure = 3,
  internal_error = 70,
  on_interrupt = 130
};

}  // namespace

int main(int argc, char** argv) {
  using namespace kvtier;
  cli::prepare_standard_streams();
  cli::Program program;
  program.app.description(
      "kvtier says what a multi-tier KV cache (HBM, DRAM, SSD) does for an LLM server: hit rates, "
      "time to first token, GPU hours and dollars, by simulation.");
  program.app.set_version_flag("--version",
                               fmt::format("{} (commit {})", build_version(), build_commit()));
  program.app.require_subcommand(1);
  program.app.fallthrough();  // these options may also follow the command
  program.app.add_option("--config-dir", program.config_dir,
                         "Folder with the presets (models/, hardware/, systems/)");
  program.app
      .add_option("--plugin", program.plugins,
                  "Shared library with policies, for use by configs (may be repeated)")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->take_all();
  cli::add_simulate(program);
  cli::add_compare(program);
  cli::add_sweep(program);
  cli::add_plan(program);
  cli::add_reproduce(program);
  cli::add_list(program);
  cli::add_trace(program);
  cli::add_schema(program);
  cli::add_calibrate(program);
  cli::add_validate(program);
  cli::add_new(program);
  cli::add_check(program);
  cli::add_report(program);
  try {
    try {
      program.app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() != 0) {
        cli::report_command_line(program.app, error);
        return bad_input;
      }
      std::ostringstream text;  // --help, --version
      program.app.exit(error, text, text);
      cli::print("{}", text.str());
      flush_standard_output();
      return done;
    }
    cli::watch_interrupts();
    const int code = program.run();
    flush_standard_output();
    return code;
  } catch (const ConfigError& error) {
    for (const std::string& problem : error.problems()) {
      cli::tell(problem);
    }
    return bad_input;
  } catch (const DeviceError& error) {
    cli::tell(error.what());
    return device_failure;
  } catch (const cli::Interrupted& error) {
    cli::tell(error.what());
    return on_interrupt;
  } catch (const InvariantError& error) {
    cli::tell(fmt::format("internal error, please report it with the config: {}", error.what()));
    return internal_error;
  } catch (const std::bad_alloc&) {
    cli::tell("out of memory");
    return device_failure;
  } catch (const std::exception& error) {
    cli::tell(error.what());
    return device_failure;
  }
}
