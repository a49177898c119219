#pragma once

#include <optional>
#include <vector>

#include "sim/core/event_queue.hpp"
#include "sim/serving/history.hpp"
#include "sim/store/sessions/stored_kv.hpp"
#include "traces/statistics.hpp"

namespace kvtier {

/// The order of accesses of an untimed replay: turns come at the session's arrival plus think
/// times. It holds the sessions that overlap, each at its next access.
class AccessOrder {
 public:
  struct Live {
    SessionSpec session;
    std::size_t next_turn = 0;
    Tokens history;
  };

  /// Keeps references to both. Without a fitter there is no context window. A source that names its
  /// tokens has the window of its trace.
  AccessOrder(SessionSource& source, const TurnFitter* fitter, bool counts_blocks = false)
      : source_(source), fitter_(source.streams() == nullptr ? fitter : nullptr) {
    if (counts_blocks) {
      statistics_.count_blocks(source);
    }
    draw();
  }

  /// The slot of the session with the next access, or nullopt at the end.
  std::optional<SessionSlot> next(SimTime& now) {
    if (has_drawn_ && (events_.empty() || drawn_.arrival <= events_.top().time)) {
      const SessionSlot slot = take_slot();
      live_[slot].session.turns.swap(drawn_.turns);
      live_[slot].session.contents.swap(drawn_.contents);
      live_[slot].session.id = drawn_.id;
      live_[slot].session.group = drawn_.group;
      live_[slot].session.shared_prompt = drawn_.shared_prompt;
      live_[slot].session.workload_class = drawn_.workload_class;
      live_[slot].next_turn = 0;
      live_[slot].history = drawn_.shared_prompt.tokens;
      now = drawn_.arrival;
      draw();
      return slot;
    }
    if (events_.empty()) {
      return std::nullopt;
    }
    const TimedEvent event = events_.pop();
    now = event.time;
    return static_cast<SessionSlot>(event.payload);
  }

  [[nodiscard]] Live& at(SessionSlot slot) { return live_[slot]; }

  /// Time of the session's next access after this one; kNever if this is its last.
  [[nodiscard]] SimTime next_use(SessionSlot slot, SimTime now) const {
    const Live& live = live_[slot];
    return live.next_turn + 1 < live.session.turns.size()
               ? now + live.session.turns[live.next_turn + 1].think
               : kNever;
  }

  /// Schedules the session's next access; false if that was its last one.
  bool advance(SessionSlot slot, SimTime now) {
    Live& live = live_[slot];
    if (++live.next_turn == live.session.turns.size()) {
      free_.push_back(slot);
      return false;
    }
    events_.push(now + live.session.turns[live.next_turn].think, 0, slot);
    return true;
  }

  [[nodiscard]] const WorkloadStatistics& statistics() const { return statistics_; }
  /// Makes the history of the next turn of a session fit the context window; returns the tokens
  /// cut. A source that names its tokens gives the history.
  Tokens fit_history(Live& live) const {
    if (!live.session.contents.empty()) {
      live.history = live.session.named_history(live.next_turn);
    }
    return fitter_ == nullptr
               ? Tokens(0)
               : fitter_->fit_history(live.history, live.session.shared_prompt.tokens,
                                      live.session.turns[live.next_turn]);
  }

 private:
  void draw() {
    has_drawn_ = source_.next(drawn_);
    if (has_drawn_) {
      if (fitter_ != nullptr) {
        fitter_->fit_turns(drawn_, source_);
      }
      statistics_.add(drawn_);
    }
  }
  SessionSlot take_slot() {
    if (free_.empty()) {
      live_.emplace_back();
      return static_cast<SessionSlot>(live_.size() - 1);
    }
    const SessionSlot slot = free_.back();
    free_.pop_back();
    return slot;
  }

  SessionSource& source_;
  const TurnFitter* fitter_;
  SessionSpec drawn_;
  bool has_drawn_ = false;
  std::vector<Live> live_;
  std::vector<SessionSlot> free_;
  EventQueue events_;
  WorkloadStatistics statistics_;
};

}  // namespace kvtier
