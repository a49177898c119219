#include <fmt/format.h>

#include "sim/cli/commands.hpp"
#include "sim/cli/config_options.hpp"
#include "sim/cli/output.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/cli/validators.hpp"
#include "sim/core/quantity.hpp"
#include "sim/engine/miss_ratio_curve.hpp"
#include "traces/statistics.hpp"
#include "traces/tokenizer.hpp"
#include "traces/trace_format.hpp"
#include "traces/trace_source.hpp"
#include "traces/workload.hpp"

namespace kvtier::cli {
namespace {

constexpr std::int64_t kSessionsBetweenChecks = 4096;

/// Reads `source` to its end, counting, and hands each session on.
template <class Visit>
WorkloadStatistics drain(SessionSource& source, const Visit& visit) {
  ProgressLine line;
  WorkloadStatistics statistics;
  SessionSpec session;
  while (source.next(session)) {
    statistics.add(session);
    visit(session);
    if (statistics.sessions() % kSessionsBetweenChecks == 0) {
      check_interrupt();
      line.show(fmt::format("{} sessions", statistics.sessions()));
    }
  }
  return statistics;
}

void show(const WorkloadStatistics& statistics, const ImportReport* report,
          const std::string& json_file, TextOutput* output) {
  Json json = to_json(statistics);
  if (report != nullptr) {
    json["import"] = to_json(*report);
  }
  if (output != nullptr && !json_file.empty()) {
    output->write(json_text(json, 2) + "\n");
  }
  if (json_file == "-") {
    return;
  }
  const auto row = [](const char* label, const Histogram& h, double scale) {
    if (h.count() > 0) {
      print("{:<22}{:>10.2f}{:>10.0f}{:>10.0f}{:>10.0f}{:>10.0f}{:>10.0f}\n", label,
            h.mean() * scale, static_cast<double>(h.quantile(0.5)) * scale,
            static_cast<double>(h.quantile(0.9)) * scale,
            static_cast<double>(h.quantile(0.95)) * scale,
            static_cast<double>(h.quantile(0.99)) * scale,
            static_cast<double>(h.maximum()) * scale);
    }
  };
  constexpr double kPercent = 100;
  print("sessions {}, turns {}\n", statistics.sessions(), statistics.turns());
  print("more than one turn     {:>9.1f} %\n", statistics.multi_turn_share() * kPercent);
  print("over 2K tokens         {:>9.1f} %\n", statistics.over_2k_share() * kPercent);
  print("over 4K tokens         {:>9.1f} %\n", statistics.over_4k_share() * kPercent);
  print("repeated prompt tokens {:>9.1f} %\n", statistics.repeated_prompt_share() * kPercent);
  if (statistics.sessions_with_shared_prompt() > 0) {
    print("shared prompts         {:>9}, of {} sessions\n", statistics.distinct_shared_prompts(),
          statistics.sessions_with_shared_prompt());
    print("shared prompt tokens   {:>9.1f} %\n", statistics.shared_prompt_share() * kPercent);
  }
  print("{:<22}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "", "mean", "p50", "p90", "p95", "p99",
        "max");
  row("turns per session", statistics.turns_per_session(), 1);
  row("user tokens", statistics.user_tokens(), 1);
  row("response tokens", statistics.assistant_tokens(), 1);
  row("session tokens", statistics.session_tokens(), 1);
  row("think time s", statistics.think_times_ns(), 1e-9);
}

struct GenerateOptions {
  ConfigOptions config;
  std::string out;
};

int generate_command(const GenerateOptions& options) {
  check_outputs({{"--out", options.out}});
  const ResolvedWorkload workload = resolve_workload(options.config.request());
  const auto source =
      make_source(workload.config, static_cast<std::uint64_t>(workload.seed), workload.base_dir);
  const bool synthetic = is_synthetic(workload.config);
  const std::string made_of = workload.config.trace ? *workload.config.trace
                              : synthetic           ? "synthetic generator"
                                                    : "generator";
  const bool logged = is_logged(workload.config);
  TraceWriter writer(
      options.out,
      {.arrivals = true, .think_times = !logged, .turn_arrivals = logged, .source = made_of});
  const WorkloadStatistics statistics =
      drain(*source, [&](const SessionSpec& session) { writer.write(session); });
  if (statistics.sessions() == 0) {
    throw ConfigError("/workload: the workload has no sessions");
  }
  writer.commit();
  if (synthetic) {
    print("synthetic workload\n");
  }
  show(statistics, nullptr, "", nullptr);
  return 0;
}

struct ImportCommandOptions {
  std::string input;
  std::string out;
  std::string format = "auto";
  std::string tokenizer;
  std::int64_t overhead = 0;
  std::string json;
};

TraceFormat format_named(const std::string& name) {
  for (const auto& [known, value] : enum_names(TraceFormat{})) {
    if (known == name) {
      return value;
    }
  }
  const std::vector<std::string> names = detail::enum_words<TraceFormat>();
  throw ConfigError(fmt::format("--format: expected one of {}, got \"{}\"{}",
                                detail::join(names, ", "), name, suggestion(name, names)));
}

void check_tokenizer(const ImportCommandOptions& options, TraceFormat format) {
  if (options.tokenizer.empty()) {
    return;
  }
  std::error_code ignored;
  if (!is_chars_tokenizer(options.tokenizer) &&
      !std::filesystem::is_regular_file(options.tokenizer, ignored)) {
    throw ConfigError(
        fmt::format("--tokenizer: expected chars:N or the path of a SentencePiece model, got "
                    "\"{}\", which is no file",
                    options.tokenizer));
  }
  if (format == TraceFormat::automatic) {
    format = detect_format(options.input);
  }
  if (format != TraceFormat::sharegpt_json) {
    throw ConfigError(
        fmt::format("--tokenizer: {} has no texts to count the tokens of", options.input));
  }
}

std::unique_ptr<TraceSource> open_input(const ImportCommandOptions& options) {
  const TraceFormat format = format_named(options.format);
  check_tokenizer(options, format);
  return open_trace(options.input, {.format = format,
                                    .message_overhead = Tokens(options.overhead),
                                    .tokenizer = options.tokenizer});
}

int import_command(const ImportCommandOptions& options) {
  check_outputs({{"--json", options.json}, {"--out", options.out}}, {options.input});
  const auto source = open_input(options);
  TextOutput json(options.json);
  TraceWriter writer(options.out,
                     {.arrivals = source->has_arrivals(),
                      .think_times = source->has_think_times(),
                      .turn_arrivals = source->has_turn_arrivals(),
                      .source = std::filesystem::path(options.input).filename().string()});
  const WorkloadStatistics statistics =
      drain(*source, [&](const SessionSpec& session) { writer.write(session); });
  if (statistics.sessions() == 0) {
    throw ConfigError(fmt::format("{}: no session with a turn", options.input));
  }
  writer.commit();
  show(statistics, &source->report(), options.json, &json);
  if (options.json != "-") {
    print("import {}\n", json_text(to_json(source->report())));
  }
  return 0;
}

int stats_command(const ImportCommandOptions& options) {
  check_outputs({{"--json", options.json}});
  const auto source = open_input(options);
  TextOutput json(options.json);
  const WorkloadStatistics statistics = drain(*source, [](const SessionSpec&) {});
  show(statistics, &source->report(), options.json, &json);
  return 0;
}

void add_input_options(CLI::App& command, ImportCommandOptions& options) {
  command.add_option("INPUT", options.input, "Trace: plain, gzip or zstd")->required();
  command.add_option("--format", options.format,
                     "auto, kvtier, turns_table, sharegpt_json, request_log or azure_llm");
  command.add_option(
      "--tokenizer", options.tokenizer,
      "For texts: the path of a SentencePiece model, or chars:N (a token every N characters)");
  command
      .add_option("--tokens-per-message-overhead", options.overhead,
                  "Taken off each message, such as one BOS token")
      ->check(whole_number(0, INT32_MAX));
  command.add_option("--json", options.json,
                     "Write the statistics as JSON to a file, or to standard output (-)");
}

struct CurveCommandOptions {
  ConfigOptions config;
  MissRatioOptions curve;
  std::vector<std::string> capacities;
  std::string json;
};

int curve_command(const Program& program, CurveCommandOptions& options) {
  std::vector<std::string> problems;
  for (const std::string& text : options.capacities) {
    const std::optional<Bytes> capacity = parse_quantity<Bytes>(text);
    if (capacity && capacity->value > 0) {
      options.curve.capacities.push_back(*capacity);
    } else {
      problems.push_back(
          fmt::format("--capacities: expected a size such as \"128GiB\", got \"{}\"", text));
    }
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  const PolicyRegistry registry = program.policies();
  const ResolvedConfig resolved =
      resolve_config(options.config.request(), ConfigDirectory::find(program.config_dir), registry);
  check_outputs({{"--json", options.json}});
  ProgressLine line;
  TextOutput json(options.json);
  RunOptions run;
  run.progress = turn_progress(line);
  run.base_dir = resolved.base_dir;
  const Json result = miss_ratio_curve(resolved.config, registry, options.curve, run);
  if (!options.json.empty()) {
    json.write(json_text(result, 2) + "\n");
  }
  if (options.json == "-") {
    return 0;
  }
  print("one LRU tier, {} of {} sessions\n", result["sampling"]["sessions"].get<std::int64_t>(),
        result["workload"]["sessions"].get<std::int64_t>());
  print("{:>14}{:>14}{:>20}\n", "capacity", "miss ratio %", "hits, resumed %");
  constexpr double kPercent = 100;
  for (const Json& point : result["points"]) {
    print("{:>14}{:>14.1f}{:>20.1f}\n",
          format_quantity(Bytes(point["capacity_bytes"].get<std::int64_t>())),
          point["miss_ratio"].get<double>() * kPercent,
          point["hit_rate"]["resumed_turns"].get<double>() * kPercent);
  }
  print("{:>14}{:>14.1f}{:>20.1f}\n", "without limit",
        (1 - result["hit_rate_without_limit"]["all_turns"].get<double>()) * kPercent,
        result["hit_rate_without_limit"]["resumed_turns"].get<double>() * kPercent);
  return 0;
}

}  // namespace

void add_trace(Program& program) {
  CLI::App* trace =
      program.app.add_subcommand("trace", "Make, import and describe workload traces");
  trace->require_subcommand(1);

  auto generate = std::make_shared<GenerateOptions>();
  CLI::App* command =
      trace->add_subcommand("generate", "Write the sessions of a config's /workload as a trace");
  generate->config.add_to(*command);
  command->add_option("--out", generate->out, "The trace: .jsonl, .jsonl.gz or .jsonl.zst")
      ->required();
  command->callback(
      [&program, generate] { program.run = [generate] { return generate_command(*generate); }; });

  auto import = std::make_shared<ImportCommandOptions>();
  command = trace->add_subcommand("import",
                                  "Turn ShareGPT's JSON, a table of turns or a log of "
                                  "requests into a trace");
  add_input_options(*command, *import);
  command->add_option("--out", import->out, "The trace: .jsonl, .jsonl.gz or .jsonl.zst")
      ->required();
  command->callback(
      [&program, import] { program.run = [import] { return import_command(*import); }; });

  auto stats = std::make_shared<ImportCommandOptions>();
  command = trace->add_subcommand("stats", "Describe a trace");
  add_input_options(*command, *stats);
  command->callback([&program, stats] { program.run = [stats] { return stats_command(*stats); }; });

  auto curve = std::make_shared<CurveCommandOptions>();
  command = trace->add_subcommand(
      "mrc", "Miss ratios of LRU at all capacities, in one pass over a config's /workload");
  curve->config.add_to(*command);
  command
      ->add_option("--sampling-rate", curve->curve.sampling_rate,
                   "Share of the sessions that is looked at (SHARDS), for large workloads")
      ->check(number_between(1e-6, 1));
  command
      ->add_option(
          "--capacities", curve->capacities,
          "Where the curve is wanted, such as 64GiB,1TiB; four for each doubling otherwise")
      ->delimiter(',');
  command->add_option("--json", curve->json,
                      "Write the curve as JSON to a file, or to standard output (-)");
  command->callback([&program, curve] {
    program.run = [&program, curve] { return curve_command(program, *curve); };
  });
}

}  // namespace kvtier::cli
