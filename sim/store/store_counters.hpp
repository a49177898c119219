#pragma once

#include <cstdint>

#include "sim/core/histogram.hpp"
#include "sim/core/units.hpp"

/// Counters of a store of KV.
namespace kvtier {

/// Counters of a tier so far.
struct TierCounters {
  std::int64_t evictions = 0;  // entries that left because room was needed, demoted or dropped
  std::int64_t insertions = 0;
  std::int64_t refused = 0;  // blocks that found no room
  Bytes read;
  Bytes written;
  /// On their way to the tier, and not written yet. A store does not know them.
  Bytes in_flight;
  /// Entries stored or grown; whole blocks that they take, and of that what holds no KV.
  std::int64_t stores = 0;
  Bytes blocks;
  Bytes block_waste;
  /// Integral of the account over time, byte-nanoseconds, and its peak.
  Int128 occupancy_byte_ns = 0;
  Bytes occupancy_peak;
};

/// Outcomes of fetches to the fastest tier that began before their turn.
struct PrefetchCounters {
  std::int64_t begun = 0;
  std::int64_t late = 0;  // still in flight when the turn was admitted
  /// The entry waited for its turn no longer than its fetch took.
  std::int64_t on_time = 0;
  std::int64_t early = 0;   // it waited longer
  std::int64_t unused = 0;  // it left the tier before its turn
  /// Byte-nanoseconds that fetched entries waited, counted when they are used or leave.
  Int128 idle_byte_ns = 0;

  friend PrefetchCounters operator+(const PrefetchCounters& a, const PrefetchCounters& b) {
    return {.begun = a.begun + b.begun,
            .late = a.late + b.late,
            .on_time = a.on_time + b.on_time,
            .early = a.early + b.early,
            .unused = a.unused + b.unused,
            .idle_byte_ns = a.idle_byte_ns + b.idle_byte_ns};
  }
  friend PrefetchCounters operator-(const PrefetchCounters& a, const PrefetchCounters& b) {
    return {.begun = a.begun - b.begun,
            .late = a.late - b.late,
            .on_time = a.on_time - b.on_time,
            .early = a.early - b.early,
            .unused = a.unused - b.unused,
            .idle_byte_ns = a.idle_byte_ns - b.idle_byte_ns};
  }
};

}  // namespace kvtier
