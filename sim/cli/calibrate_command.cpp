#include <memory>

#include "sim/cli/commands.hpp"
#include "sim/cli/measure_mode.hpp"

namespace kvtier::cli {

void add_calibrate(Program& program) {
  auto options = std::make_shared<MeasureOptions>();
  CLI::App* command = program.app.add_subcommand(
      "calibrate", "Measure a device and a drive, and write a profile that configs can name");
  add_measure_options(*command, *options);
  command->add_option("--model", options->model,
                      "Whose shapes are measured: a preset, or the path of a config.json (on the "
                      "CPU kvtier-small)");
  command->add_option("--out", options->out, "The profile");
  command->callback([&program, options] {
    program.run = [&program, options] { return measure_command(program, *options); };
  });
}

}  // namespace kvtier::cli
