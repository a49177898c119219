#include "traces/agent_generator.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/core/assert.hpp"
#include "traces/arrivals.hpp"
#include "traces/rounding.hpp"

namespace kvtier {
namespace {

double draw(RandomStream& stream, const Lognormal& of) {
  return stream.lognormal(std::log(of.median), of.sigma);
}

std::int64_t draw_count(RandomStream& stream, const Lognormal& of, std::int64_t most) {
  return round_non_negative(std::clamp(draw(stream, of), 1.0, static_cast<double>(most)));
}

SimDuration draw_time(RandomStream& stream, const Lognormal& seconds) {
  return SimDuration(round_non_negative(
      std::min(draw(stream, seconds) * 1e9, static_cast<double>(kThinkTimeMax.ns))));
}

}  // namespace

Tokens least_context(const AgentParameters& p) {
  const Tokens prompt = p.subagents.fork == SubagentFork::own_prompt && p.subagents.share > 0
                            ? std::max(p.prompt_tokens_max, p.subagents.prompt_tokens)
                            : p.prompt_tokens_max;
  return prompt + p.summary_tokens + p.message_tokens_max + p.response_tokens_max;
}

AgentGenerator::AgentGenerator(const AgentParameters& parameters, std::uint64_t seed,
                               SharedStreams streams)
    : NamingGenerator(std::move(streams)),
      parameters_(parameters),
      popularity_(parameters.prompts, parameters.popularity_exponent),
      prompts_stream_(seed, "workload/shared_prompts"),
      turns_stream_(seed, "workload/turns"),
      lengths_stream_(seed, "workload/lengths"),
      times_stream_(seed, "workload/agent_times"),
      subagents_stream_(seed, "workload/subagents") {
  KVTIER_ASSERT(parameters.prompt_tokens_min <= parameters.prompt_tokens_max, "a range of lengths");
  KVTIER_ASSERT(least_context(parameters) <= parameters.context_max,
                "a compacted context has room for a request");
  RandomStream lengths(seed, "workload/shared_prompt_tokens");
  const std::int64_t range =
      (parameters.prompt_tokens_max - parameters.prompt_tokens_min).value + 1;
  for (std::int64_t i = 0; i < parameters.prompts; ++i) {
    prompts_.push_back({kNoStream, parameters.prompt_tokens_min + Tokens(lengths.index(range))});
  }
}

void AgentGenerator::add_requests(SessionSpec& session, const Context& fork, const Context& prompt,
                                  const Requests& requests, RandomStream& lengths,
                                  RandomStream& times) {
  const AgentParameters& p = parameters_;
  Context context = fork;
  StreamId stream = kNoStream;
  SimTime at;
  for (std::int64_t i = 0; i < requests.count; ++i) {
    const bool is_first = i == 0;
    const bool is_tool = !is_first && times.uniform() < requests.tool_share;
    const Tokens fresh(draw_count(lengths,
                                  is_first  ? requests.first_tokens
                                  : is_tool ? requests.tool_tokens
                                            : p.human_tokens,
                                  p.message_tokens_max.value));
    const Tokens response(draw_count(lengths, p.response_tokens, p.response_tokens_max.value));
    const SimDuration think =
        is_first ? SimDuration()
                 : draw_time(times, is_tool ? requests.tool_seconds : p.human_seconds);
    Tokens known = is_first ? Tokens(0) : context.tokens;
    if (context.tokens + fresh + response > p.context_max) {
      known = is_first ? Tokens(0) : prompt.tokens;
      context = prompt;
      stream = open(prompt);
      context.tokens += p.summary_tokens;
    } else if (!stream.valid()) {
      stream = open(fork);
    }
    context = {stream, context.tokens + fresh};
    add_turn(session, context, context.tokens - known, response, think);
    context.tokens += response;
    at = SimTime(std::min((at + think + p.response_time).ns, kTraceTimeNsMax));
    if (requests.starts_subagents && subagents_stream_.uniform() < p.subagents.share) {
      starts_.push_back({.at = at, .fork = context, .prompt = prompt});
    }
  }
}

bool AgentGenerator::next(SessionSpec& session) {
  const AgentParameters& p = parameters_;
  clear(session);
  session.id = generated_++;
  starts_.clear();
  started_ = 0;
  Context& prompt = prompts_[static_cast<std::size_t>(popularity_.draw(prompts_stream_))];
  if (!prompt.stream.valid()) {
    prompt.stream = open();
  }
  add_requests(session, prompt, prompt,
               {.count = draw_count(turns_stream_, p.requests, p.requests_max),
                .first_tokens = p.first_tokens,
                .tool_share = p.tool_share,
                .tool_tokens = p.tool_tokens,
                .tool_seconds = p.tool_seconds,
                .starts_subagents = p.subagents.share > 0},
               lengths_stream_, times_stream_);
  return true;
}

bool AgentGenerator::next_started(SessionSpec& session) {
  if (started_ == starts_.size()) {
    return false;
  }
  const SubagentParameters& p = parameters_.subagents;
  const Start& start = starts_[started_++];
  clear(session);
  session.arrival = start.at;
  Context fork = start.prompt;
  Context prompt = start.prompt;
  if (p.fork == SubagentFork::context) {
    fork = start.fork;
  } else if (p.fork == SubagentFork::own_prompt) {
    if (!subagent_prompt_.stream.valid()) {
      subagent_prompt_ = {open(), p.prompt_tokens};
    }
    fork = prompt = subagent_prompt_;
  }
  add_requests(session, fork, prompt,
               {.count = draw_count(subagents_stream_, p.requests, parameters_.requests_max),
                .first_tokens = p.task_tokens,
                .tool_tokens = p.tool_tokens,
                .tool_seconds = p.tool_seconds},
               subagents_stream_, subagents_stream_);
  return true;
}

}  // namespace kvtier
