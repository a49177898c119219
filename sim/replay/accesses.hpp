#pragma once

#include <cstdint>
#include <vector>

#include "sim/replay/access_order.hpp"
#include "sim/serving/contexts.hpp"

namespace kvtier {

/// part / whole, and 0 if `whole` is 0.
[[nodiscard]] inline double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// The turns of a source in the order of an untimed replay, each with its tokens.
class Accesses {
 public:
  /// Keeps references to both. Without a fitter there is no context window. `counts_blocks`: also
  /// counts statistics of blocks, which take 32 bytes per request. `goes_on` as in Contexts.
  Accesses(SessionSource& source, const TurnFitter* fitter, bool counts_blocks = false,
           bool goes_on = false)
      : order_(source, fitter, counts_blocks), contexts_(source, goes_on) {}

  /// Goes on to the next turn; false at the end.
  bool next() {
    leave();
    slot_ = order_.next(now_);
    if (!slot_) {
      return false;
    }
    AccessOrder::Live& live = order_.at(*slot_);
    cut_ = order_.fit_history(live);
    found_when_recorded_ =
        contexts_.named() ? live.session.found_when_recorded(live.next_turn) : Tokens(0);
    response_is_known_ =
        !contexts_.named() || live.session.contents[live.next_turn].whole.stream.valid();
    content_ = contexts_.of(*slot_, turn_tokens(live.session, live.next_turn, live.history, cut_));
    return true;
  }

  // The current turn.
  [[nodiscard]] SimTime now() const { return now_; }
  [[nodiscard]] const SessionSpec& session() { return live().session; }
  [[nodiscard]] std::size_t turn() { return live().next_turn; }
  [[nodiscard]] Tokens output() { return session().turns[turn()].assistant; }
  [[nodiscard]] const TurnContent& content() const { return content_; }
  /// Tokens that were cut from the history before it.
  [[nodiscard]] Tokens cut() const { return cut_; }
  /// Whether the source names the tokens of the response.
  [[nodiscard]] bool response_is_known() const { return response_is_known_; }

  /// Tokens at the prompt's start that the request does not ask for, because the recorded server
  /// had them (see SessionSpec).
  [[nodiscard]] Tokens found_when_recorded() const { return found_when_recorded_; }

  [[nodiscard]] bool named() const { return contexts_.named(); }
  [[nodiscard]] Streams& streams() { return contexts_.streams(); }
  /// Streams that neither this turn nor a later one names.
  [[nodiscard]] std::vector<StreamId> take_ended() { return contexts_.take_ended(); }
  /// Closes the ended streams that `remembers` does not claim any more.
  template <class Remembers>
  void close_ended(Remembers remembers) {
    contexts_.close_ended(remembers);
  }
  [[nodiscard]] const WorkloadStatistics& statistics() const { return order_.statistics(); }

 private:
  [[nodiscard]] AccessOrder::Live& live() { return order_.at(*slot_); }
  /// Ends the current turn, and its session after the last one.
  void leave() {
    if (!slot_) {
      return;
    }
    const Turn& turn = live().session.turns[live().next_turn];
    live().history += turn.user + turn.assistant;
    contexts_.end_turn(*slot_, !order_.advance(*slot_, now_));
  }

  AccessOrder order_;
  Contexts contexts_;
  std::optional<SessionSlot> slot_;
  SimTime now_;
  TurnContent content_;
  Tokens cut_;
  bool response_is_known_ = false;
  Tokens found_when_recorded_;
};

}  // namespace kvtier
