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
    back_from_victims += has_victims_behind(rules) ? extents[0]->counters(0).promoted : 0;
    filtered +=
        rules.edges.size() > 1 && rules.edges[1].frequency ? extents[0]->counters(2).inserted : 0;
  }
  EXPECT_GT(parts, cases / 40);
  EXPECT_GT(back_from_victims, cases / 10);
  EXPECT_GT(filtered, cases / 20);
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
