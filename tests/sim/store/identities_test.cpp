/// Identities of prefix caches, for any order of requests.

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "sim/store/blocks/stores.hpp"
#include "sim/store/curves/belady.hpp"
#include "sim/study/engines/replays.hpp"
#include "tests/sim/store/random_stores.hpp"

namespace kvtier {
namespace {

constexpr int kForests = 1'000;
constexpr Tokens kBlock{2};

using Key = std::pair<std::uint32_t, std::int64_t>;

struct Forest {
  Streams streams;
  std::vector<Context> requests;
  /// Blocks of each request.
  std::vector<std::vector<Key>> blocks;
};

Forest random_forest(int seed) {
  RandomStream random(static_cast<std::uint64_t>(seed), "forests");
  RandomContexts contexts(random);
  Forest forest;
  for (int i = 0; i < 120; ++i) {
    forest.requests.push_back(contexts.next());
  }
  forest.streams = contexts.streams();
  std::vector<Stretch> path;
  for (const Context& request : forest.requests) {
    forest.streams.path(request.stream, request.tokens.value / kBlock.value, kBlock.value, path);
    std::vector<Key>& blocks = forest.blocks.emplace_back();
    for (const Stretch& stretch : path) {
      for (std::int64_t i = stretch.begin; i < stretch.end; ++i) {
        blocks.emplace_back(stretch.stream.value, i);
      }
    }
  }
  return forest;
}

/// Blocks that each request hits.
using Hits = std::vector<std::int64_t>;

Hits hits_of(const Forest& forest, const std::vector<std::int64_t>& capacities,
             const std::string& eviction = "lru", const EdgeRules& edge = {}) {
  StoreRules rules;
  rules.hit_cap = HitCap::none;
  for (const std::int64_t capacity : capacities) {
    rules.pools.push_back({.capacity = capacity, .block = kBlock, .eviction = eviction});
  }
  rules.edges.assign(capacities.size() - 1, edge);
  const auto store = make_store(rules, forest.streams);
  Hits hits;
  for (const Context& request : forest.requests) {
    hits.push_back(replay_cache(*store, request).match.tokens.value / kBlock.value);
  }
  return hits;
}

std::int64_t sum(const Hits& hits) {
  std::int64_t total = 0;
  for (const std::int64_t hit : hits) {
    total += hit;
  }
  return total;
}

std::int64_t leading_run(const std::vector<Key>& blocks, const std::map<Key, std::int64_t>& cache) {
  std::int64_t run = 0;
  while (run < static_cast<std::int64_t>(blocks.size()) &&
         cache.contains(blocks[static_cast<std::size_t>(run)])) {
    ++run;
  }
  return run;
}

/// A trie of which the least recently used leaf leaves.
Hits trie_lru(const Forest& forest, std::int64_t capacity) {
  std::map<Key, std::int64_t> last_use;
  std::map<Key, Key> parents;
  Hits hits;
  std::int64_t now = 0;
  for (const std::vector<Key>& blocks : forest.blocks) {
    hits.push_back(leading_run(blocks, last_use));
    ++now;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      last_use[blocks[i]] = now;
      if (i > 0) {
        parents[blocks[i]] = blocks[i - 1];
      }
    }
    while (static_cast<std::int64_t>(last_use.size()) > capacity) {
      std::set<Key> inner;
      for (const auto& [block, use] : last_use) {
        if (const auto parent = parents.find(block); parent != parents.end()) {
          inner.insert(parent->second);
        }
      }
      auto oldest = last_use.end();
      for (auto block = last_use.begin(); block != last_use.end(); ++block) {
        if (!inner.contains(block->first) &&
            (oldest == last_use.end() || block->second < oldest->second)) {
          oldest = block;
        }
      }
      last_use.erase(oldest);
    }
  }
  return hits;
}

/// Keeps the blocks with the earliest next use, and among equal ones those nearer to the root.
/// Blocks used late need not be stored.
Hits belady(const Forest& forest, std::int64_t capacity) {
  const auto requests = static_cast<std::int64_t>(forest.blocks.size());
  std::map<Key, std::vector<std::int64_t>> uses;
  for (std::int64_t i = 0; i < requests; ++i) {
    for (const Key& block : forest.blocks[static_cast<std::size_t>(i)]) {
      uses[block].push_back(i);
    }
  }
  std::map<Key, std::int64_t> depth;
  Hits hits;
  for (std::int64_t i = 0; i < requests; ++i) {
    const std::vector<Key>& blocks = forest.blocks[static_cast<std::size_t>(i)];
    hits.push_back(leading_run(blocks, depth));
    for (std::size_t at = 0; at < blocks.size(); ++at) {
      depth[blocks[at]] = static_cast<std::int64_t>(at);
    }
    while (static_cast<std::int64_t>(depth.size()) > capacity) {
      const auto place = [&](const Key& block, std::int64_t at) {
        const std::vector<std::int64_t>& all = uses.at(block);
        const auto next = std::upper_bound(all.begin(), all.end(), i);
        return std::pair(next == all.end() ? requests : *next, at);
      };
      depth.erase(std::max_element(depth.begin(), depth.end(), [&](const auto& a, const auto& b) {
        return place(a.first, a.second) < place(b.first, b.second);
      }));
    }
  }
  return hits;
}

TEST(Identities, LruFromTheTailIsTheLruOfATriesLeaves) {
  for (int seed = 1; seed <= kForests; ++seed) {
    const Forest forest = random_forest(seed);
    const std::int64_t capacity = 1 + seed % 40;
    ASSERT_EQ(hits_of(forest, {capacity}), trie_lru(forest, capacity)) << "seed " << seed;
  }
}

TEST(Identities, InclusiveTiersHitAsTheLargerAndExclusiveOnesAsTheirSum) {
  const EdgeRules inclusive{.write = Write::on_create};
  const EdgeRules exclusive{.write = Write::on_evict, .exclusive = true};
  for (int seed = 1; seed <= kForests; ++seed) {
    const Forest forest = random_forest(seed);
    const std::int64_t fast = 1 + seed % 23;
    const std::int64_t slow = 1 + seed % 31;
    ASSERT_EQ(hits_of(forest, {fast, slow}, "lru", inclusive),
              hits_of(forest, {std::max(fast, slow)}))
        << "seed " << seed;
    ASSERT_EQ(hits_of(forest, {fast, slow}, "lru", exclusive), hits_of(forest, {fast + slow}))
        << "seed " << seed;
    ASSERT_EQ(hits_of(forest, {fast, slow, fast}, "lru", exclusive),
              hits_of(forest, {fast + slow + fast}))
        << "seed " << seed;
  }
}

TEST(Identities, ALargerLruHitsNoLess) {
  for (int seed = 1; seed <= kForests; ++seed) {
    const Forest forest = random_forest(seed);
    const std::int64_t capacity = 1 + seed % 40;
    const Hits smaller = hits_of(forest, {capacity});
    const Hits larger = hits_of(forest, {capacity + 1 + seed % 7});
    for (std::size_t i = 0; i < smaller.size(); ++i) {
      ASSERT_LE(smaller[i], larger[i]) << "seed " << seed << ", request " << i;
    }
  }
}

TEST(Identities, TheBoundIsBeladys) {
  for (int seed = 1; seed <= kForests; ++seed) {
    const Forest forest = random_forest(seed);
    Belady bound(forest.streams, kBlock);
    for (const Context& request : forest.requests) {
      bound.add(request, request);
    }
    for (const std::int64_t capacity : {std::int64_t{1} + seed % 40, std::int64_t{1000}}) {
      ASSERT_EQ(bound.hits(capacity), sum(belady(forest, capacity))) << "seed " << seed;
    }
  }
}

TEST(Identities, BeladyOfMeasuredRequestsHitsNoLessThanAnyOrder) {
  for (int seed = 1; seed <= kForests; ++seed) {
    const Forest forest = random_forest(seed);
    const std::int64_t capacity = 1 + seed % 40;
    const std::size_t warm_up = static_cast<std::size_t>(seed) % forest.requests.size();
    Belady bound(forest.streams, kBlock);
    for (std::size_t i = 0; i < forest.requests.size(); ++i) {
      bound.add(forest.requests[i], forest.requests[i], i >= warm_up);
    }
    const std::int64_t most = bound.hits(capacity);
    const auto measured = [&](Hits hits) {
      hits.erase(hits.begin(), hits.begin() + static_cast<std::ptrdiff_t>(warm_up));
      return sum(hits);
    };
    ASSERT_LE(measured(belady(forest, capacity)), most) << "seed " << seed;
    for (const char* eviction : {"lru", "fifo", "lfu"}) {
      ASSERT_LE(measured(hits_of(forest, {capacity}, eviction)), most)
          << "seed " << seed << ", " << eviction;
    }
  }
}

/// One block fits. Request 2 of the warm-up looks up what request 0 left, and request 3, the only
/// measured one, what request 1 left.
TEST(Identities, BeladyKeepsNothingForTheWarmUp) {
  Streams streams;
  const Context a{streams.open(), kBlock};
  const Context b{streams.open(), kBlock};
  Belady bound(streams, kBlock);
  bound.add(a, a, false);
  bound.add(b, b, false);
  bound.add(a, a, false);
  bound.add(b, b, true);
  EXPECT_EQ(bound.hits(1), 1);
}

/// Two blocks fit. The second response of `a` leaves its block again, so the first one need not
/// stay beside `b` and `c`.
TEST(Identities, BeladyKeepsNothingThatALaterResponseLeaves) {
  Streams streams;
  const Context a{streams.open(), kBlock};
  const Context b{streams.open(), kBlock};
  const Context c{streams.open(), kBlock};
  const Context none{a.stream, Tokens(0)};
  Belady bound(streams, kBlock);
  bound.add(b, b);
  bound.add(c, c);
  bound.add(none, a);
  bound.add(c, c);
  bound.add(none, a);
  bound.add(a, a);
  bound.add(b, b);
  EXPECT_EQ(bound.hits(2), 3);
}

TEST(Identities, BeladyHitsNoLessThanAnyOrder) {
  std::int64_t more = 0;
  for (int seed = 1; seed <= kForests; ++seed) {
    const Forest forest = random_forest(seed);
    const std::int64_t capacity = 1 + seed % 40;
    const std::int64_t best = sum(belady(forest, capacity));
    for (const char* eviction : {"lru", "fifo", "lfu"}) {
      const std::int64_t hits = sum(hits_of(forest, {capacity}, eviction));
      ASSERT_LE(hits, best) << "seed " << seed << ", " << eviction;
      more += best - hits;
    }
  }
  EXPECT_GT(more, 0);
}

}  // namespace
}  // namespace kvtier
