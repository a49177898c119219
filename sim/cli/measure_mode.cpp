#include "sim/cli/measure_mode.hpp"

#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "calibrate/calibrate.hpp"
#include "calibrate/sparsity.hpp"
#include "sim/cli/output.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/cli/validators.hpp"
#include "sim/core/build.hpp"
#include "sim/core/errors.hpp"
#include "sim/study/config/resolve.hpp"

namespace kvtier::cli {
namespace {

/// The default model on a CPU. A GPU has no default, because its profile is for the model that it
/// serves.
constexpr const char* kHostModel = "kvtier-small";
constexpr const char* kFlashInfer = "flashinfer";

std::function<void(const calibrate::Progress&)> shown_on(ProgressLine& line) {
  return [&line](const calibrate::Progress& at) {
    check_interrupt();
    constexpr int kWidth = 20;
    line.show(fmt::format(
        "{} {} of {}, {}: {}",
        progress_bar(static_cast<double>(at.done) / static_cast<double>(at.all), kWidth), at.done,
        at.all, time_left(at.seconds_left), at.cell));
  };
}

}  // namespace

int live_check_command(const Program& program, const LiveCheckCommandOptions& options) {
  const ConfigDirectory presets = program.presets();
  const auto profile = resolve_profile(options.profile, presets);
  calibrate::LiveCheckOptions how;
  how.device = parse_device_name(options.device);
  const std::string& model = options.model.empty() ? profile->provenance.model : options.model;
  how.model = resolve_model(model, presets, "--model");
  how.cells = {.seed = options.seed, .cells = options.cells};
  how.check = [] { check_interrupt(); };
  const calibrate::CheckReport report = [&] {
    ProgressLine line;
    how.progress = shown_on(line);
    return calibrate::check_on_device(*profile, how);
  }();
  print("{}", calibrate::to_text(report));
  return report.in_band() ? 0 : 1;
}

int sparsity_command(const Program& program, const SparsityCommandOptions& options,
                     const std::string& model, std::uint64_t seed) {
  const ModelConfig config =
      resolve_model(model.empty() ? kHostModel : model, program.presets(), "--model");
  const std::vector<double> sparsity =
      calibrate::score_sparsity(config, Tokens(options.tokens), seed);
  print(
      "{}, a prompt of {} tokens, random weights: scores below 1 % of the largest of their "
      "row\n",
      config.name, options.tokens);
  std::vector<std::string> values;
  for (std::size_t layer = 0; layer < sparsity.size(); ++layer) {
    print("layer {:3}: {:5.1f} %\n", layer, 100 * sparsity[layer]);
    values.push_back(fmt::format("{:.3f}", sparsity[layer]));
  }
  cli::print("\"sparsity\": [{}]\n", fmt::join(values, ", "));
  return 0;
}

int measure_command(const Program& program, const MeasureOptions& options) {
  calibrate::CalibrateOptions how;
  how.device = parse_device_name(options.device);
  if (options.out.empty()) {
    throw ConfigError("--out: name the profile to write, such as profile.json");
  }
  check_outputs({{"--out", options.out}}, {options.model});
  std::string model = options.model;
  if (model.empty()) {
    if (how.device.kind != "cpu") {
      throw ConfigError("--model: a GPU's profile is for one model; name it, such as llama2-13b");
    }
    model = kHostModel;
  }
  how.model = resolve_model(model, program.presets(), "--model");
  if (!options.storage.empty()) {
    how.storage = options.storage;
  }
  how.full = options.full;
  how.resume = options.resume;
  how.attention =
      options.attention == kFlashInfer ? AttentionLibrary::flashinfer : AttentionLibrary::own;
  how.out = options.out;
  how.version = build_version();
  ProgressLine line;
  how.progress = shown_on(line);
  how.check = [] { check_interrupt(); };
  note(fmt::format("measuring {} with the shapes of {}{}", options.device, how.model.name,
                   options.model.empty() ? " (--model NAME for another model)" : ""));
  // Opening the output fails early if it cannot be written.
  (void)AtomicFile(how.out);
  try {
    const Profile profile = calibrate::calibrate(how);
    for (const std::string& summary : calibrate::summarize(profile)) {
      print("{}\n", summary);
    }
    if (!options.storage.empty()) {
      print("storage by {}\n", profile.storage->engine);
    }
  } catch (const Interrupted&) {
    throw Interrupted(fmt::format("the finished cells are in {}, and --resume goes on from there",
                                  calibrate::kept_path(how.out).string()));
  }
  return 0;
}

void add_measure_options(CLI::App& command, MeasureOptions& options) {
  command.add_option("--device", options.device, "cpu or cuda:N (cpu)");
  command.add_option("--storage", options.storage,
                     "A folder on the drive to measure; a file of 1 GiB (--full: 16 GiB) is made "
                     "there and removed");
  CLI::Option* quick =
      command.add_flag("--quick", options.quick, "A coarse grid in 90 seconds (default)");
  command.add_flag("--full", options.full, "The whole grid; hours")->excludes(quick);
  command.add_flag("--resume", options.resume,
                   "Continue an interrupted run, or measure the cells that a run left out");
  command
      .add_option("--attention", options.attention,
                  "Kernels of attention: kvtier, or flashinfer, as serving engines use; without "
                  "whole steps (kvtier)")
      ->check(one_of({"kvtier", kFlashInfer}));
}

}  // namespace kvtier::cli
