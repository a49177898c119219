#pragma once

namespace kvtier {

/// When keys get their positions (AttentionStore, section 3.4.2).
enum class KeyPositions {
  /// In attention, from their place in the context; stored keys have none, and stay valid when the
  /// context in front of them is truncated.
  decoupled,
  /// Before they are stored; truncation invalidates what is stored.
  embedded,
};

}  // namespace kvtier
