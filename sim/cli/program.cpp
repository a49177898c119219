#include "sim/cli/program.hpp"

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

namespace kvtier::cli {
namespace {

struct ExitCode {
  enum : int {
    done = 0,
    check_failed = 1,
    bad_input = 2,
    device_failure = 3,
    internal_error = 70,
    on_interrupt = 130
  };
};

}  // namespace

int run_program(int argc, char** argv, std::initializer_list<AddCommand> commands) {
  prepare_standard_streams();
  Program program;
  program.app.description(
      "kvtier simulates multi-tier KV caches (HBM, DRAM, SSD) for LLM serving: hit rates, time to "
      "first token, GPU hours and dollars.");
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
  for (const AddCommand add : commands) {
    add(program);
  }
  try {
    try {
      program.app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() != 0) {
        report_command_line(program.app, error);
        return ExitCode::bad_input;
      }
      std::ostringstream text;  // --help, --version
      program.app.exit(error, text, text);
      print("{}", text.str());
      flush_standard_output();
      return ExitCode::done;
    }
    watch_interrupts();
    const int code = program.run();
    flush_standard_output();
    return code;
  } catch (const ConfigError& error) {
    for (const std::string& problem : error.problems()) {
      tell(problem);
    }
    return ExitCode::bad_input;
  } catch (const DeviceError& error) {
    tell(error.what());
    return ExitCode::device_failure;
  } catch (const Interrupted& error) {
    tell(error.what());
    return ExitCode::on_interrupt;
  } catch (const InvariantError& error) {
    tell(fmt::format("internal error, please report it with the config: {}", error.what()));
    return ExitCode::internal_error;
  } catch (const std::bad_alloc&) {
    tell("out of memory");
    return ExitCode::device_failure;
  } catch (const std::exception& error) {
    tell(error.what());
    return ExitCode::device_failure;
  }
}

}  // namespace kvtier::cli
