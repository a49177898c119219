#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "sim/backend/backend.hpp"
#include "sim/backend/topology.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/units.hpp"

namespace kvtier {

/// Bytes and busy time of one link. `forward` is towards the GPUs.
struct LinkCounters {
  Bytes forward;
  Bytes backward;
  /// Time during which at least one transfer used the link.
  SimDuration busy;
};

/// The links of a topology, shared by max-min fair rates. Each link has three limits: one way, the
/// other way, and both together. They describe PCIe duplex loss and the read/write mix of a drive
/// (as SimGrid's disks do). Each edge of the topology is a path. Transfers of one path get the same
/// rate, so each path is a processor-sharing queue on its own virtual time: the bytes that a
/// transfer of the path has moved so far. A change costs O(paths in flight), however many transfers
/// they carry; there is no event per chunk. Topologies may have any size.
///
/// A link's limits are lower during work that interferes with it. A transfer over two links that
/// interfere slows itself down, too.
class SharedLinks {
 public:
  explicit SharedLinks(Topology topology);
  SharedLinks(SharedLinks&&) = default;
  SharedLinks& operator=(SharedLinks&&) = default;
  SharedLinks(const SharedLinks&) = delete;
  SharedLinks& operator=(const SharedLinks&) = delete;
  ~SharedLinks() = default;
  [[nodiscard]] const Topology& topology() const { return topology_; }

  /// Must be called when computing begins or ends, if it interferes with a link.
  void set_computing(bool computing, SimTime now);

  /// Starts a transfer. An open transfer may be extended until it has moved all its bytes.
  TransferId start(std::size_t path, Bytes bytes, std::uint64_t cookie, SimTime now,
                   bool open = false);
  /// Adds the last bytes to a transfer; false if it has ended.
  [[nodiscard]] bool extend(TransferId transfer, Bytes bytes, SimTime now) {
    const std::uint32_t index = path_of(transfer);
    KVTIER_ASSERT(index < paths_.size(), "only a transfer that was started can be extended");
    return is_active(index) && extend_on(index, transfer, bytes, now);
  }

  /// Time of the next completion if nothing else changes; kNever if no transfer is in flight.
  [[nodiscard]] SimTime next_completion() {
    if (changed_) {
      share();
    }
    return next_;
  }
  /// A transfer in flight.
  struct Pending {
    double due = 0;  // end, in the path's virtual time (bytes)
    std::uint64_t sequence = 0;
    std::uint64_t cookie = 0;
    /// Bytes of its start and extension.
    Bytes bytes;
    TransferId id;
    bool open = false;
  };
  /// The path of a transfer.
  [[nodiscard]] std::uint32_t path_of(TransferId transfer) const {
    return transfer.value & path_mask_;
  }
  /// Ends the transfer due at next_completion(), which is now. The reference holds until the next
  /// call.
  const Pending& finish_next();

  [[nodiscard]] std::size_t in_flight() const;
  /// Bytes that have moved and busy time, up to `now`.
  [[nodiscard]] LinkCounters counters(std::size_t link, SimTime now) const;
  /// Bytes of the path's transfers that have moved.
  [[nodiscard]] Bytes moved(std::size_t path, SimTime now) const {
    return paths_[path].given - left(path, now);
  }
  /// Bytes of the path's transfers in flight that have not moved.
  [[nodiscard]] Bytes left(std::size_t path, SimTime now) const;
  /// Current rate of one transfer of the path, in bytes per second.
  [[nodiscard]] double rate(std::size_t path) {
    if (changed_) {
      share();
    }
    return is_active(path) ? paths_[path].rate * 1e9 : 0;
  }

 private:
  /// A few patterns of transfers in flight recur often, so their rates are cached.
  static constexpr unsigned kRememberedBits = 10;
  /// Bit in the key of a pattern, beside the paths' numbers of transfers.
  static constexpr std::uint64_t kComputing = std::uint64_t{1} << 63U;
  /// Bit of a key in which the number of transfers of some path does not fit. Such patterns are not
  /// cached.
  static constexpr std::uint64_t kCrowded = std::uint64_t{1} << 62U;
  /// Bits below hold the paths' numbers of transfers. The bit between is 1 in no pattern.
  static constexpr std::size_t kKeyBits = 61;
  /// `rate` of a path whose transfers have changed since the last share().
  static constexpr double kChanged = -1;
  static constexpr std::uint32_t kIdle = std::numeric_limits<std::uint32_t>::max();

  /// A type instead of a function, so that heaps inline it.
  struct Later {
    [[nodiscard]] bool operator()(const Pending& a, const Pending& b) const {
      return a.due != b.due ? a.due > b.due : a.sequence > b.sequence;
    }
  };
  /// The first of two cache lines has the members that every change touches.
  struct alignas(64) Path {
    /// Virtual time at `settled`; it grows by the path's rate from then on.
    double served = 0;
    SimTime settled;
    /// The next transfer to complete.
    Pending first;
    /// Current rate, bytes a nanosecond; or kChanged.
    double rate = 0;

    /// When `first` completes.
    SimTime due_at;
    /// All transfers but the next to complete: a heap with the earliest in front.
    std::vector<Pending> rest;
    /// Number that one transfer adds to the key of a pattern.
    std::uint64_t pattern_step = 0;
    /// Bytes of all transfers, counted when they start or are extended.
    Bytes given;
    const Edge* edge = nullptr;
    std::uint32_t index = 0;
    /// Position in `active_`; kIdle: nothing is in flight.
    std::uint32_t place = kIdle;

    void settle(SimTime now) {
      if (now != settled) {
        served += rate * static_cast<double>((now - settled).ns);
        settled = now;
      }
    }
  };
  static_assert(sizeof(Path) == 128);

  /// One of a link's limits while rates rise.
  struct Constraint {
    double left = 0;
    double rising = 0;  // transfers whose rate still rises
    bool is_full = false;
  };
  struct Share {
    double rate = 0;  // bytes a nanosecond
    double ns_per_byte = 0;
  };
  /// Rates for one combination of numbers of transfers in flight by path.
  struct Pattern {
    std::uint64_t key = UINT64_MAX;
    /// Share of one transfer of each path.
    std::vector<Share> shares;
    /// Time during which this pattern was in force, up to `in_force_since_`. Added to `busy_` when
    /// another pattern replaces it.
    SimDuration time;
    /// Links of the paths in flight.
    std::vector<std::size_t> links;
  };
  /// Sets the rates of the transfers in flight and the time of the next completion. Called once
  /// after all changes of an instant.
  void share();
  /// Computes the rates of the current pattern.
  [[gnu::noinline]] Pattern& remember(Pattern& pattern);
  void advance(SimTime now) {
    if (now != now_) {
      KVTIER_ASSERT(now > now_, "time is monotone");
      if (changed_) [[unlikely]] {
        share();
      }
      now_ = now;
    }
  }
  [[nodiscard]] bool is_active(std::size_t path) const { return paths_[path].place != kIdle; }
  /// Transfers in flight on the path.
  [[nodiscard]] std::size_t count(const Path& path) const {
    return path.place != kIdle ? 1 + path.rest.size() : 0;
  }
  [[nodiscard]] TransferId name(std::size_t path, std::uint64_t sequence) const {
    return TransferId{static_cast<std::uint32_t>(sequence << path_bits_ | path)};
  }
  /// The rare cases of extend, start and finish_next: several transfers share a path, or time has
  /// passed after a change. Separate functions, so that the common cases need fewer registers.
  [[nodiscard]] bool extend_on(std::size_t index, TransferId transfer, Bytes bytes, SimTime now);
  TransferId start_behind(std::size_t index, Bytes bytes, std::uint64_t cookie, SimTime now,
                          bool open);
  [[gnu::noinline]] const Pending& finish_before(Path& path);
  /// Max-min fair shares of the paths in flight, and their links.
  void share_fairly(std::vector<Share>& shares, std::vector<std::size_t>& links);

  Topology topology_;
  /// Bits of the path in a transfer's number, below the sequence.
  unsigned path_bits_;
  std::uint32_t path_mask_;
  /// Bits of a path's number of transfers in the key of a pattern. Patterns with larger numbers are
  /// not cached.
  unsigned count_bits_;
  std::size_t count_most_;
  std::vector<Path> paths_;
  /// By link: the time in use, without the time that patterns hold.
  std::vector<SimDuration> busy_;
  /// Cached patterns, by hash of their key.
  std::vector<Pattern> patterns_;
  /// Used for all patterns that are not cached. Its address survives a move.
  std::unique_ptr<Pattern> crowded_;
  /// The pattern in force since the last share(), and the time of that call.
  Pattern* in_force_;
  SimTime in_force_since_;
  /// Scratch of share_fairly.
  std::vector<Constraint> constraints_;
  std::vector<const Path*> rising_;
  /// The first `active_count_` are the paths with transfers in flight, in no order.
  std::vector<Path*> active_;
  std::size_t active_count_ = 0;
  /// Something has changed since the last share().
  bool changed_ = false;
  /// Key of the current pattern: transfers in flight by path, count_bits_ each, and kComputing.
  /// `crowded_paths_`: number of paths whose transfers do not fit in the key.
  std::uint64_t pattern_ = 0;
  int crowded_paths_ = 0;
  /// Transfer that finish_before returned last.
  Pending finished_;
  SimTime now_;
  SimTime next_ = kNever;
  Path* next_path_ = nullptr;
  std::uint64_t next_sequence_ = 0;
};

// Called for every transfer.

inline TransferId SharedLinks::start(std::size_t index, Bytes bytes, std::uint64_t cookie,
                                     SimTime now, bool open) {
  if (is_active(index) || (changed_ && now != now_)) [[unlikely]] {
    return start_behind(index, bytes, cookie, now, open);
  }
  advance(now);
  changed_ = true;
  Path& path = paths_[index];
  path.place = static_cast<std::uint32_t>(active_count_);
  active_[active_count_++] = &path;
  pattern_ += path.pattern_step;
  path.rate = kChanged;
  path.given += bytes;
  const std::uint64_t sequence = next_sequence_++;
  path.settled = now;
  const TransferId id = name(index, sequence);
  // An assignment would construct it elsewhere and copy it.
  ::new (&path.first) Pending{static_cast<double>(bytes.value), sequence, cookie, bytes, id, open};
  return id;
}

inline const SharedLinks::Pending& SharedLinks::finish_next() {
  const SimTime now = next_completion();
  KVTIER_ASSERT(active_count_ != 0, "a transfer is in flight");
  now_ = now;
  changed_ = true;
  Path& path = *next_path_;
  if (!path.rest.empty()) [[unlikely]] {
    return finish_before(path);
  }
  Path* const last = active_[--active_count_];
  active_[path.place] = last;
  last->place = path.place;
  path.place = kIdle;
  pattern_ -= path.pattern_step;
  path.served = 0;  // keeps the virtual time small, so that its rounding stays below a byte
  return path.first;
}

}  // namespace kvtier
