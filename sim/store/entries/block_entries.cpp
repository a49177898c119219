#include "sim/store/entries/block_entries.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include <boost/container/small_vector.hpp>

#include "sim/core/assert.hpp"

namespace kvtier {

BlockEntries::BlockEntries(const PoolRules& rules, Bytes bytes_per_token, const Streams& streams,
                           const PolicyRegistry& registry)
    : block_(rules.block),
      streams_(streams),
      groups_blocks_(has_entries(rules.unit)),
      order_(rules, bytes_per_token, streams, registry) {}

void BlockEntries::advance(SimTime now) {
  if (groups_blocks_) {
    tell_all();  // what has come in did so before
  }
  order_.advance(now);
}

// ---- Groups ----

const std::vector<std::uint32_t>& BlockEntries::groups_in(StreamId stream) const {
  static const std::vector<std::uint32_t> kNoGroups;
  return stream.value < in_stream_.size() ? in_stream_[stream.value] : kNoGroups;
}

std::uint32_t BlockEntries::group_for(const BlockRun& run) const {
  const std::vector<std::uint32_t>& groups = groups_in(run.stream);
  if (!order_.leaves_in_part()) {
    return groups.empty() ? kNone : groups.front();
  }
  const auto behind = std::ranges::upper_bound(
      groups, run.begin, {}, [&](std::uint32_t group) { return groups_[group].begin(); });
  if (behind != groups.begin()) {
    const std::int64_t end = groups_[*std::prev(behind)].end();
    if (end > run.begin || (end == run.begin && !ends_use(run.stream, end))) {
      return *std::prev(behind);
    }
  }
  return behind != groups.end() && groups_[*behind].begin() == run.end &&
                 !ends_use(run.stream, run.end)
             ? *behind
             : kNone;
}

template <class Visit>
void BlockEntries::for_each_group(const BlockRun& run, Visit visit) const {
  const std::vector<std::uint32_t>& groups = groups_in(run.stream);
  const auto begin_of = [&](std::uint32_t group) { return groups_[group].begin(); };
  auto first = std::ranges::upper_bound(groups, run.begin, {}, begin_of);
  first -= first == groups.begin() ? 0 : 1;
  const auto end = std::ranges::lower_bound(first, groups.end(), run.end, {}, begin_of);
  const auto visit_one = [&](std::uint32_t group) {
    const BlockRun part{run.stream, std::max(run.begin, groups_[group].begin()),
                        std::min(run.end, groups_[group].end()), run.first};
    if (part.begin < part.end) {
      visit(group, part);
    }
  };
  if (run.first == End::tail) {
    for (auto at = end; at != first;) {
      visit_one(*--at);
    }
  } else {
    for (auto at = first; at != end; ++at) {
      visit_one(*at);
    }
  }
}

bool BlockEntries::ends_use(StreamId stream, std::int64_t block) const {
  return std::ranges::any_of(path_, [&](const Stretch& stretch) {
    return stretch.stream == stream && stretch.end == block;
  });
}

std::uint32_t BlockEntries::make_group(StreamId stream, std::int64_t first) {
  auto made = static_cast<std::uint32_t>(groups_.size());
  if (free_groups_.empty()) {
    groups_.emplace_back();
  } else {
    made = free_groups_.back();
    free_groups_.pop_back();
  }
  groups_[made].stream = stream;
  if (stream.value >= in_stream_.size()) {
    in_stream_.resize(static_cast<std::size_t>(stream.value) + 1);
  }
  std::vector<std::uint32_t>& groups = in_stream_[stream.value];
  const auto behind = std::ranges::upper_bound(
      groups, first, {}, [&](std::uint32_t group) { return groups_[group].begin(); });
  groups.insert(behind, made);
  return made;
}

void BlockEntries::free_group(std::uint32_t at) {
  Group& group = groups_[at];
  evictable_ -= group.evictable;
  std::vector<std::uint32_t>& groups = in_stream_[group.stream.value];
  groups.erase(std::ranges::find(groups, at));
  if (group.entry != kNone) {
    order_.remove(group.entry);
  } else {
    std::erase(new_, at);
  }
  group = {};
  free_groups_.push_back(at);
}

void BlockEntries::add(std::uint32_t at, const Intervals& blocks, const Intervals& busy) {
  groups_[at].blocks.add(blocks);
  groups_[at].busy.add(busy);
  groups_[at].resized = true;
  change(at);
}

void BlockEntries::join_new(std::uint32_t before, std::uint32_t behind) {
  if ((groups_[before].entry != kNone && groups_[behind].entry != kNone) ||
      groups_[before].end() != groups_[behind].begin() ||
      ends_use(groups_[behind].stream, groups_[behind].begin())) {
    return;
  }
  const bool is_behind_new = groups_[behind].entry == kNone;
  const std::uint32_t into = is_behind_new ? before : behind;
  const Group joined = groups_[is_behind_new ? behind : before];
  free_group(is_behind_new ? behind : before);
  add(into, joined.blocks, joined.busy);
  if (joined.hit_in == use_) {
    hit_group(into);
  }
}

void BlockEntries::cut(std::uint32_t at, std::int64_t block) {
  const std::int64_t begin = groups_[at].begin();
  const std::int64_t end = groups_[at].end();
  Intervals blocks = groups_[at].blocks;
  Intervals busy = groups_[at].busy;
  blocks.subtract(begin, block);
  busy.subtract(begin, block);
  const std::uint32_t made = make_group(groups_[at].stream, blocks.first());
  add(made, blocks, busy);
  Group& head = groups_[at];
  head.blocks.subtract(block, end);
  head.busy.subtract(block, end);
  change(at);
  Group& tail = groups_[made];
  tail.hit_in = head.hit_in;
  tail.released_in = head.released_in;
  know(made, order_.split(head.entry, key_of(tail.stream, tail.begin()), head.size()));
  // The policy has counted in the blocks that are missing.
  tail.resized = tail.begin() != head.begin() + head.size();
}

// ---- What the policy knows ----

std::int64_t BlockEntries::count_evictable(const Group& group) const {
  const bool is_used = std::ranges::any_of(path_, [&](const Stretch& stretch) {
    return stretch.stream == group.stream && stretch.begin < group.end() &&
           group.begin() < stretch.end;
  });
  if (is_used) {
    return 0;
  }
  if (group.busy.empty() || !order_.leaves_in_part()) {
    return group.busy.empty() ? group.size() : 0;
  }
  const std::int64_t first = group.busy.end_of_last();
  std::int64_t count = 0;
  for (const Intervals::Interval& part : group.blocks) {
    count += std::max<std::int64_t>(0, part.end - std::max(first, part.begin));
  }
  return count;
}

void BlockEntries::change(std::uint32_t at) {
  if (!std::exchange(groups_[at].to_be_counted, true)) {
    to_be_counted_.push_back(at);
  }
}

void BlockEntries::tell(std::uint32_t at) {
  if (!std::exchange(groups_[at].to_be_told, true)) {
    to_be_told_.push_back(at);
  }
}

void BlockEntries::change_path() {
  for (const Stretch& stretch : path_) {
    for (const std::uint32_t group : groups_in(stretch.stream)) {
      change(group);
    }
  }
}

void BlockEntries::count_changed() {
  for (const std::uint32_t at : to_be_counted_) {
    Group& group = groups_[at];
    if (std::exchange(group.to_be_counted, false)) {
      const std::int64_t before = std::exchange(group.evictable, count_evictable(group));
      evictable_ += group.evictable - before;
      if (group.evictable != before || group.resized) {
        tell(at);
      }
    }
  }
  to_be_counted_.clear();
}

void BlockEntries::know(std::uint32_t at, std::uint32_t entry) {
  groups_[at].entry = entry;
  groups_[at].resized = false;
  if (entry >= group_of_.size()) {
    group_of_.resize(static_cast<std::size_t>(entry) + 1);
  }
  group_of_[entry] = at;
  change(at);
}

void BlockEntries::tell_size(Group& group) {
  if (std::exchange(group.resized, false)) {
    order_.resize(group.entry, group.begin(), group.size());
  }
}

void BlockEntries::tell_new(std::uint32_t at) {
  const Group& group = groups_[at];
  std::erase(new_, at);
  const EntryKey key =
      order_.leaves_in_part() ? key_of(group.stream, group.begin()) : key_of_stream(group.stream);
  know(at, order_.insert(key, group.begin(), group.size(), last_use_of(group.stream)));
  if (group.hit_in > 0) {
    order_.hit(group.entry);
  }
}

void BlockEntries::tell_changes() {
  while (!new_.empty()) {
    tell_new(new_.front());
  }
  static_cast<void>(evictable());
  if (to_be_told_.empty()) {
    return;
  }
  std::erase_if(to_be_told_, [&](std::uint32_t at) { return !groups_[at].to_be_told; });
  std::ranges::sort(to_be_told_, {}, [&](std::uint32_t at) {
    return std::pair(groups_[at].stream, groups_[at].begin());
  });
  for (const std::uint32_t at : to_be_told_) {
    Group& group = groups_[at];
    if (std::exchange(group.to_be_told, false)) {
      tell_size(group);
      order_.offer_last(group.entry, group.evictable);
    }
  }
  to_be_told_.clear();
}

BlockEntries::Group& BlockEntries::known(std::uint32_t at) {
  if (groups_[at].entry == kNone) {
    tell_new(at);
  }
  return groups_[at];
}

// ---- Uses ----

void BlockEntries::use_path(const Context& context) {
  KVTIER_ASSERT(groups_blocks_, "a use is of entries of several blocks");
  change_path();
  streams_.path(context.stream, context.tokens.value / block_.value, block_.value, path_);
  for (const Stretch& stretch : path_) {
    note_use_of(stretch.stream);
    if (!order_.leaves_in_part()) {
      continue;
    }
    const std::vector<std::uint32_t>& groups = groups_in(stretch.stream);
    const auto found = std::ranges::find_if(groups, [&](std::uint32_t at) {
      return groups_[at].begin() < stretch.end && stretch.end < groups_[at].end();
    });
    if (found != groups.end()) {
      cut(*found, stretch.end);
    }
  }
  change_path();
}

void BlockEntries::note_use_of(StreamId stream) {
  if (stream.value >= last_use_.size()) {
    last_use_.resize(static_cast<std::size_t>(stream.value) + 1);
  }
  last_use_[stream.value] = order_.now();
}

SimTime BlockEntries::last_use_of(StreamId stream) const {
  return stream.value < last_use_.size() ? last_use_[stream.value] : order_.now();
}

void BlockEntries::hit_group(std::uint32_t at) {
  Group& group = groups_[at];
  if (group.released_in != use_ && std::exchange(group.hit_in, use_) != use_ &&
      group.entry != kNone) {
    order_.hit(group.entry);
  }
}

void BlockEntries::release_group(std::uint32_t at) {
  Group& group = known(at);
  if (std::exchange(group.released_in, use_) != use_) {
    if (group.resized) {
      tell_size(group);
      tell(at);
    }
    order_.release(group.entry);
  }
}

void BlockEntries::hit(const BlockRun& run, std::uint32_t number) {
  if (!groups_blocks_) {
    order_.hit(number);
    return;
  }
  for_each_group(run, [&](std::uint32_t at, const BlockRun&) { hit_group(at); });
}

void BlockEntries::release(const BlockRun& run, std::uint32_t number) {
  if (!groups_blocks_) {
    order_.release(number);
    return;
  }
  for_each_group(run, [&](std::uint32_t at, const BlockRun&) { release_group(at); });
}

void BlockEntries::use(const BlockRun& run, std::uint32_t number) {
  if (!groups_blocks_) {
    order_.hit(number);
    order_.release(number);
    return;
  }
  for_each_group(run, [&](std::uint32_t at, const BlockRun&) {
    hit_group(at);
    release_group(at);
  });
}

// ---- Blocks ----

std::int64_t BlockEntries::evictable_entries() {
  static_cast<void>(evictable());
  return std::ranges::count_if(groups_, [](const Group& group) { return group.evictable > 0; });
}

std::uint32_t BlockEntries::insert(const BlockRun& run) {
  if (!groups_blocks_) {
    return order_.insert(key_of(run.stream, run.begin), run.begin, 1);
  }
  std::uint32_t group = group_for(run);
  if (group == kNone) {
    group = make_group(run.stream, run.begin);
    new_.push_back(group);
  }
  groups_[group].blocks.add(run.begin, run.end);
  groups_[group].busy.add(run.begin, run.end);
  groups_[group].resized = true;
  change(group);
  if (order_.leaves_in_part()) {
    join_beside(group, run);
  }
  return 0;
}

void BlockEntries::join_beside(std::uint32_t group, const BlockRun& run) {
  const std::vector<std::uint32_t>& groups = groups_in(run.stream);
  if (const auto next = std::ranges::find(groups, group) + 1; next != groups.end()) {
    join_new(group, *next);
  }
  const auto here =
      std::ranges::find_if(groups, [&](std::uint32_t at) { return groups_[at].end() >= run.end; });
  if (here != groups.begin()) {
    join_new(*std::prev(here), *here);
  }
}

void BlockEntries::remove(const BlockRun& run, std::uint32_t number) {
  if (!groups_blocks_) {
    order_.remove(number);
    return;
  }
  boost::container::small_vector<std::pair<std::uint32_t, BlockRun>, 4> parts;
  for_each_group(run,
                 [&](std::uint32_t at, const BlockRun& part) { parts.emplace_back(at, part); });
  for (const auto& [at, part] : parts) {
    Group& group = groups_[at];
    if (part.size() == group.size()) {
      free_group(at);
      continue;
    }
    group.blocks.subtract(part.begin, part.end);
    group.busy.subtract(part.begin, part.end);
    group.resized = true;
    change(at);
  }
}

void BlockEntries::shift(StreamId stream, std::int64_t from, std::int64_t by) {
  tell_all();
  const auto shifted = [&](const Intervals& intervals) {
    Intervals all;
    for (const auto& [begin, end] : intervals) {
      const std::int64_t less = begin >= from ? by : 0;
      all.add(begin - less, end - less);
    }
    return all;
  };
  for (const std::uint32_t at : groups_in(stream)) {
    Group& group = groups_[at];
    group.blocks = shifted(group.blocks);
    group.busy = shifted(group.busy);
    group.resized = true;
    change(at);
  }
}

void BlockEntries::offer(const BlockRun& run, std::uint32_t number, bool may_leave) {
  if (!groups_blocks_) {
    order_.offer(number, may_leave);
    return;
  }
  for_each_group(run, [&](std::uint32_t at, const BlockRun& part) {
    if (may_leave) {
      groups_[at].busy.subtract(part.begin, part.end);
    } else {
      groups_[at].busy.add(part.begin, part.end);
    }
    change(at);
  });
}

bool BlockEntries::is_offered(const BlockRun& run, std::uint32_t number) const {
  if (!groups_blocks_) {
    return order_.is_offered(number);
  }
  bool all = true;
  for_each_group(run, [&](std::uint32_t at, const BlockRun& part) {
    all = all && !groups_[at].busy.intersects(part.begin, part.end);
  });
  return all;
}

// ---- Victims ----

bool BlockEntries::choose(std::int64_t blocks, Demand demand, const BlockRun* newcomer,
                          const Stays* stays) {
  EntryKey key;
  std::uint32_t grows = kNone;
  if (groups_blocks_) {
    tell_all();
  }
  if (newcomer != nullptr) {
    key = groups_blocks_ ? key_of_stream(newcomer->stream)
                         : key_of(newcomer->stream, newcomer->begin);
    grows = groups_blocks_ ? group_for({newcomer->stream, newcomer->begin, newcomer->begin + 1})
                           : kNone;
  }
  if (grows != kNone) {
    order_.offer(groups_[grows].entry, false);
  }
  PolicyOrder::Stays entry_stays;
  if (stays != nullptr) {
    entry_stays = [&](std::uint32_t entry) { return (*stays)(run_of(entry)); };
  }
  const bool chosen = order_.choose(blocks, demand, newcomer != nullptr ? &key : nullptr,
                                    stays != nullptr ? &entry_stays : nullptr);
  if (grows != kNone) {
    order_.offer_last(groups_[grows].entry, groups_[grows].evictable);
  }
  return chosen;
}

BlockRun BlockEntries::run_of(std::uint32_t entry) const {
  if (groups_blocks_) {
    const Group& group = groups_[group_of_[entry]];
    return {group.stream, group.begin(), group.end(), End::head};
  }
  const auto [stream, block] = place_of(order_.key(entry));
  return {stream, block, block + 1, End::head};
}

void BlockEntries::choose_oldest(std::int64_t blocks) {
  if (groups_blocks_) {
    tell_all();
  }
  order_.choose_oldest(blocks);
}

std::vector<BlockEntries::Leaving> BlockEntries::take_chosen() {
  std::vector<Leaving> leaving;
  const std::vector<PolicyOrder::Chosen>& chosen = order_.chosen();
  if (!groups_blocks_) {
    for (const PolicyOrder::Chosen& block : chosen) {
      leaving.push_back({.number = block.entry});
    }
    order_.clear_chosen();
    return leaving;
  }
  // A policy may choose parts of an entry one after the other.
  std::map<std::uint32_t, std::int64_t> left;
  for (const auto& [entry, keep] : chosen) {
    const Group& group = groups_[group_of_[entry]];
    if (!order_.leaves_in_part()) {
      for (const auto& part : group.blocks) {
        leaving.push_back({.run = {group.stream, part.begin, part.end, End::head}, .number = 0});
      }
      continue;
    }
    std::int64_t& rest = left.emplace(entry, group.size()).first->second;
    std::int64_t before = 0;
    for (const auto& part : group.blocks) {
      const std::int64_t first = part.begin;
      const std::int64_t size = part.end - first;
      const BlockRun run{group.stream, first + std::clamp<std::int64_t>(keep - before, 0, size),
                         first + std::clamp<std::int64_t>(rest - before, 0, size), End::head};
      if (run.begin < run.end) {
        leaving.push_back({.run = run, .number = 0});
      }
      before += size;
    }
    rest = std::min(rest, keep);
    change(group_of_[entry]);
    tell(group_of_[entry]);
  }
  order_.clear_chosen();
  return leaving;
}

bool BlockEntries::admits(StreamId stream, std::int64_t block) const {
  if (!filters() || !groups_blocks_) {
    return order_.admits(key_of(stream, block));
  }
  return !groups_in(stream).empty() || order_.admits(key_of_stream(stream));
}

void BlockEntries::note_use(StreamId stream, std::int64_t block) {
  if (!groups_blocks_ || key_of(stream, block) == key_of_stream(stream)) {
    order_.note_use(key_of(stream, block));
  }
}

void BlockEntries::check_invariants() {
  if (!groups_blocks_) {
    order_.check_invariants();
    return;
  }
  tell_all();
  std::int64_t evictable = 0;
  for (const std::vector<std::uint32_t>& groups : in_stream_) {
    KVTIER_ASSERT(order_.leaves_in_part() || groups.size() <= 1, "a sequence is one entry");
    std::int64_t end = 0;
    for (const std::uint32_t at : groups) {
      const Group& group = groups_[at];
      KVTIER_ASSERT(!group.blocks.empty() && group.begin() >= end,
                    "a stream's entries are disjoint and in order");
      KVTIER_ASSERT(group.blocks.contains(group.busy), "an entry is its blocks");
      KVTIER_ASSERT(group_of_[group.entry] == at, "the policy knows each entry");
      evictable += group.evictable;
      end = group.end();
    }
  }
  KVTIER_ASSERT(evictable == evictable_, "evictable blocks are those of all entries");
  order_.check_invariants();
}

}  // namespace kvtier
