#include "sim/store/blocks/entry_store.hpp"

#include <algorithm>
#include <utility>

#include "sim/core/assert.hpp"
#include "sim/store/block_run.hpp"
#include "sim/store/blocks/entry_pool.hpp"
#include "sim/store/blocks/instance_stores.hpp"
#include "sim/store/blocks/store_log.hpp"

namespace kvtier {
namespace {

using Pools = std::vector<std::shared_ptr<EntryPool>>;

class EntryStore final : public Store {
 public:
  EntryStore(const StoreRules& rules, const Streams& streams, Pools pools)
      : rules_(rules),
        streams_(streams),
        pools_(std::move(pools)),
        counters_(pools_.size()),
        log_(pools_.size()),
        written_(pools_.size()) {}

  void advance(SimTime now) override {
    for (const auto& pool : pools_) {
      pool->advance(now);
    }
  }

  [[nodiscard]] Match match(const Context& prompt) const override {
    std::vector<Found> places;
    return find(prompt, places);
  }

  std::optional<RequestId> acquire(const Context& prompt, const Room& asked, Match& match,
                                   RequestId) override {
    Request request;
    match = find(prompt, request.places);
    const Tokens room = std::max(asked.taken, match.tokens);
    request.context = {prompt.stream, room};
    protect(prompt.stream, match.tokens);
    if (rules_.requests_in_first && !take_room(request, asked, match)) {
      protect({}, Tokens(0));
      return std::nullopt;
    }
    for (std::size_t i = rules_.requests_in_first ? 1 : 0; i < pools_.size(); ++i) {
      if (rules_.pools[i].touch == Touch::lookup) {
        walk(path_, End::tail, [&](const BlockRun& run) { touch(*pools_[i], run); });
      }
    }
    protect({}, Tokens(0));
    RequestId id{static_cast<std::uint32_t>(requests_.size())};
    if (free_requests_.empty()) {
      requests_.push_back(std::move(request));
    } else {
      id = free_requests_.back();
      free_requests_.pop_back();
      requests_[id.value] = std::move(request);
    }
    publish_at(Publication::scheduling, id, room);
    return id;
  }

  bool grow(RequestId id, const Context& context) override {
    Request& request = requests_[id.value];
    if (rules_.requests_in_first) {
      const std::int64_t wanted = blocks_up(context.tokens) - blocks_up(request.context.tokens);
      if (!make_room(wanted)) {
        return false;
      }
      request.unpublished += wanted;
    }
    request.context = context;
    publish_at(Publication::scheduling, id, context.tokens);
    return true;
  }

  void computed(RequestId id, Tokens tokens) override {
    publish_at(Publication::computed, id, tokens);
  }

  void release(RequestId id) override {
    Request& request = requests_[id.value];
    const Context& context = request.context;
    protect(context.stream, context.tokens);
    const std::vector<Stretch> path = path_;
    for (const Stretch& stretch : path) {
      for (const auto& pool : pools_) {
        pool->tell_admission(stretch.stream, stretch.begin);
      }
    }
    const End first = rules_.pools.front().insertion;
    if (rules_.requests_in_first) {
      publish(request, context.tokens);
      pools_.front()->give_back(request.unpublished);
      if (first == End::tail) {
        std::reverse(request.held.begin(), request.held.end());
      }
      for (const BlockRun& held : request.held) {
        let_go({held.stream, held.begin, held.end, first});
      }
      if (first == End::tail) {
        std::reverse(request.found.begin(), request.found.end());
      }
      for (const BlockRun& found : request.found) {
        count_use({found.stream, found.begin, found.end, first});
      }
    } else {
      walk(path, first, [&](const BlockRun& run) { put_found(request, run); });
    }
    protect({}, Tokens(0));
    free_requests_.push_back(id);
  }

  /// The blocks of these copies are found already.
  [[nodiscard]] std::vector<Copy> take_copies() override {
    std::vector<Copy> copies;
    for (std::size_t i = 1; i < pools_.size(); ++i) {
      if (const std::int64_t blocks = std::exchange(written_[i], 0); blocks > 0) {
        copies.push_back(
            {.id = next_copy_++, .blocks = blocks, .pool = i, .waits = rules_.edges[i - 1].stalls});
      }
    }
    return copies;
  }

  [[nodiscard]] FreeBlocks free_blocks() const override {
    const EntryPool& pool = *pools_.front();
    return {.available = pool.free() + pool.evictable(), .empty = pool.free()};
  }

  void truncate(StreamId stream, Tokens tokens) override {
    for (const auto& pool : pools_) {
      pool->truncate(stream, tokens.value / block());
    }
  }
  /// Policies may remember the keys of what has left.
  [[nodiscard]] bool remembers(StreamId) const override { return true; }

  [[nodiscard]] PoolCounters counters(std::size_t pool) const override { return counters_[pool]; }
  [[nodiscard]] std::int64_t resident_blocks(std::size_t pool) const override {
    return pools_[pool]->stored();
  }
  [[nodiscard]] std::vector<Stretch> contents(std::size_t pool) const override {
    return pools_[pool]->contents();
  }
  bool set_log(BlockLog* log) override {
    log_.set(log);
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      pools_[i]->set_log(log, i);
    }
    return true;
  }
  void check_invariants() const override {
    for (const auto& pool : pools_) {
      pool->check_invariants();
    }
  }

 private:
  /// Blocks before `end`, and behind the ones before, were found in this pool.
  struct Found {
    std::int64_t end = 0;
    std::size_t pool = 0;
  };
  struct Request {
    Context context;
    std::vector<Found> places;
    /// Blocks with a key, and those that have none.
    std::int64_t published = 0;
    std::int64_t unpublished = 0;
    /// In the first pool: what it found, and whose entries it holds.
    std::vector<BlockRun> found;
    std::vector<BlockRun> held;
  };

  [[nodiscard]] std::int64_t block() const { return rules_.pools.front().block.value; }
  [[nodiscard]] std::int64_t blocks_up(Tokens tokens) const {
    return (tokens.value + block() - 1) / block();
  }

  /// The leading run of blocks that some pool has, from the fastest that has them.
  [[nodiscard]] Match find(const Context& prompt, std::vector<Found>& places) const {
    Match match{Tokens(0), std::vector<Tokens>(pools_.size())};
    const std::int64_t cap = rules_.hit_cap == HitCap::last_token ? 1 : 0;
    std::vector<Stretch> path;
    streams_.path(prompt.stream, std::max<std::int64_t>(prompt.tokens.value - cap, 0) / block(),
                  block(), path);
    std::int64_t at = 0;
    for (const Stretch& stretch : path) {
      while (at < stretch.end) {
        std::int64_t end = stretch.end;
        std::size_t i = 0;
        Piece piece;
        for (; i < pools_.size(); ++i) {
          piece = pools_[i]->first_piece(stretch.stream, at, end);
          if (piece.present) {
            break;
          }
          end = piece.end;  // a faster pool may have what follows
        }
        if (!piece.present) {
          match.tokens = Tokens(at * block());
          return match;
        }
        match.by_pool[i] += Tokens((piece.end - at) * block());
        at = piece.end;
        places.push_back({at, i});
      }
    }
    match.tokens = Tokens(at * block());
    return match;
  }

  /// Leaves the path of the context's blocks in path_. What pools have of it does not make room.
  void protect(StreamId stream, Tokens tokens) {
    streams_.path(stream, tokens.value / block(), block(), path_);
    for (const auto& pool : pools_) {
      pool->protect(path_);
    }
  }

  static void touch(EntryPool& pool, const BlockRun& run) {
    for_each_piece(pool, run, [&](const Piece& piece) {
      if (piece.present) {
        pool.use(pool.part_of(piece.segment, run));
      }
    });
  }

  // ---- Into pools ----

  /// Into the first pool, or the one where blocks were found and stay.
  void put_found(const Request& request, const BlockRun& run) {
    std::vector<std::pair<BlockRun, std::size_t>> parts;
    std::int64_t begin = run.begin;
    for (const Found& place : request.places) {
      std::size_t pool = place.pool;
      while (pool > 0 && rules_.edges[pool - 1].promotes) {
        --pool;
      }
      const std::int64_t end = std::min(place.end, run.end);
      if (end <= begin) {
        continue;
      }
      if (!parts.empty() && parts.back().second == pool) {
        parts.back().first.end = end;
      } else {
        parts.push_back({{run.stream, begin, end, run.first}, pool});
      }
      begin = end;
    }
    if (begin < run.end && !parts.empty() && parts.back().second == 0) {
      parts.back().first.end = run.end;
    } else if (begin < run.end) {
      parts.push_back({{run.stream, begin, run.end, run.first}, 0});
    }
    if (run.first == End::tail) {
      std::reverse(parts.begin(), parts.end());
    }
    for (const auto& [part, pool] : parts) {
      put(pool, part);
    }
  }

  void put(std::size_t index, BlockRun run) {
    EntryPool& pool = *pools_[index];
    if (!pool.splits_entries()) {
      run.first = End::head;  // a sequence grows at its end
    }
    for_each_piece(pool, run, [&](const Piece& piece) {
      const BlockRun part{run.stream, piece.begin, piece.end, run.first};
      if (!piece.present) {
        come_in(index, part);
        return;
      }
      const std::uint32_t entry = pool.part_of(piece.segment, part);
      if (rules_.pools[index].touch == Touch::end) {
        pool.use(entry);
      }
      if (pool.count_put(entry)) {
        write(index, part);
      }
    });
  }
  /// A use that is put into the next pool, too.
  void write(std::size_t index, const BlockRun& run) {
    if (index < rules_.edges.size() && rules_.edges[index].write != Write::on_evict) {
      put(index + 1, run);
    }
  }

  void come_in(std::size_t index, BlockRun run) {
    EntryPool& pool = *pools_[index];
    const bool evicts = index == 0 || rules_.edges[index - 1].no_room == NoRoom::evict;
    const BlockRun wanted = run;
    if (rules_.pools[index].unit == EvictionUnit::sequence) {
      // A sequence comes up whole.
      for (std::size_t i = index; i < rules_.edges.size() && rules_.edges[i].exclusive; ++i) {
        run.end = std::max(run.end, pools_[i + 1]->end_of(run.stream, run.end - 1));
      }
    }
    // A sequence has no gaps.
    const bool fits = pool.splits_entries() ||
                      pool.entry_before(run.stream, run.begin) != UINT32_MAX ||
                      run.begin == streams_.first_of(run.stream) / block();
    const bool has_room =
        fits && pool.admits(run) &&
        (evicts ? pool.find_room(run.size(), index == 0 ? Demand::save : Demand::demotion, &run)
                : run.size() <= pool.free());
    if (!has_room) {
      // The slower tier still has the blocks that would have come up.
      counters_[index].skipped += wanted.size();
      log_.tell(DecisionKind::skip, index, wanted);
      return;
    }
    leave_below(index, run);
    if (evicts) {
      evict(index);
    }
    pool.insert(run);
    counters_[index].inserted += run.size();
    log_.tell(DecisionKind::insert, index, run);
    written_[index] += run.size();
    write_new(index, run);
  }
  /// Coming in is the first put.
  void write_new(std::size_t index, const BlockRun& run) {
    if (index < rules_.edges.size() &&
        (rules_.edges[index].write == Write::on_create ||
         (rules_.edges[index].write == Write::after_uses && rules_.edges[index].uses <= 1))) {
      put(index + 1, run);
    }
  }
  /// On exclusive edges, blocks leave the pools below the one into which they come.
  void leave_below(std::size_t index, const BlockRun& run) {
    for (; index < rules_.edges.size() && rules_.edges[index].exclusive; ++index) {
      pools_[index + 1]->remove(run);
    }
  }
  /// The set that was chosen leaves.
  void evict(std::size_t index) {
    const std::vector<BlockRun> left = pools_[index]->take_victims();
    for (const BlockRun& run : left) {
      counters_[index].evicted += run.size();
      if (index < rules_.edges.size() && rules_.edges[index].write == Write::on_evict) {
        const std::int64_t skipped = counters_[index + 1].skipped;
        log_.begin_demotion(index);
        put(index + 1, run);
        counters_[index].demoted += run.size() - (counters_[index + 1].skipped - skipped);
        log_.end_demotion(index, run);
      } else {
        log_.tell(DecisionKind::evict, index, run);
      }
    }
  }

  // ---- Requests in the first pool ----

  [[nodiscard]] bool make_room(std::int64_t blocks) {
    if (!pools_.front()->find_room(blocks, Demand::save, nullptr)) {
      return false;
    }
    evict(0);
    pools_.front()->take(blocks);
    return true;
  }

  /// Holds what was found in the first pool (path_), and takes memory for the rest.
  [[nodiscard]] bool take_room(Request& request, const Room& room, const Match& match) {
    EntryPool& pool = *pools_.front();
    const std::int64_t found = match.by_pool[0].value / block();
    const std::int64_t wanted = blocks_up(request.context.tokens) - found;
    const std::int64_t gate =
        std::max(blocks_up(room.needed) - found, wanted + room.reserved) + room.watermark;
    if (gate > free_blocks().available || !make_room(wanted)) {
      return false;
    }
    request.unpublished = wanted;
    const std::vector<Stretch> path = path_;
    std::int64_t at = 0;
    for (const Found& place : request.places) {
      for (const Stretch& stretch : path) {
        const std::int64_t begin = std::max(at, stretch.begin);
        const std::int64_t end = std::min(place.end, stretch.end);
        if (place.pool == 0 && begin < end) {
          request.found.push_back({stretch.stream, begin, end, End::head});
          const Piece piece = pool.first_piece(stretch.stream, begin, end);
          hold(request, piece.segment, request.found.back());
        }
      }
      at = place.end;
    }
    return true;
  }
  void hold(Request& request, std::uint32_t entry, const BlockRun& run) {
    if (!holds(request, run.stream)) {
      pools_.front()->hold(entry, run.begin, run.end);
      request.held.push_back(run);
    }
  }
  /// Whether the request holds the stream's sequence.
  [[nodiscard]] bool holds(const Request& request, StreamId stream) const {
    return rules_.pools.front().unit == EvictionUnit::sequence &&
           std::any_of(request.held.begin(), request.held.end(),
                       [&](const BlockRun& held) { return held.stream == stream; });
  }
  /// Blocks that a request found in the first pool were used there.
  void count_use(const BlockRun& run) {
    EntryPool& pool = *pools_.front();
    for_each_piece(pool, run, [&](const Piece& piece) {
      if (piece.present && pool.count_put(piece.segment)) {
        write(0, {run.stream, piece.begin, piece.end, run.first});
      }
    });
  }
  void let_go(const BlockRun& run) {
    EntryPool& pool = *pools_.front();
    if (!pool.splits_entries()) {
      pool.let_go(pool.first_piece(run.stream, run.begin, run.begin + 1).segment);
      return;
    }
    for_each_piece(pool, run, [&](const Piece& piece) { pool.let_go(piece.segment); });
  }

  void publish_at(Publication moment, RequestId id, Tokens tokens) {
    if (rules_.publication == moment && rules_.requests_in_first) {
      Request& request = requests_[id.value];
      protect(request.context.stream, tokens);
      publish(request, tokens);
      protect({}, Tokens(0));
    }
  }
  /// The request's full blocks get keys. Those of which the pool has others are freed.
  void publish(Request& request, Tokens tokens) {
    const std::int64_t full = tokens.value / block();
    std::vector<Stretch> path;
    streams_.path(request.context.stream, full, block(), path);
    for (const Stretch& stretch : path) {
      for (std::int64_t at = std::max(stretch.begin, request.published); at < stretch.end;) {
        BlockRun run{stretch.stream, at, stretch.end, End::head};
        bool found = false;
        for (const BlockRun& known : request.found) {
          if (known.begin <= at && at < known.end) {
            found = true;
            run.end = known.end;
          } else if (known.begin > at) {
            run.end = std::min(run.end, known.begin);
          }
        }
        at = run.end;
        if (!found) {
          publish(request, run);
        }
      }
    }
    request.published = std::max(request.published, full);
  }
  void publish(Request& request, const BlockRun& run) {
    EntryPool& pool = *pools_.front();
    for_each_piece(pool, run, [&](const Piece& piece) {
      const BlockRun part{run.stream, piece.begin, piece.end, End::head};
      request.unpublished -= part.size();
      if (piece.present) {
        pool.give_back(part.size());
        hold(request, piece.segment, part);
        return;
      }
      const bool grows = may_grow(request, part);
      leave_below(0, part);
      pool.publish(part, grows);
      if (!grows) {
        request.held.push_back(part);
      }
      counters_.front().inserted += part.size();
      log_.tell(DecisionKind::insert, 0, part);
      write_new(0, part);
    });
  }
  /// Whether blocks become a part of the entry before them.
  [[nodiscard]] bool may_grow(Request& request, const BlockRun& run) {
    EntryPool& pool = *pools_.front();
    const std::uint32_t before = pool.entry_before(run.stream, run.begin);
    if (before == UINT32_MAX) {
      return false;
    }
    if (!pool.splits_entries()) {
      hold(request, before, {run.stream, run.begin - 1, run.begin, End::head});
      return true;
    }
    for (BlockRun& held : request.held) {
      if (held.stream == run.stream && held.end == run.begin && pool.holders(before) == 1) {
        held.end = run.end;
        return true;
      }
    }
    return false;
  }

  StoreRules rules_;
  const Streams& streams_;
  Pools pools_;
  std::vector<PoolCounters> counters_;
  StoreLog log_;
  /// Blocks that came into each pool since its last copy.
  std::vector<std::int64_t> written_;
  std::uint32_t next_copy_ = 0;
  std::vector<Request> requests_;
  std::vector<RequestId> free_requests_;
  std::vector<Stretch> path_;
};

}  // namespace

std::vector<std::unique_ptr<Store>> make_entry_stores(const StoreRules& rules,
                                                      const Streams& streams,
                                                      const PolicyRegistry& registry,
                                                      std::size_t instances) {
  return make_instance_stores<EntryStore, EntryPool>(rules, streams, instances, [&](std::size_t i) {
    KVTIER_ASSERT(has_entries(rules.pools[i].unit), "all pools have units of entries");
    return std::make_shared<EntryPool>(rules.pools[i], rules.bytes_per_token, puts_wanted(rules, i),
                                       registry);
  });
}

}  // namespace kvtier
