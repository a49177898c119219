#include "sim/engine/shared_links.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

/// Of one link.
constexpr std::size_t kLimits = 3;
/// Of a path's number of transfers in the key of a pattern.
constexpr std::size_t kMostCountBits = 8;

}  // namespace

SharedLinks::SharedLinks(Topology topology)
    : topology_(std::move(topology)),
      path_bits_(static_cast<unsigned>(std::bit_width(topology_.edges.size()))),
      path_mask_((1U << path_bits_) - 1),
      count_bits_(
          static_cast<unsigned>(std::min(kMostPaths / topology_.edges.size(), kMostCountBits))),
      count_most_((1U << count_bits_) - 1),
      path_count_(topology_.edges.size()),
      links_(topology_.links.size()),
      patterns_((std::size_t{1} << kRememberedBits) + 1),
      remembered_(patterns_.size() * 2 * path_count_) {
  KVTIER_ASSERT(path_count_ <= kMostPaths && links_.size() <= kMostPaths,
                "paths and links fit a word");
  for (std::size_t p = 0; p < path_count_; ++p) {
    routes_[p].pattern_step = std::uint64_t{1} << (count_bits_ * p);
    for (const LinkUse& use : topology_.edges[p].uses) {
      links_[use.link].paths |= Mask{1} << p;
    }
  }
}

SharedLinks::Mask SharedLinks::links_in_use() const {
  Mask in_use = 0;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    in_use |= (links_[i].paths & active_) != 0 ? Mask{1} << i : Mask{0};
  }
  return in_use;
}

void SharedLinks::set_computing(bool computing, SimTime now) {
  if (computing == ((pattern_ & kComputing) != 0)) {
    return;
  }
  advance(now);
  pattern_ ^= kComputing;
  first_changed_ |= kComputing;
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
  if (before < count_most_) {
    pattern_ += route.pattern_step;
  } else if (before == count_most_) {
    ++crowded_paths_;
    pattern_ |= kCrowded;
  }
  first_changed_ |= Mask{1} << index;
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
  if (left < count_most_) {
    pattern_ -= route.pattern_step;
  } else if (left == count_most_) {
    if (--crowded_paths_ == 0) {
      pattern_ &= ~kCrowded;
    }
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
  first_changed_ |= Mask{1} << index;
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
  const bool is_busy = (links_in_use() >> link & 1U) != 0;
  counters.busy += was_busy ? now_ - SimTime() : SimDuration();
  counters.busy += is_busy ? now - now_ : SimDuration();
  for (std::size_t p = 0; p < path_count_; ++p) {
    for (const LinkUse& use : topology_.edges[p].uses) {
      if (use.link == link) {
        (use.forward ? counters.forward : counters.backward) += routes_[p].bytes;
      }
    }
  }
  return counters;
}

/// Progressive filling: all rates rise together until a limit is reached; the transfers under that
/// limit keep their rate and the others go on rising.
const std::vector<double>& SharedLinks::fair_rates() {
  const std::size_t limits = kLimits * links_.size();
  std::vector<Constraint>& constraints = constraints_;
  constraints.assign(limits, {});
  const auto busy = [&](std::size_t link) { return (active_ & links_[link].paths) != 0; };
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const DuplexLimits link = topology_.limits_beside(i, (pattern_ & kComputing) != 0, busy);
    constraints[kLimits * i].left = link.forward.value;
    constraints[kLimits * i + 1].left = link.backward.value;
    constraints[kLimits * i + 2].left = link.both.value;
  }
  std::vector<double>& rates = fair_rates_;
  rates.assign(path_count_, 0);
  Mask rising_paths = 0;
  for (std::size_t p = 0; p < path_count_; ++p) {
    if (is_active(p)) {
      rising_paths |= Mask{1} << p;
      const auto transfers = static_cast<double>(count(p));
      for (const LinkUse& use : topology_.edges[p].uses) {
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
    for (std::size_t c = 0; c < limits; ++c) {
      if (constraints[c].rising > 0) {
        const bool binds = constraints[c].left / constraints[c].rising <= step * (1 + 1e-12);
        constraints[c].left -= step * constraints[c].rising;
        constraints[c].is_full = binds;
      }
    }
    for (std::size_t p = 0; p < path_count_; ++p) {
      if ((rising_paths >> p & 1U) == 0) {
        continue;
      }
      bool stops = false;
      for (const LinkUse& use : topology_.edges[p].uses) {
        stops = stops || constraints[kLimits * use.link + (use.forward ? 0 : 1)].is_full ||
                constraints[kLimits * use.link + 2].is_full;
      }
      if (stops) {
        rates[p] = level;
        rising_paths &= ~(Mask{1} << p);
        const auto transfers = static_cast<double>(count(p));
        for (const LinkUse& use : topology_.edges[p].uses) {
          constraints[kLimits * use.link + (use.forward ? 0 : 1)].rising -= transfers;
          constraints[kLimits * use.link + 2].rising -= transfers;
        }
      }
    }
  }
  return rates;
}

inline void SharedLinks::note_busy(Mask busy_links) {
  for (Mask changed = busy_links ^ busy_links_; changed != 0; changed &= changed - 1) {
    const auto link = static_cast<std::size_t>(std::countr_zero(changed));
    const bool begins = (busy_links >> link & 1U) != 0;
    links_[link].busy += begins ? SimTime() - now_ : now_ - SimTime();
  }
  busy_links_ = busy_links;
}

const SharedLinks::Pattern& SharedLinks::remember(std::size_t place) {
  if (crowded_paths_ > 0) {
    place = patterns_.size() - 1;
  }
  double* const shares = &remembered_[place * 2 * path_count_];
  const std::vector<double>& rates = fair_rates();
  for (std::size_t p = 0; p < path_count_; ++p) {
    shares[p] = rates[p] * 1e-9;
    shares[path_count_ + p] = 1e9 / rates[p];
  }
  patterns_[place] = {pattern_ & ~kCrowded, links_in_use(), shares};
  return patterns_[place];
}

void SharedLinks::share() {
  constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15ULL;
  const std::size_t place = (pattern_ * kMultiplier) >> (64 - kRememberedBits);
  const Pattern* pattern = &patterns_[place];
  if (pattern->key != pattern_) [[unlikely]] {
    pattern = &remember(place);
  }
  const double* const new_rates = pattern->shares;
  const SimTime now = now_;
  const Mask first_changed = std::exchange(first_changed_, 0);
  if (pattern->links != busy_links_) {
    note_busy(pattern->links);
  }
  SimTime next = kNever;
  std::uint32_t next_path = 0;
  for (Mask left = active_; left != 0; left &= left - 1) {
    const auto p = static_cast<std::uint32_t>(std::countr_zero(left));
    const double rate = new_rates[p];
    if (rates_[p] != rate || (first_changed >> p & 1U) != 0) {
      Path& path = paths_[p];
      path.settle(rates_[p], now);
      rates_[p] = rate;
      const double bytes = path.first.due - path.served;
      due_at_[p] = bytes <= 0 ? now : now + ceil_ns(bytes * new_rates[path_count_ + p]);
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
