#include <algorithm>
#include <utility>

#include "sim/core/assert.hpp"
#include "sim/device/kv_store.hpp"

// Blocks of streams, and the requests that use them.
namespace kvtier {
namespace {

void append(std::vector<std::int32_t>& slots, std::span<const std::int32_t> more) {
  slots.insert(slots.end(), more.begin(), more.end());
}

std::span<const std::int32_t> part(std::span<const std::int32_t> slots, std::int64_t first,
                                   std::int64_t count) {
  return slots.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

}  // namespace

template <class Visit>
void KvStore::for_each_block(Medium medium, const KvPiece& piece, Visit visit) const {
  const std::int64_t size = block_of(medium);
  KVTIER_ASSERT(piece.first.value % size == 0 && piece.count.value % size == 0,
                "a piece has whole blocks");
  for (std::int64_t at = 0; at < piece.count.value; at += size) {
    visit(BlockName{piece.key, piece.first.value + at});
  }
}

// ---- Requests ----

void KvStore::begin_request(EntryKey request, std::span<const KvPiece> context) {
  const std::lock_guard lock(mutex_);
  const bool is_new =
      requests_.try_emplace(request, Request{.context = {context.begin(), context.end()}}).second;
  KVTIER_ASSERT(is_new, "a request ends before it begins again");
}

void KvStore::release_request(EntryKey request) {
  const std::lock_guard lock(mutex_);
  requests_.at(request).is_released = true;
}

void KvStore::end_request(EntryKey request) {
  const std::lock_guard lock(mutex_);
  if (const auto found = requests_.find(request); found != requests_.end()) {
    give_back(Medium::hbm, found->second.slots);
    requests_.erase(found);
  }
}

std::vector<std::pair<EntryKey, std::int64_t>> KvStore::names(EntryKey key, std::int64_t first,
                                                              std::int64_t count) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<EntryKey, std::int64_t>> names;
  const auto request = requests_.find(key);
  if (request == requests_.end()) {
    for (std::int64_t at = first; at < first + count; ++at) {
      names.emplace_back(key, at);
    }
    return names;
  }
  for (const KvPiece& piece : request->second.context) {
    const std::int64_t end = std::min((piece.first + piece.count).value, first + count);
    for (std::int64_t at = std::max(piece.first.value, first); at < end; ++at) {
      names.emplace_back(piece.key, at);
    }
  }
  KVTIER_ASSERT(std::ssize(names) == count, "a request computes tokens of its context");
  return names;
}

void KvStore::lengthen(Request& request, std::int64_t tokens) {
  if (const std::int64_t lacking = tokens - std::ssize(request.slots); lacking > 0) {
    append(request.slots, take(Medium::hbm, lacking, request.slots));
  }
}

std::vector<std::int32_t> KvStore::extend_request(Request& request, std::int64_t past,
                                                  std::int64_t added) {
  KVTIER_ASSERT(past <= request.computed, "past tokens are in HBM");
  const std::int64_t end = past + added;
  // Tokens that are computed once more get slots of their own, because others use the old ones.
  const std::int64_t again = std::min(request.computed, end) - past;
  if (again > 0) {
    const std::vector<std::int32_t> own = take(Medium::hbm, again);
    give_back(Medium::hbm, part(request.slots, past, again));
    std::ranges::copy(own, request.slots.begin() + past);
  }
  lengthen(request, end);
  request.computed = end;
  return {request.slots.begin(), request.slots.begin() + end};
}

void KvStore::share_blocks(EntryKey request, std::span<const KvPiece> blocks) {
  const std::lock_guard lock(mutex_);
  Request& r = requests_.at(request);
  std::vector<std::int32_t> shared;
  for (const KvPiece& piece : blocks) {
    // KV of the tokens between is loaded.
    if (const std::int64_t lacking = piece.first.value - std::ssize(shared); lacking > 0) {
      append(shared, take(Medium::hbm, lacking, shared));
    }
    const std::vector<std::int32_t> slots = slots_of_blocks(Medium::hbm, piece);
    hold(Medium::hbm, slots);
    append(shared, slots);
  }
  const std::int64_t count = std::ssize(shared);
  const std::int64_t own = std::min(count, std::ssize(r.slots));
  give_back(Medium::hbm, part(r.slots, 0, own));
  shared.insert(shared.end(), r.slots.begin() + own, r.slots.end());
  r.slots = std::move(shared);
  r.computed = std::max(r.computed, count);
}

// ---- Blocks ----

std::vector<KvStore::Arrival>::iterator KvStore::arrival_of(Medium medium, const BlockName& name,
                                                            bool has_begun) {
  const auto is_it = [&](const Arrival& arrival) {
    return arrival.medium == medium && arrival.name == name &&
           arrival.block.source.empty() == has_begun;
  };
  const auto arrived = std::ranges::find_if(arrivals_, [&](const Arrival& arrival) {
    return arrival.block.has_arrived && is_it(arrival);
  });
  return arrived != arrivals_.end() ? arrived : std::ranges::find_if(arrivals_, is_it);
}

std::vector<std::int32_t> KvStore::slots_of_blocks(Medium medium, const KvPiece& piece,
                                                   Request* request) {
  const std::int64_t size = block_of(medium);
  std::vector<std::int32_t> slots;
  const std::int64_t end = (piece.first + piece.count).value;
  for (std::int64_t at = piece.first.value; at < end;) {
    const std::int64_t first = at / size * size;
    const std::int64_t count = std::min(end, first + size) - at;
    const BlockName name{piece.key, first};
    const auto found = blocks(medium).find(name);
    const Block* block = found != blocks(medium).end() ? &found->second.front() : nullptr;
    if (block == nullptr && request != nullptr && medium == Medium::hbm) {
      lengthen(*request, at + count);
      append(slots, part(request->slots, at, count));
      at += count;
      continue;
    }
    // A block whose transfer has not ended is not read if another transfer has brought it.
    if (block == nullptr || (medium != Medium::hbm && !block->has_arrived)) {
      const auto arrival = arrival_of(medium, name, true);
      const bool is_there = arrival != arrivals_.end();
      KVTIER_ASSERT(block != nullptr || is_there, "only blocks that are there are used");
      if (block == nullptr || (is_there && arrival->block.has_arrived)) {
        block = &arrival->block;
      }
    }
    append(slots, part(block->slots, at - first, count));
    at += count;
  }
  return slots;
}

void KvStore::add_blocks(const BlockCopy& copy) {
  const std::lock_guard lock(mutex_);
  const std::int64_t size = block_of(copy.to);
  if (copy.to == Medium::hbm) {
    Request& request = requests_.at(*copy.request);
    lengthen(request, (copy.blocks.first + copy.blocks.count).value);
    for_each_block(copy.to, copy.blocks, [&](const BlockName& name) {
      const std::span<const std::int32_t> slots = part(request.slots, name.second, size);
      hold(Medium::hbm, slots);
      blocks(Medium::hbm)[name].push_back({.slots = {slots.begin(), slots.end()}});
    });
    return;
  }
  std::vector<std::int32_t> source;
  for_each_block(copy.to, copy.blocks, [&](const BlockName& name) {
    std::vector<Block>& copies = blocks(copy.to)[name];
    KVTIER_ASSERT(copies.empty(), "a medium behind HBM has one copy of a block");
    if (const auto arrival = arrival_of(copy.to, name, true); arrival != arrivals_.end()) {
      copies.push_back(std::move(arrival->block));
      arrivals_.erase(arrival);
      return;
    }
    if (source.empty()) {
      const auto request = copy.request ? requests_.find(*copy.request) : requests_.end();
      for (const KvPiece& piece : copy.source) {
        append(source, slots_of_blocks(copy.from, piece,
                                       request != requests_.end() ? &request->second : nullptr));
      }
    }
    const auto read = part(source, name.second - copy.blocks.first.value, size);
    hold(copy.from, read);
    copies.push_back(
        {.slots = take(copy.to, size), .from = copy.from, .source = {read.begin(), read.end()}});
  });
}

bool KvStore::is_used(const Block& block, std::int64_t first) const {
  return std::ranges::any_of(requests_, [&](const auto& one) {
    const std::vector<std::int32_t>& slots = one.second.slots;
    return !one.second.is_released && first < std::ssize(slots) &&
           slots[static_cast<std::size_t>(first)] == block.slots.front();
  });
}

void KvStore::remove_blocks(Medium medium, const KvPiece& piece) {
  const std::lock_guard lock(mutex_);
  for_each_block(medium, piece, [&](const BlockName& name) {
    const auto found = blocks(medium).find(name);
    KVTIER_ASSERT(found != blocks(medium).end(), "only blocks that are there leave");
    std::vector<Block>& copies = found->second;
    const auto unused = std::ranges::find_if(copies, [&](const Block& block) {
      return medium != Medium::hbm || !is_used(block, name.second);
    });
    KVTIER_ASSERT(unused != copies.end(), "blocks of running requests stay");
    if (unused->source.empty()) {
      give_back(medium, unused->slots);
    } else {
      arrivals_.push_back({.medium = medium, .name = name, .block = std::move(*unused)});
    }
    copies.erase(unused);
    if (copies.empty()) {
      blocks(medium).erase(found);
    }
  });
}

void KvStore::cut_blocks(EntryKey key, std::int64_t kept, std::int64_t dropped) {
  for (auto& of_medium : blocks_) {
    auto at = of_medium.lower_bound({key, kept + dropped});
    while (at != of_medium.end() && at->first.first == key) {
      auto moved = of_medium.extract(at++);
      moved.key().second -= dropped;
      of_medium.insert(std::move(moved));
    }
  }
  std::erase_if(arrivals_, [&](Arrival& arrival) {
    std::int64_t& first = arrival.name.second;
    if (arrival.name.first != key || first < kept) {
      return false;
    }
    const bool is_dropped = first < kept + dropped;
    // Nothing asks for what was dropped and is on its way.
    first = is_dropped ? -1 - first : first - dropped;
    const bool never_begins = is_dropped && !arrival.block.source.empty();
    if (never_begins) {
      give_back(arrival.block.from, arrival.block.source);
      give_back(arrival.medium, arrival.block.slots);
    }
    return never_begins;
  });
}

void KvStore::drop_arrivals(std::uint64_t cookie) {
  const std::lock_guard lock(mutex_);
  std::erase_if(arrivals_, [&](const Arrival& arrival) {
    const bool is_dropped = arrival.block.source.empty() && arrival.cookie == cookie;
    if (is_dropped) {
      give_back(arrival.medium, arrival.block.slots);
    }
    return is_dropped;
  });
}

// ---- Moves ----

std::vector<std::int32_t> KvStore::begin_blocks(const TransferCommand& command, KvMove& move) {
  std::vector<std::int32_t> kept;
  const auto add = [&](const KvPiece& piece, std::span<const std::int32_t> from,
                       std::span<const std::int32_t> to) {
    move.pieces.push_back(piece);
    append(move.from_slots, from);
    append(move.to_slots, to);
  };
  const Tokens size(block_of(move.to));
  for (const KvPiece& piece : command.pieces) {
    if (piece.turn) {
      Request& request = requests_.at(*piece.turn);
      const std::int64_t end = (piece.first + piece.count).value;
      KVTIER_ASSERT(piece.first.value <= std::ssize(request.slots), "a context has no gap");
      lengthen(request, end);
      request.computed = std::max(request.computed, end);
      add(piece, slots_of_blocks(move.from, piece),
          part(request.slots, piece.first.value, piece.count.value));
      continue;
    }
    for_each_block(move.to, piece, [&](const BlockName& name) {
      const KvPiece block{.key = name.first, .first = Tokens(name.second), .count = size};
      const auto waits = [&](const Block& there) {
        return !there.source.empty() && there.from == move.from;
      };
      const auto read_source = [&](Block& there) {
        add(block, there.source, there.slots);
        append(kept, std::exchange(there.source, {}));
      };
      const auto found = blocks(move.to).find(name);
      if (const auto gone = arrival_of(move.to, name, false);
          gone != arrivals_.end() && waits(gone->block)) {
        gone->cookie = command.cookie;
        read_source(gone->block);
      } else if (found != blocks(move.to).end() && waits(found->second.front())) {
        read_source(found->second.front());
      } else {
        arrivals_.push_back({.medium = move.to,
                             .name = name,
                             .block = {.slots = take(move.to, size.value)},
                             .cookie = command.cookie});
        add(block, slots_of_blocks(move.from, block), arrivals_.back().block.slots);
      }
    });
  }
  return kept;
}

void KvStore::end_blocks(const KvMove& move) {
  if (!has_blocks() || move.to == Medium::hbm) {
    return;
  }
  std::size_t at = 0;
  for (const KvPiece& piece : move.pieces) {
    const BlockName name{piece.key, piece.first.value};
    const auto arrive = [&](Block& block) {
      block.has_arrived = block.has_arrived || block.slots.front() == move.to_slots[at];
    };
    // A cut may have given it another place in its stream since.
    const auto of_stream = [&](const BlockName& other) { return other.first == name.first; };
    for (auto found = blocks(move.to).lower_bound({name.first, 0});
         found != blocks(move.to).end() && of_stream(found->first); ++found) {
      arrive(found->second.front());
    }
    for (Arrival& arrival : arrivals_) {
      if (arrival.medium == move.to && of_stream(arrival.name)) {
        arrive(arrival.block);
      }
    }
    at += static_cast<std::size_t>(piece.count.value);
  }
}

}  // namespace kvtier
