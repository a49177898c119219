#pragma once

#include <cstdint>
#include <vector>

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

/// One conversation as a trace or a generator gives it.
struct SessionSpec {
  /// Position in the workload, from 0; unique.
  std::int64_t id = 0;
  /// When the first turn arrives.
  SimTime arrival;
  SharedPrompt shared_prompt{};
  std::vector<Turn> turns;
};

/// A stream of sessions in order of arrival; memory does not grow with the length of the stream.
class SessionSource {
 public:
  virtual ~SessionSource() = default;
  /// Overwrites `session` (its capacity is reused) with the next one; false when there is none
  /// left. Every session has at least one turn, and every turn at least one user and one assistant
  /// token. Throws ConfigError on malformed input, DeviceError if reading fails.
  virtual bool next(SessionSpec& session) = 0;
};

}  // namespace kvtier
