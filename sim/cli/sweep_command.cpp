#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/cli/commands.hpp"
#include "sim/cli/expect_options.hpp"
#include "sim/cli/jobs_option.hpp"
#include "sim/cli/program.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/core/text.hpp"
#include "sim/study/runs/run_folder.hpp"
#include "sim/study/sweep/sweep_run.hpp"

namespace kvtier::cli {
namespace {

/// Exit codes for failed runs of a complete sweep, the worst first.
constexpr std::array kFailures{std::pair{RunState::internal_failed, 70},
                               std::pair{RunState::device_failed, 3},
                               std::pair{RunState::input_failed, 1}};

struct SweepCommandOptions {
  std::string file;
  std::string out;
  std::int64_t jobs = 1;
  std::string shard = "1/1";
  bool resume = false;
  ExpectOptions expect;
};

/// Results of the runs that succeeded, by the labels of their points.
NamedResults results_of(const Sweep& sweep, const SweepResult& result) {
  NamedResults results;
  for (const SweepRow& row : result.rows) {
    if (row.state == RunState::ok) {
      results[fmt::format("{}", fmt::join(labels_of(sweep, row.point), ","))].push_back(
          *unsealed_line(row.line));
    }
  }
  return results;
}

/// K/N with 1 <= K <= N; nullopt for anything else.
std::optional<Shard> parse_shard(const std::string& text) {
  Shard shard;
  const char* const end = text.data() + text.size();
  const auto [slash, error] = std::from_chars(text.data(), end, shard.number);
  if (error != std::errc() || slash == end || *slash != '/') {
    return std::nullopt;
  }
  const auto [last, error_of] = std::from_chars(slash + 1, end, shard.of);
  const bool is_shard =
      error_of == std::errc() && last == end && shard.number >= 1 && shard.number <= shard.of;
  return is_shard ? std::optional(shard) : std::nullopt;
}

CLI::Validator is_shard() {
  return {[](std::string& text) {
            return parse_shard(text)
                       ? std::string()
                       : fmt::format("expected K/N with 1 <= K <= N, such as 1/4, got {}",
                                     quote_text(text));
          },
          ""};
}

int sweep_command(const Program& program, const SweepCommandOptions& options) {
  const PolicyRegistry registry = program.policies();
  const ConfigDirectory presets = program.presets();
  const Sweep sweep = load_sweep(options.file);
  const SweepPoints points(sweep, presets, registry);
  Expectations expectations(options.expect);
  ProgressLine line;
  SweepOptions how;
  how.out = options.out;
  how.jobs = options.jobs;
  how.shard = *parse_shard(options.shard);
  how.resume = options.resume;
  how.tell = tell;
  how.progress = run_progress(line);
  const double begin = elapsed_seconds();
  SweepResult result;
  try {
    result = run_sweep(sweep, points, registry, how);
  } catch (const Interrupted&) {
    throw Interrupted(
        fmt::format("the runs that ended are in {}, and --resume goes on from there", options.out));
  }
  print("{}", to_table(sweep, result));
  note(fmt::format("{} runs in {:.2f} s", result.runs, elapsed_seconds() - begin));
  check_result(sweep, result);
  expectations.check([&] { return values_of(results_of(sweep, result)); });
  int code = 0;
  for (const auto& [state, of_state] : kFailures) {
    const std::int64_t failed = result.count(state);
    if (failed > 0) {
      tell(fmt::format(
          "{} of {} runs failed ({})", failed,
          static_cast<std::int64_t>(result.rows.size()) - result.count(RunState::refused),
          failure_name(state)));
      code = code == 0 ? of_state : code;
    }
  }
  const int expected = expectations.finish();
  return code == 0 ? expected : code;
}

}  // namespace

void add_sweep(Program& program) {
  auto options = std::make_shared<SweepCommandOptions>();
  CLI::App* command = program.app.add_subcommand(
      "sweep", "Run a grid of configs on several threads; one row for each point");
  command->add_option("SWEEP", options->file, "JSON file with a config, axes and columns")
      ->required();
  command
      ->add_option(
          "--out", options->out,
          "Folder for results.jsonl (a line for each run) and results.csv; created if needed")
      ->required();
  add_jobs(*command, options->jobs);
  command
      ->add_option("--shard", options->shard,
                   "Only the points K, K+N, K+2N, ... of the sweep, for N machines")
      ->type_name("K/N")
      ->check(is_shard());
  command->add_flag("--resume", options->resume,
                    "Keep the runs in --out, and run those that are missing or failed");
  options->expect.add_to(*command,
                         "means over the replications, by JSON pointers: /LABEL,LABEL of a point "
                         "and a pointer into a line of results.jsonl");
  command->callback([&program, options] {
    program.run = [&program, options] { return sweep_command(program, *options); };
  });
}

}  // namespace kvtier::cli
