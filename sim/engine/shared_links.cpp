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

SharedLinks::SharedLinks(std::vector<DuplexLimits> links, std::vector<std::vector<LinkUse>> paths,
                         std::vector<LinkInterference> interference)
    : interference_(std::move(interference)) {
  KVTIER_ASSERT(paths.size() <= kMostPaths, "paths fit the solver's arrays");
  KVTIER_ASSERT(links.size() <= links_.size(), "links fit the solver's arrays");
  for (const DuplexLimits& limits : links) {
    links_[link_count_++].limits = limits;
  }
  for (const auto& uses : paths) {
    KVTIER_ASSERT(uses.size() <= 2, "a path has at most two links");
    routes_[path_count_].pattern_step = std::uint64_t{1} << (kCountBits * path_count_);
    uses_[path_count_].count = uses.size();
    std::copy(uses.begin(), uses.end(), uses_[path_count_].links.begin());
    for (const LinkUse& use : uses) {
      links_[use.link].paths |= 1U << path_count_;
    }
    ++path_count_;
  }
  for (std::size_t active = 0; active < links_of_paths_.size(); ++active) {
    for (std::size_t i = 0; i < link_count_; ++i) {
      links_of_paths_[active] |= (active & links_[i].paths) != 0 ? 1U << i : 0U;
    }
  }
}

void SharedLinks::set_computing(bool computing, SimTime now) {
  if (computing == ((pattern_ & kComputing) != 0)) {
    return;
  }
  advance(now);
  pattern_ ^= kComputing;
  first_changed_ |= kComputingChanged;
}

TransferId SharedLinks::start_behind(std::size_t index, Bytes bytes, std::uint64_t cookie,
                                     SimTime now, bool open) {
  advance(now);
  if (!is_active(index)) {
    return start(index, bytes, cookie, now, open);
  }
  Path& path = paths_[index];
  Route& route = routes_[index];
  const std::size_t before = count(index);
  if (before < kCountMost) {
    pattern_ += route.pattern_step;
  } else if (before == kCountMost) {
    ++crowded_paths_;
  }
  first_changed_ |= 1U << index;
  route.bytes += bytes;
  path.settle(rates_[index], now);
  const std::uint64_t sequence = next_sequence_++;
  Pending added{path.served + static_cast<double>(bytes.value), sequence, cookie, bytes, open};
  if (added.due < path.first.due) {
    std::swap(added, path.first);
  }
  route.rest.push_back(added);
  std::push_heap(route.rest.begin(), route.rest.end(), Later{});
  return name(index, sequence);
}

const SharedLinks::Pending& SharedLinks::finish_before(std::size_t index) {
  Path& path = paths_[index];
  Route& route = routes_[index];
  const std::size_t left = route.rest.size();
  if (left < kCountMost) {
    pattern_ -= route.pattern_step;
  } else if (left == kCountMost) {
    --crowded_paths_;
  }
  path.settle(rates_[index], now_);
  finished_ = path.first;
  std::pop_heap(route.rest.begin(), route.rest.end(), Later{});
  path.first = route.rest.back();
  route.rest.pop_back();
  return finished_;
}

bool SharedLinks::extend_on(std::size_t index, TransferId transfer, Bytes bytes, SimTime now) {
  advance(now);
  Path& path = paths_[index];
  std::vector<Pending>& rest = routes_[index].rest;
  const auto is_it = [&](const Pending& p) { return name(index, p.sequence) == transfer; };
  const auto extend = [&](Pending& pending) {
    path.settle(rates_[index], now);
    routes_[index].bytes += bytes;
    pending.bytes += bytes;
    pending.open = false;
    pending.due = std::max(pending.due, path.served) + static_cast<double>(bytes.value);
  };
  if (is_it(path.first)) {
    extend(path.first);
    if (!rest.empty() && Later{}(path.first, rest.front())) {
      std::swap(path.first, rest.front());
    }
  } else {
    const auto found = std::find_if(rest.begin(), rest.end(), is_it);
    if (found == rest.end()) {
      return false;
    }
    extend(*found);
  }
  std::make_heap(rest.begin(), rest.end(), Later{});
  first_changed_ |= 1U << index;
  return true;
}

std::size_t SharedLinks::in_flight() const {
  std::size_t sum = 0;
  for (std::size_t p = 0; p < path_count_; ++p) {
    sum += count(p);
  }
  return sum;
}

LinkCounters SharedLinks::counters(std::size_t link, SimTime now) const {
  LinkCounters counters{.forward = {}, .backward = {}, .busy = links_[link].busy};
  const bool was_busy = (busy_links_ >> link & 1U) != 0;
  const bool is_busy = (links_of_paths_[active_] >> link & 1U) != 0;
  counters.busy += was_busy ? now_ - SimTime() : SimDuration();
  counters.busy += is_busy ? now - now_ : SimDuration();
  for (std::size_t p = 0; p < path_count_; ++p) {
    for (const LinkUse& use : uses_[p].span()) {
      if (use.link == link) {
        (use.forward ? counters.forward : counters.backward) += routes_[p].bytes;
      }
    }
  }
  return counters;
}

DuplexLimits SharedLinks::limits_now(std::size_t link) const {
  DuplexLimits limits = links_[link].limits;
  for (const LinkInterference& other : interference_) {
    const bool goes_on =
        other.beside ? (active_ & links_[*other.beside].paths) != 0 : (pattern_ & kComputing) != 0;
    if (other.link == link && goes_on) {
      limits.forward = limits.forward * other.left.forward;
      limits.backward = limits.backward * other.left.backward;
      limits.both = limits.both * std::max(other.left.forward, other.left.backward);
    }
  }
  return limits;
}

/// Progressive filling: all rates rise together until a limit is reached; the transfers under that
/// limit keep their rate and the others go on rising.
std::array<double, SharedLinks::kMostPaths> SharedLinks::fair_rates() const {
  struct Constraint {
    double left;
    double rising = 0;  // transfers whose rate still rises
  };
  std::array<Constraint, kLimits * kMostLinks> constraints{};
  const std::size_t limits = kLimits * link_count_;
  for (std::size_t i = 0; i < link_count_; ++i) {
    const DuplexLimits link = limits_now(i);
    constraints[kLimits * i].left = link.forward.value;
    constraints[kLimits * i + 1].left = link.backward.value;
    constraints[kLimits * i + 2].left = link.both.value;
  }
  std::array<double, kMostPaths> rates{};
  std::uint32_t rising_paths = 0;
  for (std::size_t p = 0; p < path_count_; ++p) {
    if (is_active(p)) {
      rising_paths |= 1U << p;
      const auto transfers = static_cast<double>(count(p));
      for (const LinkUse& use : uses_[p].span()) {
        constraints[kLimits * use.link + (use.forward ? 0 : 1)].rising += transfers;
        constraints[kLimits * use.link + 2].rising += transfers;
      }
    }
  }
  double level = 0;
  while (rising_paths != 0) {
    double step = std::numeric_limits<double>::infinity();
    for (std::size_t c = 0; c < limits; ++c) {
      if (constraints[c].rising > 0) {
        step = std::min(step, constraints[c].left / constraints[c].rising);
      }
    }
    level += step;
    std::uint32_t full = 0;
    for (std::size_t c = 0; c < limits; ++c) {
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
      bool stops = false;
      for (const LinkUse& use : uses_[p].span()) {
        stops = stops || (full & (1U << (kLimits * use.link + (use.forward ? 0 : 1)))) != 0 ||
                (full & (1U << (kLimits * use.link + 2))) != 0;
      }
      if (stops) {
        rates[p] = level;
        rising_paths &= ~(1U << p);
        const auto transfers = static_cast<double>(count(p));
        for (const LinkUse& use : uses_[p].span()) {
          constraints[kLimits * use.link + (use.forward ? 0 : 1)].rising -= transfers;
          constraints[kLimits * use.link + 2].rising -= transfers;
        }
      }
    }
  }
  return rates;
}

void SharedLinks::fill(Shares& shares) const {
  shares.pattern = pattern_;
  const std::array<double, kMostPaths> rates = fair_rates();
  for (std::size_t p = 0; p < kMostPaths; ++p) {
    shares.rates[p] = rates[p] * 1e-9;
    shares.ns_per_byte[p] = 1e9 / rates[p];
  }
}

inline void SharedLinks::note_busy(std::uint32_t busy_links) {
  for (std::uint32_t changed = busy_links ^ busy_links_; changed != 0; changed &= changed - 1) {
    const auto link = static_cast<std::size_t>(std::countr_zero(changed));
    const bool begins = (busy_links >> link & 1U) != 0;
    links_[link].busy += begins ? SimTime() - now_ : now_ - SimTime();
  }
  busy_links_ = busy_links;
}

void SharedLinks::share() {
  constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15ULL;
  Shares& shares = shares_[(pattern_ * kMultiplier) >> (64 - kRememberedBits)];
  if (shares.pattern != pattern_ || crowded_paths_ > 0) [[unlikely]] {
    return share_anew(crowded_paths_ > 0 ? crowded_shares_ : shares);
  }
  share_by(shares);
}

void SharedLinks::share_anew(Shares& shares) {
  fill(shares);
  share_by(shares);
}

void SharedLinks::share_by(const Shares& shares) {
  const SimTime now = now_;
  const std::uint32_t first_changed = std::exchange(first_changed_, 0);
  if (links_of_paths_[active_] != busy_links_) {
    note_busy(links_of_paths_[active_]);
  }
  SimTime next = kNever;
  std::uint32_t next_path = 0;
  for (std::uint32_t left = active_; left != 0; left &= left - 1) {
    const auto p = static_cast<std::uint32_t>(std::countr_zero(left));
    const double rate = shares.rates[p];
    if (rates_[p] != rate || (first_changed >> p & 1U) != 0) {
      Path& path = paths_[p];
      path.settle(rates_[p], now);
      rates_[p] = rate;
      const double bytes = path.first.due - path.served;
      due_at_[p] = bytes <= 0 ? now : now + ceil_ns(bytes * shares.ns_per_byte[p]);
    }
    if (due_at_[p] < next ||
        (due_at_[p] == next && paths_[p].first.sequence < paths_[next_path].first.sequence)) {
      next = due_at_[p];
      next_path = p;
    }
  }
  next_ = next;
  next_path_ = next_path;
}

}  // namespace kvtier
