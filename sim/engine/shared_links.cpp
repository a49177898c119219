#include "sim/engine/shared_links.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <span>
#include <utility>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

/// Of one link.
constexpr std::size_t kLimits = 3;

}  // namespace

SharedLinks::SharedLinks(std::vector<DuplexLimits> links, std::vector<std::vector<LinkUse>> paths) {
  KVTIER_ASSERT(paths.size() <= kMostPaths, "paths fit the solver's arrays");
  KVTIER_ASSERT(links.size() <= links_.size(), "links fit the solver's arrays");
  for (const DuplexLimits& limits : links) {
    links_[link_count_++].limits = limits;
  }
  for (const auto& uses : paths) {
    KVTIER_ASSERT(uses.size() <= 2, "a path has at most two links");
    Path& path = paths_[path_count_];
    path.use_count = uses.size();
    std::copy(uses.begin(), uses.end(), path.uses.begin());
    for (const LinkUse& use : uses) {
      links_[use.link].paths |= 1U << path_count_;
    }
    ++path_count_;
  }
}

inline void SharedLinks::advance(SimTime now) {
  KVTIER_ASSERT(now >= now_, "time is monotone");
  if (stale_ && now != now_) {
    share();
  }
  now_ = now;
}

inline void SharedLinks::set_active(const Path& path, std::uint32_t bit) {
  for (std::size_t i = 0; i < path.use_count; ++i) {
    Link& link = links_[path.uses[i].link];
    if ((active_ & link.paths) == 0) {
      link.busy_since = now_;
    }
  }
  active_ |= bit;
}

inline void SharedLinks::set_idle(const Path& path, std::uint32_t bit) {
  active_ &= ~bit;
  for (std::size_t i = 0; i < path.use_count; ++i) {
    Link& link = links_[path.uses[i].link];
    if ((active_ & link.paths) == 0) {
      link.busy += now_ - link.busy_since;
    }
  }
}

TransferId SharedLinks::start(std::size_t index, Bytes bytes, std::uint64_t cookie, SimTime now) {
  advance(now);
  Path& path = paths_[index];
  const std::uint32_t bit = 1U << index;
  const std::uint64_t sequence = next_sequence_++;
  const auto transfer = static_cast<std::uint32_t>(
      (index << kNumberBits) | (sequence & ((std::uint64_t{1} << kNumberBits) - 1)));
  path.bytes += bytes;
  ++in_flight_;
  const std::uint32_t count = ++path.in_flight;
  if (count <= kCountMost) [[likely]] {
    pattern_ += std::uint64_t{1} << (kCountBits * index);
  } else if (count == kCountMost + 1) {
    ++crowded_paths_;
  }
  stale_ = true;
  if (count == 1) {
    path.settled = now;
    path.first = {static_cast<double>(bytes.value), sequence, cookie, transfer};
    set_active(path, bit);
    first_changed_ |= bit;
    return TransferId{transfer};
  }
  path.settle(now);
  const Pending added{path.served + static_cast<double>(bytes.value), sequence, cookie, transfer};
  const bool is_first = added.due < path.first.due;
  path.rest.push_back(is_first ? std::exchange(path.first, added) : added);
  std::push_heap(path.rest.begin(), path.rest.end(), Later{});
  first_changed_ |= bit;
  return TransferId{transfer};
}

void SharedLinks::extend(TransferId transfer, Bytes bytes, SimTime now) {
  advance(now);
  const std::size_t index = transfer.value >> kNumberBits;
  KVTIER_ASSERT(index < path_count_ && paths_[index].in_flight > 0,
                "only a transfer in flight can be extended");
  Path& path = paths_[index];
  path.settle(now);
  path.bytes += bytes;
  const auto extend = [&](Pending& pending) {
    pending.due = std::max(pending.due, path.served) + static_cast<double>(bytes.value);
  };
  if (path.first.transfer == transfer.value) {
    extend(path.first);
    if (!path.rest.empty() && Later{}(path.first, path.rest.front())) {
      std::swap(path.first, path.rest.front());
    }
  } else {
    const auto found = std::find_if(path.rest.begin(), path.rest.end(),
                                    [&](const Pending& p) { return p.transfer == transfer.value; });
    KVTIER_ASSERT(found != path.rest.end(), "only a transfer in flight can be extended");
    extend(*found);
  }
  std::make_heap(path.rest.begin(), path.rest.end(), Later{});
  stale_ = true;
  first_changed_ |= 1U << index;
}

SharedLinks::Finished SharedLinks::finish_next() {
  const SimTime now = next_completion();
  KVTIER_ASSERT(now != kNever, "a transfer is in flight");
  now_ = now;
  const std::size_t index = next_path_;
  const std::uint32_t bit = 1U << index;
  Path& path = paths_[index];
  const Finished finished{TransferId{path.first.transfer}, path.first.cookie};
  --in_flight_;
  const std::uint32_t count = --path.in_flight;
  if (count < kCountMost) [[likely]] {
    pattern_ -= std::uint64_t{1} << (kCountBits * index);
  } else if (count == kCountMost) {
    --crowded_paths_;
  }
  stale_ = true;
  if (count == 0) {
    path.served = 0;  // keeps the virtual time small, so that its rounding stays below a byte
    set_idle(path, bit);
    return finished;
  }
  path.settle(now);
  std::pop_heap(path.rest.begin(), path.rest.end(), Later{});
  path.first = path.rest.back();
  path.rest.pop_back();
  first_changed_ |= bit;
  return finished;
}

LinkCounters SharedLinks::counters(std::size_t link, SimTime now) const {
  LinkCounters counters{.forward = {}, .backward = {}, .busy = links_[link].busy};
  if ((active_ & links_[link].paths) != 0) {
    counters.busy += now - links_[link].busy_since;
  }
  for (const Path& path : paths_) {
    for (const LinkUse& use : std::span(path.uses).first(path.use_count)) {
      if (use.link == link) {
        (use.forward ? counters.forward : counters.backward) += path.bytes;
      }
    }
  }
  return counters;
}

/// Progressive filling: all rates rise together until a limit is reached; the transfers under that
/// limit keep their rate and the others go on rising.
std::array<double, SharedLinks::kMostPaths> SharedLinks::fair_rates() const {
  struct Constraint {
    double left;
    double rising = 0;  // transfers whose rate still rises
  };
  std::array<Constraint, kLimits * kMostLinks> constraints{};
  const std::size_t count = kLimits * link_count_;
  for (std::size_t i = 0; i < link_count_; ++i) {
    constraints[kLimits * i].left = links_[i].limits.forward.value;
    constraints[kLimits * i + 1].left = links_[i].limits.backward.value;
    constraints[kLimits * i + 2].left = links_[i].limits.both.value;
  }
  std::array<double, kMostPaths> rates{};
  std::uint32_t rising_paths = 0;
  for (std::size_t p = 0; p < path_count_; ++p) {
    const Path& path = paths_[p];
    if (path.in_flight > 0) {
      rising_paths |= 1U << p;
      for (const LinkUse& use : std::span(path.uses).first(path.use_count)) {
        constraints[kLimits * use.link + (use.forward ? 0 : 1)].rising +=
            static_cast<double>(path.in_flight);
        constraints[kLimits * use.link + 2].rising += static_cast<double>(path.in_flight);
      }
    }
  }
  double level = 0;
  while (rising_paths != 0) {
    double step = std::numeric_limits<double>::infinity();
    for (std::size_t c = 0; c < count; ++c) {
      if (constraints[c].rising > 0) {
        step = std::min(step, constraints[c].left / constraints[c].rising);
      }
    }
    level += step;
    std::uint32_t full = 0;
    for (std::size_t c = 0; c < count; ++c) {
      if (constraints[c].rising > 0) {
        const bool binds = constraints[c].left / constraints[c].rising <= step * (1 + 1e-12);
        constraints[c].left -= step * constraints[c].rising;
        full |= binds ? 1U << c : 0U;
      }
    }
    for (std::size_t p = 0; p < path_count_; ++p) {
      if ((rising_paths & (1U << p)) == 0) {
        continue;
      }
      const Path& path = paths_[p];
      bool stops = false;
      for (const LinkUse& use : std::span(path.uses).first(path.use_count)) {
        stops = stops || (full & (1U << (kLimits * use.link + (use.forward ? 0 : 1)))) != 0 ||
                (full & (1U << (kLimits * use.link + 2))) != 0;
      }
      if (stops) {
        rates[p] = level;
        rising_paths &= ~(1U << p);
        for (const LinkUse& use : std::span(path.uses).first(path.use_count)) {
          constraints[kLimits * use.link + (use.forward ? 0 : 1)].rising -=
              static_cast<double>(path.in_flight);
          constraints[kLimits * use.link + 2].rising -= static_cast<double>(path.in_flight);
        }
      }
    }
  }
  return rates;
}

inline const SharedLinks::Shares& SharedLinks::shares_in_force() {
  constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15ULL;
  Shares& shares = crowded_paths_ > 0 ? crowded_shares_
                                      : shares_[(pattern_ * kMultiplier) >> (64 - kRememberedBits)];
  if (crowded_paths_ > 0 || shares.pattern != pattern_) [[unlikely]] {
    shares.pattern = pattern_;
    const std::array<double, kMostPaths> rates = fair_rates();
    for (std::size_t p = 0; p < kMostPaths; ++p) {
      shares.paths[p] = {.rate = rates[p] * 1e-9, .ns_per_byte = 1e9 / rates[p]};
    }
  }
  return shares;
}

void SharedLinks::share() {
  const Shares& shares = shares_in_force();
  const SimTime now = now_;
  const std::uint32_t first_changed = std::exchange(first_changed_, 0);
  SimTime next = kNever;
  std::uint32_t next_path = 0;
  for (std::uint32_t left = active_; left != 0; left &= left - 1) {
    const auto p = static_cast<std::uint32_t>(std::countr_zero(left));
    const Share& share = shares.paths[p];
    Path& path = paths_[p];
    if (path.share.rate != share.rate || (first_changed >> p & 1U) != 0) {
      path.settle(now);
      path.share = share;
      const double bytes = path.first.due - path.served;
      path.next = bytes <= 0 ? now : now + ceil_ns(bytes * share.ns_per_byte);
    }
    if (path.next < next ||
        (path.next == next && path.first.sequence < paths_[next_path].first.sequence)) {
      next = path.next;
      next_path = p;
    }
  }
  stale_ = false;
  next_ = next;
  next_path_ = next_path;
}

}  // namespace kvtier
