#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/streams.hpp"
#include "sim/core/units.hpp"

namespace kvtier {

/// One turn of a session: the user's new tokens, and a response of known length.
struct Turn {
  Tokens user;
  Tokens assistant;
  /// Time from the previous turn's last token to this turn's arrival; zero for the first turn. In
  /// logged workloads, the time since the previous turn's arrival.
  SimDuration think;
};

/// A shared prompt: tokens with which several sessions begin, such as a virtual assistant's system
/// prompt. They come before the first turn's user tokens and count in no turn.
struct SharedPrompt {
  /// Sessions with the same id have the same tokens.
  std::int64_t id = 0;
  /// Zero without a shared prompt.
  Tokens tokens{};
};

/// The tokens of a turn, if the source names them.
struct TurnContent {
  /// All tokens of the turn's prompt, with those of earlier turns.
  Context prompt;
  /// Prompt and response; no stream if the source does not name the response's tokens.
  Context whole{};
};

/// How a trace names the tokens of its turns: by blocks of `block` tokens. If `partial`, a prompt's
/// last block has a name even if it is not full.
struct NamedBlocks {
  Tokens block;
  bool partial = false;
};

/// One session of a trace or a generator.
struct SessionSpec {
  static constexpr std::int64_t kNoGroup = -1;

  /// Position in the workload, from 0; unique.
  std::int64_t id = 0;
  /// Number of the recorded session, if the source gives it in parts: single requests (an open
  /// loop), or an agent and its sub-agents. Either all sessions of a source have a group, or none.
  std::int64_t group = kNoGroup;
  /// Arrival of the first turn.
  SimTime arrival;
  SharedPrompt shared_prompt{};
  /// Position of the session's workload in a mix; else 0.
  std::int32_t workload_class = 0;
  /// Priority of its requests, for policies that use it: the smaller, the more urgent.
  std::int64_t priority = 0;
  std::vector<Turn> turns;
  /// Contents of the turns, in streams of the source. Empty: a turn's prompt is the history and its
  /// user tokens. Otherwise a turn's user tokens are the tokens of its prompt that the previous
  /// turn did not have, at least one. If a first turn has fewer user tokens than its prompt, the
  /// recorded server had the tokens before them; only the user tokens count as asked for.
  std::vector<TurnContent> contents;

  /// The same for all parts of a recorded session, for routers and counts of sessions.
  [[nodiscard]] std::int64_t identity() const { return group == kNoGroup ? id : group; }
  /// The tokens of a turn's prompt before its user tokens; needs contents.
  [[nodiscard]] Tokens named_history(std::size_t turn) const {
    return contents[turn].prompt.tokens - turns[turn].user;
  }
  /// The tokens of a turn's prompt that the recorded server had; needs contents.
  [[nodiscard]] Tokens found_when_recorded(std::size_t turn) const {
    return turn == 0 ? named_history(turn) : Tokens(0);
  }
};

/// A stream of sessions in order of arrival; memory does not grow with the length of the stream.
class SessionSource {
 public:
  virtual ~SessionSource() = default;
  /// Overwrites `session`, reusing its capacity, with the next session. False at the end. Every
  /// session has at least one turn, and every turn at least one user and one assistant token.
  /// Throws ConfigError on malformed input, DeviceError if reading fails.
  virtual bool next(SessionSpec& session) = 0;
  /// Overwrites `session` with the next session that the last session of `next` starts; false if
  /// there is none left. Its arrival is relative to that session's arrival, and its id is
  /// meaningless.
  virtual bool next_started(SessionSpec& /*session*/) { return false; }
  /// The streams of the contents, which live as long as the source; null if it names no tokens. A
  /// replay may open more streams, for responses.
  [[nodiscard]] virtual Streams* streams() { return nullptr; }
  [[nodiscard]] virtual std::optional<NamedBlocks> named_blocks() const { return std::nullopt; }
};

}  // namespace kvtier
