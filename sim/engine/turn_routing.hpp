#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "sim/core/rng.hpp"
#include "sim/core/units.hpp"
#include "sim/engine/stored_kv.hpp"
#include "sim/engine/truncation.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// What happened to a session on other servers since its last turn here.
struct TurnsElsewhere {
  std::int64_t turns = 0;
  /// Of what is stored here; drops nothing if nothing was cut.
  Truncation cut;
};

/// Means of a server's measured turns, and of the turns elsewhere in the same time.
struct ResponseTimes {
  double served_seconds = 0;
  std::int64_t served = 0;
  double assumed_seconds = 0;
  std::int64_t assumed = 0;

  void merge(const ResponseTimes& other) {
    served_seconds += other.served_seconds;
    served += other.served;
    assumed_seconds += other.assumed_seconds;
    assumed += other.assumed;
  }
};

/// Which turns one of several replicas serves when every turn goes to a random one: by draws from
/// the stream "replicas/routing", in the order of the sessions and their turns, the same whichever
/// replica asks.
///
/// Replicas run one at a time, so no one knows what happens to a turn on another one. It is taken
/// to need from arrival to last token what the turn needed that finished last here; zero before the
/// first. Replicas are alike, so the mean is right; what is lost is that a turn's own length and a
/// queue that forms elsewhere say when the session comes back.
class TurnRouting final {
 public:
  TurnRouting(std::int64_t replica, std::int64_t count, std::uint64_t seed)
      : replica_(replica), count_(count), draws_(seed, "replicas/routing") {}

  /// Draws for the session's turns. Those after the last one here concern nobody here and are taken
  /// off. Says whether there are others.
  bool draw(SessionSpec& session) {
    drawn_.assign(session.turns.size(), false);
    std::size_t size = 0;
    for (std::size_t i = 0; i < drawn_.size(); ++i) {
      if (draws_.index(count_) == replica_) {
        drawn_[i] = true;
        size = i + 1;
        ++turns_here_;
      }
    }
    session.turns.resize(size);
    return size > 0;
  }
  /// The session drawn last begins.
  void begin(SessionSlot slot) {
    if (slot >= sessions_.size()) {
      sessions_.resize(static_cast<std::size_t>(slot) + 1);
    }
    sessions_[slot].is_here.swap(drawn_);
    sessions_[slot].elsewhere = {};
  }
  [[nodiscard]] bool is_here(SessionSlot slot, std::int64_t turn) const {
    return sessions_[slot].is_here[static_cast<std::size_t>(turn)];
  }
  /// A turn is elsewhere, its history cut so.
  void pass(SessionSlot slot, const Truncation& cut) {
    TurnsElsewhere& elsewhere = sessions_[slot].elsewhere;
    ++elsewhere.turns;
    if (cut.dropped.value > 0) {
      elsewhere.cut = elsewhere.cut.dropped.value > 0 ? elsewhere.cut.then(cut) : cut;
    }
  }
  /// What happened elsewhere before the turn here that begins.
  [[nodiscard]] TurnsElsewhere end_elsewhere(SessionSlot slot) {
    return std::exchange(sessions_[slot].elsewhere, {});
  }

  void note_served(SimDuration response, bool measured) {
    response_ = response;
    if (measured) {
      times_.served_seconds += response.seconds();
      ++times_.served;
    }
  }
  /// What a turn elsewhere takes that arrives now.
  [[nodiscard]] SimDuration assume_response(bool measured) {
    if (measured) {
      times_.assumed_seconds += response_.seconds();
      ++times_.assumed;
    }
    return response_;
  }

  /// Of all turns that were drawn.
  [[nodiscard]] std::int64_t turns_here() const { return turns_here_; }
  [[nodiscard]] const ResponseTimes& times() const { return times_; }
  /// Forgets the times so far.
  void restart_times() { times_ = {}; }

 private:
  struct Session {
    std::vector<bool> is_here;
    TurnsElsewhere elsewhere;
  };

  std::int64_t replica_;
  std::int64_t count_;
  RandomStream draws_;
  std::vector<bool> drawn_;
  std::vector<Session> sessions_;
  std::int64_t turns_here_ = 0;
  SimDuration response_;
  ResponseTimes times_;
};

}  // namespace kvtier
