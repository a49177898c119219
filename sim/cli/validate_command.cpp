#include <filesystem>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "calibrate/calibrate.hpp"
#include "policies/registry.hpp"
#include "sim/cli/commands.hpp"
#include "sim/cli/config_options.hpp"
#include "sim/cli/output.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/study/validate.hpp"

namespace kvtier::cli {
namespace {

struct ValidateCommandOptions {
  ConfigOptions config;
  std::string device = "cpu";
  std::string storage;
  std::int64_t repetitions = 3;
  bool lock_step = false;
  bool verify = false;
  std::string json;
};

int validate_command(const Program& program, const ValidateCommandOptions& options) {
  const PolicyRegistry registry = builtin_policies();
  const ConfigDirectory presets = ConfigDirectory::find(program.config_dir);
  check_outputs({{"--json", options.json}});
  const ResolvedConfig resolved = resolve_config(options.config.request(), presets, registry);
  ProgressLine line;
  ValidateOptions how{.device = parse_device_name(options.device),
                      .storage = options.storage.empty()
                                     ? std::filesystem::temp_directory_path().string()
                                     : options.storage,
                      .repetitions = options.repetitions,
                      .verify = options.verify,
                      .base_dir = resolved.base_dir};
  how.check = [] { check_interrupt(); };
  how.progress = [&](std::int64_t run, std::int64_t turns) {
    check_interrupt();
    line.show(run == 0 ? fmt::format("simulation: {} turns", turns)
                       : fmt::format("run {} of {} on {}: {} turns, {:.0f} s", run,
                                     options.lock_step ? 1 : options.repetitions, options.device,
                                     turns, elapsed_seconds()));
  };
  TextOutput json(options.json);
  const auto report = [&](const auto& result, const std::string& text) {
    if (!options.json.empty()) {
      json.write(to_json(result).dump(2) + "\n");
    }
    if (options.json != "-") {
      fmt::print("{}", text);
    }
  };
  if (options.lock_step) {
    const LockStep run = validate_in_lock_step(resolved.config, registry, how);
    report(run, to_text(run));
    return run.equal ? 0 : 1;
  }
  const Validation validation = validate(resolved.config, registry, how);
  report(validation, to_table(validation));
  return validation.in_band() ? 0 : 1;
}

}  // namespace

void add_validate(Program& program) {
  auto options = std::make_shared<ValidateCommandOptions>();
  CLI::App* command = program.app.add_subcommand(
      "validate",
      "Run one config in simulation and on a device, with real kernels, copies and files, and say "
      "how far apart they are; exit code 1 out of band");
  options->config.add_to(*command);
  command->add_option("--device", options->device,
                      "cpu, cpu:THREADS or cuda:N (cpu: all processors but one compute)");
  command->add_option("--storage", options->storage,
                      "A folder on the drive that a tier on SSD uses (that of temporary files)");
  command->add_option("--repetitions", options->repetitions, "Runs on the device (3)")
      ->check(whole_number(1, 1000));
  CLI::Option* lock_step = command->add_flag("--lock-step", options->lock_step,
                                             "Simulated time, work done on the device: decisions "
                                             "have to be the same, and every byte right");
  command
      ->add_flag(
          "--verify", options->verify,
          "Compare every token's KV after every move with what was computed, which takes time")
      ->excludes(lock_step);
  command->add_option("--json", options->json,
                      "Write the comparison and all results as JSON to a file, or to standard "
                      "output (-)");
  command->callback([&program, options] {
    program.run = [&program, options] { return validate_command(program, *options); };
  });
}

}  // namespace kvtier::cli
