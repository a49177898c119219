#include "sim/engine/shared_links.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <span>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

constexpr std::size_t kMostConstraints = 3 * kMedia;

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
  KVTIER_ASSERT(now >= updated_, "time is monotone");
  if (now == updated_) {
    return;
  }
  if (active_ != 0) {
    if (changed_) {
      share();
    }
    const double seconds = (now - updated_).seconds();
    for (std::uint32_t rest = active_; rest != 0; rest &= rest - 1) {
      const auto p = static_cast<std::size_t>(std::countr_zero(rest));
      paths_[p].served += shares_in_force_->paths[p].rate * seconds;
    }
  }
  updated_ = now;
}

inline void SharedLinks::note_started(std::size_t index) {
  Path& path = paths_[index];
  const std::size_t count = ++path.in_flight;
  if (count <= kCountMost) [[likely]] {
    pattern_ += std::uint64_t{1} << (kCountBits * index);
  } else if (count == kCountMost + 1) {
    ++crowded_paths_;
  }
  if (count == 1) {
    set_active(path, 1U << index);
  }
  ++in_flight_;
  changed_ = true;
}

inline void SharedLinks::note_finished(std::size_t index) {
  Path& path = paths_[index];
  const std::size_t count = --path.in_flight;
  if (count < kCountMost) [[likely]] {
    pattern_ -= std::uint64_t{1} << (kCountBits * index);
  } else if (count == kCountMost) {
    --crowded_paths_;
  }
  if (count == 0) {
    set_idle(path, 1U << index);
    path.served = 0;  // keeps the virtual time small, so that its rounding stays below a byte
  }
  --in_flight_;
  changed_ = true;
}

inline void SharedLinks::set_active(const Path& path, std::uint32_t bit) {
  for (std::size_t i = 0; i < path.use_count; ++i) {
    Link& link = links_[path.uses[i].link];
    if ((active_ & link.paths) == 0) {
      link.busy_since = updated_;
    }
  }
  active_ |= bit;
}

inline void SharedLinks::set_idle(const Path& path, std::uint32_t bit) {
  active_ &= ~bit;
  for (std::size_t i = 0; i < path.use_count; ++i) {
    Link& link = links_[path.uses[i].link];
    if ((active_ & link.paths) == 0) {
      link.busy += updated_ - link.busy_since;
    }
  }
}

TransferId SharedLinks::start(std::size_t path_index, Bytes bytes, std::uint64_t cookie,
                              SimTime now) {
  advance(now);
  std::uint32_t id = 0;
  if (free_.empty()) {
    id = static_cast<std::uint32_t>(path_of_.size());
    path_of_.push_back(path_index);
  } else {
    id = free_.back();
    free_.pop_back();
    path_of_[id] = path_index;
  }
  Path& path = paths_[path_index];
  path.bytes += bytes;
  path.pending.push_back({.due = path.served + static_cast<double>(bytes.value),
                          .sequence = next_sequence_++,
                          .cookie = cookie,
                          .transfer = id});
  if (path.in_flight > 0) {
    std::push_heap(path.pending.begin(), path.pending.end(), Later{});
  }
  path.note_first();
  note_started(path_index);
  return TransferId{id};
}

void SharedLinks::extend(TransferId transfer, Bytes bytes, SimTime now) {
  advance(now);
  Path& path = paths_[path_of_[transfer.value]];
  const auto found = std::find_if(path.pending.begin(), path.pending.end(),
                                  [&](const Pending& p) { return p.transfer == transfer.value; });
  KVTIER_ASSERT(found != path.pending.end(), "only a transfer in flight can be extended");
  found->due = std::max(found->due, path.served) + static_cast<double>(bytes.value);
  if (path.in_flight > 1) {
    std::make_heap(path.pending.begin(), path.pending.end(), Later{});
  }
  path.note_first();
  path.bytes += bytes;
  changed_ = true;
}

SharedLinks::Finished SharedLinks::finish_next() {
  const SimTime now = next_completion();
  KVTIER_ASSERT(now != kNever, "a transfer is in flight");
  advance(now);
  const std::size_t index = next_path_;
  Path& path = paths_[index];
  if (path.in_flight > 1) {
    std::pop_heap(path.pending.begin(), path.pending.end(), Later{});
  }
  const Finished finished{TransferId{path.pending.back().transfer}, path.pending.back().cookie};
  path.pending.pop_back();
  if (path.in_flight > 1) {
    path.note_first();
  }
  note_finished(index);
  free_.push_back(finished.transfer.value);
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
  std::array<Constraint, kMostConstraints> constraints{};
  const std::size_t count = 3 * link_count_;
  for (std::size_t i = 0; i < link_count_; ++i) {
    constraints[3 * i].left = links_[i].limits.forward.value;
    constraints[3 * i + 1].left = links_[i].limits.backward.value;
    constraints[3 * i + 2].left = links_[i].limits.both.value;
  }
  std::array<double, kMostPaths> rates{};
  std::uint32_t rising_paths = 0;
  for (std::size_t p = 0; p < path_count_; ++p) {
    const Path& path = paths_[p];
    if (path.in_flight > 0) {
      rising_paths |= 1U << p;
      for (const LinkUse& use : std::span(path.uses).first(path.use_count)) {
        constraints[3 * use.link + (use.forward ? 0 : 1)].rising +=
            static_cast<double>(path.in_flight);
        constraints[3 * use.link + 2].rising += static_cast<double>(path.in_flight);
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
        stops = stops || (full & (1U << (3 * use.link + (use.forward ? 0 : 1)))) != 0 ||
                (full & (1U << (3 * use.link + 2))) != 0;
      }
      if (stops) {
        rates[p] = level;
        rising_paths &= ~(1U << p);
        for (const LinkUse& use : std::span(path.uses).first(path.use_count)) {
          constraints[3 * use.link + (use.forward ? 0 : 1)].rising -=
              static_cast<double>(path.in_flight);
          constraints[3 * use.link + 2].rising -= static_cast<double>(path.in_flight);
        }
      }
    }
  }
  return rates;
}

void SharedLinks::share() {
  constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15ULL;
  changed_ = false;
  Shares& shares = crowded_paths_ > 0 ? crowded_shares_
                                      : shares_[(pattern_ * kMultiplier) >> (64 - kRememberedBits)];
  if (crowded_paths_ > 0 || shares.pattern != pattern_) {
    shares.pattern = pattern_;
    const std::array<double, kMostPaths> rates = fair_rates();
    for (std::size_t p = 0; p < kMostPaths; ++p) {
      shares.paths[p] = {.rate = rates[p], .ns_per_byte = 1e9 / rates[p]};
    }
  }
  shares_in_force_ = &shares;
  next_ = kNever;
  std::uint64_t next_sequence = 0;
  for (std::uint32_t rest = active_; rest != 0; rest &= rest - 1) {
    const auto p = static_cast<std::size_t>(std::countr_zero(rest));
    const Path& path = paths_[p];
    const double left = path.first_due - path.served;
    const SimTime at =
        left <= 0 ? updated_ : updated_ + ceil_ns(left * shares.paths[p].ns_per_byte);
    if (at < next_ || (at == next_ && path.first_sequence < next_sequence)) {
      next_ = at;
      next_path_ = p;
      next_sequence = path.first_sequence;
    }
  }
}

}  // namespace kvtier
