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
  [[nodiscard]] SimTime next_completion() const { return next_; }
  struct Finished {
    TransferId transfer;
    std::uint64_t cookie;
  };
  /// Ends the transfer due at next_completion(), which is now.
  Finished finish_next();

  [[nodiscard]] std::size_t in_flight() const { return in_flight_; }
  /// Bytes are counted when a transfer starts or is extended; busy time up to `now`.
  [[nodiscard]] LinkCounters counters(std::size_t link, SimTime now) const;
  /// Bytes per second that one transfer of the path gets now.
  [[nodiscard]] double rate(std::size_t path) const { return paths_[path].rate; }

 private:
  struct Pending {
    double due;  // of the path's virtual time, bytes
    std::uint64_t sequence;
    std::uint32_t transfer;
    [[nodiscard]] static bool later(const Pending& a, const Pending& b) {
      return a.due != b.due ? a.due > b.due : a.sequence > b.sequence;
    }
  };
  struct Path {
    std::vector<LinkUse> uses;
    std::vector<Pending> pending;  // a heap, the first due in front
    double served = 0;             // virtual time
    double rate = 0;
  };
  struct Link {
    DuplexLimits limits;
    LinkCounters counters;
    std::int64_t transfers = 0;
  };
  struct Transfer {
    std::size_t path = 0;
    std::uint64_t cookie = 0;
  };

  void advance(SimTime now);
  void share();
  void count_bytes(const Path& path, Bytes bytes);

  std::vector<Link> links_;
  std::vector<Path> paths_;
  std::vector<Transfer> transfers_;
  std::vector<std::uint32_t> free_;
  SimTime updated_;
  SimTime next_ = kNever;
  std::size_t next_path_ = 0;
  std::size_t in_flight_ = 0;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace kvtier
