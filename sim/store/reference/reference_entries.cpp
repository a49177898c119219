#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "sim/core/assert.hpp"
#include "sim/policy/victims.hpp"
#include "sim/store/reference/reference_store.hpp"

namespace kvtier {
namespace {

/// A block's key: the stream of its last token, and its place there.
using Key = std::pair<StreamId, std::int64_t>;
using Blocks = std::vector<Key>;

/// An entry is a set of blocks.
struct PlainEntry {
  EntryKey key;
  StreamId stream;
  std::set<std::int64_t> blocks;
  std::int64_t holders = 0;
  std::int64_t puts = 0;
  SimTime inserted;
  SimTime used;

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(blocks.size()); }
};

class PlainPool final : public VictimSet {
 public:
  PlainPool(const PoolRules& rules, Bytes bytes_per_token, const PolicyRegistry& registry)
      : rules_(rules), bytes_per_token_(bytes_per_token), policies_(rules, registry) {}

  std::int64_t taken = 0;

  [[nodiscard]] bool has_parts() const { return rules_.unit == EvictionUnit::tail; }
  [[nodiscard]] const PoolRules& rules() const { return rules_; }
  [[nodiscard]] std::int64_t stored() const { return static_cast<std::int64_t>(owner_.size()); }
  [[nodiscard]] std::int64_t free() const { return rules_.capacity - taken - stored(); }
  [[nodiscard]] bool has(const Key& key) const { return owner_.contains(key); }
  [[nodiscard]] std::uint32_t owner(const Key& key) const { return owner_.at(key); }
  [[nodiscard]] PlainEntry& entry(std::uint32_t id) { return entries_.at(id); }
  [[nodiscard]] const std::map<Key, std::uint32_t>& owners() const { return owner_; }
  [[nodiscard]] EvictionPolicy& policy() { return *policies_.eviction; }
  [[nodiscard]] AdmissionPolicy* admission() { return policies_.admission.get(); }

  void advance(SimTime now) {
    now_ = now;
    std::vector<std::pair<SimTime, std::uint32_t>> expired;
    for (const auto& [id, entry] : entries_) {
      if (rules_.ttl && entry.used < now - *rules_.ttl && entry.holders == 0) {
        expired.emplace_back(entry.used, id);
      }
    }
    std::sort(expired.begin(), expired.end());
    for (const auto& [used, id] : expired) {
      cut(id, {});
    }
    offer_all();
  }
  void protect(const Blocks& path) {
    path_ = std::set<Key>(path.begin(), path.end());
    offer_all();
  }

  [[nodiscard]] EntryView view(std::uint32_t id) const {
    const PlainEntry& known = entries_.at(id);
    return {.id = EntryId{id},
            .key = known.key,
            .place = id,
            .tokens = rules_.block * known.size(),
            .depth = rules_.block * *known.blocks.begin(),
            .bytes = bytes(known.size()),
            .first_inserted = known.inserted,
            .session_began = known.inserted,
            .last_used = known.used};
  }

  void touch(std::uint32_t id) { entries_.at(id).used = now_; }
  void use(std::uint32_t id) {
    touch(id);
    policy().on_hit(EntryId{id}, now_);
    policy().on_release(view(id), now_);
    offer_all();
  }
  std::uint32_t come_in(StreamId stream, const std::set<std::int64_t>& blocks,
                        std::int64_t holders) {
    const std::uint32_t id = number();
    entries_[id] = {key_of(stream, *blocks.begin()), stream, blocks, holders, 1, now_, now_};
    for (const std::int64_t block : blocks) {
      owner_[{stream, block}] = id;
    }
    offer_all();
    policy().on_insert(view(id), now_);
    return id;
  }
  void extend(std::uint32_t id, const std::set<std::int64_t>& blocks) {
    PlainEntry& known = entries_.at(id);
    known.blocks.insert(blocks.begin(), blocks.end());
    for (const std::int64_t block : blocks) {
      owner_[{known.stream, block}] = id;
    }
    offer_all();
    policy().on_resize(view(id), now_);
  }
  /// The entry has these blocks left.
  void cut(std::uint32_t id, const std::set<std::int64_t>& left) {
    PlainEntry& known = entries_.at(id);
    for (const std::int64_t block : known.blocks) {
      if (!left.contains(block)) {
        owner_.erase({known.stream, block});
      }
    }
    known.blocks = left;
    if (left.empty()) {
      entries_.erase(id);
    }
    offer_all();
    left.empty() ? policy().on_remove(EntryId{id}, now_) : policy().on_resize(view(id), now_);
  }
  /// The blocks from this one on are an entry of their own.
  std::uint32_t split(std::uint32_t id, std::int64_t at) {
    const std::uint32_t tail = number();
    PlainEntry part = entries_.at(id);
    part.blocks.erase(part.blocks.begin(), part.blocks.lower_bound(at));
    part.key = key_of(part.stream, at);
    PlainEntry& head = entries_.at(id);
    head.blocks.erase(head.blocks.lower_bound(at), head.blocks.end());
    for (const std::int64_t block : part.blocks) {
      owner_[{part.stream, block}] = tail;
    }
    entries_[tail] = part;
    offer_all();
    policy().on_split(view(id), view(tail), now_);
    return tail;
  }
  /// The part between two blocks, where entries have parts.
  std::uint32_t isolate(std::uint32_t id, std::int64_t begin, std::int64_t end) {
    if (has_parts() && *entries_.at(id).blocks.begin() < begin) {
      id = split(id, begin);
    }
    if (has_parts() && *entries_.at(id).blocks.rbegin() >= end) {
      split(id, end);
    }
    return id;
  }
  /// The part on the protected path, or among these blocks.
  std::uint32_t part(std::uint32_t id, std::int64_t begin, std::int64_t end) {
    std::set<std::int64_t> on_path;
    for (const std::int64_t block : entries_.at(id).blocks) {
      if (path_.contains({entries_.at(id).stream, block})) {
        on_path.insert(block);
      }
    }
    return on_path.empty() ? isolate(id, begin, end)
                           : isolate(id, *on_path.begin(), *on_path.rbegin() + 1);
  }

  void let_go(std::uint32_t id) {
    --entries_.at(id).holders;
    touch(id);
    offer_all();
    policy().on_release(view(id), now_);
  }
  std::uint32_t hold(std::uint32_t id, std::int64_t begin, std::int64_t end) {
    id = isolate(id, begin, end);
    ++entries_.at(id).holders;
    touch(id);
    offer_all();
    policy().on_hit(EntryId{id}, now_);
    return id;
  }

  /// The entry of which blocks that come in become a part; none: UINT32_MAX.
  [[nodiscard]] std::uint32_t neighbour(StreamId stream, std::int64_t begin,
                                        std::int64_t end) const {
    if (has({stream, begin - 1})) {
      return owner({stream, begin - 1});
    }
    return has_parts() && has({stream, end}) ? owner({stream, end}) : UINT32_MAX;
  }

  [[nodiscard]] std::int64_t evictable() const {
    std::int64_t blocks = 0;
    for (const auto& [id, known] : entries_) {
      blocks += offers(EntryId{id}) ? known.size() : 0;
    }
    return blocks;
  }

  /// Asks the policy. The blocks of each victim that leave, in order; false: no set.
  bool choose_set(std::int64_t blocks, Demand demand, const Key* newcomer, std::uint32_t spared_one,
                  std::vector<Blocks>& left) {
    std::int64_t wanted = blocks - free();
    if (wanted <= 0) {
      return true;
    }
    newcomer_ = newcomer;
    spared_ = spared_one;
    offer_all();
    const std::int64_t evictable_blocks = evictable();
    bool chosen = wanted <= evictable_blocks;
    if (chosen) {
      wanted = std::max(wanted, std::min(rules_.round, evictable_blocks));
      chosen = choose(policy(), {.now = now_, .demand = demand}, bytes(wanted));
    }
    spared_ = UINT32_MAX;
    if (chosen) {
      const std::vector<Victim> set = victims();
      for (const Victim& victim : set) {
        const PlainEntry known = entries_.at(victim.entry.value);
        std::set<std::int64_t> kept;
        Blocks gone;
        for (const std::int64_t block : known.blocks) {
          const auto count = static_cast<std::int64_t>(kept.size());
          if (count * rules_.block.value < victim.keep.value) {
            kept.insert(block);
          } else {
            gone.emplace_back(known.stream, block);
          }
        }
        cut(victim.entry.value, kept);
        left.push_back(gone);
      }
    }
    offer_all();
    return chosen;
  }

  void check() const {
    std::size_t blocks = 0;
    for (const auto& [id, known] : entries_) {
      blocks += known.blocks.size();
    }
    KVTIER_ASSERT(blocks == owner_.size() && free() >= 0, "an entry is its blocks");
  }

 private:
  [[nodiscard]] Bytes bytes(std::int64_t blocks) const {
    return bytes_per_token_ * (rules_.block.value * blocks);
  }
  [[nodiscard]] std::uint32_t number() const {
    std::uint32_t id = 0;
    while (entries_.contains(id)) {
      ++id;
    }
    return id;
  }
  [[nodiscard]] bool may_go(std::uint32_t id) const {
    const PlainEntry& known = entries_.at(id);
    const bool leased = rules_.lease.ns > 0 && known.used + rules_.lease > now_;
    return known.holders == 0 && !leased &&
           std::none_of(known.blocks.begin(), known.blocks.end(), [&](std::int64_t block) {
             return path_.contains({known.stream, block});
           });
  }
  void offer_all() {
    for (const std::uint32_t id : told_) {
      offer(EntryId{id}, Bytes(0));
    }
    told_.clear();
    for (const auto& [id, known] : entries_) {
      if (id != spared_ && may_go(id)) {
        offer(EntryId{id}, bytes(known.size()));
        told_.insert(id);
      }
    }
  }

  [[nodiscard]] bool may_leave(EntryId victim, Tokens) override {
    return policies_.admission == nullptr || newcomer_ == nullptr ||
           policies_.admission->replaces(key_of(newcomer_->first, newcomer_->second),
                                         view(victim.value).key);
  }
  [[nodiscard]] Tokens rounded(EntryId, Tokens keep) const override {
    Tokens kept;
    while (kept < keep) {
      kept += rules_.block;
    }
    return kept;
  }
  [[nodiscard]] Tokens spared(EntryId victim) const override {
    Tokens kept = rules_.block * entries_.at(victim.value).size();
    Bytes missing = missing_;
    while (kept.value > 0 && missing.value > 0) {
      kept -= rules_.block;
      missing -= bytes(1);
    }
    return has_parts() && !policies_.keeps_parts ? kept : Tokens(0);
  }
  [[nodiscard]] Bytes bytes_of(EntryId, Tokens tokens) const override {
    return bytes_per_token_ * tokens.value;
  }

  PoolRules rules_;
  Bytes bytes_per_token_;
  EntryPolicies policies_;
  SimTime now_;
  std::map<Key, std::uint32_t> owner_;
  std::map<std::uint32_t, PlainEntry> entries_;
  std::set<Key> path_;
  std::set<std::uint32_t> told_;
  std::uint32_t spared_ = UINT32_MAX;
  const Key* newcomer_ = nullptr;
};

using PlainPools = std::vector<std::shared_ptr<PlainPool>>;

class ReferenceEntries final : public Store {
 public:
  ReferenceEntries(const StoreRules& rules, const Streams& streams, PlainPools pools)
      : rules_(rules),
        streams_(streams),
        pools_(std::move(pools)),
        counters_(pools_.size()),
        written_(pools_.size()) {}

  void advance(SimTime now) override {
    for (const auto& pool : pools_) {
      pool->advance(now);
    }
  }

  [[nodiscard]] Match match(const Context& prompt) const override {
    Match match{Tokens(0), std::vector<Tokens>(pools_.size())};
    for (const Key& key : usable(prompt)) {
      const std::size_t pool = where(key);
      if (pool == pools_.size()) {
        break;
      }
      match.by_pool[pool] += block();
      match.tokens += block();
    }
    return match;
  }

  std::optional<RequestId> acquire(const Context& prompt, const Room& asked, Match& found,
                                   RequestId) override {
    found = match(prompt);
    const Tokens room = std::max(asked.taken, found.tokens);
    Request request{.context = {prompt.stream, room}};
    const Blocks hits = keys({prompt.stream, found.tokens});
    for (const Key& key : hits) {
      request.places.push_back(where(key));
    }
    protect(hits);
    if (in_first()) {
      const std::int64_t wanted = up(room) - found.by_pool[0].value / block().value;
      const std::int64_t gate = std::max(up(asked.needed), up(room) + asked.reserved) +
                                asked.watermark - found.by_pool[0].value / block().value;
      if (gate > free_blocks().available || !take(wanted)) {
        protect({});
        return std::nullopt;
      }
      request.unpublished = wanted;
      for (std::size_t i = 0; i < hits.size();) {
        std::size_t end = i + 1;
        if (request.places[i] == 0) {
          while (end < hits.size() && request.places[end] == 0 && follow(0, hits[i], hits[end])) {
            ++end;
          }
          const Blocks run(hits.begin() + static_cast<std::ptrdiff_t>(i),
                           hits.begin() + static_cast<std::ptrdiff_t>(end));
          request.found.insert(request.found.end(), run.begin(), run.end());
          hold(request, run);
        }
        i = end;
      }
    }
    for (std::size_t i = in_first() ? 1 : 0; i < pools_.size(); ++i) {
      if (rules_.pools[i].touch == Touch::lookup) {
        for (const Blocks& run : backwards(entries_of(i, hits))) {
          use(i, run);
        }
      }
    }
    protect({});
    requests_[++last_] = request;
    publish_at(Publication::scheduling, RequestId{last_}, room);
    return RequestId{last_};
  }

  bool grow(RequestId id, const Context& context) override {
    Request& request = requests_.at(id.value);
    if (in_first()) {
      const std::int64_t wanted = up(context.tokens) - up(request.context.tokens);
      if (!take(wanted)) {
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
    Request& request = requests_.at(id.value);
    const Blocks path = keys(request.context);
    protect(path);
    for (const Blocks& stretch : by_stream(path)) {
      for (const auto& pool : pools_) {
        if (pool->admission() != nullptr) {
          pool->admission()->on_use(key_of(stretch.front().first, stretch.front().second));
        }
      }
    }
    const bool from_tail = rules_.pools[0].insertion == End::tail;
    if (in_first()) {
      publish(request, request.context.tokens);
      pools_[0]->taken -= request.unpublished;
      std::vector<Blocks> held = request.held;
      std::vector<Blocks> found = runs_of(request.found);
      if (from_tail) {
        std::reverse(held.begin(), held.end());
        std::reverse(found.begin(), found.end());
      }
      for (const Blocks& blocks : held) {
        std::vector<Blocks> parts = entries_of(0, blocks);
        if (from_tail) {
          parts = backwards(parts);
        }
        if (!pools_[0]->has_parts()) {
          parts.resize(1);
        }
        for (const Blocks& part : parts) {
          pools_[0]->let_go(pools_[0]->owner(part.front()));
        }
      }
      for (const Blocks& blocks : found) {
        std::vector<Blocks> parts = entries_of(0, blocks);
        if (from_tail) {
          parts = backwards(parts);
        }
        for (const Blocks& part : parts) {
          count_and_write(0, part, from_tail);
        }
      }
    } else {
      std::vector<Blocks> stretches = by_stream(path);
      if (from_tail) {
        stretches = backwards(stretches);
      }
      std::size_t before = 0;
      for (const Blocks& stretch : stretches) {
        before = static_cast<std::size_t>(std::find(path.begin(), path.end(), stretch.front()) -
                                          path.begin());
        std::vector<std::pair<Blocks, std::size_t>> parts;
        for (std::size_t i = 0; i < stretch.size(); ++i) {
          const std::size_t pool =
              before + i < request.places.size() ? target(request.places[before + i]) : 0;
          if (parts.empty() || parts.back().second != pool) {
            parts.push_back({{}, pool});
          }
          parts.back().first.push_back(stretch[i]);
        }
        if (from_tail) {
          std::reverse(parts.begin(), parts.end());
        }
        for (const auto& [part, pool] : parts) {
          put(pool, part, from_tail);
        }
      }
    }
    protect({});
    requests_.erase(id.value);
  }

  [[nodiscard]] FreeBlocks free_blocks() const override {
    return {.available = pools_[0]->free() + pools_[0]->evictable(), .empty = pools_[0]->free()};
  }

  void truncate(StreamId stream, Tokens tokens) override {
    const std::int64_t first = tokens.value / block().value;
    for (const auto& pool : pools_) {
      std::vector<std::pair<std::int64_t, std::uint32_t>> ids;
      for (const auto& [key, id] : pool->owners()) {
        if (key.first == stream && (ids.empty() || ids.back().second != id)) {
          ids.emplace_back(key.second, id);
        }
      }
      for (const auto& [begin, id] : ids) {
        const PlainEntry& known = pool->entry(id);
        if (known.holders == 0 && *known.blocks.rbegin() >= first) {
          pool->cut(id, {known.blocks.begin(), known.blocks.lower_bound(first)});
        }
      }
    }
  }
  [[nodiscard]] std::vector<Copy> take_copies() override {
    std::vector<Copy> copies;
    for (std::size_t i = 1; i < pools_.size(); ++i) {
      if (written_[i] > 0) {
        copies.push_back({last_copy_++, written_[i], i, rules_.edges[i - 1].stalls});
        written_[i] = 0;
      }
    }
    return copies;
  }
  [[nodiscard]] bool remembers(StreamId) const override { return true; }

  [[nodiscard]] PoolCounters counters(std::size_t pool) const override { return counters_[pool]; }
  [[nodiscard]] std::int64_t resident_blocks(std::size_t pool) const override {
    return pools_[pool]->stored();
  }
  [[nodiscard]] std::vector<Stretch> contents(std::size_t pool) const override {
    std::vector<Stretch> contents;
    for (const auto& [key, id] : pools_[pool]->owners()) {
      contents.push_back({key.first, key.second, key.second + 1});
    }
    return contents;
  }
  void check_invariants() const override {
    for (const auto& pool : pools_) {
      pool->check();
    }
  }

 private:
  struct Request {
    Context context;
    std::vector<std::size_t> places;
    std::int64_t unpublished = 0;
    std::size_t published = 0;
    Blocks found;
    /// Runs of blocks whose entries it holds.
    std::vector<Blocks> held;
  };

  [[nodiscard]] Tokens block() const { return rules_.pools[0].block; }
  [[nodiscard]] bool in_first() const { return rules_.requests_in_first; }
  [[nodiscard]] std::int64_t up(Tokens tokens) const {
    return (tokens.value + block().value - 1) / block().value;
  }
  [[nodiscard]] Blocks keys(const Context& context) const {
    std::vector<Stretch> path;
    streams_.path(context.stream, context.tokens.value / block().value, block().value, path);
    Blocks blocks;
    for (const Stretch& stretch : path) {
      for (std::int64_t i = stretch.begin; i < stretch.end; ++i) {
        blocks.emplace_back(stretch.stream, i);
      }
    }
    return blocks;
  }
  [[nodiscard]] Blocks usable(const Context& prompt) const {
    const std::int64_t cap = rules_.hit_cap == HitCap::last_token ? 1 : 0;
    return keys({prompt.stream, Tokens(std::max<std::int64_t>(0, prompt.tokens.value - cap))});
  }
  [[nodiscard]] std::size_t where(const Key& key) const {
    std::size_t pool = 0;
    while (pool < pools_.size() && !pools_[pool]->has(key)) {
      ++pool;
    }
    return pool;
  }
  [[nodiscard]] std::size_t target(std::size_t pool) const {
    while (pool > 0 && rules_.edges[pool - 1].promotes) {
      --pool;
    }
    return pool;
  }
  void protect(const Blocks& path) {
    for (const auto& pool : pools_) {
      pool->protect(path);
    }
  }

  /// Cut where the stream changes.
  [[nodiscard]] static std::vector<Blocks> by_stream(const Blocks& blocks) {
    std::vector<Blocks> runs;
    for (const Key& key : blocks) {
      if (runs.empty() || runs.back().back().first != key.first) {
        runs.emplace_back();
      }
      runs.back().push_back(key);
    }
    return runs;
  }
  /// Cut where blocks are no neighbours.
  [[nodiscard]] std::vector<Blocks> runs_of(const Blocks& blocks) const {
    std::vector<Blocks> runs;
    for (const Key& key : blocks) {
      if (runs.empty() || runs.back().back().first != key.first ||
          runs.back().back().second + 1 != key.second) {
        runs.emplace_back();
      }
      runs.back().push_back(key);
    }
    return runs;
  }
  /// Whether two blocks are in one entry.
  [[nodiscard]] bool follow(std::size_t pool, const Key& a, const Key& b) const {
    return pools_[pool]->owner(a) == pools_[pool]->owner(b);
  }
  /// Those that a pool has, cut where the entry changes, or blocks are missing.
  [[nodiscard]] std::vector<Blocks> entries_of(std::size_t pool, const Blocks& blocks) const {
    std::vector<Blocks> runs;
    const Key* last = nullptr;
    for (const Key& key : blocks) {
      if (pools_[pool]->has(key)) {
        if (last == nullptr || !follow(pool, *last, key)) {
          runs.emplace_back();
        }
        runs.back().push_back(key);
        last = &key;
      } else {
        last = nullptr;
      }
    }
    return runs;
  }
  [[nodiscard]] static std::vector<Blocks> backwards(std::vector<Blocks> runs) {
    std::reverse(runs.begin(), runs.end());
    return runs;
  }

  void use(std::size_t pool, const Blocks& run) {
    const std::uint32_t id = pools_[pool]->owner(run.front());
    pools_[pool]->use(pools_[pool]->part(id, run.front().second, run.back().second + 1));
  }

  /// Blocks of one stream. Each run that is alike is looked up when it is reached.
  void put(std::size_t i, Blocks blocks, bool from_tail) {
    PlainPool& pool = *pools_[i];
    from_tail = from_tail && pool.has_parts();
    while (!blocks.empty()) {
      const Key start = from_tail ? blocks.back() : blocks.front();
      Blocks run;
      const auto alike = [&](const Key& key) {
        return pool.has(key) == pool.has(start) &&
               (!pool.has(key) || pool.owner(key) == pool.owner(start));
      };
      while (!blocks.empty() && alike(from_tail ? blocks.back() : blocks.front())) {
        if (from_tail) {
          run.insert(run.begin(), blocks.back());
          blocks.pop_back();
        } else {
          run.push_back(blocks.front());
          blocks.erase(blocks.begin());
        }
      }
      if (!pool.has(start)) {
        come_in(i, run, from_tail);
        continue;
      }
      const std::uint32_t id =
          pool.part(pool.owner(start), run.front().second, run.back().second + 1);
      if (rules_.pools[i].touch == Touch::end) {
        pool.use(id);
      }
      count_and_write(i, run, from_tail);
    }
  }
  /// A use of blocks in one entry.
  void count_and_write(std::size_t i, const Blocks& run, bool from_tail) {
    const std::int64_t puts = ++pools_[i]->entry(pools_[i]->owner(run.front())).puts;
    if (i < rules_.edges.size() &&
        (rules_.edges[i].write == Write::on_create ||
         (rules_.edges[i].write == Write::after_uses && puts >= rules_.edges[i].uses))) {
      put(i + 1, run, from_tail);
    }
  }

  void come_in(std::size_t i, Blocks run, bool from_tail) {
    PlainPool& pool = *pools_[i];
    const StreamId stream = run.front().first;
    const auto wanted = static_cast<std::int64_t>(run.size());
    for (std::size_t edge = i;
         !pool.has_parts() && edge < rules_.edges.size() && rules_.edges[edge].exclusive; ++edge) {
      const PlainPool& below = *pools_[edge + 1];
      if (below.has(run.back())) {
        const std::uint32_t id = below.owner(run.back());
        while (below.has({stream, run.back().second + 1}) &&
               below.owner({stream, run.back().second + 1}) == id) {
          run.emplace_back(stream, run.back().second + 1);
        }
      }
    }
    const auto size = static_cast<std::int64_t>(run.size());
    const std::int64_t begin = run.front().second;
    const std::uint32_t neighbour = pool.neighbour(stream, begin, begin + size);
    const bool is_first = begin == streams_.first_of(stream) / block().value;
    const bool fits = pool.has_parts() || is_first || neighbour != UINT32_MAX;
    const bool admitted = pool.admission() == nullptr || neighbour != UINT32_MAX ||
                          pool.admission()->admits(key_of(stream, begin));
    const bool evicts = i == 0 || rules_.edges[i - 1].no_room == NoRoom::evict;
    std::vector<Blocks> left;
    const bool room = fits && admitted &&
                      (evicts ? choose(i, size, i == 0 ? Demand::save : Demand::demotion,
                                       &run.front(), neighbour, left)
                              : size <= pool.free());
    if (!room) {
      counters_[i].skipped += wanted;
      return;
    }
    leave_below(i, run);
    demote(i, left);
    std::set<std::int64_t> blocks;
    for (const Key& key : run) {
      blocks.insert(key.second);
    }
    if (neighbour != UINT32_MAX) {
      pool.touch(neighbour);
      pool.extend(neighbour, blocks);
    } else {
      pool.come_in(stream, blocks, 0);
    }
    counters_[i].inserted += size;
    written_[i] += size;
    write_new(i, run, from_tail);
  }
  void write_new(std::size_t i, const Blocks& run, bool from_tail) {
    if (i < rules_.edges.size() &&
        (rules_.edges[i].write == Write::on_create ||
         (rules_.edges[i].write == Write::after_uses && rules_.edges[i].uses <= 1))) {
      put(i + 1, run, from_tail);
    }
  }
  void leave_below(std::size_t i, const Blocks& run) {
    for (; i < rules_.edges.size() && rules_.edges[i].exclusive; ++i) {
      PlainPool& below = *pools_[i + 1];
      for (const Blocks& part : entries_of(i + 1, run)) {
        const std::uint32_t id = below.owner(part.front());
        const std::set<std::int64_t> blocks = below.entry(id).blocks;
        if (below.entry(id).holders > 0) {
          continue;
        }
        if (!below.has_parts()) {
          if (*blocks.rbegin() == part.back().second) {
            below.cut(id, {});
          }
          continue;
        }
        const std::int64_t begin = part.front().second;
        const std::int64_t end = part.back().second + 1;
        if (*blocks.begin() < begin && *blocks.rbegin() >= end) {
          below.split(id, end);
        }
        std::set<std::int64_t> rest = below.entry(id).blocks;
        for (const Key& key : part) {
          rest.erase(key.second);
        }
        below.cut(id, rest);
      }
    }
  }
  /// The set leaves at once; where it goes is the caller's, after what comes in has left the pools
  /// below.
  bool choose(std::size_t i, std::int64_t blocks, Demand demand, const Key* newcomer,
              std::uint32_t neighbour, std::vector<Blocks>& left) {
    return pools_[i]->choose_set(blocks, demand, newcomer, neighbour, left);
  }
  void demote(std::size_t i, const std::vector<Blocks>& left) {
    for (const Blocks& run : left) {
      const auto size = static_cast<std::int64_t>(run.size());
      counters_[i].evicted += size;
      if (i < rules_.edges.size() && rules_.edges[i].write == Write::on_evict) {
        const std::int64_t skipped = counters_[i + 1].skipped;
        put(i + 1, run, true);
        counters_[i].demoted += size - (counters_[i + 1].skipped - skipped);
      }
    }
  }

  bool take(std::int64_t blocks) {
    std::vector<Blocks> left;
    if (!choose(0, blocks, Demand::save, nullptr, UINT32_MAX, left)) {
      return false;
    }
    demote(0, left);
    pools_[0]->taken += blocks;
    return true;
  }
  void hold(Request& request, const Blocks& run) {
    const bool has_it =
        !pools_[0]->has_parts() &&
        std::any_of(request.held.begin(), request.held.end(),
                    [&](const Blocks& held) { return held.front().first == run.front().first; });
    if (!has_it) {
      pools_[0]->hold(pools_[0]->owner(run.front()), run.front().second, run.back().second + 1);
      request.held.push_back(run);
    }
  }
  void publish_at(Publication moment, RequestId id, Tokens tokens) {
    if (rules_.publication == moment && in_first()) {
      Request& request = requests_.at(id.value);
      protect(keys({request.context.stream, tokens}));
      publish(request, tokens);
      protect({});
    }
  }
  void publish(Request& request, Tokens tokens) {
    PlainPool& pool = *pools_[0];
    const Blocks path = keys({request.context.stream, tokens});
    Blocks open;
    for (std::size_t i = request.published; i < path.size(); ++i) {
      if (std::find(request.found.begin(), request.found.end(), path[i]) == request.found.end()) {
        open.push_back(path[i]);
      }
    }
    for (Blocks blocks : runs_of(open)) {
      while (!blocks.empty()) {
        const Key start = blocks.front();
        Blocks run;
        while (!blocks.empty() && pool.has(blocks.front()) == pool.has(start) &&
               (!pool.has(start) || pool.owner(blocks.front()) == pool.owner(start))) {
          run.push_back(blocks.front());
          blocks.erase(blocks.begin());
        }
        const auto size = static_cast<std::int64_t>(run.size());
        request.unpublished -= size;
        pool.taken -= size;
        if (pool.has(start)) {
          hold(request, run);
          continue;
        }
        const bool grows = may_grow(request, run);
        leave_below(0, run);
        std::set<std::int64_t> numbers;
        for (const Key& key : run) {
          numbers.insert(key.second);
        }
        if (grows) {
          pool.extend(pool.owner({start.first, start.second - 1}), numbers);
        } else {
          pool.come_in(start.first, numbers, 1);
          request.held.push_back(run);
        }
        counters_[0].inserted += size;
        write_new(0, run, false);
      }
    }
    request.published = std::max(request.published, path.size());
  }
  bool may_grow(Request& request, const Blocks& run) {
    PlainPool& pool = *pools_[0];
    const Key before{run.front().first, run.front().second - 1};
    if (!pool.has(before)) {
      return false;
    }
    if (!pool.has_parts()) {
      hold(request, {before});
      return true;
    }
    for (Blocks& held : request.held) {
      if (held.back() == before && pool.entry(pool.owner(before)).holders == 1) {
        held.insert(held.end(), run.begin(), run.end());
        return true;
      }
    }
    return false;
  }

  StoreRules rules_;
  const Streams& streams_;
  PlainPools pools_;
  std::vector<PoolCounters> counters_;
  /// Blocks that came into each pool since its last copy.
  std::vector<std::int64_t> written_;
  std::uint32_t last_copy_ = 0;
  std::map<std::uint32_t, Request> requests_;
  std::uint32_t last_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Store>> make_reference_entries(const StoreRules& rules,
                                                           const Streams& streams,
                                                           const PolicyRegistry& registry,
                                                           std::size_t instances) {
  std::vector<std::unique_ptr<Store>> stores;
  PlainPools pools(rules.pools.size());
  for (std::size_t instance = 0; instance < instances; ++instance) {
    for (std::size_t i = 0; i < rules.pools.size(); ++i) {
      if (instance == 0 || !rules.pools[i].shared) {
        pools[i] = std::make_shared<PlainPool>(rules.pools[i], rules.bytes_per_token, registry);
      }
    }
    stores.push_back(std::make_unique<ReferenceEntries>(rules, streams, pools));
  }
  return stores;
}

}  // namespace kvtier
