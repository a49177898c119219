#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "sim/core/config.hpp"
#include "sim/core/units.hpp"
#include "traces/arrivals.hpp"
#include "traces/long_context_generator.hpp"
#include "traces/long_document_generator.hpp"
#include "traces/session.hpp"
#include "traces/session_filter.hpp"
#include "traces/shared_prompt_generator.hpp"
#include "traces/sharegpt_generator.hpp"
#include "traces/trace_source.hpp"

namespace kvtier {

enum class Generator { sharegpt, long_documents, shared_prompts, long_contexts };
constexpr auto enum_names(Generator) {
  return std::array{
      std::pair<std::string_view, Generator>{"sharegpt", Generator::sharegpt},
      std::pair<std::string_view, Generator>{"long_documents", Generator::long_documents},
      std::pair<std::string_view, Generator>{"shared_prompts", Generator::shared_prompts},
      std::pair<std::string_view, Generator>{"long_contexts", Generator::long_contexts}};
}

enum class Replay { in_order, bootstrap };
constexpr auto enum_names(Replay) {
  return std::array{std::pair<std::string_view, Replay>{"in_order", Replay::in_order},
                    std::pair<std::string_view, Replay>{"bootstrap", Replay::bootstrap}};
}

/// The part of a run that is measured.
enum class Measure {
  automatic,  // from the stationary state to the last arrival of a session
  all,        // from the end of warm-up to the end of the last turn
};
constexpr auto enum_names(Measure) {
  return std::array{std::pair<std::string_view, Measure>{"auto", Measure::automatic},
                    std::pair<std::string_view, Measure>{"all", Measure::all}};
}

/// How many sessions a run has. Without a number: all of a trace, or as many as the wanted
/// precision needs.
struct SessionCount : std::optional<std::int64_t> {
  using std::optional<std::int64_t>::optional;
  bool automatic = false;
};
void read_config(SessionCount& count, const Json& json, const std::string& pointer,
                 Problems& problems);
[[nodiscard]] Json write_config(const SessionCount& count);
[[nodiscard]] Json config_schema(const SessionCount& count);

/// The sessions of a run: made by a generator or read from a trace, one of the two.
struct WorkloadConfig {
  std::optional<Generator> generator{};
  std::optional<std::string> trace{};
  TraceFormat format = TraceFormat::automatic;
  SessionCount sessions{};
  double precision = 0.1;
  ArrivalModel arrivals = ArrivalModel::poisson;
  std::optional<PerSecond> arrival_rate{};
  double arrival_cv = 1;
  std::optional<PerSecond> request_rate{};
  std::int64_t warmup_turns = 0;
  Measure measure = Measure::automatic;
  Replay replay = Replay::in_order;
  double speed_up = 1;
  Tokens tokens_per_message_overhead{};
  std::optional<std::string> tokenizer{};
  SessionFilter filter{};
  ThinkTimeConfig think_time{};
  ShareGptParameters sharegpt{};
  LongDocumentParameters long_documents{};
  SharedPromptParameters shared_prompts{};
  LongContextParameters long_contexts{};
};

template <class V>
void describe(V& v, WorkloadConfig& c) {
  v.field(
      "generator", c.generator,
      "Makes the sessions; give this or a trace. sharegpt: conversations; long_documents: several "
      "tasks on one document each; shared_prompts (synthetic): conversations, many of which begin "
      "with the same prompt; long_contexts (synthetic): several questions on one long context "
      "each.");
  v.field("trace", c.trace,
          "File that holds the sessions, plain, gzip or zstd; a relative path starts at the config "
          "file's folder.");
  v.field("format", c.format,
          "Format of the trace: kvtier (JSON lines, kvtier.trace/1), turns_table (CSV with the "
          "columns conv, turn, "
          "user_tokens, assistant_tokens), sharegpt_json (conversations as text), request_log (CSV "
          "with the columns arrival, input_tokens, output_tokens and, if there are any, session "
          "and turn), azure_llm (CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens), "
          "mooncake or qwen_bailian (JSON lines of requests that name their blocks), "
          "agent_sessions (a folder of JSON files, one a session, as of kv-cache-tester), "
          "or auto (told by the content).");
  v.field("sessions", c.sessions,
          "How many sessions to run. \"all\": those of a trace in order. \"auto\": a run of a "
          "generator grows until it has the precision.");
  v.field(
      "precision", c.precision,
      "Precision that a run of \"auto\" sessions grows to: half of the 95 % interval of the mean "
      "TTFT, as a share of it, and of the hit rate of tokens. 1: whatever the intervals, the run "
      "is "
      "long enough for its load.",
      between(0.001, 1));
  v.field("arrivals", c.arrivals,
          "poisson: at the arrival rate; gamma or weibull: at that rate with the arrival_cv; "
          "trace: at the recorded times (a trace that has them, in order).");
  v.field("arrival_rate", c.arrival_rate, "Mean rate at which sessions arrive.", positive());
  v.field("arrival_cv", c.arrival_cv,
          "Coefficient of variation of the time between arrivals, gamma or weibull: over 1 "
          "sessions come in bursts, at 1 as in a Poisson process.",
          between(0.05, 50));
  v.field("request_rate", c.request_rate,
          "Mean rate at which turns would arrive; sessions arrive at this rate over the workload's "
          "mean turns a session. In place of arrival_rate.",
          positive());
  v.field("warmup_turns", c.warmup_turns, "Turns admitted before anything is counted.",
          non_negative());
  v.field(
      "measure", c.measure,
      "The part of the run that is measured, after warmup_turns. auto: from the stationary state "
      "to the last arrival of a session; all of it where no stationary state is found. all: to "
      "the end of the last turn.");
  v.field("replay", c.replay,
          "in_order: the trace's sessions as they come; bootstrap: drawn from it with replacement "
          "(the trace is then "
          "held in memory).");
  v.field("speed_up", c.speed_up,
          "How many times faster recorded arrivals are replayed: those of sessions (arrivals: "
          "trace) and of logged turns.",
          between(1e-6, 1e6));
  v.field("tokens_per_message_overhead", c.tokens_per_message_overhead,
          "Taken off each message of the trace, such as one BOS token that its counts include; at "
          "least one token "
          "remains.",
          between(0, INT32_MAX));
  v.field("tokenizer", c.tokenizer,
          "For traces of texts: chars:N (one token for every N characters) or the path of a "
          "SentencePiece model.");
  v.field("filter", c.filter, "Which sessions are run; sessions counts those that pass.");
  v.field("think_time", c.think_time,
          "Time from a turn's last token to the next turn of its session.");
  v.field("sharegpt", c.sharegpt,
          "Parameters of the sharegpt generator, and of the conversations of shared_prompts.");
  v.field("long_documents", c.long_documents, "Parameters of the long_documents generator.");
  v.field("shared_prompts", c.shared_prompts,
          "Parameters of the shared_prompts generator, which is synthetic.");
  v.field("long_contexts", c.long_contexts,
          "Parameters of the long_contexts generator, which is synthetic.");
}

/// Whether turns arrive at recorded times, whatever the server does: `Turn::think` is then the time
/// since the arrival of the turn before.
[[nodiscard]] bool is_logged(const WorkloadConfig& config);

/// Whether the sessions are made up, neither recorded nor fitted to what is known of a workload.
/// Results say so.
[[nodiscard]] bool is_synthetic(const WorkloadConfig& config);

/// Adds what is wrong across the keys of `config`, which stands at `pointer` (such as "/workload"),
/// to `problems`. Files are not looked at.
void check(const WorkloadConfig& config, const std::string& pointer, Problems& problems);

/// How many times faster recorded times go by.
struct SpeedUp {
  double of_sessions = 1;
  /// Of the time between the arrivals of two turns.
  double of_turns = 1;
};

/// The stream of sessions that a config describes: ids count from 0, arrivals do not decrease.
class WorkloadSource final : public SessionSource {
 public:
  /// `report` must live as long as `sessions`, or be null; `name` is for error messages.
  WorkloadSource(std::unique_ptr<SessionSource> sessions, const ImportReport* report,
                 std::string name, std::optional<std::int64_t> limit,
                 std::optional<Arrivals> arrivals, ThinkTimes think_times, const SpeedUp& speed_up);

  /// Throws ConfigError also if a trace ends before the sessions that were asked for.
  bool next(SessionSpec& session) override;
  [[nodiscard]] Streams* streams() override { return sessions_->streams(); }
  [[nodiscard]] std::optional<NamedBlocks> named_blocks() const override {
    return sessions_->named_blocks();
  }

  /// What the import of a trace met so far; null for a generator.
  [[nodiscard]] const ImportReport* import_report() const { return report_; }

 private:
  std::unique_ptr<SessionSource> sessions_;
  const ImportReport* report_;
  std::string name_;
  std::optional<std::int64_t> limit_;
  std::optional<Arrivals> arrivals_;
  ThinkTimes think_times_;
  SpeedUp speed_up_;
  std::int64_t given_ = 0;
};

/// Opens the workload. Relative paths start at `base_dir`. Everything random comes from named
/// streams of `seed`: the same config and seed give the same sessions, and asking for more sessions
/// changes none of the earlier ones. Memory does not grow with the number of sessions, but a
/// bootstrap holds its table. With a request rate the workload is gone through once more, for its
/// mean turns; arrivals then depend on the number of sessions. Throws ConfigError (with the
/// problems of `check`, or a file's) or DeviceError.
[[nodiscard]] std::unique_ptr<WorkloadSource> make_source(const WorkloadConfig& config,
                                                          std::uint64_t seed,
                                                          const std::filesystem::path& base_dir);

}  // namespace kvtier
