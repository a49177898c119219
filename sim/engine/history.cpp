#include "sim/engine/history.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

constexpr std::int64_t kMostLongTurnsReported = 20;

}  // namespace

TurnFitter::TurnFitter(const RunConfig& config)
    : window_(config.model.context_window),
      clamp_(clamps_long_turns(config)),
      response_counts_(config.serving.overflow_trigger == OverflowTrigger::turn),
      dropped_share_(config.serving.truncation_ratio * (1 - config.serving.keep_important_share)),
      keep_first_tokens_(config.serving.keep_first_tokens) {}

void TurnFitter::fit_turns(SessionSpec& session, SessionSource& rest) const {
  for (Turn& turn : session.turns) {
    if (turn.user + turn.assistant <= window_) {
      continue;
    }
    if (!clamp_) {
      report_long_turns(session, rest);
    }
    turn.user = std::min(turn.user, std::max(Tokens(1), window_ / 2));
    turn.assistant = std::min(turn.assistant, window_ - turn.user);
  }
}

void TurnFitter::report_long_turns(SessionSpec& session, SessionSource& rest) const {
  std::vector<std::string> problems;
  std::int64_t count = 0;
  do {
    for (std::size_t i = 0; i < session.turns.size(); ++i) {
      const Tokens tokens = session.turns[i].user + session.turns[i].assistant;
      if (tokens > window_ && ++count <= kMostLongTurnsReported) {
        problems.push_back(
            fmt::format("/workload: session {} turn {}: expected at most {} tokens (the context "
                        "window), got {}",
                        session.id, i, window_.value, tokens.value));
      }
    }
  } while (rest.next(session));
  if (count > kMostLongTurnsReported) {
    problems.push_back(fmt::format("/workload: and {} more turns longer than the context window",
                                   count - kMostLongTurnsReported));
  }
  problems.push_back(
      "/serving/long_turn: \"clamp\" would shorten such turns to the context window");
  throw ConfigError(std::move(problems));
}

Tokens TurnFitter::fit_history(Tokens& history, Turn& turn) const {
  const Tokens own = turn.user + (response_counts_ ? turn.assistant : Tokens(1));
  const Tokens before = history;
  while (history.value > 0 && history + own > window_) {
    const auto share =
        static_cast<std::int64_t>(static_cast<double>(history.value) * dropped_share_);
    const Tokens droppable = history - keep_first_tokens_;
    // The kept first tokens go too when nothing else is left to drop.
    history -= droppable.value > 0 ? std::min(droppable, Tokens(std::max<std::int64_t>(1, share)))
                                   : history;
  }
  turn.assistant = std::min(turn.assistant, window_ - history - turn.user);
  return before - history;
}

void truncate_stored(TierManager& tiers, SessionSlot session, const RunConfig& config,
                     Tokens truncated, Tokens history_left) {
  if (truncated.value == 0) {
    return;
  }
  if (config.system.positions == Positions::embedded || history_left.value == 0) {
    tiers.invalidate(session, LossCause::overflow);
  } else {
    tiers.truncate(session, truncated);
  }
}

}  // namespace kvtier
