#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/streams.hpp"
#include "sim/core/units.hpp"

namespace kvtier {

/// One turn of a conversation: the user's tokens come in, a response of known length is generated.
struct Turn {
  Tokens user;
  Tokens assistant;
  /// Time from the previous turn's last token to this turn's arrival; zero for the first turn. In
  /// logged workloads, from the previous turn's arrival.
  SimDuration think;
};

/// Tokens that several sessions begin with, word for word, such as a virtual assistant's system
/// prompt. They come before the first turn's user tokens and count in no turn.
struct SharedPrompt {
  /// Sessions with the same id have the same tokens.
  std::int64_t id = 0;
  /// Zero: none.
  Tokens tokens{};
};

/// The tokens of a turn, where a trace names them.
struct TurnContent {
  /// All tokens that the turn's prefill needs KV of, those of earlier turns included.
  Context prompt;
  /// With the response's behind them; no stream if the trace does not name those.
  Context whole{};
};

/// How a trace names the tokens of its turns: by blocks of so many, of which the last one of a
/// prompt may have a name although it is not full.
struct NamedBlocks {
  Tokens block;
  bool partial = false;
};

/// One conversation as a trace or a generator gives it.
struct SessionSpec {
  /// Position in the workload, from 0; unique.
  std::int64_t id = 0;
  /// When the first turn arrives.
  SimTime arrival;
  SharedPrompt shared_prompt{};
  /// In a mix of workloads, the position of its own one; else 0.
  std::int32_t workload_class = 0;
  /// The priority of its requests, for orders that go by it: the smaller, the more urgent.
  std::int64_t priority = 0;
  std::vector<Turn> turns;
  /// One for each turn, in streams of the source; empty: a turn's prompt is the session so far and
  /// its user tokens. If there are some, a turn's user tokens are those of its prompt that the
  /// session's turn before did not have, one at least. If a first turn has fewer user tokens than
  /// its prompt, the server that the trace was recorded on had the tokens before them: requests of
  /// such a trace count as asking for the others alone.
  std::vector<TurnContent> contents;

  /// The tokens of a turn's prompt before its user tokens, where contents say so.
  [[nodiscard]] Tokens named_history(std::size_t turn) const {
    return contents[turn].prompt.tokens - turns[turn].user;
  }
  /// The tokens of a turn's prompt that the recording server had, where contents say so.
  [[nodiscard]] Tokens found_when_recorded(std::size_t turn) const {
    return turn == 0 ? named_history(turn) : Tokens(0);
  }
};

/// A stream of sessions in order of arrival; memory does not grow with the length of the stream.
class SessionSource {
 public:
  virtual ~SessionSource() = default;
  /// Overwrites `session` (its capacity is reused) with the next one; false when there is none
  /// left. Every session has at least one turn, and every turn at least one user and one assistant
  /// token. Throws ConfigError on malformed input, DeviceError if reading fails.
  virtual bool next(SessionSpec& session) = 0;
  /// Overwrites `session` with a session that the one given last starts; false when there is none
  /// left. Its arrival is the time since that one's, and its id means nothing.
  virtual bool next_started(SessionSpec& /*session*/) { return false; }
  /// The streams that contents are of, which live as long as the source; null if it names none.
  /// A replay may open further ones, for responses.
  [[nodiscard]] virtual Streams* streams() { return nullptr; }
  [[nodiscard]] virtual std::optional<NamedBlocks> named_blocks() const { return std::nullopt; }
};

}  // namespace kvtier
