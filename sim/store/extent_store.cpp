#include "sim/store/extent_store.hpp"

#include <algorithm>

#include "sim/core/assert.hpp"
#include "sim/store/extent_pool.hpp"

namespace kvtier {
namespace {

using Pools = std::vector<std::shared_ptr<ExtentPool>>;

class ExtentStore final : public Store {
 public:
  ExtentStore(const StoreRules& rules, const Streams& streams, Pools pools)
      : rules_(rules),
        streams_(streams),
        pools_(std::move(pools)),
        counters_(pools_.size()),
        needs_places_(rules.requests_in_first
                          ? rules.pools.size() > 2
                          : std::any_of(rules.edges.begin(), rules.edges.end(),
                                        [](const EdgeRules& edge) { return !edge.promotes; })),
        one_by_one_(std::any_of(rules.edges.begin(), rules.edges.end(),
                                [](const EdgeRules& edge) { return edge.exclusive; }) &&
                    std::any_of(rules.pools.begin(), rules.pools.end(),
                                [](const PoolRules& pool) { return pool.round > 1; })) {}

  void advance(SimTime now) override {
    for (const auto& pool : pools_) {
      pool->advance(now);
    }
  }

  [[nodiscard]] Match match(const Context& prompt) const override {
    Match match;
    find(prompt, match, nullptr);
    return match;
  }

  std::optional<RequestId> acquire(const Context& prompt, Tokens room, Tokens needed,
                                   Match& match) override {
    Request request;
    find(prompt, match, &request);
    request.found = (rules_.requests_in_first ? match.by_pool[0] : match.tokens).value / block();
    room = std::max(room, match.tokens);
    request.context = {prompt.stream, room};
    request.prompt = prompt.tokens;
    if (rules_.requests_in_first && !take_room(request, needed)) {
      return std::nullopt;
    }
    // An offload counts uses when the request ends.
    for (std::size_t i = rules_.requests_in_first ? 2 : 0; i < pools_.size(); ++i) {
      if (rules_.pools[i].touch == Touch::lookup) {
        touch_found(*pools_[i], match.tokens.value / block());
      }
    }
    if (rules_.requests_in_first && match.tokens > match.by_pool[0]) {
      request.used_from = request.found;
      request.offered = match.tokens.value / block();
      promote(request);
      publish(request, match.tokens);
    }
    RequestId id{static_cast<std::uint32_t>(requests_.size())};
    if (!free_requests_.empty()) {
      id = free_requests_.back();
      free_requests_.pop_back();
      requests_[id.value] = std::move(request);
    } else {
      requests_.push_back(std::move(request));
    }
    if (rules_.publication == Publication::scheduling) {
      publish(requests_[id.value], room);
    }
    return id;
  }

  bool grow(RequestId id, const Context& context) override {
    Request& request = requests_[id.value];
    if (rules_.requests_in_first) {
      ExtentPool& pool = *pools_.front();
      const std::int64_t wanted = blocks_up(context.tokens) - blocks_up(request.context.tokens);
      if (wanted > pool.free() + pool.evictable()) {
        return false;
      }
      make_room(pool, wanted);
      request.unpublished += wanted;
    }
    request.context = context;
    if (rules_.publication == Publication::scheduling) {
      publish(request, context.tokens);
    }
    return true;
  }

  void computed(RequestId id, Tokens tokens) override {
    if (rules_.publication == Publication::computed) {
      publish(requests_[id.value], tokens);
    }
    if (rules_.requests_in_first && pools_.size() > 1) {
      offer(requests_[id.value], tokens);
    }
  }

  void release(RequestId id) override {
    Request& request = requests_[id.value];
    if (rules_.requests_in_first) {
      publish(request, request.context.tokens);
      if (pools_.size() > 1) {
        use_offered(request);
      }
      give_back(request);
    } else {
      const End first = rules_.pools.front().insertion;
      streams_.path(request.context.stream, request.context.tokens.value / block(), block(), path_);
      walk(path_, first, [&](const BlockRun& run) { put_found(request, run); });
    }
    free_requests_.push_back(id);
  }

  [[nodiscard]] FreeBlocks free_blocks() const override {
    const ExtentPool& pool = *pools_.front();
    return {.available = pool.free() + pool.evictable(), .empty = pool.free()};
  }

  void truncate(StreamId stream, Tokens tokens) override {
    for (const auto& pool : pools_) {
      pool->truncate(stream, tokens.value / block());
    }
  }
  [[nodiscard]] bool remembers(StreamId stream) const override {
    return std::any_of(pools_.begin(), pools_.end(),
                       [&](const auto& pool) { return pool->remembers(stream); });
  }

  [[nodiscard]] PoolCounters counters(std::size_t pool) const override { return counters_[pool]; }
  [[nodiscard]] std::int64_t resident_blocks(std::size_t pool) const override {
    return pools_[pool]->resident();
  }
  [[nodiscard]] std::vector<Stretch> contents(std::size_t pool) const override {
    return pools_[pool]->contents();
  }
  void check_invariants() const override {
    for (const auto& pool : pools_) {
      pool->check_invariants();
    }
  }

 private:
  /// Blocks before `end` (and behind the stretch before) were found in this pool.
  struct Found {
    std::int64_t end = 0;
    std::size_t pool = 0;
  };
  /// Blocks that a request holds as further copies.
  struct Copies {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::uint32_t copy = 0;
  };
  struct Request {
    Context context;
    /// Whole blocks that it found, and where if that matters.
    std::int64_t found = 0;
    std::vector<Found> places;
    /// Blocks in the first pool that have a key, and those that have none.
    std::int64_t published = 0;
    std::int64_t unpublished = 0;
    std::vector<Copies> copies;
    /// The pool behind: the first block that the request's end uses, the number of offered blocks,
    /// and the ones that it wrote.
    std::int64_t used_from = 0;
    std::int64_t offered = 0;
    std::vector<BlockRun> written;
    Tokens prompt;
  };

  [[nodiscard]] std::int64_t block() const { return rules_.pools.front().block.value; }
  [[nodiscard]] std::int64_t blocks_up(Tokens tokens) const {
    return (tokens.value + block() - 1) / block();
  }

  /// Leaves the path of the prompt's usable blocks in path_.
  void find(const Context& prompt, Match& match, Request* request) const {
    std::int64_t usable = prompt.tokens.value / block();
    if (rules_.hit_cap == HitCap::last_token) {
      usable = std::max<std::int64_t>(prompt.tokens.value - 1, 0) / block();
    }
    match.by_pool.assign(pools_.size(), Tokens(0));
    // Requests in the first pool find a run there, and the rest behind.
    const bool in_first = rules_.requests_in_first;
    bool behind = !in_first;
    streams_.path(prompt.stream, in_first ? prompt.tokens.value / block() : usable, block(), path_);
    std::int64_t at = 0;
    for (const Stretch& stretch : path_) {
      while (at < stretch.end) {
        const Found found =
            behind ? fastest(stretch.stream, at, stretch.end, in_first ? 1 : 0, pools_.size())
                   : fastest(stretch.stream, at, std::min(usable, stretch.end), 0, 1);
        if (found.end > at) {
          match.by_pool[found.pool] += Tokens((found.end - at) * block());
          at = found.end;
          if (request != nullptr && needs_places_) {
            request->places.push_back(found);
          }
        } else if (behind) {
          match.tokens = Tokens(at * block());
          return;
        } else {
          behind = true;
        }
      }
    }
    match.tokens = Tokens(at * block());
  }
  /// The fastest of some pools that has a block, and the end of what it has from there on before a
  /// faster one has more. `at` as the end: none has it.
  [[nodiscard]] Found fastest(StreamId stream, std::int64_t at, std::int64_t end, std::size_t first,
                              std::size_t last) const {
    for (std::size_t i = first; i < last && at < end; ++i) {
      const Piece piece = pools_[i]->first_piece(stream, at, end);
      if (piece.present) {
        return {piece.end, i};
      }
      end = piece.end;
    }
    return {at, 0};
  }

  /// Counts the use of what a pool has of the first `found` blocks of path_.
  void touch_found(ExtentPool& pool, std::int64_t found) {
    walk(path_, End::tail, [&](BlockRun run) {
      run.end = std::min(run.end, found);
      for_each_piece(pool, run, [&](const Piece& piece) {
        if (piece.present) {
          pool.touch({run.stream, piece.begin, piece.end, End::tail}, piece.extent);
        }
      });
    });
  }

  // ---- Requests outside the pools ----

  /// Puts blocks into the first pool, or the one where they were found and stay.
  void put_found(const Request& request, const BlockRun& run) {
    if (request.places.empty()) {
      put(0, run);
      return;
    }
    std::vector<std::pair<BlockRun, std::size_t>> parts;
    std::int64_t begin = run.begin;
    for (const Found& place : request.places) {
      const std::int64_t end = std::min(place.end, run.end);
      if (end > begin) {
        parts.push_back({{run.stream, begin, end, run.first}, target(place.pool)});
        begin = end;
      }
    }
    if (begin < run.end) {
      parts.push_back({{run.stream, begin, run.end, run.first}, 0});
    }
    if (run.first == End::tail) {
      std::reverse(parts.begin(), parts.end());
    }
    for (const auto& [part, pool] : parts) {
      put(pool, part);
    }
  }
  /// The pool into which a hit in this one is put.
  [[nodiscard]] std::size_t target(std::size_t pool) const {
    while (pool > 0 && rules_.edges[pool - 1].promotes) {
      --pool;
    }
    return pool;
  }

  void put(std::size_t pool, const BlockRun& run) {
    for_each_piece(*pools_[pool], run, [&](const Piece& piece) {
      const BlockRun part{run.stream, piece.begin, piece.end, run.first};
      if (!piece.present) {
        come_in_by_pieces(pool, pool, part);
      } else if (pools_[pool]->put(part, piece.extent, rules_.pools[pool].touch == Touch::end)) {
        write(pool, part);
      }
    });
  }
  /// A use that is put into the next pool, too.
  void write(std::size_t pool, const BlockRun& run) {
    if (pool < rules_.edges.size() && rules_.edges[pool].write != Write::on_eviction) {
      put(pool + 1, run);
    }
  }

  /// Cuts a run where exclusive pools below have other blocks of it: what comes in from there makes
  /// room for what has to leave.
  void come_in_by_pieces(std::size_t index, std::size_t below, const BlockRun& run) {
    if (below < rules_.edges.size() && rules_.edges[below].exclusive) {
      for_each_piece(*pools_[below + 1], run, [&](const Piece& piece) {
        come_in_by_pieces(index, below + 1, {run.stream, piece.begin, piece.end, run.first});
      });
    } else {
      come_in(index, run);
    }
  }

  void come_in(std::size_t index, BlockRun run) {
    ExtentPool& pool = *pools_[index];
    const bool evicts = index == 0 || rules_.edges[index - 1].no_room == NoRoom::evict;
    while (run.size() > 0) {
      const std::int64_t free = pool.free();
      const std::int64_t most = one_by_one_ ? 1 : run.size();
      const std::int64_t part = free > 0 ? std::min(free, most)
                                : evicts ? pool.victims_before_newcomers(most)
                                         : 0;
      if (part == 0) {
        counters_[index].skipped += run.size();
        return;
      }
      BlockRun now = run;
      if (run.first == End::tail) {
        run.end = now.begin = run.end - part;
      } else {
        run.begin = now.end = run.begin + part;
      }
      leave_below(index, now);
      if (free == 0) {
        evict(index, part);
      }
      pool.insert(now);
      counters_[index].inserted += part;
      write_new(index, now);
    }
  }
  /// A block's coming in is its first put.
  void write_new(std::size_t index, const BlockRun& run) {
    if (index < rules_.edges.size() &&
        (rules_.edges[index].write == Write::with_compute ||
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

  void evict(std::size_t index, std::int64_t blocks) {
    std::vector<BlockRun> victims;
    pools_[index]->evict(blocks, victims);
    for (const BlockRun& victim : victims) {
      const std::int64_t size = victim.end - victim.begin;
      counters_[index].evicted += size;
      if (index < rules_.edges.size() && rules_.edges[index].write == Write::on_eviction) {
        const std::int64_t skipped = counters_[index + 1].skipped;
        put(index + 1, victim);
        counters_[index].demoted += size - (counters_[index + 1].skipped - skipped);
      }
    }
  }

  // ---- Requests in the first pool ----

  void make_room(ExtentPool& pool, std::int64_t blocks) {
    if (blocks > pool.free()) {
      evict(0, blocks - pool.free());
    }
    pool.take(blocks);
  }

  /// Holds what was found (path_), and takes memory for the rest.
  bool take_room(Request& request, Tokens needed) {
    ExtentPool& pool = *pools_.front();
    const std::int64_t wanted = blocks_up(request.context.tokens) - request.found;
    const std::int64_t gate = std::max(wanted, blocks_up(needed) - request.found);
    std::int64_t evictable = pool.evictable();
    for_each_found(request.found, [&](const BlockRun& run, std::uint32_t extent) {
      evictable -= pool.is_evictable(extent) ? run.end - run.begin : 0;
    });
    if (gate > pool.free() + evictable) {
      return false;
    }
    for_each_found(request.found,
                   [&](const BlockRun& run, std::uint32_t extent) { pool.hold(run, extent); });
    make_room(pool, wanted);
    request.published = request.found;
    request.unpublished = wanted;
    return true;
  }
  /// Visits the extents of the first `found` blocks of path_ in the first pool.
  template <class Visit>
  void for_each_found(std::int64_t found, Visit visit) {
    walk(path_, End::head, [&](BlockRun run) {
      run.end = std::min(run.end, found);
      for_each_piece(*pools_.front(), run, [&](const Piece& piece) {
        visit(BlockRun{run.stream, piece.begin, piece.end, End::head}, piece.extent);
      });
    });
  }

  void publish(Request& request, Tokens tokens) {
    const std::int64_t full = tokens.value / block();
    if (full <= request.published || !rules_.requests_in_first) {
      return;
    }
    ExtentPool& pool = *pools_.front();
    streams_.path(request.context.stream, full, block(), path_);
    for (const Stretch& stretch : path_) {
      const BlockRun run{stretch.stream, std::max(stretch.begin, request.published), stretch.end,
                         End::head};
      for (std::int64_t at = run.begin; at < run.end;) {
        const auto piece = pool.first_piece(run.stream, at, run.end);
        const BlockRun part{run.stream, at, piece.end, run.first};
        const std::int64_t size = piece.end - at;
        at = piece.end;
        if (!piece.present) {
          pool.publish(part, 0);
          counters_.front().inserted += size;
        } else if (rules_.duplicates == Duplicates::kept) {
          pool.publish(part, ++copies_);
          counters_.front().inserted += size;
          request.copies.push_back({part.begin, part.end, copies_});
        } else {
          pool.hold(part, piece.extent);
          pool.give_back(size);
        }
      }
    }
    request.unpublished -= full - request.published;
    request.published = full;
  }

  // ---- The pools behind them ----

  /// Blocks that were found behind the second pool come nearer.
  void promote(const Request& request) {
    std::int64_t at = 0;
    const std::vector<Stretch> path = path_;
    for (const Found& place : request.places) {
      const std::size_t to = std::max<std::size_t>(1, target(place.pool));
      for (const Stretch& stretch : path) {
        const BlockRun run{stretch.stream, std::max(at, stretch.begin),
                           std::min(place.end, stretch.end), End::head};
        if (to < place.pool && run.begin < run.end) {
          put(to, run);
        }
      }
      at = place.end;
    }
  }

  /// The end of what the request's computed tokens may offer.
  [[nodiscard]] std::int64_t offers(const Request& request, Tokens tokens) const {
    return (rules_.edges[0].prompts_only ? std::min(tokens, request.prompt) : tokens).value /
           block();
  }
  void offer(Request& request, Tokens tokens) {
    const std::int64_t end = offers(request, tokens);
    if (end <= request.offered) {
      return;
    }
    ExtentPool& pool = *pools_[1];
    std::vector<BlockRun> here;
    std::vector<BlockRun> missing;
    std::int64_t wanted = -pool.free();
    streams_.path(request.context.stream, end, block(), path_);
    for (const Stretch& stretch : path_) {
      for_each_piece(
          pool, {stretch.stream, std::max(stretch.begin, request.offered), stretch.end, End::head},
          [&](const Piece& piece) {
            const BlockRun run{stretch.stream, piece.begin, piece.end, End::head};
            (piece.present ? here : missing).push_back(run);
            wanted += piece.present ? 0 : run.end - run.begin;
          });
    }
    for (const BlockRun& run : here) {
      pool.pin(run);
    }
    for (const BlockRun& run : missing) {
      pool.adapt(run);
    }
    if (wanted <= pool.evictable()) {
      for (const BlockRun& run : missing) {
        leave_below(1, run);
      }
      evict(1, wanted);
      for (const BlockRun& run : missing) {
        pool.insert(run);
        pool.pin(run);
        counters_[1].inserted += run.end - run.begin;
        request.written.push_back(run);
        write_new(1, run);
      }
      request.offered = end;
    } else {
      counters_[1].skipped += wanted + pool.free();
    }
    for (const BlockRun& run : here) {
      pool.unpin(run);
    }
  }
  void use_offered(const Request& request) {
    ExtentPool& pool = *pools_[1];
    for (const BlockRun& run : request.written) {
      pool.unpin(run);
    }
    streams_.path(request.context.stream,
                  std::min(request.offered, offers(request, request.context.tokens)), block(),
                  path_);
    walk(path_, End::tail, [&](BlockRun run) {
      run.begin = std::max(run.begin, request.used_from);
      while (run.begin < run.end) {
        // The part at the end that the request wrote, or did not.
        std::int64_t begin = run.begin;
        bool wrote = false;
        for (const BlockRun& written : request.written) {
          if (written.stream == run.stream && written.begin < run.end && run.end <= written.end) {
            begin = std::max(begin, written.begin);
            wrote = true;
          } else if (written.stream == run.stream && written.end < run.end) {
            begin = std::max(begin, written.end);
          }
        }
        for_each_piece(pool, {run.stream, begin, run.end, End::tail}, [&](const Piece& piece) {
          const BlockRun part{run.stream, piece.begin, piece.end, End::tail};
          if (piece.present && wrote) {
            pool.touch(part, piece.extent, false);
          } else if (piece.present && pool.put(part, piece.extent, true)) {
            write(1, part);
          }
        });
        run.end = begin;
      }
    });
  }

  void give_back(const Request& request) {
    ExtentPool& pool = *pools_.front();
    const End first = rules_.pools.front().insertion;
    const auto keyless = [&] {
      if (rules_.keyless == Keyless::first) {
        pool.give_back(request.unpublished);
      } else {
        pool.leave_keyless(request.unpublished);
      }
    };
    if (first == End::tail) {
      keyless();
    }
    streams_.path(request.context.stream, request.published, block(), path_);
    walk(path_, first, [&](const BlockRun& run) { let_go(request, run); });
    if (first == End::head) {
      keyless();
    }
  }
  /// Cut where the request's own copies, or what it found, begin and end.
  void let_go(const Request& request, const BlockRun& run) {
    std::int64_t begin = run.begin;
    std::int64_t end = run.end;
    while (begin < end) {
      BlockRun part{run.stream, begin, end, run.first};
      std::uint32_t copy = 0;
      const bool from_tail = run.first == End::tail;
      const auto cut = [&](std::int64_t at) {
        if (at > part.begin && at < part.end) {
          (from_tail ? part.begin : part.end) = at;
        }
      };
      cut(request.found);
      for (const Copies& copies : request.copies) {
        cut(copies.begin);
        cut(copies.end);
      }
      for (const Copies& copies : request.copies) {
        if (copies.begin <= part.begin && part.end <= copies.end) {
          copy = copies.copy;
        }
      }
      pools_.front()->let_go(part, copy, part.end <= request.found);
      (from_tail ? end : begin) = from_tail ? part.begin : part.end;
    }
  }

  StoreRules rules_;
  const Streams& streams_;
  Pools pools_;
  std::vector<PoolCounters> counters_;
  bool needs_places_;
  /// The room that one block frees below is not the one that the next one's victims need.
  bool one_by_one_;
  std::vector<Request> requests_;
  std::vector<RequestId> free_requests_;
  std::uint32_t copies_ = 0;
  mutable std::vector<Stretch> path_;
};

}  // namespace

std::vector<std::unique_ptr<Store>> make_extent_stores(const StoreRules& rules,
                                                       const Streams& streams,
                                                       std::size_t instances) {
  std::vector<std::unique_ptr<Store>> stores;
  Pools pools(rules.pools.size());
  for (std::size_t instance = 0; instance < instances; ++instance) {
    for (std::size_t i = 0; i < rules.pools.size(); ++i) {
      if (instance == 0 || !rules.pools[i].shared) {
        pools[i] = std::make_shared<ExtentPool>(rules.pools[i], puts_wanted(rules, i));
      }
    }
    stores.push_back(std::make_unique<ExtentStore>(rules, streams, pools));
  }
  return stores;
}

}  // namespace kvtier
