#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/core/units.hpp"
#include "traces/agent_generator.hpp"
#include "traces/arrivals.hpp"
#include "traces/long_context_generator.hpp"
#include "traces/long_document_generator.hpp"
#include "traces/multi_turn_generator.hpp"
#include "traces/rag_generator.hpp"
#include "traces/session.hpp"
#include "traces/session_filter.hpp"
#include "traces/shared_prefix_generator.hpp"
#include "traces/shared_prompt_generator.hpp"
#include "traces/sharegpt_generator.hpp"
#include "traces/trace_source.hpp"

namespace kvtier {

enum class Generator {
  sharegpt,
  long_documents,
  shared_prompts,
  long_contexts,
  multi_turn,
  shared_prefixes,
  rag,
  agents,
};
constexpr auto enum_names(Generator) {
  return std::array{
      std::pair<std::string_view, Generator>{"sharegpt", Generator::sharegpt},
      std::pair<std::string_view, Generator>{"long_documents", Generator::long_documents},
      std::pair<std::string_view, Generator>{"shared_prompts", Generator::shared_prompts},
      std::pair<std::string_view, Generator>{"long_contexts", Generator::long_contexts},
      std::pair<std::string_view, Generator>{"multi_turn", Generator::multi_turn},
      std::pair<std::string_view, Generator>{"shared_prefixes", Generator::shared_prefixes},
      std::pair<std::string_view, Generator>{"rag", Generator::rag},
      std::pair<std::string_view, Generator>{"agents", Generator::agents}};
}

enum class Replay { in_order, bootstrap };
constexpr auto enum_names(Replay) {
  return std::array{std::pair<std::string_view, Replay>{"in_order", Replay::in_order},
                    std::pair<std::string_view, Replay>{"bootstrap", Replay::bootstrap}};
}

/// The part of a run that is measured.
enum class Measure {
  automatic,  // from the steady state to the last arrival of a session
  all,        // from the end of warm-up to the end of the last turn
};
constexpr auto enum_names(Measure) {
  return std::array{std::pair<std::string_view, Measure>{"auto", Measure::automatic},
                    std::pair<std::string_view, Measure>{"all", Measure::all}};
}

/// The number of sessions of a run. Without a number: all sessions of a trace, or (`automatic`) as
/// many as the precision needs.
struct SessionCount : std::optional<std::int64_t> {
  using std::optional<std::int64_t>::optional;
  bool automatic = false;
};
void read_config(SessionCount& count, const Json& json, const std::string& pointer,
                 Problems& problems);
[[nodiscard]] Json write_config(const SessionCount& count);
[[nodiscard]] Json config_schema(const SessionCount& count);

struct WorkloadConfig;

/// One of the workloads of a mix: the keys of /workload that define the sessions.
class NestedWorkload {
 public:
  NestedWorkload();

  [[nodiscard]] WorkloadConfig& operator*() { return config_.front(); }
  [[nodiscard]] const WorkloadConfig& operator*() const { return config_.front(); }

 private:
  /// One workload, on the heap, because a workload may have nested ones.
  std::vector<WorkloadConfig> config_;
};
void read_config(NestedWorkload& workload, const Json& json, const std::string& pointer,
                 Problems& problems);
[[nodiscard]] Json write_config(const NestedWorkload& workload);
[[nodiscard]] Json config_schema(const NestedWorkload& workload);

struct MixMember {
  std::string name;
  double weight = 1;
  std::int64_t priority = 0;
  NestedWorkload workload{};
};
template <class V>
void describe(V& v, MixMember& c) {
  v.field("name", c.name, "Name of the class in results.", required());
  v.field("weight", c.weight,
          "Share of the sessions drawn from this workload, relative to the sum of all weights.",
          positive());
  v.field("priority", c.priority,
          "Priority of its requests, for the order \"priority\": smaller numbers go first.");
  v.field(
      "workload", c.workload,
      "A generator or a trace, with its replay, tokens_per_message_overhead, tokenizer, filter, "
      "think_time and parameters, as in /workload.",
      required());
}

/// The sessions of a run, which come from a generator, a trace, or a mix of such workloads.
struct WorkloadConfig {
  std::optional<Generator> generator{};
  std::optional<std::string> trace{};
  TraceFormat format = TraceFormat::automatic;
  std::optional<std::string> columns{};
  InputTokens input_tokens = InputTokens::automatic;
  SessionCount sessions{};
  double precision = 0.1;
  ArrivalModel arrivals = ArrivalModel::poisson;
  std::optional<PerSecond> arrival_rate{};
  double arrival_cv = 1;
  DiurnalRate diurnal{};
  std::optional<PerSecond> request_rate{};
  std::int64_t warmup_turns = 0;
  Measure measure = Measure::automatic;
  Replay replay = Replay::in_order;
  Loop loop = Loop::open;
  SessionStart session_start{};
  double speed_up = 1;
  Tokens tokens_per_message_overhead{};
  std::optional<std::string> tokenizer{};
  SessionFilter filter{};
  ThinkTimeConfig think_time{};
  ShareGptParameters sharegpt{};
  LongDocumentParameters long_documents{};
  SharedPromptParameters shared_prompts{};
  LongContextParameters long_contexts{};
  MultiTurnParameters multi_turn{};
  SharedPrefixParameters shared_prefixes{};
  RagParameters rag{};
  AgentParameters agents{};
  std::vector<MixMember> mix{};
};

template <class V>
void describe(V& v, WorkloadConfig& c) {
  v.field(
      "generator", c.generator,
      "Generator of the sessions; set this or a trace. sharegpt: conversations; long_documents: "
      "several tasks on one document each; shared_prompts (synthetic): conversations, many of "
      "which begin with the same prompt; long_contexts (synthetic): several questions on one long "
      "context each. The others are synthetic and name their tokens, so they need /system/blocks: "
      "multi_turn (clients with equal rounds), shared_prefixes (prefixes of groups and users), rag "
      "(documents before a question), agents (tools, sub-agents, compaction).");
  v.field("trace", c.trace,
          "File with the sessions, plain, gzip or zstd; a relative path starts at the config "
          "file's folder.");
  v.field(
      "format", c.format,
      "Format of the trace: kvtier (JSON lines, kvtier.trace/1 or /2), turns_table (CSV with the "
      "columns conv, turn, "
      "user_tokens, assistant_tokens), sharegpt_json (conversations as text), request_log (CSV "
      "with the columns arrival, input_tokens, output_tokens and, if there are any, session "
      "and turn), azure_llm (CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens), "
      "mooncake or qwen_bailian (JSON lines of requests that name their blocks), "
      "agent_sessions (a folder or a tar or zip archive of JSON files, one a session, as of "
      "kv-cache-tester), "
      "kv_events (JSON lines of the events of vLLM's or SGLang's KV cache), columns (see "
      "columns), "
      "or auto (told by the content).");
  v.field("columns", c.columns,
          "Reads any CSV or JSON lines of requests by the names of its columns: "
          "time=COLUMN:UNIT,input=COLUMN:total,output=COLUMN, and session=COLUMN or, for block "
          "hashes, hashes=COLUMN,block=TOKENS. The unit is s, ms, us or ns; without it times are "
          "seconds or dates. The input is total (whole prompts) or new (see input_tokens).");
  v.field("input_tokens", c.input_tokens,
          "Meaning of the input tokens of a request in a request_log or turns_table. new: the "
          "tokens of the turn without the history of its session; total: the whole prompt, as APIs "
          "count it. A whole prompt that is shorter than the turn before with its response begins "
          "a new session. auto: new, but an error if most later turns look like whole prompts.");
  v.field("sessions", c.sessions,
          "Number of sessions. \"all\": the sessions of a trace in order. \"auto\": a run of a "
          "generator grows until it has the precision.");
  v.field("precision", c.precision,
          "Precision at which a run of \"auto\" sessions ends: half of the 95 % interval, as a "
          "share of the mean TTFT, and of the hit rate of tokens. 1: the intervals do not count; "
          "the run is only long enough for its load.",
          between(0.001, 1));
  v.field("arrivals", c.arrivals,
          "poisson: at the arrival rate; gamma or weibull: at this rate with the arrival_cv; "
          "diurnal: as poisson, with a rate that rises and falls around the arrival rate; trace: "
          "at the recorded times of a trace in order.");
  v.field("arrival_rate", c.arrival_rate, "Mean rate at which sessions arrive.", positive());
  v.field("arrival_cv", c.arrival_cv,
          "Coefficient of variation of the time between arrivals, for gamma and weibull. Over 1: "
          "sessions arrive in bursts; 1: as in a Poisson process.",
          between(0.05, 50));
  v.field("diurnal", c.diurnal, "Rate of diurnal arrivals over a day.");
  v.field("request_rate", c.request_rate,
          "Mean rate at which turns arrive. The rate of sessions is this rate / the workload's "
          "mean turns per session. Replaces arrival_rate.",
          positive());
  v.field("warmup_turns", c.warmup_turns, "Turns admitted before the measured part.",
          non_negative());
  v.field("measure", c.measure,
          "Measured part of the run, after warmup_turns. auto: from the steady state to the last "
          "arrival of a session; all of it if no steady state is found. all: to the end of the "
          "last turn.");
  v.field("replay", c.replay,
          "in_order: the trace's sessions in their order; bootstrap: sessions drawn from the trace "
          "with replacement (the trace is then held in memory).");
  v.field(
      "loop", c.loop,
      "For a trace whose requests name their blocks. open: each request arrives at its time, "
      "whatever the server does. closed: each request of a session waits for the previous "
      "response, and then by the think time model \"trace\" or \"logged\". Sub-agents of "
      "agent_sessions are sessions of their own, at recorded times: callers do not wait for them.");
  v.field("session_start", c.session_start,
          "Starts of the sessions of agent_sessions, which have no common clock. Without keys all "
          "sessions begin at once. Needs arrivals: trace.");
  v.field("speed_up", c.speed_up,
          "Factor by which recorded arrivals are replayed faster: those of sessions (arrivals: "
          "trace) and of logged turns.",
          between(1e-6, 1e6));
  v.field("tokens_per_message_overhead", c.tokens_per_message_overhead,
          "Tokens subtracted from each message of the trace, such as one BOS token that its counts "
          "include; at least one token remains.",
          between(0, INT32_MAX));
  v.field("tokenizer", c.tokenizer,
          "For traces of texts: chars:N (one token for every N characters) or the path of a "
          "SentencePiece model.");
  v.field("filter", c.filter, "Filter of the sessions; /workload/sessions counts those that pass.");
  v.field("think_time", c.think_time,
          "Time from a turn's last token to the next turn of its session.");
  v.field("sharegpt", c.sharegpt,
          "Parameters of the sharegpt generator, and of the conversations of shared_prompts.");
  v.field("long_documents", c.long_documents, "Parameters of the long_documents generator.");
  v.field("shared_prompts", c.shared_prompts,
          "Parameters of the shared_prompts generator, which is synthetic.");
  v.field("long_contexts", c.long_contexts,
          "Parameters of the long_contexts generator, which is synthetic.");
  v.field("multi_turn", c.multi_turn, "Parameters of the multi_turn generator.");
  v.field("shared_prefixes", c.shared_prefixes, "Parameters of the shared_prefixes generator.");
  v.field("rag", c.rag, "Parameters of the rag generator.");
  v.field("agents", c.agents,
          "Parameters of the agents generator, which has think times of its own.");
  v.field("mix", c.mix,
          "Workloads whose sessions are drawn by weight, in place of a generator or a trace. "
          "Results list each of these classes.");
}

/// Whether turns arrive at recorded times, independent of the server. `Turn::think` is then the
/// time since the previous turn's arrival.
[[nodiscard]] bool is_logged(const WorkloadConfig& config);

/// Whether the sessions are synthetic: neither recorded nor fitted to a workload. Results say so.
[[nodiscard]] bool is_synthetic(const WorkloadConfig& config);

/// Whether a generator makes the sessions whose turns name their tokens. A trace may, too.
[[nodiscard]] bool generates_names(const WorkloadConfig& config);
/// Whether sessions start other sessions, which have their own arrivals.
[[nodiscard]] bool starts_sessions(const WorkloadConfig& config);

/// Checks all keys of `config`, which is at `pointer` (such as "/workload"), and adds errors to
/// `problems`. Does not read files.
void check(const WorkloadConfig& config, const std::string& pointer, Problems& problems);

/// Factors by which recorded times are replayed faster.
struct SpeedUp {
  double of_sessions = 1;
  /// Divides the time between the arrivals of two turns.
  double of_turns = 1;
};

/// The stream of sessions that a config describes: ids count from 0, arrivals do not decrease.
class WorkloadSource final : public SessionSource {
 public:
  /// `report` must live as long as `sessions`, or be null; `name` is for error messages. Without
  /// arrivals or think times, those of the sessions are kept.
  WorkloadSource(std::unique_ptr<SessionSource> sessions, const ImportReport* report,
                 std::string name, std::optional<std::int64_t> limit,
                 std::optional<Arrivals> arrivals, std::optional<ThinkTimes> think_times,
                 const SpeedUp& speed_up, bool starts_sessions = false);

  /// Also throws ConfigError if a trace has fewer sessions than the config wants.
  bool next(SessionSpec& session) override;
  [[nodiscard]] Streams* streams() override { return sessions_->streams(); }
  [[nodiscard]] std::optional<NamedBlocks> named_blocks() const override {
    return sessions_->named_blocks();
  }

  /// Counts of the import so far; null for a generator.
  [[nodiscard]] const ImportReport* import_report() const { return report_; }

 private:
  struct Started {
    /// Orders sessions of equal arrival.
    std::int64_t sequence = 0;
    SessionSpec session;
  };
  [[nodiscard]] bool draw(SessionSpec& session);
  [[nodiscard]] bool draw_with_started(SessionSpec& session);
  void hold_started();

  std::unique_ptr<SessionSource> sessions_;
  const ImportReport* report_;
  std::string name_;
  std::optional<std::int64_t> limit_;
  std::optional<Arrivals> arrivals_;
  std::optional<ThinkTimes> think_times_;
  SpeedUp speed_up_;
  bool starts_sessions_;
  /// The last drawn session, held until sessions that arrive before it are returned.
  SessionSpec ahead_;
  bool has_ahead_ = false;
  bool has_begun_ = false;
  /// Sessions started by drawn sessions, a heap by arrival.
  std::vector<Started> started_;
  std::int64_t started_count_ = 0;
  std::int64_t given_ = 0;
};

/// Opens the workload. Relative paths start at `base_dir`. All random numbers come from named
/// streams of `seed`: the same config and seed give the same sessions, and more sessions do not
/// change the earlier ones. Memory does not grow with the number of sessions, except the table of a
/// bootstrap. A request rate reads the workload once more for its mean turns, so arrivals depend on
/// the number of sessions. Throws ConfigError (with the problems of `check`, or a file's) or
/// DeviceError.
[[nodiscard]] std::unique_ptr<WorkloadSource> make_source(const WorkloadConfig& config,
                                                          std::uint64_t seed,
                                                          const std::filesystem::path& base_dir);

}  // namespace kvtier
