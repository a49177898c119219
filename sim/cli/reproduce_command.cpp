#include <fmt/format.h>

#include "sim/cli/commands.hpp"
#include "sim/cli/output.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/cli/validators.hpp"
#include "sim/study/reproduce.hpp"

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

/// Writes and shows a result of either kind.
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
  const ConfigDirectory presets = ConfigDirectory::find(program.config_dir);
  const Paper paper = load_paper(presets, options.paper, options.figures);
  check_outputs({{"--json", options.json}});
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

}  // namespace

void add_reproduce(Program& program) {
  auto options = std::make_shared<ReproduceCommandOptions>();
  CLI::App* command = program.app.add_subcommand(
      "reproduce",
      "Run a paper's set-ups and compare with its figures; exit code 1 if a value leaves its band");
  command->add_option("PAPER", options->paper, "A folder of configs/papers, such as attentionstore")
      ->required();
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
  command->callback([&program, options] {
    program.run = [&program, options] { return reproduce_command(program, *options); };
  });
}

}  // namespace kvtier::cli
