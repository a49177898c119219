#include <fmt/format.h>

#include "policies/registry.hpp"
#include "sim/cli/commands.hpp"
#include "sim/cli/config_options.hpp"
#include "sim/cli/output.hpp"
#include "sim/cli/program.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/cli/validators.hpp"
#include "sim/core/file.hpp"
#include "sim/core/quantity.hpp"
#include "sim/core/text.hpp"
#include "sim/study/runs/hit_curve.hpp"
#include "traces/statistics.hpp"
#include "traces/tokenizer.hpp"
#include "traces/trace_format.hpp"
#include "traces/trace_source.hpp"
#include "traces/workload.hpp"

namespace kvtier::cli {
namespace {

constexpr std::int64_t kSessionsBetweenChecks = 4096;

/// Reads `source` to its end, collects statistics, and calls `visit` for each session.
template <class Visit>
WorkloadStatistics drain(SessionSource& source, const Visit& visit) {
  ProgressLine line;
  WorkloadStatistics statistics;
  statistics.count_blocks(source);
  SessionSpec session;
  for (std::int64_t read = 1; source.next(session); ++read) {
    statistics.add(session);
    visit(session);
    if (read % kSessionsBetweenChecks == 0) {
      check_interrupt();
      line.show(fmt::format("{} sessions", statistics.sessions()));
    }
  }
  return statistics;
}

/// Prints the sharing among requests that name their blocks.
void show_shared_blocks(const Json& blocks) {
  constexpr double kPercent = 100;
  const auto percents = [&](const char* key) {
    const Json& rates = blocks[key];
    return fmt::format("{:>9.1f} % of blocks, {:.1f} % of tokens, {:.1f} % of requests",
                       rates["blocks"].get<double>() * kPercent,
                       rates["tokens"].get<double>() * kPercent,
                       rates["requests"].get<double>() * kPercent);
  };
  print("blocks of {:<13}{:>9}, {} distinct, {:.1f} % of them in several requests\n",
        fmt::format("{} tokens", blocks["block_tokens"].get<std::int64_t>()),
        blocks["blocks"].get<std::int64_t>(), blocks["distinct_blocks"].get<std::int64_t>(),
        blocks["reused_blocks_fraction"].get<double>() * kPercent);
  print("hits without limit     {}\n", percents("ideal_hit_rate"));
  print("in the second half     {}\n", percents("ideal_hit_rate_second_half"));
  const Json& prefixes = blocks["prefixes_per_request"];
  print("prefixes per request   {:>9.1f} on average, {} at most\n", prefixes["mean"].get<double>(),
        prefixes["max"].get<std::int64_t>());
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
  if (!statistics.blocks()) {  // where blocks are named, the hits without limit say more
    print("repeated prompt tokens {:>9.1f} %\n", statistics.repeated_prompt_share() * kPercent);
  }
  if (statistics.sessions_with_shared_prompt() > 0) {
    print("shared prompts         {:>9}, of {} sessions\n", statistics.distinct_shared_prompts(),
          statistics.sessions_with_shared_prompt());
    print("shared prompt tokens   {:>9.1f} %\n", statistics.shared_prompt_share() * kPercent);
  }
  if (statistics.blocks()) {
    show_shared_blocks(json["blocks"]);
  }
  print("{:<22}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "", "mean", "p50", "p90", "p95", "p99",
        "max");
  row("turns per session", statistics.turns_per_session(), 1);
  row("user tokens", statistics.user_tokens(), 1);
  row("response tokens", statistics.assistant_tokens(), 1);
  row("session tokens", statistics.session_tokens(), 1);
  row("think time s", statistics.think_times_ns(), 1e-9);
}

/// `header` with the block size of a source that names its blocks (version 2).
TraceHeader header_of(SessionSource& source, TraceHeader header) {
  if (const auto named = source.named_blocks()) {
    header.block = named->block.value;
    header.partial = named->partial;
  }
  return header;
}

struct GenerateOptions {
  ConfigOptions config;
  std::string out;
};

/// Whether `folder` is a folder and the path lies in it, at any depth.
bool lies_in(const std::string& path, const std::string& folder) {
  if (!is_folder(folder)) {
    return false;
  }
  std::error_code ignored;
  const std::filesystem::path place = std::filesystem::absolute(path, ignored);
  const auto inside = std::filesystem::weakly_canonical(place, ignored)
                          .lexically_relative(std::filesystem::canonical(folder, ignored));
  return !inside.empty() && *inside.begin() != "..";
}

/// Checks as `check_outputs`. In addition, no output may lie in an input folder.
void check_trace_outputs(const std::vector<OutputOption>& outputs,
                         const std::vector<std::string>& inputs) {
  check_outputs(outputs, inputs);
  std::vector<std::string> problems;
  for (const auto& [option, path] : outputs) {
    for (const std::string& input : inputs) {
      if (!path.empty() && path != "-" && lies_in(path, input)) {
        problems.push_back(
            fmt::format("{}: {} lies in the folder {}, which is read", option, path, input));
      }
    }
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
}

int generate_command(const GenerateOptions& options) {
  const ResolvedWorkload workload = resolve_workload(options.config.request());
  check_trace_outputs({{"--out", options.out}}, workload.files);
  const auto source =
      make_source(workload.config, static_cast<std::uint64_t>(workload.seed), workload.base_dir);
  const bool synthetic = is_synthetic(workload.config);
  const std::string made_of = workload.config.trace ? *workload.config.trace
                              : synthetic           ? "synthetic generator"
                                                    : "generator";
  const bool logged = is_logged(workload.config);
  TraceWriter writer(
      options.out,
      header_of(
          *source,
          {.arrivals = true, .think_times = !logged, .turn_arrivals = logged, .source = made_of}),
      source->streams());
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
  std::string columns;
  std::string input_tokens = "auto";
  std::string tokenizer;
  std::int64_t overhead = 0;
  bool closed = false;
  bool logged = false;
  std::string json;
};

/// The enumerator of a word; throws ConfigError for other words.
template <class Enum>
Enum named(const char* option, const std::string& word) {
  for (const auto& [known, value] : enum_names(Enum{})) {
    if (known == word) {
      return value;
    }
  }
  const std::vector<std::string> words = detail::enum_words<Enum>();
  throw ConfigError(fmt::format("{}: expected one of {}, got {}{}", option,
                                detail::join(words, ", "), quote_text(word),
                                suggestion(word, words)));
}

TraceFormat format_named(const std::string& name) { return named<TraceFormat>("--format", name); }

constexpr const char* kInputTokens = "--input-tokens";

InputTokensSetting input_tokens_named(const std::string& word) {
  return {named<InputTokens>(kInputTokens, word), kInputTokens};
}

std::optional<TraceColumns> columns_named(const std::string& text, TraceFormat format) {
  constexpr const char* kOption = "--columns";
  if (text.empty()) {
    if (format == TraceFormat::columns) {
      throw ConfigError("--format: the format columns needs --columns");
    }
    return std::nullopt;
  }
  std::vector<std::string> problems;
  if (format != TraceFormat::automatic && format != TraceFormat::columns) {
    problems.emplace_back("names of columns need the format columns, or auto");
  }
  const auto columns = parse_columns(text, kOption, problems);
  for (std::string& problem : problems) {
    problem = fmt::format("{}: {}", kOption, problem);
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  return columns;
}

void check_tokenizer(const ImportCommandOptions& options, TraceFormat format) {
  if (options.tokenizer.empty()) {
    return;
  }
  if (!is_chars_tokenizer(options.tokenizer) && !is_file(options.tokenizer)) {
    throw ConfigError(
        fmt::format("--tokenizer: expected chars:N or the path of a SentencePiece model, got "
                    "\"{}\", which is no file",
                    options.tokenizer));
  }
  if (format == TraceFormat::automatic) {
    format = detect_format(options.input);
  }
  if (format != TraceFormat::sharegpt_json) {
    throw ConfigError(fmt::format("--tokenizer: {} has no texts to tokenize", options.input));
  }
}

std::unique_ptr<TraceSource> open_input(const ImportCommandOptions& options) {
  const TraceFormat format = format_named(options.format);
  const std::optional<TraceColumns> columns = columns_named(options.columns, format);
  check_tokenizer(options, columns ? TraceFormat::columns : format);
  return open_trace(options.input,
                    {.format = format,
                     .message_overhead = Tokens(options.overhead),
                     .tokenizer = options.tokenizer,
                     .loop = options.closed || options.logged ? Loop::closed : Loop::open,
                     .think_times = options.closed,
                     .input_tokens = input_tokens_named(options.input_tokens),
                     .columns = columns});
}

std::vector<std::string> inputs_of(const ImportCommandOptions& options) {
  return {options.input, options.tokenizer};
}

int import_command(const ImportCommandOptions& options) {
  check_trace_outputs({{"--json", options.json}, {"--out", options.out}}, inputs_of(options));
  const auto source = open_input(options);
  TextOutput json(options.json);
  TraceWriter writer(
      options.out,
      header_of(*source, {.arrivals = source->has_arrivals(),
                          .think_times = source->has_think_times(),
                          .turn_arrivals = source->has_turn_arrivals(),
                          .source = std::filesystem::path(options.input).filename().string()}),
      source->streams());
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
  check_trace_outputs({{"--json", options.json}}, inputs_of(options));
  const auto source = open_input(options);
  TextOutput json(options.json);
  const WorkloadStatistics statistics = drain(*source, [](const SessionSpec&) {});
  show(statistics, &source->report(), options.json, &json);
  return 0;
}

void add_table_options(CLI::App& command, std::string& columns, std::string& input_tokens) {
  command.add_option(
      "--columns", columns,
      "Read any CSV or JSON lines of requests by its columns, such as "
      "time=ts:ms,input=prompt_tokens:total,output=response_tokens, with session=COLUMN or "
      "with block hashes, hashes=COLUMN,block=64; units s, ms, us, ns; input total (whole "
      "prompts) or new (see --input-tokens)");
  command.add_option(
      kInputTokens, input_tokens,
      "For request_log and turns_table: total (input tokens count the whole prompt, as APIs count "
      "them), new (without the history of the session) or auto (new, but an error if they look "
      "like whole prompts)");
}

void add_input_options(CLI::App& command, ImportCommandOptions& options) {
  command.add_option("INPUT", options.input, "Trace: plain, gzip or zstd")->required();
  command.add_option("--format", options.format,
                     "auto, kvtier, turns_table, sharegpt_json, request_log, azure_llm, mooncake, "
                     "qwen_bailian, agent_sessions, kv_events or columns");
  add_table_options(command, options.columns, options.input_tokens);
  command.add_option(
      "--tokenizer", options.tokenizer,
      "For texts: the path of a SentencePiece model, or chars:N (one token for N characters)");
  command
      .add_option("--tokens-per-message-overhead", options.overhead,
                  "Taken off each message, such as one BOS token")
      ->check(whole_number(0, INT32_MAX));
  CLI::Option* closed = command.add_flag(
      "--closed", options.closed,
      "Make the requests of a session its turns, with the times from a response to the next "
      "request; needs a trace that names blocks and sessions. Sub-agents are sessions of their "
      "own, for which callers do not wait");
  command
      .add_flag("--logged", options.logged,
                "Make the requests of a session its turns, with the times between requests")
      ->excludes(closed);
  command.add_option("--json", options.json,
                     "Write the statistics as JSON to a file, or to standard output (-)");
}

struct CurveCommandOptions {
  ConfigOptions config;
  std::string format = "auto";
  std::string columns;
  std::string input_tokens = "auto";
  HitCurveOptions curve;
  std::string json;
};

/// Prints a row for each capacity.
void show_blocks(const Json& result) {
  constexpr double kPercent = 100;
  const auto percent = [](const Json& from, const char* what) {
    return from["hit_rate"][what].get<double>() * kPercent;
  };
  print("one tier of blocks of {} tokens, {}, {} requests\n",
        result["block_tokens"].get<std::int64_t>(), result["policy"].get<std::string>(),
        result["requests"].get<std::int64_t>());
  constexpr double kGibibyte = 1 << 30;
  const bool in_bytes = result["rows"][0].contains("capacity_bytes");
  const bool best = result["rows"][0].contains("belady");
  print("{:>14}{:>16}{}{:>16}{:>16}{}\n", "blocks", "tokens", in_bytes ? "         GiB" : "",
        "hits, blocks %", "hits, tokens %", best ? "    Belady, blocks %" : "");
  for (const Json& row : result["rows"]) {
    print("{:>14}{:>16}{}{:>16.2f}{:>16.2f}{}\n", row["capacity_blocks"].get<std::int64_t>(),
          row["capacity_tokens"].get<std::int64_t>(),
          in_bytes ? fmt::format("{:>12.1f}", row["capacity_bytes"].get<double>() / kGibibyte) : "",
          percent(row, "blocks"), percent(row, "tokens"),
          best ? fmt::format("{:>20.2f}", percent(row["belady"], "blocks")) : "");
  }
  print("{:>14}{:>16}{}{:>16.2f}{:>16.2f}\n", "without limit", "",
        in_bytes ? std::string(12, ' ') : "", percent(result["ideal"], "blocks"),
        percent(result["ideal"], "tokens"));
}

void show_sessions(const Json& result) {
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
}

/// Opens `json` before the work.
Json curve_of_trace(const Program& program, const CurveCommandOptions& options,
                    const RunOptions& run, std::optional<TextOutput>& json) {
  const std::string& path = options.config.file;
  if (!options.config.sets.empty() || options.config.seed) {
    throw ConfigError("--set and --seed need a config, and " + path + " is a trace");
  }
  ImportOptions import{.format = format_named(options.format)};
  import.columns = columns_named(options.columns, import.format);
  import.input_tokens = input_tokens_named(options.input_tokens);
  check_trace_outputs({{"--json", options.json}}, {path});
  json.emplace(options.json);
  return hit_curve(path, import, program.policies(), options.curve, run);
}

Json curve_of_config(const Program& program, const CurveCommandOptions& options, RunOptions run,
                     std::optional<TextOutput>& json) {
  if (!options.columns.empty()) {
    throw ConfigError("--columns: " + options.config.file +
                      " is a config, expected its key /workload/columns");
  }
  if (options.input_tokens != "auto") {
    throw ConfigError(fmt::format("{}: {} is a config, expected its key /workload/input_tokens",
                                  kInputTokens, options.config.file));
  }
  const PolicyRegistry registry = program.policies();
  const ResolvedConfig resolved =
      resolve_config(options.config.request(), program.presets(), registry);
  check_trace_outputs({{"--json", options.json}}, joined({resolved.files, program.plugins}));
  json.emplace(options.json);
  run.base_dir = resolved.base_dir;
  return hit_curve(resolved.config, registry, options.curve, run);
}

int curve_command(const Program& program, const CurveCommandOptions& options) {
  ProgressLine line;
  RunOptions run;
  run.progress = turn_progress(line);
  std::optional<TextOutput> json;
  const Json result = is_config_file(options.config.file)
                          ? curve_of_config(program, options, run, json)
                          : curve_of_trace(program, options, run, json);
  if (!options.json.empty()) {
    json->write(json_text(result, 2) + "\n");
  }
  if (options.json != "-") {
    (result.contains("rows") ? show_blocks : show_sessions)(result);
  }
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
                                  "Turn conversations, tables, logs of requests or traces of "
                                  "blocks into a trace of kvtier's own format");
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
      "mrc",
      "Compute the hits of one tier at all sizes, in one pass, for a config's /workload or a "
      "trace. The tier caches whole sessions, or blocks that any request may share");
  curve->config.add_to(*command, "CONFIG", "JSON config of a run, or a trace");
  command->add_option("--format", curve->format, "Format of a trace; auto: recognised by content");
  add_table_options(*command, curve->columns, curve->input_tokens);
  command
      ->add_option("--block", curve->curve.block,
                   "Tokens of a block. Default: the blocks that the workload names, or else 16. "
                   "Sessions of a config that names no tokens are cached whole")
      ->check(whole_number(1, INT32_MAX));
  command->add_flag(
      "--whole-blocks", curve->curve.whole_blocks,
      "Leave out a prompt's last block if it is not full, even if the trace names it");
  command->add_option("--policy", curve->curve.policy, "For blocks: an eviction policy");
  command->add_flag("--bound", curve->curve.bound,
                    "For blocks: add Belady's choice, which no policy exceeds");
  command
      ->add_option("--sampling-rate", curve->curve.sampling_rate,
                   "Share of the sessions, or streams of blocks, that is sampled (SHARDS), for "
                   "large workloads")
      ->check(number_between(1e-6, 1));
  command
      ->add_option("--capacities", curve->curve.capacities,
                   "Capacities of the curve, such as 64GiB,1TiB, for blocks also 5Mitokens or "
                   "1000blocks. Default: four for each doubling")
      ->delimiter(',');
  command->add_option("--json", curve->json,
                      "Write the curve as JSON to a file, or to standard output (-)");
  command->callback([&program, curve] {
    program.run = [&program, curve] { return curve_command(program, *curve); };
  });
}

}  // namespace kvtier::cli
