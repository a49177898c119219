#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/core/streams.hpp"
#include "sim/store/sessions/stored_kv.hpp"
#include "sim/store/store.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// All that a turn's tokens follow from.
struct TurnTokens {
  SharedPrompt shared_prompt{};
  /// If the source names tokens.
  TurnContent named{};
  /// It is the first of its session.
  bool first = false;
  /// All that it needs but its own input.
  Tokens history;
  Tokens input;
  Tokens output;
  /// Cut from the history before it.
  Tokens cut;
};
[[nodiscard]] TurnTokens turn_tokens(const SessionSpec& session, std::size_t turn, Tokens history,
                                     Tokens cut);

/// Says of which tokens the turns of a run are: the contexts that the source names, or those of
/// a stream for each session, which forks from that of its shared prompt.
class Contexts {
 public:
  /// `source` outlives this. `goes_on`: a session whose history is cut goes on in its stream, from
  /// which the same tokens are cut (Store::cut).
  explicit Contexts(SessionSource& source, bool goes_on = false)
      : named_(source.streams() != nullptr),
        goes_on_(goes_on),
        streams_(named_ ? *source.streams() : own_) {}

  [[nodiscard]] Streams& streams() { return streams_; }
  [[nodiscard]] const Streams& streams() const { return streams_; }
  /// Whether the source names the tokens of its turns.
  [[nodiscard]] bool named() const { return named_; }

  /// The turn's prompt, and what the turn leaves: KV of the response's last token is never
  /// computed. A response that the source does not name has a stream of its own, behind the prompt
  /// if that is named. Behind a cut all tokens are in other places, so a new stream begins there,
  /// or behind the shared prompt, if the session does not go on in its stream.
  [[nodiscard]] TurnContent of(SessionSlot slot, const TurnTokens& turn);
  /// The turn has ended, and its session, if that was its last one.
  void end_turn(SessionSlot slot, bool is_last);
  /// Takes the streams that no context will name again. They may be closed once nothing holds KV of
  /// them.
  [[nodiscard]] std::vector<StreamId> take_ended() { return std::exchange(ended_, {}); }
  /// Closes those of them of which the store has nothing left.
  void close_ended(const Store& store) {
    close_ended([&](StreamId stream) { return store.remembers(stream); });
  }
  /// The same of several stores. `remembers` says whether one of them has something of a stream.
  template <class Remembers>
  void close_ended(Remembers remembers) requires std::is_invocable_v<Remembers, StreamId> {
    if (ended_.size() < sweep_at_) {
      return;
    }
    std::erase_if(ended_, [&](StreamId stream) {
      const bool gone = streams_.children(stream) == 0 && !remembers(stream);
      if (gone) {
        streams_.close(stream);
      }
      return gone;
    });
    sweep_at_ = std::max(kFirstSweep, 2 * ended_.size());
  }

 private:
  StreamId open(const SharedPrompt& shared);

  bool named_;
  bool goes_on_;
  Streams own_;
  Streams& streams_;
  /// The session's stream, or that of its turn's response if the source names tokens but not those.
  std::vector<StreamId> of_session_;
  /// By the prompt's id. Sessions to come may begin with it, so it does not end.
  std::unordered_map<std::int64_t, StreamId> prompts_;
  static constexpr std::size_t kFirstSweep = 4096;
  std::vector<StreamId> ended_;
  std::size_t sweep_at_ = kFirstSweep;
};

}  // namespace kvtier
