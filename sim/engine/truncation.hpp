#pragma once

#include <algorithm>

#include "sim/core/units.hpp"

namespace kvtier {

/// A cut in a history, and in what is stored of it: `dropped` tokens behind the first `kept` ones.
struct Truncation {
  Tokens kept;
  Tokens dropped;

  /// What the cut leaves of a prefix.
  [[nodiscard]] Tokens left_of(Tokens prefix) const {
    return prefix <= kept ? prefix : std::max(kept, prefix - dropped);
  }

  /// This cut and then `later`, of what was stored before both, tokens having come behind it in
  /// between. Where they keep different numbers of first tokens, the one that keeps fewer left
  /// nothing else.
  [[nodiscard]] Truncation then(const Truncation& later) const {
    return {.kept = std::min(kept, later.kept), .dropped = dropped + later.dropped};
  }
};

}  // namespace kvtier
