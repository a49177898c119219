/// Extents and nodes do what a plain store of blocks does, call by call.

#include <array>
#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "sim/store/blocks/stores.hpp"
#include "tests/sim/store/random_stores.hpp"

namespace kvtier {
namespace {

TEST(Extents, EqualSingleBlocks) {
  const char* wanted = std::getenv("KVTIER_TEST_CASES");
  const int cases = wanted != nullptr ? std::atoi(wanted) : 1'000;
  const PolicyRegistry registry = builtin_policies();
  // Systems with a rule of engines in which it may act.
  std::int64_t parts = 0;
  std::int64_t back_from_victims = 0;
  std::int64_t filtered = 0;
  std::array<std::int64_t, 2> entries{};
  std::int64_t evicted_entries = 0;
  std::int64_t kept_behind = 0;
  std::int64_t cuts = 0;
  for (int seed = 1; seed <= cases; ++seed) {
    RandomStream random(static_cast<std::uint64_t>(seed), "stores");
    const StoreRules rules = random_rules(random);
    RandomContexts contexts(random);
    const bool several = rules.pools.back().shared;
    const std::size_t instances = several ? 1 + static_cast<std::size_t>(random.index(3)) : 1;
    const auto extents = make_stores(rules, contexts.streams(), registry, instances);
    const auto reference = make_reference_stores(rules, contexts.streams(), registry, instances);
    SCOPED_TRACE(fmt::format("seed {}, {}", seed, describe(rules)));
    ASSERT_EQ(first_difference(extents, reference, rules, contexts, random, 150), "");
    parts += rules.partial_reuse ? 1 : 0;
    cuts += contexts.cuts();
    if (rules.publication == Publication::never && rules.pools.size() > 1) {
      kept_behind += extents[0]->counters(1).inserted;
    }
    back_from_victims += has_victims_behind(rules) ? extents[0]->counters(0).promoted : 0;
    if (has_entries(rules.pools[0].unit)) {
      ++entries[rules.requests_in_first ? 1 : 0];
      evicted_entries += extents[0]->counters(0).evicted;
    }
    filtered +=
        rules.edges.size() > 1 && rules.edges[1].frequency ? extents[0]->counters(2).inserted : 0;
  }
  EXPECT_GT(parts, cases / 40);
  EXPECT_GT(back_from_victims, cases / 10);
  EXPECT_GT(filtered, cases / 20);
  EXPECT_GT(entries[0], cases / 20);
  EXPECT_GT(entries[1], cases / 20);
  EXPECT_GT(evicted_entries, cases);
  EXPECT_GT(kept_behind, cases / 2);
  EXPECT_GT(cuts, cases / 20);
}

/// The registry with its policies under other names, which no pool knows.
PolicyRegistry renamed(PolicyRegistry registry) {
  for (auto& kind : registry.eviction) {
    kind.name = "registry_" + kind.name;
  }
  return registry;
}

TEST(Extents, OrdersOfPoolsAreThoseOfTheRegistry) {
  const PolicyRegistry registry = renamed(builtin_policies());
  std::int64_t evicted = 0;
  int compared = 0;
  for (int seed = 1; compared < 200; ++seed) {
    RandomStream random(static_cast<std::uint64_t>(seed), "orders");
    const StoreRules rules = random_rules(random);
    StoreRules others = rules;
    // Where requests run, fifo begins with the publication of a block and a policy with its first
    // release, and lfu does not count requests that computed a block that is there. An offload has
    // places for requests in its order.
    bool comparable = !is_offload(rules) && rules.pools[0].unit == EvictionUnit::block;
    for (std::size_t i = 0; i < rules.pools.size(); ++i) {
      comparable = comparable && has_own_order(rules, i) && rules.pools[i].retention.empty() &&
                   (!rules.requests_in_first || i > 0 || rules.pools[i].eviction == "lru");
      others.pools[i].eviction = "registry_" + rules.pools[i].eviction;
    }
    if (!comparable) {
      continue;
    }
    ++compared;
    RandomContexts contexts(random);
    const auto own = make_store(rules, contexts.streams());
    const auto ranked = make_store(others, contexts.streams(), registry);
    SCOPED_TRACE(fmt::format("seed {}, {}", seed, describe(rules)));
    std::vector<std::pair<RequestId, RequestId>> running;
    for (int call = 0; call < 200; ++call) {
      const SimTime now{call};
      own->advance(now);
      ranked->advance(now);
      Match in_own;
      Match in_ranked;
      const Context prompt = contexts.next();
      const auto id = own->acquire(prompt, prompt.tokens, in_own);
      const auto other = ranked->acquire(prompt, prompt.tokens, in_ranked);
      ASSERT_EQ(in_own.by_pool, in_ranked.by_pool);
      ASSERT_EQ(id.has_value(), other.has_value());
      if (id) {
        running.emplace_back(*id, *other);
        own->computed(*id, prompt.tokens);
        ranked->computed(*other, prompt.tokens);
      }
      if (running.size() > 2 || !id) {
        for (const auto& [a, b] : running) {
          own->release(a);
          ranked->release(b);
        }
        running.clear();
      }
      for (const auto& copy : own->take_copies()) {
        if (!copy.waits) {
          own->copied(copy.id);
        }
      }
      for (const auto& copy : ranked->take_copies()) {
        if (!copy.waits) {
          ranked->copied(copy.id);
        }
      }
      for (std::size_t i = 0; i < rules.pools.size(); ++i) {
        ASSERT_EQ(own->counters(i), ranked->counters(i)) << "call " << call << " pool " << i;
      }
    }
    evicted += own->counters(0).evicted;
  }
  EXPECT_GT(evicted, 2'000);
}

TEST(Extents, EqualPlainStoresWithNodesInTiers) {
  const char* wanted = std::getenv("KVTIER_TEST_CASES");
  const int cases = wanted != nullptr ? std::atoi(wanted) : 1'000;
  const PolicyRegistry registry = builtin_policies();
  std::array<PoolCounters, 3> sums{};
  for (int seed = 1; seed <= cases; ++seed) {
    RandomStream random(static_cast<std::uint64_t>(seed), "nodes");
    const StoreRules rules = random_nodes(random);
    RandomContexts contexts(random);
    const std::size_t instances = rules.pools.back().shared ? 2 : 1;
    const auto nodes = make_stores(rules, contexts.streams(), registry, instances);
    const auto reference = make_reference_stores(rules, contexts.streams(), registry, instances);
    const std::string difference = first_difference(nodes, reference, rules, contexts, random, 250);
    ASSERT_EQ(difference, "") << "seed " << seed;
    for (std::size_t i = 0; i < rules.pools.size(); ++i) {
      const PoolCounters counters = nodes[0]->counters(i);
      sums[i].evicted += counters.evicted;
      sums[i].demoted += counters.demoted;
      sums[i].promoted += counters.promoted;
      sums[i].skipped += counters.skipped;
    }
  }
  // The systems do all that nodes can do.
  EXPECT_GT(sums[0].demoted, cases);
  EXPECT_GT(sums[0].promoted, cases);
  EXPECT_GT(sums[1].evicted, cases);
  EXPECT_GT(sums[1].promoted, cases / 2);
  EXPECT_GT(sums[1].skipped, cases);
  EXPECT_GT(sums[2].evicted, cases);
}

}  // namespace
}  // namespace kvtier
