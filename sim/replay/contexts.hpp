#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/core/streams.hpp"
#include "sim/engine/stored_kv.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// Says of which tokens the turns of a replay are: the contexts that the source names, or those of
/// a stream for each session, which forks from that of its shared prompt.
class Contexts {
 public:
  /// `source` outlives this.
  explicit Contexts(SessionSource& source)
      : named_(source.streams() != nullptr), streams_(named_ ? *source.streams() : own_) {}

  [[nodiscard]] Streams& streams() { return streams_; }
  /// Whether the source names the tokens of its turns.
  [[nodiscard]] bool named() const { return named_; }

  /// The turn's prompt, and what the turn leaves: KV of the response's last token is never
  /// computed. A response that the source does not name has a stream of its own, behind the prompt
  /// if that is named. `history` is what the turn needs, after a cut of `cut` tokens: behind a cut
  /// all tokens are in other places, so a new stream begins there, or behind the shared prompt.
  [[nodiscard]] TurnContent of(SessionSlot slot, const SessionSpec& session, std::size_t turn,
                               Tokens history, Tokens cut);
  /// The session has had its last turn.
  void end(SessionSlot slot);
  /// Takes the streams that no context will name again. They may be closed once nothing holds KV of
  /// them.
  [[nodiscard]] std::vector<StreamId> take_ended() { return std::exchange(ended_, {}); }

 private:
  StreamId open(const SessionSpec& session);

  bool named_;
  Streams own_;
  Streams& streams_;
  std::vector<StreamId> of_session_;
  /// By the prompt's id. Sessions to come may begin with it, so it does not end.
  std::unordered_map<std::int64_t, StreamId> prompts_;
  std::vector<StreamId> ended_;
};

}  // namespace kvtier
