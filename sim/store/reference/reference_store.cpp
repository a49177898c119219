#include "sim/store/reference/reference_store.hpp"

#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "sim/core/assert.hpp"
#include "sim/store/entries/block_entries.hpp"
#include "sim/store/offer_counts.hpp"
#include "sim/store/offload_calls.hpp"
#include "sim/store/write_frequencies.hpp"

namespace kvtier {
namespace {

/// A block's key: the stream of its last token, and its place there.
using Key = std::pair<StreamId, std::int64_t>;

std::vector<Key> keys_of(const std::vector<Stretch>& blocks) {
  std::vector<Key> keys;
  for (const Stretch& stretch : blocks) {
    for (std::int64_t i = stretch.begin; i < stretch.end; ++i) {
      keys.emplace_back(stretch.stream, i);
    }
  }
  return keys;
}

std::vector<Key> keys_of(const Streams& streams, const Context& context, Tokens block) {
  std::vector<Stretch> path;
  streams.path(context.stream, context.tokens.value / block.value, block.value, path);
  return keys_of(path);
}

std::int64_t usable_tokens(const StoreRules& rules, Tokens prompt) {
  return std::max<std::int64_t>(prompt.value - (rules.hit_cap == HitCap::last_token ? 1 : 0), 0);
}

EntryKey key_of(const Key& key) { return key_of(key.first, key.second); }

std::int64_t blocks_up(Tokens tokens, Tokens block) {
  return (tokens.value + block.value - 1) / block.value;
}

Stretch stretch_of(const Key& key) { return {key.first, key.second, key.second + 1}; }

// ---- Blocks ----

struct Block {
  Key key;
  /// A block without a key is not found, but for its first tokens if it has `tokens`.
  bool keyed = true;
  std::int64_t tokens = 0;
  std::int64_t holders = 0;
  /// It keeps its place in the order, and does not leave.
  std::int64_t pins = 0;
  /// The part of those pins for its writes and its loads.
  std::int64_t writes = 0;
  std::int64_t loads = 0;
  /// arc: in T2.
  bool frequent = false;
  /// lfu's count.
  std::int64_t uses = 1;
  std::int64_t puts = 1;
  std::int64_t reached = 0;
  /// Place from the end of a block that a running request of an offload used.
  std::int64_t within = 0;
  SimTime used;
  bool leasable = false;
  std::int64_t priority = 0;
  /// The number by which a policy of the registry knows it.
  std::uint32_t entry = BlockEntries::kNone;
  std::list<Block>::iterator self;
};

/// Keys of blocks that have left, oldest first.
class Ghosts {
 public:
  void add(const Key& key, std::int64_t capacity) {
    remove(key);
    places_[key] = order_.insert(order_.end(), key);
    if (size() > capacity) {
      remove(order_.front());
    }
  }
  void remove(Key key) {
    if (const auto found = places_.find(key); found != places_.end()) {
      order_.erase(found->second);
      places_.erase(found);
    }
  }
  [[nodiscard]] bool contains(const Key& key) const { return places_.contains(key); }
  [[nodiscard]] bool remembers(StreamId stream) const {
    return std::any_of(order_.begin(), order_.end(),
                       [&](const Key& key) { return key.first == stream; });
  }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(order_.size()); }
  [[nodiscard]] std::vector<Stretch> contents() const {
    std::vector<Stretch> contents;
    for (const Key& key : order_) {
      contents.push_back(stretch_of(key));
    }
    return contents;
  }

 private:
  std::list<Key> order_;
  std::map<Key, std::list<Key>::iterator> places_;
};

class BlockPool {
 public:
  BlockPool(const StoreRules& rules, std::size_t number, const Streams& streams,
            const PolicyRegistry& registry)
      : rules_(rules.pools[number]),
        streams_(streams),
        policies_(make_block_entries(rules, number, streams, registry)) {}

  [[nodiscard]] bool is_full() const { return used == rules_.capacity; }
  /// Places for streams that it has no blocks of.
  [[nodiscard]] std::int64_t free_places() const {
    return rules_.capacity / rules_.reserved - policies_->entries();
  }
  [[nodiscard]] bool takes_place(StreamId stream) const {
    return rules_.reserved > 0 && !policies_->has(stream);
  }
  /// Places that blocks with these keys take.
  [[nodiscard]] std::int64_t places_for(const std::vector<Key>& keys) const {
    std::set<StreamId> streams;
    for (const Key& key : keys) {
      if (takes_place(key.first)) {
        streams.insert(key.first);
      }
    }
    return std::ssize(streams);
  }
  [[nodiscard]] bool has_place(StreamId stream) const {
    return !takes_place(stream) || free_places() > 0;
  }
  [[nodiscard]] bool is_full_for(StreamId stream) const { return is_full() || !has_place(stream); }
  /// Memory that blocks take which may leave, with what is reserved for them.
  [[nodiscard]] std::int64_t idle() {
    if (rules_.reserved == 0) {
      return evictable();
    }
    offer_all();
    return std::max(evictable(), policies_->evictable_entries() * rules_.reserved);
  }
  /// The one that came first, if there are duplicates; null if there is none.
  [[nodiscard]] Block* find(const Key& key) const {
    const auto found = by_key_.find(key);
    return found == by_key_.end() ? nullptr : found->second.front();
  }
  void advance(SimTime now) {
    now_ = now;
    if (is_ranked()) {
      policies_->advance(now);
    }
    std::vector<Block*> expired;
    for (Block& block : blocks_) {
      if (rules_.ttl && block.used < now - *rules_.ttl && block.holders == 0 && block.pins == 0) {
        expired.push_back(&block);
      }
    }
    for (Block* block : expired) {
      remove(block);
    }
  }
  /// Blocks of the stream from this one on leave, if they may.
  void truncate(StreamId stream, std::int64_t first) {
    std::vector<Block*> dropped;
    for (Block& block : blocks_) {
      if ((block.keyed || block.tokens > 0) && block.key.first == stream &&
          block.key.second >= first && block.holders == 0 && block.pins == 0) {
        dropped.push_back(&block);
      }
    }
    for (Block* block : dropped) {
      remove(block);
    }
  }
  /// The stream's blocks [begin, end) leave, and those behind take their numbers.
  void cut(StreamId stream, std::int64_t begin, std::int64_t end) {
    std::vector<Block*> gone;
    std::vector<Block*> behind;
    for (Block& block : blocks_) {
      if (block.keyed && block.key.first == stream && block.key.second >= begin) {
        (block.key.second < end ? gone : behind).push_back(&block);
      }
    }
    for (Block* block : gone) {
      pinned_ -= block->pins > 0 ? 1 : 0;
      remove(block);
    }
    for (Block* block : behind) {
      by_key_.erase(block->key);
    }
    for (Block* block : behind) {
      block->key.second -= end - begin;
      by_key_[block->key] = {block};
    }
    if (is_ranked()) {
      policies_->shift(stream, end, end - begin);
    }
  }
  [[nodiscard]] bool remembers(StreamId stream) const {
    return std::any_of(by_key_.begin(), by_key_.end(),
                       [&](const auto& known) { return known.first.first == stream; }) ||
           std::any_of(
               blocks_.begin(), blocks_.end(),
               [&](const Block& block) { return block.tokens > 0 && block.key.first == stream; }) ||
           ghosts_[0].remembers(stream) || ghosts_[1].remembers(stream);
  }
  Block* add(const Block& block) {
    Block* made = &blocks_.emplace_back(block);
    made->used = now_;
    made->leasable = rules_.lease_newcomers;
    made->priority = rules_.retention.empty() ? 0 : priority_of(rules_, block.key.second);
    made->self = std::prev(blocks_.end());
    made->reached = ++clock_;
    if (made->keyed) {
      by_key_[made->key].push_back(made);
      ++resident;
    }
    ++used;
    if (made->holders == 0) {
      order_.emplace(place(*made), made);
      learn(made);
    }
    ++recent_;
    for (auto& ghosts : ghosts_) {
      ghosts.remove(made->key);
    }
    return made;
  }
  /// arc: a block with this key is to come in.
  void adapt_arc(const Key& key) {
    const auto ratio = [&](int to, int from) {
      return std::max(
          1.0, static_cast<double>(ghosts_[to].size()) / static_cast<double>(ghosts_[from].size()));
    };
    if (ghosts_[0].contains(key)) {
      target_ = std::min(target_ + ratio(1, 0), static_cast<double>(rules_.capacity));
      ghosts_[0].add(key, rules_.capacity);
    } else if (ghosts_[1].contains(key)) {
      target_ = std::max(target_ - ratio(0, 1), 0.0);
      ghosts_[1].add(key, rules_.capacity);
    }
  }
  /// A number of its own for a request that is running, higher than all before.
  [[nodiscard]] std::int64_t next_rank() { return ++clock_; }
  /// A running request with this rank brought the block in.
  void place_as(Block* block, std::int64_t rank, std::int64_t position) {
    order_.erase(place(*block));
    block->reached = rank;
    block->within = -position;
    order_.emplace(place(*block), block);
  }
  /// A running request with this rank uses a block: it is ordered with those of that rank, the one
  /// farthest from the head first, unless it was used later.
  void use_as(Block* block, std::int64_t rank, std::int64_t position) {
    const std::pair wanted{rank, -position};
    if (std::pair{block->reached, block->within} < wanted) {
      order_.erase(place(*block));
      std::tie(block->reached, block->within) = wanted;
      order_.emplace(place(*block), block);
      block->used = now_;
      block->leasable = true;
    }
  }
  /// The block leaves to make room.
  void evict(Block* block) {
    if (is_arc() && block->keyed) {
      ghosts_[block->frequent ? 1 : 0].add(block->key, rules_.capacity);
    }
    remove(block);
  }
  void remove(Block* block) {
    recent_ -= block->frequent ? 0 : 1;
    if (block->keyed) {
      std::vector<Block*>& alike = by_key_.at(block->key);
      alike.erase(std::find(alike.begin(), alike.end(), block));
      if (alike.empty()) {
        by_key_.erase(block->key);
      }
      --resident;
    }
    --used;
    order_.erase(place(*block));
    if (block->entry != BlockEntries::kNone) {
      policies_->remove(run_of(*block), block->entry);
      by_entry_.erase(block->entry);
    }
    blocks_.erase(block->self);
  }
  /// To the end of the order, or of those used as often; if it `counts`, once more.
  void use(Block* block, bool counts = true) {
    order_.erase(place(*block));
    block->used = now_;
    block->leasable = true;
    block->uses += counts ? 1 : 0;
    if (is_ranked() && counts) {
      policies_->use(run_of(*block), block->entry);
    }
    if (is_arc() && counts && !block->frequent) {
      block->frequent = true;
      --recent_;
    }
    reach_end(block);
    order_.emplace(place(*block), block);
  }
  void hold(Block* block) {
    if (block->holders++ == 0) {
      order_.erase(place(*block));
    }
  }
  /// The policy learns that a request has found a block that it holds.
  void hit(Block* block) {
    if (is_ranked()) {
      learn(block);
      policies_->hit(run_of(*block), block->entry);
    }
  }
  /// `used`: the request had found it.
  void let_go(Block* block, bool used_it) {
    block->used = now_;
    block->leasable = block->leasable || used_it;
    block->uses += used_it ? 1 : 0;
    if (block->entry != BlockEntries::kNone) {
      policies_->release(run_of(*block), block->entry);
    }
    if (--block->holders == 0) {
      reach_end(block);
      order_.emplace(place(*block), block);
      if (block->entry == BlockEntries::kNone && !admits(block->key)) {
        remove(block);
      } else {
        learn(block);
      }
    }
  }
  /// The request had it for nothing.
  void put_back(Block* block) {
    if (--block->holders == 0) {
      order_.emplace(place(*block), block);
    }
  }
  // Policies of the registry.

  [[nodiscard]] bool is_ranked() const { return policies_ != nullptr; }
  [[nodiscard]] bool filters() const { return is_ranked() && policies_->filters(); }
  [[nodiscard]] PolicyOrder* looking_ahead() const {
    return is_ranked() ? policies_->looking_ahead() : nullptr;
  }
  /// Its entries, if blocks of a stream may be one; else null.
  [[nodiscard]] BlockEntries* groups() const {
    return is_ranked() && policies_->groups() ? policies_.get() : nullptr;
  }
  [[nodiscard]] bool admits(const Key& key) const {
    return !is_ranked() || policies_->admits(key.first, key.second);
  }
  void note_use(const Key& key) {
    if (is_ranked()) {
      policies_->note_use(key.first, key.second);
    }
  }
  /// A block that a request has computed has no number before that one lets it go, or another one
  /// finds it.
  void learn(Block* block) {
    if (is_ranked() && block->entry == BlockEntries::kNone) {
      block->entry = block->keyed ? policies_->insert(run_of(*block)) : policies_->insert_keyless();
      if (groups() == nullptr) {
        by_entry_[block->entry] = block;
      }
    }
  }
  /// Whether the policy lets so many blocks leave, or a round, for this newcomer if there is one.
  bool choose(std::int64_t wanted, const Key* newcomer, Demand demand = Demand::save,
              const BlockEntries::Stays* stays = nullptr) {
    if (!is_ranked() || wanted <= 0) {
      return true;
    }
    offer_all();
    const BlockRun block = newcomer != nullptr
                               ? BlockRun{newcomer->first, newcomer->second, newcomer->second + 1}
                               : BlockRun{};
    return policies_->choose(
        rules_.leaves_only ? 1 : std::max(wanted, std::min(rules_.round, evictable())), demand,
        newcomer != nullptr ? &block : nullptr, stays);
  }
  /// The next blocks to leave, so many in the end: those that were chosen, or are now. `runs`: the
  /// number of blocks of each entry's part.
  std::vector<Block*> take_chosen(std::int64_t wanted, std::vector<std::int64_t>* runs = nullptr) {
    if (!policies_->has_chosen() && !choose(wanted, nullptr)) {
      policies_->choose_oldest(rules_.leaves_only ? 1 : wanted);
      KVTIER_ASSERT(policies_->has_chosen(), "there is enough that may leave");
    }
    std::vector<Block*> chosen;
    for (const auto& [run, number] : policies_->take_chosen()) {
      if (groups() == nullptr) {
        chosen.push_back(by_entry_.at(number));
      }
      for (std::int64_t i = run.begin; i < run.end; ++i) {
        chosen.push_back(find({run.stream, i}));
      }
      if (runs != nullptr) {
        runs->push_back(run.size());
      }
    }
    return chosen;
  }
  void check_policies() {
    if (is_ranked()) {
      offer_all();
      policies_->check_invariants();
    }
  }

  /// Null if nothing may leave.
  [[nodiscard]] Block* victim() const {
    const auto is_free = [&](const auto& place) {
      return may_leave(*place.second) && !is_kept(*place.second);
    };
    if (is_arc() && recent_ < static_cast<std::int64_t>(target_)) {
      const auto frequent = order_.lower_bound(Place{1, 0, 0});
      const auto found = std::find_if(frequent, order_.end(), is_free);
      if (found != order_.end()) {
        return found->second;
      }
    }
    const auto found = std::find_if(order_.begin(), order_.end(), is_free);
    return found == order_.end() ? nullptr : found->second;
  }
  [[nodiscard]] std::int64_t evictable() {
    if (groups() != nullptr) {
      offer_all();
      return policies_->evictable();
    }
    if (rules_.lease.ns == 0) {
      return static_cast<std::int64_t>(order_.size()) - pinned_;
    }
    return std::count_if(order_.begin(), order_.end(),
                         [&](const auto& place) { return may_leave(*place.second); });
  }
  /// The block that has most first tokens of the prompt behind its whole blocks: a whole one before
  /// one that is not full, and the one of the earliest stream of equal ones.
  [[nodiscard]] Block* best_part(const Context& prompt, std::int64_t number,
                                 std::int64_t& tokens) const {
    const std::int64_t begin = number * rules_.block.value;
    Block* best = nullptr;
    tokens = 0;
    const auto rank = [](const Block& block) {
      return std::tuple(block.tokens > 0, block.key.first, block.tokens);
    };
    for (const Block& block : blocks_) {
      if (block.key.second != number || !(block.tokens > 0 || find_self(block))) {
        continue;
      }
      const std::int64_t end = begin + (block.tokens > 0 ? block.tokens : rules_.block.value);
      const std::int64_t common =
          streams_.common({block.key.first, Tokens(end)}, prompt).value - begin;
      if (common > tokens || (common == tokens && common > 0 && rank(block) < rank(*best))) {
        tokens = common;
        best = &*block.self;
      }
    }
    return best;
  }
  /// Whether the same last block of a context is there, which is not full.
  [[nodiscard]] bool has_part(const Context& context) const {
    return std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& block) {
      return block.tokens > 0 &&
             block.key.second * rules_.block.value + block.tokens == context.tokens.value &&
             streams_.common({block.key.first, context.tokens}, context) == context.tokens;
    });
  }
  /// Whether there is a block behind this one in any context.
  [[nodiscard]] bool is_followed(const Key& key) const {
    return std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& block) {
      return (block.keyed || block.tokens > 0) && is_child(block, key);
    });
  }
  [[nodiscard]] bool is_free(const Block& block) const {
    return block.holders == 0 && may_leave(block);
  }
  void pin(Block* block) { pinned_ += block->pins++ == 0 ? 1 : 0; }
  void unpin(Block* block) { pinned_ -= --block->pins == 0 ? 1 : 0; }
  [[nodiscard]] std::vector<Stretch> contents() const {
    std::vector<Stretch> contents;
    for (const auto& [place, block] : order_) {
      if (block->keyed && !is_ranked()) {
        contents.push_back(stretch_of(block->key));
      }
    }
    std::vector<Key> held;
    for (const Block& block : blocks_) {
      if (block.holders > 0 || (block.keyed && is_ranked())) {
        held.push_back(block.key);
      }
    }
    std::sort(held.begin(), held.end());
    for (const Key& key : held) {
      contents.push_back(stretch_of(key));
    }
    return contents;
  }

  /// arc: T1, T2, B1 and B2, oldest first.
  [[nodiscard]] std::array<std::vector<Stretch>, 4> lists() const {
    std::array<std::vector<Stretch>, 4> lists;
    if (is_arc()) {
      for (const auto& [place, block] : order_) {
        lists[block->frequent ? 1 : 0].push_back(stretch_of(block->key));
      }
      lists[2] = ghosts_[0].contents();
      lists[3] = ghosts_[1].contents();
    }
    return lists;
  }
  [[nodiscard]] double target() const { return target_; }
  void set_target(double target) { target_ = target; }

  /// Blocks of all kinds; with a key.
  std::int64_t used = 0;
  std::int64_t resident = 0;

 private:
  [[nodiscard]] bool may_leave(const Block& block) const {
    return block.pins == 0 && !(block.keyed && block.leasable && block.used + rules_.lease > now_);
  }
  [[nodiscard]] static BlockRun run_of(const Block& block) {
    return {block.key.first, block.key.second, block.key.second + 1, End::head};
  }
  /// The one that is found by its key.
  [[nodiscard]] bool find_self(const Block& block) const {
    return block.keyed && find(block.key) == &block;
  }
  [[nodiscard]] bool is_child(const Block& block, const Key& parent) const {
    return block.key.second == parent.second + 1 &&
           streams_.stream_at(block.key.first,
                              Tokens((parent.second + 1) * rules_.block.value - 1)) == parent.first;
  }
  /// leaves_only: a block that may leave follows it.
  [[nodiscard]] bool is_kept(const Block& block) const {
    return rules_.leaves_only && find_self(block) &&
           std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& other) {
             return find_self(other) && is_child(other, block.key) && is_free(other);
           });
  }
  void offer_all() {
    for (const Block& block : blocks_) {
      if (block.entry != BlockEntries::kNone) {
        policies_->offer(run_of(block), block.entry, is_free(block) && !is_kept(block));
      }
    }
  }
  using Place = std::array<std::int64_t, 3>;
  [[nodiscard]] Place place(const Block& block) const {
    return {rules_.eviction == "lfu"    ? block.uses
            : !rules_.retention.empty() ? block.priority
            : block.frequent            ? 1
                                        : 0,
            block.reached, block.within};
  }
  [[nodiscard]] bool is_arc() const { return rules_.eviction == "arc" && !is_ranked(); }
  void reach_end(Block* block) {
    if (rules_.eviction != "fifo") {
      block->reached = ++clock_;
      block->within = 0;
    }
  }

  PoolRules rules_;
  const Streams& streams_;
  /// Null if the pool has an order of its own.
  std::unique_ptr<BlockEntries> policies_;
  std::int64_t clock_ = 0;
  std::int64_t pinned_ = 0;
  SimTime now_;
  /// arc: the size of T1 and its wanted size; B1 and B2.
  std::int64_t recent_ = 0;
  double target_ = 0;
  std::array<Ghosts, 2> ghosts_;
  std::list<Block> blocks_;
  /// Blocks that no request holds, in the order of eviction.
  std::map<Place, Block*> order_;
  std::map<Key, std::vector<Block*>> by_key_;
  /// Those that a policy knows.
  std::map<std::uint32_t, Block*> by_entry_;
};

class ReferenceBlocks final : public Store, private OffloadCalls {
 public:
  using Pools = std::vector<std::shared_ptr<BlockPool>>;
  using Use = UseOfPools<Pools>;
  ReferenceBlocks(const StoreRules& rules, const Streams& streams, Pools pools)
      : rules_(rules),
        streams_(streams),
        pools_(std::move(pools)),
        counters_(pools_.size()),
        offer_counts_(rules),
        filling_(pools_.size()),
        stalling_blocks_(pools_.size()),
        lacked_(pools_.size()) {
    for (const EdgeRules& edge : rules_.edges) {
      frequencies_.emplace_back(edge.frequency);
    }
  }

  void advance(SimTime now) override {
    for (WriteFrequencies& frequencies : frequencies_) {
      frequencies.advance(now);
    }
    for (const auto& pool : pools_) {
      pool->advance(now);
    }
    const Use use(pools_, {});
    if (retains_ && rules_.pools[0].reserved == 0) {
      leave_ahead();
    }
    leave_idle();
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      const PoolRules& rules = rules_.pools[i];
      if (rules.relief && rules.relief->in_background) {
        const bool lacked = counters_[i].skipped != lacked_[i];
        lacked_[i] = counters_[i].skipped;
        relieve(i, relief_in_background(rules, pools_[i]->used, lacked));
      }
    }
  }

  [[nodiscard]] Match match(const Context& prompt) const override {
    Match match{Tokens(0), std::vector<Tokens>(pools_.size())};
    if (rules_.requests_in_first && !has_victims_behind(rules_)) {
      for (const Key& key : usable_keys(prompt)) {
        if (pools_[0]->find(key) == nullptr) {
          break;
        }
        match.tokens += block();
      }
      match.by_pool[0] = match.tokens;
      if (pools_.size() > 1) {
        match_behind(prompt, match);
      }
    } else {
      for (const Key& key : usable_keys(prompt)) {
        const std::size_t pool = where(key);
        if (pool == pools_.size()) {
          break;
        }
        match.tokens += block();
        match.by_pool[pool] += block();
        match.before_loads +=
            pool == 0 && match.before_loads + block() == match.tokens ? block() : Tokens(0);
      }
    }
    if (!has_victims_behind(rules_)) {
      match.before_loads = match.by_pool[0];
    }
    std::int64_t part = 0;
    static_cast<void>(find_part(prompt, match.tokens, part));
    match.tokens += Tokens(part);
    match.by_pool[0] += Tokens(part);
    return match;
  }

  std::optional<RequestId> acquire(const Context& prompt, const Room& room, Match& found,
                                   RequestId again) override {
    found = match(prompt);
    const Tokens taken = std::max(room.taken, found.tokens);
    Request request{.context = {prompt.stream, taken}};
    const bool victims_behind = has_victims_behind(rules_);
    const std::vector<Key> hits =
        keys_of(streams_,
                {prompt.stream,
                 rules_.requests_in_first && !victims_behind ? found.by_pool[0] : found.tokens},
                block());
    Use use(pools_, {prompt.stream, block() * std::ssize(hits)});
    if (room.comes_early &&
        !make_idle_room(keys_of(streams_, {prompt.stream, found.tokens}, block()))) {
      return std::nullopt;
    }
    if (victims_behind) {
      reads_written_ = false;
      if (!take_with_victims(request, hits, prompt, room)) {
        return std::nullopt;
      }
      found.reads_written = reads_written_;
    } else if (rules_.requests_in_first) {
      request.found = hits.size();
      for (std::size_t i = 0; i < request.found; ++i) {
        request.blocks.push_back(pools_[0]->find(hits[i]));
        pools_[0]->hold(request.blocks.back());
      }
      std::int64_t part_tokens = 0;
      Block* part = find_part(prompt, block() * std::ssize(hits), part_tokens);
      const std::int64_t had = static_cast<std::int64_t>(request.found);
      const std::int64_t wanted = blocks_up(taken, block()) - had;
      const std::int64_t all = blocks_up(room.needed, block()) - had;
      const std::int64_t available = free_blocks().available - room.watermark;
      const bool fits = all <= available && wanted + room.reserved <= available &&
                        wanted <= free_blocks().available;
      if (fits) {
        for (Block* held : request.blocks) {
          pools_[0]->hit(held);
        }
        take_over(part);
      }
      if (!fits || !make_room(wanted)) {
        for (Block* held : request.blocks) {
          pools_[0]->put_back(held);
        }
        return std::nullopt;
      }
      request.unpublished = wanted;
      request.prompt = prompt.tokens;
    } else {
      for (const Key& key : hits) {
        request.places.push_back(where(key, 0));
      }
      for (std::size_t i = 0; i < pools_.size(); ++i) {
        touch_found(i, hits);
      }
    }
    std::uint32_t id = again.value;
    if (id == UINT32_MAX) {
      id = ++last_request_;
    } else {
      request.prompt = requests_.at(id).prompt;
      request.noted = requests_.at(id).noted;
      request.record = requests_.at(id).record;
      request.record.next = 0;
    }
    Request& kept = requests_[id] = std::move(request);
    note_uses(kept, found.tokens);
    if (rules_.requests_in_first && pools_.size() > 1 && !victims_behind) {
      use.extend({prompt.stream, found.tokens});
      load(kept, prompt, found);
    }
    if (rules_.publication == Publication::scheduling &&
        !(rules_.loads_alone && kept.loaded.value > 0)) {
      use.extend({prompt.stream, taken});
      publish(kept, taken);
    }
    return RequestId{id};
  }

  bool grow(RequestId id, const Context& context) override {
    Request& request = requests_.at(id.value);
    Use use(pools_, {});
    if (rules_.requests_in_first) {
      const std::int64_t wanted =
          blocks_up(context.tokens, block()) - blocks_up(request.context.tokens, block());
      if (!make_room(wanted)) {
        return false;
      }
      request.unpublished += wanted;
    }
    request.context = context;
    if (rules_.publication == Publication::scheduling) {
      use.extend(context);
      publish(request, context.tokens);
    }
    return true;
  }

  void computed(RequestId id, Tokens tokens) override {
    Request& request = requests_.at(id.value);
    const bool puts =
        has_cache_behind() && std::ssize(offers(request, tokens)) > request.record.next;
    const bool filters =
        std::ranges::any_of(pools_, [](const auto& pool) { return pool->filters(); });
    if (rules_.publication != Publication::computed && !puts && !filters) {
      return;
    }
    const Use use(pools_, {request.context.stream, tokens});
    note_uses(request, tokens);
    if (rules_.publication == Publication::computed) {
      publish(request, tokens);
    }
    if (puts) {
      put_behind(id, tokens);
    }
  }

  [[nodiscard]] bool offloads() const override { return is_offload(rules_); }
  void loaded(RequestId id) override {
    Request& request = requests_.at(id.value);
    const Use use(pools_, request.context);
    end_loads(request);
  }
  void publish_loaded(RequestId id) override {
    Request& request = requests_.at(id.value);
    const Use use(pools_, {request.context.stream, request.loaded});
    publish(request, request.loaded);
  }
  bool offer(RequestId id, Tokens tokens) override {
    Request& request = requests_.at(id.value);
    writer_ = id.value;
    const bool fits = offer(request, tokens);
    if (request.released) {
      await_writes_of(id.value);
    }
    return fits;
  }
  [[nodiscard]] OffloadCalls* offload_calls() override { return offloads() ? this : nullptr; }
  [[nodiscard]] std::vector<PolicyOrder*> looking_ahead() override {
    std::vector<PolicyOrder*> found;
    add_looking_ahead(pools_, found);
    return found;
  }
  [[nodiscard]] std::vector<Copy> take_copies() override {
    stalling_behind_.clear();
    for (std::size_t i = 1; i < pools_.size(); ++i) {
      if (const auto id = std::exchange(filling_[i], std::nullopt)) {
        CopyInFlight& copy = copies_.at(*id);
        begun_.push_back({.id = *id, .blocks = std::ssize(copy.blocks), .pool = i});
        copy.left += i > 1 && is_buffered(rules_, i) ? std::ssize(copy.blocks) : 0;
      }
      if (stalling_blocks_[i] > 0) {
        begun_.push_back({.id = last_copy_++,
                          .blocks = std::exchange(stalling_blocks_[i], 0),
                          .pool = i,
                          .waits = true});
      }
    }
    return std::exchange(begun_, {});
  }
  [[nodiscard]] std::vector<Copy> take_awaited() override {
    std::vector<Copy> awaited;
    for (auto& [id, copy] : copies_) {
      if (copy.left > 0) {
        awaited.push_back({.id = id, .blocks = std::exchange(copy.left, 0), .pool = copy.to});
      }
    }
    return awaited;
  }
  void copied(std::uint32_t id) override {
    const CopyInFlight copy = copies_.at(id);
    copies_.erase(id);
    const Use use(pools_, {});
    if (copy.to < rules_.edges.size() && rules_.edges[copy.to].write == Write::on_create) {
      std::vector<Key> paths;
      std::vector<Key> written;
      for (const Block* block : copy.blocks) {
        written.push_back(block->key);
        for (const Key& key :
             keys_behind({block->key.first, size_behind() * (block->key.second + 1)})) {
          paths.push_back(key);
        }
      }
      relieve_before_write(copy.to + 1, paths, written);
    }
    for (Block* block : copy.blocks) {
      if (copy.to > 1 && !is_buffered(rules_, copy.to)) {
        pools_[copy.to - 1]->unpin(pools_[copy.to - 1]->find(block->key));
      }
      arrive(copy.to, block);
    }
  }
  void end(RequestId id) override {
    if (offloads()) {
      const Use use(pools_, requests_.at(id.value).context);
      use_offered(requests_.at(id.value));
      requests_.erase(id.value);
    }
  }

  void release(RequestId id) override {
    Request& request = requests_.at(id.value);
    const Use use(pools_, request.context);
    note_uses(request, request.context.tokens);
    end_loads(request);
    const bool from_tail = rules_.pools[0].insertion == End::tail;
    if (rules_.requests_in_first) {
      publish(request, request.context.tokens);
      request.released = true;
      if (has_cache_behind() && rules_.edges[0].responses == Responses::end) {
        put_behind(id, request.context.tokens);
      }
      await_writes_of(id.value);
      if (from_tail) {
        leave_keyless(request);
      }
      std::vector<Key> held;
      for (const Block* block : request.blocks) {
        held.push_back(block->key);
      }
      for (const std::size_t at : order_of_writes(0, held)) {
        pools_[0]->let_go(request.blocks[at], at < request.found);
      }
      if (!from_tail) {
        leave_keyless(request);
      }
    } else {
      std::vector<Key> keys = keys_of(streams_, request.context, block());
      const auto found_end = keys.begin() + std::ssize(request.places);
      std::vector<Key> new_keys;
      if (rules_.pools[0].allocation == Allocation::write) {
        new_keys.assign(found_end, keys.end());
        keys.erase(found_end, keys.end());
      }
      for (const auto at : order_of_writes(0, keys)) {
        put(at < request.places.size() ? target(request.places[at]) : 0, keys[at]);
      }
      put_new(0, new_keys);
    }
    if (!offloads()) {
      requests_.erase(id.value);
    }
  }

  [[nodiscard]] FreeBlocks free_blocks() const override {
    const std::int64_t empty = rules_.pools[0].capacity - pools_[0]->used;
    return {.available = empty + pools_[0]->evictable(), .empty = empty};
  }

  void truncate(StreamId stream, Tokens tokens) override {
    std::erase_if(retained_, [&](const Key& key) {
      return key.first == stream && key.second >= tokens.value / block().value;
    });
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      pools_[i]->truncate(stream, tokens.value / rules_.pools[i].block.value);
    }
  }
  void cut(StreamId stream, Tokens kept, Tokens dropped) override {
    const Tokens end = kept + dropped;
    const auto is_gone = [&](const Key& key) {
      return key.first == stream && key.second >= kept.value && key.second < end.value;
    };
    for (auto& [id, copy] : copies_) {
      for (std::size_t i = copy.blocks.size(); i-- > 0;) {
        const Key key = copy.blocks[i]->key;
        if (!is_gone(key)) {
          continue;
        }
        if (copy.to > 1 && !is_buffered(rules_, copy.to)) {
          pools_[copy.to - 1]->unpin(pools_[copy.to - 1]->find(key));
        }
        copy.blocks.erase(copy.blocks.begin() + static_cast<std::ptrdiff_t>(i));
        if (!copy.writers.empty()) {
          copy.writers.erase(copy.writers.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
    }
    std::erase_if(retained_, is_gone);
    for (Key& key : retained_) {
      key.second -= key.first == stream && key.second >= end.value ? dropped.value : 0;
    }
    for (const auto& pool : pools_) {
      pool->cut(stream, kept.value, end.value);
    }
  }
  [[nodiscard]] bool remembers(StreamId stream) const override {
    return std::any_of(
               pools_.begin(), pools_.end(),
               [&](const auto& pool) { return pool->is_ranked() || pool->remembers(stream); }) ||
           std::ranges::count(retained_, stream, &Key::first) > 0 ||
           std::any_of(frequencies_.begin(), frequencies_.end(),
                       [&](const auto& frequencies) { return frequencies.remembers(stream); });
  }

  [[nodiscard]] PoolCounters counters(std::size_t pool) const override { return counters_[pool]; }
  [[nodiscard]] std::int64_t resident_blocks(std::size_t pool) const override {
    return pools_[pool]->resident + (pool == 0 ? std::ssize(retained_) : 0);
  }
  [[nodiscard]] std::vector<Stretch> contents(std::size_t pool) const override {
    std::vector<Stretch> contents;
    for (std::size_t i = 0; pool == 0 && i < retained_.size(); ++i) {
      contents.push_back(stretch_of(retained_[i]));
    }
    const std::vector<Stretch> others = pools_[pool]->contents();
    contents.insert(contents.end(), others.begin(), others.end());
    return contents;
  }
  void check_invariants() const override {
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      KVTIER_ASSERT(
          pools_[i]->resident <= pools_[i]->used && pools_[i]->used <= rules_.pools[i].capacity,
          "a pool holds no more than its capacity");
      pools_[i]->check_policies();
    }
  }

 private:
  /// The blocks that an offload has seen of a request.
  struct OffloadRecord {
    std::int64_t next = 0;
    /// In the order of eviction, while it runs; 0: it has used nothing yet.
    std::int64_t rank = 0;
    /// By the blocks' places in its context.
    std::set<std::int64_t> seen;
    std::set<std::int64_t> inserted;
    std::set<std::int64_t> reused;
    std::set<std::int64_t> missed;
  };
  /// A block that is read in a pool, and the pool into which it comes.
  struct Load {
    std::size_t pool = 1;
    std::size_t to = 1;
    Block* block = nullptr;
    Key key;
  };
  struct Request {
    Context context;
    /// With a key, in order; the first `found` were found.
    std::vector<Block*> blocks{};
    std::size_t found = 0;
    /// Blocks without a key.
    std::int64_t unpublished = 0;
    /// Place of each found block.
    std::vector<std::size_t> places{};
    /// Blocks that it loads, and the end of what it has when they are there.
    std::vector<Load> loads{};
    Tokens loaded{};
    /// Blocks that come up for it, by pool.
    std::vector<std::pair<std::size_t, Block*>> promoted{};
    OffloadRecord record{};
    Tokens prompt{};
    /// Tokens whose blocks admission policies know of.
    Tokens noted{};
    bool released = false;
  };
  /// The loads of a request have ended.
  void end_loads(Request& request) {
    for (const Load& load : request.loads) {
      end_load(load.pool, load.block);
    }
    for (const Load& load : std::exchange(request.loads, {})) {
      if (load.to < load.pool && pools_[load.to]->find(load.key) != nullptr) {
        leave_below(load.to, load.key);
      }
    }
    for (const auto& [pool, block] : std::exchange(request.promoted, {})) {
      arrive(pool, block);
    }
  }
  void note_uses(Request& request, Tokens tokens) {
    for (std::size_t i = 0; i < pools_.size() && tokens > request.noted; ++i) {
      const Tokens size = rules_.pools[i].block;
      const std::vector<Key> keys = keys_of(streams_, {request.context.stream, tokens}, size);
      for (auto j = static_cast<std::size_t>(request.noted.value / size.value); j < keys.size();
           ++j) {
        pools_[i]->note_use(keys[j]);
      }
    }
    request.noted = std::max(request.noted, tokens);
  }
  /// Whether requests have places of their own in the order of the second pool.
  [[nodiscard]] bool has_places() const {
    return rules_.pools[1].eviction == "lru" && !pools_[1]->is_ranked();
  }

  std::optional<Prefetch> prefetch(const Context& prompt) override {
    if (prefetches_to(rules_) != 1U) {
      return std::nullopt;
    }
    const Match found = match(prompt);
    const Context context{prompt.stream, found.tokens};
    const Use use(pools_, context);
    const std::vector<Key> keys = usable_keys_behind(prompt);
    Request fetch{.context = context};
    std::vector<Block*> here;
    std::vector<Key> wanted;
    const auto size = static_cast<std::size_t>(size_behind().value);
    for (std::size_t i = static_cast<std::size_t>(found.by_pool[0].value) / size;
         i < static_cast<std::size_t>(found.tokens.value) / size; ++i) {
      const std::size_t place = where(keys[i], 1);
      if (Block* block = pools_[1]->find(keys[i])) {
        here.push_back(block);
      } else if (target(place) <= 1) {
        wanted.push_back(keys[i]);
        fetch.loads.push_back({place, 1, pools_[place]->find(keys[i]), keys[i]});
      }
    }
    BlockPool& pool = *pools_[1];
    const std::int64_t places =
        rules_.pools[1].reserved == 0
            ? 0
            : std::max<std::int64_t>(0, pool.places_for(wanted) - pool.free_places());
    const std::int64_t lacking =
        std::max(std::ssize(wanted) - (rules_.pools[1].capacity - pool.used), places);
    for (Block* block : here) {
      pool.pin(block);
    }
    const bool fits = !wanted.empty() && places <= 1 && lacking <= pool.evictable() &&
                      pool.choose(lacking, &wanted.front(), Demand::prefetch);
    if (fits) {
      for (const Load& load : fetch.loads) {
        begin_load(load.pool, load.block);
      }
      free_blocks(1, lacking);
      for (const Key& key : wanted) {
        Block* made = pool.add({.key = key});
        pool.pin(made);
        ++made->writes;
        ++counters_[1].inserted;
        ++counters_[1].promoted;
        fetch.promoted.emplace_back(1, made);
      }
    }
    for (Block* block : here) {
      pool.unpin(block);
    }
    if (!fits) {
      return std::nullopt;
    }
    fetches_.emplace(++last_fetch_, std::move(fetch));
    return Prefetch{.id = last_fetch_, .tokens = size_behind() * std::ssize(wanted)};
  }
  Tokens prefetched(std::uint32_t id, Tokens came) override {
    Request fetch = std::move(fetches_.extract(id).mapped());
    const Use use(pools_, fetch.context);
    end_loads(fetch);
    return came;
  }
  [[nodiscard]] std::vector<Stretch> take_demoted() override { return std::exchange(demoted_, {}); }

  // OffloadCalls
  RequestId begin(StreamId stream) override {
    requests_[++last_request_] = {.context = {stream, Tokens(0)}};
    return RequestId{last_request_};
  }
  Offer offer(RequestId id, const std::vector<Stretch>& blocks) override {
    Offer result;
    const std::vector<Key> keys = keys_of(blocks);
    for (const Key& key : keys) {
      if (pools_[1]->find(key) == nullptr) {
        result.written.push_back(stretch_of(key));
      }
    }
    evicted_behind_.clear();
    const Use use(pools_, {});
    result.fits = offer_blocks(requests_.at(id.value).record, keys);
    std::erase_if(result.written, [&](const Stretch& block) {
      return pools_[1]->find({block.stream, block.begin}) == nullptr;
    });
    result.evicted = evicted_behind_;
    return result;
  }
  void begin_load(RequestId id, const std::vector<Stretch>& blocks) override {
    for (const Key& key : keys_of(blocks)) {
      note_reuse(requests_.at(id.value).record, key, key.second);
      begin_load(1, pools_[1]->find(key));
    }
  }
  void end_load(const std::vector<Stretch>& blocks) override {
    for (const Key& key : keys_of(blocks)) {
      end_load(1, pools_[1]->find(key));
    }
  }
  void set_target(double target) override { pools_[1]->set_target(target); }
  [[nodiscard]] BlockState state(StreamId stream, std::int64_t block) const override {
    const Block* here = pools_[1]->find({stream, block});
    return here == nullptr    ? BlockState::absent
           : here->writes > 0 ? BlockState::written
                              : BlockState::ready;
  }
  [[nodiscard]] std::int64_t offers(StreamId stream, std::int64_t block) const override {
    return offer_counts_.uses(stream, block);
  }
  [[nodiscard]] OffloadFacts facts() const override {
    BlockPool& pool = *pools_[1];
    return {.free = rules_.pools[1].capacity - pool.used,
            .evictable = pool.evictable(),
            .lists = pool.lists(),
            .target = pool.target()};
  }
  void begin_load(std::size_t pool, Block* block) {
    pools_[pool]->pin(block);
    ++block->loads;
  }
  void end_load(std::size_t pool, Block* block) {
    --block->loads;
    pools_[pool]->unpin(block);
  }

  // ---- The pools behind the first one ----

  [[nodiscard]] Tokens size_behind() const { return rules_.pools[1].block; }
  [[nodiscard]] std::vector<Key> keys_behind(const Context& context) const {
    return keys_of(streams_, context, size_behind());
  }
  /// Keys of a prompt that can be found there.
  [[nodiscard]] std::vector<Key> usable_keys_behind(const Context& prompt) const {
    const std::int64_t less = rules_.hit_cap_behind == HitCap::last_token ? 1 : 0;
    return keys_behind(
        {prompt.stream, Tokens(std::max<std::int64_t>(prompt.tokens.value - less, 0))});
  }
  /// How many blocks of the prompt the pools behind have, from `begin` on or from the first on.
  [[nodiscard]] std::size_t found_behind(const std::vector<Key>& keys, std::size_t begin) const {
    std::size_t end = begin;
    while (end < keys.size() && where(keys[end], 1) < pools_.size()) {
      ++end;
    }
    return end;
  }
  [[nodiscard]] std::size_t first_behind(Tokens in_first) const {
    return offloads() ? static_cast<std::size_t>(in_first.value / size_behind().value) : 0;
  }
  void match_behind(const Context& prompt, Match& match) const {
    const std::vector<Key> keys = usable_keys_behind(prompt);
    const std::size_t begin = first_behind(match.tokens);
    const std::size_t end = found_behind(keys, begin);
    const Tokens first = match.tokens;
    const Tokens all = size_behind() * static_cast<std::int64_t>(end);
    for (std::size_t i = 1; i < pools_.size() && end < keys.size(); ++i) {
      const Block* next = pools_[i]->find(keys[end]);
      match.waits = match.waits || (next != nullptr && next->writes > 0 && is_buffered(rules_, i) &&
                                    all + size_behind() > first);
    }
    if (all - first < (offloads() ? size_behind() : Tokens(1))) {
      return;
    }
    match.tokens = all;
    for (std::size_t i = begin; i < end; ++i) {
      const Tokens from = std::max(first, size_behind() * static_cast<std::int64_t>(i));
      const Tokens to = std::max(first, size_behind() * static_cast<std::int64_t>(i + 1));
      match.by_pool[where(keys[i], 1)] += to - from;
      const Block* here = pools_[1]->find(keys[i]);
      if (offloads() && here != nullptr) {
        match.waits = match.waits || here->writes > 0 ||
                      (rules_.loads_alone && !rules_.pools[1].shared && here->loads > 0);
      }
    }
  }
  void touch_found(std::size_t pool, const std::vector<Key>& keys) {
    if (rules_.pools[pool].touch == Touch::lookup) {
      for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
        if (Block* here = pools_[pool]->find(*key)) {
          pools_[pool]->use(here);
        }
      }
    }
  }
  void load(Request& request, const Context& prompt, const Match& match) {
    const std::vector<Key> keys = usable_keys_behind(prompt);
    if (!offloads()) {
      std::vector<Key> found = keys;
      found.resize(found_behind(keys, 0));
      request.record.next = std::ssize(found);
      for (std::size_t i = 1; i < pools_.size(); ++i) {
        touch_found(i, found);
      }
    }
    if (match.tokens == match.by_pool[0]) {
      return;
    }
    const auto end = static_cast<std::size_t>(match.tokens.value / size_behind().value);
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < end; ++i) {
      places.push_back(where(keys[i], 1));
    }
    const auto comes_to = [&](std::size_t i) {
      return std::min(places[i], std::max<std::size_t>(1, target(places[i])));
    };
    const auto begin = static_cast<std::size_t>(match.by_pool[0].value / size_behind().value);
    const auto load_from_second = [&](std::size_t i) {
      if (Block* here = pools_[1]->find(keys[i])) {
        begin_load(1, here);
        request.loads.push_back({1, 1, here, keys[i]});
      }
    };
    for (std::size_t i = begin; i < end; ++i) {
      if (places[i] == 1) {
        load_from_second(i);
      }
    }
    std::int64_t wanted = 0;
    for (std::size_t i = begin; i < end; ++i) {
      wanted += comes_to(i) == 1 && places[i] > 1 ? 1 : 0;
    }
    for (std::size_t i = begin; i < end; ++i) {
      if (places[i] > 1 && rules_.edges[places[i] - 1].timed) {
        Block* here = pools_[places[i]]->find(keys[i]);
        begin_load(places[i], here);
        request.loads.push_back({places[i], comes_to(i), here, keys[i]});
      }
    }
    std::int64_t room = make_room_for_write(1, wanted);
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t to = comes_to(i);
      if (to < places[i] && (to > 1 || room-- > 0)) {
        const std::int64_t before = counters_[to].inserted;
        promotes_to_ = to;
        promotes_for_ =
            rules_.edges[to - 1].timed && rules_.loads_alone && !offloads() ? &request : nullptr;
        put(to, keys[i]);
        promotes_to_ = 0;
        counters_[to].promoted += counters_[to].inserted - before;
      }
    }
    if (offloads()) {
      request.record.next = static_cast<std::int64_t>(end);
    }
    request.loaded = match.tokens;
    for (std::size_t i = begin; i < end; ++i) {
      if (places[i] > 1) {
        load_from_second(i);
      }
      if (offloads()) {
        note_reuse(request.record, keys[i], static_cast<std::int64_t>(i));
      }
    }
    if (!rules_.loads_alone) {
      publish(request, match.tokens);
    }
  }
  std::int64_t rank_of(OffloadRecord& record) {
    if (record.rank == 0) {
      record.rank = pools_[1]->next_rank();
    }
    return record.rank;
  }
  void note_reuse(OffloadRecord& record, const Key& key, std::int64_t position) {
    if (record.seen.insert(position).second && has_places()) {
      const std::int64_t rank = rank_of(record);
      if (Block* here = pools_[1]->find(key)) {
        pools_[1]->use_as(here, rank, position);
      }
    }
    if (!record.inserted.contains(position)) {
      record.reused.insert(position);
    }
  }

  [[nodiscard]] bool has_cache_behind() const {
    return rules_.requests_in_first && pools_.size() > 1 && !is_offload(rules_) &&
           !has_victims_behind(rules_);
  }
  /// A cache of its own takes what is new to it.
  void put_behind(RequestId id, Tokens tokens) {
    Request& request = requests_.at(id.value);
    const std::vector<Key> keys = offers(request, tokens);
    const auto next = static_cast<std::size_t>(request.record.next);
    for (std::size_t i = 1;
         i < pools_.size() && next < keys.size() && (i == 1 || !takes_time(rules_, i - 1)); ++i) {
      if (i == 1 || rules_.edges[i - 1].write == Write::on_create) {
        relieve_before_write(i, keys, {keys.begin() + request.record.next, keys.end()});
      }
    }
    if (next < keys.size()) {
      writer_ = id.value;
      put_new(1, {keys.begin() + request.record.next, keys.end()});
    }
    request.record.next = std::max(request.record.next, std::ssize(keys));
  }
  /// Keys of what the request's computed tokens may offer.
  [[nodiscard]] std::vector<Key> offers(const Request& request, Tokens tokens) const {
    const Responses responses = rules_.edges[0].responses;
    if (responses == Responses::never || (responses == Responses::end && !request.released)) {
      tokens = std::min(tokens, request.prompt);
    }
    return keys_behind({request.context.stream, tokens});
  }
  bool offer(Request& request, Tokens tokens) {
    note_uses(request, tokens);
    std::vector<Key> keys = offers(request, tokens);
    OffloadRecord& record = request.record;
    const std::int64_t end = std::ssize(keys);
    if (end <= record.next) {
      return true;
    }
    const Use use(pools_, {request.context.stream, size_behind() * end});
    keys.erase(keys.begin(), keys.begin() + record.next);
    const bool fits = offer_blocks(record, keys);
    record.next = fits ? end : record.next;
    return fits;
  }
  bool offer_blocks(OffloadRecord& record, const std::vector<Key>& keys) {
    BlockPool& pool = *pools_[1];
    std::vector<Stretch> offered_now;
    std::vector<BlockRun> candidates;
    std::vector<Key> ready;
    for (const Key& key : keys) {
      offered_now.push_back(stretch_of(key));
      const Block* here = pool.find(key);
      if (here == nullptr) {
        candidates.push_back({key.first, key.second, key.second + 1, End::head});
      } else if (here->writes == 0) {
        ready.push_back(key);
      }
    }
    offer_counts_.admit(offered_now, candidates);
    std::vector<Key> missing;
    for (const BlockRun& run : candidates) {
      for (std::int64_t i = run.begin; i < run.end; ++i) {
        if (pool.admits({run.stream, i})) {
          missing.emplace_back(run.stream, i);
        }
      }
    }
    for (auto i = missing.rbegin(); i != missing.rend(); ++i) {
      if (record.missed.insert(i->second).second) {
        pool.adapt_arc(*i);
      }
    }
    if (!missing.empty()) {
      static_cast<void>(rank_of(record));
    }
    std::vector<Block*> pinned;
    for (const Key& key : ready) {
      note_reuse(record, key, key.second);
      pinned.push_back(pool.find(key));
      pool.pin(pinned.back());
    }
    for (const Key& key : missing) {
      record.seen.insert(key.second);
    }
    const std::int64_t wanted = std::ssize(missing) - (rules_.pools[1].capacity - pool.used);
    const bool fits =
        wanted <= pool.evictable() && (missing.empty() || pool.choose(wanted, &missing.front()));
    if (!fits) {
      counters_[1].skipped += std::ssize(missing);
    } else if (!missing.empty()) {
      write_missing(record, missing, wanted);
    }
    for (Block* block : pinned) {
      pool.unpin(block);
    }
    return fits;
  }
  void write_missing(OffloadRecord& record, const std::vector<Key>& missing, std::int64_t wanted) {
    const Copy copy{.id = last_copy_++, .blocks = std::ssize(missing)};
    for (const Key& key : missing) {
      leave_below(1, key);
    }
    evicted_behind_.clear();
    free_blocks(1, wanted);
    for (const Key& key : missing) {
      Block* made = pools_[1]->add({.key = key});
      if (has_places()) {
        pools_[1]->place_as(made, record.rank, key.second);
      }
      pools_[1]->pin(made);
      ++made->writes;
      ++counters_[1].inserted;
      record.inserted.insert(key.second);
      copies_[copy.id].blocks.push_back(made);
      copies_[copy.id].writers.push_back(writer_);
    }
    begun_.push_back(copy);
  }
  void use_offered(Request& request) {
    const OffloadRecord& record = request.record;
    const std::vector<Key> keys =
        keys_behind({request.context.stream,
                     size_behind() * (record.seen.empty() ? 0 : *record.seen.rbegin() + 1)});
    for (auto i = record.seen.rbegin(); i != record.seen.rend(); ++i) {
      Block* here = pools_[1]->find(keys[static_cast<std::size_t>(*i)]);
      if (here == nullptr) {
        continue;
      }
      if (record.reused.contains(*i)) {
        pools_[1]->use(here);
        ++here->puts;
        if (here->writes == 0) {
          write(1, *here);
        }
      } else if (has_places() || record.inserted.contains(*i)) {
        pools_[1]->use(here, false);
      }
    }
  }

  [[nodiscard]] Tokens block() const { return rules_.pools[0].block; }
  [[nodiscard]] std::vector<Key> usable_keys(const Context& prompt) const {
    return keys_of(streams_, {prompt.stream, Tokens(usable_tokens(rules_, prompt.tokens))},
                   block());
  }
  /// The fastest pool from `first` on that has the block; the number of pools if there is none.
  [[nodiscard]] std::size_t where(const Key& key, std::size_t first = 0) const {
    const auto has = [&](std::size_t pool) {
      const Block* here = pools_[pool]->find(key);
      return (here != nullptr && (here->writes == 0 || (pool == 1 && offloads()))) ||
             (pool == 0 && is_retained(key));
    };
    std::size_t pool = first;
    while (pool < pools_.size() && !has(pool)) {
      ++pool;
    }
    return pool;
  }

  /// The pool into which a hit in this one is put.
  [[nodiscard]] std::size_t target(std::size_t pool) const {
    while (pool > 0 && rules_.edges[pool - 1].promotes) {
      --pool;
    }
    return pool;
  }
  /// Takes memory for blocks that are written. Returns how many of them have some.
  std::int64_t make_room_for_write(std::size_t i, std::int64_t blocks) {
    const bool evicts = i == 0 || rules_.edges[i - 1].no_room == NoRoom::evict;
    if (pools_[i]->is_ranked() && rules_.pools[i].allocation == Allocation::write) {
      // All of them in one choice.
      const std::int64_t free = rules_.pools[i].capacity - pools_[i]->used;
      const std::int64_t evictable = evicts ? pools_[i]->evictable() : 0;
      const std::int64_t round = rules_.pools[i].round;
      blocks = std::min(blocks, free + evictable);
      if (blocks > free) {
        const std::int64_t leave = std::min((blocks - free + round - 1) / round * round, evictable);
        if (!pools_[i]->choose(leave, nullptr)) {
          return free;
        }
        free_blocks(i, leave);
      }
      return blocks;
    }
    std::int64_t taken = 0;
    while (taken < blocks && rules_.pools[i].allocation == Allocation::write) {
      if (pools_[i]->used + taken == rules_.pools[i].capacity) {
        if (!evicts || pools_[i]->victim() == nullptr) {
          return taken;
        }
        free_blocks(i, 1);
      }
      ++taken;
    }
    return blocks;
  }
  /// The places of keys in the order in which a request writes them. Those of one stream come in
  /// from the first one where they are a part of an entry.
  [[nodiscard]] std::vector<std::size_t> order_of_writes(std::size_t i,
                                                         const std::vector<Key>& keys) const {
    std::vector<std::size_t> order;
    const bool from_tail = rules_.pools[i].insertion == End::tail;
    for (std::size_t at = 0; at < keys.size(); ++at) {
      order.push_back(from_tail ? keys.size() - 1 - at : at);
    }
    if (from_tail && pools_[i]->groups() != nullptr) {
      for (auto begin = order.begin(); begin != order.end();) {
        const auto end = std::find_if(begin, order.end(), [&](std::size_t at) {
          return keys[at].first != keys[*begin].first;
        });
        std::reverse(begin, end);
        begin = end;
      }
    }
    return order;
  }
  /// A request writes blocks behind those that it found.
  void put_new(std::size_t i, const std::vector<Key>& keys) {
    std::int64_t room = make_room_for_write(i, std::ssize(keys));
    for (const auto at : order_of_writes(i, keys)) {
      const Key& key = keys[at];
      if (room-- > 0) {
        put(i, key);
      } else if (pools_[i]->find(key) == nullptr) {
        ++counters_[i].skipped;
      }
    }
  }
  /// False: there is no room, or the edge above does not evict.
  bool put(std::size_t i, const Key& key) {
    Block* here = pools_[i]->find(key);
    const bool is_new = here == nullptr;
    if (here != nullptr) {
      ++here->puts;
      if (rules_.pools[i].touch == Touch::end) {
        pools_[i]->use(here);
      }
    } else {
      const bool evicts = i == 0 || rules_.edges[i - 1].no_room == NoRoom::evict;
      if (pools_[i]->is_full_for(key.first) && (!evicts || pools_[i]->evictable() == 0)) {
        ++counters_[i].skipped;
        return false;
      }
      if (!pools_[i]->admits(key) || (pools_[i]->is_full_for(key.first) &&
                                      !pools_[i]->choose(1, &key, demand_of(rules_, i)))) {
        ++counters_[i].skipped;
        return false;
      }
      leave_below(i, key);
      if (pools_[i]->is_full_for(key.first)) {
        free_blocks(i, 1);
      }
      here = pools_[i]->add({.key = key});
      ++counters_[i].inserted;
      begin_to_arrive(i, here);
    }
    if (here->writes == 0) {
      write(i, *here, is_new);
    }
    return true;
  }

  // ---- Copies to slower pools ----

  /// Blocks that are copied to a pool from the one before it.
  struct CopyInFlight {
    std::size_t to = 1;
    std::vector<Block*> blocks;
    /// The requests whose memory they are copied from; 0: it has been told that it is free.
    std::vector<std::uint32_t> writers{};
    /// Blocks whose sources have left, which was not told yet.
    std::int64_t left = 0;
    /// A victim was among the sources.
    bool lost_source = false;
  };
  /// With Publication::never a request's memory is free when it is released.
  void await_writes_of(std::uint32_t request) {
    for (auto& [id, copy] : copies_) {
      for (std::uint32_t& writer : copy.writers) {
        if (rules_.publication == Publication::never && writer == request) {
          ++copy.left;
          writer = 0;
        }
      }
    }
  }
  /// Whether a block of the first pool is a part of blocks of the second one.
  [[nodiscard]] bool is_source(const Key& key, const std::vector<Block*>& blocks) const {
    return std::ranges::any_of(blocks, [&](const Block* copied) {
      const auto [stream, number] = copied->key;
      const std::vector<Key> keys =
          keys_of(streams_, {stream, size_behind() * (number + 1)}, block());
      return key.second >= number * size_behind().value / block().value &&
             std::ranges::count(keys, key) > 0;
    });
  }
  /// A block has come into a pool. If that takes time, it is being written from here on.
  void begin_to_arrive(std::size_t i, Block* block) {
    if (i == 0 || !rules_.edges[i - 1].timed) {
      return;
    }
    const bool promoted = i == promotes_to_;
    if (promoted ? promotes_for_ == nullptr : !takes_time(rules_, i)) {
      stalling_blocks_[i] += promoted ? 0 : 1;
      if (i == 1 && !promoted) {
        stalling_behind_.insert(block->key);
      }
      return;
    }
    pools_[i]->pin(block);
    ++block->writes;
    if (promoted) {
      promotes_for_->promoted.emplace_back(i, block);
      return;
    }
    if (!filling_[i]) {
      filling_[i] = last_copy_++;
      copies_[*filling_[i]].to = i;
    }
    copies_.at(*filling_[i]).blocks.push_back(block);
    if (i == 1) {
      copies_.at(*filling_[i]).writers.push_back(writer_);
    }
    if (i > 1 && !is_buffered(rules_, i)) {
      pools_[i - 1]->pin(pools_[i - 1]->find(block->key));
    }
  }
  void arrive(std::size_t pool, Block* block) {
    --block->writes;
    pools_[pool]->unpin(block);
    write_new(pool, *block);
  }
  /// Into the next pool, if it is time.
  void write(std::size_t i, const Block& block, bool is_new = false) {
    if (i < rules_.edges.size()) {
      const EdgeRules& edge = rules_.edges[i];
      if (edge.frequency && !(is_new && frequencies_[i].admit(block.key.first, block.key.second))) {
        return;
      }
      if (edge.write == Write::on_create ||
          (edge.write == Write::after_uses && block.puts >= edge.uses)) {
        put(i + 1, block.key);
      }
    }
  }
  /// A block's coming in is its first put.
  void write_new(std::size_t i, const Block& block) {
    Block made = block;
    made.puts = 1;
    write(i, made, true);
  }
  void leave_below(std::size_t i, const Key& key) {
    for (; i < rules_.edges.size() && rules_.edges[i].exclusive; ++i) {
      if (Block* below = pools_[i + 1]->find(key); below != nullptr && below->pins == 0) {
        pools_[i + 1]->remove(below);
      }
    }
  }
  /// As many leave, or a round.
  void free_blocks(std::size_t i, std::int64_t blocks) {
    if (blocks > 0 && blocks < rules_.pools[i].round) {
      blocks = std::max(blocks, std::min(rules_.pools[i].round, pools_[i]->evictable()));
    }
    while (blocks > 0 && pools_[i]->is_ranked()) {
      // All leave before the first one is written below.
      std::vector<Key> left;
      std::vector<std::int64_t> runs;
      for (; blocks > 0;) {
        for (Block* victim : pools_[i]->take_chosen(blocks, &runs)) {
          if (victim->keyed) {
            left.push_back(victim->key);
          }
          pools_[i]->evict(victim);
          --blocks;
        }
      }
      auto retained = std::ssize(retained_);
      for (const Key& key : left) {
        count_evicted(i, key);
      }
      // An entry's retained blocks leave from its end.
      for (std::size_t run = 0; i == 0 && retains_ && pools_[0]->groups() && run < runs.size();
           ++run) {
        const auto begin = retained_.begin() + retained;
        std::reverse(begin, begin + runs[run]);
        retained += runs[run];
      }
    }
    for (; blocks > 0; --blocks) {
      evict(i);
    }
  }

  void evict(std::size_t i) {
    Block* victim = pools_[i]->victim();
    const Key key = victim->key;
    const bool keyed = victim->keyed;
    pools_[i]->evict(victim);
    if (keyed) {
      count_evicted(i, key);
    }
  }
  void count_evicted(std::size_t i, const Key& key) {
    const bool is_demoted =
        i < rules_.edges.size() && rules_.edges[i].write == Write::on_evict &&
        priority_of(rules_.pools[i], key.second) >= rules_.edges[i].least_priority;
    if (is_demoted && i == 0 && retains_) {
      put(1, key);
      retained_.push_back(key);
      return;
    }
    note_demoted(i, key);
    ++counters_[i].evicted;
    if (i == 1 && offloads()) {
      evicted_behind_.push_back(stretch_of(key));
    }
    if (i == 0 && rules_.requests_in_first && pools_.size() > 1) {
      await_copies_of(key);
    }
    if (is_demoted && put(i + 1, key)) {
      ++counters_[i].demoted;
    }
  }
  void note_demoted(std::size_t i, const Key& key) {
    if (prefetches_to(rules_) == i) {
      demoted_.push_back(stretch_of(key));
    }
  }
  /// The memory of a block that left ahead of need is taken.
  void leave_retained(const Key& key) {
    await_copies_of(key);
    note_demoted(0, key);
    ++counters_[0].evicted;
    counters_[0].demoted += pools_[1]->find(key) != nullptr ? 1 : 0;
  }
  /// The memory of a block of the first pool is taken.
  void await_copies_of(const Key& key) {
    for (auto& [id, copy] : copies_) {
      if (copy.to == 1 && !copy.lost_source && is_source(key, copy.blocks)) {
        copy.lost_source = true;
        copy.left += std::ssize(copy.blocks);
      }
    }
  }
  [[nodiscard]] std::int64_t room_for_idle() {
    const std::int64_t free = free_blocks().empty;
    const std::optional<std::int64_t> idle = rules_.pools[0].idle;
    return idle ? std::min(free, *idle - pools_[0]->idle()) : free;
  }
  void leave_idle() {
    if (rules_.pools[0].idle) {
      const bool reserves = rules_.pools[0].reserved > 0;
      while (room_for_idle() < (reserves ? ahead_ : 0) && pools_[0]->evictable() > 0) {
        free_blocks(0, reserves ? 1 : -room_for_idle());
      }
      take_retained();
    }
  }
  void take_retained() {
    while (std::ssize(retained_) > std::max<std::int64_t>(0, room_for_idle())) {
      leave_retained(retained_.front());
      retained_.erase(retained_.begin());
    }
  }
  void leave_ahead() {
    const std::int64_t wanted = std::min(ahead_ - room_for_idle(), pools_[0]->evictable());
    const auto room = [&] { return rules_.pools[1].capacity - pools_[1]->used; };
    const BlockEntries::Stays stays = [&](const BlockRun& run) {
      return std::ranges::any_of(retained_, [&](const Key& key) {
        return key.first == run.stream && key.second >= run.begin && key.second < run.end;
      });
    };
    relieve(1, wanted - room(), Demand::background, &stays);
    relieve(0, std::min(wanted, room()), Demand::background);
  }
  [[nodiscard]] bool is_retained(const Key& key) const {
    return std::ranges::count(retained_, key) > 0;
  }

  /// So many leave, as far as they may.
  void relieve(std::size_t i, std::int64_t blocks, Demand demand = Demand::save,
               const BlockEntries::Stays* stays = nullptr) {
    blocks = std::min(blocks, pools_[i]->evictable());
    if (blocks > 0 && pools_[i]->choose(blocks, nullptr, demand, stays)) {
      free_blocks(i, blocks);
    }
  }
  /// Before keys are written there; what is there of their paths stays.
  void relieve_before_write(std::size_t i, const std::vector<Key>& paths,
                            const std::vector<Key>& written) {
    const PoolRules& rules = rules_.pools[i];
    if (!rules.relief || rules.relief->in_background) {
      return;
    }
    std::vector<Block*> here;
    std::int64_t missing = 0;
    for (const Key& key : paths) {
      if (Block* found = pools_[i]->find(key)) {
        pools_[i]->pin(found);
        here.push_back(found);
      }
    }
    for (const Key& key : written) {
      missing += pools_[i]->find(key) == nullptr ? 1 : 0;
    }
    if (missing > 0) {
      relieve(i, relief_before_write(rules, pools_[i]->used, missing));
    }
    for (Block* found : here) {
      pools_[i]->unpin(found);
    }
  }

  /// The block of the first pool whose first tokens a prompt reuses behind its whole blocks.
  Block* find_part(const Context& prompt, Tokens found, std::int64_t& tokens) const {
    const Context usable{prompt.stream, Tokens(usable_tokens(rules_, prompt.tokens))};
    tokens = 0;
    return !rules_.partial_reuse || usable.tokens <= found
               ? nullptr
               : pools_[0]->best_part(usable, found.value / block().value, tokens);
  }
  /// It becomes the request's, if it is free and nothing follows it.
  void take_over(Block* part) {
    if (part != nullptr && pools_[0]->is_free(*part) &&
        (part->tokens > 0 || std::none_of(pools_.begin(), pools_.end(), [&](const auto& pool) {
           return pool->is_followed(part->key);
         }))) {
      pools_[0]->remove(part);
    }
  }
  /// Room among the blocks of the first pool that no request holds, for those with these keys.
  bool make_idle_room(const std::vector<Key>& keys) {
    BlockPool& pool = *pools_[0];
    const std::int64_t reserved = rules_.pools[0].reserved;
    if (!rules_.pools[0].idle) {
      return true;
    }
    std::vector<std::pair<BlockPool*, Block*>> stays;
    std::vector<Key> missing;
    for (const Key& key : keys) {
      Block* here = pool.find(key);
      if (here != nullptr) {
        stays.emplace_back(&pool, here);
        continue;
      }
      missing.push_back(key);
      if (has_victims_behind(rules_) && pools_[1]->find(key) != nullptr) {
        stays.emplace_back(pools_[1].get(), pools_[1]->find(key));
      }
    }
    const std::int64_t lacking =
        pool.idle() + (reserved > 0 ? pool.places_for(missing) * reserved : std::ssize(missing)) -
        *rules_.pools[0].idle;
    if (missing.empty() || lacking <= 0) {
      return true;
    }
    for (const auto& [in, block] : stays) {
      in->pin(block);
    }
    const std::int64_t leave = reserved > 0 ? 1 : lacking;
    const bool fits = leave <= pool.evictable() && lacking <= std::max(leave, reserved) &&
                      pool.choose(leave, &missing.front(), Demand::prefetch);
    if (fits) {
      free_blocks(0, leave);
    }
    for (const auto& [in, block] : stays) {
      in->unpin(block);
    }
    return fits;
  }
  /// Hits in the second pool come into the first one.
  bool take_with_victims(Request& request, const std::vector<Key>& hits, const Context& prompt,
                         const Room& room) {
    std::vector<Block*> held;
    for (const Key& key : hits) {
      if (Block* here = pools_[0]->find(key)) {
        pools_[0]->hold(here);
        held.push_back(here);
      }
    }
    const std::int64_t had = std::ssize(held);
    const std::int64_t wanted = blocks_up(request.context.tokens, block()) - had;
    const std::int64_t all = blocks_up(room.needed, block()) - had;
    const std::int64_t available = free_blocks().available;
    if (std::max(all, wanted + room.reserved) + room.watermark > available) {
      for (Block* here : held) {
        pools_[0]->put_back(here);
      }
      return false;
    }
    for (Block* here : held) {
      pools_[0]->hit(here);
    }
    std::set<Key> retained;
    for (const Key& key : hits) {
      if (std::erase(retained_, key) > 0) {
        retained.insert(key);
      }
      if (Block* below = pools_[1]->find(key);
          below != nullptr && below->pins == 0 && pools_[0]->find(key) == nullptr) {
        pools_[1]->remove(below);
      }
      reads_written_ =
          reads_written_ || (pools_[0]->find(key) == nullptr && !retained.contains(key) &&
                             stalling_behind_.contains(key));
    }
    std::int64_t tokens = 0;
    take_over(find_part(prompt, block() * std::ssize(hits), tokens));
    static_cast<void>(make_room(wanted));
    request.found = hits.size();
    request.unpublished = wanted;
    request.prompt = prompt.tokens;
    for (const Key& key : hits) {
      Block* here = pools_[0]->find(key);
      if (here == nullptr) {
        --request.unpublished;
        --pools_[0]->used;
        here = pools_[0]->add({.key = key, .holders = 1});
        counters_[0].inserted += retained.contains(key) ? 0 : 1;
        counters_[0].promoted += retained.contains(key) ? 0 : 1;
      }
      request.blocks.push_back(here);
    }
    return true;
  }

  /// Takes memory for blocks without a key, if there is enough.
  bool make_room(std::int64_t wanted) {
    const std::int64_t free = rules_.pools[0].capacity - pools_[0]->used;
    if (wanted > free + pools_[0]->evictable()) {
      return false;
    }
    free_blocks(0, wanted - free);
    pools_[0]->used += wanted;
    take_retained();
    return true;
  }

  void publish(Request& request, Tokens tokens) {
    if (!rules_.requests_in_first || rules_.publication == Publication::never) {
      return;
    }
    const std::vector<Key> keys = keys_of(streams_, {request.context.stream, tokens}, block());
    for (std::size_t i = request.blocks.size(); i < keys.size(); ++i) {
      --request.unpublished;
      --pools_[0]->used;
      Block* here = pools_[0]->find(keys[i]);
      if (here != nullptr && rules_.duplicates == Duplicates::merged) {
        pools_[0]->hold(here);
        pools_[0]->hit(here);
      } else {
        if (std::erase(retained_, keys[i]) > 0) {
          leave_retained(keys[i]);
        }
        if (has_victims_behind(rules_)) {
          leave_below(0, keys[i]);
        }
        here = pools_[0]->add({.key = keys[i], .holders = 1});
        ++counters_[0].inserted;
      }
      request.blocks.push_back(here);
    }
  }

  void leave_keyless(const Request& request) {
    pools_[0]->used -= request.unpublished;
    const std::int64_t first = std::ssize(request.blocks);
    for (std::int64_t i = 0; i < request.unpublished && rules_.keyless == Keyless::in_order; ++i) {
      Block last{.key = {kNoStream, first + i}, .keyed = false};
      const std::int64_t rest = request.context.tokens.value % block().value;
      if (rules_.partial_reuse && i == 0 && rest > 0) {
        last.key.first =
            streams_.stream_at(request.context.stream, request.context.tokens - Tokens(1));
        last.tokens = pools_[0]->has_part(request.context) ? 0 : rest;
      }
      pools_[0]->add(last);
    }
  }

  StoreRules rules_;
  const Streams& streams_;
  Pools pools_;
  std::vector<PoolCounters> counters_;
  std::map<std::uint32_t, Request> requests_;
  std::uint32_t last_request_ = 0;
  /// Whether blocks leave the first pool ahead of need, below how many free blocks, and those that
  /// did and whose memory is not taken, oldest first.
  bool retains_ = leaves_ahead(rules_);
  std::int64_t ahead_ = blocks_ahead(rules_);
  std::vector<Key> retained_;
  /// Blocks of the second pool whose write stalls and has not begun.
  std::set<Key> stalling_behind_;
  bool reads_written_ = false;
  OfferCounts offer_counts_;
  std::uint32_t last_copy_ = 0;
  std::vector<Copy> begun_;
  std::map<std::uint32_t, CopyInFlight> copies_;
  /// By pool: the copy that has not begun, and how many blocks the next iteration waits for.
  std::vector<std::optional<std::uint32_t>> filling_;
  std::vector<std::int64_t> stalling_blocks_;
  /// The request whose blocks come into the second pool.
  std::uint32_t writer_ = 0;
  /// Prefetches in flight.
  std::map<std::uint32_t, Request> fetches_;
  std::vector<Stretch> demoted_;
  std::uint32_t last_fetch_ = 0;
  /// While blocks come up: the pool, and the request if they are on their way.
  std::size_t promotes_to_ = 0;
  Request* promotes_for_ = nullptr;
  /// Blocks that left an offload for the last ones that were written.
  std::vector<Stretch> evicted_behind_;
  /// By edge.
  std::vector<WriteFrequencies> frequencies_;
  /// Writes without room that are known of, by pool.
  std::vector<std::int64_t> lacked_;
};

// ---- Nodes ----

struct TreeNode {
  std::vector<Key> keys;
  TreeNode* parent = nullptr;
  std::map<Key, std::unique_ptr<TreeNode>> children;
  /// The pools that have it: the first, the second.
  bool on_device = true;
  bool on_host = false;
  /// Holders and writes, which keep it in the first pool.
  std::int64_t locks = 0;
  std::int64_t uses = 0;
  std::int64_t last_use = 0;
  /// When it came to be in both pools.
  std::int64_t in_both_since = 0;
  /// The numbers by which the policies of both pools know it.
  std::array<std::uint32_t, 2> entries{PolicyOrder::kNone, BlockEntries::kNone};

  [[nodiscard]] std::int64_t size() const { return std::ssize(keys); }
};

class ReferenceNodes final : public Store {
 public:
  ReferenceNodes(const StoreRules& rules, const Streams& streams, const PolicyRegistry& registry,
                 std::shared_ptr<BlockPool> storage)
      : rules_(rules),
        pool_(rules_.pools.front()),
        streams_(streams),
        storage_(std::move(storage)),
        counters_(rules_.pools.size()) {
    root_.locks = 1;
    root_.on_host = true;
    for (std::size_t i = 0; i < 2 && i < rules_.pools.size() && !has_own_order(rules_, 0); ++i) {
      policies_[i] = make_policy_order(rules_, i, streams, registry);
    }
  }

  void advance(SimTime now) override {
    for (const auto& policies : policies_) {
      if (policies != nullptr) {
        policies->advance(now);
      }
    }
    if (storage_ != nullptr) {
      storage_->advance(now);
    }
  }

  [[nodiscard]] Match match(const Context& prompt) const override {
    const std::vector<Key> keys = usable_keys(prompt);
    Match match{Tokens(0), std::vector<Tokens>(rules_.pools.size())};
    const TreeNode* node = &root_;
    std::size_t found = 0;
    while (found < keys.size()) {
      const auto child = node->children.find(keys[found]);
      if (child == node->children.end()) {
        break;
      }
      node = child->second.get();
      const std::size_t shared = shared_blocks(*node, keys, found);
      found += shared;
      match.by_pool[node->on_device ? 0 : 1] += pool_.block * static_cast<std::int64_t>(shared);
      if (shared < node->keys.size()) {
        break;
      }
    }
    if (storage_ != nullptr) {
      match.by_pool[2] = pool_.block * static_cast<std::int64_t>(stored(keys, found));
    }
    for (const Tokens& tokens : match.by_pool) {
      match.tokens += tokens;
    }
    return match;
  }

  std::optional<RequestId> acquire(const Context& prompt, const Room& asked, Match& found,
                                   RequestId) override {
    found = match(prompt);
    std::size_t length = 0;
    TreeNode* end = walk(usable_keys(prompt), length);
    const auto device = static_cast<std::size_t>(found.by_pool[0].value / pool_.block.value);
    Request request{.context = {prompt.stream, found.by_pool[0]},
                    .node = end,
                    .held = device,
                    .counted = 0,
                    .loading = {},
                    .hits = 0,
                    .noted = {}};
    while (!request.node->on_device) {
      request.node = request.node->parent;
    }
    lock(request.node, 1);
    const auto fits = [&](Tokens with) {
      const std::int64_t gate =
          std::max(blocks_up(asked.needed, pool_.block),
                   blocks_up(std::max(asked.taken, with), pool_.block) + asked.reserved) +
          asked.watermark - static_cast<std::int64_t>(request.held);
      return gate <= free_blocks().available;
    };
    const Tokens behind = pool_.block * static_cast<std::int64_t>(length - device);
    Tokens has = found.by_pool[0];
    if (behind.value > 0 && behind >= rules_.edges[0].least_load && fits(has + behind) &&
        load(request, end)) {
      has += behind;
    }
    for (std::size_t i = 1; i < found.by_pool.size(); ++i) {
      found.by_pool[i] = i == 1 ? has - found.by_pool[0] : Tokens(0);
    }
    found.tokens = has;
    const Tokens room = std::max(asked.taken, has);
    if (!fits(has) || !extend(request, {prompt.stream, room})) {
      end_load(request);
      lock(request.node, -1);
      return std::nullopt;
    }
    note_uses(request, has);
    request.hits = request.held;
    for (TreeNode* at = request.node; is_ranked() && at != &root_; at = at->parent) {
      policies_[0]->hit(at->entries[0]);
      if (at->on_host) {
        policies_[1]->hit(at->entries[1]);
        policies_[1]->release(at->entries[1]);
      }
    }
    requests_[++last_request_] = request;
    if (rules_.publication == Publication::scheduling) {
      publish(requests_[last_request_], room);
    }
    return RequestId{last_request_};
  }
  bool grow(RequestId id, const Context& context) override {
    Request& request = requests_.at(id.value);
    if (!extend(request, context)) {
      return false;
    }
    if (rules_.publication == Publication::scheduling) {
      publish(request, context.tokens);
    }
    return true;
  }
  void computed(RequestId id, Tokens tokens) override {
    if (rules_.publication == Publication::computed) {
      publish(requests_.at(id.value), tokens);
    }
  }
  void loaded(RequestId id) override { end_load(requests_.at(id.value)); }
  void release(RequestId id) override {
    end_load(requests_.at(id.value));
    publish(requests_.at(id.value), requests_.at(id.value).context.tokens);
    abandon(id);
  }
  void abandon(RequestId id) override {
    Request& request = requests_.at(id.value);
    end_load(request);
    used_ -=
        blocks_up(request.context.tokens, pool_.block) - static_cast<std::int64_t>(request.held);
    std::size_t end = request.held;
    for (TreeNode* at = request.node; is_ranked() && at != &root_; at = at->parent) {
      if (end <= request.hits) {
        policies_[0]->release(at->entries[0]);
      }
      end -= at->keys.size();
    }
    lock(request.node, -1);
    for (TreeNode* at = request.node; at != &root_ && is_device_leaf(*at) && !at->on_host &&
                                      at->children.empty() && !admits(*at, 0);) {
      const TreeNode* gone = std::exchange(at, at->parent);
      remove(*gone);
    }
    requests_.erase(id.value);
  }

  void make_empty(std::int64_t blocks) override { make_room(blocks * pool_.block.value); }
  Match refresh(const Context& context) override {
    std::size_t length = 0;
    const TreeNode* node = walk(keys_of(streams_, context, pool_.block), length);
    std::int64_t behind = 0;
    for (; !node->on_device; node = node->parent) {
      behind += node->size();
    }
    Match found{pool_.block * static_cast<std::int64_t>(length),
                std::vector<Tokens>(rules_.pools.size())};
    found.by_pool[0] = found.tokens - pool_.block * behind;
    if (behind > 0) {
      found.by_pool[1] = pool_.block * behind;
    }
    return found;
  }

  [[nodiscard]] std::vector<Copy> take_copies() override { return std::exchange(begun_, {}); }
  [[nodiscard]] std::vector<PolicyOrder*> looking_ahead() override {
    std::vector<PolicyOrder*> found;
    add_looking_ahead(policies_, found);
    add_looking_ahead(std::array{storage_.get()}, found);
    return found;
  }
  void copied(std::uint32_t id) override {
    const auto found = copies_.find(id);
    if (found == copies_.end()) {
      return;
    }
    const CopyInFlight copy = found->second;
    copies_.erase(found);
    if (copy.pool == 1) {
      lock(copy.node, -1);
      write_to_storage(copy.keys);
      return;
    }
    release_host(copy.keys.back());
    for (std::size_t i = 0; i < copy.keys.size(); ++i) {
      put_in_storage(copy.keys[from_storage_end(i, copy.keys.size())]);
    }
  }

  std::optional<Prefetch> prefetch(const Context& prompt) override {
    if (storage_ == nullptr) {
      return std::nullopt;
    }
    const std::vector<Key> keys = usable_keys(prompt);
    std::size_t length = 0;
    const TreeNode* node = walk(keys, length);
    const auto is_enough = [&](std::int64_t blocks) {
      return blocks > 0 && pool_.block * blocks >= rules_.edges[1].least_load;
    };
    std::int64_t looked_for = 0;
    for (const auto& [id, fetch] : fetches_) {
      looked_for += fetch.span;
    }
    Fetch fetch{.span = std::ssize(keys) - static_cast<std::int64_t>(length)};
    if (!node->on_host || !is_enough(fetch.span) ||
        static_cast<double>(looked_for) >=
            rules_.edges[1].most_in_flight * static_cast<double>(rules_.pools[1].capacity)) {
      return std::nullopt;
    }
    std::int64_t blocks = static_cast<std::int64_t>(stored(keys, length));
    if (!is_enough(blocks)) {
      return std::nullopt;
    }
    if (node != &root_) {
      fetch.behind = node->keys.back();
      ++host_held_[*fetch.behind];
    }
    if (blocks > host_free()) {
      evict_from_host(blocks);
      blocks = std::min(blocks, host_free());
    }
    if (!is_enough(blocks)) {
      if (fetch.behind) {
        release_host(*fetch.behind);
      }
      return std::nullopt;
    }
    fetch.before.assign(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(length));
    const auto first = keys.begin() + static_cast<std::ptrdiff_t>(length);
    fetch.keys.assign(first, first + blocks);
    fetch.wanted = fetch.keys.size();
    for (std::size_t i = 0; i < fetch.keys.size(); ++i) {
      storage_->use(storage_->find(fetch.keys[from_storage_end(i, fetch.keys.size())]));
    }
    fetches_[++last_fetch_] = fetch;
    return Prefetch{last_fetch_, pool_.block * blocks, pool_.block * fetch.span};
  }
  Tokens prefetched(std::uint32_t id, Tokens came) override {
    const Fetch fetch = fetches_.at(id);
    fetches_.erase(id);
    if (fetch.behind) {
      release_host(*fetch.behind);
    }
    const std::size_t blocks =
        std::min(fetch.wanted, static_cast<std::size_t>(came.value / pool_.block.value));
    if (blocks == 0) {
      return Tokens(0);
    }
    std::vector<Key> keys = fetch.before;
    keys.insert(keys.end(), fetch.keys.begin(),
                fetch.keys.begin() + static_cast<std::ptrdiff_t>(blocks));
    std::size_t length = 0;
    TreeNode* node = walk(keys, length);
    std::int64_t added = 0;
    for (TreeNode* at = node; at != &root_ && !writes_back() && !at->on_host; at = at->parent) {
      put_on_host(at);
      added += at->size();
    }
    if (length < keys.size()) {
      node = add(node, keys, length, false);
      added += node->size();
    }
    counters_[1].inserted += added;
    counters_[1].promoted += added;
    return pool_.block * added;
  }

  [[nodiscard]] FreeBlocks free_blocks() const override {
    std::int64_t evictable = 0;
    for (const TreeNode* node : all()) {
      evictable += node->on_device && node->locks == 0 ? node->size() : 0;
    }
    return {.available = pool_.capacity - used_ + evictable, .empty = pool_.capacity - used_};
  }

  void truncate(StreamId stream, Tokens tokens) override {
    const std::int64_t first = tokens.value / pool_.block.value;
    const auto is_cut = [&](const Key& key) { return key.first == stream && key.second >= first; };
    for (bool again = true; again;) {
      again = false;
      for (const TreeNode* node : all()) {
        if (node->locks == 0 && !is_host_held(*node) && node->children.empty() &&
            std::all_of(node->keys.begin(), node->keys.end(), is_cut)) {
          remove(*node);
          again = true;
          break;
        }
      }
    }
    if (storage_ != nullptr) {
      storage_->truncate(stream, first);
    }
    for (auto& [id, fetch] : fetches_) {
      const auto cut = std::find_if(fetch.keys.begin(), fetch.keys.end(), is_cut);
      fetch.wanted = std::min(fetch.wanted, static_cast<std::size_t>(cut - fetch.keys.begin()));
    }
  }
  [[nodiscard]] bool remembers(StreamId stream) const override {
    const auto has = [&](const std::vector<Key>& keys) {
      return std::any_of(keys.begin(), keys.end(),
                         [&](const Key& key) { return key.first == stream; });
    };
    const std::vector<const TreeNode*> nodes = all();
    return is_ranked() || (storage_ != nullptr && storage_->is_ranked()) ||
           std::any_of(nodes.begin(), nodes.end(),
                       [&](const TreeNode* node) { return has(node->keys); }) ||
           (storage_ != nullptr && storage_->remembers(stream)) ||
           std::any_of(copies_.begin(), copies_.end(),
                       [&](const auto& copy) { return has(copy.second.keys); }) ||
           std::any_of(fetches_.begin(), fetches_.end(),
                       [&](const auto& fetch) { return has(fetch.second.keys); });
  }

  [[nodiscard]] PoolCounters counters(std::size_t pool) const override { return counters_[pool]; }
  [[nodiscard]] std::int64_t resident_blocks(std::size_t pool) const override {
    if (pool == 2) {
      return storage_->resident;
    }
    std::int64_t sum = 0;
    for (const TreeNode* node : all()) {
      sum += is_in(*node, pool) ? node->size() : 0;
    }
    return sum;
  }
  [[nodiscard]] std::vector<Stretch> contents(std::size_t pool) const override {
    if (pool == 2) {
      return storage_->contents();
    }
    // Nodes leave one after the other; a node whose children have left is a leaf.
    std::vector<Stretch> contents;
    std::set<const TreeNode*> gone;
    const std::vector<const TreeNode*> nodes = all();
    for (bool found = true; found;) {
      found = false;
      const TreeNode* next = nullptr;
      for (const TreeNode* node : nodes) {
        const bool leaf =
            std::all_of(node->children.begin(), node->children.end(), [&](const auto& child) {
              return !is_in(*child.second, pool) || gone.contains(child.second.get());
            });
        const bool may_leave = pool == 0 ? node->on_device && node->locks == 0
                                         : !node->on_device && !is_host_held(*node);
        if (may_leave && leaf && !gone.contains(node) &&
            (next == nullptr || leaves_before(*node, *next))) {
          next = node;
        }
      }
      if (next != nullptr) {
        found = true;
        gone.insert(next);
        for (auto key = next->keys.rbegin(); key != next->keys.rend(); ++key) {
          contents.push_back(stretch_of(*key));
        }
      }
    }
    std::vector<Key> held;
    for (const TreeNode* node : nodes) {
      if (is_in(*node, pool) && !gone.contains(node)) {
        held.insert(held.end(), node->keys.begin(), node->keys.end());
      }
    }
    std::sort(held.begin(), held.end());
    for (const Key& key : held) {
      contents.push_back(stretch_of(key));
    }
    return contents;
  }
  void check_invariants() const override {
    KVTIER_ASSERT(resident_blocks(0) <= used_ && used_ <= pool_.capacity,
                  "a pool holds no more than its capacity");
    KVTIER_ASSERT(rules_.pools.size() < 2 || host_free() >= 0,
                  "a pool holds no more than its capacity");
  }

 private:
  struct Request {
    Context context;
    TreeNode* node = nullptr;
    /// Blocks of its context that are in the tree.
    std::size_t held = 0;
    /// Blocks whose nodes have counted it.
    std::size_t counted = 0;
    /// Blocks that it loads.
    std::vector<Key> loading;
    /// Blocks that it found.
    std::size_t hits = 0;
    /// Tokens whose blocks admission policies know of.
    Tokens noted;
  };
  struct CopyInFlight {
    std::size_t pool = 1;
    TreeNode* node = nullptr;
    std::vector<Key> keys;
  };
  struct Fetch {
    /// Blocks of the context before the fetched ones, of which the last one stays.
    std::vector<Key> before;
    std::optional<Key> behind;
    /// Room is set aside for all of these, and the first ones are still wanted.
    std::vector<Key> keys;
    std::size_t wanted = 0;
    std::int64_t span = 0;
  };

  [[nodiscard]] bool writes_back() const {
    return !rules_.edges.empty() && rules_.edges[0].write == Write::on_evict;
  }
  [[nodiscard]] static bool is_in(const TreeNode& node, std::size_t pool) {
    return pool == 0 ? node.on_device : node.on_host;
  }
  [[nodiscard]] bool is_host_held(const TreeNode& node) const {
    return host_held_.contains(node.keys.back());
  }
  void release_host(const Key& key) {
    if (--host_held_.at(key) == 0) {
      host_held_.erase(key);
    }
  }
  [[nodiscard]] std::vector<Key> usable_keys(const Context& prompt) const {
    return keys_of(streams_, {prompt.stream, Tokens(usable_tokens(rules_, prompt.tokens))},
                   pool_.block);
  }
  static std::size_t shared_blocks(const TreeNode& node, const std::vector<Key>& keys,
                                   std::size_t begin) {
    std::size_t shared = 0;
    while (shared < node.keys.size() && begin + shared < keys.size() &&
           node.keys[shared] == keys[begin + shared]) {
      ++shared;
    }
    return shared;
  }
  [[nodiscard]] bool leaves_before(const TreeNode& a, const TreeNode& b) const {
    if (pool_.eviction == "lfu" && !is_ranked() && a.uses != b.uses) {
      return a.uses < b.uses;
    }
    return a.last_use < b.last_use;
  }
  static void collect(const TreeNode& node, std::vector<const TreeNode*>& nodes) {
    for (const auto& [key, child] : node.children) {
      nodes.push_back(child.get());
      collect(*child, nodes);
    }
  }
  [[nodiscard]] std::vector<const TreeNode*> all() const {
    std::vector<const TreeNode*> nodes;
    collect(root_, nodes);
    return nodes;
  }
  [[nodiscard]] TreeNode* own(const TreeNode* node) {
    return node->parent->children.at(node->keys.front()).get();
  }

  /// Uses the nodes of the longest path of these blocks that there is; one that goes on behind it
  /// is split. Returns its end.
  TreeNode* walk(const std::vector<Key>& keys, std::size_t& length) {
    TreeNode* node = &root_;
    length = 0;
    while (length < keys.size()) {
      const auto child = node->children.find(keys[length]);
      if (child == node->children.end()) {
        break;
      }
      TreeNode* next = child->second.get();
      next->last_use = ++clock_;
      const std::size_t shared = shared_blocks(*next, keys, length);
      length += shared;
      if (shared < next->keys.size()) {
        next = split(next, shared);
        next->last_use = ++clock_;
      }
      node = next;
    }
    return node;
  }
  /// Returns a new parent of the node, with its first blocks.
  TreeNode* split(TreeNode* node, std::size_t blocks) {
    TreeNode* parent = node->parent;
    std::unique_ptr<TreeNode> lower = std::move(parent->children.at(node->keys.front()));
    auto upper = std::make_unique<TreeNode>();
    const auto cut = node->keys.begin() + static_cast<std::ptrdiff_t>(blocks);
    upper->keys.assign(node->keys.begin(), cut);
    node->keys.erase(node->keys.begin(), cut);
    upper->parent = parent;
    upper->on_device = node->on_device;
    upper->on_host = node->on_host;
    upper->locks = node->locks;
    upper->uses = node->uses;
    upper->in_both_since = ++clock_;
    node->parent = upper.get();
    TreeNode* made = upper.get();
    made->children[node->keys.front()] = std::move(lower);
    parent->children[made->keys.front()] = std::move(upper);
    made->entries = node->entries;
    for (std::size_t i = 0; i < 2; ++i) {
      if (node->entries[i] != PolicyOrder::kNone) {
        node->entries[i] =
            policies_[i]->split(node->entries[i], key_of(node->keys.front()), made->size());
      }
    }
    return made;
  }

  // Policies of the registry.

  [[nodiscard]] bool is_ranked() const { return policies_[0] != nullptr; }
  [[nodiscard]] bool admits(const TreeNode& node, std::size_t pool) const {
    return policies_[pool] == nullptr || policies_[pool]->admits(key_of(node.keys.front()));
  }
  void learn(TreeNode* node, std::size_t pool) {
    if (policies_[pool] != nullptr) {
      const Key& first = node->keys.front();
      node->entries[pool] = policies_[pool]->insert(key_of(first), first.second, node->size());
    }
  }
  void forget(TreeNode* node, std::size_t pool) {
    if (node->entries[pool] != PolicyOrder::kNone) {
      policies_[pool]->remove(std::exchange(node->entries[pool], PolicyOrder::kNone));
    }
  }
  void note_uses(Request& request, Tokens tokens) {
    const std::vector<Key> keys = keys_of(streams_, {request.context.stream, tokens}, pool_.block);
    for (auto i = static_cast<std::size_t>(request.noted.value / pool_.block.value);
         i < keys.size(); ++i) {
      for (const auto& policies : policies_) {
        if (policies != nullptr) {
          policies->note_use(key_of(keys[i]));
        }
      }
      if (storage_ != nullptr) {
        storage_->note_use(keys[i]);
      }
    }
    request.noted = std::max(request.noted, tokens);
  }
  /// The node that leaves a pool next by its policy, of those that may and do not stay.
  const TreeNode* ranked_victim(std::size_t pool, const std::set<const TreeNode*>& stay,
                                const EntryKey* newcomer = nullptr) {
    const std::vector<const TreeNode*> nodes = all();
    for (const TreeNode* node : nodes) {
      if (node->entries[pool] != PolicyOrder::kNone) {
        policies_[pool]->offer(
            node->entries[pool],
            pool == 0 ? is_device_leaf(*node) && !stay.contains(node)
                      : !node->on_device && node->children.empty() && !is_host_held(*node));
      }
    }
    if (!policies_[pool]->choose(1, demand_of(rules_, pool), newcomer) && pool == 0) {
      policies_[pool]->choose_oldest(1);
    }
    const std::vector<PolicyOrder::Chosen> chosen = policies_[pool]->take_chosen();
    const auto found = std::find_if(nodes.begin(), nodes.end(), [&](const TreeNode* node) {
      return !chosen.empty() && node->entries[pool] == chosen.front().entry;
    });
    return found == nodes.end() ? nullptr : *found;
  }
  /// The path's blocks from `begin` on as a new node, in the first pool or the second.
  TreeNode* add(TreeNode* parent, const std::vector<Key>& path, std::size_t begin,
                bool on_device = true) {
    auto made = std::make_unique<TreeNode>();
    made->keys.assign(path.begin() + static_cast<std::ptrdiff_t>(begin), path.end());
    made->parent = parent;
    made->last_use = ++clock_;
    made->on_device = on_device;
    made->on_host = !on_device;
    TreeNode* leaf = made.get();
    parent->children[path[begin]] = std::move(made);
    learn(leaf, on_device ? 0 : 1);
    return leaf;
  }

  static void lock(TreeNode* node, int change) {
    for (; node != nullptr; node = node->parent) {
      node->locks += change;
    }
  }

  void publish(Request& request, Tokens tokens) {
    note_uses(request, tokens);
    const std::vector<Key> keys = keys_of(streams_, {request.context.stream, tokens}, pool_.block);
    std::size_t length = 0;
    TreeNode* node = walk(keys, length);
    std::set<TreeNode*> restored;
    std::size_t device = length;
    for (TreeNode* at = node; !at->on_device; at = at->parent) {
      put_on_device(at);
      restored.insert(at);
      device -= at->keys.size();
    }
    used_ -= static_cast<std::int64_t>(device > request.held ? device - request.held : 0);
    if (length < keys.size()) {
      node = add(node, keys, length);
      counters_[0].inserted += node->size();
    }
    lock(node, 1);
    lock(request.node, -1);
    request.node = node;
    request.held = std::max(request.held, keys.size());
    std::vector<TreeNode*> counting;
    std::size_t end = keys.size();
    for (TreeNode* at = node; at != &root_ && end > request.counted; at = at->parent) {
      counting.insert(counting.begin(), at);
      end -= at->keys.size();
    }
    request.counted = std::max(request.counted, keys.size());
    for (TreeNode* at : counting) {
      if (writes_back() || (restored.contains(at) && !rules_.edges[0].counts_recomputed)) {
        continue;
      }
      ++at->uses;
      const bool often =
          !rules_.edges.empty() &&
          at->uses >= (rules_.edges[0].write == Write::after_uses ? rules_.edges[0].uses : 1);
      if (often && !at->on_host) {
        write(at);
      }
    }
  }

  bool extend(Request& request, const Context& context) {
    const std::int64_t blocks =
        blocks_up(context.tokens, pool_.block) - blocks_up(request.context.tokens, pool_.block);
    const std::int64_t more = context.tokens.value - request.context.tokens.value;
    if (more > 0) {
      const bool paged = rules_.one_block_more && pool_.block.value > 1;
      if (blocks > free_blocks().available) {
        return false;
      }
      make_room(more + (paged ? pool_.block.value : 0));
      if (blocks > pool_.capacity - used_) {
        return false;
      }
      used_ += blocks;
    }
    request.context = context;
    return true;
  }
  void make_room(std::int64_t demand) {
    const std::int64_t free = (pool_.capacity - used_) * pool_.block.value;
    std::int64_t tokens = demand <= free ? 0 : rules_.whole_need ? demand : demand - free;
    std::set<const TreeNode*> stay;
    while (tokens > 0) {
      const TreeNode* next = is_ranked() ? ranked_victim(0, stay) : nullptr;
      for (const TreeNode* node : all()) {
        if (!is_ranked() && is_device_leaf(*node) && !stay.contains(node) &&
            (next == nullptr || leaves_before(*node, *next))) {
          next = node;
        }
      }
      if (next == nullptr) {
        return;
      }
      const std::int64_t size = next->size();
      if (leave_device(own(next))) {
        tokens -= size * pool_.block.value;
        counters_[0].evicted += size;
      } else {
        stay.insert(next);
        if (is_ranked()) {
          forget(own(next), 0);
          learn(own(next), 0);
        }
      }
    }
  }
  [[nodiscard]] static bool is_device_leaf(const TreeNode& node) {
    return node.on_device && node.locks == 0 &&
           std::none_of(node.children.begin(), node.children.end(),
                        [](const auto& child) { return child.second->on_device; });
  }
  void remove(const TreeNode& node) {
    used_ -= node.on_device ? node.size() : 0;
    std::vector<const TreeNode*> gone{&node};
    collect(node, gone);
    for (const TreeNode* one : gone) {
      forget(own(one), 0);
      forget(own(one), 1);
    }
    const Key first = node.keys.front();
    node.parent->children.erase(first);
  }

  // The second pool.

  [[nodiscard]] std::int64_t host_free() const {
    std::int64_t free = rules_.pools[1].capacity - resident_blocks(1);
    for (const auto& [id, fetch] : fetches_) {
      free -= std::ssize(fetch.keys);
    }
    return free;
  }
  void put_on_device(TreeNode* node) {
    node->on_device = true;
    node->in_both_since = ++clock_;
    counters_[0].inserted += node->size();
    learn(node, 0);
  }
  void put_on_host(TreeNode* node) {
    node->on_host = true;
    learn(node, 1);
  }
  /// False without room for this node or one before it.
  bool write(TreeNode* node) {
    if (!node->parent->on_host && !write(node->parent)) {
      return false;
    }
    if (!take_host_room(*node)) {
      return false;
    }
    put_on_host(node);
    lock(node, 1);
    copies_[++last_copy_] = {.pool = 1, .node = node, .keys = node->keys};
    begun_.push_back({.id = last_copy_, .blocks = node->size()});
    return true;
  }
  bool take_host_room(const TreeNode& node) {
    if (!admits(node, 1)) {
      counters_[1].skipped += node.size();
      return false;
    }
    if (node.size() > host_free() && rules_.edges[0].no_room == NoRoom::evict) {
      const EntryKey newcomer = key_of(node.keys.front());
      evict_from_host(rules_.whole_need ? node.size() : node.size() - host_free(), &newcomer);
    }
    const bool fits = node.size() <= host_free();
    (fits ? counters_[1].inserted : counters_[1].skipped) += node.size();
    return fits;
  }
  void evict_from_host(std::int64_t blocks, const EntryKey* newcomer = nullptr) {
    // With write-back, copies of what the first pool has, too, leave before all; those of leaves,
    // which may leave the first pool soon, last.
    for (int round = 0; round < 2 && writes_back(); ++round) {
      std::vector<const TreeNode*> nodes = all();
      std::sort(nodes.begin(), nodes.end(),
                [](const auto* a, const auto* b) { return a->in_both_since < b->in_both_since; });
      for (const TreeNode* node : nodes) {
        if (blocks > 0 && node->on_device && node->on_host &&
            !loading_.contains(node->keys.back()) && !is_host_held(*node) &&
            !(round == 0 && is_device_leaf(*node))) {
          own(node)->on_host = false;
          forget(own(node), 1);
          counters_[1].evicted += node->size();
          blocks -= node->size();
        }
      }
    }
    while (blocks > 0) {
      const TreeNode* next = is_ranked() ? ranked_victim(1, {}, newcomer) : nullptr;
      for (const TreeNode* node : all()) {
        if (!is_ranked() && !node->on_device && node->children.empty() && !is_host_held(*node) &&
            (next == nullptr || leaves_before(*node, *next))) {
          next = node;
        }
      }
      if (next == nullptr) {
        return;
      }
      blocks -= next->size();
      counters_[1].evicted += next->size();
      remove(*next);
    }
  }
  /// False if it has to stay, since what is behind it is needed.
  bool leave_device(TreeNode* node) {
    if (writes_back() && !node->on_host && take_host_room(*node)) {
      put_on_host(node);
      counters_[0].demoted += node->size();
      begun_.push_back({.id = ++last_copy_, .blocks = node->size(), .waits = true});
      write_to_storage(node->keys);
    }
    if (node->on_host) {
      node->on_device = false;
      forget(node, 0);
      used_ -= node->size();
      return true;
    }
    std::vector<const TreeNode*> behind;
    collect(*node, behind);
    if (is_host_held(*node) || std::any_of(behind.begin(), behind.end(), [&](const auto* other) {
          return is_host_held(*other);
        })) {
      return false;
    }
    for (const TreeNode* other : behind) {
      counters_[1].evicted += other->size();
    }
    remove(*node);
    return true;
  }
  /// The nodes from the request's to `end` come into the first pool, or none of them.
  bool load(Request& request, TreeNode* end) {
    std::int64_t blocks = 0;
    for (TreeNode* node = end; node != request.node; node = node->parent) {
      blocks += node->size();
    }
    const Key last = end->keys.back();
    ++host_held_[last];
    make_room(blocks * pool_.block.value);
    release_host(last);
    if (blocks > pool_.capacity - used_) {
      return false;
    }
    used_ += blocks;
    counters_[0].promoted += blocks;
    for (TreeNode* node = end; node != request.node; node = node->parent) {
      put_on_device(node);
      request.loading.insert(request.loading.end(), node->keys.begin(), node->keys.end());
      loading_.insert(node->keys.begin(), node->keys.end());
    }
    lock(end, 1);
    lock(request.node, -1);
    request.node = end;
    request.held += static_cast<std::size_t>(blocks);
    request.context.tokens += pool_.block * blocks;
    return true;
  }
  void end_load(Request& request) {
    for (const Key& key : request.loading) {
      loading_.erase(loading_.find(key));
    }
    request.loading.clear();
  }

  // Storage.

  /// Blocks from this one on, up to the first that is missing.
  [[nodiscard]] std::size_t stored(const std::vector<Key>& keys, std::size_t begin) const {
    std::size_t end = begin;
    while (end < keys.size() && storage_->find(keys[end]) != nullptr) {
      ++end;
    }
    return end - begin;
  }
  [[nodiscard]] std::size_t from_storage_end(std::size_t i, std::size_t count) const {
    return rules_.pools[2].insertion == End::head ? i : count - 1 - i;
  }
  void write_to_storage(const std::vector<Key>& keys) {
    if (storage_ != nullptr) {
      ++host_held_[keys.back()];
      copies_[++last_copy_] = {.pool = 2, .node = nullptr, .keys = keys};
      begun_.push_back({.id = last_copy_, .blocks = std::ssize(keys), .pool = 2});
    }
  }
  void put_in_storage(const Key& key) {
    if (Block* here = storage_->find(key)) {
      storage_->use(here);
      return;
    }
    if (storage_->is_full()) {
      if (rules_.edges[1].no_room == NoRoom::skip || storage_->victim() == nullptr) {
        ++counters_[2].skipped;
        return;
      }
    }
    if (!storage_->admits(key) || (storage_->is_full() && !storage_->choose(1, &key))) {
      ++counters_[2].skipped;
      return;
    }
    if (storage_->is_full()) {
      std::int64_t blocks =
          std::max<std::int64_t>(1, std::min(rules_.pools[2].round, storage_->evictable()));
      while (blocks > 0) {
        for (Block* victim : storage_->is_ranked() ? storage_->take_chosen(blocks)
                                                   : std::vector<Block*>{storage_->victim()}) {
          storage_->evict(victim);
          ++counters_[2].evicted;
          --blocks;
        }
      }
    }
    storage_->add({.key = key});
    ++counters_[2].inserted;
  }

  StoreRules rules_;
  const PoolRules& pool_;
  const Streams& streams_;
  /// Null if there is no third pool.
  std::shared_ptr<BlockPool> storage_;
  /// Null where the pools have an order of their own.
  std::array<std::unique_ptr<PolicyOrder>, 2> policies_;
  TreeNode root_;
  std::map<std::uint32_t, Request> requests_;
  std::uint32_t last_request_ = 0;
  std::int64_t clock_ = 0;
  /// Blocks of the first pool, those of requests included.
  std::int64_t used_ = 0;
  /// Blocks that requests load.
  std::multiset<Key> loading_;
  /// Last blocks of nodes that stay in the second pool.
  std::map<Key, int> host_held_;
  std::map<std::uint32_t, CopyInFlight> copies_;
  std::vector<Copy> begun_;
  std::uint32_t last_copy_ = 0;
  std::map<std::uint32_t, Fetch> fetches_;
  std::uint32_t last_fetch_ = 0;
  std::vector<PoolCounters> counters_;
};

}  // namespace

std::vector<std::unique_ptr<Store>> make_reference_blocks(const StoreRules& rules,
                                                          const Streams& streams,
                                                          const PolicyRegistry& registry,
                                                          std::size_t instances) {
  std::vector<std::unique_ptr<Store>> stores;
  ReferenceBlocks::Pools pools(rules.pools.size());
  for (std::size_t instance = 0; instance < instances; ++instance) {
    for (std::size_t i = 0; i < rules.pools.size(); ++i) {
      if (instance == 0 || !rules.pools[i].shared) {
        pools[i] = std::make_shared<BlockPool>(rules, i, streams, registry);
      }
    }
    stores.push_back(std::make_unique<ReferenceBlocks>(rules, streams, pools));
  }
  return stores;
}

std::vector<std::unique_ptr<Store>> make_reference_nodes(const StoreRules& rules,
                                                         const Streams& streams,
                                                         const PolicyRegistry& registry,
                                                         std::size_t instances) {
  std::vector<std::unique_ptr<Store>> stores;
  std::shared_ptr<BlockPool> storage;
  for (std::size_t i = 0; i < instances; ++i) {
    if (rules.pools.size() > 2 && (storage == nullptr || !rules.pools[2].shared)) {
      storage = std::make_shared<BlockPool>(rules, 2, streams, registry);
    }
    stores.push_back(std::make_unique<ReferenceNodes>(rules, streams, registry, storage));
  }
  return stores;
}

}  // namespace kvtier
