#include "traces/workload.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "traces/mix.hpp"
#include "traces/rounding.hpp"
#include "traces/tokenizer.hpp"

namespace kvtier {
namespace {

constexpr const char* kAll = "all";
constexpr const char* kAutomatic = "auto";

[[noreturn]] void throw_too_late(double factor, const std::string& name) {
  throw ConfigError(fmt::format(
      "{}: at a speed_up of {} sessions or turns arrive beyond the time that can be simulated",
      name, factor));
}

/// A recorded time divided by the speed-up.
std::int64_t faster(std::int64_t ns, double factor, const std::string& name) {
  const double scaled = static_cast<double>(ns) / factor;
  if (!(scaled < static_cast<double>(kTraceTimeNsMax))) {
    throw_too_late(factor, name);
  }
  return round_non_negative(scaled);
}

/// Divides the times between turns by the speed-up. All turns must lie within the time that can be
/// simulated.
void hasten(SessionSpec& session, double factor, const std::string& name) {
  std::int64_t at_ns = session.arrival.ns;
  for (Turn& turn : session.turns) {
    turn.think = SimDuration(faster(turn.think.ns, factor, name));
    if (turn.think.ns >= kTraceTimeNsMax - at_ns) {
      throw_too_late(factor, name);
    }
    at_ns += turn.think.ns;
  }
}

bool has_session_start(const WorkloadConfig& config) {
  return config.session_start.every || config.session_start.rate;
}

void check_generator(const WorkloadConfig& config, const std::string& pointer, Problems& problems) {
  const auto needs_trace = [&](bool used, const char* key, const char* what) {
    if (used) {
      problems.add(pointer + key, fmt::format("{} needs a trace, not a generator", what));
    }
  };
  if (!config.sessions && !config.sessions.automatic) {
    problems.add(pointer + "/sessions", "a generator needs a number of sessions, or \"auto\"");
  }
  needs_trace(config.format != TraceFormat::automatic, "/format", "a trace format");
  needs_trace(config.columns.has_value(), "/columns", "\"columns\"");
  needs_trace(config.input_tokens != InputTokens::automatic, "/input_tokens",
              "a meaning of input tokens");
  needs_trace(config.arrivals == ArrivalModel::trace, "/arrivals", "\"trace\"");
  needs_trace(config.replay == Replay::bootstrap, "/replay", "\"bootstrap\"");
  needs_trace(config.tokens_per_message_overhead > Tokens(0), "/tokens_per_message_overhead",
              "an overhead");
  needs_trace(config.tokenizer.has_value(), "/tokenizer", "a tokenizer");
  needs_trace(config.think_time.model == ThinkTimeModel::trace, "/think_time/model", "\"trace\"");
  needs_trace(is_logged(config), "/think_time/model", "\"logged\"");
  needs_trace(config.loop == Loop::closed, "/loop", "\"closed\"");
  if (config.generator == Generator::agents && config.think_time != ThinkTimeConfig{}) {
    problems.add(pointer + "/think_time", "not used: agents have think times of their own");
  }
  needs_trace(has_session_start(config), "/session_start", "a session_start");
}

/// The columns that a config names; adds their errors to `problems`.
std::optional<TraceColumns> columns_of(const WorkloadConfig& config,
                                       std::vector<std::string>& problems) {
  return config.columns ? parse_columns(*config.columns, "/workload/columns", problems)
                        : std::nullopt;
}

void check_columns(const WorkloadConfig& config, const std::string& pointer, Problems& problems) {
  if (config.columns && config.format != TraceFormat::automatic &&
      config.format != TraceFormat::columns) {
    problems.add(pointer + "/columns", "names of columns need the format columns, or auto");
  }
  if (!config.columns && config.format == TraceFormat::columns) {
    problems.add(pointer + "/columns", "the format columns needs the names of the columns");
  }
  std::vector<std::string> wrong;
  const auto columns = columns_of(config, wrong);
  for (const std::string& text : wrong) {
    problems.add(pointer + "/columns", text);
  }
  if (columns && config.think_time.model == ThinkTimeModel::trace) {
    problems.add(pointer + "/think_time/model", "a table of requests has no think times");
  }
  if (config.input_tokens != InputTokens::automatic &&
      (config.columns ||
       (config.format != TraceFormat::automatic && config.format != TraceFormat::turns_table &&
        config.format != TraceFormat::request_log))) {
    problems.add(pointer + "/input_tokens",
                 "only for the formats request_log and turns_table; columns name the meaning as "
                 "input=COLUMN:total or input=COLUMN:new");
  }
}

void check_trace(const WorkloadConfig& config, const std::string& pointer, Problems& problems) {
  const bool has_no_times =
      config.format == TraceFormat::turns_table || config.format == TraceFormat::sharegpt_json;
  check_columns(config, pointer, problems);
  if (config.replay == Replay::in_order && config.sessions.automatic) {
    problems.add(pointer + "/sessions",
                 "\"auto\" needs a generator or \"replay\": \"bootstrap\": a trace in order has a "
                 "fixed number of sessions");
  }
  if (config.replay == Replay::bootstrap) {
    if (!config.sessions && !config.sessions.automatic) {
      problems.add(pointer + "/sessions", "\"bootstrap\" needs a number of sessions, or \"auto\"");
    }
    if (config.arrivals == ArrivalModel::trace) {
      problems.add(pointer + "/arrivals", "\"trace\" needs \"replay\": \"in_order\"");
    }
  }
  const bool is_log =
      config.format == TraceFormat::request_log || config.format == TraceFormat::azure_llm;
  if (has_no_times && config.arrivals == ArrivalModel::trace) {
    problems.add(pointer + "/arrivals",
                 "\"trace\" needs a trace in the format kvtier, or a log of requests");
  }
  if ((has_no_times || is_log) && config.think_time.model == ThinkTimeModel::trace) {
    problems.add(pointer + "/think_time/model", "\"trace\" needs a trace in the format kvtier");
  }
  if (has_no_times && is_logged(config)) {
    problems.add(pointer + "/think_time/model",
                 "\"logged\" needs a trace in the format kvtier, or a log of requests");
  }
  if (config.loop == Loop::closed) {
    if (config.format != TraceFormat::automatic && !can_be_closed(config.format)) {
      problems.add(pointer + "/loop",
                   "\"closed\" needs a trace whose requests name their blocks, and its sessions");
    }
    if (config.think_time.model != ThinkTimeModel::trace && !is_logged(config)) {
      problems.add(pointer + "/think_time/model",
                   "\"loop\": \"closed\" needs \"trace\" (think times as recorded) or \"logged\" "
                   "(requests at their recorded times, or after the response before)");
    }
  }
  if (config.session_start.every && config.session_start.rate) {
    problems.add(pointer + "/session_start/rate", "expected every or rate, not both");
  }
  if (has_session_start(config)) {
    if (config.format != TraceFormat::automatic && config.format != TraceFormat::agent_sessions) {
      problems.add(pointer + "/session_start", "only agent_sessions have no clock in common");
    }
    if (config.arrivals != ArrivalModel::trace) {
      problems.add(
          pointer + "/session_start",
          fmt::format("not used: it sets recorded times, but \"arrivals\" is \"{}\" and draws new "
                      "ones, expected trace",
                      write_value(config.arrivals).get<std::string>()));
    }
  }
  if (config.format == TraceFormat::sharegpt_json && !config.tokenizer) {
    problems.add(pointer + "/tokenizer", "the format sharegpt_json needs a tokenizer");
  }
  if (config.format != TraceFormat::automatic && config.format != TraceFormat::sharegpt_json &&
      config.tokenizer) {
    problems.add(pointer + "/tokenizer",
                 "only the format sharegpt_json has texts to count the tokens of");
  }
}

/// Whether a session arrives after another, or at the same time but was drawn later.
constexpr auto comes_later = [](const auto& a, const auto& b) {
  return a.session.arrival != b.session.arrival ? a.session.arrival > b.session.arrival
                                                : a.sequence > b.sequence;
};

/// The sessions of a workload, before arrivals and think times are drawn.
struct Sessions {
  std::unique_ptr<SessionSource> source;
  /// Lives as long as `source`; null for a generator.
  const ImportReport* report = nullptr;
  std::string name;
};

struct NestedKeys {
  std::vector<std::string> all{"generator",
                               "trace",
                               "format",
                               "columns",
                               "input_tokens",
                               "replay",
                               "tokens_per_message_overhead",
                               "tokenizer",
                               "filter",
                               "think_time",
                               "sharegpt",
                               "long_documents",
                               "shared_prompts",
                               "long_contexts",
                               "multi_turn",
                               "shared_prefixes",
                               "rag",
                               "agents"};
  [[nodiscard]] bool has(const std::string& key) const {
    return std::ranges::find(all, key) != all.end();
  }
};

bool has_think_times_of_its_own(const WorkloadConfig& config) {
  return config.generator == Generator::agents || !config.mix.empty();
}

Sessions generated(const WorkloadConfig& config, std::uint64_t seed, SharedStreams streams) {
  switch (*config.generator) {
    case Generator::sharegpt:
      return {std::make_unique<ShareGptGenerator>(config.sharegpt, seed), nullptr, "sharegpt"};
    case Generator::long_documents:
      return {std::make_unique<LongDocumentGenerator>(config.long_documents, seed), nullptr,
              "long_documents"};
    case Generator::shared_prompts:
      return {std::make_unique<SharedPromptGenerator>(config.shared_prompts, config.sharegpt, seed),
              nullptr, "shared_prompts"};
    case Generator::long_contexts:
      return {std::make_unique<LongContextGenerator>(config.long_contexts, seed), nullptr,
              "long_contexts"};
    case Generator::multi_turn:
      return {std::make_unique<MultiTurnGenerator>(config.multi_turn, std::move(streams)), nullptr,
              "multi_turn"};
    case Generator::shared_prefixes:
      return {
          std::make_unique<SharedPrefixGenerator>(config.shared_prefixes, seed, std::move(streams)),
          nullptr, "shared_prefixes"};
    case Generator::rag:
      return {std::make_unique<RagGenerator>(config.rag, seed, std::move(streams)), nullptr, "rag"};
    case Generator::agents:
      return {std::make_unique<AgentGenerator>(config.agents, seed, std::move(streams)), nullptr,
              "agents"};
  }
  KVTIER_ASSERT(false, "every generator is made");
  return {};
}

Sessions read(const WorkloadConfig& config, std::uint64_t seed,
              const std::filesystem::path& base_dir) {
  const std::filesystem::path path = base_dir / *config.trace;
  const TraceFormat format = config.columns                            ? TraceFormat::columns
                             : config.format == TraceFormat::automatic ? detect_format(path)
                                                                       : config.format;
  std::vector<std::string> wrong;
  if (has_session_start(config) && format != TraceFormat::agent_sessions) {
    throw ConfigError(
        fmt::format("{}: the trace has a clock in common, a session_start is for agent_sessions",
                    path.string()));
  }
  std::unique_ptr<TraceSource> trace =
      open_trace(path, {.format = format,
                        .message_overhead = config.tokens_per_message_overhead,
                        .tokenizer = config.tokenizer.value_or(""),
                        .base_dir = base_dir,
                        .loop = config.loop,
                        .think_times = config.think_time.model == ThinkTimeModel::trace,
                        .session_start = config.session_start,
                        .seed = seed,
                        .input_tokens = {config.input_tokens, "/workload/input_tokens"},
                        .columns = columns_of(config, wrong)});
  if (config.arrivals == ArrivalModel::trace && !trace->has_arrivals()) {
    throw ConfigError(fmt::format(
        "{}: the trace has no arrival times, which \"arrivals\": \"trace\" needs", path.string()));
  }
  if (config.think_time.model == ThinkTimeModel::trace && !trace->has_think_times()) {
    throw ConfigError(
        fmt::format("{}: the trace has no think times, which the think time model \"trace\" needs",
                    path.string()));
  }
  if (is_logged(config) && !trace->has_turn_arrivals()) {
    throw ConfigError(fmt::format(
        "{}: the trace has no arrival times of turns, which the think time model \"logged\" needs",
        path.string()));
  }
  if (config.replay == Replay::bootstrap && trace->streams() != nullptr) {
    throw ConfigError(fmt::format(
        "{}: \"replay\": \"bootstrap\" draws numbers of tokens, but the trace names its blocks",
        path.string()));
  }
  if (config.replay == Replay::bootstrap) {
    auto drawn = std::make_unique<BootstrapSource>(*trace, seed);
    const ImportReport* report = &drawn->report();
    return {std::move(drawn), report, path.string()};
  }
  const ImportReport* report = &trace->report();
  return {std::move(trace), report, path.string()};
}

Sessions open(const WorkloadConfig& config, std::uint64_t seed,
              const std::filesystem::path& base_dir,
              SharedStreams streams = std::make_shared<Streams>());

/// Each workload has its own seed, so that equal workloads give different sessions.
Sessions mixed(const WorkloadConfig& config, std::uint64_t seed,
               const std::filesystem::path& base_dir) {
  const SharedStreams streams =
      generates_names(config) ? std::make_shared<Streams>() : SharedStreams();
  std::vector<MixedSource> sources;
  for (std::size_t i = 0; i < config.mix.size(); ++i) {
    const MixMember& member = config.mix[i];
    const WorkloadConfig& own = *member.workload;
    const std::uint64_t own_seed = stream_seed(seed, "workload/mix/" + member.name);
    Sessions sessions = open(own, own_seed, base_dir, streams);
    const std::string part =
        fmt::format("/workload/mix/{} (\"{}\"): {}", i, member.name, sessions.name);
    if (!streams && sessions.source->streams() != nullptr) {
      throw ConfigError(part +
                        ": the trace names its blocks; in a mix only generators name tokens");
    }
    std::optional<ThinkTimes> think_times;
    if (!has_think_times_of_its_own(own)) {
      think_times.emplace(own.think_time, own_seed);
    }
    sources.push_back({.sessions = std::move(sessions.source),
                       .think_times = std::move(think_times),
                       .weight = member.weight,
                       .priority = member.priority,
                       .name = part});
  }
  return {std::make_unique<MixSource>(std::move(sources), seed, streams), nullptr, "mix"};
}

Sessions open(const WorkloadConfig& config, std::uint64_t seed,
              const std::filesystem::path& base_dir, SharedStreams streams) {
  Sessions sessions = !config.mix.empty() ? mixed(config, seed, base_dir)
                      : config.generator  ? generated(config, seed, std::move(streams))
                                          : read(config, seed, base_dir);
  if (!config.filter.passes_all()) {
    sessions.source =
        std::make_unique<FilteredSource>(config.filter, std::move(sessions.source), sessions.name);
  }
  return sessions;
}

/// The mean turns of the sessions of the run.
double mean_turns(const WorkloadConfig& config, std::uint64_t seed,
                  const std::filesystem::path& base_dir) {
  const Sessions sessions = open(config, seed, base_dir);
  SessionSpec session;
  std::int64_t count = 0;
  std::int64_t turns = 0;
  while ((!config.sessions || count < *config.sessions) && sessions.source->next(session)) {
    ++count;
    turns += static_cast<std::int64_t>(session.turns.size());
  }
  if (count == 0) {
    throw ConfigError(fmt::format("{}: no session to take the mean turns of", sessions.name));
  }
  return static_cast<double>(turns) / static_cast<double>(count);
}

}  // namespace

void read_config(SessionCount& count, const Json& json, const std::string& pointer,
                 Problems& problems) {
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  count = SessionCount{};
  if (json == kAll || json.is_null()) {
    return;
  }
  if (json == kAutomatic) {
    count.automatic = true;
    return;
  }
  if (!json.is_number_integer() || json < 1 || json > kMost) {
    problems.add(pointer,
                 "expected a whole number > 0, \"all\" or \"auto\", got " + quote_json(json));
    return;
  }
  count = SessionCount(json.get<std::int64_t>());
}

Json write_config(const SessionCount& count) {
  return count ? Json(*count) : Json(count.automatic ? kAutomatic : kAll);
}

Json config_schema(const SessionCount&) {
  return Json{{"anyOf", Json::array({Json{{"enum", {kAll, kAutomatic}}},
                                     Json{{"type", "integer"}, {"minimum", 1}}})}};
}

bool is_logged(const WorkloadConfig& config) {
  return config.think_time.model == ThinkTimeModel::logged;
}

namespace {

bool any_of_mix(const WorkloadConfig& config, bool (*is)(const WorkloadConfig&)) {
  return std::ranges::any_of(config.mix,
                             [&](const MixMember& member) { return is(*member.workload); });
}

}  // namespace

bool is_synthetic(const WorkloadConfig& config) {
  return any_of_mix(config, is_synthetic) || config.generator == Generator::shared_prompts ||
         config.generator == Generator::long_contexts || generates_names(config);
}

bool generates_names(const WorkloadConfig& config) {
  return any_of_mix(config, generates_names) || config.generator == Generator::multi_turn ||
         config.generator == Generator::shared_prefixes || config.generator == Generator::rag ||
         config.generator == Generator::agents;
}

bool starts_sessions(const WorkloadConfig& config) {
  return any_of_mix(config, starts_sessions) ||
         (config.generator == Generator::agents && config.agents.subagents.share > 0);
}

NestedWorkload::NestedWorkload() : config_(1) {}

void read_config(NestedWorkload& workload, const Json& json, const std::string& pointer,
                 Problems& problems) {
  workload = NestedWorkload();
  if (!json.is_object()) {
    problems.add(pointer, "expected an object, got " + quote_json(json));
    return;
  }
  Json own = json;
  const Json all = write_value(*NestedWorkload());
  for (const auto& [key, value] : json.items()) {
    if (all.contains(key) && !NestedKeys().has(key)) {
      problems.add(pointer + "/" + key, "a workload of a mix has no such key: it is for all");
      own.erase(key);
    }
  }
  read_value(*workload, own, pointer, problems);
}

Json write_config(const NestedWorkload& workload) {
  Json json = Json::object();
  const Json all = write_value(*workload);
  for (const auto& [key, value] : all.items()) {
    if (NestedKeys().has(key)) {
      json[key] = value;
    }
  }
  return json;
}

/// The keys of /workload by name only, because a schema cannot contain itself.
Json config_schema(const NestedWorkload&) {
  return Json{{"type", "object"}, {"propertyNames", {{"enum", NestedKeys().all}}}};
}

namespace {

void check_mix(const WorkloadConfig& config, const std::string& pointer, Problems& problems) {
  // Keys that define the sessions.
  const WorkloadConfig none;
  const Json defaults = write_value(none);
  const Json json = write_value(config);
  for (const auto& [key, value] : json.items()) {
    if ((NestedKeys().has(key) && key != "filter" && value != defaults[key]) ||
        ((key == "loop" || key == "session_start") && value != defaults[key])) {
      problems.add(pointer + "/" + key, "not used: the workloads of the mix have their own");
    }
  }
  if (!config.sessions && !config.sessions.automatic) {
    problems.add(pointer + "/sessions", "a mix needs a number of sessions, or \"auto\"");
  }
  if (config.arrivals == ArrivalModel::trace) {
    problems.add(pointer + "/arrivals", "\"trace\" needs a trace, not a mix");
  }
  std::set<std::string> names;
  std::size_t naming = 0;
  for (std::size_t i = 0; i < config.mix.size(); ++i) {
    const MixMember& member = config.mix[i];
    const std::string of_member = fmt::format("{}/mix/{}", pointer, i);
    if (member.name.empty() || !names.insert(member.name).second) {
      problems.add(
          of_member + "/name",
          fmt::format("expected a name that no other workload has, got \"{}\"", member.name));
    }
    naming += generates_names(*member.workload) ? 1 : 0;
    if (is_logged(*member.workload)) {
      problems.add(of_member + "/workload/think_time/model",
                   "\"logged\" times are those of a whole trace, not of a mix");
    }
    // Keys of the whole mix are checked once, for the mix.
    WorkloadConfig alone = *member.workload;
    alone.sessions = 1;
    alone.arrival_rate = PerSecond(1);
    check(alone, of_member + "/workload", problems);
  }
  if (naming > 0 && naming < config.mix.size()) {
    problems.add(pointer + "/mix",
                 "some of its workloads name their tokens and others do not; expected all or none");
  }
}

}  // namespace

void check(const WorkloadConfig& config, const std::string& pointer, Problems& problems) {
  if (!config.mix.empty()) {
    check_mix(config, pointer, problems);
  } else if (config.generator && config.trace) {
    problems.add(pointer + "/trace", "a workload has a generator or a trace, not both");
  } else if (config.generator) {
    check_generator(config, pointer, problems);
  } else if (config.trace) {
    check_trace(config, pointer, problems);
  } else {
    problems.add(pointer + "/generator", "missing key: a workload needs a generator or a trace");
  }
  if (config.arrivals != ArrivalModel::trace && !config.arrival_rate && !config.request_rate) {
    problems.add(pointer + "/arrival_rate",
                 config.arrivals == ArrivalModel::poisson
                     ? config.trace ? "missing key: Poisson arrivals need a rate; arrivals "
                                      "\"trace\" are those of the trace"
                                    : "missing key: Poisson arrivals need a rate"
                 : config.arrivals == ArrivalModel::diurnal
                     ? "missing key: diurnal arrivals need a mean rate"
                     : "missing key: gamma and Weibull arrivals need a rate");
  }
  const std::string arrivals = write_value(config.arrivals).get<std::string>();
  if (config.arrival_cv != 1 && config.arrivals != ArrivalModel::gamma &&
      config.arrivals != ArrivalModel::weibull) {
    problems.add(
        pointer + "/arrival_cv",
        fmt::format("not used: \"arrivals\" is \"{}\", expected gamma or weibull", arrivals));
  }
  if (config.diurnal != DiurnalRate{} && config.arrivals != ArrivalModel::diurnal) {
    problems.add(pointer + "/diurnal",
                 fmt::format("not used: \"arrivals\" is \"{}\", expected diurnal", arrivals));
  }
  if (config.speed_up != 1 && config.arrivals != ArrivalModel::trace && !is_logged(config)) {
    problems.add(pointer + "/speed_up",
                 "not used: neither are \"arrivals\" \"trace\", nor is the think time \"logged\"");
  }
  if (starts_sessions(config) && config.request_rate) {
    problems.add(pointer + "/request_rate",
                 "agents start further sessions, whose turns it would count; expected an "
                 "arrival_rate");
  }
  if (config.arrival_rate && config.request_rate) {
    problems.add(pointer + "/request_rate", "a workload has an arrival_rate or this, not both");
  }
  const auto unused_rate = [&](const std::optional<PerSecond>& rate, const char* key) {
    if (config.arrivals == ArrivalModel::trace && rate) {
      problems.add(pointer + key, "not used: \"arrivals\" is \"trace\"");
    }
  };
  unused_rate(config.arrival_rate, "/arrival_rate");
  unused_rate(config.request_rate, "/request_rate");
  if (config.sharegpt.turns_min > config.sharegpt.turns_max) {
    problems.add(pointer + "/sharegpt/turns_min",
                 fmt::format("{} is more than turns_max, which is {}", config.sharegpt.turns_min,
                             config.sharegpt.turns_max));
  }
  const auto check_range = [&](Tokens least, Tokens most, const std::string& section,
                               const std::string& key) {
    if (least > most) {
      problems.add(
          fmt::format("{}/{}/{}_min", pointer, section, key),
          fmt::format("{} is more than {}_max, which is {}", least.value, key, most.value));
    }
  };
  check_range(config.long_documents.document_tokens_min, config.long_documents.document_tokens_max,
              "long_documents", "document_tokens");
  check_range(config.shared_prompts.tokens_min, config.shared_prompts.tokens_max, "shared_prompts",
              "tokens");
  check_range(config.long_contexts.context_tokens_min, config.long_contexts.context_tokens_max,
              "long_contexts", "context_tokens");
  check_range(config.agents.prompt_tokens_min, config.agents.prompt_tokens_max, "agents",
              "prompt_tokens");
  if (config.agents.context_max < least_context(config.agents)) {
    problems.add(pointer + "/agents/context_max",
                 fmt::format("expected at least {} (a prompt, a summary, a message and a response, "
                             "each of the most tokens), got {}",
                             format_quantity(least_context(config.agents)),
                             format_quantity(config.agents.context_max)));
  }
  if (config.rag.documents_per_request > config.rag.documents) {
    problems.add(pointer + "/rag/documents_per_request",
                 fmt::format("{} is more than documents, which is {}",
                             config.rag.documents_per_request, config.rag.documents));
  }
}

WorkloadSource::WorkloadSource(std::unique_ptr<SessionSource> sessions, const ImportReport* report,
                               std::string name, std::optional<std::int64_t> limit,
                               std::optional<Arrivals> arrivals,
                               std::optional<ThinkTimes> think_times, const SpeedUp& speed_up,
                               bool starts_sessions)
    : sessions_(std::move(sessions)),
      report_(report),
      name_(std::move(name)),
      limit_(limit),
      arrivals_(arrivals),
      think_times_(think_times),
      speed_up_(speed_up),
      starts_sessions_(starts_sessions) {}

bool WorkloadSource::draw(SessionSpec& session) {
  if (!sessions_->next(session)) {
    return false;
  }
  if (arrivals_) {
    session.arrival = arrivals_->next();
  } else if (speed_up_.of_sessions != 1) {
    session.arrival = SimTime(faster(session.arrival.ns, speed_up_.of_sessions, name_));
  }
  if (speed_up_.of_turns != 1) {
    hasten(session, speed_up_.of_turns, name_);
  }
  if (think_times_) {
    think_times_->apply(session.turns);
  }
  return true;
}

void WorkloadSource::hold_started() {
  Started started;
  while (sessions_->next_started(started.session)) {
    if (started.session.arrival.ns >= kTraceTimeNsMax - ahead_.arrival.ns) {
      throw ConfigError(fmt::format(
          "{}: a session starts another one beyond the time that can be simulated", name_));
    }
    started.session.arrival = ahead_.arrival + (started.session.arrival - SimTime());
    started.session.workload_class = ahead_.workload_class;
    started.session.priority = ahead_.priority;
    started.sequence = started_count_++;
    started_.push_back(started);
    std::ranges::push_heap(started_, comes_later);
  }
}

bool WorkloadSource::draw_with_started(SessionSpec& session) {
  if (!has_begun_) {
    has_begun_ = true;
    has_ahead_ = draw(ahead_);
    hold_started();
  }
  if (!started_.empty() && (!has_ahead_ || started_.front().session.arrival < ahead_.arrival)) {
    std::ranges::pop_heap(started_, comes_later);
    session = started_.back().session;
    started_.pop_back();
    return true;
  }
  if (!has_ahead_) {
    return false;
  }
  std::swap(session, ahead_);
  has_ahead_ = draw(ahead_);
  if (has_ahead_) {
    hold_started();
  }
  return true;
}

bool WorkloadSource::next(SessionSpec& session) {
  if (limit_ && given_ == *limit_) {
    return false;
  }
  if (!(starts_sessions_ ? draw_with_started(session) : draw(session))) {
    if (limit_) {
      throw ConfigError(fmt::format(
          "{}: the trace ends after {} sessions, {} were asked for (\"sessions\": \"all\" "
          "takes all of them, \"replay\": \"bootstrap\" draws any number)",
          name_, given_, *limit_));
    }
    return false;
  }
  KVTIER_ASSERT(starts_sessions_ || session.id == given_, "sessions are numbered by position");
  session.id = given_++;
  return true;
}

std::unique_ptr<WorkloadSource> make_source(const WorkloadConfig& config, std::uint64_t seed,
                                            const std::filesystem::path& base_dir) {
  Problems problems;
  check(config, "/workload", problems);
  if (config.sessions.automatic) {
    problems.add("/workload/sessions",
                 "expected a number of sessions: \"auto\" needs runs that grow, with a clock");
  }
  problems.throw_if_any();

  std::optional<Arrivals> arrivals;
  SpeedUp speed_up;
  if (config.arrivals != ArrivalModel::trace) {
    const PerSecond rate =
        config.request_rate
            ? PerSecond(config.request_rate->value / mean_turns(config, seed, base_dir))
            : *config.arrival_rate;
    arrivals.emplace(config.arrivals, rate, config.arrival_cv, seed, config.diurnal,
                     config.request_rate ? "/workload/request_rate" : "/workload/arrival_rate");
  } else {
    speed_up.of_sessions = config.speed_up;
  }
  if (is_logged(config)) {
    speed_up.of_turns = config.speed_up;
  }
  std::optional<ThinkTimes> think_times;
  if (!has_think_times_of_its_own(config)) {
    think_times.emplace(config.think_time, seed);
  }
  Sessions sessions = open(config, seed, base_dir);
  return std::make_unique<WorkloadSource>(std::move(sessions.source), sessions.report,
                                          sessions.name, config.sessions, arrivals, think_times,
                                          speed_up, starts_sessions(config));
}

}  // namespace kvtier
