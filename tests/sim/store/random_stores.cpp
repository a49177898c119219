#include "tests/sim/store/random_stores.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace kvtier {
namespace {

template <class T, std::size_t N>
T one_of(RandomStream& random, const std::array<T, N>& values) {
  return values[static_cast<std::size_t>(random.index(static_cast<std::int64_t>(N)))];
}

bool coin(RandomStream& random) { return random.index(2) == 0; }

}  // namespace

StoreRules random_rules(RandomStream& random) {
  StoreRules rules;
  const std::array<std::string, 3> orders{"lru", "fifo", "lfu"};
  rules.hit_cap = coin(random) ? HitCap::none : HitCap::last_token;
  rules.publication =
      one_of(random, std::array{Publication::scheduling, Publication::computed, Publication::end});
  rules.duplicates = coin(random) ? Duplicates::kept : Duplicates::merged;
  rules.keyless = coin(random) ? Keyless::first : Keyless::in_order;
  rules.requests_in_first = random.index(2) == 0;
  const std::int64_t pools = rules.requests_in_first ? 1 + random.index(2) : 1 + random.index(5);
  const Tokens block(1 + random.index(4));
  for (std::int64_t i = 0; i < pools; ++i) {
    PoolRules pool{.name = fmt::format("pool{}", i),
                   .capacity = 1 + random.index(i == 0 ? 30 : 60),
                   .block = block,
                   .eviction = one_of(random, orders),
                   .insertion = coin(random) ? End::tail : End::head,
                   .touch = coin(random) ? Touch::end : Touch::lookup};
    if (rules.requests_in_first) {
      pool.capacity += 20;
      pool.touch = Touch::end;
      if (pools == 1 && coin(random)) {
        pool.unit = EvictionUnit::node;
        pool.eviction = coin(random) ? "lru" : "lfu";
        pool.whole_need = coin(random);
        pool.one_block_more = coin(random);
      }
    }
    rules.pools.push_back(pool);
    if (i > 0) {
      rules.edges.push_back(
          {.write = one_of(random,
                           std::array{Write::with_compute, Write::after_uses, Write::on_eviction}),
           .uses = 1 + random.index(3),
           .exclusive = coin(random),
           .no_room = coin(random) ? NoRoom::evict : NoRoom::skip,
           .promotes = random.index(3) > 0,
           .prompts_only = coin(random)});
      if (rules.requests_in_first) {
        rules.pools.back().capacity = 1 + random.index(40);
        rules.edges.back().write = Write::with_compute;
        rules.edges.back().exclusive = false;
        if (random.index(3) == 0) {
          rules.pools.back().eviction = "arc";
        }
      }
    }
  }
  return rules;
}

std::string describe(const StoreRules& rules) {
  std::string text = fmt::format(
      "requests_in_first {} hit_cap {} publication {} duplicates {} keyless {}",
      rules.requests_in_first, static_cast<int>(rules.hit_cap), static_cast<int>(rules.publication),
      static_cast<int>(rules.duplicates), static_cast<int>(rules.keyless));
  for (const PoolRules& pool : rules.pools) {
    text += fmt::format("\n  pool of {} x {}: unit {} {} insertion {} touch {} whole {} more {}",
                        pool.capacity, pool.block.value, static_cast<int>(pool.unit), pool.eviction,
                        static_cast<int>(pool.insertion), static_cast<int>(pool.touch),
                        pool.whole_need, pool.one_block_more);
  }
  for (const EdgeRules& edge : rules.edges) {
    text += fmt::format("\n  edge: write {} uses {} exclusive {} no_room {} promotes {} prompts {}",
                        static_cast<int>(edge.write), edge.uses, edge.exclusive,
                        static_cast<int>(edge.no_room), edge.promotes, edge.prompts_only);
  }
  return text;
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

std::string first_difference(Store& a, Store& b, const StoreRules& rules, RandomContexts& contexts,
                             RandomStream& random, int calls) {
  struct Held {
    RequestId a;
    RequestId b;
    Context context;
    Tokens computed;
  };
  std::vector<Held> held;
  for (int call = 0; call < calls; ++call) {
    const auto differs = [&](const std::string& what) {
      return fmt::format("call {}: {} differs\n{}", call, what, describe(rules));
    };
    const std::int64_t action = random.index(8);
    if (held.empty() || (action < 3 && held.size() < 8)) {
      const Context prompt = contexts.next();
      const Tokens room =
          coin(random) ? prompt.tokens : Tokens(random.index(prompt.tokens.value + 1));
      const Match expected = a.match(prompt);
      Match found_a;
      Match found_b;
      const auto in_a = a.acquire(prompt, room, found_a);
      const auto in_b = b.acquire(prompt, room, found_b);
      if (found_a.tokens != found_b.tokens || found_a.by_pool != found_b.by_pool ||
          expected.by_pool != found_a.by_pool) {
        return differs(fmt::format("a match of {} tokens, {} and {},", prompt.tokens.value,
                                   found_a.tokens.value, found_b.tokens.value));
      }
      if (in_a.has_value() != in_b.has_value()) {
        return differs("whether there is room");
      }
      if (in_a) {
        held.push_back(
            {*in_a, *in_b, {prompt.stream, std::max(room, found_a.tokens)}, found_a.tokens});
      }
    } else {
      const auto at =
          static_cast<std::size_t>(random.index(static_cast<std::int64_t>(held.size())));
      Held& one = held[at];
      if (action < 5) {
        const Context longer = contexts.longer(one.context);
        const bool grown = a.grow(one.a, longer);
        if (grown != b.grow(one.b, longer)) {
          return differs("whether a request may grow");
        }
        one.context = grown ? longer : one.context;
      } else if (action == 5) {
        one.computed += Tokens(random.index((one.context.tokens - one.computed).value + 1));
        a.computed(one.a, one.computed);
        b.computed(one.b, one.computed);
      } else {
        a.release(one.a);
        b.release(one.b);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    a.check_invariants();
    b.check_invariants();
    for (std::size_t pool = 0; pool < rules.pools.size(); ++pool) {
      if (!(a.counters(pool) == b.counters(pool))) {
        return differs(fmt::format("pool {}: a counter", pool));
      }
      if (a.resident_blocks(pool) != b.resident_blocks(pool) ||
          a.contents(pool) != b.contents(pool)) {
        return differs(fmt::format("pool {}: what it holds", pool));
      }
    }
  }
  return "";
}

}  // namespace kvtier
