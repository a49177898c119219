#include "tests/sim/store/random_stores.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <set>

#include <fmt/format.h>

#include "policies/registry.hpp"
#include "sim/store/block_run.hpp"
#include "sim/store/check_rules.hpp"
#include "sim/store/entries/policy_order.hpp"

namespace kvtier {
namespace {

template <class T, std::size_t N>
T one_of(RandomStream& random, const std::array<T, N>& values) {
  return values[static_cast<std::size_t>(random.index(static_cast<std::int64_t>(N)))];
}

bool coin(RandomStream& random) { return random.index(2) == 0; }

/// Takes one out of a list.
template <class T>
T take_any(std::vector<T>& list, RandomStream& random) {
  const auto at = random.index(std::ssize(list));
  const T taken = list[static_cast<std::size_t>(at)];
  list.erase(list.begin() + at);
  return taken;
}

/// Victims behind the first pool, priorities, leaves, relief and filters.
void make_rules_of_blocks(StoreRules& rules, RandomStream& random) {
  const std::size_t pools = rules.pools.size();
  const bool entries = has_entries(rules.pools[0].unit);
  if (rules.requests_in_first && pools > 1 && random.index(3) == 0) {
    rules.pools.resize(2);
    rules.edges.resize(1);
    rules.pools[1].block = rules.pools[0].block;
    rules.pools[1].shared = false;
    rules.pools[1].eviction = rules.pools[1].eviction == "arc" ? "lru" : rules.pools[1].eviction;
    rules.edges[0].write = Write::on_evict;
    rules.edges[0].exclusive = true;
    rules.edges[0].promotes = true;
    rules.loads_alone = false;
    rules.edges[0].least_priority = random.index(3) == 0 ? 20 + 20 * random.index(2) : 0;
    rules.duplicates = Duplicates::merged;
  }
  if (rules.requests_in_first && (rules.pools.size() == 1 || has_victims_behind(rules)) &&
      !entries && coin(random)) {
    rules.partial_reuse = true;
    rules.keyless = Keyless::in_order;
    rules.duplicates = Duplicates::merged;
  }
  if (has_victims_behind(rules) && !rules.partial_reuse && coin(random)) {
    rules.edges[0].ahead = 0.1 * static_cast<double>(1 + random.index(9));
    rules.keyless = Keyless::first;
    rules.pools[0].ttl.reset();
  }
  if (rules.requests_in_first && random.index(3) == 0) {
    rules.pools[0].idle = random.index(rules.pools[0].capacity);
  }
  rules.hit_cap_behind = rules.requests_in_first && rules.pools.size() > 1 &&
                                 !has_victims_behind(rules) && random.index(3) == 0
                             ? HitCap::last_token
                             : HitCap::none;
  for (std::size_t i = 0; i < rules.pools.size(); ++i) {
    PoolRules& pool = rules.pools[i];
    pool.lease_newcomers = pool.lease.ns == 0 || random.index(3) > 0;
    pool.leaves_only = pool.eviction != "arc" && !entries && random.index(3) == 0;
    if (pool.eviction == "lru" && !entries && !(i == 1 && is_offload(rules)) &&
        random.index(3) == 0) {
      const Tokens border(1 + random.index(12));
      pool.retention.push_back({.from = Tokens(random.index(border.value)),
                                .to = border,
                                .priority = 10 + 30 * random.index(3)});
      if (coin(random)) {
        pool.retention.push_back({.from = border + Tokens(random.index(6)),
                                  .to = std::nullopt,
                                  .priority = 30 * random.index(3)});
      }
    }
    if (random.index(5) == 0) {
      pool.relief = Relief{.from = 0.1 * static_cast<double>(4 + random.index(7)),
                           .share = 0.1 * static_cast<double>(random.index(4)),
                           .in_background = i == 0 || coin(random)};
    }
    if (rules.requests_in_first && i > 1 && random.index(4) == 0) {
      rules.edges[i - 1].write = Write::on_create;
      rules.edges[i - 1].exclusive = false;
      rules.edges[i - 1].frequency =
          FrequencyFilter{.least = 1 + random.index(4),
                          .forget_every = SimDuration(5 + random.index(60)),
                          .entries = 5 + random.index(100)};
    }
  }
  for (std::size_t i = 0; i < rules.pools.size(); ++i) {
    const bool counts =
        i > 0 ? !(i == 1 && is_offload(rules)) : !rules.requests_in_first || rules.pools[0].idle;
    if (rules.pools[i].unit == EvictionUnit::sequence && counts && random.index(3) == 0) {
      rules.pools[i].reserved = 1 + random.index(rules.pools[i].capacity);
    }
  }
  const std::size_t written = rules.requests_in_first ? 1 : 0;
  if (written < rules.pools.size() && !is_offload(rules) && !has_victims_behind(rules) &&
      rules.pools[written].reserved == 0 && coin(random)) {
    rules.pools[written].allocation = Allocation::write;
  }
}

/// Policies of the registry choose in some pools, and in all where entries have several blocks.
void choose_policies(StoreRules& rules, RandomStream& random) {
  const std::array<std::string, 14> policies{"lru",          "fifo",
                                             "lfu",          "mru",
                                             "slru",         "arc",
                                             "s3fifo",       "sieve",
                                             "gdsf",         "tokens_times_idle",
                                             "window_score", "seconds_saved",
                                             "session_fifo", "scheduler_aware"};
  const std::array<std::string, 2> filters{"second_hit", "frequency_sketch"};
  for (PoolRules& pool : rules.pools) {
    pool.facts = {.recompute = [](Tokens tokens) { return SimDuration(7 * tokens.value + 3); },
                  .load = [](Tokens tokens) { return SimDuration(tokens.value); }};
    if (!pool.retention.empty()) {
      continue;
    }
    const bool entries = has_entries(pool.unit);
    do {
      if (entries || coin(random)) {
        pool.eviction = one_of(random, policies);
      }
    } while (pool.unit == EvictionUnit::sequence && pool.eviction == "tokens_times_idle");
    if (random.index(4) == 0) {
      pool.admission = one_of(random, filters);
    }
  }
}

/// Nodes, with or without pools behind the first one.
void make_nodes(StoreRules& rules, RandomStream& random) {
  rules.pools.resize(std::min<std::size_t>(rules.pools.size(), 3));
  rules.edges.resize(rules.pools.size() - 1);
  const std::string eviction = coin(random) ? "lru" : "lfu";
  rules.whole_need = coin(random);
  rules.one_block_more = coin(random);
  for (std::size_t i = 0; i < rules.pools.size(); ++i) {
    PoolRules& pool = rules.pools[i];
    pool.block = rules.pools.front().block;
    if (i == 2) {
      pool.capacity = 10 + random.index(80);
      pool.eviction = one_of(random, std::array<std::string, 3>{"lru", "fifo", "lfu"});
      continue;
    }
    pool.unit = EvictionUnit::node;
    pool.eviction = eviction;
    pool.ttl.reset();
    pool.lease = SimDuration(0);
    pool.shared = false;
  }
  for (EdgeRules& edge : rules.edges) {
    edge.exclusive = false;
    edge.promotes = true;
    edge.least_load = Tokens(random.index(3) == 0 ? random.index(8) : 0);
    edge.counts_recomputed = coin(random);
  }
  if (!rules.edges.empty()) {
    rules.pools[1].capacity = 1 + random.index(60);
    rules.edges[0].write =
        one_of(random, std::array{Write::on_create, Write::after_uses, Write::on_evict});
  }
  if (rules.edges.size() > 1) {
    rules.edges[1].write = Write::on_create;
    rules.edges[1].most_in_flight = coin(random) ? 1 : 0.25;
  }
}

StoreRules draw_rules(RandomStream& random) {
  StoreRules rules;
  const std::array<std::string, 3> orders{"lru", "fifo", "lfu"};
  rules.hit_cap = coin(random) ? HitCap::none : HitCap::last_token;
  rules.publication =
      one_of(random, std::array{Publication::scheduling, Publication::computed, Publication::end});
  rules.duplicates = coin(random) ? Duplicates::kept : Duplicates::merged;
  rules.keyless = coin(random) ? Keyless::first : Keyless::in_order;
  rules.requests_in_first = coin(random);
  rules.bytes_per_token = Bytes(1 + random.index(3));
  const std::int64_t pools = 1 + random.index(5);
  const Tokens block(1 + random.index(4));
  for (std::int64_t i = 0; i < pools; ++i) {
    const bool runs_here = i == 0 && rules.requests_in_first;
    PoolRules pool{.name = fmt::format("pool{}", i),
                   .capacity = 1 + random.index(i == 0 ? 30 : 60) + (runs_here ? 20 : 0),
                   .block = block,
                   .eviction = one_of(random, orders),
                   .insertion = coin(random) ? End::tail : End::head,
                   .touch = runs_here || coin(random) ? Touch::end : Touch::lookup};
    if (random.index(4) == 0) {
      pool.ttl = SimDuration(1 + random.index(40));
    }
    if (!runs_here && random.index(6) == 0) {
      pool.lease = SimDuration(1 + random.index(10));
    }
    if (random.index(4) == 0) {
      pool.round = 1 + random.index(6);
    }
    pool.shared = i > 0 && i + 1 == pools && coin(random);
    rules.pools.push_back(pool);
    if (i > 0) {
      rules.edges.push_back(
          {.write =
               one_of(random, std::array{Write::on_create, Write::after_uses, Write::on_evict}),
           .uses = 1 + random.index(3),
           .exclusive = coin(random),
           .no_room = coin(random) ? NoRoom::evict : NoRoom::skip,
           .promotes = random.index(3) > 0,
           .responses =
               one_of(random, std::array{Responses::never, Responses::computed, Responses::end})});
    }
  }
  if (rules.requests_in_first && pools > 1) {
    // An offload, or a cache of its own.
    rules.pools[1].capacity = 1 + random.index(40);
    rules.pools[1].touch = random.index(4) > 0 ? Touch::end : Touch::lookup;
    rules.edges[0].write = rules.pools[1].touch == Touch::lookup || coin(random)
                               ? Write::on_create
                               : Write::after_uses;
    rules.edges[0].exclusive = false;
    rules.loads_alone = coin(random);
    if (rules.pools[1].touch == Touch::end && random.index(3) == 0) {
      rules.pools[1].eviction = "arc";
    }
    const Tokens behind = block * (1 + random.index(3));
    for (std::size_t i = 1; i < rules.pools.size(); ++i) {
      rules.pools[i].block = behind;
    }
  }
  const bool entries = random.index(3) == 0;
  if (entries) {
    rules.duplicates = Duplicates::merged;
    rules.keyless = Keyless::first;
    for (PoolRules& pool : rules.pools) {
      pool.unit = coin(random) ? EvictionUnit::tail : EvictionUnit::sequence;
    }
  }
  if (!entries && rules.requests_in_first && random.index(3) == 0) {
    make_nodes(rules, random);
    if (coin(random)) {
      choose_policies(rules, random);
    }
  } else {
    if (random.index(3) > 0) {
      make_rules_of_blocks(rules, random);
    }
    if (rules.requests_in_first && rules.keyless == Keyless::first && !has_victims_behind(rules) &&
        random.index(3) == 0) {
      rules.publication = Publication::never;
    }
    for (EdgeRules& edge : rules.edges) {
      edge.timed = rules.requests_in_first && random.index(3) > 0;
      edge.stalls = random.index(4) == 0;
    }
    if (entries || coin(random)) {
      choose_policies(rules, random);
    }
  }
  return rules;
}

StoreRules draw_nodes(RandomStream& random) {
  StoreRules rules;
  rules.hit_cap = coin(random) ? HitCap::none : HitCap::last_token;
  rules.publication =
      one_of(random, std::array{Publication::scheduling, Publication::computed, Publication::end});
  rules.requests_in_first = true;
  const std::int64_t pools = 2 + random.index(2);
  const Tokens block(1 + random.index(4));
  for (std::int64_t i = 0; i < pools; ++i) {
    rules.pools.push_back({.name = fmt::format("pool{}", i),
                           .capacity = 20 + random.index(20),
                           .block = block,
                           .round = i == 2 ? 1 + random.index(3) : 1,
                           .shared = i == 2 && coin(random),
                           .insertion = coin(random) ? End::tail : End::head});
    if (i > 0) {
      rules.edges.push_back({.uses = 1 + random.index(3),
                             .no_room = random.index(4) > 0 ? NoRoom::evict : NoRoom::skip});
    }
  }
  make_nodes(rules, random);
  if (coin(random)) {
    choose_policies(rules, random);
  }
  return rules;
}

/// Draws until a config may say them.
template <class Draw>
StoreRules valid_rules(RandomStream& random, Draw draw) {
  while (true) {
    StoreRules rules = draw(random);
    Problems problems;
    check_rules(rules, builtin_policies(), problems);
    if (problems.empty()) {
      return rules;
    }
  }
}

}  // namespace

StoreRules random_rules(RandomStream& random) { return valid_rules(random, draw_rules); }
StoreRules random_nodes(RandomStream& random) { return valid_rules(random, draw_nodes); }

std::string describe(const StoreRules& rules) {
  std::string text = fmt::format(
      "requests_in_first {} loads_alone {} partial {} cap behind {} hit_cap {} publication {} "
      "duplicates {} keyless {} whole {} more {}",
      rules.requests_in_first, rules.loads_alone, rules.partial_reuse,
      static_cast<int>(rules.hit_cap_behind), static_cast<int>(rules.hit_cap),
      static_cast<int>(rules.publication), static_cast<int>(rules.duplicates),
      static_cast<int>(rules.keyless), rules.whole_need, rules.one_block_more);
  for (const PoolRules& pool : rules.pools) {
    text += fmt::format(
        "\n  pool of {} x {}: unit {} {} {} insertion {} touch {} ttl {} lease {} "
        "round {} shared {}",
        pool.capacity, pool.block.value, static_cast<int>(pool.unit), pool.eviction, pool.admission,
        static_cast<int>(pool.insertion), static_cast<int>(pool.touch),
        pool.ttl ? pool.ttl->ns : -1, pool.lease.ns, pool.round, pool.shared);
    text += fmt::format(" reserved {}", pool.reserved);
    text += pool.idle ? fmt::format(" idle {}", *pool.idle) : "";
    text += fmt::format(" leases newcomers {} leaves {} allocation {}", pool.lease_newcomers,
                        pool.leaves_only, static_cast<int>(pool.allocation));
    for (const Retention& range : pool.retention) {
      text += fmt::format(" {} to {}: {}", range.from.value, range.to ? range.to->value : -1,
                          range.priority);
    }
    if (pool.relief) {
      text += fmt::format(" relief {} {} {}", pool.relief->from, pool.relief->share,
                          pool.relief->in_background);
    }
  }
  for (const EdgeRules& edge : rules.edges) {
    text += fmt::format(
        "\n  edge: write {} uses {} exclusive {} no_room {} promotes {} responses {} least load {} "
        "in flight {}",
        static_cast<int>(edge.write), edge.uses, edge.exclusive, static_cast<int>(edge.no_room),
        edge.promotes, static_cast<int>(edge.responses), edge.least_load.value,
        edge.most_in_flight);
    text += fmt::format(" least priority {} timed {} stalls {} ahead {}", edge.least_priority,
                        edge.timed, edge.stalls, edge.ahead);
    if (edge.frequency) {
      text += fmt::format(" frequency {} {} {}", edge.frequency->least,
                          edge.frequency->forget_every.ns, edge.frequency->entries);
    }
  }
  return text;
}

std::optional<Context> RandomContexts::edit() {
  if (lengths_.empty()) {
    return std::nullopt;
  }
  const StreamId stream{
      static_cast<std::uint32_t>(random_.index(static_cast<std::int64_t>(lengths_.size())))};
  return Context{stream, Tokens(random_.index(lengths_[stream.value] + 1))};
}

std::optional<Stretch> RandomContexts::cut() {
  const auto stream = edit();
  if (!stream || streams_.children(stream->stream) > 0) {
    return std::nullopt;
  }
  const std::int64_t kept = std::max(stream->tokens.value, streams_.first_of(stream->stream));
  const std::int64_t rest = lengths_[stream->stream.value] - kept;
  if (rest <= 0) {
    return std::nullopt;
  }
  return Stretch{stream->stream, kept, kept + 1 + random_.index(rest)};
}

void RandomContexts::note_cut(const Stretch& cut) {
  ++cuts_;
  lengths_[cut.stream.value] -= cut.end - cut.begin;
  if (last_.stream == cut.stream) {
    last_.tokens = std::min(last_.tokens, Tokens(lengths_[cut.stream.value]));
  }
}

Context RandomContexts::next() {
  if (last_.tokens.value > 0 && random_.index(4) == 0) {
    return last_;
  }
  StreamId stream;
  if (lengths_.empty() || random_.index(6) == 0) {
    stream = streams_.open();
    lengths_.push_back(0);
  } else {
    stream = StreamId{
        static_cast<std::uint32_t>(random_.index(static_cast<std::int64_t>(lengths_.size())))};
    if (random_.index(4) == 0) {
      const std::int64_t begin = streams_.first_of(stream);
      const std::int64_t fork = begin + random_.index(lengths_[stream.value] - begin + 1);
      stream = streams_.open(stream, Tokens(fork));
      lengths_.push_back(fork);
    }
  }
  const std::int64_t begin = streams_.first_of(stream);
  const std::int64_t tokens = 1 + begin + random_.index(lengths_[stream.value] - begin + 12);
  lengths_[stream.value] = std::max(lengths_[stream.value], tokens);
  return last_ = {stream, Tokens(tokens)};
}

Context RandomContexts::longer(const Context& context) {
  StreamId stream = context.stream;
  if (coin(random_)) {
    while (streams_.first_of(stream) > context.tokens.value) {
      stream = streams_.parent(stream);
    }
    stream = streams_.open(stream, context.tokens);
    lengths_.push_back(context.tokens.value);
  }
  const Tokens tokens = context.tokens + Tokens(random_.index(8));
  lengths_[stream.value] = std::max(lengths_[stream.value], tokens.value);
  return {stream, tokens};
}

void ReplayedDecisions::on_decision(DecisionKind kind, std::size_t pool, const Stretch& blocks) {
  Replayed& replayed = pools_[pool];
  replayed.blocks[kind] += blocks.end - blocks.begin;
  if (kind == DecisionKind::skip) {
    return;
  }
  const bool comes = kind == DecisionKind::insert || kind == DecisionKind::promote ||
                     kind == DecisionKind::prefetch;
  for (std::int64_t block = blocks.begin; block < blocks.end; ++block) {
    int& copies = replayed.copies[{blocks.stream.value, block}];
    copies += comes ? 1 : -1;
    if (copies < 0 && error_.empty()) {
      error_ = fmt::format("{} of block {}:{} in pool {}, which is not there", to_string(kind),
                           blocks.stream.value, block, pool);
    }
    if (copies == 0) {
      replayed.copies.erase({blocks.stream.value, block});
    }
  }
}

void ReplayedDecisions::on_shift(std::size_t pool, StreamId stream, std::int64_t from,
                                 std::int64_t by) {
  std::map<std::pair<std::uint32_t, std::int64_t>, int> copies;
  for (const auto& [block, count] : pools_[pool].copies) {
    const bool shifts = block.first == stream.value && block.second >= from;
    copies[{block.first, block.second - (shifts ? by : 0)}] = count;
  }
  pools_[pool].copies = std::move(copies);
}

std::int64_t ReplayedDecisions::blocks(DecisionKind kind) const {
  std::int64_t sum = 0;
  for (const Replayed& pool : pools_) {
    const auto found = pool.blocks.find(kind);
    sum += found == pool.blocks.end() ? 0 : found->second;
  }
  return sum;
}

std::string ReplayedDecisions::difference(const Store& store) const {
  if (!error_.empty()) {
    return error_;
  }
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    const auto sum = [&](std::initializer_list<DecisionKind> kinds) {
      std::int64_t blocks = 0;
      for (const DecisionKind kind : kinds) {
        const auto found = pools_[i].blocks.find(kind);
        blocks += found == pools_[i].blocks.end() ? 0 : found->second;
      }
      return blocks;
    };
    using enum DecisionKind;
    const PoolCounters logged{.inserted = sum({insert, promote, prefetch}),
                              .evicted = sum({evict, demote}),
                              .demoted = sum({demote}),
                              .promoted = sum({promote, prefetch}),
                              .skipped = sum({skip})};
    const PoolCounters counters = store.counters(i);
    if (logged != counters) {
      return fmt::format(
          "pool {}: logged and counted: inserted {} {}, evicted {} {}, demoted {} {}, promoted {} "
          "{}, skipped {} {}",
          i, logged.inserted, counters.inserted, logged.evicted, counters.evicted, logged.demoted,
          counters.demoted, logged.promoted, counters.promoted, logged.skipped, counters.skipped);
    }
    std::map<std::pair<std::uint32_t, std::int64_t>, int> held;
    for (const Stretch& block : store.contents(i)) {
      ++held[{block.stream.value, block.begin}];
    }
    if (held != pools_[i].copies) {
      return fmt::format("pool {}: the blocks of the log are not those of the pool", i);
    }
  }
  return "";
}

namespace {

/// Requests that begin to wait and leave at random, in the queue of one instance.
class RandomQueue final : public QueueView {
 public:
  RandomQueue(Store& a, Store& b) {
    for (Store* store : {&a, &b}) {
      for (PolicyOrder* policies : store->looking_ahead()) {
        policies->set_queue(*this);
        policies_.push_back(policies);
      }
    }
  }
  [[nodiscard]] bool is_seen() const { return !policies_.empty(); }
  void change(RandomContexts& contexts, RandomStream& random) {
    if (waiting_.empty() || coin(random)) {
      const Context prompt = contexts.next();
      for (PolicyOrder* policies : policies_) {
        policies->begin_waiting(prompt, end_);
      }
      waiting_.push_back(end_);
      ++end_.value;
      return;
    }
    const QueuePosition left = take_any(waiting_, random);
    for (PolicyOrder* policies : policies_) {
      policies->end_waiting(left);
    }
    first_ = waiting_.empty() ? end_ : waiting_.front();
  }

  [[nodiscard]] EntryId entry_at(QueuePosition) const override { return kNoEntry; }
  [[nodiscard]] bool waiting_at(QueuePosition position) const override {
    return std::ranges::find(waiting_, position) != waiting_.end();
  }
  [[nodiscard]] Placement placement_at(QueuePosition) const override { return Placement::none; }
  [[nodiscard]] QueuePosition window_end() const override {
    return std::min(end_, QueuePosition{first_.value + 4});
  }

 private:
  std::vector<PolicyOrder*> policies_;
  std::vector<QueuePosition> waiting_;
};

}  // namespace

std::string first_difference(const Stores& a, const Stores& b, const StoreRules& rules,
                             RandomContexts& contexts, RandomStream& random, int calls) {
  struct Held {
    std::size_t instance = 0;
    RequestId a;
    RequestId b;
    Context context;
    Tokens computed;
    /// It found blocks behind the first pool that are not in its memory yet.
    bool loads = false;
  };
  std::vector<Held> held;
  /// An offload's released requests that have not ended, and copies by instance.
  std::vector<Held> released;
  std::vector<std::pair<std::size_t, std::uint32_t>> copies;
  /// Fetches of storage behind nodes, by instance.
  std::vector<std::pair<std::size_t, Prefetch>> fetches;
  const bool has_nodes = rules.pools.front().unit == EvictionUnit::node;
  const bool has_storage = rules.requests_in_first && rules.pools.size() > 2;
  const bool cuts = keeps_kv_behind_cuts(rules) && a.size() == 1;
  // Blocks of copies that take time, by pool: all, and those that have arrived.
  std::vector<std::int64_t> written(rules.pools.size());
  std::map<std::pair<std::size_t, std::uint32_t>, Copy> begun;
  std::set<std::pair<std::uint32_t, std::int64_t>> arrived;
  const auto is_written_to = [&](std::size_t pool) {
    return !has_nodes && pool < rules.pools.size() && takes_time(rules, pool);
  };
  const auto is_in_use = [&](StreamId stream) {
    const auto is_it = [&](const Held& one) { return one.context.stream == stream; };
    return std::ranges::any_of(held, is_it) || std::ranges::any_of(released, is_it) ||
           !fetches.empty() || !a.front()->looking_ahead().empty();
  };
  const auto forget_cut = [&](const Stretch& cut) {
    const auto shifted = [&](std::int64_t block) {
      return block < cut.end ? block : block - (cut.end - cut.begin);
    };
    std::set<std::pair<std::uint32_t, std::int64_t>> left;
    for (const auto& [stream, block] : arrived) {
      if (stream != cut.stream.value || block < cut.begin || block >= cut.end) {
        left.emplace(stream, stream == cut.stream.value ? shifted(block) : block);
      }
    }
    arrived = std::move(left);
    for (auto& [copy, of] : begun) {
      leave_cut(of.stretches, cut);
    }
  };
  ReplayedDecisions log(rules.pools.size());
  if (a.size() == 1 && !a.front()->set_log(&log)) {
    return "no log";
  }
  std::deque<RandomQueue> queues;
  for (std::size_t i = 0; i < a.size(); ++i) {
    queues.emplace_back(*a[i], *b[i]);
  }
  SimTime now;
  const auto arrive = [&](const std::pair<std::size_t, std::uint32_t>& copy) {
    a[copy.first]->copied(copy.second);
    b[copy.first]->copied(copy.second);
    if (const auto found = begun.find(copy); found != begun.end()) {
      for (const Stretch& stretch : found->second.stretches) {
        for (std::int64_t block = stretch.begin; block < stretch.end; ++block) {
          arrived.emplace(stretch.stream.value, block);
        }
      }
      begun.erase(found);
    }
  };
  const auto load_all = [&](Held& one) {
    if (one.loads && rules.requests_in_first) {
      for (const auto& [store, id] :
           {std::pair(a[one.instance].get(), one.a), {b[one.instance].get(), one.b}}) {
        store->loaded(id);
        store->publish_loaded(id);
      }
    }
    one.loads = false;
  };
  const auto release = [&](const Held& one) {
    a[one.instance]->release(one.a);
    b[one.instance]->release(one.b);
    if (a[one.instance]->offloads()) {
      released.push_back(one);
    }
  };
  const auto end = [&](const Held& one) {
    for (const auto& [store, id] :
         {std::pair(a[one.instance].get(), one.a), {b[one.instance].get(), one.b}}) {
      static_cast<void>(store->offer(id, one.context.tokens));
      store->end(id);
    }
  };
  // Behind the last call all that is held, fetched and moved comes to its end.
  const auto drains = [&] {
    return !held.empty() || !released.empty() || !copies.empty() || !fetches.empty();
  };
  for (int call = 0; call < calls || drains(); ++call) {
    const bool drain = call >= calls;
    const auto differs = [&](const std::string& what) {
      return fmt::format("call {}: {} differs\n{}", call, what, describe(rules));
    };
    const auto in_each = [&](auto act) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        act(*a[i]);
        act(*b[i]);
      }
    };
    for (RandomQueue& queue : queues) {
      if (queue.is_seen() && random.index(3) == 0) {
        queue.change(contexts, random);
      }
    }
    const std::int64_t action = random.index(10);
    if (drain && !copies.empty() && coin(random)) {
      arrive(take_any(copies, random));
    } else if (drain && !fetches.empty()) {
      const auto [instance, fetch] = take_any(fetches, random);
      if (a[instance]->prefetched(fetch.id, fetch.tokens) !=
          b[instance]->prefetched(fetch.id, fetch.tokens)) {
        return differs("what a prefetch brings");
      }
    } else if (drain && !released.empty()) {
      end(take_any(released, random));
    } else if (drain && !held.empty()) {
      Held one = take_any(held, random);
      load_all(one);
      release(one);
    } else if (drain) {
      // The last copies arrive above.
    } else if (action == 8) {
      now = now + SimDuration(random.index(12));
      in_each([&](Store& store) { store.advance(now); });
      const FreeBlocks free = a.front()->free_blocks();
      if (free.available - free.empty > rules.pools[0].idle.value_or(rules.pools[0].capacity)) {
        return differs("how much may be idle");
      }
    } else if (const auto edit =
                   action == 9 && random.index(3) == 0 ? contexts.edit() : std::nullopt) {
      in_each([&](Store& store) { store.truncate(edit->stream, edit->tokens); });
    } else if (const auto cut = action == 9 && cuts ? contexts.cut() : std::nullopt;
               cut && !is_in_use(cut->stream)) {
      in_each([&](Store& store) {
        store.cut(cut->stream, Tokens(cut->begin), Tokens(cut->end - cut->begin));
      });
      contexts.note_cut(*cut);
      forget_cut(*cut);
    } else if (has_storage && action == 9) {
      const auto instance =
          static_cast<std::size_t>(random.index(static_cast<std::int64_t>(a.size())));
      const Context prompt = contexts.next();
      const auto in_a = a[instance]->prefetch(prompt);
      const auto in_b = b[instance]->prefetch(prompt);
      if (in_a.has_value() != in_b.has_value() ||
          (in_a && (in_a->id != in_b->id || in_a->tokens != in_b->tokens))) {
        return differs("a prefetch");
      }
      if (in_a) {
        fetches.emplace_back(instance, *in_a);
      }
    } else if (!fetches.empty() && action == 7) {
      const auto [instance, fetch] = take_any(fetches, random);
      const Tokens came =
          !has_nodes || coin(random) ? fetch.tokens : Tokens(random.index(fetch.tokens.value));
      if (a[instance]->prefetched(fetch.id, came) != b[instance]->prefetched(fetch.id, came)) {
        return differs("what a prefetch brings");
      }
    } else if (held.empty() || (action < 3 && held.size() < (has_nodes ? 4U : 8U))) {
      const auto instance =
          static_cast<std::size_t>(random.index(static_cast<std::int64_t>(a.size())));
      const Context prompt = contexts.next();
      Tokens room = coin(random) ? prompt.tokens : Tokens(random.index(prompt.tokens.value + 1));
      Room asked{.taken = room,
                 .needed = coin(random) ? room : prompt.tokens,
                 .watermark = random.index(3),
                 .reserved = random.index(3),
                 .comes_early = rules.pools[0].idle && coin(random)};
      const Match expected = a[instance]->match(prompt);
      const Match also_expected = b[instance]->match(prompt);
      if (expected.waits != also_expected.waits) {
        return differs("whether a request has to ask again");
      }
      if (expected.waits) {
        continue;
      }
      for (const Stretch& stretch :
           a.size() == 1 && is_written_to(2) ? expected.far : std::vector<Stretch>()) {
        for (std::int64_t block = stretch.begin; block < stretch.end; ++block) {
          if (rules.pools.size() == 3 && !arrived.contains({stretch.stream.value, block})) {
            return differs("a block that was found before it was written");
          }
        }
      }
      Match found_a;
      Match found_b;
      RequestId again_a;
      RequestId again_b;
      Context asked_for = prompt;
      if (!released.empty() && released.back().instance == instance && coin(random)) {
        again_a = released.back().a;
        again_b = released.back().b;
        asked_for = released.back().context;
        room = asked.taken = asked.needed = asked_for.tokens;
        if (a[instance]->match(asked_for).waits) {
          continue;
        }
      }
      const auto in_a = a[instance]->acquire(asked_for, asked, found_a, again_a);
      const auto in_b = b[instance]->acquire(asked_for, asked, found_b, again_b);
      if (again_a.value != UINT32_MAX) {
        if (in_a.has_value() != in_b.has_value() || found_a.by_pool != found_b.by_pool) {
          return differs("what a request finds that goes on");
        }
        if (in_a) {
          released.pop_back();
        }
      } else if (found_a.tokens != found_b.tokens || found_a.by_pool != found_b.by_pool ||
                 found_a.reads_written != found_b.reads_written ||
                 (has_nodes ? expected.by_pool[0] != found_a.by_pool[0]
                            : expected.by_pool != found_a.by_pool) ||
                 expected.by_pool != also_expected.by_pool) {
        return differs(fmt::format("a match of {} tokens, {} and {},", prompt.tokens.value,
                                   found_a.tokens.value, found_b.tokens.value));
      }
      if (in_a.has_value() != in_b.has_value()) {
        return differs("whether there is room");
      }
      if (in_a) {
        held.push_back({instance,
                        *in_a,
                        *in_b,
                        {asked_for.stream, std::max(room, found_a.tokens)},
                        found_a.tokens,
                        found_a.tokens > found_a.by_pool[0]});
      }
    } else if (!held.empty()) {
      const auto at =
          static_cast<std::size_t>(random.index(static_cast<std::int64_t>(held.size())));
      Held& one = held[at];
      Store& in_a = *a[one.instance];
      Store& in_b = *b[one.instance];
      load_all(one);
      if (action == 3 && !copies.empty()) {
        arrive(take_any(copies, random));
      } else if (action == 4 && !released.empty()) {
        end(take_any(released, random));
      } else if (action < 5) {
        const Context longer = contexts.longer(one.context);
        const bool grown = in_a.grow(one.a, longer);
        if (grown != in_b.grow(one.b, longer)) {
          return differs("whether a request may grow");
        }
        one.context = grown ? longer : one.context;
      } else if (action == 5) {
        one.computed += Tokens(random.index((one.context.tokens - one.computed).value + 1));
        if (in_a.offloads()) {
          if (in_a.offer(one.a, one.computed) != in_b.offer(one.b, one.computed)) {
            return differs("whether an offer has room");
          }
        }
        in_a.computed(one.a, one.computed);
        in_b.computed(one.b, one.computed);
      } else {
        release(one);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    if (has_nodes && !copies.empty() && coin(random)) {
      arrive(take_any(copies, random));
    }
    for (std::size_t i = 0; i < a.size(); ++i) {
      const std::vector<Copy> begun_a = a[i]->take_copies();
      const std::vector<Copy> begun_b = b[i]->take_copies();
      if (begun_a.size() != begun_b.size()) {
        return differs("how many copies begin");
      }
      const std::vector<Copy> awaited_a = a[i]->take_awaited();
      const std::vector<Copy> awaited_b = b[i]->take_awaited();
      if (!std::ranges::equal(awaited_a, awaited_b, [](const Copy& one, const Copy& other) {
            return one.id == other.id && one.blocks == other.blocks && one.pool == other.pool;
          })) {
        return differs("which copies are awaited");
      }
      for (std::size_t j = 0; j < begun_a.size(); ++j) {
        if (begun_a[j].id != begun_b[j].id || begun_a[j].blocks != begun_b[j].blocks ||
            begun_a[j].pool != begun_b[j].pool || begun_a[j].waits != begun_b[j].waits) {
          return differs("a copy");
        }
        if (!begun_a[j].waits) {
          copies.emplace_back(i, begun_a[j].id);
        }
        if (is_written_to(begun_a[j].pool)) {
          written[begun_a[j].pool] += begun_a[j].blocks;
          begun.emplace(copies.back(), begun_a[j]);
        }
      }
    }
    in_each([](Store& store) { store.check_invariants(); });
    if (const std::string wrong = a.size() == 1 ? log.difference(*a.front()) : ""; !wrong.empty()) {
      return differs(fmt::format("the log ({})", wrong));
    }
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (rules.publication == Publication::never &&
          (a[i]->counters(0) != PoolCounters{} ||
           a[i]->free_blocks().available != a[i]->free_blocks().empty)) {
        return differs("a first pool that keeps nothing");
      }
      for (std::size_t pool = 0; pool < rules.pools.size(); ++pool) {
        const PoolCounters counted = a[i]->counters(pool);
        if (a.size() == 1 && is_written_to(pool) &&
            written[pool] != counted.inserted - counted.promoted) {
          return differs(fmt::format("pool {}: what is written and what comes in", pool));
        }
        if (!(a[i]->counters(pool) == b[i]->counters(pool))) {
          const PoolCounters one = a[i]->counters(pool);
          const PoolCounters other = b[i]->counters(pool);
          return differs(fmt::format(
              "instance {}, pool {}: inserted {} {}, evicted {} {}, demoted {} {}, promoted {} {}, "
              "skipped {} {}: a counter",
              i, pool, one.inserted, other.inserted, one.evicted, other.evicted, one.demoted,
              other.demoted, one.promoted, other.promoted, one.skipped, other.skipped));
        }
        if (a[i]->resident_blocks(pool) != b[i]->resident_blocks(pool) ||
            a[i]->contents(pool) != b[i]->contents(pool)) {
          std::string held_by;
          for (const Stores* stores : {&a, &b}) {
            held_by += "\n ";
            for (const Stretch& one : (*stores)[i]->contents(pool)) {
              held_by += fmt::format(" {}:{}", one.stream.value, one.begin);
            }
          }
          return differs(fmt::format("instance {}, pool {}:{}: what it holds", i, pool, held_by));
        }
      }
      if (rules.requests_in_first &&
          (a[i]->free_blocks().available != b[i]->free_blocks().available ||
           a[i]->free_blocks().empty != b[i]->free_blocks().empty)) {
        return differs(fmt::format("instance {}: its free blocks", i));
      }
      for (std::uint32_t stream = 0; stream < contexts.streams().size(); ++stream) {
        if (a[i]->remembers(StreamId{stream}) != b[i]->remembers(StreamId{stream})) {
          return differs(fmt::format("instance {}: whether it remembers a stream", i));
        }
      }
    }
  }
  // Nothing is held or in flight any more: all blocks may leave.
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (has_nodes) {  // a node of several streams stays until it makes room
      if (a[i]->free_blocks().available != rules.pools[0].capacity) {
        return fmt::format("instance {}: some nodes cannot leave at the end", i);
      }
      continue;
    }
    for (std::uint32_t stream = 0; stream < contexts.streams().size(); ++stream) {
      a[i]->truncate(StreamId{stream}, Tokens(0));
    }
    for (std::size_t pool = 0; pool < rules.pools.size(); ++pool) {
      if (const std::int64_t left = a[i]->resident_blocks(pool); left > 0) {
        return fmt::format("instance {}, pool {}: {} blocks cannot leave at the end", i, pool,
                           left);
      }
    }
    a[i]->check_invariants();
  }
  return "";
}

}  // namespace kvtier
