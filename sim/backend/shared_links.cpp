#include "sim/backend/shared_links.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

/// Limits of one link: one way, the other way, both together.
constexpr std::size_t kLimits = 3;
/// Most bits of a path's number of transfers in the key of a pattern.
constexpr std::size_t kMostCountBits = 8;

}  // namespace

SharedLinks::SharedLinks(Topology topology)
    : topology_(std::move(topology)),
      path_bits_(static_cast<unsigned>(std::bit_width(topology_.edges.size()))),
      path_mask_((1U << path_bits_) - 1),
      count_bits_(static_cast<unsigned>(
          std::min(kKeyBits / std::max<std::size_t>(1, topology_.edges.size()), kMostCountBits))),
      count_most_((std::size_t{1} << count_bits_) - 1),
      paths_(topology_.edges.size()),
      busy_(topology_.links.size()),
      patterns_(std::size_t{1} << kRememberedBits),
      crowded_(std::make_unique<Pattern>()),
      in_force_(crowded_.get()),
      active_(paths_.size()),
      pattern_(count_bits_ == 0 ? kCrowded : 0) {
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    paths_[p].edge = &topology_.edges[p];
    paths_[p].index = static_cast<std::uint32_t>(p);
    paths_[p].pattern_step = count_bits_ == 0 ? 0 : std::uint64_t{1} << (count_bits_ * p);
  }
}

void SharedLinks::set_computing(bool computing, SimTime now) {
  if (computing == ((pattern_ & kComputing) != 0)) {
    return;
  }
  advance(now);
  pattern_ ^= kComputing;
  changed_ = true;
}

TransferId SharedLinks::start_behind(std::size_t index, Bytes bytes, std::uint64_t cookie,
                                     SimTime now, bool open) {
  advance(now);
  if (!is_active(index)) {
    return start(index, bytes, cookie, now, open);
  }
  Path& path = paths_[index];
  const std::size_t before = count(path);
  if (before < count_most_) {
    pattern_ += path.pattern_step;
  } else if (before == count_most_) {
    ++crowded_paths_;
    pattern_ |= kCrowded;
  }
  path.given += bytes;
  path.settle(now);
  path.rate = kChanged;
  changed_ = true;
  const std::uint64_t sequence = next_sequence_++;
  const TransferId id = name(index, sequence);
  Pending added{path.served + static_cast<double>(bytes.value), sequence, cookie, bytes, id, open};
  if (added.due < path.first.due) {
    std::swap(added, path.first);
  }
  path.rest.push_back(added);
  std::push_heap(path.rest.begin(), path.rest.end(), Later{});
  return id;
}

const SharedLinks::Pending& SharedLinks::finish_before(Path& path) {
  const std::size_t left = path.rest.size();
  if (left < count_most_) {
    pattern_ -= path.pattern_step;
  } else if (left == count_most_) {
    if (--crowded_paths_ == 0) {
      pattern_ &= ~kCrowded;
    }
  }
  path.settle(now_);
  path.rate = kChanged;
  finished_ = path.first;
  std::pop_heap(path.rest.begin(), path.rest.end(), Later{});
  path.first = path.rest.back();
  path.rest.pop_back();
  return finished_;
}

bool SharedLinks::extend_on(std::size_t index, TransferId transfer, Bytes bytes, SimTime now) {
  advance(now);
  Path& path = paths_[index];
  std::vector<Pending>& rest = path.rest;
  const auto is_it = [&](const Pending& p) { return p.id == transfer; };
  const auto extend = [&](Pending& pending) {
    path.settle(now);
    path.given += bytes;
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
  path.rate = kChanged;
  changed_ = true;
  return true;
}

std::size_t SharedLinks::in_flight() const {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < active_count_; ++i) {
    sum += count(*active_[i]);
  }
  return sum;
}

LinkCounters SharedLinks::counters(std::size_t link, SimTime now) const {
  LinkCounters counters{.forward = {}, .backward = {}, .busy = busy_[link]};
  const auto uses = [link](const auto& links) {
    return std::ranges::find(links, link) != links.end();
  };
  for (const Pattern& pattern : patterns_) {
    counters.busy += uses(pattern.links) ? pattern.time : SimDuration();
  }
  counters.busy += uses(crowded_->links) ? crowded_->time : SimDuration();
  counters.busy += uses(in_force_->links) ? now_ - in_force_since_ : SimDuration();
  for (std::size_t i = 0; i < active_count_; ++i) {
    if (std::ranges::any_of(active_[i]->edge->uses,
                            [link](const LinkUse& use) { return use.link == link; })) {
      counters.busy += now - now_;
      break;
    }
  }
  for (const Path& path : paths_) {
    for (const LinkUse& use : path.edge->uses) {
      if (use.link == link) {
        (use.forward ? counters.forward : counters.backward) += moved(path.index, now);
      }
    }
  }
  return counters;
}

Bytes SharedLinks::left(std::size_t index, SimTime now) const {
  Bytes sum;
  const Path& path = paths_[index];
  if (is_active(index)) {
    const double rate = std::max(0.0, path.rate);  // after a change no time has passed
    const double served = path.served + rate * static_cast<double>((now - path.settled).ns);
    const auto add = [&](const Pending& pending) {
      const double bytes = std::max(0.0, pending.due - served);
      sum += std::min(pending.bytes, Bytes(static_cast<std::int64_t>(std::ceil(bytes))));
    };
    add(path.first);
    std::ranges::for_each(path.rest, add);
  }
  return sum;
}

/// Progressive filling: all rates rise together until a limit is reached. Transfers under that
/// limit keep their rate, and the others continue to rise.
void SharedLinks::share_fairly(std::vector<Share>& shares, std::vector<std::size_t>& links) {
  constraints_.assign(kLimits * topology_.links.size(), {});
  const auto each_constraint = [&](const Path& path, auto&& visit) {
    for (const LinkUse& use : path.edge->uses) {
      visit(constraints_[kLimits * use.link + (use.forward ? 0 : 1)]);
      visit(constraints_[kLimits * use.link + 2]);
    }
  };
  rising_.assign(active_.begin(), active_.begin() + static_cast<std::ptrdiff_t>(active_count_));
  for (const Path* path : rising_) {
    const auto transfers = static_cast<double>(count(*path));
    each_constraint(*path, [&](Constraint& c) { c.rising += transfers; });
  }
  const auto busy = [&](std::size_t link) { return constraints_[kLimits * link + 2].rising > 0; };
  const bool computing = (pattern_ & kComputing) != 0;
  links.clear();
  for (std::size_t i = 0; i < topology_.links.size(); ++i) {
    if (!busy(i)) {
      continue;
    }
    links.push_back(i);
    const DuplexLimits limits = topology_.limits_beside(i, computing, busy);
    constraints_[kLimits * i].left = limits.forward.value;
    constraints_[kLimits * i + 1].left = limits.backward.value;
    constraints_[kLimits * i + 2].left = limits.both.value;
  }
  shares.resize(paths_.size());
  double level = 0;
  while (!rising_.empty()) {
    double step = std::numeric_limits<double>::infinity();
    for (const Constraint& c : constraints_) {
      if (c.rising > 0) {
        step = std::min(step, c.left / c.rising);
      }
    }
    level += step;
    for (Constraint& c : constraints_) {
      if (c.rising > 0) {
        c.is_full = c.left / c.rising <= step * (1 + 1e-12);
        c.left -= step * c.rising;
      }
    }
    std::erase_if(rising_, [&](const Path* path) {
      bool stops = false;
      each_constraint(*path, [&](const Constraint& c) { stops = stops || c.is_full; });
      if (stops) {
        shares[path->index] = {.rate = level * 1e-9, .ns_per_byte = 1e9 / level};
        const auto transfers = static_cast<double>(count(*path));
        each_constraint(*path, [&](Constraint& c) { c.rising -= transfers; });
      }
      return stops;
    });
  }
}

SharedLinks::Pattern& SharedLinks::remember(Pattern& pattern) {
  Pattern& place = (pattern_ & kCrowded) != 0 ? *crowded_ : pattern;
  for (const std::size_t link : place.links) {
    busy_[link] += place.time;
  }
  place.time = {};
  place.key = pattern_;
  share_fairly(place.shares, place.links);
  return place;
}

void SharedLinks::share() {
  constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15ULL;
  const SimTime now = now_;
  in_force_->time += now - in_force_since_;
  in_force_since_ = now;
  Pattern& place = patterns_[(pattern_ * kMultiplier) >> (64 - kRememberedBits)];
  Pattern& pattern = place.key == pattern_ ? place : remember(place);
  in_force_ = &pattern;
  changed_ = false;
  const Share* const shares = pattern.shares.data();
  std::int64_t next = kNever.ns;
  Path* next_path = nullptr;
  Path* const* const end = active_.data() + active_count_;
  for (Path* const* left = active_.data(); left != end; ++left) {
    Path& path = **left;
    const Share& share = shares[path.index];
    // Compares bits: neither number is a NaN or a negative zero, and integers take fewer
    // instructions.
    if (std::bit_cast<std::uint64_t>(path.rate) != std::bit_cast<std::uint64_t>(share.rate)) {
      path.settle(now);
      path.rate = share.rate;
      const double bytes = path.first.due - path.served;
      path.due_at = bytes <= 0 ? now : now + ceil_ns(bytes * share.ns_per_byte);
    }
    const std::int64_t due = path.due_at.ns;
    if (due < next) {
      next = due;
      next_path = &path;
    } else if (due == next) [[unlikely]] {
      if (next_path == nullptr || path.first.sequence < next_path->first.sequence) {
        next_path = &path;
      }
    }
  }
  next_ = SimTime(next);
  next_path_ = next_path;
}

}  // namespace kvtier
