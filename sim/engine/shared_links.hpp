#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "hw/hardware.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/units.hpp"
#include "sim/engine/backend.hpp"

namespace kvtier {

/// The part of a path on one link.
struct LinkUse {
  std::size_t link;
  bool forward;
};

/// What one link did: `forward` is towards the GPUs.
struct LinkCounters {
  Bytes forward;
  Bytes backward;
  /// Time during which at least one transfer used the link.
  SimDuration busy;
};

/// Links shared by max-min fair rates. Each link has three limits: one way, the other way, and both
/// together, which describes PCIe duplex loss and the read/write mix of a drive alike (as SimGrid's
/// disks do). Transfers of one path get the same rate, so each path is a processor-sharing queue on
/// its own virtual time (the bytes that a transfer of that path got so far), and a change costs
/// O(paths), whatever is in flight; no event per chunk.
class SharedLinks {
 public:
  /// Each path is at most two link uses.
  SharedLinks(std::vector<DuplexLimits> links, std::vector<std::vector<LinkUse>> paths);

  /// An open transfer may be given more bytes once all of these have been moved, or before.
  TransferId start(std::size_t path, Bytes bytes, std::uint64_t cookie, SimTime now,
                   bool open = false);
  /// Adds bytes, the last ones, to a transfer; false if it has ended.
  [[nodiscard]] bool extend(TransferId transfer, Bytes bytes, SimTime now);

  /// When the next transfer completes if nothing else changes; kNever if none is in flight.
  [[nodiscard]] SimTime next_completion() {
    if (stale_) {
      share();
    }
    return next_;
  }
  struct Finished {
    TransferId transfer;
    bool open;
    std::uint64_t cookie;
  };
  /// Ends the transfer due at next_completion(), which is now.
  Finished finish_next();

  [[nodiscard]] std::size_t in_flight() const;
  /// Bytes are counted when a transfer starts or is extended; busy time up to `now`.
  [[nodiscard]] LinkCounters counters(std::size_t link, SimTime now) const;
  /// What transfers of the path were started or extended with.
  [[nodiscard]] Bytes carried(std::size_t path) const { return routes_[path].bytes; }
  /// Bytes per second that one transfer of the path gets now.
  [[nodiscard]] double rate(std::size_t path) {
    if (stale_) {
      share();
    }
    return (active_ >> path & 1U) != 0 ? paths_[path].rate * 1e9 : 0;
  }

 private:
  static constexpr std::size_t kMostPaths = kMedia * (kMedia - 1);
  static constexpr std::size_t kMostLinks = 4;
  /// Few patterns of transfers in flight come up again and again, so their rates are remembered.
  static constexpr unsigned kRememberedBits = 10;
  /// Bits of a path's number of transfers in the key of a pattern; larger numbers are not
  /// remembered.
  static constexpr unsigned kCountBits = 5;
  static constexpr std::uint32_t kCountMost = (1U << kCountBits) - 1;
  /// A transfer's number holds its path in the bits above these.
  static constexpr unsigned kNumberBits = 28;

  struct Pending {
    double due = 0;  // of the path's virtual time, bytes
    std::uint64_t sequence = 0;
    std::uint64_t cookie = 0;
    TransferId transfer;
    bool open = false;
  };
  /// A type, not a function, so that heaps inline it.
  struct Later {
    [[nodiscard]] bool operator()(const Pending& a, const Pending& b) const {
      return a.due != b.due ? a.due > b.due : a.sequence > b.sequence;
    }
  };
  /// What one transfer of a path gets.
  struct Share {
    double rate = 0;  // bytes per nanosecond
    double ns_per_byte = 0;
  };
  /// What every change of a path touches, one cache line.
  struct alignas(64) Path {
    /// Virtual time at `settled`; from then on it grows by `rate` bytes per nanosecond.
    double served = 0;
    double rate = 0;
    SimTime settled;
    /// When `first`, the next transfer to complete, does so.
    SimTime next;
    Pending first;

    void settle(SimTime now) {
      served += rate * static_cast<double>((now - settled).ns);
      settled = now;
    }
  };
  struct Route {
    std::uint32_t in_flight = 0;
    /// What one transfer adds to the key of a pattern.
    std::uint64_t pattern_step = 0;
    Bytes bytes;  // started on it so far
    /// All but the first to complete: a heap, the next in front.
    std::vector<Pending> rest;
    std::array<LinkUse, 2> uses{};
    std::size_t use_count = 0;
  };
  struct Link {
    DuplexLimits limits;
    /// Paths that use it, a bit each.
    std::uint32_t paths = 0;
    /// Up to the last time that it became idle; it has been busy since `busy_since` if it is one of
    /// `busy_links_`.
    SimDuration busy;
    SimTime busy_since;
  };

  /// What all paths get for one number of transfers in flight on each.
  struct Shares {
    std::uint64_t pattern = UINT64_MAX;
    std::array<Share, kMostPaths> paths{};
  };

  /// Sets the rates for what is in flight now, and when the next transfer completes. Done once
  /// after all changes of an instant.
  void share();
  void advance(SimTime now) {
    KVTIER_ASSERT(now >= now_, "time is monotone");
    if (stale_ && now != now_) {
      share();
    }
    now_ = now;
  }
  void changed(std::uint32_t path_bit) {
    stale_ = true;
    first_changed_ |= path_bit;
  }
  [[nodiscard]] const Shares& shares_in_force();
  void fill(Shares& shares) const;
  void note_busy(std::uint32_t busy_links);
  void add_behind_first(Path& path, Route& route, const Pending& added);
  void take_next_first(Path& path, Route& route);
  [[nodiscard]] std::array<double, kMostPaths> fair_rates() const;

  std::array<Path, kMostPaths> paths_{};
  std::array<Route, kMostPaths> routes_{};
  std::size_t path_count_ = 0;
  std::array<Link, kMostLinks> links_{};
  std::size_t link_count_ = 0;
  std::vector<Shares> shares_ = std::vector<Shares>(std::size_t{1} << kRememberedBits);
  Shares crowded_shares_;
  /// By the paths that are active, a bit each: the links that are busy then, a bit each.
  std::array<std::uint8_t, std::size_t{1} << kMostPaths> links_of_paths_{};
  /// Paths with transfers in flight, a bit each.
  std::uint32_t active_ = 0;
  /// As of the last share().
  std::uint32_t busy_links_ = 0;
  /// Since the last share(): whether anything changed, and the paths whose first transfer did.
  bool stale_ = false;
  std::uint32_t first_changed_ = 0;
  /// Transfers in flight by path, kCountBits each, and how many paths have too many for that.
  std::uint64_t pattern_ = 0;
  int crowded_paths_ = 0;
  SimTime now_;
  SimTime next_ = kNever;
  std::uint32_t next_path_ = 0;
  std::uint64_t next_sequence_ = 0;
};

// Called for every transfer.

inline TransferId SharedLinks::start(std::size_t index, Bytes bytes, std::uint64_t cookie,
                                     SimTime now, bool open) {
  advance(now);
  Path& path = paths_[index];
  Route& route = routes_[index];
  const std::uint64_t sequence = next_sequence_++;
  const TransferId transfer{static_cast<std::uint32_t>(
      (index << kNumberBits) | (sequence & ((std::uint64_t{1} << kNumberBits) - 1)))};
  const auto size = static_cast<double>(bytes.value);
  const std::uint32_t bit = 1U << index;
  route.bytes += bytes;
  const std::uint32_t count = ++route.in_flight;
  if (count <= kCountMost) [[likely]] {
    pattern_ += route.pattern_step;
  } else if (count == kCountMost + 1) {
    ++crowded_paths_;
  }
  changed(bit);
  if (count == 1) {
    active_ |= bit;
    path.settled = now;
    path.first = {size, sequence, cookie, transfer, open};
  } else {
    path.settle(now);
    add_behind_first(path, route, {path.served + size, sequence, cookie, transfer, open});
  }
  return transfer;
}

inline SharedLinks::Finished SharedLinks::finish_next() {
  const SimTime now = next_completion();
  KVTIER_ASSERT(now != kNever, "a transfer is in flight");
  now_ = now;
  const std::uint32_t bit = 1U << next_path_;
  Path& path = paths_[next_path_];
  Route& route = routes_[next_path_];
  const Finished finished{path.first.transfer, path.first.open, path.first.cookie};
  const std::uint32_t count = --route.in_flight;
  if (count < kCountMost) [[likely]] {
    pattern_ -= route.pattern_step;
  } else if (count == kCountMost) {
    --crowded_paths_;
  }
  changed(bit);
  if (count == 0) {
    active_ &= ~bit;
    path.served = 0;  // keeps the virtual time small, so that its rounding stays below a byte
  } else {
    path.settle(now);
    take_next_first(path, route);
  }
  return finished;
}

}  // namespace kvtier
