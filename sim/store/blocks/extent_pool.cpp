#include "sim/store/blocks/extent_pool.hpp"

#include <algorithm>
#include <set>

#include "sim/core/assert.hpp"
#include "sim/store/blocks/repeated_sum.hpp"

namespace kvtier {

ExtentPool::ExtentPool(const PoolRules& rules, std::int64_t puts_wanted, const Streams* streams,
                       std::unique_ptr<BlockEntries> policies)
    : rules_(rules),
      order_(policies != nullptr        ? Order::policy
             : !rules.retention.empty() ? Order::priority
             : rules.eviction == "lru"  ? Order::lru
             : rules.eviction == "fifo" ? Order::fifo
             : rules.eviction == "arc"  ? Order::arc
                                        : Order::lfu),
      puts_wanted_(static_cast<std::uint32_t>(puts_wanted)),
      streams_(streams),
      policies_(std::move(policies)),
      groups_(policies_ != nullptr && policies_->groups() ? policies_.get() : nullptr) {
  KVTIER_ASSERT(order_ != Order::lfu || rules.eviction == "lfu", "the rules were checked");
  if (is_arc()) {
    PoolRules ghosts;
    ghosts.capacity = 2 * rules_.capacity;
    ghosts_.emplace_back(ghosts, 0);
    ghosts_.emplace_back(ghosts, 0);
  }
}

void ExtentPool::advance(SimTime now) {
  const SimTime before = std::exchange(now_, now);
  if (is_ranked()) {
    policies_->advance(now);
    if (has_leases()) {
      // Leases that have ended since.
      const auto first = by_age_.upper_bound({(before - rules_.lease).ns, kNone});
      for (auto at = first; at != by_age_.end() && at->first <= (now - rules_.lease).ns; ++at) {
        refresh(at->second);
      }
    }
  }
  if (!rules_.ttl) {
    return;
  }
  // Duplicates that are found next are uncovered meanwhile.
  for (bool again = true; again;) {
    again = false;
    for (auto at = by_age_.begin(); at != by_age_.end() && at->first < (now - *rules_.ttl).ns;) {
      const std::uint32_t extent = (at++)->second;
      if (extents_[extent].holders == 0 && extents_[extent].pins == 0) {
        drop(extent, DecisionKind::expire);
        again = true;
      }
    }
  }
}

std::int64_t ExtentPool::leased() const {
  std::int64_t sum = 0;
  for (auto at = by_age_.rbegin(); at != by_age_.rend(); ++at) {
    const Extent& extent = extents_[at->second];
    if (extent.used + rules_.lease <= now_) {
      break;
    }
    sum += extent.holders == 0 && extent.pins == 0 && is_leased(extent) ? extent.size() : 0;
  }
  return sum;
}

void ExtentPool::set_used(std::uint32_t at) {
  Extent& extent = extents_[at];
  if (knows_age() && extent.used != now_) {
    by_age_.erase({extent.used.ns, at});
    extent.used = now_;
    by_age_.insert({now_.ns, at});
  }
}

void ExtentPool::drop(std::uint32_t at, DecisionKind why) {
  const Extent extent = extents_[at];
  unorder(at);
  free_extent(at);
  used_ -= extent.size();
  evictable_ -= extent.size();
  recent_ -= extent.frequent ? 0 : extent.size();
  if (!is_keyless(extent)) {
    resident_ -= extent.size();
    log_left(why, extent.stream, extent.begin, extent.end);
    if (!extent.duplicate) {
      tell_removed(extent.stream, extent.begin, extent.end);
    }
    if (!duplicates_.empty()) {
      uncover(extent.stream, extent.begin, extent.end);
    }
    if (is_ranked()) {
      refresh_before(extent.stream, extent.begin);
    }
  }
}

void ExtentPool::truncate(StreamId stream, std::int64_t blocks) {
  // Duplicates that are found next are uncovered meanwhile.
  for (bool again = true; again;) {
    again = false;
    std::vector<std::uint32_t> extents = duplicates_;
    for (const auto& [key, parts] : parts_) {
      extents.insert(extents.end(), parts.begin(), parts.end());
    }
    for (std::uint32_t at = head_of(stream); at != kNone; at = extents_[at].behind) {
      extents.push_back(at);
    }
    for (const std::uint32_t at : extents) {
      const Extent& extent = extents_[at];
      if (extent.stream == stream && extent.end > blocks && extent.holders == 0 &&
          extent.pins == 0) {
        drop(cut_out(at, std::max(blocks, extent.begin), extent.end), DecisionKind::invalidate);
        again = !duplicates_.empty();
        if (again) {
          break;
        }
      }
    }
  }
}

void ExtentPool::cut(const Stretch& blocks) {
  const auto [stream, begin, end] = blocks;
  KVTIER_ASSERT(!ranks_blocks() && duplicates_.empty() && !is_arc(),
                "blocks that are found by what is before them do not move");
  for_each_piece(*this, {blocks.stream, blocks.begin, blocks.end, End::head},
                 [&](const Piece& piece) {
                   if (piece.present) {
                     const std::uint32_t at = cut_out(piece.segment, piece.begin, piece.end);
                     const Extent& extent = extents_[at];
                     evictable_ += extent.pins > 0 ? extent.size() : 0;
                     drop(at, DecisionKind::invalidate);
                   }
                 });
  std::uint32_t first = head_of(stream);
  while (first != kNone && extents_[first].begin < end) {
    first = extents_[first].behind;
  }
  const std::int64_t by = end - begin;
  for (std::uint32_t at = first; at != kNone; at = extents_[at].behind) {
    tell_removed(stream, extents_[at].begin, extents_[at].end);
    extents_[at].begin -= by;
    extents_[at].end -= by;
    tell_stored(stream, extents_[at].begin, extents_[at].end);
  }
  if (is_ranked()) {
    policies_->shift(stream, end, by);
  }
  if (first != kNone) {
    join_in_stream(first);
  }
}

bool ExtentPool::remembers(StreamId stream) const {
  return head_of(stream) != kNone || streams_of_parts_.contains(stream) ||
         std::any_of(ghosts_.begin(), ghosts_.end(),
                     [&](const ExtentPool& ghosts) { return ghosts.remembers(stream); });
}

std::uint32_t ExtentPool::make(const Extent& extent) {
  auto at = static_cast<std::uint32_t>(extents_.size());
  if (free_extents_.empty()) {
    extents_.push_back(extent);
  } else {
    at = free_extents_.back();
    free_extents_.pop_back();
    extents_[at] = extent;
  }
  if (knows_age()) [[unlikely]] {
    by_age_.insert({extent.used.ns, at});
  }
  return at;
}

void ExtentPool::free_extent(std::uint32_t at) {
  if (knows_age()) [[unlikely]] {
    by_age_.erase({extents_[at].used.ns, at});
  }
  if (extents_[at].entry != kNone) {
    if (ranks_blocks()) {
      extent_of_[extents_[at].entry] = kNone;
    }
    policies_->remove(run_of(extents_[at]), std::exchange(extents_[at].entry, kNone));
  }
  if (extents_[at].duplicate) {
    duplicates_.erase(std::find(duplicates_.begin(), duplicates_.end(), at));
  } else if (extents_[at].tokens > 0) {
    const auto parts = parts_.find(group_of(extents_[at].stream, extents_[at].begin));
    parts->second.erase(std::find(parts->second.begin(), parts->second.end(), at));
    if (parts->second.empty()) {
      parts_.erase(parts);
    }
    const auto stream = streams_of_parts_.find(extents_[at].stream);
    if (--stream->second == 0) {
      streams_of_parts_.erase(stream);
    }
  } else if (!is_keyless(extents_[at])) {
    unlink_from_stream(at);
  }
  free_extents_.push_back(at);
}

void ExtentPool::link_in_stream(std::uint32_t at) {
  Extent& extent = extents_[at];
  if (extent.stream.value >= in_stream_.size()) [[unlikely]] {
    in_stream_.resize(static_cast<std::size_t>(extent.stream.value) + 1);
  }
  Ends& ends = in_stream_[extent.stream.value];
  if (knows_forks() && ends.front == kNone) [[unlikely]] {
    forks_[fork_of(extent.stream)].push_back(extent.stream);
  }
  extent.ahead = locate(extent.stream, extent.begin);
  if (ranks_blocks()) {
    if (extent.stream.value >= blocks_of_.size()) {
      blocks_of_.resize(static_cast<std::size_t>(extent.stream.value) + 1);
    }
    Blocks& blocks = blocks_of_[extent.stream.value];
    blocks.first = streams_->first_of(extent.stream) / rules_.block.value;
    const auto place = static_cast<std::size_t>(extent.begin - blocks.first);
    blocks.extents.resize(std::max(blocks.extents.size(), place + 1), kNone);
    blocks.extents[place] = at;
  }
  std::uint32_t& next = extent.ahead != kNone ? extents_[extent.ahead].behind : ends.front;
  extent.behind = next;
  next = at;
  (extent.behind != kNone ? extents_[extent.behind].ahead : ends.back) = at;
}

void ExtentPool::unlink_from_stream(std::uint32_t at) {
  const Extent& extent = extents_[at];
  Ends& ends = in_stream_[extent.stream.value];
  (extent.ahead != kNone ? extents_[extent.ahead].behind : ends.front) = extent.behind;
  (extent.behind != kNone ? extents_[extent.behind].ahead : ends.back) = extent.ahead;
  if (ranks_blocks()) {
    Blocks& blocks = blocks_of_[extent.stream.value];
    blocks.extents[static_cast<std::size_t>(extent.begin - blocks.first)] = kNone;
    while (!blocks.extents.empty() && blocks.extents.back() == kNone) {
      blocks.extents.pop_back();
    }
  }
  if (knows_forks() && ends.front == kNone) [[unlikely]] {
    const auto fork = forks_.find(fork_of(extent.stream));
    fork->second.erase(std::find(fork->second.begin(), fork->second.end(), extent.stream));
    if (fork->second.empty()) {
      forks_.erase(fork);
    }
  }
}

ExtentPool::Key ExtentPool::group_of(StreamId stream, std::int64_t block) const {
  const std::int64_t size = rules_.block.value;
  return block == 0 ? Key{streams_->stream_at(stream, Tokens(0)), 0}
                    : Key{streams_->stream_at(stream, Tokens(block * size - 1)), block};
}

ExtentPool::Key ExtentPool::fork_of(StreamId stream) const {
  return group_of(stream, streams_->first_of(stream) / rules_.block.value);
}

bool ExtentPool::has_free_child(const Extent& extent) const {
  const std::uint32_t next = extent.behind;
  if (next != kNone && extents_[next].begin == extent.end && is_evictable(next)) {
    return true;
  }
  const auto forks = forks_.find({extent.stream, extent.end});
  return forks != forks_.end() &&
         std::any_of(forks->second.begin(), forks->second.end(), [&](StreamId child) {
           const std::uint32_t first = head_of(child);
           return child != extent.stream && extents_[first].begin == extent.end &&
                  is_evictable(first);
         });
}

bool ExtentPool::is_followed(StreamId stream, std::int64_t block) const {
  const auto is_here = [&](StreamId child) {
    return first_piece(child, block + 1, block + 2).present;
  };
  const auto forks = forks_.find({stream, block + 1});
  return is_here(stream) || parts_.contains({stream, block + 1}) ||
         (forks != forks_.end() &&
          std::any_of(forks->second.begin(), forks->second.end(), is_here));
}

std::int64_t ExtentPool::last_free_fork(const Extent& extent) const {
  auto fork = forks_.lower_bound({extent.stream, extent.end});
  while (fork != forks_.begin() && std::prev(fork)->first.first == extent.stream &&
         std::prev(fork)->first.second > extent.begin) {
    --fork;
    const std::int64_t block = fork->first.second;
    for (const StreamId child : fork->second) {
      const std::uint32_t first = head_of(child);
      if (child != extent.stream && extents_[first].begin == block && is_evictable(first)) {
        return block;
      }
    }
  }
  return extent.begin;
}

void ExtentPool::leave_part(const Context& context) {
  const std::int64_t size = rules_.block.value;
  const std::int64_t block = context.tokens.value / size;
  const StreamId stream = streams_->stream_at(context.stream, context.tokens - Tokens(1));
  const std::int64_t tokens = context.tokens.value % size;
  const Key group = group_of(stream, block);
  const auto parts = parts_.find(group);
  const bool is_here =
      parts != parts_.end() &&
      std::any_of(parts->second.begin(), parts->second.end(), [&](std::uint32_t part) {
        return extents_[part].tokens == tokens &&
               streams_->common({extents_[part].stream, context.tokens}, context) >= context.tokens;
      });
  if (is_here) {
    leave_keyless(block, 1);
    return;
  }
  evictable_ += 1;
  const std::uint32_t made = make({.stream = stream,
                                   .begin = block,
                                   .end = block + 1,
                                   .rank_class = first_class(block),
                                   .tokens = tokens,
                                   .used = now_});
  parts_[group].push_back(made);
  ++streams_of_parts_[stream];
  append(made);
}

ExtentPool::Part ExtentPool::best_part(const Context& prompt, std::int64_t block) const {
  const std::int64_t begin = block * rules_.block.value;
  Part best;
  if (prompt.tokens.value <= begin) {
    return best;
  }
  const auto offer = [&](StreamId stream, std::uint32_t extent, std::int64_t tokens) {
    const std::int64_t common =
        streams_->common({stream, Tokens(begin + tokens)}, prompt).value - begin;
    const bool both_whole =
        best.extent != kNone && extents_[extent].tokens == 0 && extents_[best.extent].tokens == 0;
    const bool both_parts =
        best.extent != kNone && extents_[extent].tokens > 0 && extents_[best.extent].tokens > 0;
    const bool earlier = (both_whole && stream < best.stream) ||
                         (both_parts && std::pair(stream, tokens) <
                                            std::pair(best.stream, extents_[best.extent].tokens));
    if (common > 0 && (common > best.tokens || (common == best.tokens && earlier))) {
      best = {stream, block, extent, common};
    }
  };
  const auto offer_whole = [&](StreamId stream) {
    if (const Piece piece = first_piece(stream, block, block + 1); piece.present) {
      offer(stream, piece.segment, rules_.block.value);
    }
  };
  const StreamId owner = streams_->stream_at(prompt.stream, Tokens(begin));
  const Key group = group_of(owner, block);
  offer_whole(group.first);
  if (const auto forks = forks_.find(group); forks != forks_.end()) {
    for (const StreamId stream : forks->second) {
      // One that forks before its first token has it, others have none in common.
      if (stream != group.first && (streams_->first_of(stream) > begin || stream == owner)) {
        offer_whole(stream);
      }
    }
  }
  if (const auto parts = parts_.find(group); parts != parts_.end()) {
    for (const std::uint32_t part : parts->second) {
      offer(extents_[part].stream, part, extents_[part].tokens);
    }
  }
  return best;
}

// ---- Policies of the registry ----

std::uint32_t ExtentPool::locate_block(StreamId stream, std::int64_t position) const {
  if (stream.value >= blocks_of_.size()) {
    return kNone;
  }
  const Blocks& blocks = blocks_of_[stream.value];
  std::int64_t place = std::min(position - blocks.first, std::ssize(blocks.extents) - 1);
  while (place >= 0 && blocks.extents[static_cast<std::size_t>(place)] == kNone) {
    --place;
  }
  return place < 0 ? kNone : blocks.extents[static_cast<std::size_t>(place)];
}

void ExtentPool::learn(std::uint32_t at) {
  Extent& extent = extents_[at];
  if (extent.entry != kNone) {
    return;
  }
  extent.entry =
      is_keyless(extent) ? policies_->insert_keyless() : policies_->insert(run_of(extent));
  if (!ranks_blocks()) {
    return;
  }
  if (extent.entry >= extent_of_.size()) {
    extent_of_.resize(static_cast<std::size_t>(extent.entry) + 1, kNone);
  }
  extent_of_[extent.entry] = at;
}

void ExtentPool::refresh(std::uint32_t at) {
  const Extent& extent = extents_[at];
  if (extent.entry != kNone) {
    policies_->offer(run_of(extent), extent.entry, may_leave(at));
  }
  if (!is_keyless(extent) && !extent.duplicate) {
    refresh_before(extent.stream, extent.begin);
  }
}

void ExtentPool::refresh_before(StreamId stream, std::int64_t block) {
  if (!rules_.leaves_only || block == 0) {
    return;
  }
  const StreamId before = group_of(stream, block).first;
  const Piece piece = first_piece(before, block - 1, block);
  if (piece.present && extents_[piece.segment].entry != kNone) {
    const Extent& extent = extents_[piece.segment];
    policies_->offer(run_of(extent), extent.entry, may_leave(piece.segment));
  }
}

void ExtentPool::use_ranked(std::uint32_t at, End first) {
  learn(at);
  policies_->use(run_of(extents_[at], first), extents_[at].entry);
}

void ExtentPool::let_go_ranked(std::uint32_t at, End first) {
  const Extent& extent = extents_[at];
  const bool is_free = extent.holders == 0;
  if (extent.entry != kNone) {
    policies_->release(run_of(extent, first), extent.entry);
  } else if (is_free && !admits(extent.stream, extent.begin)) {
    drop(at, DecisionKind::drop_save);
    return;
  } else if (is_free) {
    learn(at);
  }
  refresh(at);
  join_in_stream(at);
}

void ExtentPool::join_in_stream(std::uint32_t at) {
  if (groups() == nullptr) [[likely]] {
    return;
  }
  if (const std::uint32_t behind = extents_[at].behind; behind != kNone) {
    join_ahead(behind);
  }
  join_ahead(at);
}

bool ExtentPool::continues(const Extent& ahead, const Extent& behind) const {
  return ahead.end == behind.begin && ahead.entry == behind.entry &&
         ahead.holders == behind.holders && ahead.puts == behind.puts &&
         ahead.pins == behind.pins && ahead.writes == behind.writes &&
         ahead.loads == behind.loads && ahead.leasable == behind.leasable &&
         (!knows_age() || ahead.used == behind.used);
}

void ExtentPool::join_ahead(std::uint32_t at) {
  const Extent& joined = extents_[at];
  if (joined.ahead != kNone && continues(extents_[joined.ahead], joined)) {
    extents_[joined.ahead].end = joined.end;
    extents_[at].entry = kNone;  // its blocks stay
    free_extent(at);
  }
}

void ExtentPool::insert_into_group(Extent made) {
  made.entry = policies_->insert(run_of(made));
  if (made.pins == 0 && !is_leased(made)) {
    policies_->offer(run_of(made), made.entry, true);
  }
  std::uint32_t at = locate(made.stream, made.begin);
  if (at != kNone && continues(extents_[at], made)) {
    extents_[at].end = made.end;
  } else {
    at = make(made);
    link_in_stream(at);
  }
  if (const std::uint32_t behind = extents_[at].behind; behind != kNone) {
    join_ahead(behind);
  }
}

bool ExtentPool::choose(std::int64_t blocks, const BlockRun* newcomer, Demand demand,
                        const BlockEntries::Stays* stays) {
  if (!is_ranked() || blocks <= 0) {
    return true;
  }
  const std::int64_t wanted = std::max(blocks, std::min(rules_.round, evictable()));
  return policies_->choose(rules_.leaves_only ? 1 : wanted, demand, newcomer, stays);
}

void ExtentPool::evict_ranked(std::int64_t blocks, std::vector<BlockRun>& victims) {
  while (blocks > 0) {
    if (!policies_->has_chosen() && !choose(blocks, nullptr)) {
      policies_->choose_oldest(rules_.leaves_only ? 1 : blocks);
      KVTIER_ASSERT(policies_->has_chosen(), "there is enough that may leave");
    }
    for (const auto& [run, number] : policies_->take_chosen()) {
      if (ranks_blocks()) {
        leave_ranked(extent_of_[number], victims);
        --blocks;
      } else {
        leave_ranked(run, victims);
        blocks -= run.size();
      }
    }
  }
}

void ExtentPool::leave_ranked(std::uint32_t at, std::vector<BlockRun>& victims) {
  const Extent gone = extents_[at];
  free_extent(at);
  --used_;
  --evictable_;
  if (is_keyless(gone)) {
    return;
  }
  add_victim({gone.stream, gone.begin, gone.end, gone.first}, gone.duplicate, victims);
  refresh_before(gone.stream, gone.begin);
}

void ExtentPool::leave_ranked(const BlockRun& run, std::vector<BlockRun>& victims) {
  for_each_piece(*this, run, [&](const Piece& piece) {
    free_extent(cut_out(piece.segment, piece.begin, piece.end));
  });
  used_ -= run.size();
  evictable_ -= run.size();
  add_victim(run, false, victims);
}

template <class Visit>
void ExtentPool::for_each_class(const BlockRun& run, Visit visit) const {
  if (ranks_blocks()) {
    for (BlockRun rest = run; rest.size() > 0;) {
      const std::int64_t block = rest.first == End::tail ? --rest.end : rest.begin++;
      visit(BlockRun{rest.stream, block, block + 1, rest.first});
    }
    return;
  }
  if (order_ != Order::priority) {
    visit(run);
    return;
  }
  BlockRun rest = run;
  while (rest.size() > 0) {
    // Ranges are few, and their borders are at whole blocks from here on.
    BlockRun part = rest;
    const auto cut = [&](Tokens at) {
      const std::int64_t border = (at.value + rules_.block.value - 1) / rules_.block.value;
      if (border > part.begin && border < part.end) {
        (rest.first == End::tail ? part.begin : part.end) = border;
      }
    };
    for (const Retention& range : rules_.retention) {
      cut(range.from);
      if (range.to) {
        cut(*range.to);
      }
    }
    visit(part);
    (rest.first == End::tail ? rest.end : rest.begin) =
        rest.first == End::tail ? part.begin : part.end;
  }
}

bool ExtentPool::follows(const Extent& earlier, const Extent& later) const {
  if (is_ranked() || earlier.stream != later.stream || is_keyless(earlier) || is_keyless(later) ||
      earlier.holders != later.holders || earlier.puts != later.puts ||
      earlier.pins != later.pins || earlier.writes != later.writes ||
      earlier.loads != later.loads || earlier.rank != later.rank ||
      earlier.frequent != later.frequent || earlier.duplicate_id != 0 || later.duplicate_id != 0 ||
      (knows_age() && earlier.used != later.used) || earlier.leasable != later.leasable) {
    return false;
  }
  // With lfu, neighbours in the order were used as often.
  const auto leaves_from = [](const Extent& extent, End end) {
    return extent.first == end || extent.size() == 1;
  };
  return later.end == earlier.begin
             ? leaves_from(earlier, End::tail) && leaves_from(later, End::tail)
             : later.begin == earlier.end && leaves_from(earlier, End::head) &&
                   leaves_from(later, End::head);
}

std::uint32_t ExtentPool::join_back(std::uint32_t at) {
  const std::uint32_t earlier = extents_[at].before;
  if (earlier == kNone || !follows(extents_[earlier], extents_[at])) {
    return at;
  }
  const Extent later = extents_[at];
  unorder(at);
  free_extent(at);
  Extent& joined = extents_[earlier];
  joined.first = later.end == joined.begin ? End::tail : End::head;
  joined.begin = std::min(joined.begin, later.begin);
  joined.end = std::max(joined.end, later.end);
  return earlier;
}

void ExtentPool::append(std::uint32_t at) {
  if (is_ranked()) {
    learn(at);
    refresh(at);
    return;
  }
  Extent& extent = extents_[at];
  Ends& ends = ends_of(extent);
  extent.before = ends.back;
  extent.after = kNone;
  extent.ordered = true;
  (ends.back != kNone ? extents_[ends.back].after : ends.front) = at;
  ends.back = at;
  join_back(at);
}

void ExtentPool::unorder(std::uint32_t at) {
  if (is_ranked()) {
    return;
  }
  Extent& extent = extents_[at];
  Ends& ends = ends_of(extent);
  (extent.before != kNone ? extents_[extent.before].after : ends.front) = extent.after;
  (extent.after != kNone ? extents_[extent.after].before : ends.back) = extent.before;
  extent.before = extent.after = kNone;
  extent.ordered = false;
  if (has_classes() && ends.front == kNone) {
    by_class_.erase(extent.rank_class);
  }
}

std::uint32_t ExtentPool::split(std::uint32_t at, std::int64_t position) {
  Extent upper = extents_[at];
  upper.begin = position;
  const std::uint32_t made = make(upper);
  Extent& lower = extents_[at];
  lower.end = position;
  if (lower.duplicate) {
    duplicates_.push_back(made);
  } else {
    Extent& part = extents_[made];
    part.ahead = at;
    part.behind = lower.behind;
    lower.behind = made;
    (part.behind != kNone ? extents_[part.behind].ahead : in_stream_[part.stream.value].back) =
        made;
  }
  if (lower.ordered) {
    Extent& part = extents_[made];
    Ends& ends = ends_of(lower);
    if (lower.first == End::tail) {
      part.after = at;
      part.before = lower.before;
      (part.before != kNone ? extents_[part.before].after : ends.front) = made;
      lower.before = made;
    } else {
      part.before = at;
      part.after = lower.after;
      (part.after != kNone ? extents_[part.after].before : ends.back) = made;
      lower.after = made;
    }
  }
  return made;
}

std::uint32_t ExtentPool::cut_out(std::uint32_t at, std::int64_t begin, std::int64_t end) {
  if (extents_[at].begin < begin) {
    at = split(at, begin);
  }
  if (extents_[at].end > end) {
    split(at, end);
  }
  return at;
}

void ExtentPool::use(std::uint32_t at, End first, bool counts) {
  set_used(at);
  extents_[at].leasable = true;
  if (is_ranked()) {
    if (counts) {
      use_ranked(at, first);
    }
    refresh(at);
    join_in_stream(at);
    return;
  }
  if (order_ == Order::fifo) {
    join(at);
    return;
  }
  unorder(at);
  Extent& extent = extents_[at];
  extent.first = first;
  extent.rank = rank_;
  extent.rank_class += is_lfu() && counts ? 1 : 0;
  if (is_arc() && counts && !extent.frequent) {
    extent.frequent = true;
    recent_ -= extent.size();
  }
  append(at);
}

void ExtentPool::touch(const BlockRun& run, std::uint32_t extent, bool counts) {
  if (order_ != Order::fifo || knows_age()) {
    use(cut_out(extent, run.begin, run.end), run.first, counts);
  }
}

void ExtentPool::change_pins(const BlockRun& run, Pin kind, int change) {
  const auto add = [&](std::uint32_t& count) {
    count = static_cast<std::uint32_t>(static_cast<int>(count) + change);
  };
  for (std::int64_t at = run.begin; at < run.end;) {
    const Piece piece = first_piece(run.stream, at, run.end);
    at = piece.end;
    if (!piece.present) {
      continue;
    }
    const std::uint32_t part = cut_out(piece.segment, piece.begin, piece.end);
    Extent& extent = extents_[part];
    const bool was_pinned = extent.pins > 0;
    add(extent.pins);
    if (kind != Pin::plain) {
      add(kind == Pin::write ? extent.writes : extent.loads);
    }
    if (was_pinned != (extent.pins > 0)) {
      evictable_ += was_pinned ? extent.size() : -extent.size();
      if (is_ranked()) {
        refresh(part);
      }
    }
    join(part);
    join_in_stream(part);
  }
}

std::uint32_t ExtentPool::open_place() {
  const std::uint32_t place = make({.pins = 1, .rank = ++rank_, .used = now_});
  append(place);
  return place;
}

void ExtentPool::close_place(std::uint32_t place) {
  const std::uint32_t next = extents_[place].after;
  unorder(place);
  free_extent(place);
  if (next != kNone) {
    join_back(next);
  }
}

void ExtentPool::put_at(std::uint32_t at, std::uint32_t place) {
  Extent& extent = extents_[at];
  extent.rank = extents_[place].rank;
  std::uint32_t before = place;
  for (std::uint32_t next = extents_[before].after;
       next != kNone && extents_[next].rank == extent.rank && extents_[next].begin >= extent.end;
       next = extents_[before].after) {
    before = next;
  }
  extent.before = before;
  extent.after = extents_[before].after;
  extent.ordered = true;
  extents_[before].after = at;
  (extent.after != kNone ? extents_[extent.after].before : ends_.back) = at;
  join(at);
}

void ExtentPool::use_at(const BlockRun& run, std::uint32_t extent, std::uint32_t place) {
  if (extents_[extent].rank >= extents_[place].rank) {
    return;
  }
  const std::uint32_t at = cut_out(extent, run.begin, run.end);
  set_used(at);
  extents_[at].leasable = true;
  unorder(at);
  extents_[at].first = End::tail;
  put_at(at, place);
}

void ExtentPool::insert_at(const BlockRun& run, std::uint32_t place) {
  const std::uint32_t at = make(newcomer(run));
  extents_[at].first = End::tail;
  link_in_stream(at);
  put_at(at, place);
}

bool ExtentPool::count_put(const BlockRun& run, std::uint32_t extent, bool touches) {
  const bool counts = extents_[extent].puts < puts_wanted_;
  const bool moves = touches && (order_ != Order::fifo || knows_age());
  if (!counts && !moves) {
    return true;
  }
  const std::uint32_t at = cut_out(extent, run.begin, run.end);
  extents_[at].puts += counts ? 1 : 0;
  const bool written = extents_[at].puts >= puts_wanted_;
  if (moves) {
    use(at, run.first);
  } else {
    join(at);
  }
  return written;
}

void ExtentPool::adapt_arc(const BlockRun& run) {
  for (std::int64_t end = run.end; is_arc() && end > run.begin;) {
    const Piece recent = ghosts_[0].last_piece(run.stream, run.begin, end);
    const Piece frequent = ghosts_[1].last_piece(run.stream, run.begin, end);
    const std::int64_t begin = std::max(recent.begin, frequent.begin);
    const auto of_recent = static_cast<double>(ghosts_[0].used());
    const auto of_frequent = static_cast<double>(ghosts_[1].used());
    const BlockRun part{run.stream, begin, end, End::tail};
    if (recent.present) {
      target_ = add_repeatedly(target_, std::max(1.0, of_frequent / of_recent),
                               static_cast<double>(rules_.capacity), end - begin);
      ghosts_[0].touch(part, recent.segment);
    } else if (frequent.present) {
      target_ = subtract_repeatedly(target_, std::max(1.0, of_recent / of_frequent), end - begin);
      ghosts_[1].touch(part, frequent.segment);
    }
    end = begin;
  }
}

ExtentPool::Extent ExtentPool::extent_of(const BlockRun& run) const {
  return {.stream = run.stream,
          .begin = run.begin,
          .end = run.end,
          .rank_class = first_class(run.begin),
          .puts = std::min(1U, puts_wanted_),
          .first = run.first,
          .leasable = rules_.lease_newcomers || rules_.lease.ns == 0,
          .used = now_};
}

ExtentPool::Extent ExtentPool::newcomer(const BlockRun& run) {
  Extent made = extent_of(run);
  made.rank = rank_;
  const std::int64_t size = made.size();
  used_ += size;
  resident_ += size;
  evictable_ += size;
  KVTIER_ASSERT(used_ <= rules_.capacity, "blocks come in when there is room");
  recent_ += size;
  for (ExtentPool& ghosts : ghosts_) {
    ghosts.remove(run);
  }
  tell_stored(run.stream, run.begin, run.end);
  return made;
}

void ExtentPool::insert(const BlockRun& whole, bool arrived) {
  for_each_class(whole, [&](const BlockRun& run) {
    Extent made = newcomer(run);
    if (!arrived) {
      made.pins = made.writes = 1;
      evictable_ -= made.size();
    }
    if (groups() != nullptr) {
      insert_into_group(made);
      return;
    }
    const std::uint32_t back = is_ranked() ? kNone : ends_of(made).back;
    if (back != kNone && follows(extents_[back], made)) {
      Extent& joined = extents_[back];
      joined.first = made.end == joined.begin ? End::tail : End::head;
      joined.begin = std::min(joined.begin, made.begin);
      joined.end = std::max(joined.end, made.end);
      return;
    }
    const std::uint32_t at = make(made);
    link_in_stream(at);
    append(at);
  });
}

std::uint32_t ExtentPool::victim() const {
  const auto first_free = [&](std::uint32_t at) {
    while (at != kNone && !may_leave(at)) {
      at = extents_[at].after;
    }
    return at;
  };
  if (is_arc() && recent_ < static_cast<std::int64_t>(target_)) {
    if (const std::uint32_t at = first_free(frequent_.front); at != kNone) {
      return at;
    }
  }
  if (!has_classes()) {
    const std::uint32_t at = first_free(ends_.front);
    return at == kNone && is_arc() ? first_free(frequent_.front) : at;
  }
  for (const auto& [rank_class, ends] : by_class_) {
    if (const std::uint32_t at = first_free(ends.front); at != kNone) {
      return at;
    }
  }
  return kNone;
}

std::int64_t ExtentPool::victims_before_newcomers(std::int64_t wanted) const {
  if (is_ranked()) {
    return std::min<std::int64_t>(evictable(), 1);
  }
  const std::uint32_t at = victim();
  if (at == kNone) {
    return 0;
  }
  if (is_arc() || rules_.leaves_only || order_ == Order::priority ||
      (is_lfu() && extents_[at].rank_class > 1)) {
    return 1;
  }
  const std::int64_t size = extents_[at].size();
  const std::int64_t rounds =
      std::min((wanted + rules_.round - 1) / rules_.round, size / rules_.round);
  return rules_.round == 1 ? std::min(wanted, size)
                           : std::max<std::int64_t>(1, rounds * rules_.round);
}

void ExtentPool::evict(std::int64_t blocks, std::vector<BlockRun>& victims) {
  if (blocks > 0 && blocks < rules_.round) {
    blocks = std::min(rules_.round, evictable());
  }
  if (is_ranked()) {
    evict_ranked(blocks, victims);
    return;
  }
  while (blocks > 0) {
    const std::uint32_t at = victim();
    KVTIER_ASSERT(at != kNone, "there is enough that may leave");
    Extent& extent = extents_[at];
    std::int64_t part = std::min(blocks, extent.size());
    if (is_arc() && !extent.frequent && recent_ >= static_cast<std::int64_t>(target_)) {
      part = std::min(part, recent_ - static_cast<std::int64_t>(target_) + 1);
    }
    const bool keyless = is_keyless(extent);
    const bool leaf = rules_.leaves_only && !keyless && !extent.duplicate;
    if (leaf) {
      // A duplicate that is found next may follow what is before it.
      part = duplicates_.empty() ? std::min(part, extent.end - last_free_fork(extent)) : 1;
    }
    BlockRun run{extent.stream, extent.begin, extent.end, leaf ? End::tail : extent.first};
    const bool frequent = extent.frequent;
    const bool duplicate = extent.duplicate;
    if (part == extent.size()) {
      unorder(at);
      free_extent(at);
    } else if (run.first == End::tail) {
      run.begin = extent.end -= part;
    } else {
      run.end = extent.begin += part;
    }
    blocks -= part;
    used_ -= part;
    evictable_ -= part;
    recent_ -= frequent ? 0 : part;
    if (is_arc()) {
      ExtentPool& ghosts = ghosts_[frequent ? 1 : 0];
      ghosts.insert(run);
      std::vector<BlockRun> forgotten;
      ghosts.evict(ghosts.used() - rules_.capacity, forgotten);
    }
    if (!keyless) {
      add_victim(run, duplicate, victims);
    }
  }
}

void ExtentPool::add_victim(const BlockRun& run, bool duplicate, std::vector<BlockRun>& victims) {
  resident_ -= run.size();
  victims.push_back(run);
  if (!duplicate) {
    tell_removed(run.stream, run.begin, run.end);
  }
  if (!duplicates_.empty()) [[unlikely]] {
    uncover(run.stream, run.begin, run.end);
  }
}

void ExtentPool::uncover(StreamId stream, std::int64_t begin, std::int64_t end) {
  for (std::int64_t at = begin; at < end;) {
    const Piece piece = first_piece(stream, at, end);
    at = piece.end;
    if (piece.present) {
      continue;
    }
    std::uint32_t earliest = kNone;
    for (const std::uint32_t duplicate : duplicates_) {
      const Extent& extent = extents_[duplicate];
      if (extent.stream == stream && extent.begin < piece.end && extent.end > piece.begin &&
          (earliest == kNone || extent.duplicate_id < extents_[earliest].duplicate_id)) {
        earliest = duplicate;
      }
    }
    if (earliest == kNone) {
      continue;
    }
    earliest = cut_out(earliest, std::max(piece.begin, extents_[earliest].begin),
                       std::min(piece.end, extents_[earliest].end));
    duplicates_.erase(std::find(duplicates_.begin(), duplicates_.end(), earliest));
    extents_[earliest].duplicate = false;
    link_in_stream(earliest);
    if (is_ranked()) {
      refresh(earliest);
    }
    tell_stored(stream, extents_[earliest].begin, extents_[earliest].end);
    at = piece.begin;
  }
}

void ExtentPool::remove(const BlockRun& run, std::optional<DecisionKind> why) {
  for (std::int64_t at = run.begin; at < run.end;) {
    const Piece piece = first_piece(run.stream, at, run.end);
    if (piece.present && extents_[piece.segment].pins == 0) {
      const std::uint32_t part = cut_out(piece.segment, piece.begin, piece.end);
      const std::int64_t size = piece.end - piece.begin;
      const bool frequent = extents_[part].frequent;
      unorder(part);
      free_extent(part);
      tell_removed(run.stream, piece.begin, piece.end);
      if (why) {
        log_left(*why, run.stream, piece.begin, piece.end);
      }
      used_ -= size;
      resident_ -= size;
      evictable_ -= size;
      recent_ -= frequent ? 0 : size;
      if (is_ranked()) {
        refresh_before(run.stream, piece.begin);
      }
    }
    at = piece.end;
  }
}

void ExtentPool::hold(const BlockRun& run, std::uint32_t extent) {
  const std::uint32_t at = cut_out(extent, run.begin, run.end);
  const std::int64_t size = run.end - run.begin;
  if (is_ranked()) {
    learn(at);
    policies_->hit(run_of(extents_[at], run.first), extents_[at].entry);
  }
  if (extents_[at].holders++ > 0) {
    return;
  }
  evictable_ -= size;
  if (is_ranked()) {
    refresh(at);
    return;
  }
  if (order_ != Order::fifo) {
    unorder(at);
  }
}

void ExtentPool::publish(const BlockRun& run, std::uint32_t duplicate_id) {
  for_each_class(run, [&](const BlockRun& part) { publish_alike(part, duplicate_id); });
}

void ExtentPool::publish_alike(const BlockRun& run, std::uint32_t duplicate_id) {
  Extent made = extent_of(run);
  made.holders = 1;
  made.duplicate_id = duplicate_id;
  resident_ += made.size();
  if (duplicate_id != 0) {
    const std::uint32_t at = make(made);
    extents_[at].duplicate = true;
    duplicates_.push_back(at);
    if (order_ == Order::fifo) {
      append(at);
    }
    return;
  }
  tell_stored(run.stream, run.begin, run.end);
  if (order_ != Order::fifo && !is_ranked()) {
    // A request that is computed chunk by chunk stays one extent.
    const std::uint32_t ahead = locate(run.stream, run.begin);
    if (ahead != kNone && extents_[ahead].end == run.begin && extents_[ahead].holders == 1 &&
        extents_[ahead].rank_class == made.rank_class && extents_[ahead].puts == made.puts &&
        extents_[ahead].leasable == made.leasable && extents_[ahead].duplicate_id == 0) {
      extents_[ahead].end = run.end;
      return;
    }
  }
  const std::uint32_t at = make(made);
  link_in_stream(at);
  if (order_ == Order::fifo) {
    append(at);
  }
  join_in_stream(at);
}

void ExtentPool::let_go(const BlockRun& run, std::uint32_t duplicate_id, bool used) {
  std::int64_t begin = run.begin;
  std::int64_t end = run.end;
  while (begin < end) {
    const bool from_tail = run.first == End::tail;
    const Piece piece =
        from_tail ? last_piece(run.stream, begin, end) : first_piece(run.stream, begin, end);
    std::int64_t from = piece.begin;
    std::int64_t to = piece.end;
    std::uint32_t at = piece.segment;
    if (duplicate_id != 0 && (!piece.present || extents_[at].duplicate_id != duplicate_id)) {
      const auto duplicate =
          std::find_if(duplicates_.begin(), duplicates_.end(), [&](std::uint32_t other) {
            const Extent& extent = extents_[other];
            return extent.duplicate_id == duplicate_id &&
                   (from_tail ? extent.begin < end && extent.end >= end
                              : extent.begin <= begin && extent.end > begin);
          });
      KVTIER_ASSERT(duplicate != duplicates_.end(), "a held duplicate is in the pool");
      at = *duplicate;
      from = std::max(begin, extents_[at].begin);
      to = std::min(end, extents_[at].end);
    }
    KVTIER_ASSERT(at != kNone, "held blocks are in the pool");
    (from_tail ? end : begin) = from_tail ? from : to;
    at = cut_out(at, from, to);
    Extent& extent = extents_[at];
    KVTIER_ASSERT(extent.holders > 0, "blocks are let go as often as they are held");
    if (used && is_lfu()) {
      ++extent.rank_class;
    }
    extent.leasable = extent.leasable || used;
    set_used(at);
    --extent.holders;
    evictable_ += extent.holders == 0 ? to - from : 0;
    if (is_ranked()) {
      let_go_ranked(at, run.first);
      continue;
    }
    if (extent.holders > 0) {
      continue;
    }
    if (order_ == Order::fifo) {
      join(at);
    } else {
      extent.first = run.first;
      append(at);
    }
  }
}

void ExtentPool::leave_keyless(std::int64_t block, std::int64_t count) {
  if (count > 0) {
    evictable_ += count;
  }
  for_each_class({kNoStream, block, block + count, End::tail}, [&](const BlockRun& run) {
    if (run.size() > 0) {
      append(make({.stream = kNoStream,
                   .end = run.size(),
                   .rank_class = first_class(run.begin),
                   .used = now_}));
    }
  });
}

std::array<std::vector<Stretch>, 4> ExtentPool::lists() const {
  std::array<std::vector<Stretch>, 4> lists;
  if (is_arc()) {
    for (const Stretch& block : contents()) {
      const Piece piece = first_piece(block.stream, block.begin, block.end);
      lists[extents_[piece.segment].frequent ? 1 : 0].push_back(block);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      lists[2 + i] = ghosts_[i].contents();
    }
  }
  return lists;
}

std::vector<Stretch> ExtentPool::contents() const {
  std::vector<Stretch> order;
  const auto add = [&](const Extent& extent) {
    for (std::int64_t i = 0; i < extent.size(); ++i) {
      const std::int64_t block = extent.first == End::tail ? extent.end - 1 - i : extent.begin + i;
      order.push_back({extent.stream, block, block + 1});
    }
  };
  const auto add_list = [&](std::uint32_t at) {
    for (; at != kNone; at = extents_[at].after) {
      if (extents_[at].holders == 0 && !is_keyless(extents_[at])) {
        add(extents_[at]);
      }
    }
  };
  add_list(ends_.front);
  add_list(frequent_.front);
  for (const auto& [rank_class, ends] : by_class_) {
    add_list(ends.front);
  }
  const auto evictable = static_cast<std::ptrdiff_t>(order.size());
  for (const Ends& stream : in_stream_) {
    for (std::uint32_t at = stream.front; at != kNone; at = extents_[at].behind) {
      if (extents_[at].holders > 0 || is_ranked()) {
        add(extents_[at]);
      }
    }
  }
  for (const std::uint32_t duplicate : duplicates_) {
    if (extents_[duplicate].holders > 0 || is_ranked()) {
      add(extents_[duplicate]);
    }
  }
  std::sort(order.begin() + evictable, order.end(), [](const Stretch& a, const Stretch& b) {
    return a.stream != b.stream ? a.stream < b.stream : a.begin < b.begin;
  });
  return order;
}

void ExtentPool::check_invariants() const {
  std::int64_t evictable = 0;
  std::size_t live = 0;
  const auto walk = [&](const Ends& ends) {
    std::uint32_t before = kNone;
    for (std::uint32_t at = ends.front; at != kNone; at = extents_[at].after) {
      const Extent& extent = extents_[at];
      KVTIER_ASSERT(
          extent.ordered && extent.before == before && (extent.size() > 0 || extent.pins > 0),
          "the order of eviction is a list");
      KVTIER_ASSERT(extent.holders == 0 || order_ == Order::fifo,
                    "what is held is out of the order");
      evictable += extent.holders == 0 && extent.pins == 0 ? extent.size() : 0;
      live += is_keyless(extent) ? 1 : 0;
      before = at;
    }
    KVTIER_ASSERT(before == ends.back, "the order of eviction ends at its back");
  };
  walk(ends_);
  walk(frequent_);
  for (const auto& [rank_class, ends] : by_class_) {
    KVTIER_ASSERT(ends.front != kNone, "no count without blocks");
    walk(ends);
  }
  const auto check_offered = [&](std::uint32_t at) {
    const Extent& extent = extents_[at];
    evictable += extent.holders == 0 && extent.pins == 0 ? extent.size() : 0;
    KVTIER_ASSERT(extent.entry == kNone ||
                      policies_->is_offered(run_of(extent), extent.entry) == may_leave(at),
                  "a policy may choose what may leave");
  };
  if (is_ranked()) {
    for (const std::uint32_t at : extent_of_) {
      if (at != kNone) {
        check_offered(at);
        live += is_keyless(extents_[at]) ? 1 : 0;
      }
    }
    policies_->check_invariants();
  }
  std::int64_t resident = 0;
  for (std::size_t stream = 0; stream < in_stream_.size(); ++stream) {
    std::int64_t position = 0;
    std::uint32_t ahead = kNone;
    for (std::uint32_t at = in_stream_[stream].front; at != kNone; at = extents_[at].behind) {
      const Extent& extent = extents_[at];
      KVTIER_ASSERT(extent.stream.value == stream && extent.ahead == ahead &&
                        extent.begin >= position && !extent.duplicate,
                    "a stream's extents are disjoint and in order");
      position = extent.end;
      if (groups() != nullptr) {
        check_offered(at);
      }
      resident += extent.size();
      ++live;
      ahead = at;
    }
    KVTIER_ASSERT(ahead == in_stream_[stream].back, "a stream's extents end at its last one");
  }
  for (const std::uint32_t duplicate : duplicates_) {
    resident += extents_[duplicate].size();
    ++live;
  }
  KVTIER_ASSERT(evictable == evictable_ && resident == resident_, "accounts are those of extents");
  KVTIER_ASSERT(used_ >= resident_ && used_ <= rules_.capacity,
                "a pool holds no more than its capacity");
  KVTIER_ASSERT(live + free_extents_.size() == extents_.size(), "no extent is lost");
  KVTIER_ASSERT(by_age_.size() == (knows_age() ? live : 0), "every extent has an age");
}

}  // namespace kvtier
