#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/core/rng.hpp"
#include "sim/core/units.hpp"
#include "traces/naming_generator.hpp"
#include "traces/popularity.hpp"

namespace kvtier {

/// The tokens with which a sub-agent's first prompt begins.
enum class SubagentFork {
  own_prompt,     // a prompt that all sub-agents share
  shared_prompt,  // its caller's shared prompt
  context,        // its caller's context up to the response that starts it
};
constexpr auto enum_names(SubagentFork) {
  return std::array{
      std::pair<std::string_view, SubagentFork>{"own_prompt", SubagentFork::own_prompt},
      std::pair<std::string_view, SubagentFork>{"shared_prompt", SubagentFork::shared_prompt},
      std::pair<std::string_view, SubagentFork>{"context", SubagentFork::context}};
}

/// A positive quantity whose logarithm is normal.
struct Lognormal {
  double median = 1;
  double sigma = 0;
};
template <class V>
void describe(V& v, Lognormal& c) {
  v.field("median", c.median, "Median, in tokens, requests or seconds.",
          {.minimum = 0, .maximum = 1e9, .minimum_excluded = true});
  v.field("sigma", c.sigma, "Standard deviation of the logarithm.", between(0, 10));
}

struct SubagentParameters {
  double share = 0.0013;
  SubagentFork fork = SubagentFork::own_prompt;
  Tokens prompt_tokens{9984};
  Lognormal requests{.median = 11, .sigma = 0.5};
  Lognormal task_tokens{.median = 201, .sigma = 1.07};
  Lognormal tool_tokens{.median = 2259, .sigma = 1.55};
  Lognormal tool_seconds{.median = 4, .sigma = 0.95};
};
template <class V>
void describe(V& v, SubagentParameters& c) {
  v.field("share", c.share, "Share of the requests whose response starts a sub-agent.",
          between(0, 1));
  v.field("fork", c.fork,
          "Start of a sub-agent's first prompt: own_prompt (tokens that all sub-agents share), "
          "shared_prompt (its caller's) or context (all of its caller's context).");
  v.field("prompt_tokens", c.prompt_tokens, "Tokens of the own_prompt.", between(1, 1e7));
  v.field("requests", c.requests, "Requests of a sub-agent.");
  v.field("task_tokens", c.task_tokens, "New tokens of its first request.");
  v.field("tool_tokens", c.tool_tokens, "New tokens of its other requests, tool results.");
  v.field("tool_seconds", c.tool_seconds,
          "Seconds from its response to the request with the tool result.");
}

/// Parameters of AgentGenerator. The defaults are fitted to the coding agents of callanjfox's
/// kv-cache-tester (commit 94f6046, Apache-2.0): 710 sessions of 48,658 requests, and 63 sub-agents
/// of 676. Quantiles (p50, p90, p99) of the traces, and of these defaults:
///
///     requests of a session       45, 156, 330        45, 184, 560
///     first tokens                4.0K, 20K, 45K      4.0K, 18K, 59K
///     tokens of a tool result     292, 2.9K, 15K      292, 2.7K, 17K
///     tokens of a human text      193, 2.0K, 13K      193, 1.7K, 10K
///     tokens of a response        216, 899, 3.7K      216, 885, 2.8K
///     tool time, s                9, 74, 924          9, 46, 177
///     human think time, s         121, 1506, 6854     121, 1125, 6930
///
/// First tokens are the tokens after the shared prompt, in the 60 % of the sessions that have less
/// than 50K of them. 86.5 % of the later requests bring a tool result. There are 83 tool prompts,
/// the most frequent one in 11.7 % and the next in 6.8 % of the sessions. With the system prompt
/// they have 11.9K (p10) to 15.9K tokens (p90). Contexts are compacted at 152K tokens (p50 of 187)
/// to the shared prompt and 20K. A cache without limits finds 98 % of the prompt tokens of these
/// defaults, and 96 % of those of the traces.
///
/// Not modelled: sessions whose log begins in their middle, bursts of tool results (6.8 requests
/// follow a human text on average, but 2 in the median), tools that wait for a human, and the
/// concentration of all sub-agents in 17 sessions.
struct AgentParameters {
  std::int64_t prompts = 83;
  double popularity_exponent = 0.75;
  Tokens prompt_tokens_min{11900};
  Tokens prompt_tokens_max{15900};
  Lognormal requests{.median = 45, .sigma = 1.1};
  std::int64_t requests_max = 560;
  Lognormal first_tokens{.median = 4000, .sigma = 1.16};
  double tool_share = 0.865;
  Lognormal tool_tokens{.median = 292, .sigma = 1.75};
  Lognormal human_tokens{.median = 193, .sigma = 1.7};
  Lognormal response_tokens{.median = 216, .sigma = 1.1};
  Tokens message_tokens_max{65536};
  Tokens response_tokens_max{16384};
  Lognormal tool_seconds{.median = 9, .sigma = 1.28};
  Lognormal human_seconds{.median = 121, .sigma = 1.74};
  Tokens context_max{155000};
  Tokens summary_tokens{20000};
  SubagentParameters subagents{};
  SimDuration response_time{std::int64_t{9} * 1000000000};
};

template <class V>
void describe(V& v, AgentParameters& c) {
  const auto tokens = between(1, 1e7);
  v.field("prompts", c.prompts, "Number of different shared prompts (tools and system).",
          between(1, 1e6));
  v.field("popularity_exponent", c.popularity_exponent,
          "Zipf exponent of their popularity: a session begins with the prompt of rank k with a "
          "probability proportional to k^-exponent.",
          between(0, 10));
  v.field("prompt_tokens_min", c.prompt_tokens_min, "Tokens of the shortest shared prompt.",
          tokens);
  v.field("prompt_tokens_max", c.prompt_tokens_max,
          "Tokens of the longest shared prompt; lengths in between are equally likely.", tokens);
  v.field("requests", c.requests, "Requests of a session.");
  v.field("requests_max", c.requests_max, "Most requests of a session.", between(1, 1e6));
  v.field("first_tokens", c.first_tokens,
          "Tokens of a session's first request after the shared prompt.");
  v.field("tool_share", c.tool_share,
          "Share of the later requests that bring a tool result instead of a human text.",
          between(0, 1));
  v.field("tool_tokens", c.tool_tokens, "New tokens of a tool result.");
  v.field("human_tokens", c.human_tokens, "New tokens of a human text.");
  v.field("response_tokens", c.response_tokens, "Tokens of a response.");
  v.field("message_tokens_max", c.message_tokens_max, "Most new tokens of a request.", tokens);
  v.field("response_tokens_max", c.response_tokens_max, "Most tokens of a response.", tokens);
  v.field("tool_seconds", c.tool_seconds,
          "Seconds from a response to the request with the tool result.");
  v.field("human_seconds", c.human_seconds,
          "Seconds from a response to the request with the human text.");
  v.field("context_max", c.context_max,
          "Longest context, with its response; a context that would exceed it is compacted.",
          tokens);
  v.field("summary_tokens", c.summary_tokens,
          "Tokens of the summary. A compacted context is the shared prompt, the summary, and the "
          "new tokens of the request.",
          tokens);
  v.field("subagents", c.subagents, "Sub-agents, which are sessions of their own.");
  v.field("response_time", c.response_time,
          "Assumed time of a response, after which the sub-agents that it starts begin.",
          between(0, 1e12));
}

/// Synthetic sessions of agents, without end. A session begins with one of a few shared prompts.
/// Each further request brings a tool result or a human text, each with its own times. The context
/// grows until it is compacted: it becomes the shared prompt and a new summary. The request that
/// writes the summary is not generated.
///
/// Sub-agents are sessions that another session starts (`next_started`). They begin at the end of
/// the response that starts them, if all responses take `response_time`. Their callers do not wait
/// for them. They start no sub-agents.
///
/// A context is a stream, which forks from its shared prompt or from its caller's stream. A
/// compacted context is a new stream. Draws from the streams "workload/shared_prompts",
/// "workload/shared_prompt_tokens", "workload/turns", "workload/lengths", "workload/agent_times"
/// and "workload/subagents".
class AgentGenerator final : public NamingGenerator {
 public:
  AgentGenerator(const AgentParameters& parameters, std::uint64_t seed, SharedStreams streams);

  bool next(SessionSpec& session) override;
  bool next_started(SessionSpec& session) override;

 private:
  /// A sub-agent that `next_started` will return.
  struct Start {
    SimTime at;
    Context fork;
    /// The caller's prompt.
    Context prompt;
  };
  /// The requests of one session.
  struct Requests {
    std::int64_t count = 0;
    Lognormal first_tokens;
    double tool_share = 1;
    Lognormal tool_tokens;
    Lognormal tool_seconds;
    bool starts_subagents = false;
  };
  /// Adds the requests. The context begins with `fork`, and after a compaction with `prompt`.
  void add_requests(SessionSpec& session, const Context& fork, const Context& prompt,
                    const Requests& requests, RandomStream& lengths, RandomStream& times);

  AgentParameters parameters_;
  Popularity popularity_;
  RandomStream prompts_stream_;
  RandomStream turns_stream_;
  RandomStream lengths_stream_;
  RandomStream times_stream_;
  RandomStream subagents_stream_;
  /// By shared prompt; no stream before its first session.
  std::vector<Context> prompts_;
  Context subagent_prompt_;
  std::vector<Start> starts_;
  std::size_t started_ = 0;
  std::int64_t generated_ = 0;
};

/// The longest context that one request may have, before it has a history.
[[nodiscard]] Tokens least_context(const AgentParameters& parameters);

}  // namespace kvtier
