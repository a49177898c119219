#pragma once

#include <cstdint>

#include "sim/policy/views.hpp"

namespace kvtier {

/// Dense number of a live session; freed numbers are used again.
using SessionSlot = std::uint32_t;

/// Keys of shared prompts are apart from those of sessions, which are their numbers.
inline constexpr std::uint64_t kPromptKey = std::uint64_t{1} << 63;
[[nodiscard]] constexpr EntryKey prompt_key(std::int64_t prompt) {
  return {kPromptKey | static_cast<std::uint64_t>(prompt)};
}

/// The queue's queries about the stored KV of its sessions.
class StoredKv {
 public:
  virtual ~StoredKv() = default;
  /// The stored entry that the session's next turn needs; kNoEntry if there is none.
  [[nodiscard]] virtual EntryId needed_entry(SessionSlot session) const = 0;
  [[nodiscard]] virtual Placement placement(SessionSlot session) const = 0;
  /// As QueueView::find and common_prefix.
  [[nodiscard]] virtual FoundTokens find(SessionSlot) const { return {}; }
  [[nodiscard]] virtual Tokens common_prefix(SessionSlot, SessionSlot) const { return Tokens(0); }
};

}  // namespace kvtier
