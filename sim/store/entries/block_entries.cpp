#include "sim/store/entries/block_entries.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "sim/core/assert.hpp"

namespace kvtier {

BlockEntries::BlockEntries(const PoolRules& rules, Bytes bytes_per_token, const Streams& streams,
                           const PolicyRegistry& registry)
    : block_(rules.block),
      streams_(streams),
      groups_blocks_(has_entries(rules.unit)),
      leaves_in_part_(rules.unit == EvictionUnit::tail),
      order_(rules, bytes_per_token, registry) {}

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

std::uint32_t BlockEntries::group_for(StreamId stream, std::int64_t block) const {
  const std::vector<std::uint32_t>& groups = groups_in(stream);
  if (!leaves_in_part_) {
    return groups.empty() ? kNone : groups.front();
  }
  const auto behind = std::ranges::upper_bound(
      groups, block, {}, [&](std::uint32_t group) { return groups_[group].begin; });
  if (behind != groups.begin() && groups_[*std::prev(behind)].end() >= block) {
    return *std::prev(behind);
  }
  return behind != groups.end() && groups_[*behind].begin == block + 1 &&
                 !ends_use(stream, block + 1)
             ? *behind
             : kNone;
}

bool BlockEntries::ends_use(StreamId stream, std::int64_t block) const {
  return std::ranges::any_of(path_, [&](const Stretch& stretch) {
    return stretch.stream == stream && stretch.end == block;
  });
}

std::uint32_t BlockEntries::make_group(StreamId stream, std::int64_t begin) {
  auto made = static_cast<std::uint32_t>(groups_.size());
  if (free_groups_.empty()) {
    groups_.emplace_back();
  } else {
    made = free_groups_.back();
    free_groups_.pop_back();
  }
  groups_[made].stream = stream;
  groups_[made].begin = begin;
  if (stream.value >= in_stream_.size()) {
    in_stream_.resize(static_cast<std::size_t>(stream.value) + 1);
  }
  std::vector<std::uint32_t>& groups = in_stream_[stream.value];
  groups.insert(std::ranges::upper_bound(groups, begin, {},
                                         [&](std::uint32_t group) { return groups_[group].begin; }),
                made);
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

void BlockEntries::put(std::uint32_t at, std::int64_t block, const Cell& cell) {
  Group& group = groups_[at];
  for (; block < group.begin; --group.begin) {
    group.cells.push_front({});
  }
  group.cells.resize(
      std::max(group.cells.size(), static_cast<std::size_t>(block + 1 - group.begin)));
  group.cells[static_cast<std::size_t>(block - group.begin)] = cell;
  ++group.blocks;
  group.may_leave += cell.may_leave ? 1 : 0;
  group.resized = true;
  places_[cell.number] = {at, block};
  change(at);
}

void BlockEntries::join_new(std::uint32_t before, std::uint32_t behind) {
  if ((groups_[before].entry != kNone && groups_[behind].entry != kNone) ||
      groups_[before].end() != groups_[behind].begin ||
      ends_use(groups_[behind].stream, groups_[behind].begin)) {
    return;
  }
  const bool is_behind_new = groups_[behind].entry == kNone;
  const std::uint32_t into = is_behind_new ? before : behind;
  const Group joined = groups_[is_behind_new ? behind : before];
  free_group(is_behind_new ? behind : before);
  for (std::int64_t i = 0; i < std::ssize(joined.cells); ++i) {
    if (const Cell& cell = joined.cells[static_cast<std::size_t>(i)]; cell.number != kNone) {
      put(into, joined.begin + i, cell);
    }
  }
}

void BlockEntries::cut(std::uint32_t at, std::int64_t block) {
  const std::uint32_t made = make_group(groups_[at].stream, block);
  Group& head = groups_[at];
  Group& tail = groups_[made];
  tail.hit_in = head.hit_in;
  tail.released_in = head.released_in;
  const std::vector<Cell> cells(head.cells.begin() + (block - head.begin), head.cells.end());
  head.cells.resize(static_cast<std::size_t>(block - head.begin));
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (cells[i].number != kNone) {
      --head.blocks;
      head.may_leave -= cells[i].may_leave ? 1 : 0;
      put(made, block + static_cast<std::int64_t>(i), cells[i]);
    }
  }
  trim(head);
  trim(tail);
  know(made, order_.split(head.entry, key_of(tail.stream, tail.begin), head.blocks));
  // Where blocks are missing, the policy has counted them in.
  tail.resized = tail.begin != groups_[at].begin + groups_[at].blocks;
  change(at);
}

void BlockEntries::trim(Group& group) {
  const auto is_here = [](const Cell& cell) { return cell.number != kNone; };
  for (; !group.cells.empty() && !is_here(group.cells.front()); ++group.begin) {
    group.cells.pop_front();
  }
  while (!group.cells.empty() && !is_here(group.cells.back())) {
    group.cells.pop_back();
  }
}

// ---- What the policy knows ----

std::int64_t BlockEntries::count_evictable(const Group& group) const {
  const bool is_used = std::ranges::any_of(path_, [&](const Stretch& stretch) {
    return stretch.stream == group.stream && stretch.begin < group.end() &&
           group.begin < stretch.end;
  });
  if (is_used) {
    return 0;
  }
  if (!leaves_in_part_) {
    return group.may_leave == group.blocks ? group.blocks : 0;
  }
  std::int64_t count = 0;
  for (auto cell = group.cells.rbegin(); cell != group.cells.rend(); ++cell) {
    if (cell->number != kNone && !cell->may_leave) {
      break;
    }
    count += cell->number != kNone ? 1 : 0;
  }
  return count;
}

void BlockEntries::change(std::uint32_t at) {
  if (!std::exchange(groups_[at].to_be_counted, true)) {
    to_be_counted_.push_back(at);
  }
}

void BlockEntries::change_path() {
  for (const Stretch& stretch : path_) {
    for (const std::uint32_t group : groups_in(stretch.stream)) {
      change(group);
    }
  }
}

std::int64_t BlockEntries::evictable() {
  for (const std::uint32_t at : to_be_counted_) {
    Group& group = groups_[at];
    if (std::exchange(group.to_be_counted, false)) {
      const std::int64_t count = count_evictable(group);
      evictable_ += count - std::exchange(group.evictable, count);
      if (!std::exchange(group.to_be_told, true)) {
        to_be_told_.push_back(at);
      }
    }
  }
  to_be_counted_.clear();
  return evictable_;
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
    order_.resize(group.entry, group.begin, group.blocks);
  }
}

void BlockEntries::tell_new(std::uint32_t at) {
  const Group& group = groups_[at];
  std::erase(new_, at);
  const EntryKey key =
      leaves_in_part_ ? key_of(group.stream, group.begin) : key_of_stream(group.stream);
  know(at, order_.insert(key, group.begin, group.blocks));
}

void BlockEntries::tell_all() {
  while (!new_.empty()) {
    tell_new(new_.front());
  }
  static_cast<void>(evictable());
  std::ranges::sort(to_be_told_, {}, [&](std::uint32_t at) {
    return std::pair(groups_[at].stream, groups_[at].begin);
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

BlockEntries::Group& BlockEntries::known_group_of(std::uint32_t block) {
  if (groups_[places_[block].group].entry == kNone) {
    tell_new(places_[block].group);
  }
  return groups_[places_[block].group];
}

// ---- Uses ----

void BlockEntries::begin_use(const Context& context) {
  if (groups_blocks_) {
    ++use_;
    extend_use(context);
  }
}

void BlockEntries::extend_use(const Context& context) {
  if (!groups_blocks_) {
    return;
  }
  tell_all();
  change_path();
  streams_.path(context.stream, context.tokens.value / block_.value, block_.value, path_);
  for (const Stretch& stretch : path_) {
    const auto is_cut = [&](std::uint32_t at) {
      return groups_[at].begin < stretch.end && stretch.end < groups_[at].end();
    };
    const std::vector<std::uint32_t>& groups = groups_in(stretch.stream);
    const auto found = std::ranges::find_if(groups, is_cut);
    if (leaves_in_part_ && found != groups.end()) {
      cut(*found, stretch.end);
    }
  }
  change_path();
}

void BlockEntries::end_use() {
  change_path();
  path_.clear();
}

void BlockEntries::hit(std::uint32_t block) {
  if (!groups_blocks_) {
    order_.hit(block);
    return;
  }
  Group& group = known_group_of(block);
  if (group.released_in != use_ && std::exchange(group.hit_in, use_) != use_) {
    order_.hit(group.entry);
  }
}

void BlockEntries::release(std::uint32_t block) {
  if (!groups_blocks_) {
    order_.release(block);
  } else if (Group& group = known_group_of(block); std::exchange(group.released_in, use_) != use_) {
    tell_size(group);
    order_.release(group.entry);
  }
}

// ---- Blocks ----

std::uint32_t BlockEntries::insert(StreamId stream, std::int64_t block) {
  if (!groups_blocks_) {
    return order_.insert(key_of(stream, block), block, 1);
  }
  auto made = static_cast<std::uint32_t>(places_.size());
  if (free_places_.empty()) {
    places_.emplace_back();
  } else {
    made = free_places_.back();
    free_places_.pop_back();
  }
  std::uint32_t group = group_for(stream, block);
  if (group == kNone) {
    group = make_group(stream, block);
    new_.push_back(group);
  }
  put(group, block, {.number = made});
  const std::vector<std::uint32_t>& groups = groups_in(stream);
  if (const auto next = std::ranges::find(groups, group) + 1; next != groups.end()) {
    join_new(group, *next);
  }
  if (const auto here = std::ranges::find(groups, places_[made].group); here != groups.begin()) {
    join_new(*std::prev(here), *here);
  }
  return made;
}

void BlockEntries::remove(std::uint32_t block) {
  if (!groups_blocks_) {
    order_.remove(block);
    return;
  }
  const Place place = std::exchange(places_[block], {});
  free_places_.push_back(block);
  Group& group = groups_[place.group];
  Cell& cell = group.cells[static_cast<std::size_t>(place.block - group.begin)];
  group.may_leave -= cell.may_leave ? 1 : 0;
  cell = {};
  if (--group.blocks == 0) {
    free_group(place.group);
    return;
  }
  trim(group);
  group.resized = true;
  change(place.group);
}

void BlockEntries::offer(std::uint32_t block, bool may_leave) {
  if (!groups_blocks_) {
    order_.offer(block, may_leave);
    return;
  }
  const Place& place = places_[block];
  Group& group = groups_[place.group];
  Cell& cell = group.cells[static_cast<std::size_t>(place.block - group.begin)];
  if (std::exchange(cell.may_leave, may_leave) != may_leave) {
    group.may_leave += may_leave ? 1 : -1;
    change(place.group);
  }
}

bool BlockEntries::is_offered(std::uint32_t block) const {
  if (!groups_blocks_) {
    return order_.is_offered(block);
  }
  const Place& place = places_[block];
  const Group& group = groups_[place.group];
  return group.cells[static_cast<std::size_t>(place.block - group.begin)].may_leave;
}

// ---- Victims ----

bool BlockEntries::choose(std::int64_t blocks, Demand demand, const BlockRun* newcomer) {
  EntryKey key;
  std::uint32_t stays = kNone;
  if (groups_blocks_) {
    tell_all();
  }
  if (newcomer != nullptr) {
    key = groups_blocks_ ? key_of_stream(newcomer->stream)
                         : key_of(newcomer->stream, newcomer->begin);
    stays = groups_blocks_ ? group_for(newcomer->stream, newcomer->begin) : kNone;
  }
  if (stays != kNone) {
    order_.offer(groups_[stays].entry, false);
  }
  const bool chosen = order_.choose(blocks, demand, newcomer != nullptr ? &key : nullptr);
  if (stays != kNone) {
    order_.offer_last(groups_[stays].entry, groups_[stays].evictable);
  }
  return chosen;
}

void BlockEntries::choose_oldest(std::int64_t blocks) {
  if (groups_blocks_) {
    tell_all();
  }
  order_.choose_oldest(blocks);
}

std::vector<std::uint32_t> BlockEntries::take_chosen() {
  std::vector<std::uint32_t> blocks;
  /// A policy may choose parts of an entry one after the other.
  std::map<std::uint32_t, std::int64_t> left;
  for (const auto& [entry, keep] : order_.take_chosen()) {
    if (!groups_blocks_) {
      blocks.push_back(entry);
      continue;
    }
    const Group& group = groups_[group_of_[entry]];
    std::int64_t& rest = left.emplace(entry, group.blocks).first->second;
    std::int64_t number = 0;
    for (auto cell = group.cells.begin(); cell != group.cells.end() && number < rest; ++cell) {
      if (cell->number != kNone && number++ >= keep) {
        blocks.push_back(cell->number);
      }
    }
    rest = std::min(rest, keep);
    change(group_of_[entry]);
  }
  return blocks;
}

bool BlockEntries::admits(StreamId stream, std::int64_t block) const {
  if (!filters() || !groups_blocks_) {
    return order_.admits(key_of(stream, block));
  }
  return group_for(stream, block) != kNone || order_.admits(key_of_stream(stream));
}

void BlockEntries::note_use(StreamId stream, std::int64_t block) {
  if (!groups_blocks_ || key_of(stream, block) == key_of_stream(stream)) {
    order_.note_use(key_of(stream, block));
  }
}

void BlockEntries::check_invariants() const {
  for (const std::vector<std::uint32_t>& groups : in_stream_) {
    KVTIER_ASSERT(leaves_in_part_ || groups.size() <= 1, "a sequence is one entry");
    std::int64_t end = 0;
    for (const std::uint32_t at : groups) {
      const Group& group = groups_[at];
      KVTIER_ASSERT(group.begin >= end && !group.cells.empty() &&
                        group.cells.front().number != kNone && group.cells.back().number != kNone,
                    "a stream's entries are in order, and end where their blocks do");
      end = group.end();
      std::int64_t blocks = 0;
      std::int64_t may_leave = 0;
      for (std::int64_t i = 0; i < std::ssize(group.cells); ++i) {
        const Cell& cell = group.cells[static_cast<std::size_t>(i)];
        blocks += cell.number != kNone ? 1 : 0;
        may_leave += cell.may_leave ? 1 : 0;
        KVTIER_ASSERT(cell.number == kNone || (places_[cell.number].group == at &&
                                               places_[cell.number].block == group.begin + i),
                      "a block knows its entry");
      }
      KVTIER_ASSERT(blocks == group.blocks && may_leave == group.may_leave,
                    "an entry is its blocks");
    }
  }
  if (new_.empty() && to_be_told_.empty() && to_be_counted_.empty()) {
    order_.check_invariants();
  }
}

}  // namespace kvtier
