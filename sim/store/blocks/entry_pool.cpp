#include "sim/store/blocks/entry_pool.hpp"

#include <algorithm>
#include <utility>

#include "sim/core/assert.hpp"

namespace kvtier {

EntryPool::EntryPool(const PoolRules& rules, Bytes bytes_per_token, std::int64_t puts_wanted,
                     const PolicyRegistry& registry)
    : rules_(rules),
      block_bytes_(bytes_per_token * rules.block.value),
      puts_wanted_(static_cast<std::uint32_t>(puts_wanted)),
      policies_(rules, registry) {}

// ---- Look-ups ----

std::uint32_t EntryPool::locate(StreamId stream, std::int64_t position) const {
  if (stream.value >= of_stream_.size()) {
    return kNone;
  }
  const auto& entries = of_stream_[stream.value];
  const auto after =
      std::upper_bound(entries.begin(), entries.end(), position,
                       [&](std::int64_t at, std::uint32_t id) { return at < entries_[id].begin; });
  return after == entries.begin() ? kNone : *std::prev(after);
}

Piece EntryPool::first_piece(StreamId stream, std::int64_t begin, std::int64_t end) const {
  if (const std::uint32_t at = locate(stream, begin); at != kNone && entries_[at].end > begin) {
    return {true, at, begin, std::min(end, entries_[at].end)};
  }
  if (stream.value < of_stream_.size()) {
    for (const std::uint32_t id : of_stream_[stream.value]) {
      if (entries_[id].begin > begin) {
        return {false, kNone, begin, std::min(end, entries_[id].begin)};
      }
    }
  }
  return {false, kNone, begin, end};
}

Piece EntryPool::last_piece(StreamId stream, std::int64_t begin, std::int64_t end) const {
  const std::uint32_t at = locate(stream, end - 1);
  if (at == kNone || entries_[at].end <= begin) {
    return {false, kNone, begin, end};
  }
  if (entries_[at].end >= end) {
    return {true, at, std::max(begin, entries_[at].begin), end};
  }
  return {false, kNone, entries_[at].end, end};
}

std::uint32_t EntryPool::entry_before(StreamId stream, std::int64_t begin) const {
  const std::uint32_t at = locate(stream, begin - 1);
  return at != kNone && entries_[at].end == begin ? at : kNone;
}

std::uint32_t EntryPool::neighbour_of(const BlockRun& run) const {
  const std::uint32_t before = entry_before(run.stream, run.begin);
  if (before != kNone || !splits_entries()) {
    return before;
  }
  const std::uint32_t behind = locate(run.stream, run.end);
  return behind != kNone && entries_[behind].begin == run.end ? behind : kNone;
}

EntryView EntryPool::view(std::uint32_t at) const {
  const Entry& entry = entries_[at];
  const std::int64_t size = entry.end - entry.begin;
  return {.id = EntryId{at},
          .key = entry.key,
          .place = at,
          .tokens = rules_.block * size,
          .depth = rules_.block * entry.begin,
          .bytes = block_bytes_ * size,
          .first_inserted = entry.inserted,
          .session_began = entry.inserted,
          .last_used = entry.used};
}

// ---- What may leave ----

bool EntryPool::on_path(const Entry& entry) const {
  return std::any_of(path_.begin(), path_.end(), [&](const Stretch& stretch) {
    return stretch.stream == entry.stream && stretch.begin < entry.end && entry.begin < stretch.end;
  });
}

void EntryPool::refresh(std::uint32_t at) {
  const Entry& entry = entries_[at];
  const bool may_leave = entry.live && entry.holders == 0 && !is_leased(entry) && !on_path(entry);
  offer(EntryId{at}, may_leave ? block_bytes_ * (entry.end - entry.begin) : Bytes(0));
}

void EntryPool::refresh(const std::vector<Stretch>& path) {
  for (const Stretch& stretch : path) {
    if (stretch.stream.value < of_stream_.size()) {
      for (const std::uint32_t at : of_stream_[stretch.stream.value]) {
        refresh(at);
      }
    }
  }
}

void EntryPool::protect(const std::vector<Stretch>& path) {
  const std::vector<Stretch> before = std::exchange(path_, path);
  refresh(before);
  refresh(path_);
}

void EntryPool::advance(SimTime now) {
  const SimTime before = std::exchange(now_, now);
  if (rules_.lease.ns > 0) {
    // Leases that have ended since.
    const auto first = by_age_.upper_bound({(before - rules_.lease).ns, kNone});
    for (auto at = first; at != by_age_.end() && at->first <= (now - rules_.lease).ns; ++at) {
      refresh(at->second);
    }
  }
  if (!rules_.ttl) {
    return;
  }
  for (auto at = by_age_.begin(); at != by_age_.end() && at->first < (now - *rules_.ttl).ns;) {
    const std::uint32_t entry = (at++)->second;
    if (entries_[entry].holders == 0) {
      log_left(DecisionKind::expire, entries_[entry], entries_[entry].begin, entries_[entry].end);
      leave(entry);
    }
  }
}

void EntryPool::set_used(std::uint32_t at) {
  Entry& entry = entries_[at];
  if (knows_age() && entry.used != now_) {
    by_age_.erase({entry.used.ns, at});
    by_age_.insert({now_.ns, at});
  }
  entry.used = now_;
}

// ---- Entries ----

std::uint32_t EntryPool::make(const Entry& entry) {
  auto at = static_cast<std::uint32_t>(entries_.size());
  if (free_entries_.empty()) {
    entries_.emplace_back();
  } else {
    at = *free_entries_.begin();
    free_entries_.erase(free_entries_.begin());
  }
  entries_[at] = entry;
  entries_[at].live = true;
  if (entry.stream.value >= of_stream_.size()) {
    of_stream_.resize(static_cast<std::size_t>(entry.stream.value) + 1);
  }
  auto& list = of_stream_[entry.stream.value];
  list.insert(
      std::find_if(list.begin(), list.end(),
                   [&](std::uint32_t other) { return entries_[other].begin > entry.begin; }),
      at);
  if (knows_age()) {
    by_age_.insert({entry.used.ns, at});
  }
  return at;
}

void EntryPool::leave(std::uint32_t at) {
  Entry& entry = entries_[at];
  stored_ -= entry.end - entry.begin;
  auto& list = of_stream_[entry.stream.value];
  list.erase(std::find(list.begin(), list.end(), at));
  by_age_.erase({entry.used.ns, at});
  entry = Entry{};
  free_entries_.insert(at);
  refresh(at);
  policies_.eviction->on_remove(EntryId{at}, now_);
}

void EntryPool::resize(std::uint32_t at, std::int64_t begin, std::int64_t end) {
  Entry& entry = entries_[at];
  stored_ += (end - begin) - (entry.end - entry.begin);
  entry.begin = begin;
  entry.end = end;
  refresh(at);
  policies_.eviction->on_resize(view(at), now_);
}

std::uint32_t EntryPool::split(std::uint32_t at, std::int64_t position) {
  Entry tail = entries_[at];
  tail.begin = position;
  tail.key = key_of(tail.stream, position);
  entries_[at].end = position;
  const std::uint32_t made = make(tail);
  refresh(at);
  refresh(made);
  policies_.eviction->on_split(view(at), view(made), now_);
  return made;
}

std::uint32_t EntryPool::cut_out(std::uint32_t at, std::int64_t begin, std::int64_t end) {
  if (splits_entries() && entries_[at].begin < begin) {
    at = split(at, begin);
  }
  if (splits_entries() && entries_[at].end > end) {
    split(at, end);
  }
  return at;
}

std::uint32_t EntryPool::part_of(std::uint32_t at, const BlockRun& run) {
  for (const Stretch& stretch : path_) {
    const Entry& entry = entries_[at];
    if (stretch.stream == entry.stream && stretch.begin < entry.end && entry.begin < stretch.end) {
      return cut_out(at, stretch.begin, stretch.end);
    }
  }
  return cut_out(at, run.begin, run.end);
}

void EntryPool::use(std::uint32_t at) {
  set_used(at);
  policies_.eviction->on_hit(EntryId{at}, now_);
  refresh(at);
  policies_.eviction->on_release(view(at), now_);
}

bool EntryPool::count_put(std::uint32_t at) {
  Entry& entry = entries_[at];
  entry.puts += entry.puts < puts_wanted_ ? 1 : 0;
  return entry.puts >= puts_wanted_;
}

void EntryPool::insert(const BlockRun& run) {
  const std::uint32_t neighbour = neighbour_of(run);
  if (neighbour != kNone) {
    set_used(neighbour);
    resize(neighbour, std::min(run.begin, entries_[neighbour].begin),
           std::max(run.end, entries_[neighbour].end));
  } else {
    make_known({.stream = run.stream, .begin = run.begin, .end = run.end});
  }
  KVTIER_ASSERT(free() >= 0, "blocks come in when there is room");
}

std::uint32_t EntryPool::make_known(Entry entry) {
  entry.key = key_of(entry.stream, entry.begin);
  entry.puts = std::min(1U, puts_wanted_);
  entry.inserted = entry.used = now_;
  stored_ += entry.end - entry.begin;
  const std::uint32_t at = make(entry);
  refresh(at);
  policies_.eviction->on_insert(view(at), now_);
  return at;
}

void EntryPool::remove(const BlockRun& run) {
  for_each_piece(*this, {run.stream, run.begin, run.end, End::head}, [&](const Piece& piece) {
    if (!piece.present || entries_[piece.segment].holders > 0) {
      return;
    }
    const Entry entry = entries_[piece.segment];
    if (piece.end < entry.end && !splits_entries()) {
      return;
    }
    log_left(DecisionKind::move_up, entry, splits_entries() ? piece.begin : entry.begin, piece.end);
    if (!splits_entries() || (piece.begin == entry.begin && piece.end == entry.end)) {
      leave(piece.segment);
    } else if (piece.end == entry.end) {
      resize(piece.segment, entry.begin, piece.begin);
    } else if (piece.begin == entry.begin) {
      resize(piece.segment, piece.end, entry.end);
    } else {
      split(piece.segment, piece.end);
      resize(piece.segment, entry.begin, piece.begin);
    }
  });
}

void EntryPool::truncate(StreamId stream, std::int64_t blocks) {
  const std::vector<std::uint32_t> list =
      holds(stream) ? of_stream_[stream.value] : std::vector<std::uint32_t>{};
  for (const std::uint32_t at : list) {
    const Entry& entry = entries_[at];
    if (entry.holders > 0 || entry.end <= blocks) {
      continue;
    }
    log_left(DecisionKind::invalidate, entry, std::max(entry.begin, blocks), entry.end);
    if (entry.begin >= blocks) {
      leave(at);
    } else {
      resize(at, entry.begin, blocks);
    }
  }
}

// ---- Room ----

bool EntryPool::find_room(std::int64_t blocks, Demand demand, const BlockRun* newcomer) {
  const std::uint32_t neighbour = newcomer != nullptr ? neighbour_of(*newcomer) : kNone;
  if (neighbour != kNone) {
    withdraw(EntryId{neighbour});
  }
  wanted_ = blocks - free();
  if (wanted_ > 0) {
    wanted_ = std::max(wanted_, std::min(rules_.round, available() / block_bytes_));
  }
  newcomer_ = newcomer;
  const Bytes bytes = block_bytes_ * wanted_;
  const bool found =
      wanted_ <= 0 ||
      (bytes <= available() && choose(*policies_.eviction, {.now = now_, .demand = demand}, bytes));
  if (neighbour != kNone) {
    refresh(neighbour);
  }
  return found;
}

std::vector<BlockRun> EntryPool::take_victims() {
  std::vector<BlockRun> left;
  if (wanted_ <= 0) {
    return left;
  }
  const std::vector<Victim> set = victims();
  for (const Victim& victim : set) {
    const Entry entry = entries_[victim.entry.value];
    const std::int64_t keep = victim.keep.value / rules_.block.value;
    left.push_back({entry.stream, entry.begin + keep, entry.end, End::tail});
    if (keep > 0) {
      resize(victim.entry.value, entry.begin, entry.begin + keep);
    } else {
      leave(victim.entry.value);
    }
  }
  return left;
}

bool EntryPool::may_leave(EntryId victim, Tokens) {
  if (policies_.admission == nullptr || newcomer_ == nullptr) {
    return true;
  }
  return policies_.admission->replaces(key_of(newcomer_->stream, newcomer_->begin),
                                       entries_[victim.value].key);
}

Tokens EntryPool::rounded(EntryId victim, Tokens keep) const {
  const Entry& entry = entries_[victim.value];
  const std::int64_t block = rules_.block.value;
  KVTIER_ASSERT(splits_entries() && policies_.keeps_parts && keep.value > 0 &&
                    keep < rules_.block * (entry.end - entry.begin),
                "a victim keeps a part of itself where the unit is a tail and its policy says so");
  return rules_.block * ((keep.value + block - 1) / block);
}

Tokens EntryPool::spared(EntryId victim) const {
  const Entry& entry = entries_[victim.value];
  const std::int64_t missing = missing_.value / block_bytes_.value;
  return splits_entries() && !policies_.keeps_parts
             ? rules_.block * std::max<std::int64_t>(0, entry.end - entry.begin - missing)
             : Tokens(0);
}

Bytes EntryPool::bytes_of(EntryId, Tokens tokens) const {
  return block_bytes_ * (tokens.value / rules_.block.value);
}

bool EntryPool::admits(const BlockRun& run) const {
  return policies_.admission == nullptr || neighbour_of(run) != kNone ||
         policies_.admission->admits(key_of(run.stream, run.begin));
}

void EntryPool::tell_admission(StreamId stream, std::int64_t begin) {
  if (policies_.admission != nullptr) {
    policies_.admission->on_use(key_of(stream, begin));
  }
}

// ---- Requests that hold memory here ----

std::uint32_t EntryPool::hold(std::uint32_t at, std::int64_t begin, std::int64_t end) {
  at = cut_out(at, begin, end);
  ++entries_[at].holders;
  set_used(at);
  refresh(at);
  policies_.eviction->on_hit(EntryId{at}, now_);
  return at;
}

void EntryPool::publish(const BlockRun& run, bool grows) {
  taken_ -= run.size();
  const std::uint32_t before = grows ? entry_before(run.stream, run.begin) : kNone;
  if (before != kNone) {
    resize(before, entries_[before].begin, run.end);
  } else {
    make_known({.stream = run.stream, .begin = run.begin, .end = run.end, .holders = 1});
  }
}

void EntryPool::let_go(std::uint32_t at) {
  KVTIER_ASSERT(entries_[at].holders > 0, "entries are let go as often as they are held");
  --entries_[at].holders;
  set_used(at);
  refresh(at);
  policies_.eviction->on_release(view(at), now_);
}

// ---- For tests ----

std::vector<Stretch> EntryPool::contents() const {
  std::vector<Stretch> blocks;
  for (const auto& list : of_stream_) {
    for (const std::uint32_t at : list) {
      for (std::int64_t block = entries_[at].begin; block < entries_[at].end; ++block) {
        blocks.push_back({entries_[at].stream, block, block + 1});
      }
    }
  }
  return blocks;
}

void EntryPool::check_invariants() const {
  class Known final : public TierView {
   public:
    explicit Known(const EntryPool& pool) : pool_(pool) {}
    void for_each_resident(
        const std::function<void(const EntryView&, bool offered)>& visit) const override {
      for (std::uint32_t at = 0; at < pool_.entries_.size(); ++at) {
        if (pool_.entries_[at].live) {
          visit(pool_.view(at), pool_.offers(EntryId{at}));
        }
      }
    }

   private:
    const EntryPool& pool_;
  };
  std::int64_t stored = 0;
  std::size_t live = 0;
  for (std::uint32_t stream = 0; stream < of_stream_.size(); ++stream) {
    std::int64_t position = 0;
    KVTIER_ASSERT(splits_entries() || of_stream_[stream].size() <= 1, "a sequence is one entry");
    for (const std::uint32_t at : of_stream_[stream]) {
      const Entry& entry = entries_[at];
      KVTIER_ASSERT(entry.live && entry.stream.value == stream && entry.begin >= position &&
                        entry.end > entry.begin,
                    "a stream's entries are disjoint and in order");
      position = entry.end;
      stored += entry.end - entry.begin;
      ++live;
    }
  }
  KVTIER_ASSERT(stored == stored_ && taken_ >= 0 && free() >= 0, "accounts are those of entries");
  KVTIER_ASSERT(live + free_entries_.size() == entries_.size(), "no entry is lost");
  policies_.eviction->check_invariants(Known(*this));
}

}  // namespace kvtier
