#include "sim/store/blocks/extent_store.hpp"

#include <algorithm>
#include <map>

#include <boost/container/flat_map.hpp>
#include <boost/container/small_vector.hpp>
#include <boost/icl/interval_set.hpp>

#include "sim/core/assert.hpp"
#include "sim/core/window.hpp"
#include "sim/store/blocks/extent_pool.hpp"
#include "sim/store/blocks/instance_stores.hpp"
#include "sim/store/blocks/store_log.hpp"
#include "sim/store/offer_counts.hpp"
#include "sim/store/offload_calls.hpp"
#include "sim/store/write_frequencies.hpp"

namespace kvtier {
namespace {

using Pools = std::vector<std::shared_ptr<ExtentPool>>;
using Use = UseOfPools<std::vector<ExtentPool*>>;

class ExtentStore final : public Store, private OffloadCalls {
 public:
  ExtentStore(const StoreRules& rules, const Streams& streams, Pools pools)
      : rules_(rules),
        streams_(streams),
        pools_(std::move(pools)),
        counters_(pools_.size()),
        log_(pools_.size()),
        victims_(pools_.size()),
        lacked_(pools_.size()),
        offloads_(is_offload(rules)),
        has_victims_behind_(kvtier::has_victims_behind(rules)),
        has_cache_behind_(rules.requests_in_first && pools_.size() > 1 && !offloads_ &&
                          !has_victims_behind_),
        prefetches_to_(prefetches_to(rules)),
        ahead_(blocks_ahead(rules)),
        offer_counts_(rules),
        needs_places_(!rules.requests_in_first &&
                      std::any_of(rules.edges.begin(), rules.edges.end(),
                                  [](const EdgeRules& edge) { return !edge.promotes; })),
        one_by_one_(std::any_of(rules.edges.begin(), rules.edges.end(),
                                [](const EdgeRules& edge) { return edge.exclusive; }) &&
                    std::any_of(rules.pools.begin(), rules.pools.end(),
                                [](const PoolRules& pool) { return pool.round > 1; })),
        filters_(std::any_of(pools_.begin(), pools_.end(),
                             [](const auto& pool) { return pool->filters(); })),
        evicts_in_background_(ahead_ > 0 ||
                              std::any_of(rules.pools.begin(), rules.pools.end(),
                                          [](const PoolRules& pool) {
                                            return pool.idle ||
                                                   (pool.relief && pool.relief->in_background);
                                          })),
        filling_(pools_.size()),
        stalling_blocks_(pools_.size()) {
    for (const EdgeRules& edge : rules_.edges) {
      frequencies_.emplace_back(edge.frequency);
    }
    for (const auto& pool : pools_) {
      if (pool->groups() != nullptr) {
        grouped_.push_back(pool.get());
      }
    }
    if (leaves_ahead(rules)) {
      retained_.emplace(PoolRules{.capacity = rules_.pools[0].capacity,
                                  .block = rules_.pools[0].block,
                                  .eviction = "fifo"},
                        0);
    }
  }

  void advance(SimTime now) override {
    for (WriteFrequencies& frequencies : frequencies_) {
      frequencies.advance(now);
    }
    for (const auto& pool : pools_) {
      pool->advance(now);
    }
    // Victims may go to the next pool, which has to know the time.
    if (evicts_in_background_) {
      evict_in_background();
    }
  }

  [[nodiscard]] Match match(const Context& prompt) const override {
    Match match;
    find(prompt, match, nullptr);
    return match;
  }

  std::optional<RequestId> acquire(const Context& prompt, const Room& room, Match& match,
                                   RequestId again) override {
    Request request;
    find(prompt, match, &request);
    request.found =
        (rules_.requests_in_first && !has_victims_behind_ ? match.by_pool[0] : match.tokens).value /
        block();
    Use use(grouped_, {prompt.stream, Tokens(request.found * block())});
    const Tokens taken = std::max(room.taken, match.tokens);
    request.context = {prompt.stream, taken};
    request.prompt = prompt.tokens;
    if (room.comes_early && !make_idle_room({prompt.stream, match.tokens})) {
      return std::nullopt;
    }
    if (rules_.requests_in_first && !take_room(request, room)) {
      return std::nullopt;
    }
    match.reads_written = has_victims_behind_ && reads_written();
    if (!rules_.requests_in_first) {
      for (std::size_t i = 0; i < pools_.size(); ++i) {
        if (rules_.pools[i].touch == Touch::lookup) {
          touch_found(*pools_[i], match.tokens.value / block());
        }
      }
    }
    RequestId id = again;
    if (id.value != UINT32_MAX) {
      request.prompt = requests_[id.value].prompt;
      request.noted = requests_[id.value].noted;
      request.record = std::move(requests_[id.value].record);
      request.record.next = 0;
    } else {
      id = new_request();
    }
    Request& kept = requests_[id.value] = std::move(request);
    note_uses(kept, match.tokens);
    if (rules_.requests_in_first && pools_.size() > 1 && !has_victims_behind_) {
      use.extend({prompt.stream, match.tokens});
      load(kept, match);
    }
    if (room.arrives) [[unlikely]] {
      kept.loaded = taken;
    }
    if (rules_.publication == Publication::scheduling && !awaits(kept)) {
      use.extend({prompt.stream, taken});
      publish(kept, taken);
    }
    return id;
  }

  bool grow(RequestId id, const Context& context) override {
    Request& request = requests_[id.value];
    if (rules_.requests_in_first) {
      ExtentPool& pool = *pools_.front();
      const std::int64_t wanted = blocks_up(context.tokens) - blocks_up(request.context.tokens);
      std::optional<Use> use;
      if (wanted > pool.free()) {
        if (wanted > pool.free() + pool.evictable()) {
          return false;
        }
        use.emplace(grouped_, Context{});
      }
      make_room(pool, wanted);
      request.unpublished += wanted;
    }
    request.context = context;
    if (rules_.publication == Publication::scheduling) {
      const Use use(grouped_, context);
      publish(request, context.tokens);
    }
    return true;
  }

  void computed(RequestId id, Tokens tokens) override {
    const Request& request = requests_[id.value];
    const bool puts = has_cache_behind_ && offers(request, tokens) > request.record.next;
    if (rules_.publication == Publication::computed || filters_ || puts) {
      publish_computed(id, tokens, puts);
    }
  }
  void loaded(RequestId id) override {
    const Use use(grouped_, requests_[id.value].context);
    end_loads(requests_[id.value]);
  }
  void publish_loaded(RequestId id) override {
    Request& request = requests_[id.value];
    const Use use(grouped_, {request.context.stream, request.loaded});
    publish(request, request.loaded);
  }

  [[nodiscard]] bool offloads() const override { return offloads_; }
  bool offer(RequestId id, Tokens tokens) override {
    Request& request = requests_[id.value];
    const bool fits = offer(request, tokens);
    if (request.released) {
      await_writes(request);
    }
    return fits;
  }
  [[nodiscard]] OffloadCalls* offload_calls() override { return offloads_ ? this : nullptr; }
  [[nodiscard]] std::vector<Copy> take_copies() override {
    for (std::size_t i = 1; i < pools_.size(); ++i) {
      if (filling_[i] || !stalling_blocks_[i].empty()) {
        begin_copy(i);
      }
    }
    return begun_.empty() ? std::vector<Copy>() : std::exchange(begun_, {});
  }
  [[nodiscard]] std::vector<Copy> take_awaited() override {
    return awaited_.empty() ? std::vector<Copy>() : awaited_copies();
  }
  void copied(std::uint32_t id) override {
    CopyInFlight& copy = arrived_;
    std::swap(copy, copies_.at(id));
    copies_.remove(id);
    awaited_.erase(id);
    const Use use(grouped_, {});
    relieve_before_arrival(copy);
    for (const BlockRun& run : copy.blocks) {
      if (keeps_sources(copy.to)) {
        pools_[copy.to - 1]->unpin(run);
      }
      arrive(copy.to, run);
    }
  }
  void end(RequestId id) override {
    if (offloads_) {
      const Use use(grouped_, requests_[id.value].context);
      use_offered(requests_[id.value]);
      free_requests_.push_back(id);
    }
  }

  void release(RequestId id) override {
    Request& request = requests_[id.value];
    const Use use(grouped_, request.context);
    note_uses(request, request.context.tokens);
    end_loads(request);
    if (rules_.requests_in_first) {
      publish(request, request.context.tokens);
      request.released = true;
      if (has_cache_behind_ && rules_.edges[0].responses == Responses::end) {
        put_behind(request, request.context.tokens);
      }
      give_back(request);
      await_writes(request);
    } else {
      const bool at_once = rules_.pools.front().allocation == Allocation::write;
      const std::int64_t end = request.context.tokens.value / block();
      streams_.path(request.context.stream, end, block(), path_);
      walk_written(0, [&](BlockRun run) {
        run.end = at_once ? std::min(run.end, request.found) : run.end;
        put_found(request, run);
      });
      if (at_once) {
        put_new(0, request.found, end);
      }
    }
    if (!offloads_) {
      free_requests_.push_back(id);
    }
  }

  std::optional<Prefetch> prefetch(const Context& prompt) override {
    if (prefetches_to_ != 1U) {
      return std::nullopt;
    }
    Match match;
    Sources sources;
    find(prompt, match, &sources);
    Fetch fetch;
    fetch.context = {prompt.stream, match.tokens};
    const Use use(grouped_, fetch.context);
    std::vector<BlockRun>& here = fetched_here_;
    here.clear();
    Prefetch prefetch;
    for_each_place(sources, match.by_pool[0].value / size_behind(),
                   [&](std::size_t pool, const BlockRun& run) {
                     for_each_piece(*pools_[1], run, [&](const Piece& piece) {
                       const BlockRun part{run.stream, piece.begin, piece.end, run.first};
                       if (piece.present) {
                         here.push_back(part);
                       } else if (target(pool) <= 1) {
                         fetch.loads.push_back({pool, 1, part});
                         prefetch.tokens += Tokens(part.size() * size_behind());
                       }
                     });
                   });
    if (fetch.loads.empty() ||
        !make_room_for_prefetch(fetch, here, prefetch.tokens.value / size_behind())) {
      return std::nullopt;
    }
    for (const Load& load : fetch.loads) {
      count_inserted(1, load.run, true);
      pools_[1]->insert(load.run, false);
      fetch.promoted.emplace_back(1, load.run);
      prefetch.stretches.push_back(load.run.stretch());
    }
    prefetch.id = ++last_fetch_;
    fetches_.emplace(prefetch.id, std::move(fetch));
    return prefetch;
  }
  Tokens prefetched(std::uint32_t id, Tokens came) override {
    Fetch fetch = std::move(fetches_.extract(id).mapped());
    const Use use(grouped_, fetch.context);
    end_loads(fetch);
    return came;
  }
  [[nodiscard]] std::vector<Stretch> take_demoted() override {
    notes_demoted_ = true;
    return std::exchange(demoted_, {});
  }

  [[nodiscard]] FreeBlocks free_blocks() const override {
    const ExtentPool& pool = *pools_.front();
    return {.available = pool.free() + pool.evictable(), .empty = pool.free()};
  }

  void truncate(StreamId stream, Tokens tokens) override {
    if (retained_) {
      retained_->truncate(stream, tokens.value / block());
    }
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      pools_[i]->truncate(stream, tokens.value / rules_.pools[i].block.value);
    }
  }
  void cut(StreamId stream, Tokens kept, Tokens dropped) override {
    const Stretch cut{stream, kept.value, (kept + dropped).value};
    copies_.for_each([&](std::uint64_t, CopyInFlight& copy) {
      std::vector<BlockRun> left;
      for (const BlockRun& run : copy.blocks) {
        leave_cut(run, cut, left, [&](const BlockRun& gone) {
          if (keeps_sources(copy.to)) {
            pools_[copy.to - 1]->unpin(gone);
          }
          pools_[copy.to]->end_write(gone);
        });
      }
      copy.blocks = std::move(left);
    });
    if (retained_) {
      retained_->cut(cut);
    }
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      pools_[i]->cut(cut);
      log_.tell_shift(i, cut);
    }
  }
  /// Policies may remember the keys of blocks that have left.
  [[nodiscard]] bool remembers(StreamId stream) const override {
    return std::any_of(
               pools_.begin(), pools_.end(),
               [&](const auto& pool) { return pool->is_ranked() || pool->remembers(stream); }) ||
           (retained_ && retained_->remembers(stream)) ||
           std::any_of(frequencies_.begin(), frequencies_.end(),
                       [&](const auto& frequencies) { return frequencies.remembers(stream); });
  }

  [[nodiscard]] PoolCounters counters(std::size_t pool) const override { return counters_[pool]; }
  [[nodiscard]] std::int64_t resident_blocks(std::size_t pool) const override {
    return pools_[pool]->resident() + (pool == 0 && retained_ ? retained_->resident() : 0);
  }
  [[nodiscard]] std::vector<Stretch> contents(std::size_t pool) const override {
    std::vector<Stretch> contents =
        pool == 0 && retained_ ? retained_->contents() : std::vector<Stretch>();
    const std::vector<Stretch> others = pools_[pool]->contents();
    contents.insert(contents.end(), others.begin(), others.end());
    return contents;
  }
  bool set_listener(BlockListener* listener) override {
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      if (!rules_.pools[i].shared) {
        pools_[i]->set_listener(listener, i);
      }
    }
    if (retained_) {
      retained_->set_listener(listener, 0);
    }
    return true;
  }
  [[nodiscard]] std::vector<PolicyOrder*> looking_ahead() override {
    std::vector<PolicyOrder*> found;
    add_looking_ahead(pools_, found);
    return found;
  }
  bool set_log(BlockLog* log) override {
    log_.set(log);
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      pools_[i]->set_log(log, i);
    }
    if (retained_) {
      retained_->set_log(log, 0);
    }
    return true;
  }
  void check_invariants() const override {
    for (const auto& pool : pools_) {
      pool->check_invariants();
    }
    if (retained_) {
      retained_->check_invariants();
      KVTIER_ASSERT(retained_->used() <= pools_[0]->free(), "blocks are found in free memory");
    }
  }

 private:
  // OffloadCalls
  RequestId begin(StreamId stream) override {
    const RequestId id = new_request();
    requests_[id.value] = {};
    requests_[id.value].context = {stream, Tokens(0)};
    return id;
  }
  Offer offer(RequestId id, const std::vector<Stretch>& blocks) override {
    Offer result;
    victims_[1].clear();
    const Use use(grouped_, {});
    result.fits = offer_blocks(requests_[id.value].record, blocks);
    if (result.fits) {
      add_blocks(offered_missing_, result.written);
      add_blocks(victims_[1], result.evicted);
    }
    return result;
  }
  void begin_load(RequestId id, const std::vector<Stretch>& blocks) override {
    for (const Stretch& block : blocks) {
      const BlockRun run{block.stream, block.begin, block.end, End::head};
      note_reuse(requests_[id.value].record, run);
      pools_[1]->begin_load(run);
    }
  }
  void end_load(const std::vector<Stretch>& blocks) override {
    for (const Stretch& block : blocks) {
      pools_[1]->end_load({block.stream, block.begin, block.end, End::head});
    }
  }
  void set_target(double target) override { pools_[1]->set_target(target); }
  [[nodiscard]] BlockState state(StreamId stream, std::int64_t block) const override {
    const Piece piece = pools_[1]->first_piece(stream, block, block + 1);
    return !piece.present                               ? BlockState::absent
           : pools_[1]->is_being_written(piece.segment) ? BlockState::written
                                                        : BlockState::ready;
  }
  [[nodiscard]] std::int64_t offers(StreamId stream, std::int64_t block) const override {
    return offer_counts_.uses(stream, block);
  }
  [[nodiscard]] OffloadFacts facts() const override {
    const ExtentPool& pool = *pools_[1];
    return {.free = pool.free(),
            .evictable = pool.evictable(),
            .lists = pool.lists(),
            .target = pool.target()};
  }
  static void add_blocks(const std::vector<BlockRun>& runs, std::vector<Stretch>& blocks) {
    for (const BlockRun& run : runs) {
      for (std::int64_t i = 0; i < run.size(); ++i) {
        const std::int64_t block = run.first == End::tail ? run.end - 1 - i : run.begin + i;
        blocks.push_back({run.stream, block, block + 1});
      }
    }
  }

  /// Blocks before `end` (and behind the stretch before) were found in this pool.
  struct Found {
    std::int64_t end = 0;
    std::size_t pool = 0;
  };
  /// Blocks that a request holds as duplicates (Duplicates::kept).
  struct HeldDuplicates {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::uint32_t id = 0;
  };
  /// Blocks that are read in a pool, and stay there meanwhile, and the pool into which they come.
  struct Load {
    std::size_t pool = 1;
    std::size_t to = 1;
    BlockRun run;
  };
  using Intervals = boost::icl::interval_set<std::int64_t>;
  using Interval = Intervals::interval_type;
  /// The blocks that an offload has seen of a request, by their places in its context.
  struct OffloadRecord {
    /// The first block that was not offered since it began.
    std::int64_t next = 0;
    /// Its place in the order of eviction.
    std::uint32_t place = ExtentPool::kNone;
    /// Blocks that it used in any way, of those the ones that it brought in, and the ones that were
    /// there; and those that were missing.
    Intervals seen;
    Intervals inserted;
    Intervals reused;
    Intervals missed;
    /// Copies that read its memory, and how many blocks. With Publication::never alone.
    boost::container::small_vector<std::pair<std::uint32_t, std::int64_t>, 2> writes;
  };
  /// The pools in which a request found blocks.
  struct Sources {
    /// Those of whole blocks, if that matters.
    boost::container::small_vector<Found, 3> places;
    /// The end of the blocks of the pool behind that it found.
    std::int64_t found_behind = 0;
    /// A block whose first tokens it reuses.
    ExtentPool::Part part;
  };
  /// Blocks that come nearer for a request.
  struct Loading {
    /// The blocks that it loads from the pool behind and from slower pools.
    boost::container::small_vector<Load, 2> loads;
    /// Blocks that come up for it, by pool: others find them there when they are in its memory.
    boost::container::small_vector<std::pair<std::size_t, BlockRun>, 1> promoted;
  };
  struct Request : Sources, Loading {
    Context context;
    /// Whole blocks that it found.
    std::int64_t found = 0;
    /// Blocks in the first pool that have a key, and those that have none.
    std::int64_t published = 0;
    std::int64_t unpublished = 0;
    std::vector<HeldDuplicates> duplicates;
    /// The end of the blocks that it loads.
    Tokens loaded;
    OffloadRecord record;
    Tokens prompt;
    /// Tokens whose use admission policies know of.
    Tokens noted;
    bool released = false;
  };
  /// Blocks that are fetched for a request that waits.
  struct Fetch : Loading {
    Context context;
  };

  RequestId new_request() {
    if (!free_requests_.empty()) {
      const RequestId id = free_requests_.back();
      free_requests_.pop_back();
      return id;
    }
    requests_.emplace_back();
    return RequestId{static_cast<std::uint32_t>(requests_.size() - 1)};
  }

  [[nodiscard]] std::int64_t block() const { return rules_.pools.front().block.value; }
  [[nodiscard]] std::int64_t blocks_up(Tokens tokens) const {
    return (tokens.value + block() - 1) / block();
  }

  /// Leaves in path_ the stretches of a stream's first `end` blocks that end behind block `begin`:
  /// a request that grows in a stream of many forks need not look at all of them.
  void find_path(StreamId stream, std::int64_t begin, std::int64_t end, std::int64_t size) {
    path_.clear();
    for (StreamId at = stream; at.valid() && end > begin; at = streams_.parent(at)) {
      const std::int64_t first = streams_.first_of(at) / size;
      if (first < end) {
        path_.push_back({at, first, end});
        end = first;
      }
    }
    std::reverse(path_.begin(), path_.end());
  }

  /// Admission policies learn once which blocks a request uses: before its writes of them.
  void note_uses(Request& request, Tokens tokens) {
    if (!filters_ || tokens <= request.noted) [[likely]] {
      return;
    }
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      if (pools_[i]->filters()) {
        const std::int64_t size = rules_.pools[i].block.value;
        std::vector<Stretch> path;
        streams_.path(request.context.stream, tokens.value / size, size, path);
        for (const Stretch& stretch : path) {
          for (std::int64_t block = std::max(stretch.begin, request.noted.value / size);
               block < stretch.end; ++block) {
            pools_[i]->note_use(stretch.stream, block);
          }
        }
      }
    }
    request.noted = tokens;
  }

  /// Leaves the path of the prompt's usable blocks in path_.
  void find(const Context& prompt, Match& match, Sources* sources) const {
    const Context usable{prompt.stream, usable_tokens(prompt, rules_.hit_cap)};
    match.before_loads = Tokens(0);
    find_blocks(prompt, usable.tokens.value / block(), match, sources);
    if (!has_victims_behind_) {
      match.before_loads = match.by_pool[0];
    }
    if (rules_.partial_reuse && usable.tokens > match.tokens) {
      const ExtentPool::Part part = pools_.front()->best_part(usable, match.tokens.value / block());
      match.tokens += Tokens(part.tokens);
      match.by_pool[0] += Tokens(part.tokens);
      if (sources != nullptr) {
        sources->part = part;
      }
    }
  }
  [[nodiscard]] static Tokens usable_tokens(const Context& prompt, HitCap cap) {
    return cap == HitCap::last_token ? std::max(prompt.tokens - Tokens(1), Tokens(0))
                                     : prompt.tokens;
  }
  void find_blocks(const Context& prompt, std::int64_t usable, Match& match,
                   Sources* sources) const {
    match.by_pool.assign(pools_.size(), Tokens(0));
    match.waits = false;
    match.far.clear();
    match.by_place[0].clear();
    match.by_place[1].clear();
    const bool in_first = rules_.requests_in_first && !has_victims_behind_;
    const std::size_t last = in_first ? 1 : pools_.size();
    if (in_first && rules_.publication == Publication::never) {
      usable = 0;
    }
    streams_.path(prompt.stream, usable, block(), path_);
    std::int64_t at = 0;
    for (const Stretch& stretch : path_) {
      while (at < stretch.end) {
        const Found found = fastest(stretch.stream, at, stretch.end, 0, last);
        if (found.end == at) {
          match.tokens = Tokens(at * block());
          if (in_first && pools_.size() > 1) {
            find_behind(prompt, match, sources);
          }
          return;
        }
        match.by_pool[found.pool] += Tokens((found.end - at) * block());
        if (found.pool == 0 && match.before_loads.value == at * block()) {
          match.before_loads = Tokens(found.end * block());
        }
        if (has_victims_behind_ && log_.is_set()) [[unlikely]] {
          match.by_place[found.pool].push_back({stretch.stream, at, found.end});
        }
        at = found.end;
        if (sources != nullptr && needs_places_) {
          sources->places.push_back(found);
        }
      }
    }
    match.tokens = Tokens(at * block());
    if (in_first && pools_.size() > 1) {
      find_behind(prompt, match, sources);
    }
  }
  /// Adds what the pools behind have of the prompt. An offload looks behind what the first pool
  /// has, and has to have a block more; a cache of its own looks from the beginning on.
  void find_behind(const Context& prompt, Match& match, Sources* sources) const {
    const std::int64_t size = rules_.pools[1].block.value;
    const Tokens first = match.tokens;
    behind_.clear();
    streams_.path(prompt.stream, usable_tokens(prompt, rules_.hit_cap_behind).value / size, size,
                  behind_);
    std::int64_t at = offloads_ ? first.value / size : 0;
    for (const Stretch& stretch : behind_) {
      bool all = true;
      while (all && at < stretch.end) {
        const Found found = fastest(stretch.stream, at, stretch.end, 1, pools_.size());
        all = found.end > at;
        if (all) {
          const Tokens begin = std::max(Tokens(at * size), first);
          const Tokens end = std::max(Tokens(found.end * size), begin);
          match.by_pool[found.pool] += end - begin;
          match.waits = match.waits || is_on_its_way(stretch.stream, at, found);
          if (found.pool > 1 && begin < end && log_.is_set()) [[unlikely]] {
            match.far.push_back({stretch.stream, std::max(at, first.value / size), found.end});
          }
          at = found.end;
          if (sources != nullptr) {
            sources->places.push_back(found);
          }
        }
      }
      if (!all) {
        break;
      }
    }
    match.tokens = std::max(first, Tokens(at * size));
    if (sources != nullptr) {
      sources->found_behind = at;
    }
    if (match.tokens - first < Tokens(offloads_ ? size : 1)) {
      match.tokens = first;
      std::fill(match.by_pool.begin() + 1, match.by_pool.end(), Tokens(0));
      match.waits = false;
      match.far.clear();
      if (sources != nullptr) {
        sources->places.clear();
      }
    }
    match.waits = match.waits || comes(at, first);
  }
  /// Whether the first block of behind_ that no pool has is on its way to one, and the first pool
  /// does not have it.
  [[nodiscard]] bool comes(std::int64_t block, Tokens first) const {
    if ((block + 1) * size_behind() <= first.value) {
      return false;
    }
    const auto stretch =
        std::ranges::find_if(behind_, [&](const Stretch& one) { return block < one.end; });
    for (std::size_t i = 1; i < pools_.size() && stretch != behind_.end(); ++i) {
      const Piece piece = pools_[i]->first_piece(stretch->stream, block, block + 1);
      if (piece.present && is_buffered(rules_, i) && pools_[i]->is_being_written(piece.segment)) {
        return true;
      }
    }
    return false;
  }
  [[nodiscard]] bool is_on_its_way(StreamId stream, std::int64_t begin, const Found& found) const {
    bool is = false;
    if (offloads_ && found.pool == 1) {
      for_each_piece(*pools_[1], {stream, begin, found.end, End::head}, [&](const Piece& piece) {
        is = is || pools_[1]->is_being_written(piece.segment) ||
             (rules_.loads_alone && !rules_.pools[1].shared &&
              pools_[1]->is_being_loaded(piece.segment));
      });
    }
    return is;
  }
  /// The fastest of some pools that has a block, and the end of what it has from there on before a
  /// faster one has more. `at` as the end: none has it.
  [[nodiscard]] Found fastest(StreamId stream, std::int64_t at, std::int64_t end, std::size_t first,
                              std::size_t last) const {
    for (std::size_t i = first; i < last && at < end; ++i) {
      const Piece piece = pools_[i]->first_piece(stream, at, end);
      // What is written to an offload is asked for again.
      if (piece.present && ((i == 1 && offloads_) || !pools_[i]->is_being_written(piece.segment))) {
        return {piece.end, i};
      }
      end = piece.end;
      if (i == 0 && retained_ && at < end) [[unlikely]] {
        const Piece retained = retained_->first_piece(stream, at, end);
        if (retained.present) {
          return {retained.end, 0};
        }
        end = retained.end;
      }
    }
    return {at, 0};
  }

  /// Counts the use of what a pool has of the first `found` blocks of path_.
  void touch_found(ExtentPool& pool, std::int64_t found) {
    walk(path_, End::tail, [&](BlockRun run) {
      run.end = std::min(run.end, found);
      for_each_piece(pool, run, [&](const Piece& piece) {
        if (piece.present) {
          pool.touch({run.stream, piece.begin, piece.end, End::tail}, piece.segment);
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
        return;
      }
      const bool arrived = !pools_[pool]->is_being_written(piece.segment);
      if (pools_[pool]->count_put(part, piece.segment, rules_.pools[pool].touch == Touch::end) &&
          arrived) {
        write(pool, part);
      }
    });
  }
  /// A use that is put into the next pool, too.
  void write(std::size_t pool, const BlockRun& run) {
    if (pool < rules_.edges.size() && rules_.edges[pool].write != Write::on_evict &&
        !rules_.edges[pool].frequency) {
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

  /// Cuts the first blocks off a run.
  static BlockRun cut_off(BlockRun& run, std::int64_t blocks) {
    BlockRun first = run;
    if (run.first == End::tail) {
      run.end = first.begin = run.end - blocks;
    } else {
      run.begin = first.end = run.begin + blocks;
    }
    return first;
  }
  /// Takes room for a write of so many blocks, and returns how many of them have some.
  std::int64_t make_room_for_write(std::size_t index, std::int64_t blocks) {
    const PoolRules& rules = rules_.pools[index];
    const ExtentPool& pool = *pools_[index];
    if (rules.allocation == Allocation::block) {
      return blocks;
    }
    const bool evicts = index == 0 || rules_.edges[index - 1].no_room == NoRoom::evict;
    blocks = std::min(blocks, pool.free() + (evicts ? pool.evictable() : 0));
    if (const std::int64_t lacking = blocks - pool.free(); lacking > 0) {
      const std::int64_t rounds = (lacking + rules.round - 1) / rules.round;
      const std::int64_t leave = std::min(rounds * rules.round, pool.evictable());
      if (!pools_[index]->choose(leave, nullptr)) {
        return pool.free();
      }
      evict(index, leave);
    }
    return blocks;
  }
  /// Visits path_ in the order in which a request writes it to a pool, or leaves it there. Without
  /// room for all, the first blocks of a stream are the useful ones if they are a part of an entry.
  template <class Visit>
  void walk_written(std::size_t index, Visit visit) {
    walk(path_, rules_.pools[index].insertion, [&](BlockRun run) {
      run.first = pools_[index]->groups() != nullptr ? End::head : run.first;
      visit(run);
    });
  }
  /// A request writes the blocks [begin, end) of path_.
  void put_new(std::size_t index, std::int64_t begin, std::int64_t end) {
    std::int64_t left = make_room_for_write(index, end - begin);
    walk_written(index, [&](BlockRun run) {
      run.begin = std::max(run.begin, begin);
      if (run.begin < run.end) {
        const BlockRun fits = cut_off(run, std::min(left, run.size()));
        left -= fits.size();
        put(index, fits);
        for_each_piece(*pools_[index], run, [&](const Piece& piece) {
          if (!piece.present) {
            count_skipped(index, {run.stream, piece.begin, piece.end, run.first});
          }
        });
      }
    });
  }

  void count_inserted(std::size_t index, const BlockRun& run, bool promoted = false) {
    counters_[index].inserted += run.size();
    counters_[index].promoted += promoted ? run.size() : 0;
    log_.tell(promoted ? DecisionKind::promote : DecisionKind::insert, index, run);
  }
  void count_skipped(std::size_t index, const BlockRun& run) {
    counters_[index].skipped += run.size();
    log_.tell(DecisionKind::skip, index, run);
  }

  void come_in(std::size_t index, BlockRun run) {
    ExtentPool& pool = *pools_[index];
    const bool evicts = index == 0 || rules_.edges[index - 1].no_room == NoRoom::evict;
    while (run.size() > 0) {
      const bool has_place = !pool.takes_place(run.stream) || pool.free_places() > 0;
      const std::int64_t free = has_place ? pool.free() : 0;
      // A write to the pool below may change whether the next block finds room here.
      const bool by_runs = free > 0 && pool.groups() != nullptr && !writes_at_once(index);
      const bool asks = pool.is_ranked() && !by_runs;
      const std::int64_t most = one_by_one_ || asks ? 1 : run.size();
      const std::int64_t room = free > 0 ? free : evicts ? pool.victims_before_newcomers(most) : 0;
      const std::int64_t part = std::min(room, most);
      if (part == 0) {
        count_skipped(index, run);
        return;
      }
      const BlockRun now = cut_off(run, part);
      if (!pool.admits(now.stream, now.begin) ||
          (free == 0 && !pool.choose(part, &now, demand_of(rules_, index)))) {
        count_skipped(index, now);
        continue;
      }
      leave_below(index, now);
      if (free == 0) {
        evict(index, room);
      }
      count_inserted(index, now, index > 0 && index == promotes_to_);
      insert(index, now);
    }
  }
  /// There is room for the blocks.
  void insert(std::size_t index, const BlockRun& run) {
    const bool promoted = index > 0 && index == promotes_to_;
    if (promoted ? promoting_ != nullptr : takes_time(index)) {
      pools_[index]->insert(run, false);
      if (promoted) {
        promoting_->emplace_back(index, run);
        return;
      }
      if (!filling_[index]) {
        filling_[index] = next_copy_++;
        add_copy(*filling_[index], index);
      }
      copies_.at(*filling_[index]).blocks.push_back(run);
      if (keeps_sources(index)) {
        pools_[index - 1]->pin(run);
      } else if (index == 1) {
        note_write(writer_, *filling_[index], run.size());
      }
      return;
    }
    pools_[index]->insert(run);
    if (!promoted && index > 0 && rules_.edges[index - 1].timed) {
      stalling_blocks_[index].push_back(run);
    }
    write_new(index, run);
  }

  // ---- Copies to slower pools ----

  /// Blocks that are copied to a pool from the one before it.
  struct CopyInFlight {
    std::size_t to = 1;
    std::vector<BlockRun> blocks;
    /// A source has left the first pool.
    bool awaited = false;
  };
  CopyInFlight& add_copy(std::uint32_t id, std::size_t to) {
    CopyInFlight& copy = copies_.add(id);
    copy.to = to;
    copy.blocks.clear();
    copy.awaited = false;
    return copy;
  }
  [[nodiscard]] bool takes_time(std::size_t pool) const { return kvtier::takes_time(rules_, pool); }
  /// Whether blocks stay in the pool before this one until they have been written here.
  [[nodiscard]] bool keeps_sources(std::size_t pool) const {
    return pool > 1 && !is_buffered(rules_, pool);
  }
  /// Apart from take_awaited, which mostly has none.
  [[nodiscard, gnu::noinline]] std::vector<Copy> awaited_copies() {
    std::vector<Copy> awaited;
    for (const auto& [id, blocks] : awaited_) {
      awaited.push_back({.id = id, .blocks = blocks, .pool = copies_.at(id).to});
    }
    awaited_.clear();
    return awaited;
  }
  /// All that has come to a pool since its last copy is one copy.
  [[gnu::noinline]] void begin_copy(std::size_t to) {
    if (const auto id = std::exchange(filling_[to], std::nullopt)) {
      begin_copy({.id = *id, .pool = to}, copies_.at(*id).blocks);
      if (to > 1 && is_buffered(rules_, to)) {
        awaited_[*id] = begun_.back().blocks;
      }
    }
    if (!stalling_blocks_[to].empty()) {
      begin_copy({.id = next_copy_++, .pool = to, .waits = true}, stalling_blocks_[to]);
      stalling_blocks_[to].clear();
    }
  }
  void begin_copy(Copy copy, const std::vector<BlockRun>& blocks) {
    for (const BlockRun& run : blocks) {
      copy.blocks += run.size();
      if (log_.is_set()) [[unlikely]] {
        copy.stretches.push_back(run.stretch());
      }
    }
    begun_.push_back(std::move(copy));
  }
  /// Blocks of a request's memory are being copied.
  void note_write(OffloadRecord* record, std::uint32_t copy, std::int64_t blocks) const {
    if (rules_.publication == Publication::never) [[unlikely]] {
      record->writes.emplace_back(copy, blocks);
    }
  }
  /// A request's memory is free when what it wrote has been copied.
  void await_writes(Request& request) {
    for (const auto& [id, blocks] : request.record.writes) {
      if (copies_.find(id) != nullptr) {
        awaited_[id] += blocks;
      }
    }
    request.record.writes.clear();
  }
  /// Whether a victim of the first pool is among the sources of blocks of the second one.
  [[nodiscard]] bool is_source(const BlockRun& victim, const std::vector<BlockRun>& blocks) const {
    return std::any_of(blocks.begin(), blocks.end(), [&](const BlockRun& run) {
      if (size_behind() == block()) {
        return run.stream == victim.stream && run.begin < victim.end && victim.begin < run.end;
      }
      const std::int64_t begin = run.begin * size_behind() / block();
      const Tokens common = streams_.common({run.stream, Tokens(run.end * size_behind())},
                                            {victim.stream, Tokens(victim.end * block())});
      return std::max(begin, victim.begin) < common.value / block();
    });
  }
  /// A victim's memory is free when it has been copied.
  void await_copies_of(const BlockRun& victim) {
    copies_.for_each([&](std::uint64_t id, CopyInFlight& copy) {
      if (copy.to == 1 && !copy.awaited && is_source(victim, copy.blocks)) {
        copy.awaited = true;
        for (const BlockRun& run : copy.blocks) {
          awaited_[static_cast<std::uint32_t>(id)] += run.size();
        }
      }
    });
  }
  /// Before blocks that have arrived are written on.
  void relieve_before_arrival(const CopyInFlight& copy) {
    if (copy.to < rules_.edges.size() && relieves_before_writes(copy.to + 1) &&
        rules_.edges[copy.to].write == Write::on_create) {
      std::vector<Stretch> paths;
      for (const BlockRun& run : copy.blocks) {
        streams_.path(run.stream, run.end, rules_.pools[copy.to].block.value, path_);
        paths.insert(paths.end(), path_.begin(), path_.end());
      }
      relieve_before_write(copy.to + 1, paths, copy.blocks);
    }
  }
  /// Blocks that were written to a pool are there.
  void arrive(std::size_t pool, const BlockRun& run) {
    pools_[pool]->end_write(run);
    write_new(pool, run);
  }
  /// The loads of a request have ended.
  void end_loads(Loading& loading) {
    for (const Load& load : loading.loads) {
      pools_[load.pool]->end_load(load.run);
    }
    for (const Load& load : loading.loads) {
      if (load.to < load.pool) {
        for_each_piece(*pools_[load.to], load.run, [&](const Piece& piece) {
          if (piece.present) {
            leave_below(load.to, {load.run.stream, piece.begin, piece.end, load.run.first});
          }
        });
      }
    }
    for (const auto& [pool, run] : loading.promoted) {
      arrive(pool, run);
    }
    loading = {};
  }
  /// Whether what comes into a pool is written to the next one before anything else happens.
  [[nodiscard]] bool writes_at_once(std::size_t pool) const {
    return pool < rules_.edges.size() && rules_.edges[pool].write != Write::on_evict &&
           !takes_time(pool);
  }
  /// A block's coming in is its first put.
  void write_new(std::size_t index, const BlockRun& run) {
    if (index < rules_.edges.size() && rules_.edges[index].frequency) {
      for (std::int64_t i = 0; i < run.size(); ++i) {
        const std::int64_t block = run.first == End::tail ? run.end - 1 - i : run.begin + i;
        if (frequencies_[index].admit(run.stream, block)) {
          put(index + 1, {run.stream, block, block + 1, run.first});
        }
      }
      return;
    }
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

  void evict(std::size_t index, std::int64_t blocks) {
    // A newcomer evicts from slower pools only, so each pool has victims of its own.
    std::vector<BlockRun>& victims = victims_[index];
    victims.clear();
    pools_[index]->evict(blocks, victims);
    const bool any_copies = index == 0 && rules_.requests_in_first && !copies_.empty();
    const bool demotes =
        index < rules_.edges.size() && rules_.edges[index].write == Write::on_evict;
    for (const BlockRun& victim : victims) {
      const bool is_demoted = demotes && priority_of(rules_.pools[index], victim.begin) >=
                                             rules_.edges[index].least_priority;
      if (is_demoted && index == 0 && retained_) {
        put(1, victim);
        retain(victim);
        continue;
      }
      note_demoted(index, victim);
      counters_[index].evicted += victim.size();
      if (any_copies) {
        await_copies_of(victim);
      }
      if (is_demoted) {
        const std::int64_t skipped = counters_[index + 1].skipped;
        log_.begin_demotion(index);
        put(index + 1, victim);
        counters_[index].demoted += victim.size() - (counters_[index + 1].skipped - skipped);
        log_.end_demotion(index, victim);
      } else {
        log_.tell(DecisionKind::evict, index, victim);
      }
    }
  }

  void note_demoted(std::size_t index, const BlockRun& run) {
    if (notes_demoted_ && prefetches_to_ == index) {
      demoted_.push_back(run.stretch());
    }
  }

  void evict_in_background() {
    const Use use(grouped_, {});
    if (retained_ && !pools_[0]->reserves()) {
      leave_ahead();
    }
    leave_idle();
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      if (rules_.pools[i].relief && rules_.pools[i].relief->in_background) {
        const bool lacked = counters_[i].skipped > std::exchange(lacked_[i], counters_[i].skipped);
        relieve(i, relief_in_background(rules_.pools[i], pools_[i]->used(), lacked));
      }
    }
  }

  // ---- Blocks that leave the first pool ahead of need (EdgeRules::ahead) ----

  /// Blocks of the first pool's free memory that blocks may take which no request holds.
  [[nodiscard]] std::int64_t room_for_idle() const {
    const ExtentPool& pool = *pools_[0];
    const std::optional<std::int64_t> idle = rules_.pools[0].idle;
    return idle ? std::min(pool.free(), *idle - pool.idle()) : pool.free();
  }
  void leave_ahead() {
    const std::int64_t wanted = std::min(ahead_ - room_for_idle(), pools_[0]->evictable());
    // The second pool evicts for their copies until its policy would choose the copy of a block
    // that is retained: then all that it has ranks above what the first pool would free.
    const BlockEntries::Stays stays = [&](const BlockRun& run) {
      const Piece piece = retained_->first_piece(run.stream, run.begin, run.end);
      return piece.present || piece.end < run.end;
    };
    relieve(1, wanted - pools_[1]->free(), Demand::background, &stays);
    relieve(0, std::min(wanted, pools_[1]->free()), Demand::background);
  }
  /// More blocks than PoolRules::idle leave the first pool.
  void leave_idle() {
    if (!rules_.pools[0].idle) {
      return;
    }
    // A stream gives back all that is reserved for it.
    const std::int64_t least = pools_[0]->reserves() ? ahead_ : 0;
    while (room_for_idle() < least && pools_[0]->evictable() > 0) {
      evict(0, pools_[0]->reserves() ? 1 : -room_for_idle());
    }
    if (retained_) {
      take_retained();
    }
  }
  /// A victim stays in the first pool's free memory.
  void retain(BlockRun victim) {
    victim.first = pools_[0]->groups() != nullptr ? End::tail : victim.first;
    retained_->insert(victim);
  }
  /// The memory of some of them is taken.
  void take_retained() {
    const std::int64_t taken = retained_->used() - std::max<std::int64_t>(0, room_for_idle());
    if (taken > 0) {
      std::vector<BlockRun>& victims = victims_[0];
      victims.clear();
      retained_->evict(taken, victims);
      for (const BlockRun& victim : victims) {
        leave_retained(victim);
      }
    }
  }
  void leave_retained(const BlockRun& run) {
    await_copies_of(run);
    note_demoted(0, run);
    for_each_piece(*pools_[1], run, [&](const Piece& piece) {
      const BlockRun part{run.stream, piece.begin, piece.end, run.first};
      counters_[0].evicted += part.size();
      counters_[0].demoted += piece.present ? part.size() : 0;
      log_.tell(piece.present ? DecisionKind::demote : DecisionKind::evict, 0, part);
    });
  }
  /// A request has computed them anew.
  void drop_retained(const BlockRun& run) {
    for_each_piece(*retained_, run, [&](const Piece& piece) {
      if (piece.present) {
        const BlockRun part{run.stream, piece.begin, piece.end, run.first};
        retained_->remove(part, std::nullopt);
        leave_retained(part);
      }
    });
  }
  /// Blocks that a request finds outside of the first pool: in the second one, or retained.
  struct FoundOutside {
    BlockRun run;
    bool retained = false;
  };
  /// Those that are retained come back into the first pool.
  void take_back(std::vector<FoundOutside>& outside) {
    for (const FoundOutside& found : std::exchange(outside, {})) {
      for_each_piece(*retained_, found.run, [&](const Piece& piece) {
        outside.push_back(
            {{found.run.stream, piece.begin, piece.end, found.run.first}, piece.present});
      });
    }
    for (const auto& [run, retained] : outside) {
      if (retained) {
        retained_->remove(run, std::nullopt);
      }
    }
  }

  /// So many blocks leave, if they may.
  void relieve(std::size_t index, std::int64_t blocks, Demand demand = Demand::save,
               const BlockEntries::Stays* stays = nullptr) {
    if (blocks <= 0) {
      return;
    }
    blocks = std::min(blocks, pools_[index]->evictable());
    if (blocks > 0 && pools_[index]->choose(blocks, nullptr, demand, stays)) {
      evict(index, blocks);
    }
  }
  [[nodiscard]] bool relieves_before_writes(std::size_t index) const {
    return rules_.pools[index].relief && !rules_.pools[index].relief->in_background;
  }
  /// Before blocks are written there: what is there of their paths stays.
  void relieve_before_write(std::size_t index, const std::vector<Stretch>& paths,
                            const std::vector<BlockRun>& written) {
    ExtentPool& pool = *pools_[index];
    std::int64_t missing = 0;
    for (const BlockRun& run : written) {
      for_each_piece(pool, run, [&](const Piece& piece) {
        missing += piece.present ? 0 : piece.end - piece.begin;
      });
    }
    const std::int64_t leave =
        missing > 0 ? relief_before_write(rules_.pools[index], pool.used(), missing) : 0;
    if (leave <= 0) {
      return;
    }
    std::vector<BlockRun> here;
    walk(paths, End::head, [&](const BlockRun& run) {
      for_each_piece(pool, run, [&](const Piece& piece) {
        if (piece.present) {
          here.push_back({run.stream, piece.begin, piece.end, End::head});
        }
      });
    });
    for (const BlockRun& run : here) {
      pool.pin(run);
    }
    relieve(index, leave);
    for (const BlockRun& run : here) {
      pool.unpin(run);
    }
  }

  // ---- Requests in the first pool ----

  void make_room(ExtentPool& pool, std::int64_t blocks) {
    if (blocks > pool.free()) {
      evict(0, blocks - pool.free());
    }
    pool.take(blocks);
    if (retained_) {
      take_retained();
    }
  }

  /// Room among the blocks of the first pool that no request holds, for those of a context.
  bool make_idle_room(const Context& context) {
    ExtentPool& pool = *pools_[0];
    if (!rules_.pools[0].idle) {
      return true;
    }
    std::vector<std::pair<ExtentPool*, BlockRun>> stays;
    std::optional<BlockRun> first;
    std::int64_t more = 0;
    std::vector<Stretch> path;
    streams_.path(context.stream, context.tokens.value / block(), block(), path);
    walk(path, End::head, [&](const BlockRun& own) {
      std::int64_t missing = 0;
      for_each_piece(pool, own, [&](const Piece& piece) {
        const BlockRun run{own.stream, piece.begin, piece.end, End::head};
        stays.emplace_back(piece.present || !has_victims_behind_ ? &pool : pools_[1].get(), run);
        if (!piece.present) {
          missing += run.size();
          first = first.value_or(run);
        }
      });
      if (!pool.reserves()) {
        more += missing;
      } else if (missing > 0 && pool.takes_place(own.stream)) {
        more += rules_.pools[0].reserved;
      }
    });
    const std::int64_t lacking = pool.idle() + more - *rules_.pools[0].idle;
    if (!first || lacking <= 0) {
      return true;
    }
    for (const auto& [in, run] : stays) {
      in->pin(run);
    }
    // One that leaves gives its place to one that comes.
    const std::int64_t leave = pool.reserves() ? 1 : lacking;
    const bool fits = leave <= pool.evictable() &&
                      lacking <= std::max(leave, rules_.pools[0].reserved) &&
                      pool.choose(leave, &*first, Demand::prefetch);
    if (fits) {
      evict(0, leave);
    }
    for (const auto& [in, run] : stays) {
      in->unpin(run);
    }
    return fits;
  }
  /// Holds what was found (path_), and takes memory for the rest.
  bool take_room(Request& request, const Room& room) {
    ExtentPool& pool = *pools_.front();
    std::int64_t here = 0;
    std::int64_t evictable = pool.evictable();
    std::vector<FoundOutside>& outside = found_outside_;
    outside.clear();
    for_each_found(request.found, [&](const BlockRun& run, const Piece& piece) {
      if (piece.present) {
        here += run.size();
        evictable -= pool.evictable_of(piece);
      } else {
        outside.push_back({run});
      }
    });
    const std::int64_t wanted = blocks_up(request.context.tokens) - here;
    const std::int64_t gate =
        std::max(wanted + room.reserved, blocks_up(room.needed) - here) + room.watermark;
    if (gate > pool.free() + evictable) {
      return false;
    }
    for_each_found(request.found, [&](const BlockRun& run, const Piece& piece) {
      if (piece.present) {
        pool.hold(run, piece.segment);
      }
    });
    if (retained_) {
      take_back(outside);
    }
    for (const FoundOutside& found : outside) {
      pools_[1]->remove(found.run);
    }
    take_over_part(request);
    make_room(pool, wanted);
    request.unpublished = wanted;
    for (const auto& [run, retained] : outside) {
      pool.publish(run, 0);
      request.unpublished -= run.size();
      if (!retained) {
        count_inserted(0, run, true);
      }
    }
    request.published = request.found;
    return true;
  }
  /// The block whose first tokens the request reuses becomes its own, if it may.
  void take_over_part(const Request& request) {
    const ExtentPool::Part& found = request.part;
    if (found.tokens == 0) {
      return;
    }
    // Extents may have been cut since.
    const ExtentPool::Part part = pools_.front()->best_part(
        {request.context.stream, Tokens(request.found * block() + found.tokens)}, request.found);
    const bool is_part = pools_.front()->is_part(part);
    const bool followed =
        !is_part && (pools_.front()->is_followed(part.stream, part.block) ||
                     (has_victims_behind_ && pools_[1]->is_followed(part.stream, part.block)));
    if (pools_.front()->is_free(part) && !followed) {
      pools_.front()->remove_part(part);
    }
  }
  /// Whether blocks that a request has just found in the second pool have still to be written
  /// there.
  [[nodiscard]] bool reads_written() const {
    return std::ranges::any_of(stalling_blocks_[1], [&](const BlockRun& written) {
      return std::ranges::any_of(found_outside_, [&](const FoundOutside& found) {
        return !found.retained && found.run.stream == written.stream &&
               found.run.begin < written.end && written.begin < found.run.end;
      });
    });
  }
  /// Visits the pieces of the first `found` blocks of path_ in the first pool.
  template <class Visit>
  void for_each_found(std::int64_t found, Visit visit) {
    walk(path_, End::head, [&](BlockRun run) {
      run.end = std::min(run.end, found);
      for_each_piece(*pools_.front(), run, [&](const Piece& piece) {
        visit(BlockRun{run.stream, piece.begin, piece.end, End::head}, piece);
      });
    });
  }

  /// Not a part of `computed`, which mostly has nothing to do.
  [[gnu::noinline]] void publish_computed(RequestId id, Tokens tokens, bool puts) {
    Request& request = requests_[id.value];
    const Use use(grouped_, {request.context.stream, tokens});
    note_uses(request, tokens);
    if (rules_.publication == Publication::computed) {
      publish(request, tokens);
    }
    if (puts) {
      put_behind(request, tokens);
    }
  }

  void publish(Request& request, Tokens tokens) {
    const std::int64_t full = tokens.value / block();
    if (full <= request.published || !rules_.requests_in_first ||
        rules_.publication == Publication::never) {
      return;
    }
    ExtentPool& pool = *pools_.front();
    find_path(request.context.stream, request.published, full, block());
    for (const Stretch& stretch : path_) {
      const BlockRun run{stretch.stream, std::max(stretch.begin, request.published), stretch.end,
                         End::head};
      for (std::int64_t at = run.begin; at < run.end;) {
        const auto piece = pool.first_piece(run.stream, at, run.end);
        const BlockRun part{run.stream, at, piece.end, run.first};
        const std::int64_t size = piece.end - at;
        at = piece.end;
        if (!piece.present) {
          if (retained_) {
            drop_retained(part);
          }
          if (has_victims_behind_) {
            leave_below(0, part);
          }
          pool.publish(part, 0);
          count_inserted(0, part);
        } else if (rules_.duplicates == Duplicates::kept) {
          pool.publish(part, ++last_duplicate_);
          count_inserted(0, part);
          request.duplicates.push_back({part.begin, part.end, last_duplicate_});
        } else {
          pool.hold(part, piece.segment);
          pool.give_back(size);
        }
      }
    }
    request.unpublished -= full - request.published;
    request.published = full;
  }

  // ---- The pools behind them ----

  [[nodiscard]] std::int64_t size_behind() const { return rules_.pools[1].block.value; }
  /// Whether what the request loads is not in its memory yet.
  [[nodiscard]] bool awaits(const Request& request) const {
    return rules_.loads_alone && request.loaded.value > 0;
  }

  /// Loads the blocks found behind the first pool (behind_) into the request's memory.
  void load(Request& request, const Match& match) {
    const std::int64_t size = size_behind();
    const std::int64_t begin = match.by_pool[0].value / size;
    if (!offloads_) {
      request.record.next = request.found_behind;
      path_.swap(behind_);
      for (std::size_t i = 1; i < pools_.size(); ++i) {
        if (rules_.pools[i].touch == Touch::lookup) {
          touch_found(*pools_[i], request.found_behind);
        }
      }
      path_.swap(behind_);
    }
    if (match.tokens == match.by_pool[0]) {
      return;
    }
    request.loaded = match.tokens;
    if (offloads_) {
      request.record.next = match.tokens.value / size;
    }
    promote(request, begin);
    if (offloads_) {
      for_each_place(request, begin,
                     [&](std::size_t, const BlockRun& run) { note_reuse(request.record, run); });
    }
    if (!rules_.loads_alone) {
      publish(request, match.tokens);
    }
  }
  /// Visits what is loaded from behind the first pool, from this block on, and the pool in which it
  /// was found.
  template <class Visit>
  void for_each_place(const Sources& sources, std::int64_t begin, Visit visit) const {
    std::int64_t at = begin;
    for (const Found& place : sources.places) {
      for (const Stretch& stretch : behind_) {
        const BlockRun run{stretch.stream, std::max(at, stretch.begin),
                           std::min(place.end, stretch.end), End::head};
        if (run.begin < run.end) {
          visit(place.pool, run);
        }
      }
      at = std::max(at, place.end);
    }
  }
  void begin_load(Request& request, const Load& load) {
    request.loads.push_back(load);
    pools_[load.pool]->begin_load(load.run);
  }
  /// Blocks of the run that the second pool has are read there.
  void load_from_second(Request& request, const BlockRun& run) {
    for_each_piece(*pools_[1], run, [&](const Piece& piece) {
      if (piece.present) {
        begin_load(request, {1, 1, {run.stream, piece.begin, piece.end, run.first}});
      }
    });
  }
  /// Blocks that were found behind the second pool come nearer, and evict none that were found in
  /// it. If writes take time, they are read there until the request's loads have ended. Blocks
  /// that find no room in the second pool, or leave it for others of them, do not stay.
  void promote(Request& request, std::int64_t begin) {
    std::vector<std::pair<std::size_t, BlockRun>> runs;
    std::int64_t wanted = 0;
    for_each_place(request, begin, [&](std::size_t pool, const BlockRun& run) {
      if (pool == 1) {
        load_from_second(request, run);
        return;
      }
      const std::size_t to = std::max<std::size_t>(1, target(pool));
      if (rules_.edges[pool - 1].timed) {
        begin_load(request, {pool, to, run});
      }
      if (to < pool) {
        runs.emplace_back(to, run);
        wanted += to == 1 ? run.size() : 0;
      }
    });
    std::int64_t left = make_room_for_write(1, wanted);
    for (auto& [to, run] : runs) {
      const BlockRun fits = to == 1 ? cut_off(run, std::min(left, run.size())) : run;
      left -= to == 1 ? fits.size() : 0;
      promotes_to_ = to;
      promoting_ = rules_.edges[to - 1].timed && rules_.loads_alone && !offloads_
                       ? &request.promoted
                       : nullptr;
      put(to, fits);
      promotes_to_ = 0;
      promoting_ = nullptr;
    }
    for_each_place(request, begin, [&](std::size_t pool, const BlockRun& run) {
      if (pool > 1) {
        load_from_second(request, run);
      }
    });
  }

  /// Streams of what is fetched for which the second pool has no place. A victim leaves one.
  [[nodiscard]] std::int64_t places_lacking(const Fetch& fetch) const {
    const ExtentPool& pool = *pools_[1];
    if (!pool.reserves()) {
      return 0;
    }
    std::int64_t wanted = 0;
    StreamId last;
    for (const Load& load : fetch.loads) {
      const StreamId stream = load.run.stream;
      wanted += stream != last && pool.takes_place(stream) ? 1 : 0;
      last = stream;
    }
    return std::max<std::int64_t>(0, wanted - pool.free_places());
  }
  /// Room in the second pool for blocks that are fetched, which are read from then on. What it has
  /// of their context stays.
  [[nodiscard]] bool make_room_for_prefetch(const Fetch& fetch, const std::vector<BlockRun>& here,
                                            std::int64_t blocks) {
    ExtentPool& pool = *pools_[1];
    for (const BlockRun& run : here) {
      pool.pin(run);
    }
    const std::int64_t places = places_lacking(fetch);
    const std::int64_t lacking = std::max(blocks - pool.free(), places);
    const bool fits = places <= 1 && lacking <= pool.evictable() &&
                      pool.choose(lacking, &fetch.loads.front().run, Demand::prefetch);
    if (fits) {
      for (const Load& load : fetch.loads) {
        pools_[load.pool]->begin_load(load.run);
      }
      evict(1, std::max<std::int64_t>(lacking, 0));
    }
    for (const BlockRun& run : here) {
      pool.unpin(run);
    }
    return fits;
  }

  /// How many blocks of the pool behind the request's computed tokens may fill.
  [[nodiscard]] std::int64_t offers(const Request& request, Tokens tokens) const {
    const Responses responses = rules_.edges[0].responses;
    const bool all =
        responses == Responses::computed || (responses == Responses::end && request.released);
    return (all ? tokens : std::min(tokens, request.prompt)).value / size_behind();
  }
  /// A cache of its own takes what is new to it.
  void put_behind(Request& request, Tokens tokens) {
    const std::int64_t end = offers(request, tokens);
    if (end <= request.record.next) {
      return;
    }
    streams_.path(request.context.stream, end, size_behind(), path_);
    // A block whose copy takes time is written on when it has arrived.
    for (std::size_t i = 1; i < pools_.size() && (i == 1 || !takes_time(i - 1)); ++i) {
      if (relieves_before_writes(i) && (i == 1 || rules_.edges[i - 1].write == Write::on_create)) {
        std::vector<BlockRun> written;
        walk(path_, End::head, [&](BlockRun run) {
          run.begin = std::max(run.begin, request.record.next);
          if (run.begin < run.end) {
            written.push_back(run);
          }
        });
        relieve_before_write(i, path_, written);
      }
    }
    writer_ = &request.record;
    put_new(1, request.record.next, end);
    request.record.next = end;
  }

  static void add(Intervals& intervals, const BlockRun& run) {
    intervals.add(Interval::right_open(run.begin, run.end));
  }
  /// Visits the parts of a run that are not among the intervals.
  template <class Visit>
  static void for_each_new(const Intervals& intervals, const BlockRun& run, Visit visit) {
    Intervals parts;
    add(parts, run);
    parts -= intervals;
    for (const auto& part : parts) {
      visit(BlockRun{run.stream, boost::icl::first(part), boost::icl::last(part) + 1, run.first});
    }
  }
  /// Whether requests have places in the order of eviction.
  [[nodiscard]] bool has_places() const {
    return rules_.pools[1].eviction == "lru" && !pools_[1]->is_ranked();
  }
  /// Its place in the order of eviction, from its first use on.
  std::uint32_t place_of(OffloadRecord& record) {
    if (record.place == ExtentPool::kNone && has_places()) {
      record.place = pools_[1]->open_place();
    }
    return record.place;
  }
  /// Blocks that are there, and readable, are used.
  void note_reuse(OffloadRecord& record, const BlockRun& run) {
    for_each_new(record.seen, run, [&](const BlockRun& part) {
      if (const std::uint32_t place = place_of(record); place != ExtentPool::kNone) {
        for_each_piece(*pools_[1], part, [&](const Piece& piece) {
          if (piece.present) {
            pools_[1]->use_at({part.stream, piece.begin, piece.end, part.first}, piece.segment,
                              place);
          }
        });
      }
    });
    for_each_new(record.inserted, run, [&](const BlockRun& part) { add(record.reused, part); });
    add(record.seen, run);
  }

  bool offer(Request& request, Tokens tokens) {
    note_uses(request, tokens);
    const std::int64_t end = offers(request, tokens);
    OffloadRecord& record = request.record;
    if (end <= record.next) {
      return true;
    }
    const Use use(grouped_, {request.context.stream, Tokens(end * size_behind())});
    find_path(request.context.stream, record.next, end, size_behind());
    path_.front().begin = std::max(path_.front().begin, record.next);
    const bool fits = offer_blocks(record, path_);
    record.next = fits ? end : record.next;
    return fits;
  }
  /// Those of the blocks that are missing are written, or none.
  bool offer_blocks(OffloadRecord& record, const std::vector<Stretch>& blocks) {
    ExtentPool& pool = *pools_[1];
    std::vector<BlockRun>& here = offered_here_;
    std::vector<BlockRun>& missing = offered_missing_;
    here.clear();
    missing.clear();
    std::int64_t wanted = 0;
    walk(blocks, End::head, [&](const BlockRun& own) {
      for_each_piece(pool, own, [&](const Piece& piece) {
        const BlockRun run{own.stream, piece.begin, piece.end, End::head};
        if (!piece.present) {
          missing.push_back(run);
        } else if (!pool.is_being_written(piece.segment)) {
          here.push_back(run);
        }
      });
    });
    offer_counts_.admit(blocks, missing);
    leave_admitted(pool, missing);
    for (const BlockRun& run : missing) {
      wanted += run.size();
    }
    adapt_arc(record, missing);
    if (wanted > 0) {
      static_cast<void>(place_of(record));
    }
    for (const BlockRun& run : here) {
      note_reuse(record, run);
      pool.pin(run);
    }
    for (const BlockRun& run : missing) {
      add(record.seen, run);
    }
    const std::int64_t short_of = wanted - pool.free();
    const bool fits = short_of <= pool.evictable() &&
                      (missing.empty() || pool.choose(short_of, &missing.front()));
    if (!fits) {
      for (const BlockRun& run : missing) {
        count_skipped(1, run);
      }
    } else if (wanted > 0) {
      write_missing(record, short_of);
    }
    for (const BlockRun& run : here) {
      pool.unpin(run);
    }
    return fits;
  }
  /// Each missing block counts once for a request, from the tail of its context to the head.
  void adapt_arc(OffloadRecord& record, const std::vector<BlockRun>& missing) {
    for (std::size_t i = missing.size(); i-- > 0;) {
      std::vector<BlockRun> parts;
      for_each_new(record.missed, missing[i], [&](const BlockRun& part) { parts.push_back(part); });
      for (std::size_t j = parts.size(); j-- > 0;) {
        pools_[1]->adapt_arc(parts[j]);
        add(record.missed, parts[j]);
      }
    }
  }
  /// Takes those out of the runs that an admission policy does not let in.
  static void leave_admitted(const ExtentPool& pool, std::vector<BlockRun>& runs) {
    if (!pool.filters()) {
      return;
    }
    std::vector<BlockRun> admitted;
    for (const BlockRun& run : runs) {
      for (std::int64_t block = run.begin; block < run.end; ++block) {
        if (pool.admits(run.stream, block)) {
          admitted.push_back({run.stream, block, block + 1, run.first});
        }
      }
    }
    runs = std::move(admitted);
  }
  /// Missing blocks enter, and are being copied.
  void write_missing(OffloadRecord& record, std::int64_t short_of) {
    ExtentPool& pool = *pools_[1];
    const std::uint32_t copy = next_copy_++;
    add_copy(copy, 1).blocks = offered_missing_;
    for (const BlockRun& run : offered_missing_) {
      leave_below(1, run);
    }
    evict(1, short_of);
    for (const BlockRun& run : offered_missing_) {
      if (record.place != ExtentPool::kNone) {
        pool.insert_at(run, record.place);
      } else {
        pool.insert(run);
      }
      pool.begin_write(run);
      add(record.inserted, run);
      count_inserted(1, run);
      note_write(&record, copy, run.size());
    }
    begin_copy({.id = copy}, offered_missing_);
  }
  /// The request's uses count, from the tail to the head.
  void use_offered(Request& request) {
    ExtentPool& pool = *pools_[1];
    OffloadRecord& record = request.record;
    const bool by_recency = has_places();
    pool.begin_uses();
    if (!record.seen.empty()) {
      streams_.path(request.context.stream, boost::icl::last(record.seen) + 1, size_behind(),
                    path_);
      walk(path_, End::tail, [&](const BlockRun& run) {
        for (std::int64_t end = run.end; end > run.begin;) {
          const Alike alike = last_alike(record, run.begin, end);
          if (alike.reused || (alike.used && by_recency) || intersects(record.inserted, end - 1)) {
            for_each_piece(
                pool, {run.stream, alike.begin, end, End::tail}, [&](const Piece& piece) {
                  const BlockRun part{run.stream, piece.begin, piece.end, End::tail};
                  const bool arrived = piece.present && !pool.is_being_written(piece.segment);
                  if (piece.present && !alike.reused) {
                    pool.touch(part, piece.segment, false);
                  } else if (piece.present && pool.count_put(part, piece.segment, true) &&
                             arrived) {
                    write(1, part);
                  }
                });
          }
          end = alike.begin;
        }
      });
    }
    if (record.place != ExtentPool::kNone) {
      pool.close_place(record.place);
    }
    record = {};
  }
  struct Alike {
    std::int64_t begin;
    bool reused;
    bool used;
  };
  [[nodiscard]] static bool intersects(const Intervals& intervals, std::int64_t block) {
    return boost::icl::contains(intervals, block);
  }
  /// The longest end of [begin, end) whose blocks the request has used in the same way.
  [[nodiscard]] static Alike last_alike(const OffloadRecord& record, std::int64_t begin,
                                        std::int64_t end) {
    for (const Intervals* intervals : {&record.seen, &record.inserted, &record.reused}) {
      for (const auto& one : *intervals) {
        for (const std::int64_t border : {boost::icl::first(one), boost::icl::last(one) + 1}) {
          begin = border < end ? std::max(begin, border) : begin;
        }
      }
    }
    return {begin, intersects(record.reused, end - 1), intersects(record.seen, end - 1)};
  }

  /// Blocks without a key wait in the order of eviction.
  void leave_last(const Request& request) {
    ExtentPool& pool = *pools_.front();
    const bool is_part = rules_.partial_reuse && request.context.tokens.value % block() > 0;
    if (is_part) {
      pool.leave_part(request.context);
    }
    pool.leave_keyless(request.published + (is_part ? 1 : 0),
                       request.unpublished - (is_part ? 1 : 0));
  }
  void give_back(const Request& request) {
    ExtentPool& pool = *pools_.front();
    const End first = rules_.pools.front().insertion;
    const auto keyless = [&] {
      if (rules_.keyless == Keyless::first) {
        pool.give_back(request.unpublished);
      } else {
        leave_last(request);
      }
    };
    if (first == End::tail) {
      keyless();
    }
    streams_.path(request.context.stream, request.published, block(), path_);
    walk_written(0, [&](const BlockRun& run) { let_go(request, run); });
    if (first == End::head) {
      keyless();
    }
  }
  /// Cut where the request's duplicates, or what it found, begin and end.
  void let_go(const Request& request, const BlockRun& run) {
    std::int64_t begin = run.begin;
    std::int64_t end = run.end;
    while (begin < end) {
      BlockRun part{run.stream, begin, end, run.first};
      std::uint32_t duplicate_id = 0;
      const bool from_tail = run.first == End::tail;
      const auto cut = [&](std::int64_t at) {
        if (at > part.begin && at < part.end) {
          (from_tail ? part.begin : part.end) = at;
        }
      };
      cut(request.found);
      for (const HeldDuplicates& held : request.duplicates) {
        cut(held.begin);
        cut(held.end);
      }
      for (const HeldDuplicates& held : request.duplicates) {
        if (held.begin <= part.begin && part.end <= held.end) {
          duplicate_id = held.id;
        }
      }
      pools_.front()->let_go(part, duplicate_id, part.end <= request.found);
      (from_tail ? end : begin) = from_tail ? part.begin : part.end;
    }
  }

  StoreRules rules_;
  const Streams& streams_;
  Pools pools_;
  /// Those whose entries have several blocks.
  std::vector<ExtentPool*> grouped_;
  std::vector<PoolCounters> counters_;
  StoreLog log_;
  std::vector<std::vector<BlockRun>> victims_;
  /// Writes without room that are known of, by pool.
  std::vector<std::int64_t> lacked_;
  bool offloads_;
  bool has_victims_behind_;
  /// The pools behind take what requests compute.
  bool has_cache_behind_;
  std::optional<std::size_t> prefetches_to_;
  /// EdgeRules::ahead of the first pool, in blocks.
  std::int64_t ahead_;
  OfferCounts offer_counts_;
  std::vector<WriteFrequencies> frequencies_;  // by edge
  bool needs_places_;
  /// The room that one block frees below is not the one that the next one's victims need.
  bool one_by_one_;
  /// A pool has an admission policy.
  bool filters_;
  /// Blocks leave a pool when time goes on.
  bool evicts_in_background_;
  std::vector<Request> requests_;
  std::vector<RequestId> free_requests_;
  std::uint32_t last_duplicate_ = 0;
  /// Blocks that have left the first pool ahead of need, and whose memory is free and not taken.
  std::optional<ExtentPool> retained_;
  mutable std::vector<Stretch> path_;
  /// In blocks of the pools behind.
  mutable std::vector<Stretch> behind_;
  std::uint32_t next_copy_ = 0;
  std::vector<Copy> begun_;
  Window<CopyInFlight> copies_;
  /// The one that has arrived last.
  CopyInFlight arrived_;
  boost::container::flat_map<std::uint32_t, std::int64_t> awaited_;
  /// By pool: the copy that has not begun, and blocks that the next iteration waits for.
  std::vector<std::optional<std::uint32_t>> filling_;
  std::vector<std::vector<BlockRun>> stalling_blocks_;
  /// The request whose blocks come into the second pool.
  OffloadRecord* writer_ = nullptr;
  /// While blocks come up: the pool, and those of its blocks that are on their way.
  std::size_t promotes_to_ = 0;
  boost::container::small_vector_base<std::pair<std::size_t, BlockRun>>* promoting_ = nullptr;
  /// The runs that offer found, and those that are missing.
  std::vector<BlockRun> offered_here_;
  std::vector<BlockRun> offered_missing_;
  /// Blocks that a request finds outside of the first pool.
  std::vector<FoundOutside> found_outside_;
  /// Blocks in the second pool of a request that fetches others.
  std::vector<BlockRun> fetched_here_;
  /// Prefetches in flight.
  std::map<std::uint32_t, Fetch> fetches_;
  std::uint32_t last_fetch_ = 0;
  bool notes_demoted_ = false;
  std::vector<Stretch> demoted_;
};

}  // namespace

std::vector<std::unique_ptr<Store>> make_extent_stores(const StoreRules& rules,
                                                       const Streams& streams,
                                                       const PolicyRegistry& registry,
                                                       std::size_t instances) {
  return make_instance_stores<ExtentStore, ExtentPool>(
      rules, streams, instances, [&](std::size_t i) {
        auto policies = make_block_entries(rules, i, streams, registry);
        const bool knows_forks =
            rules.pools[i].leaves_only || rules.partial_reuse || policies != nullptr;
        return std::make_shared<ExtentPool>(rules.pools[i], puts_wanted(rules, i),
                                            knows_forks ? &streams : nullptr, std::move(policies));
      });
}

}  // namespace kvtier
