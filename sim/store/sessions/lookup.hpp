#pragma once

#include <array>
#include <cstdint>

#include "sim/backend/backend.hpp"
#include "sim/core/units.hpp"

namespace kvtier {

/// Why an entry's KV (or part of it) is gone when its session comes back.
enum class LossCause : std::uint8_t {
  none,
  not_stored,        // the system keeps nothing across turns
  capacity,          // evicted from the last tier, or no room below
  ttl,               // not used for too long
  overflow,          // truncated away, or invalidated by truncation
  larger_than_tier,  // never fitted
  not_admitted       // refused by a tier's admission policy
};
inline constexpr std::size_t kLossCauses = 7;
[[nodiscard]] const char* to_string(LossCause cause);

/// The places where a turn's history was found.
struct Lookup {
  /// Tokens of the needed history whose KV is reused; 0: a miss.
  Tokens reused;
  /// Medium in which it was found. A fetch in flight counts for its destination.
  Medium medium = Medium::hbm;
  /// The fetch to the fastest tier is in flight: SessionStore::on_load_ready follows its end.
  bool late = false;
  /// Source of that fetch.
  Medium fetched_from = Medium::hbm;
  /// Why less than the whole history was found.
  LossCause cause = LossCause::none;
  /// Tokens of `reused` in faster media than `medium`, by medium.
  std::array<Tokens, kMedia> nearer{};

  /// Tokens that were in `medium` itself.
  [[nodiscard]] Tokens there() const {
    Tokens tokens = reused;
    for (const Tokens part : nearer) {
      tokens -= part;
    }
    return tokens;
  }
  /// Tokens of `reused` by medium.
  [[nodiscard]] std::array<Tokens, kMedia> by_medium() const {
    std::array<Tokens, kMedia> all = nearer;
    all[static_cast<std::size_t>(medium)] = there();
    return all;
  }
  [[nodiscard]] Tokens in_hbm() const { return nearer[static_cast<std::size_t>(Medium::hbm)]; }
};

/// Combines the look-ups of a turn's shared prompt and of its session's own history.
[[nodiscard]] Lookup combine(const Lookup& prompt, const Lookup& own);

}  // namespace kvtier
