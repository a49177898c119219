#include "traces/workload.hpp"

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
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

/// A recorded time since the beginning, replayed faster.
std::int64_t faster(std::int64_t ns, double factor, const std::string& name) {
  const double scaled = static_cast<double>(ns) / factor;
  if (!(scaled < static_cast<double>(kTraceTimeNsMax))) {
    throw_too_late(factor, name);
  }
  return round_non_negative(scaled);
}

/// Turns at their recorded times; all of them have to be within the time that can be simulated.
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
  needs_trace(config.arrivals == ArrivalModel::trace, "/arrivals", "\"trace\"");
  needs_trace(config.replay == Replay::bootstrap, "/replay", "\"bootstrap\"");
  needs_trace(config.tokens_per_message_overhead > Tokens(0), "/tokens_per_message_overhead",
              "an overhead");
  needs_trace(config.tokenizer.has_value(), "/tokenizer", "a tokenizer");
  needs_trace(config.think_time.model == ThinkTimeModel::trace, "/think_time/model", "\"trace\"");
  needs_trace(is_logged(config), "/think_time/model", "\"logged\"");
}

void check_trace(const WorkloadConfig& config, const std::string& pointer, Problems& problems) {
  const bool has_no_times =
      config.format == TraceFormat::turns_table || config.format == TraceFormat::sharegpt_json;
  if (config.replay == Replay::in_order && config.sessions.automatic) {
    problems.add(pointer + "/sessions",
                 "\"auto\" needs a generator or \"replay\": \"bootstrap\": a trace in order has as "
                 "many sessions as it has");
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
  if (config.format == TraceFormat::sharegpt_json && !config.tokenizer) {
    problems.add(pointer + "/tokenizer", "the format sharegpt_json needs a tokenizer");
  }
  if (config.format != TraceFormat::automatic && config.format != TraceFormat::sharegpt_json &&
      config.tokenizer) {
    problems.add(pointer + "/tokenizer",
                 "only the format sharegpt_json has texts to count the tokens of");
  }
}

/// The sessions of a workload without arrivals and think times.
struct Sessions {
  std::unique_ptr<SessionSource> source;
  /// Lives as long as `source`; null for a generator.
  const ImportReport* report = nullptr;
  std::string name;
};

Sessions generated(const WorkloadConfig& config, std::uint64_t seed) {
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
  }
  KVTIER_ASSERT(false, "every generator is made");
  return {};
}

Sessions read(const WorkloadConfig& config, std::uint64_t seed,
              const std::filesystem::path& base_dir) {
  const std::filesystem::path path = base_dir / *config.trace;
  std::unique_ptr<TraceSource> trace =
      open_trace(path, {.format = config.format,
                        .message_overhead = config.tokens_per_message_overhead,
                        .tokenizer = config.tokenizer.value_or(""),
                        .base_dir = base_dir});
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
              const std::filesystem::path& base_dir) {
  Sessions sessions = config.generator ? generated(config, seed) : read(config, seed, base_dir);
  if (!config.filter.passes_all()) {
    sessions.source =
        std::make_unique<FilteredSource>(config.filter, std::move(sessions.source), sessions.name);
  }
  return sessions;
}

/// Of the sessions that will be run.
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

bool is_synthetic(const WorkloadConfig& config) {
  return config.generator == Generator::shared_prompts ||
         config.generator == Generator::long_contexts;
}

void check(const WorkloadConfig& config, const std::string& pointer, Problems& problems) {
  if (config.generator && config.trace) {
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
                     ? "missing key: Poisson arrivals need a rate"
                     : "missing key: gamma and Weibull arrivals need a rate");
  }
  if (config.arrival_cv != 1 && config.arrivals != ArrivalModel::gamma &&
      config.arrivals != ArrivalModel::weibull) {
    problems.add(pointer + "/arrival_cv",
                 fmt::format("not used: \"arrivals\" is \"{}\", expected gamma or weibull",
                             config.arrivals == ArrivalModel::trace ? "trace" : "poisson"));
  }
  if (config.speed_up != 1 && config.arrivals != ArrivalModel::trace && !is_logged(config)) {
    problems.add(pointer + "/speed_up",
                 "not used: neither are \"arrivals\" \"trace\", nor is the think time \"logged\"");
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
}

WorkloadSource::WorkloadSource(std::unique_ptr<SessionSource> sessions, const ImportReport* report,
                               std::string name, std::optional<std::int64_t> limit,
                               std::optional<Arrivals> arrivals, ThinkTimes think_times,
                               const SpeedUp& speed_up)
    : sessions_(std::move(sessions)),
      report_(report),
      name_(std::move(name)),
      limit_(limit),
      arrivals_(arrivals),
      think_times_(think_times),
      speed_up_(speed_up) {}

bool WorkloadSource::next(SessionSpec& session) {
  if (limit_ && given_ == *limit_) {
    return false;
  }
  if (!sessions_->next(session)) {
    if (limit_) {
      throw ConfigError(fmt::format(
          "{}: the trace ends after {} sessions, {} were asked for (\"sessions\": \"all\" "
          "takes what is there, \"replay\": \"bootstrap\" draws any number)",
          name_, given_, *limit_));
    }
    return false;
  }
  KVTIER_ASSERT(session.id == given_, "sessions are numbered by position");
  ++given_;
  if (arrivals_) {
    session.arrival = arrivals_->next();
  } else if (speed_up_.of_sessions != 1) {
    session.arrival = SimTime(faster(session.arrival.ns, speed_up_.of_sessions, name_));
  }
  if (speed_up_.of_turns != 1) {
    hasten(session, speed_up_.of_turns, name_);
  }
  think_times_.apply(session.turns);
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
    arrivals.emplace(config.arrivals, rate, config.arrival_cv, seed);
  } else {
    speed_up.of_sessions = config.speed_up;
  }
  if (is_logged(config)) {
    speed_up.of_turns = config.speed_up;
  }
  Sessions sessions = open(config, seed, base_dir);
  return std::make_unique<WorkloadSource>(std::move(sessions.source), sessions.report,
                                          sessions.name, config.sessions, arrivals,
                                          ThinkTimes(config.think_time, seed), speed_up);
}

}  // namespace kvtier
