#include <filesystem>

#include <fmt/format.h>

#include "sim/cli/commands.hpp"
#include "sim/cli/jobs_option.hpp"
#include "sim/cli/output.hpp"
#include "sim/cli/program.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/cli/validators.hpp"
#include "sim/study/engines/engine_times.hpp"
#include "sim/study/engines/engines_cache.hpp"
#include "sim/study/engines/served_run.hpp"
#include "sim/study/papers/reproduce.hpp"

namespace kvtier::cli {
namespace {

constexpr int kOutOfBand = 1;

struct ReproduceCommandOptions {
  std::string paper;
  std::vector<std::string> figures;
  std::int64_t replications = 5;
  bool sensitivity = false;
  std::string json;
};

/// Writes the result as JSON and prints its table.
template <class Result>
void give(const Result& result, const std::string& path, TextOutput& json) {
  if (!path.empty()) {
    json.write(json_text(to_json(result), 2) + "\n");
  }
  if (path != "-") {
    print("{}", to_table(result));
  }
}

int reproduce_command(const Program& program, const ReproduceCommandOptions& options) {
  const PolicyRegistry registry = program.policies();
  const ConfigDirectory presets = program.presets();
  const Paper paper = load_paper(presets, options.paper, options.figures);
  std::vector<std::string> inputs;
  for (const auto& file : std::filesystem::recursive_directory_iterator(paper.folder)) {
    inputs.push_back(file.path().string());
  }
  check_outputs({{"--json", options.json}}, joined({inputs, program.plugins}));
  TextOutput json(options.json);
  ProgressLine line;
  ReproduceOptions how;
  how.replications = options.replications;
  how.run.progress = [](std::int64_t) { check_interrupt(); };
  how.progress = run_progress(line);
  if (options.sensitivity) {
    give(vary(paper, presets, registry, how), options.json, json);
    return 0;
  }
  const Reproduction reproduction = reproduce(paper, presets, registry, how);
  give(reproduction, options.json, json);
  return reproduction.count(Verdict::out) == 0 ? 0 : kOutOfBand;
}

struct EnginesCommandOptions {
  std::vector<std::string> traces;
  std::string oracles;
  std::int64_t jobs = 1;
  std::string json;
};

int engines_command(const Program& program, const EnginesCommandOptions& options) {
  const ConfigDirectory presets = program.presets();
  EnginesInput input;
  if (options.oracles.empty()) {
    input = engines_sample(presets);
  } else {
    input.oracles = options.oracles;
  }
  if (!options.traces.empty()) {
    input.traces.assign(options.traces.begin(), options.traces.end());
  }
  std::vector<std::string> inputs{input.oracles.string()};
  for (const auto& trace : input.traces) {
    inputs.push_back(trace.string());
  }
  check_outputs({{"--json", options.json}}, inputs);
  TextOutput json(options.json);
  ProgressLine line;
  const EnginesResult result =
      compare_engines(input, presets, {.jobs = options.jobs, .progress = run_progress(line)});
  give(result, options.json, json);
  note(fmt::format("{} rows in {:.2f} s", result.rows(), elapsed_seconds()));
  return result.different() == 0 ? 0 : kOutOfBand;
}

void add_engines(Program& program, CLI::App& reproduce) {
  auto options = std::make_shared<EnginesCommandOptions>();
  CLI::App* command = reproduce.add_subcommand(
      "engines-cache",
      "Compare the hits and evictions of each request with those of the code of vLLM, SGLang and "
      "LMCache; exit code 1 if a request differs");
  CLI::Option* traces =
      command
          ->add_option("--trace", options->traces,
                       "Trace in Mooncake's format from which the tables were made (may be "
                       "repeated; the sample in configs/engines)")
          ->allow_extra_args(false)
          ->take_all();
  command
      ->add_option("--oracles", options->oracles,
                   "Folder of tables NAME.csv or NAME.csv.gz with a row for each request; names "
                   "say how tables were made (the samples in configs/engines)")
      ->needs(traces);
  add_jobs(*command, options->jobs);
  command->add_option("--json", options->json,
                      "Write the counts and the first differences as JSON to a file, or to "
                      "standard output (-)");
  command->callback([&program, options] {
    program.run = [&program, options] { return engines_command(program, *options); };
  });
}

struct TimesCommandOptions {
  std::string measured;
  std::string run;
  std::string hardware = "rtxpro6000-8x";
  std::string profile;
  std::int64_t jobs = 1;
  std::string json;
};

int times_command(const Program& program, const TimesCommandOptions& options) {
  const ConfigDirectory presets = ConfigDirectory::find(program.config_dir);
  const std::string measured = options.measured.empty()
                                   ? (presets.path() / "engines" / "measured.csv").string()
                                   : options.measured;
  check_outputs({{"--json", options.json}}, options.run.empty()
                                                ? std::vector{measured}
                                                : std::vector{options.run, options.run + "/run",
                                                              options.hardware, options.profile});
  TextOutput json(options.json);
  if (!options.run.empty()) {
    const ServedRun run =
        predict_served_run(options.run, options.hardware, options.profile, presets);
    give(run, options.json, json);
    return all_met(wanted_of(run)) ? 0 : kOutOfBand;
  }
  ProgressLine line;
  const EngineTimes times = predict_measured_runs(
      measured, presets, {.jobs = options.jobs, .progress = run_progress(line)});
  give(times, options.json, json);
  note(fmt::format("{} rows in {:.2f} s", times.runs.size(), elapsed_seconds()));
  return all_met(wanted_of(times)) ? 0 : kOutOfBand;
}

void add_times(Program& program, CLI::App& reproduce) {
  auto options = std::make_shared<TimesCommandOptions>();
  CLI::App* command = reproduce.add_subcommand(
      "engines",
      "Compare TPOT and TTFT with published runs of vLLM, SGLang and TensorRT-LLM, and the ranges "
      "of errors with the runs that they were not fitted to; exit code 1 if an error is larger "
      "than wanted");
  CLI::Option* measured = command->add_option(
      "--measured", options->measured,
      "Table of runs at fixed concurrency, with the columns of aiconfigurator's published runs "
      "(CSV, plain or gzip; the sample in configs/engines). The reasons of rows that cannot be "
      "simulated are counted");
  CLI::Option* run =
      command->add_option("--run", options->run,
                          "Folder of one run in LLMServingSim's layout: meta.json, whose "
                          "max_model_len and num_kv_tokens hold, and requests.jsonl");
  measured->excludes(run);
  command
      ->add_option("--hardware", options->hardware,
                   "Hardware preset that the run was on (rtxpro6000-8x)")
      ->needs(run);
  command
      ->add_option("--profile", options->profile,
                   "Profile in place of the hardware's, by name or "
                   "path")
      ->needs(run);
  add_jobs(*command, options->jobs);
  command->add_option("--json", options->json,
                      "Write every run as JSON to a file, or to standard output (-)");
  command->callback([&program, options] {
    program.run = [&program, options] { return times_command(program, *options); };
  });
}

}  // namespace

void add_reproduce(Program& program) {
  auto options = std::make_shared<ReproduceCommandOptions>();
  CLI::App* command = program.app.add_subcommand(
      "reproduce",
      "Run a paper's set-ups and compare with its figures; exit code 1 if a value leaves its band");
  command->add_option("PAPER", options->paper,
                      "A folder of configs/papers, such as attentionstore");
  add_engines(program, *command);
  add_times(program, *command);
  command
      ->add_option("--figure", options->figures,
                   "Only this figure, such as 13 or 1b (may be repeated)")
      ->take_all();
  command
      ->add_option("--replications", options->replications,
                   "Seeds to run: the config's seed, and those after it (5)")
      ->check(whole_number(1, 100000));
  command->add_flag("--sensitivity", options->sensitivity,
                    "Change one assumption at a time and show what moves; exit code 0");
  command->add_option("--json", options->json,
                      "Write all values as JSON to a file, or to standard output (-)");
  command->callback([&program, options, command] {
    if (const auto other = command->get_subcommands(); !other.empty()) {
      for (const CLI::Option* option : command->get_options()) {
        if (option->count() > 0) {
          throw CLI::ArgumentMismatch(
              fmt::format("{} is not for {}", option->get_name(), other.front()->get_name()));
        }
      }
      return;
    }
    if (options->paper.empty()) {
      throw CLI::RequiredError("PAPER");
    }
    program.run = [&program, options] { return reproduce_command(program, *options); };
  });
}

}  // namespace kvtier::cli
