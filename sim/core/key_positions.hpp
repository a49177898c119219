#pragma once

namespace kvtier {

/// When attention keys get their positional encoding (AttentionStore, section 3.4.2).
enum class KeyPositions {
  /// In attention. Stored keys have no positions, so they stay valid when the context before them
  /// is truncated.
  decoupled,
  /// Before they are stored. Truncation invalidates stored keys.
  embedded,
};

}  // namespace kvtier
