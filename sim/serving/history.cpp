#include "sim/serving/history.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

constexpr std::int64_t kMostMisfitsReported = 20;

/// A named prompt needs its history too, which no truncation shortens.
Tokens least_tokens(const SessionSpec& session, std::size_t turn) {
  const Turn& t = session.turns[turn];
  return t.assistant + (session.contents.empty() ? t.user : session.contents[turn].prompt.tokens);
}

}  // namespace

TurnFitter::TurnFitter(const RunConfig& config)
    : window_(config.model.context_window),
      clamp_(clamps_long_turns(config)),
      response_counts_(config.serving.overflow_trigger == OverflowTrigger::turn),
      dropped_share_(config.serving.truncation_ratio * (1 - config.serving.keep_important_share)),
      keep_first_tokens_(config.serving.keep_first_tokens) {}

void TurnFitter::fit_turns(SessionSpec& session, SessionSource& rest) const {
  const Tokens most = room(session);
  if (most < kLeastRoom) {
    report_misfits(session, rest);
  }
  for (std::size_t i = 0; i < session.turns.size(); ++i) {
    Turn& turn = session.turns[i];
    if (least_tokens(session, i) <= most) {
      continue;
    }
    if (!clamp_) {
      report_misfits(session, rest);
    }
    if (!session.contents.empty()) {
      clamp_named(session, i);
      continue;
    }
    turn.user = std::min(turn.user, std::max(Tokens(1), most / 2));
    turn.assistant = std::min(turn.assistant, most - turn.user);
  }
}

void TurnFitter::clamp_named(SessionSpec& session, std::size_t i) const {
  Turn& turn = session.turns[i];
  TurnContent& content = session.contents[i];
  turn.assistant = std::min(turn.assistant, window_ / 2);
  const Tokens prompt = std::min(content.prompt.tokens, window_ - turn.assistant);
  turn.user = std::max(Tokens(1), turn.user - (content.prompt.tokens - prompt));
  content = {.prompt = {content.prompt.stream, prompt}};
}

void TurnFitter::report_misfits(SessionSpec& session, SessionSource& rest) const {
  std::vector<std::string> problems;
  std::int64_t count = 0;
  bool long_turns = false;
  bool long_prompts = false;
  const auto add = [&](const std::string& problem) {
    if (++count <= kMostMisfitsReported) {
      problems.push_back(problem);
    }
  };
  do {
    const Tokens shared = session.shared_prompt.tokens;
    const Tokens most = room(session);
    if (most < kLeastRoom) {
      long_prompts = true;
      add(fmt::format(
          "/workload: session {}: expected a shared prompt of at most {} tokens ({} less "
          "than the context window), got {}",
          session.id, (window_ - kLeastRoom).value, kLeastRoom.value, shared.value));
      continue;
    }
    for (std::size_t i = 0; i < session.turns.size() && !clamp_; ++i) {
      const Tokens tokens = least_tokens(session, i);
      if (tokens > most) {
        long_turns = true;
        add(
            fmt::format("/workload: session {} turn {}: expected at most {} tokens (the context "
                        "window{}), got {}",
                        session.id, i, most.value,
                        shared.value > 0 ? " less the shared prompt" : "", tokens.value));
      }
    }
  } while (rest.next(session));
  if (count > kMostMisfitsReported) {
    problems.push_back(fmt::format("/workload: and {} more {}", count - kMostMisfitsReported,
                                   !long_prompts ? "turns longer than the context window"
                                   : long_turns  ? "of both"
                                                 : "shared prompts of that length"));
  }
  if (long_turns) {
    problems.push_back(
        "/serving/long_turn: \"clamp\" would shorten such turns to the context window");
  }
  throw ConfigError(std::move(problems));
}

Tokens TurnFitter::fit_history(Tokens& history, Tokens shared, Turn& turn) const {
  const Tokens own = turn.user + (response_counts_ ? turn.assistant : Tokens(1));
  const Tokens before = history;
  while (history > shared && history + own > window_) {
    const auto share =
        static_cast<std::int64_t>(static_cast<double>(history.value) * dropped_share_);
    const Tokens droppable = history - std::max(keep_first_tokens_, shared);
    // The kept first tokens go too when nothing else is left to drop, a shared prompt never.
    history -= droppable.value > 0 ? std::min(droppable, Tokens(std::max<std::int64_t>(1, share)))
                                   : history - shared;
  }
  turn.assistant = std::min(turn.assistant, window_ - history - turn.user);
  return before - history;
}

void refuse_named_tokens(const SystemConfig& system, SessionSource& source) {
  if (stores_sessions(system) && source.streams() != nullptr) {
    throw ConfigError(
        "/workload/trace: its requests share blocks, which only a system of blocks "
        "(/system/blocks) finds");
  }
}

Truncation truncation_of(const RequestRecord& request, const ServingConfig& serving) {
  const Tokens kept = std::max(serving.keep_first_tokens, request.shared);
  return {.kept = std::min(kept, request.history), .dropped = request.truncated};
}

}  // namespace kvtier
