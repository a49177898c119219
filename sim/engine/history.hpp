#pragma once

#include "sim/engine/config.hpp"
#include "sim/engine/tier_manager.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// Makes turns and histories fit the context window (model.md section 2).
class TurnFitter {
 public:
  explicit TurnFitter(const RunConfig& config);

  /// Clamps turns longer than the window, or throws ConfigError naming every such turn of this
  /// session and of all that `rest` still gives (up to a bound).
  void fit_turns(SessionSpec& session, SessionSource& rest) const;

  /// Cuts `history` until the turn fits; returns the tokens cut. The turn's response ends at the
  /// window.
  Tokens fit_history(Tokens& history, Turn& turn) const;

 private:
  [[noreturn]] void report_long_turns(SessionSpec& session, SessionSource& rest) const;

  Tokens window_;
  bool clamp_;
  bool response_counts_;
  /// Of the history, by one truncation: important tokens stay.
  double dropped_share_;
  Tokens keep_first_tokens_;
};

/// Does to the stored KV what truncating a history by `truncated` tokens does: with decoupled
/// positions what is left stays valid, with embedded ones nothing does (AttentionStore 3.4).
void truncate_stored(TierManager& tiers, SessionSlot session, const RunConfig& config,
                     Tokens truncated, Tokens history_left);

}  // namespace kvtier
