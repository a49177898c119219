#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/core/units.hpp"
#include "sim/engine/backend.hpp"
#include "sim/engine/topology.hpp"

namespace kvtier {

/// What one link did: `forward` is towards the GPUs.
struct LinkCounters {
  Bytes forward;
  Bytes backward;
  /// Time during which at least one transfer used the link.
  SimDuration busy;
};

/// The links of a topology, shared by max-min fair rates. Each link has three limits: one way, the
/// other way, and both together, which describes PCIe duplex loss and the read/write mix of a drive
/// alike (as SimGrid's disks do). Each edge of the topology is a path. Transfers of one path get
/// the same rate, so each path is a processor-sharing queue on its own virtual time (the bytes that
/// a transfer of that path got so far), and a change costs O(paths), whatever is in flight; no
/// event per chunk.
///
/// A link's limits are lower while work that interferes with it goes on, whoever crosses it: also a
/// transfer over both links is slower on the one for crossing the other.
class SharedLinks {
 public:
  /// The topology has at most kMostPaths edges and as many links.
  explicit SharedLinks(Topology topology);
  SharedLinks(SharedLinks&&) = default;
  SharedLinks& operator=(SharedLinks&&) = default;
  SharedLinks(const SharedLinks&) = delete;
  SharedLinks& operator=(const SharedLinks&) = delete;
  ~SharedLinks() = default;
  [[nodiscard]] const Topology& topology() const { return topology_; }

  /// Says that computing begins or ends; needed where it interferes with a link.
  void set_computing(bool computing, SimTime now);

  /// An open transfer may be given more bytes once all of these have been moved, or before.
  TransferId start(std::size_t path, Bytes bytes, std::uint64_t cookie, SimTime now,
                   bool open = false);
  /// Adds bytes, the last ones, to a transfer; false if it has ended.
  [[nodiscard]] bool extend(TransferId transfer, Bytes bytes, SimTime now) {
    const std::uint32_t index = path_of(transfer);
    KVTIER_ASSERT(index < path_count_, "only a transfer that was started can be extended");
    return is_active(index) && extend_on(index, transfer, bytes, now);
  }

  /// When the next transfer completes if nothing else changes; kNever if none is in flight.
  [[nodiscard]] SimTime next_completion() {
    if (first_changed_ != 0) {
      share();
    }
    return next_;
  }
  struct Finished {
    TransferId transfer;
    bool open;
    std::uint64_t cookie;
    /// What it was started and extended with.
    Bytes bytes;
  };
  /// The path that a transfer was started on.
  [[nodiscard]] std::uint32_t path_of(TransferId transfer) const {
    return transfer.value & path_mask_;
  }
  /// Ends the transfer due at next_completion(), which is now.
  Finished finish_next();

  [[nodiscard]] std::size_t in_flight() const;
  /// Bytes are counted when a transfer starts or is extended; busy time up to `now`.
  [[nodiscard]] LinkCounters counters(std::size_t link, SimTime now) const;
  /// What transfers of the path were started or extended with.
  [[nodiscard]] Bytes carried(std::size_t path) const { return routes_[path].bytes; }
  /// Bytes per second that one transfer of the path gets now.
  [[nodiscard]] double rate(std::size_t path) {
    if (first_changed_ != 0) {
      share();
    }
    return is_active(path) ? rates_[path] * 1e9 : 0;
  }

 private:
  /// Sets of paths and of links are the bits of a word.
  using Mask = std::uint64_t;
  static constexpr std::size_t kMostPaths = 62;
  /// Few patterns of transfers in flight come up again and again, so their rates are remembered.
  static constexpr unsigned kRememberedBits = 10;
  /// In the key of a pattern, beside the paths' numbers of transfers, and in `first_changed_`.
  static constexpr Mask kComputing = Mask{1} << 63U;
  /// In the key: some path has more transfers than its bits can say. No such pattern is remembered.
  static constexpr Mask kCrowded = Mask{1} << 62U;

  struct Pending {
    double due = 0;  // of the path's virtual time, bytes
    std::uint64_t sequence = 0;
    std::uint64_t cookie = 0;
    Bytes bytes;
    bool open = false;
  };
  /// A type, not a function, so that heaps inline it.
  struct Later {
    [[nodiscard]] bool operator()(const Pending& a, const Pending& b) const {
      return a.due != b.due ? a.due > b.due : a.sequence > b.sequence;
    }
  };
  /// What every change of a path touches, one cache line.
  struct alignas(64) Path {
    /// Virtual time at `settled`; from then on it grows by the path's rate.
    double served = 0;
    SimTime settled;
    /// The next transfer to complete.
    Pending first;

    void settle(double rate, SimTime now) {
      served += rate * static_cast<double>((now - settled).ns);
      settled = now;
    }
  };
  /// What most changes of a path touch, one cache line more.
  struct alignas(64) Route {
    /// What one transfer adds to the key of a pattern.
    std::uint64_t pattern_step = 0;
    Bytes bytes;  // started on it so far
    /// All but the first to complete: a heap, the next in front.
    std::vector<Pending> rest;
  };
  struct LinkState {
    /// Paths that use it.
    Mask paths = 0;
    /// The times at which it became idle less those at which it became busy.
    SimDuration busy;
  };

  /// One of a link's limits while rates rise.
  struct Constraint {
    double left = 0;
    double rising = 0;  // transfers whose rate still rises
    bool is_full = false;
  };
  /// Numbers of transfers in flight on each path.
  struct Pattern {
    std::uint64_t key = UINT64_MAX;
    /// Links of the paths in flight.
    Mask links = 0;
    /// What one transfer of each path gets: bytes a nanosecond, then nanoseconds a byte.
    const double* shares = nullptr;
  };
  /// Sets the rates for what is in flight now, and when the next transfer completes. Done once
  /// after all changes of an instant.
  void share();
  /// Works out the rates of the pattern that there is now.
  [[gnu::noinline]] const Pattern& remember(std::size_t place);
  void advance(SimTime now) {
    if (now != now_) {
      KVTIER_ASSERT(now > now_, "time is monotone");
      if (first_changed_ != 0) [[unlikely]] {
        share();
      }
      now_ = now;
    }
  }
  [[nodiscard]] bool is_active(std::size_t path) const { return (active_ >> path & 1U) != 0; }
  /// Transfers in flight on the path.
  [[nodiscard]] std::size_t count(std::size_t path) const {
    return is_active(path) ? 1 + routes_[path].rest.size() : 0;
  }
  [[nodiscard]] TransferId name(std::size_t path, std::uint64_t sequence) const {
    return TransferId{static_cast<std::uint32_t>(sequence << path_bits_ | path)};
  }
  /// Links of the paths in flight.
  [[nodiscard]] Mask links_in_use() const;
  void note_busy(Mask busy_links);
  /// The rarer halves of extend, start and finish_next: where several transfers share a path, or
  /// time went on after a change. Apart, so that the others need no more registers than they have.
  [[nodiscard]] bool extend_on(std::size_t index, TransferId transfer, Bytes bytes, SimTime now);
  TransferId start_behind(std::size_t index, Bytes bytes, std::uint64_t cookie, SimTime now,
                          bool open);
  const Pending& finish_before(std::size_t index);
  const std::vector<double>& fair_rates();

  Topology topology_;
  /// A transfer's number holds its path in these bits, below the sequence.
  unsigned path_bits_;
  std::uint32_t path_mask_;
  /// Bits of a path's number of transfers in the key of a pattern; larger numbers are not
  /// remembered.
  unsigned count_bits_;
  std::uint32_t count_most_;
  std::size_t path_count_;
  std::array<Path, kMostPaths> paths_{};
  /// What all paths are looked through for, side by side: rates in force, and when `first` of each
  /// completes.
  std::array<double, kMostPaths> rates_{};
  std::array<SimTime, kMostPaths> due_at_{};
  std::array<Route, kMostPaths> routes_{};
  std::vector<LinkState> links_;
  /// By hash, the last one for a pattern that is not remembered.
  std::vector<Pattern> patterns_;
  /// Their shares.
  std::vector<double> remembered_;
  /// Of fair_rates.
  std::vector<Constraint> constraints_;
  std::vector<double> fair_rates_;
  /// Paths with transfers in flight.
  Mask active_ = 0;
  /// As of the last share().
  Mask busy_links_ = 0;
  /// Paths whose transfers have changed since the last share(), and kComputing.
  Mask first_changed_ = 0;
  /// Transfers in flight by path, count_bits_ each, and kComputing; how many paths have too many.
  std::uint64_t pattern_ = 0;
  int crowded_paths_ = 0;
  /// What finish_before gave.
  Pending finished_;
  SimTime now_;
  SimTime next_ = kNever;
  std::uint32_t next_path_ = 0;
  std::uint64_t next_sequence_ = 0;
};

// Called for every transfer.

inline TransferId SharedLinks::start(std::size_t index, Bytes bytes, std::uint64_t cookie,
                                     SimTime now, bool open) {
  if (is_active(index) || (first_changed_ != 0 && now != now_)) [[unlikely]] {
    return start_behind(index, bytes, cookie, now, open);
  }
  advance(now);
  const Mask bit = Mask{1} << index;
  first_changed_ |= bit;
  active_ |= bit;
  pattern_ += routes_[index].pattern_step;
  routes_[index].bytes += bytes;
  const std::uint64_t sequence = next_sequence_++;
  paths_[index].settled = now;
  paths_[index].first = {static_cast<double>(bytes.value), sequence, cookie, bytes, open};
  return name(index, sequence);
}

inline SharedLinks::Finished SharedLinks::finish_next() {
  const SimTime now = next_completion();
  KVTIER_ASSERT(active_ != 0, "a transfer is in flight");
  now_ = now;
  const std::uint32_t index = next_path_;
  const Mask bit = Mask{1} << index;
  Path& path = paths_[index];
  first_changed_ |= bit;
  const Pending* done = &path.first;
  if (routes_[index].rest.empty()) [[likely]] {
    pattern_ -= routes_[index].pattern_step;
    active_ &= ~bit;
    path.served = 0;  // keeps the virtual time small, so that its rounding stays below a byte
  } else {
    done = &finish_before(index);
  }
  return {name(index, done->sequence), done->open, done->cookie, done->bytes};
}

}  // namespace kvtier
