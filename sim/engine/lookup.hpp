#pragma once

#include <cstdint>

#include "sim/core/units.hpp"
#include "sim/engine/backend.hpp"

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

/// Where a turn's history was found.
struct Lookup {
  /// Tokens of the needed history whose KV is reused; 0: a miss.
  Tokens reused;
  /// Where it was found. A fetch in flight counts for its destination.
  Medium medium = Medium::hbm;
  /// The fetch that brings it nearer is still in flight: load_ready is heard of when it is done.
  bool late = false;
  /// Where that fetch comes from.
  Medium fetched_from = Medium::hbm;
  /// Why less than the whole history was found.
  LossCause cause = LossCause::none;
  /// Of `reused`, a head that was in HBM already while the rest was in `medium`.
  Tokens nearer;
};

/// What was found of a turn's shared prompt and of its session's own history.
[[nodiscard]] Lookup together(const Lookup& prompt, const Lookup& own);

}  // namespace kvtier
