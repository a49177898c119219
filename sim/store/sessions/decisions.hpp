#pragma once

#include <cstdint>

#include "sim/backend/backend.hpp"
#include "sim/core/units.hpp"
#include "sim/policy/ids.hpp"
#include "sim/policy/views.hpp"

namespace kvtier {

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
  /// The reason for the room (evict, demote).
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
