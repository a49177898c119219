#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "hw/hardware.hpp"
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

  TransferId start(std::size_t path, Bytes bytes, std::uint64_t cookie, SimTime now);
  void extend(TransferId transfer, Bytes bytes, SimTime now);

  /// When the next transfer completes if nothing else changes; kNever if none is in flight.
  [[nodiscard]] SimTime next_completion() {
    if (stale_) {
      share();
    }
    return next_;
  }
  struct Finished {
    TransferId transfer;
    std::uint64_t cookie;
  };
  /// Ends the transfer due at next_completion(), which is now.
  Finished finish_next();

  [[nodiscard]] std::size_t in_flight() const { return in_flight_; }
  /// Bytes are counted when a transfer starts or is extended; busy time up to `now`.
  [[nodiscard]] LinkCounters counters(std::size_t link, SimTime now) const;
  /// What transfers of the path were started or extended with.
  [[nodiscard]] Bytes carried(std::size_t path) const { return paths_[path].bytes; }
  /// Bytes per second that one transfer of the path gets now.
  [[nodiscard]] double rate(std::size_t path) {
    if (stale_) {
      share();
    }
    return (active_ >> path & 1U) != 0 ? paths_[path].share.rate * 1e9 : 0;
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
    std::uint32_t transfer = 0;
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
  struct Path {
    /// Virtual time at `settled`; from then on it grows by the rate of `share`.
    double served = 0;
    SimTime settled;
    Share share;
    /// When `first` completes.
    SimTime next;
    std::uint32_t in_flight = 0;
    Pending first;
    /// All but the first to complete: a heap, the next in front.
    std::vector<Pending> rest;
    Bytes bytes;  // started on it so far
    std::array<LinkUse, 2> uses{};
    std::size_t use_count = 0;
    void settle(SimTime now) {
      served += share.rate * static_cast<double>((now - settled).ns);
      settled = now;
    }
  };
  struct Link {
    DuplexLimits limits;
    /// Paths that use it, a bit each.
    std::uint32_t paths = 0;
    /// Up to the last time that it became idle; it has been busy since `busy_since` if a path that
    /// uses it is active.
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
  [[nodiscard]] const Shares& shares_in_force();
  void advance(SimTime now);
  void set_active(const Path& path, std::uint32_t bit);
  void set_idle(const Path& path, std::uint32_t bit);
  [[nodiscard]] std::array<double, kMostPaths> fair_rates() const;

  std::array<Link, kMostLinks> links_{};
  std::size_t link_count_ = 0;
  std::array<Path, kMostPaths> paths_{};
  std::size_t path_count_ = 0;
  std::vector<Shares> shares_ = std::vector<Shares>(std::size_t{1} << kRememberedBits);
  Shares crowded_shares_;
  /// Paths with transfers in flight, a bit each.
  std::uint32_t active_ = 0;
  /// Since the last share(): whether anything changed, and the paths whose first transfer did.
  bool stale_ = false;
  std::uint32_t first_changed_ = 0;
  /// Transfers in flight by path, kCountBits each, and how many paths have too many for that.
  std::uint64_t pattern_ = 0;
  int crowded_paths_ = 0;
  SimTime now_;
  SimTime next_ = kNever;
  std::uint32_t next_path_ = 0;
  std::size_t in_flight_ = 0;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace kvtier
