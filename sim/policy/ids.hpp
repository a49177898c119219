#pragma once

#include <compare>
#include <cstdint>

namespace kvtier {

/// Dense number of a KV cache entry. Freed numbers are reused, so policies can index arrays with
/// it.
struct EntryId {
  std::uint32_t value = UINT32_MAX;

  friend constexpr auto operator<=>(EntryId, EntryId) = default;
  [[nodiscard]] constexpr bool valid() const { return value != UINT32_MAX; }
};
inline constexpr EntryId kNoEntry{};

/// The owner of an entry's KV. A key is not a session number: one session may have several entries,
/// and several sessions may own one.
struct EntryKey {
  std::uint64_t value = 0;

  friend constexpr auto operator<=>(EntryKey, EntryKey) = default;
};

/// Place of a request among those waiting: smaller is sooner. Positions are never reused, so the
/// distance from the queue's first position bounds the number of requests that run before.
struct QueuePosition {
  std::uint64_t value = UINT64_MAX;

  friend constexpr auto operator<=>(QueuePosition, QueuePosition) = default;
};
inline constexpr QueuePosition kNotQueued{};

}  // namespace kvtier
