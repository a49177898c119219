#pragma once

#include "sim/serving/config.hpp"
#include "sim/serving/metrics.hpp"
#include "sim/store/sessions/stored_kv.hpp"
#include "sim/store/sessions/truncation.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// Makes turns and histories fit the context window. A history that overflows it loses a share
/// of its tokens (AttentionStore, arXiv 2403.19708, section 3.4).
class TurnFitter {
 public:
  explicit TurnFitter(const RunConfig& config);

  /// Clamps turns longer than what a shared prompt leaves of the window, or throws ConfigError
  /// naming every such turn of this session and of all that `rest` still gives (up to a bound).
  /// Also for a shared prompt that leaves no room for a turn.
  void fit_turns(SessionSpec& session, SessionSource& rest) const;

  /// Cuts `history`, of which the first `shared` tokens are a shared prompt, until the turn fits;
  /// returns the tokens cut. The turn's response ends at the window.
  Tokens fit_history(Tokens& history, Tokens shared, Turn& turn) const;

 private:
  [[nodiscard]] Tokens room(const SessionSpec& session) const {
    return window_ - session.shared_prompt.tokens;
  }
  /// The end of the prompt goes, and so its response is not that of the trace.
  void clamp_named(SessionSpec& session, std::size_t turn) const;
  [[noreturn]] void report_misfits(SessionSpec& session, SessionSource& rest) const;

  Tokens window_;
  bool clamp_;
  bool response_counts_;
  /// Share of the history that one truncation drops: important tokens stay.
  double dropped_share_;
  Tokens keep_first_tokens_;
};

/// Throws ConfigError for a source that names the tokens of its turns, if the system stores the KV
/// of sessions, which does not find the tokens that they share.
void refuse_named_tokens(const SystemConfig& system, SessionSource& source);

/// How the history of `request` was cut. The kept first tokens are the shared prompt at least;
/// those of them that went too, because nothing else was left, count as dropped.
[[nodiscard]] Truncation truncation_of(const RequestRecord& request, const ServingConfig& serving);

/// Why a part of the request's history is missing where systems store KV in blocks: behind a cut
/// all tokens are in other places, unless KV is kept there.
[[nodiscard]] inline LossCause cause_of_missing(const RequestRecord& request,
                                                bool keeps_kv_behind_cuts) {
  return request.truncated.value > 0 && !keeps_kv_behind_cuts ? LossCause::overflow
                                                              : LossCause::capacity;
}

/// The part of a session's own KV that a turn needs: its history without a separately stored
/// prompt.
[[nodiscard]] inline Tokens own_history(const RequestRecord& request, const SystemConfig& system) {
  return request.history - (system.sharing == Sharing::prompts ? request.shared : Tokens(0));
}

/// Applies the request's cut to the KV that `store` has of its session. With decoupled positions
/// the KV that is left stays valid, with embedded ones none does (AttentionStore 3.4).
template <class Store>
void truncate_stored(Store& store, SessionSlot session, const RunConfig& config,
                     const RequestRecord& request) {
  if (request.truncated.value == 0) [[likely]] {
    return;
  }
  const Tokens own = own_history(request, config.system);
  if (own.value == 0 || config.system.positions == KeyPositions::embedded) {
    store.invalidate(session, LossCause::overflow);
  } else {
    Truncation cut = truncation_of(request, config.serving);
    cut.kept = cut.kept - (request.history - own);  // a shared prompt is stored apart
    store.truncate(session, cut);
  }
}

}  // namespace kvtier
