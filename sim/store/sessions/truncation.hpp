#pragma once

#include <algorithm>

#include "sim/core/units.hpp"

namespace kvtier {

/// A cut in a history, and in what is stored of it: `dropped` tokens behind the first `kept` ones.
struct Truncation {
  Tokens kept;
  Tokens dropped;

  /// The tokens of a prefix that the cut leaves.
  [[nodiscard]] Tokens left_of(Tokens prefix) const {
    return prefix <= kept ? prefix : std::max(kept, prefix - dropped);
  }
};

}  // namespace kvtier
