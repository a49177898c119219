#pragma once

#include <cstdint>

#include "sim/core/units.hpp"
#include "sim/engine/backend.hpp"
#include "sim/policy/ids.hpp"
#include "sim/policy/views.hpp"

namespace kvtier {

/// Why an entry's KV (or part of it) is gone when its session comes back.
enum class LossCause : std::uint8_t {
  none,
  not_stored,        // the system keeps nothing across turns
  capacity,          // evicted from the last tier, or no room below
  ttl,               // not used for too long
  overflow,          // truncated away, or invalidated by truncation
  larger_than_tier,  // never fitted
  not_admitted,      // refused by a tier's admission policy
  served_elsewhere   // never here: other servers had turns of the session since its last one here
};
inline constexpr std::size_t kLossCauses = 8;
[[nodiscard]] const char* to_string(LossCause cause);

enum class DecisionKind : std::uint8_t {
  insert,
  evict,
  demote,
  expire,
  invalidate,
  prefetch,
  drop_save
};
[[nodiscard]] const char* to_string(DecisionKind kind);

/// One decision about one entry in one tier, for the decision log.
struct Decision {
  DecisionKind kind;
  Medium tier;
  EntryKey key;
  Tokens tokens;
  SimTime time;
  /// What the room was needed for (evict, demote).
  Demand demand = Demand::save;
  QueuePosition position = kNotQueued;
};

/// Hears of decisions; every call is made at the time it is about.
class DecisionObserver {
 public:
  virtual ~DecisionObserver() = default;
  virtual void on_decision(const Decision& decision) = 0;
  /// The entry with this key was asked for.
  virtual void on_use(EntryKey key, SimTime now) = 0;
};

}  // namespace kvtier
